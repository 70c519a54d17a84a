"""The unit of systemd, as systemd reads it, and what the agent tells a service manager."""

from __future__ import annotations

import getpass
import os
import pwd
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from runbook.agent import systemd
from runbook.agent.folder import AgentFolder, Identity, State
from runbook.agent.systemd import UNIT_NAME, Notify, unit_text, unit_user
from runbook.cli.main import main
from runbook.cli.serve import own_account_name
from runbook.model.errors import FilesWrong

FORBIDDEN = ("PrivateDevices", "MemoryDenyWriteExecute", "KillMode=process")


@pytest.mark.parametrize("user", [None, "www-data"])
def test_systemd_takes_the_unit_and_ranks_can_bear_it(user: str | None, tmp_path: Path) -> None:
    if user is not None and user not in {entry.pw_name for entry in pwd.getpwall()}:
        pytest.skip(f"no user {user}")
    text = unit_text(user, tmp_path / "a folder of 100%")
    assert not any(word in text for word in FORBIDDEN)
    assert ("User=www-data" in text) == (user is not None)
    # A user's manager may drop no capabilities, and with these a service of its own does not start.
    drops = [line for line in text.splitlines() if line.startswith(("ProtectKernel", "ProtectClock", "ProtectSystem"))]
    assert len(drops) == (0 if user is None else 5)
    for line in ("Type=notify", "WatchdogSec=30", "Restart=always", "KillMode=mixed", "LimitMEMLOCK=infinity"):
        assert line in text.splitlines()
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    file = tmp_path / UNIT_NAME
    file.write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(file)], capture_output=True, text=True, timeout=120, check=False
    )
    ours = [line for line in done.stderr.splitlines() if UNIT_NAME in line]
    assert ours == []


def test_nobody_gets_an_agent_that_is_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUDO_USER", raising=False)
    if os.geteuid() == 0:
        for named in (None, "root", "no such user"):
            with pytest.raises(FilesWrong):
                unit_user(named)
        monkeypatch.setenv("SUDO_USER", "root")
        with pytest.raises(FilesWrong):
            unit_user(None)
        assert unit_user("www-data") == "www-data"
    else:
        assert unit_user(getpass.getuser()) is None


def test_a_service_manager_is_told_one_line_and_nobody_is_told_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    Notify().say("READY=1")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        monkeypatch.chdir(tmp_path)
        manager.bind("notify")
        manager.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", "notify")
        Notify().say("STATUS=one\nMAINPID=1")
        assert manager.recv(100) == b"STATUS=one MAINPID=1"
    Notify().say("WATCHDOG=1")  # the manager is gone


def test_an_agent_that_still_runs_is_told_when_it_is_uninstalled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(systemd, "SYSTEM_UNIT_FOLDER", tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    if os.geteuid() == 0:
        others = [entry.pw_name for entry in pwd.getpwall() if entry.pw_uid]
        monkeypatch.setenv("SUDO_USER", others[0])
    folder = AgentFolder(tmp_path / "agent")
    uninstall = ["agent", "uninstall", "--dir", str(folder.path)]
    folder.remember(Identity("gn1", "http://127.0.0.1:8400", "token"))
    with folder.alone():
        folder.write_state(State(os.getpid(), 0.0, True, "connected as gn1"))
        assert main(uninstall) == 1
        assert f"an agent still runs here, pid {os.getpid()}" in capsys.readouterr().out
    assert folder.identity() is None
    assert main(uninstall) == 0
    assert "no agent runs here" in capsys.readouterr().out


@pytest.mark.parametrize("by_sudo", [False, True])
def test_root_forgets_an_enrolment_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_sudo: bool) -> None:
    """In a container there is often nobody else, and no unit."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    if by_sudo:
        monkeypatch.setenv("SUDO_USER", "root")
    else:
        monkeypatch.delenv("SUDO_USER", raising=False)
    folder = AgentFolder(tmp_path / "agent")
    folder.remember(Identity("gn1", "http://127.0.0.1:8400", "token"))
    assert main(["agent", "uninstall", "--dir", str(folder.path)]) == 0
    assert folder.identity() is None


def test_a_user_without_an_account_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nobody(uid: int) -> pwd.struct_passwd:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["agent", "install"]) == 2
    assert "has no account here" in capsys.readouterr().err
    assert main(["agent", "uninstall"]) == 0
    monkeypatch.delenv("HOME")
    assert main(["agent", "status"]) == 2
    assert "no home for the agent's files" in capsys.readouterr().err
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    assert own_account_name() == f"uid-{os.getuid()}"
