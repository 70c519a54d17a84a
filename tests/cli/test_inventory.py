"""`runbook inventory list|graph|explain|import` as somebody types it: what is printed where, and the exit codes."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest

from runbook.cli.main import main
from runbook.files.inventory import load_inventory

MINE = """\
name: mine
rendezvous: {master: node-a}
network: {interface: ib0, ports: 29500-29510}
env: {NCCL_DEBUG: INFO, TOKEN: {env: SECRET_OF_MINE}}
defaults: {gpus: 4, ssh: {user: ubuntu}, vars: {x: 1.50}}
nodes:
  "gn[01-04]": {address: "10.0.1.[1-4]", env: {NCCL_DEBUG: WARN}}
  node-a: {address: 10.0.0.1, gpus: [0, 2], ssh: {jump: bastion, port: 2222, host: mgmt}}
groups:
  rack1: {nodes: "gn[01-02]", defaults: {gpus: 8, env: {NCCL_DEBUG: TRACE}}}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "inventory.yml").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SECRET_OF_MINE", raising=False)
    return tmp_path


WITH_SPARES = """\
name: spared
defaults: {gpus: 2}
nodes:
  "gn[1-4]": {address: "10.0.1.[1-4]"}
launch: {command: [python, train.py], retries: 1, spares: ["gn[3-4]"]}
"""


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str


Say = Callable[..., Said]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """say(*arguments): exit code, stdout, stderr of `runbook inventory …`."""

    def run(*arguments: str) -> Said:
        code = main(["inventory", *arguments])
        out, err = capsys.readouterr()
        return Said(code, out, err)

    return run


LISTED = """\
mine (inventory.yml): 5 nodes, 26 ranks on 26 GPUs; nccl, ranks dial 10.0.0.1:29500

ranks  node    address   gpus    shell  login                         groups
0-1    node-a  10.0.0.1  [0, 2]  sh     ubuntu@mgmt:2222 via bastion
2-9    gn01    10.0.1.1  8       sh     ubuntu                        rack1
10-17  gn02    10.0.1.2  8       sh     ubuntu                        rack1
18-21  gn03    10.0.1.3  4       sh     ubuntu
22-25  gn04    10.0.1.4  4       sh     ubuntu
"""

GRAPH = """\
mine (inventory.yml): 5 nodes, 26 ranks on 26 GPUs; nccl, ranks dial 10.0.0.1:29500

@all:
  |--@rack1:  2 nodes
  |  |--gn[01-02]  8 GPUs each
  |--@ungrouped:  3 nodes
  |  |--node-a  GPUs [0, 2]
  |  |--gn[03-04]  4 GPUs each
"""


def test_list(say: Say) -> None:
    said = say("list")
    assert (said.code, said.err) == (0, "")
    assert said.out == LISTED


def test_a_pattern_keeps_the_ranks_of_the_whole(say: Say) -> None:
    said = say("list", "-l", "gn*:!rack1")
    assert [line.split()[:2] for line in said.out.splitlines()[3:5]] == [["18-21", "gn03"], ["22-25", "gn04"]]
    assert said.out.endswith("\n2 nodes of 5\n")


def test_graph(say: Say) -> None:
    assert say("graph").out == GRAPH


def test_many_nodes_are_folded(say: Say, folder: Path) -> None:
    body = "".join(f"  gn{n:05d}: {{address: 10.0.{n // 256}.{n % 256}}}\n" for n in range(10_000))
    (folder / "inventory.yml").write_text(f"name: big\nnodes:\n{body}groups: {{half: {{nodes: 'gn[00000-04999]'}}}}\n")
    listed, drawn = say("list"), say("graph")
    assert len(listed.out.splitlines()) < 10
    assert "gn[05000-09999]" in listed.out
    assert "  |  |--gn[00000-04999]  cpu each\n" in drawn.out


