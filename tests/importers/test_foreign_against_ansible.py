"""Our reading of Ansible's inventories beside ansible-core's own, where the benchmark has installed it."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from runbook.files.inventory import examine_inventory
from runbook.files.inventory_draft import draft_text
from runbook.files.yaml_document import parse_document
from runbook.importers.convert import draft_of_foreign_inventory, read_foreign_inventory
from runbook.model.errors import FilesWrong

ANSIBLE = Path(__file__).parents[2] / ".venv" / "bench" / "bin" / "python"
pytestmark = pytest.mark.skipif(not ANSIBLE.exists(), reason="ansible-core is not installed (make bench does)")

SCRIPT = """
import json, logging, sys
from ansible.inventory.manager import InventoryManager
from ansible.inventory.helpers import get_group_vars
from ansible.parsing.dataloader import DataLoader

def one(path):
    try:
        found = InventoryManager(loader=DataLoader(), sources=[path])
    except Exception as error:
        return None
    hosts = {}
    for host in found.get_hosts():
        values = get_group_vars(host.get_groups())
        values.update(host.vars)
        hosts[host.name] = {k: v for k, v in values.items() if not k.startswith("inventory_")}
    groups = {n: sorted(h.name for h in g.get_hosts()) for n, g in found.groups.items() if n not in ("all", "ungrouped")}
    return {"hosts": hosts, "groups": {name: hosts for name, hosts in groups.items() if hosts}}

print("\\x1e" + json.dumps([one(path) for path in sys.argv[1:]], default=str))
"""


def ansible(paths: list[Path]) -> list[dict[str, Any] | None]:
    done = subprocess.run(
        [str(ANSIBLE), "-c", SCRIPT, *map(str, paths)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(paths[0].parent),
            "LC_ALL": "C.UTF-8",
            "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "true",
            "ANSIBLE_LOCALHOST_WARNING": "false",
            "ANSIBLE_INVENTORY_ENABLED": "yaml,ini",
        },
    )
    answers: list[dict[str, Any] | None] = json.loads(done.stdout.partition("\x1e")[2])
    return answers


def ours(path: Path) -> dict[str, Any] | None:
    """What our import makes of it, in the shape of the answers above; None where it refuses."""
    try:
        text = draft_text(
            draft_of_foreign_inventory(read_foreign_inventory(path.read_text(), str(path), "ansible"), "x")
        )
    except FilesWrong:
        return None
    examined = examine_inventory(parse_document(text, "ours.yml"), environ={})
    assert examined.problems == (), text
    assert examined.inventory is not None
    return {
        "hosts": {
            node.name: {
                "address": node.address,
                "user": node.ssh.user,
                "port": node.ssh.port,
                "key": node.ssh.key,
                "gpus": len(node.gpus),
                "vars": dict(node.vars),
            }
            for node in examined.inventory.nodes
        },
        "groups": {name: sorted(members) for name, members in examined.inventory.groups.items()},
    }


def translated(answer: dict[str, Any] | None) -> dict[str, Any] | None:
    """Ansible's variables as nodes have them; of a key's two names the old one wins, as in ansible-core's options."""
    if answer is None or not answer["hosts"]:
        return None

    def last(values: dict[str, Any], *names: str) -> Any:
        found = [values[name] for name in names if name in values]
        return found[-1] if found else None

    hosts = {}
    for name, values in answer["hosts"].items():
        port = last(values, "ansible_port", "ansible_ssh_port")
        hosts[name] = {
            "address": last(values, "ansible_host", "ansible_ssh_host") or name,
            "user": last(values, "ansible_user", "ansible_ssh_user"),
            "port": None if port is None else int(port),
            "key": last(values, "ansible_private_key_file", "ansible_ssh_private_key_file"),
            "gpus": values.get("gpus", 0),
            "vars": {key: value for key, value in values.items() if not key.startswith("ansible_") and key != "gpus"},
        }
    return {"hosts": hosts, "groups": answer["groups"]}


VALUES = ["1", "0644", "yes", "True", "'True'", "2.50", "[1, 'a']", "{'k': (1, 2)}", "None", "a-b", "x=y", "1e3", "'#'"]


