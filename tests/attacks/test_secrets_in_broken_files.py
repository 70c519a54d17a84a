"""A secret that stands in a file in a wrong way, or where no rule looks: what is printed of that line, and said of it, shows stars."""

from __future__ import annotations

import io
import itertools
import re
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path

import pytest
from profiles import one_in

from runbook.cli.main import main

SECRET = "Zq7hunter2Xk9aB3cD4eF5"
NODES = "name: x\nnodes:\n  a: {address: 10.0.0.1}\n"
BROKEN = {
    "an environment that is a list": f"{NODES}env: [API_TOKEN=@]\n",
    "a list of mappings": f"{NODES}env:\n- API_TOKEN: @\n",
    "an environment that is a text": f"{NODES}env: API_TOKEN=@\n",
    "a key that is none": f"{NODES}evn: {{API_TOKEN: @}}\n",
    "a variable beside the keys": f"{NODES}API_TOKEN: @\n",
    "a variable in a node": "name: x\nnodes:\n  a: {address: 10.0.0.1, API_TOKEN: @}\n",
    "a password of ssh": "name: x\nnodes:\n  a: {address: 10.0.0.1, ssh: {password: @}}\n",
    "no space": f"{NODES}env:\n  API_TOKEN:@\n",
    "an equals sign": f"{NODES}env:\n  API_TOKEN=@\n",
    "an export": f"{NODES}env:\n  export API_TOKEN=@\n",
    "a dash": f"{NODES}env:\n  - export API_TOKEN=@\n",
    "brackets that are not closed": f"{NODES}env: {{API_TOKEN: @\n",
    "a quote that is not closed": f'{NODES}env:\n  API_TOKEN: "@\n',
    "a tab": f"{NODES}env:\n\tAPI_TOKEN: @\n",
    "twice": f"{NODES}env:\n  API_TOKEN: @\n  API_TOKEN: @\n",
    "a colon more": f"{NODES}env:\n  API_TOKEN: @: x\n",
    "a stage that is a text": "name: p\nstages:\n- API_TOKEN=@ torchrun x.py\n",
    "a stage of another name": "name: p\nstages:\n- {run: 'API_TOKEN=@ x'}\n",
    "stages that are a mapping": "name: p\nstages:\n  shell: export API_TOKEN=@\n",
    "a launch that is a text": "name: p\nstages:\n- launch: 'API_TOKEN=@ torchrun x.py'\n",
    "an inventory of Ansible's": "all:\n  hosts:\n    a: {ansible_host: 10.0.0.1, ansible_password: @}\n",
    "a hostfile": "node-a slots=8 password=@\n",
    "a batch script": "#!/bin/bash\n#SBATCH -w gn1\nexport API_TOKEN=@\nsrun torchrun x.py --api-token @\n",
    "variables alone": "API_TOKEN=@\n",
    "JSON with a comma too many": '{"nodes": {"a": {}}, "env": {"API_TOKEN": "@",}}\n',
    "compose": "services:\n  a: {environment: [API_TOKEN=@]}\n",
}
# Every way to write a name and a value wrongly, in every place: K is the name, V the value, ~ the indentation of the place.
PAIRS = (
    "K: V", "K:V", "K=V", "K = V", "K V", "--K V", "K: &a V", "K: *V", "K: !V x", "K: &V x", "K: !vault V", "K: [V", "K: {V", "K: {value: V}",
    'K: "V', "K: 'V", 'K: V"', "K: 'it''s V", 'K: "V" x', 'K: "V\\q"', "K: V: W", "K: - V", "K:: V", "K := V", "K => V", "K(V)", "K: V:1: 2",
    "<K>V</K>", '("K", "V")', '"K" "V"', "[K, V]", "{K: V", "{name: K, value: V", '{"name": "K", "value": "V",}', "name: K\n~value: V: x",
    "K: |\n~  V\n~ x", "K: |\n~  x\n~ V", "K:\n~  V", "K:\n~ V\n~   x", "K:\n~- V: [", "K:\n~  - V\n~  - x: [", 'K: "\n~  V', 'K: "x\n~  V\n~ y',
    "K: x\n~  V: z", "K:\n~  a:\n~    b: V: x", "K: {a: V, b: [}", "%K V", "x: y: z # K: V", "x: [ # K=V", "K: {env: V", "K: ${X:-V}",
    "setenv K V", "$env:K='V'", "Authorization: Bearer V", "http://u:V@h: x: [", "? K\n~: V", "\tK: V", "K: V\n~K: V",
)  # fmt: skip
PLACES = (
    f"{NODES}env:\n  ~\n", f"{NODES}env: {{~}}\n", f"{NODES}env:\n- ~\n", f"{NODES}~\n", f"~\n{NODES}", "~\n", '{"env": {~},}\n',
    "name: x\nnodes:\n  a:\n    address: 10.0.0.1\n    ~\n", f"{NODES}env:\n    A: b\n  ~\n", f"{NODES}env: ]\n  ~\n", "[all:vars]\n~\n",
    "name: p\nstages:\n- ~\n", "name: p\nstages:\n- shell: ~\n", "name: p\nstages:\n- {check: ping, when: \"~\"}\n",
    "name: p\nstages:\n- launch:\n    command: [x]\n    env:\n      ~\n", "all:\n  hosts:\n    a:\n      ~\n",
)  # fmt: skip
VALUES = (
    SECRET,
    f"*{SECRET}",
    f"@{SECRET}",
    f"{{{SECRET}",
    f"ab,{SECRET}",
    f"ab#{SECRET}",
    f"correct {SECRET} battery",
    f"${SECRET}",
    f"/{SECRET}",
)
WAYS = (
    ("lint",), ("lint", "-o", "json"), ("lint", "-o", "sarif"), ("lint", "-o", "github"), ("inventory", "import"),
    ("inventory", "list", "-i"), ("inventory", "explain", "a", "-i"),
)  # fmt: skip


