"""Running `runbook` itself against a lab, as its user would."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .lab import Lab

MANY = 32
"""From so many hosts on runbook itself goes before them: they share this machine's CPUs, but a cluster does not those of its operator's."""


@dataclass(frozen=True, slots=True)
class CliResult:
    args: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str
    seconds: float

    def json(self) -> Any:
        """Stdout as one JSON document; what else was said, if it is none."""
        try:
            return json.loads(self.stdout)
        except ValueError as error:
            raise AssertionError(f"not one JSON document: {error}\n{self}") from error

    def __str__(self) -> str:
        return (
            f"runbook {' '.join(self.args)} ended {self.returncode} after {self.seconds:.1f} s\n"
            f"--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"
        )


class CliTimeoutError(AssertionError):
    """runbook did not end in time: every wait of it has a deadline, so this is always a bug."""


def runbook_start(lab: Lab, *args: str | Path, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Start runbook in a process group of its own, for a test that interrupts or kills it."""
    process = subprocess.Popen(
        [sys.executable, *lab.controller, *map(str, args)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        cwd=lab.tmp,
        env={**lab.environment(), **(env or {})},
        start_new_session=True,
    )
    lab.started.append(process)
    if len(lab.hosts) >= MANY and os.geteuid() == 0:
        with contextlib.suppress(OSError):  # where the scheduler shares out by session, it is the session's that counts
            Path(f"/proc/{process.pid}/autogroup").write_text("-10")
        os.setpriority(os.PRIO_PROCESS, process.pid, -10)
    return process


def runbook_finish(process: subprocess.Popen[str], *, timeout: float = 120.0) -> CliResult:
    """Wait for a started runbook; past the deadline its whole process group is killed."""
    begin = time.monotonic()
    args = tuple(str(word) for word in process.args[3:]) if isinstance(process.args, list) else ()
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        try:
            stdout, stderr = process.communicate(timeout=10)
        except subprocess.TimeoutExpired:  # something that left the group holds the pipes
            stdout, stderr = "", ""
        late = CliResult(args, -signal.SIGKILL, stdout, stderr, time.monotonic() - begin)
        raise CliTimeoutError(f"no end within {timeout:g} s\n{late}") from None
    return CliResult(args, process.returncode, stdout, stderr, time.monotonic() - begin)


def runbook_cli(lab: Lab, *args: str | Path, timeout: float = 120.0, env: Mapping[str, str] | None = None) -> CliResult:
    """Run runbook to its end, with the lab's HOME, in the lab's folder."""
    return runbook_finish(runbook_start(lab, *args, env=env), timeout=timeout)
