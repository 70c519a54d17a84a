"""From a login shell to a supervisor: every shell, every interpreter's name, noise, and nothing to run us with."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from runbook.model.errors import Unreachable
from runbook.transport import bootstrap
from runbook.transport.bootstrap import NoPython, SilentPython

from .local_sessions import Noisy, Scripted, ShellStream, opened, session

REAL = os.path.realpath(sys.executable)
LOGIN_SHELLS = [s for s in ("sh", "dash", "bash", "zsh", "fish", "tcsh", "ksh", "mksh", "busybox") if shutil.which(s)]
NAMES = [
    "python",
    "my python",
    "py'thon",
    'py"thon',
    "$HOME",
    "`id`",
    "päython",
    "a;b",
    "!x",
    "-c",
    "%n",
    "back\\slash",
]


@pytest.mark.parametrize("shell", [s for s in LOGIN_SHELLS if s != "busybox"])
@pytest.mark.parametrize("name", ["python-3.x_y", 'it\'s a $HOME `x` "q" \\n'])
def test_every_login_shell_passes_it_on(shell: str, name: str, tmp_path: Path) -> None:
    python = tmp_path / name
    python.symlink_to(REAL)
    with session(tmp_path / "w", python=str(python), stream=ShellStream(shell, str(python))) as node:
        assert node.hello["executable"] == str(python)
        assert node.shell("echo up", timeout_s=10).stdout == "up\n"


@pytest.mark.parametrize("name", NAMES)
def test_every_name_of_an_interpreter(name: str, tmp_path: Path) -> None:
    python = tmp_path / name
    python.symlink_to(REAL)
    with session(tmp_path / "w", python=str(python)) as node:
        assert node.hello["executable"] == str(python)
        assert node.hello["rejected"] == []


def test_an_interpreter_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "py").symlink_to(REAL)
    with session(tmp_path / "w", python="~/py") as node:
        assert node.hello["executable"] == str(tmp_path / "py")


def test_the_command_is_plain() -> None:
    for name in ("python3", *NAMES):
        command = bootstrap.bootstrap_command(name)
        assert command.isascii()
        assert command.isprintable()
        assert "!" not in command
        inner = command.removeprefix("exec /bin/sh -c '").removesuffix("'")
        assert "'" not in inner
        assert "\\'" not in command
    assert bootstrap.bootstrap_command("a b") == bootstrap.bootstrap_command("$(id)"), (
        "what is not harmless is not part of it"
    )


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing on it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def fake(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_the_next_interpreter_is_tried(path: Path, tmp_path: Path) -> None:
    fake(path, "named", "exit 97")
    (path / "python3").symlink_to(REAL)
    with session(tmp_path / "w", python="named") as node:
        assert node.hello["executable"] == str(path / "python3")
        assert node.hello["rejected"] == ["97"]


@pytest.mark.parametrize("broken", ["exit 1", "exit 127", "echo noise; exit 2"])
def test_an_interpreter_that_is_broken_does_not_stand_in_the_way(broken: str, path: Path, tmp_path: Path) -> None:
    fake(path, "python3", broken)
    (path / "python").symlink_to(REAL)
    with session(tmp_path / "w", python="not-there") as node:
        assert node.hello["executable"] == str(path / "python")
        assert len(node.hello["rejected"]) == 2


def platform_python() -> bool:
    return Path("/usr/libexec/platform-python").exists()


@pytest.mark.skipif(platform_python(), reason="this machine has an interpreter that no PATH hides")
@pytest.mark.parametrize(
    ("fakes", "cause"),
    [
        ({}, "python-missing"),
        ({"python3": "exit 97"}, "python-too-old"),
        ({"python3": "exit 97", "python": "exit 97"}, "python-too-old"),
        ({"python3": "exit 1"}, "python-missing"),
        ({"python3": "exit 97", "python": "exit 1"}, "python-missing"),
    ],
)
def test_nothing_to_run_us_with(fakes: dict[str, str], cause: str, path: Path, tmp_path: Path) -> None:
    for name, script in fakes.items():
        fake(path, name, script)
    with pytest.raises(NoPython) as caught:
        opened(tmp_path / "w", python="not-there")
    assert caught.value.cause == cause


@pytest.mark.skipif(platform_python(), reason="this machine has an interpreter that no PATH hides")
def test_a_python_that_a_signal_ends_is_there(path: Path, tmp_path: Path) -> None:
    fake(path, "python3", "kill -SEGV $$")
    with pytest.raises(NoPython) as caught:
        opened(tmp_path / "w", python="not-there")
    assert "SIGSEGV ends each that is there" in str(caught.value)
    assert "ulimit -a" in str(caught.value.remedy)


@pytest.mark.parametrize(
    "pieces",
    [
        [b"Welcome to the cluster\n"],
        [b"\x1e", b"runbook", b" is installed here\n"],
        [b"\x1erunbook-agen", b"ts of change\n"],
        [b"\xff\xfe\x00" * 3000],
        [b"{}\n", b'{"event": "hello"}\n'],
    ],
)
def test_a_talkative_profile(pieces: list[bytes], tmp_path: Path) -> None:
    with session(tmp_path, stream=Noisy(sys.executable, *pieces)) as node:
        assert node.shell("echo up", timeout_s=10).stdout == "up\n"


def refused(stream: Scripted, timeout: float = 20.0) -> Unreachable:
    from runbook.transport.session import Session

    config = {"run_id": "r", "node": "n", "workdir": "/nonexistent"}
    with pytest.raises(Unreachable) as caught:
        Session("node-a", stream, config, "python3", timeout)
    return caught.value


def test_an_account_whose_shell_runs_nothing() -> None:
    error = refused(Scripted(b"This account is currently not available.\n", complaint="nologin: no"))
    assert error.cause == "login-shell-failed"
    assert error.evidence == ("This account is currently not available.", "nologin: no")
    assert refused(Scripted()).cause == "login-shell-failed"


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        (b" 127 127 127 127", "python-missing"),
        (b" 97 97 127 127", "python-too-old"),
        (b" 98", "login-shell-failed"),
        (b" 127 98", "login-shell-failed"),
        (b" 127 97 1 127", "python-missing"),
        (b"", "python-missing"),
    ],
)
def test_what_the_bootstrap_says_when_it_gives_up(said: bytes, cause: str) -> None:
    whole = b"motd\n" + bootstrap.SUPERVISOR_MARK + b"none" + said + b"\n"
    assert refused(Scripted(whole)).cause == cause
    assert refused(Scripted(*(whole[i : i + 1] for i in range(len(whole) - 25)), whole[-25:])).cause == cause


@pytest.mark.parametrize(
    ("codes", "complaint"),
    [
        ("2 2 2 2 95", ""),  # what the shell says comes later
        ("2 2 2 2", "/bin/sh: 1: cannot create /dev/null: Permission denied"),
        ("2 2 2 2", "bash: line 1: /dev/null: Permission denied"),
        ("2 2 2 2", "sh: can't create /dev/null: Read-only file system"),
    ],
)
def test_a_dev_null_that_cannot_be_written_is_no_missing_python(codes: str, complaint: str) -> None:
    error = refused(Scripted(bootstrap.SUPERVISOR_MARK + f"none {codes}\n".encode(), complaint=complaint))
    assert isinstance(error, NoPython)
    assert error.cause == "login-shell-failed"
    assert "mknod -m 666 /dev/null c 1 3" in str(error.remedy)


def test_a_login_shell_that_never_starts_us() -> None:
    stream = Scripted(b"loading modules...\n", hang=True, complaint="module: not found")
    error = refused(stream, timeout=0.2)
    assert (error.cause, stream.closed, stream.killed) == ("ssh-timeout", True, True)
    assert "module: not found" in error.evidence


def test_a_python_that_never_starts_is_no_startup_file() -> None:
    stream = Scripted(b"motd\n" + bootstrap.SHELL_MARK + b"\nwaiting for a licence\n", hang=True)
    error = refused(stream, timeout=0.2)
    assert (error.cause, type(error), stream.closed) == ("python-missing", SilentPython, True)
    assert error.evidence == ("motd", "waiting for a licence")


@pytest.mark.parametrize("program", [name for name in LOGIN_SHELLS if name not in ("fish", "busybox")])
def test_a_shell_that_takes_our_program_for_commands_ends_at_its_first_line(program: str, tmp_path: Path) -> None:
    sent = bootstrap.bootstrap_input("python3").split(b"\n", 1)[0] + b"\n touch \xff >it-ran-on\n"
    done = subprocess.run([program], input=sent, cwd=tmp_path, timeout=20, capture_output=True, check=False)
    assert list(tmp_path.iterdir()) == [], done


@pytest.mark.parametrize("python", ["python3", "my python"])
@pytest.mark.parametrize("start", ["read line; ", "head -c 1 >/dev/null; "])
def test_a_startup_file_that_reads_what_is_ours(start: str, python: str) -> None:
    """Whatever was eaten, no Python takes the rest for a supervisor, and it is not the Pythons that are blamed."""
    program = start + bootstrap.bootstrap_command(python)
    sent = bootstrap.bootstrap_input(python)
    done = subprocess.run(["sh", "-c", program], input=sent, timeout=40, capture_output=True, check=False)
    assert bootstrap.SUPERVISOR_MARK + b"none" in done.stdout, done
    assert str(bootstrap.EXIT_STDIN_EATEN).encode() in done.stdout.split(), done


def test_what_is_sent_first() -> None:
    for python, start in (("python3", b""), ("my python", b"exit #my python\n")):
        sent = bootstrap.bootstrap_input(python)
        assert sent.startswith(start + b"exit #")
        length, _, rest = sent[len(start) :].partition(b"\n")
        assert int(length.removeprefix(b"exit #")) == len(rest)