def broken_files() -> list[str]:
    """Each pair in each place, names and values taking turns."""
    names, values = itertools.cycle(("API_TOKEN", "db_password", "wandb-api-key")), itertools.cycle(VALUES)
    files = []
    for place, pair in itertools.product(PLACES, PAIRS):
        before = re.match(r"(?: |- )*", place[: place.index("~")].rpartition("\n")[2])
        blanks = " " * len(before[0]) if before else ""
        text = pair.replace("K", next(names)).replace("V", next(values)).replace("~", blanks)
        files.append(place.replace("~", text))
    return files


@pytest.mark.parametrize("text", one_in(61, broken_files()))
def test_no_secret_is_printed_however_it_is_miswritten(text: str, tmp_path: Path) -> None:
    playbook = "stages:" in text
    file = tmp_path / ("playbooks" if playbook else "inventories") / "x.yml"
    file.parent.mkdir()
    file.write_text(text)
    for way in (("lint",), ("run", "-C") if playbook else ("inventory", "list", "-i"), ("inventory", "import")):
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err), suppress(SystemExit):
            assert main([*way, str(file)]) in (0, 1, 2)
        # What inventory commands could read they write down on stdout as it is.
        assert SECRET not in err.getvalue() + ("" if way[0] == "inventory" else out.getvalue())


@pytest.mark.parametrize(("broken", "way"), one_in(5, ((broken, way) for broken in BROKEN for way in WAYS)))
def test_no_secret_of_a_broken_file_is_printed(broken: str, way: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / ("playbooks" if "stages:" in BROKEN[broken] else "inventories") / "x.yml"
    file.parent.mkdir()
    file.write_text(BROKEN[broken].replace("@", SECRET))
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), suppress(SystemExit):
        assert main([*way, str(file)]) in (0, 1, 2)
    assert SECRET not in out.getvalue() + err.getvalue()


def misspelt(word: str) -> list[str]:
    """Without one of its letters."""
    return sorted({word[:at] + word[at + 1 :] for at in range(1, len(word))})


UNSUSPECTED = [
    *(f"{NODES}db_{name}: {SECRET}\n" for word in ("password", "token", "secret", "passphrase") for name in misspelt(word)),
    *(f"{NODES}env: [{name}={SECRET}]\n" for name in misspelt("password")),
    *(f"name: x\nnodes:\n  a: {{address: '{user}:{SECRET}@{host}'}}\n" for user in ("jdoe", "j.doe", "a-b") for host in ("10.0.0.1", "gn1", "[::1]")),
    f"{NODES}wandb_key: {SECRET}\n",
    f"{NODES}ngcKey: '{SECRET}'\n",
]  # fmt: skip


@pytest.mark.parametrize("text", one_in(3, UNSUSPECTED))
def test_no_secret_is_printed_under_a_name_that_is_none_or_before_a_host(text: str, tmp_path: Path) -> None:
    file = tmp_path / "inventories" / "x.yml"
    file.parent.mkdir()
    file.write_text(text)
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        assert main(["lint", str(file)]) == 1
        assert main(["inventory", "list", "-i", str(file)]) == 2
    assert SECRET not in out.getvalue() + err.getvalue()


@pytest.mark.parametrize(
    "argument", [f'{{"db_password": "{SECRET}"}}', f"db_password={SECRET}", f"u=http://a:{SECRET}@h"]
)
def test_no_secret_of_an_argument_is_printed_by_a_crash(argument: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(_arguments: object) -> int:
        raise ValueError(argument)

    monkeypatch.setattr("runbook.cli.main.dispatch", crash)
    err = io.StringIO()
    with redirect_stderr(err):
        assert main(["run", "x", "-e", argument]) == 70
    assert "runbook crashed" in err.getvalue()
    assert SECRET not in err.getvalue()