def random_ini(dice: random.Random) -> str:
    """Groups, ranges, ports, quotes, comments and variables at every level; names never mean two machines."""
    groups = [f"g{number}" for number in range(dice.randint(1, 5))]
    number = iter(range(1, 1000))
    hosts = [
        dice.choice(["h{0}", "n{0}[1:3]", "p{0}[08:11].example", "q{0}-[a:c]", "s{0}[1:9:4]", "h{0}:22{1:02}"]).format(
            next(number), dice.randint(0, 99)
        )
        for _ in range(dice.randint(1, 6))
    ]

    def assignments(quoted: bool, most: int) -> list[str]:
        names = dice.sample(["ansible_user", "ansible_ssh_user", "ansible_port", "v1", "v2", "v3", "gpus"], most)
        return [f"{name}={_value(dice, name, quoted)}" for name in names]

    lines = ["# generated", ""]
    for host in hosts[: len(hosts) // 3]:
        lines.append(" ".join([host, *assignments(True, dice.randint(0, 2))]))
    for place, group in enumerate(groups):
        lines.append(f"[{group}]" + dice.choice(["", "  # comment"]))
        for host in dice.sample(hosts, dice.randint(0, len(hosts))):
            lines.append(" ".join([host, *assignments(True, dice.randint(0, 3))]) + dice.choice(["", " # c", ""]))
        if dice.random() < 0.4 and place + 1 < len(groups):
            lines += [f"[{group}:children]", dice.choice(groups[place + 1 :])]
        if dice.random() < 0.6:
            lines += [f"[{group}:vars]", *assignments(False, dice.randint(1, 4))]
            if dice.random() < 0.2:
                lines.append(f"ansible_group_priority={dice.randint(0, 3)}")
    if dice.random() < 0.5:
        lines += ["[all:vars]", *assignments(False, 3)]
    if dice.random() < 0.1:
        lines.insert(
            dice.randint(0, len(lines)), dice.choice(["[oops", "n1 oops", "[a:vars]", "[g:children]\nmissing"])
        )
    return "\n".join(lines) + "\n"


def _value(dice: random.Random, name: str, quoted: bool) -> str:
    if name.endswith("user"):
        return dice.choice(["root", "ubuntu", "'me'" if quoted else "me"])
    if name in ("ansible_port", "gpus"):
        return str(dice.randint(1, 9))
    value = dice.choice(VALUES)
    return '"' + value.replace('"', '\\"') + '"' if quoted and set(value) & set(" '#") else value


def test_generated_ini_inventories_mean_what_ansible_says(tmp_path: Path) -> None:
    dice = random.Random(7)
    paths = []
    for number in range(300):
        path = tmp_path / f"hosts{number}"
        path.write_text(random_ini(dice))
        paths.append(path)
    answers = [translated(answer) for answer in ansible(paths)]
    refused = sum(answer is None for answer in answers)
    assert 5 < refused < 100
    for path, answer in zip(paths, answers, strict=True):
        assert ours(path) == answer, path.read_text()


YAML = [
    "all:\n  hosts:\n    a: {ansible_host: 10.0.0.1, x: yes, y: 'yes', z: on}\n    b[1:3]: {p: 1}\n",
    "g:\n  vars: {u: 1, ansible_user: g}\n  hosts: {a: {u: 2}, b: }\nh:\n  children: {g: {vars: {w: [1, no]}}}\n",
    "all:\n  children:\n    x: {hosts: a, vars: {ansible_port: 22}}\n    y: {hosts: {a: {ansible_port: 23}}}\n",
    "ungrouped: {hosts: {lonely: }, vars: {q: 1}}\nall: {vars: {r: {deep: {n: 2}}}}\n",
    "all:\n  hosts:\n    - a\n",
    "all: {hosts: {a: }, vars: [1]}\n",
]


def test_yaml_inventories_mean_what_ansible_says(tmp_path: Path) -> None:
    paths = []
    for number, text in enumerate(YAML):
        path = tmp_path / f"hosts{number}.yml"
        path.write_text(text)
        paths.append(path)
    for path, answer in zip(paths, ansible(paths), strict=True):
        assert ours(path) == translated(answer), path.read_text()
