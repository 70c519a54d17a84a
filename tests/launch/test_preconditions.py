"""What a script looks at before it starts anything: real ports, real names, real missing things. And shellcheck."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given
from hypothesis import strategies as st
from profiles import examples, one_in

from runbook.launch.preconditions import STOP_EXIT_CODES, Activation, Guards, read_activation
from runbook.launch.quote.sh import SHELL_KEYWORDS
from runbook.launch.script import make_script
from runbook.model.secrets import Secret

from .needs import require
from .specs import TEXT, ranks, spec, written
from .test_script import EACH_SHELL, SHELLS, messages, run

STARTED = ("echo", "started")


def guards(**options: Any) -> Guards:
    return Guards(**{"python": sys.executable, "address": "127.0.0.1", "port": None, "several_nodes": False, **options})


def stopped(done: subprocess.CompletedProcess[str], event: str, *words: str) -> bool:
    """Whether the script stopped for this reason alone, in one sentence with these words, and started nothing."""
    assert "started" not in done.stdout
    assert [one["event"] for one in messages(done)] == [event]
    assert done.returncode == STOP_EXIT_CODES[event]
    assert done.stderr.endswith("\n")
    last = done.stderr.splitlines()[-1]
    return "node-a" in last and all(word in last for word in words)


@EACH_SHELL
def test_nothing_in_the_way(shell: str, tmp_path: Path) -> None:
    for told in (guards(), guards(address="localhost"), guards(address="10.0.0.1", several_nodes=True)):
        done = run(shell, written(tmp_path, "sh", guards=told, command=STARTED))
        assert (done.returncode, done.stdout, done.stderr) == (0, "started\n", "")


@EACH_SHELL
def test_a_name_that_does_not_resolve(shell: str, tmp_path: Path) -> None:
    done = run(shell, written(tmp_path, "sh", guards=guards(address="gpu-1.invalid"), command=STARTED))
    assert stopped(done, "address-unresolved", "MASTER_ADDR gpu-1.invalid", "hosts file")


@EACH_SHELL
def test_a_name_of_several_nodes_that_is_loopback(shell: str, tmp_path: Path) -> None:
    done = run(shell, written(tmp_path, "sh", guards=guards(address="localhost", several_nodes=True), command=STARTED))
    assert stopped(done, "address-loopback", "MASTER_ADDR localhost", "hosts file")


@EACH_SHELL
def test_a_port_that_is_taken_stops_the_first_rank_and_no_other(shell: str, tmp_path: Path) -> None:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        door.listen()
        port = door.getsockname()[1]
        path = written(tmp_path, "sh", guards=guards(port=port), processes=ranks(2), command=STARTED)
        for arguments in ((), ("0",)):
            done = run(shell, path, *arguments)
            assert stopped(done, "port-taken", f"port {port}", "ss -ltnp")
            assert "in use" in done.stderr
        assert run(shell, path, "1").stdout == "started\n"
        path = written(tmp_path, "sh", guards=guards(port=port), processes=ranks(2), command=None)
        assert stopped(run(shell, path, *STARTED), "port-taken", f"port {port}")
    assert run(shell, path, *STARTED).returncode == 0


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        door.listen()
        yield door.getsockname()[1]


def path_with(folder: Path, *programs: str) -> str:
    """A PATH on which there are these programs and what every script needs, and no other."""
    folder.mkdir(exist_ok=True)
    for program in ("dirname", "env", "sed", "echo", *programs):
        (folder / program).unlink(missing_ok=True)
        (folder / program).symlink_to(shutil.which(program) or "/no/such")
    return str(folder)


@EACH_SHELL
@pytest.mark.parametrize("python", one_in(3, ["no-such-python", "./no python", "~/no-such", "./python.bat", "false"]))
def test_another_python_looks_where_the_inventorys_does_not_run(
    shell: str, python: str, taken: int, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").symlink_to(sys.executable)
    bare = path_with(tmp_path / "bin", "false")
    for told, event in (
        ({"port": taken}, "port-taken"),
        ({"address": "gpu-1.invalid"}, "address-unresolved"),
        ({"address": "localhost", "several_nodes": True}, "address-loopback"),
        ({"address": "127.0.0.1", "several_nodes": True}, "address-loopback"),
    ):
        path = written(tmp_path, "sh", guards=guards(python=python, **told), command=STARTED)
        assert stopped(run(shell, path, PATH=bare), event)
    path = written(tmp_path, "sh", guards=guards(python=python, address="localhost"), command=STARTED)
    done = run(shell, path, PATH=bare)
    assert (done.returncode, done.stdout, done.stderr) == (0, "started\n", "")


@EACH_SHELL
def test_without_any_python_the_system_looks(shell: str, taken: int, tmp_path: Path) -> None:
    tools = path_with(tmp_path / "bin", "getent", "grep")
    with socket.socket(socket.AF_INET6) as door:
        door.bind(("::", 0))
        door.listen()
        for told, event in (
            ({"port": taken}, "port-taken"),
            ({"port": door.getsockname()[1]}, "port-taken"),
            ({"address": "gpu-1.invalid"}, "address-unresolved"),
            ({"address": "localhost", "several_nodes": True}, "address-loopback"),
            ({"address": "127.0.0.1", "several_nodes": True}, "address-loopback"),
        ):
            path = written(tmp_path, "sh", guards=guards(python="no-such", **told), command=STARTED)
            assert stopped(run(shell, path, PATH=tools), event)
        free = door.getsockname()[1]
    for told in ({"port": free, "address": "localhost"}, {"address": "10.0.0.1", "port": free}):
        path = written(tmp_path, "sh", guards=guards(python="no-such", **told), command=STARTED)
        done = run(shell, path, PATH=tools)
        assert (done.returncode, done.stdout, done.stderr) == (0, "started\n", "")


@EACH_SHELL
@pytest.mark.parametrize(
    ("told", "unseen"),
    [
        ({"address": "gpu-1.invalid"}, " whether gpu-1.invalid resolves"),
        ({"port": 4}, " whether port 4 is free"),
        ({"address": "$(id) 'x'", "port": 4}, " whether $(id) 'x' resolves, or whether port 4 is free"),
        ({"address": "10.0.0.1", "several_nodes": True}, None),
    ],
)
def test_where_nobody_can_look_the_script_says_so_and_goes_on(
    shell: str, told: dict[str, Any], unseen: str | None, tmp_path: Path
) -> None:
    path = written(tmp_path, "sh", guards=guards(python="no-such", **told), command=STARTED)
    done = run(shell, path, PATH=path_with(tmp_path / "bin"))
    said = f"{path}: no Python runs here, and nothing else could look{unseen}\n" if unseen else ""
    assert (done.returncode, done.stdout, done.stderr) == (0, "started\n", said)


@pytest.mark.parametrize("shell", ["sh", "bat", "ps1"])
def test_what_cannot_happen_is_not_in_the_script(shell: str) -> None:
    script = make_script(spec(guards=guards(address="10.0.0.1", several_nodes=True)), shell)
    text = script.files[script.name].decode()
    for word in ("None", "unresolved", "port-taken", "cannot be had", "ipaddress", "secrets-missing", "activate"):
        assert word not in text.replace("activate:", "")


@EACH_SHELL
@pytest.mark.parametrize(
    "line",
    [
        ". venv/bin/activate",
        "source ~/venv/bin/activate",
        '. "$HOME/my venv/activate"',
        ". ${HOME}/x/activate",
        ". '/no/such/act'",
    ],
)
def test_an_environment_that_is_not_there(shell: str, line: str, tmp_path: Path) -> None:
    done = run(shell, written(tmp_path, "sh", guards=guards(), activate=line, command=STARTED))
    assert stopped(done, "environment-missing", "which `activate:` asks for")
    file = (read_activation(line, "sh").file or "").replace("~/", f"{tmp_path}/")
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True) if not file.startswith("/no") else None
    if not file.startswith("/no"):
        (tmp_path / file).write_text("COLOUR=blue; export COLOUR\n")
        path = written(tmp_path, "sh", guards=guards(), activate=line, command=("printenv", "COLOUR"))
        assert run(shell, path).stdout == "blue\n"


CONDA = """#!/bin/sh
# What `conda shell.posix hook` prints, as far as a launch script can tell.
[ "$1 $2" = "shell.posix hook" ] || exit 1
echo 'conda() { [ "$1 $2" = "activate train" ] || { echo "EnvironmentNameNotFound: $2" >&2; return 1; }; export CONDA_DEFAULT_ENV="$2"; }'
"""


@EACH_SHELL
def test_conda_is_found_where_it_is_installed(shell: str, tmp_path: Path) -> None:
    path = written(
        tmp_path, "sh", guards=guards(), activate="conda activate train", command=("printenv", "CONDA_DEFAULT_ENV")
    )
    bare = {"PATH": "/usr/bin:/bin"}
    if not Path("/opt/conda").exists():
        assert stopped(run(shell, path, **bare), "environment-missing", "conda", "install it")
    conda = tmp_path / "miniconda3/bin/conda"
    conda.parent.mkdir(parents=True)
    conda.write_text(CONDA)
    conda.chmod(0o755)
    assert run(shell, path, **bare).stdout == "train\n"
    other = written(tmp_path, "sh", guards=guards(), activate="conda activate other", command=STARTED)
    done = run(shell, other, **bare)
    assert stopped(done, "activation-failed", "`conda activate other`", "(code 1)")
    assert "EnvironmentNameNotFound: other" in done.stderr


@EACH_SHELL
@pytest.mark.parametrize(
    ("options", "event"),
    [
        ({"workdir": "nowhere"}, "workdir-missing"),
        ({"activate": "false"}, "activation-failed"),
        ({"command": ("no-such-program",)}, "program-missing"),
        ({"environment": {"PATH": "/nowhere"}, "command": ("env",)}, "program-missing"),
    ],
)
def test_what_is_looked_at_with_and_without_guards(
    shell: str, options: dict[str, Any], event: str, tmp_path: Path
) -> None:
    for told in (guards(), None):
        assert stopped(run(shell, written(tmp_path, "sh", guards=told, **{"command": STARTED, **options})), event)


def test_every_reason_has_a_code_of_its_own_and_the_header_says_which() -> None:
    assert len(set(STOP_EXIT_CODES.values())) == len(STOP_EXIT_CODES)
    assert 96 not in STOP_EXIT_CODES.values()  # the controller's own
    everything = spec(
        guards=guards(address="gpu-1", port=1, several_nodes=True),
        activate="conda activate train",
        workdir="/data",
        environment={"TOKEN": Secret("x", "T")},
    )
    for shell in ("sh", "bat", "ps1"):
        script = make_script(everything, shell)
        text = script.files[script.name].decode()
        for event, code in STOP_EXIT_CODES.items():
            assert re.search(rf"^(#|rem) +{code} {event}\r?$", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("shell", "line", "expected"),
    [
        ("sh", "conda activate train", Activation(conda=True)),
        ("sh", "  conda activate train && export X=1", Activation(conda=True)),
        ("sh", "source ~/venv/bin/activate", Activation(file="~/venv/bin/activate")),
        ("sh", ". /opt/venv/bin/activate", Activation(file="/opt/venv/bin/activate")),
        ("sh", ". '/opt/my venv/activate'", Activation(file="/opt/my venv/activate")),
        ("sh", '. "$HOME/my venv/activate"', Activation(file="~/my venv/activate")),
        ("sh", ". $HOME/a && . $HOME/b", Activation()),
        ("sh", ". $OTHER/activate", Activation()),
        ("sh", ". '~/x/y'", Activation(file="~/x/y")),
        ("sh", ". found-through-path", Activation()),
        ("sh", ". a\\ b/c", Activation()),
        ("sh", ". ~root/x", Activation()),
        ("sh", "module load cuda/12", Activation(modules=True)),
        ("sh", "echo module load x", Activation()),
        ("sh", "export PATH=/opt/x/bin", Activation()),
        ("bat", "call conda activate train", Activation(conda=True)),
        ("bat", "C:\\venv\\Scripts\\activate.bat", Activation(file="C:\\venv\\Scripts\\activate.bat")),
        ("bat", 'call "%USERPROFILE%\\my venv\\activate.bat"', Activation(file="~/my venv\\activate.bat")),
        ("bat", "C:\\venv\\Scripts\\activate", Activation()),
        ("bat", "C:\\venv\\Scripts\\activate.bat && set X=1", Activation()),
        ("bat", "set A=C:\\x.bat", Activation()),
        ("bat", "%VENV%\\activate.bat", Activation()),
        ("ps1", "conda activate train", Activation(conda=True)),
        ("ps1", "& C:\\venv\\Scripts\\Activate.ps1", Activation(file="C:\\venv\\Scripts\\Activate.ps1")),
        ("ps1", ". '$HOME\\x.ps1'", Activation()),
        ("ps1", '& "$env:USERPROFILE\\my venv\\Activate.ps1"', Activation(file="~/my venv\\Activate.ps1")),
        ("ps1", "$env:X = 'C:\\x.ps1'", Activation()),
    ],
)
def test_what_an_activate_line_needs(shell: str, line: str, expected: Activation) -> None:
    assert read_activation(line, shell) == expected


def shellchecked(folder: Path, *paths: Path) -> None:
    require("shellcheck")
    done = subprocess.run(["shellcheck", "--norc", *paths], capture_output=True, text=True, cwd=folder, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


def test_shellcheck_has_nothing_to_say(tmp_path: Path) -> None:
    """Not even in passing, about any kind of script."""
    kinds: list[dict[str, Any]] = [
        {},
        {"command": None, "processes": ranks(3), "guards": guards(port=1)},
        {"command": None, "guards": guards()},
        {
            "processes": ranks(8),
            "guards": guards(port=29500, several_nodes=True),
            "command": ("./x y", "~/z", "~", "./"),
        },
        {
            "activate": "conda activate train",
            "guards": guards(),
            "environment": {"A": Secret("x", "T"), "B": "$x `y`"},
        },
        {"activate": ". $HOME/a b; cd $X && [ $y == 1 ]", "guards": guards(), "workdir": "~"},
        {"activate": "source ~/venv/bin/activate", "guards": guards(), "workdir": "/data/it's"},
        {"activate": "module load cuda && . ./act train", "command": None},
        {"unset": ("RANK", "WORLD_SIZE"), "unset_prefixes": ("PET_",), "processes": ranks(2)},
        {"unset": ("RANK",), "workdir": "beside"},
        {
            "environment": {f"V{number}": word for number, word in enumerate(sorted(SHELL_KEYWORDS))},
            "command": ("echo", *sorted(SHELL_KEYWORDS)),
        },
        {"guards": guards(several_nodes=True)},
        {"guards": guards(address="gpu-1", several_nodes=True, port=1), "processes": ranks(2)},
    ]
    for number, options in enumerate(kinds):
        written(tmp_path, "sh", name=f"script{number}", **options)
    shellchecked(tmp_path, *sorted(tmp_path.glob("*.sh")))


@given(st.lists(TEXT, min_size=60, max_size=60))
@examples(6, phases=[Phase.generate])  # to shrink takes minutes
def test_shellcheck_has_nothing_to_say_whatever_the_values(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    kept = [text for text in texts if not re.search("[\0\r\n\ud800-\udfff]", text)]
    environment = {f"V{number}": text for number, text in enumerate(kept)}
    folder = tmp_path_factory.mktemp("checked")
    shellchecked(
        folder, written(folder, "sh", environment=environment, command=("python", *kept), workdir=kept[0] or "x")
    )


def test_there_is_more_than_one_shell_to_try() -> None:
    require("dash", "bash", "busybox")
    assert set(SHELLS) == {"dash", "bash", "busybox"}
