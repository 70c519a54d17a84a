"""POSIX launch scripts, judged by running them under every sh there is: what ranks get, exit codes, signals."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from lab.processes import wait_until
from profiles import examples, one_in

from runbook.launch.quote import CannotQuote, Word, sh
from runbook.launch.script import make_script, quoting_refusals
from runbook.model.secrets import Secret

from .specs import TEXT, put, ranks, spec, written

SHELLS = [shell for shell in ("dash", "bash", "busybox") if shutil.which(shell)]
EACH_SHELL = pytest.mark.parametrize("shell", SHELLS)
PYTHON = (sys.executable, "-S")
DUMP = "import os, sys\nprint(([os.fsencode(word) for word in sys.argv[1:]], dict(os.environb), os.getcwdb()))\n"


def started(shell: str) -> list[str]:
    """How this shell is started as `sh`."""
    return [shutil.which(shell) or shell, *(["sh"] if shell == "busybox" else [])]


def run(shell: str, path: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    base = {"PATH": os.environ["PATH"], "HOME": str(path.parent), "LC_ALL": "C.UTF-8"}
    return subprocess.run(
        [*started(shell), str(path), *arguments],
        capture_output=True,
        text=True,
        env={**base, **environ},
        timeout=120,
        check=False,
    )


def messages(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """What the script itself says to the controller."""
    return [json.loads(line.partition("runbook ")[2]) for line in done.stdout.split("\n") if line.startswith("\x1e")]


def dumped(
    shell: str, folder: Path, *words: str, rank: int = 0, locale: str = "C.UTF-8", **options: Any
) -> tuple[list[bytes], dict[bytes, bytes], bytes]:
    """The arguments, environment and folder of the program of a rank."""
    (folder / "dump.py").write_text(DUMP)
    path = written(folder, "sh", command=(*PYTHON, "./dump.py", *words), **options)
    done = run(shell, path, str(rank), LC_ALL=locale)
    assert (done.returncode, done.stderr) == (0, "")
    argv, env, cwd = ast.literal_eval(done.stdout)
    return argv, env, cwd


@EACH_SHELL
@given(texts=st.lists(TEXT, min_size=100, max_size=100), locale=st.sampled_from(["C", "C.UTF-8", "POSIX"]))
@examples(30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_environment_and_arguments_arrive_byte_for_byte(shell: str, texts: list[str], locale: str) -> None:
    kept = [text for text in texts if not re.search("[\0\r\n\ud800-\udfff]", text)]
    words = [Word(text) for text in kept[::2]]
    env: dict[str, str | Secret] = {f"V{number}": text for number, text in enumerate(kept[1::2])}
    env |= {f"S{number}": Secret(text, "T") for number, text in enumerate(kept[:5])}
    with tempfile.TemporaryDirectory(prefix="a 'b' $c") as folder:
        argv, found, _ = dumped(shell, Path(folder), *words, environment=env, locale=locale)
    assert argv == [word.encode() for word in words]
    for name, value in env.items():
        assert found[name.encode()] == (value.reveal() if isinstance(value, Secret) else value).encode()


@EACH_SHELL
def test_eight_thousand_characters_and_the_longest_string(shell: str, tmp_path: Path) -> None:
    long, longest = "0123456789 'ab\u2019c\\$`%" * 400, "x" * (sh.MAX_ARGUMENT_BYTES - len("LONG="))
    argv, env, _ = dumped(shell, tmp_path, long, environment={"LONG": longest, "B": long})
    assert (argv, env[b"LONG"], env[b"B"]) == ([long.encode()], longest.encode(), long.encode())


def test_places_in_the_command(tmp_path: Path) -> None:
    folder = tmp_path / "it's a $HOME"
    folder.mkdir()
    argv, _, cwd = dumped("sh", folder, "./data file", "~/in home", "~", "a/./b", "./", "~/")
    here = str(folder)
    assert [one.decode() for one in argv] == [
        f"{here}/data file",
        f"{here}/in home",
        "~",
        "a/./b",
        f"{here}/",
        f"{here}/",
    ]
    assert cwd.decode() == here


def test_a_program_beside_the_script(tmp_path: Path) -> None:
    program = tmp_path / "my program"
    program.write_text("#!/bin/sh\nexit 7\n")
    program.chmod(0o755)
    assert run("sh", written(tmp_path, "sh", command=("./my program",), workdir="/")).returncode == 7


@EACH_SHELL
@pytest.mark.parametrize("code", [0, 1, 3, 42, 255])
def test_the_exit_code_is_passed_on(shell: str, code: int, tmp_path: Path) -> None:
    for processes, arguments in ((ranks(1), ()), (ranks(1), ("0",)), (ranks(3), ()), (ranks(3), ("2",))):
        path = written(tmp_path, "sh", processes=processes, command=("sh", "-c", f"exit {code}"))
        assert run(shell, path, *arguments).returncode == code


@EACH_SHELL
def test_every_rank_runs_and_the_first_that_failed_is_the_exit_code(shell: str, tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "sh",
        processes=ranks(4, first=3),
        command=(
            "sh",
            "-c",
            'echo $RANK >"$HOME/$RANK"; until [ "$(ls "$HOME" | grep -c "^[3-6]$")" = 4 ]; do sleep 0.1; done; exit $((RANK == 5 ? 7 : 0))',
        ),
    )
    assert run(shell, path, TMPDIR=str(tmp_path)).returncode == 7
    assert sorted(one.name for one in tmp_path.iterdir()) == ["3", "4", "5", "6", "launch.sh"]  # and no pipe of ours


@EACH_SHELL
def test_the_first_rank_that_fails_ends_the_others(shell: str, tmp_path: Path) -> None:
    """First in time: the others wait for it, and end with codes of their own when they are told to."""
    line = 'trap "echo $RANK; exit 3" TERM; >"$HOME/ready$RANK"; [ $RANK = 1 ] || while :; do sleep 0.1; done; '
    line += 'until [ -f "$HOME/ready0" ] && [ -f "$HOME/ready2" ]; do sleep 0.1; done; exit 9'
    done = run(shell, written(tmp_path, "sh", processes=ranks(3), command=("sh", "-c", line)))
    assert (done.returncode, sorted(done.stdout.split()), done.stderr) == (9, ["0", "2"], "")


@EACH_SHELL
def test_a_rank_has_no_pipe_of_the_scripts(shell: str, tmp_path: Path) -> None:
    line = "import os; print(*[one for one in range(3, 20) if os.path.exists('/proc/self/fd/%d' % one)])"
    done = run(shell, written(tmp_path, "sh", processes=ranks(2), command=(*PYTHON, "-c", line)))
    assert done.stdout.split() in ([], ["3", "3"])  # 3 is how Python looks


@EACH_SHELL
def test_ranks_run_at_the_same_time(shell: str, tmp_path: Path) -> None:
    """Each waits for a word from the other."""
    line = 'cd "$HOME"; mkfifo f$RANK 2>/dev/null; until [ -p f0 ] && [ -p f1 ]; do sleep 0.1; done; '
    line += "if [ $RANK = 0 ]; then echo go >f1; read x <f0; else read x <f1; echo back >f0; fi; echo $x"
    done = run(shell, written(tmp_path, "sh", processes=ranks(2), command=("sh", "-c", line)))
    assert sorted(done.stdout.split()) == ["back", "go"]


@EACH_SHELL
def test_a_rank_that_a_signal_ended(shell: str, tmp_path: Path) -> None:
    for processes, arguments in ((ranks(1), ()), (ranks(2), ("1",))):
        path = written(tmp_path, "sh", processes=processes, command=("sh", "-c", "kill -s KILL $$"))
        assert run(shell, path, *arguments).returncode == -signal.SIGKILL
    path = written(tmp_path, "sh", processes=ranks(2), command=("sh", "-c", "[ $RANK = 0 ] || kill -s KILL $$"))
    assert run(shell, path).returncode == 128 + signal.SIGKILL


STUBBORN = """
import os, pathlib, signal, sys, time
rank = os.environ["RANK"]
def end(number, frame):
    time.sleep(0.5)  # a checkpoint is written
    pathlib.Path("ended" + rank).write_text(str(number))
    sys.exit(20 + int(rank))
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is not signal.SIG_IGN:
        signal.signal(number, end)