def test_json_is_one_document_with_everything_resolved_and_no_secret(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_MINE", "s3cr3t-0815")
    said = say("list", "-o", "json", "-e", "x=7")
    assert "s3cr3t" not in said.out
    document = json.loads(said.out)
    assert (document["version"], document["world_size"], document["rendezvous"]["dialled"]) == (1, 26, "10.0.0.1")
    assert document["env"]["TOKEN"] == "***"
    node = document["nodes"][1]
    assert (node["name"], node["ranks"], node["gpus"], node["vars"]) == ("gn01", [2, 9], list(range(8)), {"x": 7})
    assert document["groups"] == {"rack1": ["gn01", "gn02"]}


@pytest.mark.parametrize(
    ("connection", "found"),
    [
        ("slurm, slurm: {job: '1234'}", ({"job": "1234"}, None)),
        ("slurm", ({"job": None}, None)),
        ("kubernetes, kubernetes: {pod: x-0}", (None, "x-0")),
        ("ssh", (None, None)),
    ],
)
def test_json_says_how_a_node_is_reached(
    say: Say, folder: Path, connection: str, found: tuple[dict[str, str | None] | None, str | None]
) -> None:
    (folder / "inventory.yml").write_text(f"defaults: {{connection: {connection}}}\nnodes: {{n1: {{}}}}\n")
    (node,) = json.loads(say("list", "-o", "json").out)["nodes"]
    assert (node["slurm"], node["kubernetes"] and node["kubernetes"]["pod"]) == found


@pytest.mark.parametrize("cluster", ["slurm", "slurm:12", "kubernetes:app=x"])
@pytest.mark.parametrize("login", ["--user x", "--key k", "--port 22", "--jump j", "--accept-new"])
def test_a_login_beside_a_cluster_that_is_asked_is_refused(say: Say, cluster: str, login: str) -> None:
    said = say("init", cluster, *login.split())
    assert (said.code, said.out) == (2, "")
    assert f"{login.split()[0]} does nothing" in said.err


def test_a_secret_that_is_not_set_here_does_not_stand_in_the_way(say: Say) -> None:
    assert say("list", "-o", "json").code == 0


EXPLAINED = {
    ("gn02", "NCCL_DEBUG"): """\
gn02: env.NCCL_DEBUG = WARN
  wins  node                  WARN   inventory.yml:7:60
        group rack1           TRACE  inventory.yml:10:69
        env of the inventory  INFO   inventory.yml:4:19
""",
    ("all", "gpus"): """\
node-a: gpus = [0, 2]
  wins  node      [0, 2]  inventory.yml:8:37
        defaults  4       inventory.yml:5:18

gn[01-02]: gpus = 8
  wins  group rack1  8  inventory.yml:10:48
        defaults     4  inventory.yml:5:18

gn[03-04]: gpus = 4
  wins  defaults  4  inventory.yml:5:18
""",
    ("gn03", "address"): """\
gn03: address = 10.0.1.3
  wins  node  10.0.1.[1-4]  inventory.yml:7:26
""",
    ("gn01", "MASTER_ADDR"): """\
gn01: env.MASTER_ADDR = 10.0.0.1
  wins  address of node-a  10.0.0.1  inventory.yml:8:21
""",
    ("gn01", "env.NCCL_SOCKET_IFNAME"): """\
gn01: env.NCCL_SOCKET_IFNAME = ib0
  wins  network.interface  ib0  inventory.yml:3:22
""",
    ("node-a", "ssh.user"): """\
node-a: ssh.user = ubuntu
  wins  defaults  ubuntu  inventory.yml:5:33
""",
    ("gn01", "vars.x"): """\
gn01: vars.x = 1.50
  wins  defaults  1.50  inventory.yml:5:52
""",
    ("gn01", "workdir"): """\
gn01: workdir = ~/.runbook
  wins  default
""",
    ("gn01", "backend"): """\
gn01: rendezvous.backend = nccl
  wins  default: every node has GPUs
""",
    ("gn01", "ranks"): """\
gn01: ranks = 2-9
  wins  node 1 of 5, 8 of 26 ranks
""",
    ("gn01", "TOKEN"): """\
gn01: env.TOKEN = ***
  wins  env of the inventory  *** (from SECRET_OF_MINE of this machine)  inventory.yml:4:32
""",
}


@pytest.mark.parametrize(("what", "text"), EXPLAINED.items())
def test_explain_one_key(say: Say, what: tuple[str, str], text: str) -> None:
    said = say("explain", *what)
    assert (said.code, said.out, said.err) == (0, text, "")


def test_explain_with_a_variable_from_the_command_line(say: Say) -> None:
    said = say("explain", "gn01", "vars.x", "-e", "x=2")
    assert said.out == "gn01: vars.x = 2\n  wins  -e        2\n        defaults  1.50  inventory.yml:5:52\n"


def test_explain_a_node_tells_every_key(say: Say) -> None:
    said = say("explain", "node-a")
    keys = [line.split()[0] for line in said.out.splitlines()[3:]]
    assert {"ranks", "address", "ssh.host", "ssh.key", "python", "gpus", "env.MASTER_ADDR", "env.TOKEN"} <= set(keys)
    assert "rendezvous.backend" in keys
    assert "group rack1  (over defaults)" in say("explain", "gn01").out


def test_explain_a_mapping_tells_the_keys_in_it(say: Say) -> None:
    said = say("explain", "gn01,node-a", "env")
    assert said.code == 0
    assert "gn01: env.NCCL_DEBUG = WARN\n  wins  node" in said.out
    assert "node-a,gn01: env.MASTER_PORT = 29500\n" in said.out
    assert "ssh." not in said.out
    assert [line.split()[1] for line in say("explain", "gn01", "ssh").out.splitlines() if line[:1] == "g"] == [
        *("ssh.host", "ssh.user", "ssh.port", "ssh.key", "ssh.jump", "ssh.host_keys", "ssh.connect_timeout")
    ]


def test_values_of_one_reason_that_differ_on_every_node_share_a_line(say: Say, folder: Path) -> None:
    (folder / "inventory.yml").write_text("nodes: {'gn[1-4]': {vars: {x: 1}}, 'gn[5-8]': {vars: {x: 2}}}\n")
    line = "gn[1-8]: env.NODE_RANK = [0-7], one for each node\n  wins  the node's place in rank order\n"
    assert say("explain", "all", "NODE_RANK").out == line
    assert say("explain", "gn[1-3]", "NODE_RANK").out.count("wins") == 3
    assert say("explain", "all", "vars.x").out.count("wins") == 2


def test_a_name_among_many_that_there_is_not_is_told_which_there_are(say: Say, folder: Path) -> None:
    groups = "groups: {row1: {nodes: 'gn[01-30]'}}"
    (folder / "inventory.yml").write_text(f"nodes: {{'gn[01-30]': {{}}}}\n{groups}\n")
    assert "help: known here: row1, gn[01-30]" in say("list", "-l", "row9").err


def test_an_ipv6_address_with_a_port_stands_in_brackets(say: Say, folder: Path) -> None:
    (folder / "inventory.yml").write_text("nodes: {a: {address: 'fd00::1'}, b: {address: 'fd00::2'}}\n")
    assert "ranks dial [fd00::1]:29500\n" in say("list").out


@pytest.mark.thorough
def test_explain_the_key_of_ten_thousand_nodes(say: Say, folder: Path) -> None:
    (folder / "inventory.yml").write_text("name: big\ndefaults: {gpus: 8}\nnodes: {'gn[00001-10000]': {}}\n")
    assert say("explain", "all", "gpus").out == "gn[00001-10000]: gpus = 8\n  wins  defaults  8  inventory.yml:2:18\n"
    assert say("explain", "all").code == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("explain", "gn2"), "`gn2` is neither a node nor a group"),
        (("explain", "rakc1"), "did you mean `rack1`?"),
        (("explain", "gn01", "gpu"), "did you mean `gpus`?"),
        (("explain", "gn01", "usr"), "did you mean `user`?"),
        (("explain", "gn01", "port"), "write ssh.port or rendezvous.port"),
        (("explain", "gn01", "env.NCCL_DEBUK"), "nothing sets `env.NCCL_DEBUK` on gn01"),
        (("list", "-l", "nobody"), "`nobody` is neither"),
        (("list", "-i", "missing.yml"), "there is no inventory `missing.yml`"),
        (("list", "-e", "x"), "there is no `=`"),
    ],
)
def test_wrong_arguments_are_2(say: Say, arguments: tuple[str, ...], says: str) -> None:
    said = say(*arguments)
    assert (said.code, said.out) == (2, "")
    assert says in said.err


