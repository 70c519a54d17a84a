"""The agent as a service of systemd: its unit, its messages to the service manager, and the scopes of its channels.

A unit that stops takes everything in its control group along (KillMode=mixed), but jobs must outlive the agent. So the
program of a channel is put into a scope of the user's own manager, which lives on. Ranks inherit the unit's hardening,
so it has only what they can bear: no PrivateDevices (GPUs) and no MemoryDenyWriteExecute (compilers in torch).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

from runbook.model.errors import FilesWrong
from runbook.node.proc import account_name

UNIT_NAME = "runbook-agent.service"
SYSTEM_UNIT_FOLDER = Path("/etc/systemd/system")
SCOPE_TEST_TIMEOUT_S = 10.0
"""How long `systemd-run` may take to make a scope for a test."""

UNIT_TEMPLATE = """\
[Unit]
Description=runbook agent: dials the runbook server, and runs what it is asked to as {user}
Wants=network-online.target
After=network-online.target

[Service]
Type=notify
{as_user}ExecStart={command}
Environment=PYTHONUNBUFFERED=1
{environment}Restart=always
RestartSec=5
# 1: the server will never have this agent again, or its files are wrong
RestartPreventExitStatus=1 2
WatchdogSec=30
# Jobs live in scopes of their own and go on; what else is left of the agent is not.
KillMode=mixed
TimeoutStopSec=20
UMask=0077
LimitMEMLOCK=infinity
{of_system}RestrictSUIDSGID=yes
LockPersonality=yes

[Install]
WantedBy={target}
"""

SYSTEM_UNIT_LINES = """\
ProtectSystem=full
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectClock=yes
"""
"""Hardening that only the system's manager can apply. A user's manager may drop no capabilities (218/CAPABILITIES), or
needs a user namespace for it, which ranks would inherit."""


class Notify:
    """sd_notify: reports the agent's state to the service manager, if there is one. Never raises."""

    def __init__(self) -> None:
        self._address = os.environ.get("NOTIFY_SOCKET", "")

    def say(self, text: str) -> None:
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.connect(address)
            sender.send(text.replace("\n", " ").encode()[:4096])


async def scope_prefix() -> tuple[str, ...]:
    """The words to put before a command so that it outlives our unit. Empty when we are no unit of systemd, or when no
    scope can be made: without `loginctl enable-linger` the user has no manager."""
    tool = shutil.which("systemd-run")
    if "INVOCATION_ID" not in os.environ or tool is None:
        return ()
    os.environ.setdefault("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    prefix = (tool, "--user", "--scope", "--quiet", "--collect", "--")
    process = None
    try:
        process = await asyncio.create_subprocess_exec(*prefix, "true", stdin=asyncio.subprocess.DEVNULL)
        return prefix if await asyncio.wait_for(process.wait(), SCOPE_TEST_TIMEOUT_S) == 0 else ()
    except (OSError, asyncio.TimeoutError):
        if process is not None:
            process.kill()
        return ()


def unit_text(user: str | None, home: Path | None) -> str:
    """The unit's text: with a `user` for the system's manager, with None for the user's own. `home` is the folder of
    `--dir`. Raises FilesWrong."""
    name = user or account_name(os.getuid())
    if name is None:
        why = f"the user id {os.getuid()} has no account here, and systemd starts services of accounts alone"
        fix = "let what starts this container start the agent too: runbook agent run"
        raise FilesWrong.of("agent.install", why, help=fix)
    words = [sys.executable, "-m", "runbook", "agent", "run", *(["--dir", str(home)] if home else [])]
    linger = f"Environment=XDG_RUNTIME_DIR=/run/user/{pwd.getpwnam(user).pw_uid}\n" if user else ""
    return UNIT_TEMPLATE.format(
        user=name,
        as_user=f"User={user}\n" if user else "",
        command=" ".join(shlex.quote(word).replace("%", "%%") for word in words),
        environment=linger,
        of_system=SYSTEM_UNIT_LINES if user else "",
        target="multi-user.target" if user else "default.target",
    )


def unit_user(named: str | None) -> str | None:
    """The ordinary user that the unit runs as, when root installs it for the system; None when a user installs it for
    themselves. `named` is the user on the command line. Raises FilesWrong."""
    if os.geteuid() != 0:
        if named not in (None, account_name(os.getuid())):
            raise FilesWrong.of("agent.install", "only root can install a unit for another user")
        return None
    user = named or os.environ.get("SUDO_USER", "")
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        entry = None
    if entry is None or entry.pw_uid == 0:
        fix = "name an ordinary user: `sudo runbook agent install --systemd --user ubuntu`"
        raise FilesWrong.of("agent.install", "the agent runs as an ordinary user, never as root", help=fix)
    return user


def install_unit(user: str | None, text: str) -> list[str]:
    """Write the unit and start it; returns what was done, a line each. Raises OSError, CalledProcessError."""
    path = _unit_path(user)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    commands = [["loginctl", "enable-linger", *([user] if user else [])]]
    commands += [[*_systemctl_words(user), "daemon-reload"], [*_systemctl_words(user), "enable", "--now", UNIT_NAME]]
    for command in commands:
        subprocess.run(command, check=True, timeout=60)
    return [f"wrote {path}", *map(shlex.join, commands)]


def uninstall_unit(user: str | None) -> list[str]:
    """Stop the unit and remove it; returns what was done, a line each. Jobs go on."""
    if (user or account_name(os.getuid())) is None:
        return []
    path = _unit_path(user)
    if not path.exists():
        return []
    commands = [[*_systemctl_words(user), "disable", "--now", UNIT_NAME], [*_systemctl_words(user), "daemon-reload"]]
    for command in commands:
        subprocess.run(command, check=False, timeout=60)
    path.unlink()
    return [*map(shlex.join, commands), f"removed {path}"]


def _unit_path(user: str | None) -> Path:
    return (SYSTEM_UNIT_FOLDER if user else Path.home() / ".config" / "systemd" / "user") / UNIT_NAME


def _systemctl_words(user: str | None) -> list[str]:
    return ["systemctl"] if user else ["systemctl", "--user"]