pathlib.Path("ready" + rank).write_text("")
for _ in range(600):
    time.sleep(0.1)  # a signal that comes just before a sleep does not end it
"""


@EACH_SHELL
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("count", one_in(2, [3, 1]))
def test_a_signal_reaches_every_rank_and_the_script_waits_for_them(
    shell: str, number: signal.Signals, count: int, tmp_path: Path
) -> None:
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    path = written(tmp_path, "sh", processes=ranks(count), command=(*PYTHON, "./stubborn.py"))
    with subprocess.Popen([*started(shell), str(path)], cwd=tmp_path) as process:
        wait_until("all are ready", lambda: len(list(tmp_path.glob("ready*"))) == count)
        process.send_signal(number)
        assert process.wait(timeout=60) in range(20, 20 + count)  # whichever was ready first
    assert {file.name for file in tmp_path.glob("ended*")} == {f"ended{rank}" for rank in range(count)}


@EACH_SHELL
def test_ctrl_backslash_ends_ranks_that_do_not_listen(shell: str, tmp_path: Path) -> None:
    """A shell's background processes are deaf to QUIT: they would outlive the script."""
    line = 'trap "" TERM; echo $$ >"pid$RANK"; mv "pid$RANK" "ready$RANK"; while :; do sleep 0.1; done'
    path = written(tmp_path, "sh", processes=ranks(2), command=("sh", "-c", line))
    with subprocess.Popen([*started(shell), str(path)], cwd=tmp_path) as process:
        wait_until("both are ready", lambda: len(list(tmp_path.glob("ready*"))) == 2)
        process.send_signal(signal.SIGQUIT)
        assert process.wait(timeout=60) == 128 + signal.SIGKILL
    for file in tmp_path.glob("ready*"):
        assert not Path("/proc", file.read_text().strip()).exists()