@pytest.mark.parametrize("action", [("list",), ("graph",), ("explain", "n1")])
def test_mistakes_in_the_inventory_are_told_as_always(say: Say, folder: Path, action: tuple[str, ...]) -> None:
    (folder / "inventory.yml").write_text("name: x\nnodes: {n1: {gpu: 2}}\n")
    said = say(*action)
    assert (said.code, said.out) == (2, "")
    assert "inventory.yml:2:14" in said.err
    assert "did you mean `gpus`?" in said.err


def test_without_i_the_only_one_is_taken(say: Say, folder: Path) -> None:
    (folder / "inventories").mkdir()
    (folder / "inventory.yml").rename(folder / "inventories" / "ours.yaml")
    assert "inventories/ours.yaml" in say("list").out
    (folder / "inventories" / "other.yml").write_text(MINE)
    said = say("list")
    assert said.code == 2
    assert "which inventory? There are 2: inventories/other.yml, inventories/ours.yaml" in said.err
    for file in (folder / "inventories").iterdir():
        file.unlink()
    assert "there is no inventory.yml here" in say("list").err


# Import.


def test_import_to_stdout_and_to_a_file(say: Say, folder: Path) -> None:
    Path("hostfile").write_text("n1 slots=8\nn2 slots=8\n")
    printed = say("import", "hostfile")
    assert (printed.code, printed.err) == (0, "")
    written = say("import", "hostfile", "--out", "made.yml")
    assert (written.code, written.out) == (0, "")
    assert Path("made.yml").read_text() == printed.out
    assert [len(node.gpus) for node in load_inventory("made.yml")[0].nodes] == [8, 8]
    again = say("import", "hostfile", "--out", "made.yml")
    assert again.code == 2
    assert "--force replaces it" in again.err
    assert say("import", "hostfile", "--out", "made.yml", "--force", "--name", "other").code == 0
    assert load_inventory("made.yml")[0].name == "other"
    assert sorted(path.name for path in folder.iterdir()) == ["hostfile", "inventory.yml", "made.yml"]


