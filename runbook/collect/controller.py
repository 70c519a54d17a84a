"""This machine, from which runs are started: runbook, Python, the system, the packages that logging in depends on."""

from __future__ import annotations

import getpass
import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import runbook
from runbook.collect.entries import Absent, ArchiveFile

PACKAGES = (
    "runbook",
    "fabric",
    "paramiko",
    "invoke",
    "cryptography",
    "PyYAML",
    "jsonschema",
    "Jinja2",
    "rich",
    "torch",
    "numpy",
)


def controller_entries(command: Sequence[str]) -> list[ArchiveFile | Absent]:
    lines = [
        f"runbook {runbook.__version__}",
        f"Python {platform.python_version()} ({platform.python_implementation()}) {sys.executable}",
        f"system {platform.platform()}",
        f"command {' '.join(command)}",
    ]
    found: list[ArchiveFile | Absent] = [
        ArchiveFile("controller/versions.txt", "\n".join(lines) + "\n"),
        ArchiveFile("controller/packages.txt", "".join(f"{name}=={_version(name)}\n" for name in PACKAGES)),
    ]
    return [*found, _ssh()]


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _ssh() -> ArchiveFile | Absent:
    """The client's version: ssh_config is read by it."""
    program = shutil.which("ssh")
    if program is None:
        return Absent("controller/ssh.txt", "there is no ssh here", command="ssh -V")
    try:
        done = subprocess.run([program, "-V"], capture_output=True, text=True, errors="replace", timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Absent("controller/ssh.txt", str(error), "failed", command="ssh -V")
    return ArchiveFile("controller/ssh.txt", done.stdout + done.stderr, command="ssh -V", code=done.returncode)


def controller_person() -> tuple[str, str, str]:
    """Login name, home and full name of whoever runs this; empty where nobody knows."""
    try:
        import pwd

        entry = pwd.getpwuid(os.getuid())
        return entry.pw_name, entry.pw_dir, entry.pw_gecos.split(",")[0]
    except (ImportError, KeyError):
        pass
    try:
        return getpass.getuser(), str(Path.home()), ""
    except (OSError, KeyError, RuntimeError, ImportError):
        return "", "", ""


def controller_name() -> str:
    return socket.gethostname()