def test_a_rank_that_this_node_does_not_have(tmp_path: Path) -> None:
    for wrong in ("1", "-1", "x", "*", ""):
        done = run("sh", written(tmp_path, "sh"), wrong)
        assert (done.returncode, f"this node has no local rank {wrong}" in done.stderr) == (2, True)


@EACH_SHELL
def test_without_a_command_the_arguments_are_it(shell: str, tmp_path: Path) -> None:
    path = written(tmp_path, "sh", processes=ranks(2), command=None)
    done = run(shell, path, "sh", "-c", 'echo "$RANK:$1:$2"; [ "$1" = "a b" ]', "sh", "a b", "$x 'y'")
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, ["0:a b:$x 'y'", "1:a b:$x 'y'"])
    assert run(shell, path, "sh", "-c", 'exit "$RANK"').returncode == 1
    assert run(shell, path).returncode == 2
    done = run(shell, path, "no-such-program", "x")
    assert (done.returncode, [one["event"] for one in messages(done)]) == (92, ["program-missing"])


@EACH_SHELL
def test_what_another_launcher_left_is_gone(shell: str, tmp_path: Path) -> None:
    (tmp_path / "dump.py").write_text(DUMP)
    path = written(
        tmp_path,
        "sh",
        command=(*PYTHON, "./dump.py"),
        environment={"PET_OWN": "kept"},
        unset=("LOCAL_WORLD_SIZE", "NEVER_THERE"),
        unset_prefixes=("TORCHELASTIC_", "PET_", "NOBODY_HAS_"),
    )
    inherited = {
        "TORCHELASTIC_RUN_ID": "a\nPETER=x\nPET_X=y",
        "PET_NNODES": "2 $(id)",
        "LOCAL_WORLD_SIZE": "8",
        "PETER": "stays",
    }
    _, env, _ = ast.literal_eval(run(shell, path, "0", **inherited).stdout)
    left = {name: env[name] for name in env if name.startswith((b"TORCHEL", b"PET", b"LOCAL_W", b"NOBODY", b"NEVER"))}
    assert left == {b"PET_OWN": b"kept", b"PETER": b"stays"}


@EACH_SHELL
def test_the_working_folder(shell: str, tmp_path: Path) -> None:
    for name in ("my work", "home's/inner", "-"):
        (tmp_path / name).mkdir(parents=True)
    for workdir, expected in (
        *(("~/my work", "my work"), ("~", ""), ("~/", ""), ("my work", "my work"), ("./home's/inner", "home's/inner")),
        *((f"{tmp_path}/my work", "my work"), ("-", "-")),
    ):
        _, _, cwd = dumped(shell, tmp_path, workdir=workdir)
        assert cwd.decode() == str(tmp_path / expected).rstrip("/")
    for workdir in ("~/nowhere", "/no/such $HOME", "launch.sh", "~other/x"):
        done = run(shell, written(tmp_path, "sh", workdir=workdir))
        assert (done.returncode, done.stderr.count("\n")) == (90, 1)
        assert f"node-a has no folder {workdir}, or none that this user may enter: make it" in done.stderr
        assert messages(done) == [{"event": "workdir-missing"}]