def test_import_takes_a_host_list_by_itself(say: Say) -> None:
    assert '  "gn[01-04,07]": {}\n  login1: {}\n' in say("import", "gn[01-04,07],login1").out
    assert say("import", ",".join(f"verylongname{n}" for n in range(500))).code == 0


@pytest.mark.parametrize("text", ["[g]\nn1 ansible_host=10.0.0.1\n", "n1 slots=8\n", "n1:8\n", "n1\nn2\n"])
@pytest.mark.parametrize("name", ["hosts.yml", "hosts.json", "hosts"])
def test_a_list_of_hosts_may_have_any_name(say: Say, text: str, name: str) -> None:
    Path(name).write_text(text)
    said = say("import", name)
    assert (said.code, said.err) == (0, "")
    assert re.search(r"\n  (n1|\"n\[1-2\]\"): ", said.out)


def test_import_from_stdin(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stdin:
        buffer = io.BytesIO(b"[g]\nn[1:3] ansible_user=me\n")

    monkeypatch.setattr(sys, "stdin", Stdin())
    said = say("import", "-")
    assert (said.code, said.err) == (0, "")
    assert '"n[1-3]": {}' in said.out


def test_a_mistake_shows_its_line(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stdin:
        buffer = io.BytesIO(b"[g]\nn1\nn2 oops\n")

    monkeypatch.setattr(sys, "stdin", Stdin())
    said = say("import", "-")
    assert said.code == 2
    assert said.out == ""
    assert " --> stdin:3:4\n" in said.err
    assert "3 | n2 oops\n  |    ^^^^\n" in said.err


@pytest.mark.parametrize(
    ("file", "says"),
    [
        ("missing.ini", "there is no file missing.ini"),
        ("", "$SLURM_JOB_NODELIST is not set"),
        (".", "is a folder"),
        ("gn[4-1]", "runs backwards"),
        ("inventory.yml", "an inventory of runbook already"),
    ],
)
def test_what_cannot_be_imported(say: Say, file: str, says: str) -> None:
    said = say("import", file)
    assert (said.code, said.out) == (2, "")
    assert says in said.err


def test_a_script_is_refused_and_not_run(say: Say, folder: Path) -> None:
    script = folder / "dynamic.py"
    script.write_text("#!/bin/sh\ntouch ran\necho '{}'\n")
    script.chmod(0o755)
    said = say("import", "dynamic.py")
    assert said.code == 2
    assert "ansible-inventory -i dynamic.py --list --yaml | runbook inventory import -" in said.err
    assert not (folder / "ran").exists()


def test_variables_beside_an_ansible_inventory_are_not_forgotten(say: Say, folder: Path) -> None:
    (folder / "group_vars").mkdir()
    Path("hosts.ini").write_text("[g]\nn1\n")
    assert "group_vars/ were not read" in say("import", "hosts.ini").out
    Path("hostfile").write_text("n1 slots=8\n")
    assert "group_vars" not in say("import", "hostfile").out


@pytest.mark.parametrize(
    "text",
    [
        "n1 slots=8\nn2 slots=4\n",
        "gn[01-16],login1\n",
        dedent(
            """\
            [gpu]
            gn[01:04] ansible_user=root rack=yes mode=0644 at=22:22
            gn05 ansible_host=10.0.0.5 ansible_become=true
            [gpu:vars]
            ansible_password=hunter2
            """
        ),
    ],
)
def test_what_is_imported_lints_clean(say: Say, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("theirs").write_text(text)
    assert say("import", "theirs", "--out", "made.yml").code == 0
    assert main(["lint", "made.yml"]) == 0, capsys.readouterr().out


def test_as_a_program_in_a_pipe(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "runbook", "inventory", "list"],
        capture_output=True,
        text=True,
        cwd=folder,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, LISTED, "")


def test_spares_have_no_ranks(say: Say, folder: Path) -> None:
    (folder / "inventory.yml").write_text(WITH_SPARES)
    listed = say("list").out
    assert listed.startswith(
        "spared (inventory.yml): 4 nodes (2 spares), 4 ranks on 4 GPUs; nccl, ranks dial 10.0.1.1:"
    )
    assert [line.split()[:2] for line in listed.splitlines()[3:]] == [
        ["0-1", "gn1"],
        ["2-3", "gn2"],
        ["spare", "gn3"],
        ["spare", "gn4"],
    ]
    document = json.loads(say("list", "-o", "json").out)
    assert document["world_size"] == 4
    assert [(node["node_rank"], node["ranks"]) for node in document["nodes"]] == [
        (0, [0, 1]),
        (1, [2, 3]),
        (None, None),
        (None, None),
    ]
    assert "4 ranks" in say("graph").out.splitlines()[0]
    assert say("explain", "gn1", "WORLD_SIZE").out.startswith("gn1: env.WORLD_SIZE = 4\n")
    assert say("explain", "gn3", "ranks").out.startswith("gn3: ranks = -\n")
    assert "spare of the launch" in say("explain", "gn3").out
    (folder / "inventory.yml").write_text(WITH_SPARES.replace('gn[3-4]"]', 'gn[3-9]"]'))
    broken = say("list")
    assert broken.code == 0
    assert "8 ranks" in broken.out
    assert "runbook lint inventory.yml" in broken.err


def test_many_spares_share_a_line(say: Say, folder: Path) -> None:
    (folder / "inventory.yml").write_text(WITH_SPARES.replace("[1-4]", "[1-60]").replace("gn[3-4]", "gn[50-60]"))
    rows = [line.split()[:2] for line in say("list").out.splitlines()[3:]]
    assert rows[:2] == [["0-97", "gn[1-49]"], ["spare", "gn[50-60]"]]