@EACH_SHELL
def test_the_activate_line_runs_in_the_working_folder(shell: str, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work/act").write_text("COLOUR=blue; export COLOUR; cd /\n")
    _, env, cwd = dumped(shell, tmp_path, workdir="work", activate=". ./act")
    assert (env[b"COLOUR"], cwd.decode()) == (b"blue", f"{tmp_path}/work")


@EACH_SHELL
@pytest.mark.parametrize("program", ["no-such-python", "./no-such", "~/no-such", "/no/such", "it's not", ""])
def test_a_program_that_is_not_there(shell: str, program: str, tmp_path: Path) -> None:
    done = run(shell, written(tmp_path, "sh", command=(program, "-u")), "0")
    assert (done.returncode, messages(done)) == (92, [{"event": "program-missing"}])
    assert f"node-a has no program {program}: install it" in done.stderr


@EACH_SHELL
@pytest.mark.parametrize("program", ["no-such-program", "it's not"])
def test_a_program_on_the_command_line_that_is_not_there(shell: str, program: str, tmp_path: Path) -> None:
    done = run(shell, written(tmp_path, "sh", command=None), program)
    assert (done.returncode, messages(done)) == (92, [{"event": "program-missing"}])
    assert f": {program}: node-a has no such program: install it, or name another one\n" in done.stderr


@EACH_SHELL
@pytest.mark.parametrize("line", ["false", ". ./no-such-file", "no-such-command", "(exit 3)", "cd /no/such/folder"])
def test_an_activation_that_fails_says_so_and_starts_nothing(shell: str, line: str, tmp_path: Path) -> None:
    done = run(shell, written(tmp_path, "sh", activate=line, command=("echo", "started")), "0")
    assert done.returncode == 91
    assert "started" not in done.stdout
    first, *_ = messages(done)
    assert first["event"] == "activation-failed"
    assert first["code"] not in (0, 91)
    assert f"could not run the activate line `{line}`" in done.stderr


@EACH_SHELL
def test_an_activation_that_fails_says_so_once_and_with_its_own_code(shell: str, tmp_path: Path) -> None:
    done = run(shell, written(tmp_path, "sh", activate="(exit 3)"), "0")
    assert messages(done) == [{"event": "activation-failed", "code": 3}]


@EACH_SHELL
def test_an_activation_that_ends_the_shell_is_noticed(shell: str, tmp_path: Path) -> None:
    done = run(shell, written(tmp_path, "sh", activate="exit 0", command=("echo", "started")), "0")
    assert done.returncode == 91
    assert messages(done)[0] == {"event": "activation-failed", "code": 0}


@EACH_SHELL
@pytest.mark.parametrize(
    "line", [". $HOME/activate", "source $HOME/activate", "export COLOUR='deep blue'", ". $HOME/activate && true"]
)
def test_an_activation_that_works_is_seen_by_the_rank(shell: str, line: str, tmp_path: Path) -> None:
    (tmp_path / "activate").write_text("COLOUR='deep blue'; export COLOUR\n")
    assert dumped(shell, tmp_path, activate=line)[1][b"COLOUR"] == b"deep blue"


@EACH_SHELL
@pytest.mark.parametrize(
    ("line", "words"),
    [
        *((f"{reads} ./act{words}", words.strip()) for reads in (".", "source") for words in (" one two", "")),
        ("true && . ./act one; set -- x y", "one"),
    ],
)
def test_a_file_that_activates_gets_the_words_behind_its_name_and_no_other(
    shell: str, line: str, words: str, tmp_path: Path
) -> None:
    """`. /opt/conda/bin/activate train`: dash would drop the `train`, and show the file the rank's number instead."""
    (tmp_path / "act").write_text('WORDS="$*"; export WORDS\n')
    assert dumped(shell, tmp_path, activate=line, rank=1, processes=ranks(2))[1][b"WORDS"] == words.encode()
    path = written(tmp_path, "sh", activate=line, command=None)
    given = ["", "a b", "it's '", "$x `id`", "-n", "two\nlines\n", "\\", "*"]
    command = (*PYTHON, "-c", "import os, sys; print((os.environ['WORDS'], sys.argv[1:]))", *given)
    assert ast.literal_eval(run(shell, path, *command).stdout) == (words, given)


@EACH_SHELL
@pytest.mark.parametrize(
    "line", ["module load cuda/12.4", "true && module load cuda/12.4", "set -e; module load cuda/12.4"]
)
def test_modules_are_brought_to_a_shell_that_has_none(shell: str, line: str, tmp_path: Path) -> None:
    (tmp_path / "init").mkdir()
    (tmp_path / "init/sh").write_text('module() { LOADED="$*"; export LOADED; }\n')
    path = written(tmp_path, "sh", activate=line, command=("printenv", "LOADED"))
    assert run(shell, path, MODULESHOME=str(tmp_path)).stdout == "load cuda/12.4\n"


@EACH_SHELL
@pytest.mark.parametrize("line", ["true &&", ". './act", "if true", "fi", "(", "echo $(", "}", "echo |"])
def test_half_an_activate_line_is_its_own_failure(shell: str, line: str, tmp_path: Path) -> None:
    done = run(shell, written(tmp_path, "sh", activate=line, command=("echo", "started")), "0")
    assert (done.returncode, messages(done)[0]["event"], "started" in done.stdout) == (91, "activation-failed", False)


@EACH_SHELL
def test_a_closed_standard_input_is_an_empty_one(shell: str, tmp_path: Path) -> None:
    path = written(tmp_path, "sh", activate="true", processes=ranks(2), command=("echo", "started"))
    closed = ["sh", "-c", 'exec "$@" <&-', "sh", *started(shell), str(path)]
    done = subprocess.run(closed, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "started\nstarted\n", "")


@EACH_SHELL
def test_a_script_may_come_by_standard_input(shell: str, tmp_path: Path) -> None:
    """`ssh node-a sh -s <launch.sh`: what is read for the activate line must not be the script itself."""
    path = written(tmp_path, "sh", activate="cat", processes=ranks(8), command=("sh", "-c", 'echo "$RANK $PWD"'))
    for arguments, expected in (((), range(8)), (("-s", "5"), [5])):
        done = subprocess.run(
            [*started(shell), *arguments],
            input=path.read_text(),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert {f"{rank} {tmp_path}" for rank in expected} <= set(done.stdout.splitlines())


@EACH_SHELL
@pytest.mark.parametrize("line", ["set -e", "set -eu", "IFS=0123456789", "set -e; IFS=' :'; set -f"])
def test_an_activation_cannot_change_how_the_script_works(shell: str, line: str, tmp_path: Path) -> None:
    command = ("sh", "-c", 'exit "$((RANK == 0 ? 0 : 6))"')
    assert run(shell, written(tmp_path, "sh", processes=ranks(3), activate=line, command=command)).returncode == 6


@EACH_SHELL
def test_an_activation_that_reads_gets_nothing_and_the_rank_gets_it_all(shell: str, tmp_path: Path) -> None:
    path = written(tmp_path, "sh", activate="cat", command=("cat",))
    done = subprocess.run(
        [*started(shell), str(path), "0"],
        input="for the rank\n",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "for the rank\n"


@EACH_SHELL
@pytest.mark.parametrize("name", ["here", "code", "pids", "name", "self", "start"])
def test_no_name_of_the_users_is_the_scripts_own(shell: str, name: str, tmp_path: Path) -> None:
    path = written(
        tmp_path, "sh", environment={name: "/no/such"}, processes=ranks(2), activate="true", command=("printenv", name)
    )
    done = run(shell, path)
    assert (done.returncode, done.stdout.split()) == (0, ["/no/such", "/no/such"])


def test_a_secret_is_in_the_environment_file_and_nowhere_else() -> None:
    environment = {"TOKEN": Secret("s3cr3t 'x'", "the environment variable T"), "OPEN": "1"}
    for shell, beside, content in (
        ("sh", "small.env", b"export TOKEN='s3cr3t '\"'\"'x'\"'\"''\n"),
        ("bat", "small.env.bat", b"@echo off\r\nset \"TOKEN=s3cr3t 'x'\"\r\n"),
        ("ps1", "small.env.ps1", b"\xef\xbb\xbf$env:TOKEN = 's3cr3t ''x'''\r\n"),
    ):
        files = make_script(spec(name="small", environment=environment), shell).files
        assert sorted(files) == sorted([f"small.{shell}", beside])
        assert b"s3cr3t" not in files[f"small.{shell}"]
        assert files[beside] == content
        assert list(make_script(spec(), shell).files) == [f"launch.{shell}"]


@EACH_SHELL
def test_a_script_without_its_secrets_does_not_start(shell: str, tmp_path: Path) -> None:
    path = written(tmp_path, "sh", environment={"TOKEN": Secret("x", "T")}, command=("echo", "started"))
    (tmp_path / "launch.env").unlink()
    done = run(shell, path)
    assert (done.returncode, messages(done)) == (99, [{"event": "secrets-missing"}])
    assert "started" not in done.stdout
    assert "node-a has no readable launch.env beside this script" in done.stderr


@pytest.mark.parametrize("shell", ["sh", "bat", "ps1"])
@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"environment": {"A": "x\ny"}}, ("environment", "A")),
        ({"environment": {"A": Secret("hush\ny", "T")}}, ("environment", "A")),
        ({"environment": {"A;id": "x"}}, ("environment", "A;id")),
        ({"environment": {"": "x"}}, ("environment", "")),
        ({"activate": "a\nb"}, ("activate",)),
        ({"workdir": "a\nb"}, ("workdir",)),
        ({"command": ("python", "a\0b")}, ("command", "1")),
        ({"unset_prefixes": ("A*",)}, ("unset", "A*")),
        ({"unset": ("A B",)}, ("unset", "A B")),
    ],
)
def test_what_a_script_cannot_carry_is_refused_with_its_place(
    shell: str, options: dict[str, Any], place: tuple[str, ...]
) -> None:
    (refused,) = quoting_refusals(spec(**options), shell)
    assert refused.place == place
    assert "hush" not in str(refused)
    with pytest.raises(CannotQuote) as raised:
        make_script(spec(**options), shell)
    assert str(raised.value) == str(refused)


def test_everything_that_is_wrong_is_found_at_once() -> None:
    wrong = spec(
        environment={"A": 'x"y', "OK": "1", "E": "é", "a": "1"}, command=("python", 'q"'), workdir="~/é", activate="é"
    )
    places = [("environment", "A"), ("environment", "E"), ("command", "1"), ("activate",), ("workdir",)]
    assert [one.place for one in quoting_refusals(wrong, "bat")][:5] == places
    assert len(list(quoting_refusals(wrong, "bat"))) == 6
    assert [one.place[0] for one in quoting_refusals(wrong, "ps1")] == ["environment"]
    assert not list(quoting_refusals(wrong, "sh"))


@EACH_SHELL
def test_names_and_sources_cannot_leave_their_comment(shell: str, tmp_path: Path) -> None:
    script = make_script(spec(node="node-a\necho broken", made_from=("a\necho broken", "b\r\necho broken")), "sh")
    assert run(shell, put(tmp_path, script), "0").stdout == ""


@pytest.mark.parametrize("shell", ["sh", "bat", "ps1"])
def test_the_same_spec_gives_the_same_bytes_and_a_header_that_says_what_it_is(shell: str) -> None:
    script = make_script(spec(node="gn-07", processes=ranks(2, first=4), world_size=8), shell)
    assert script == make_script(spec(node="gn-07", processes=ranks(2, first=4), world_size=8), shell)
    head = script.files[script.name].decode("utf-8-sig")[:400]
    for words in ("gn-07, 2 of 8 ranks", "made from playbooks/train.yml", "made from inventories/two.yml", "usage:"):
        assert words in head


@EACH_SHELL
def test_the_script_is_lf_without_a_bom_and_parses(shell: str, tmp_path: Path) -> None:
    environment: dict[str, Any] = {"A": "1", "B": Secret("x", "T")}
    path = written(tmp_path, "sh", processes=ranks(2), activate="conda activate train", environment=environment)
    data = path.read_bytes()
    assert b"\r" not in data
    assert data.startswith(b"#!/bin/sh\n")
    assert subprocess.run([*started(shell), "-n", str(path)], check=False).returncode == 0
