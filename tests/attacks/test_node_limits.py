"""A node that refuses our programs what every program needs: each is told as the limit that it met, and none as a bug of ours, a
folder that cannot be written, or a Python that is missing."""

from __future__ import annotations

import errno
import itertools
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab import Lab
from lab.fault import Fault, run_fault

from runbook import node
from runbook.causes.catalogue import cause_pages as known_causes
from runbook.checks.context import no_answer_outcome
from runbook.model.errors import Unreachable
from runbook.model.verdict import Verdict
from runbook.node import tools
from runbook.transport.node_answers import Ran
from runbook.transport.remote_program import Answer, ProgramNotStarted

PROGRAMS = ("host_facts", "ping", "port", "mesh", "rules", "launch")

MET = {
    "EMFILE": "open-files-limit",
    "ENFILE": "open-files-limit",
    "EAGAIN": "process-limit",
    "EADDRNOTAVAIL": "ephemeral-ports-exhausted",
    "EFBIG": "workdir-not-writable",
}
SAID = {
    "RuntimeError: can't start new thread": "process-limit",
    "sh: 1: Cannot fork": "process-limit",
    "bash: fork: retry: Resource temporarily unavailable": "process-limit",
    "BlockingIOError: [Errno 11] Resource temporarily unavailable": "process-limit",
    "OSError: [Errno 24] Too many open files": "open-files-limit",
    "OSError: [Errno 23] Too many open files in system": "open-files-limit",
    "OSError: [Errno 99] Cannot assign requested address": "ephemeral-ports-exhausted",
    "OSError: [Errno 27] File too large": "workdir-not-writable",
}


def refused(name: str, path: str = "") -> ProgramNotStarted:
    text = os.strerror(getattr(errno, name))
    return ProgramNotStarted({"type": "OSError", "errno": name, "text": text, "path": path})


@pytest.mark.parametrize(("program", "name"), [*itertools.product(PROGRAMS, MET)])
def test_an_errno_names_its_limit(program: str, name: str) -> None:
    for path in ("", "/home/ana/.runbook/run/node-a/tool.py", "/proc/net/tcp"):
        outcome = no_answer_outcome("node-a", program, refused(name, path))
        assert outcome.verdict is Verdict.FAIL
        (finding,) = outcome.findings
        assert finding.cause == MET[name]
        assert name in finding.evidence[0]
        assert "bug" not in finding.remedy


@pytest.mark.parametrize(("program", "words"), [*itertools.product(PROGRAMS, SAID)])
def test_so_do_the_last_words_of_a_program(program: str, words: str) -> None:
    stderr = f'Traceback (most recent call last):\n  File "mesh.py", line 300, in main\n{words}\n'
    outcome = no_answer_outcome("node-a", program, Answer(1, None, "", stderr, False, 0.1))
    assert [finding.cause for finding in outcome.findings] == [SAID[words]]
    assert outcome.findings[0].evidence == (words,)


@pytest.mark.parametrize("words", [words for words in SAID if "fork" in words or "thread" in words])
def test_a_shell_that_cannot_fork_is_no_broken_shell(words: str) -> None:
    lost = Unreachable("login-shell-failed", "the login shell ended", "look at the shell", (words,))
    outcome = no_answer_outcome("node-a", "host_facts", lost)
    assert (outcome.verdict, outcome.findings[0].cause) == (Verdict.UNKNOWN, "process-limit")


SYSTEM = ("/proc", "/proc/net/tcp", "/sys/class/net", "/dev/shm", "/etc/hosts", "/usr/bin/ip", "/lib64/x")


@pytest.mark.parametrize(
    ("path", "name"), [*itertools.product(SYSTEM, ["ENOENT", "EACCES", "EPERM", "ENOTDIR", "EIO", "ENODEV"])]
)
def test_a_file_of_the_systems_that_cannot_be_read_is_not_the_workdir(path: str, name: str) -> None:
    outcome = no_answer_outcome("node-a", "ping", refused(name, path))
    (finding,) = outcome.findings
    assert (outcome.verdict, finding.cause) == (Verdict.UNKNOWN, "tool-output-unknown")
    assert path in finding.says
    assert "bug" not in finding.remedy


@pytest.mark.parametrize("name", ["ENOSPC", "EDQUOT", "EROFS", "EACCES"])
def test_the_workdir_is_still_told_as_that(name: str) -> None:
    outcome = no_answer_outcome("node-a", "mesh", refused(name, "/home/ana/.runbook/run/node-a/mesh.py"))
    assert outcome.verdict is Verdict.FAIL
    assert outcome.findings[0].cause == ("disk-full" if name in ("ENOSPC", "EDQUOT") else "workdir-not-writable")


@given(
    name=st.sampled_from(sorted(errno.errorcode.values())),
    path=st.sampled_from(["", *SYSTEM, "/home/ana/.runbook/x"]),
    program=st.sampled_from(PROGRAMS),
)
def test_every_errno_has_a_sentence(name: str, path: str, program: str) -> None:
    outcome = no_answer_outcome("node-a", program, refused(name, path))
    assert outcome.verdict in (Verdict.FAIL, Verdict.UNKNOWN)
    for finding in outcome.findings:
        assert finding.cause in known_causes()
        assert finding.remedy
        if not path and outcome.verdict is Verdict.FAIL:
            assert name in (*MET, "ENOSPC", "EDQUOT", "EROFS", "EIO", "ESTALE"), "nothing speaks of a folder"


# For real.

CHECKS = "name: checks\nstages: [{check: ping}, {check: port}, {check: firewall}]\n"

Break = Callable[[Lab], object]
REAL: dict[str, tuple[Break, tuple[str, ...]]] = {
    "16 files": (lambda lab: lab["node-b"].limit_logins(nofile=16), ("open-files-limit",)),
    "6 processes": (lambda lab: lab["node-b"].limit_logins(nproc=6), ("process-limit", "login-shell-failed")),
    "14 processes": (lambda lab: lab["node-b"].limit_logins(nproc=14), ("process-limit",)),
    "files of 4 KiB": (lambda lab: lab["node-b"].limit_logins(fsize=4096), ("workdir-not-writable",)),
    "60 MB of memory": (
        lambda lab: lab["node-b"].limit_logins(**{"as": 60_000_000}),
        ("process-limit", "tool-output-unknown"),
    ),
    "no /proc": (lambda lab: lab["node-b"].run("umount -l /proc", "root"), ()),
    "/proc of others hidden": (lambda lab: lab["node-b"].run("mount -o remount,hidepid=2 /proc", "root"), ()),
    "no /sys": (lambda lab: lab["node-b"].run("mount -t tmpfs none /sys", "root"), ()),
    "/tmp read-only": (lambda lab: lab["node-b"].run("mount -t tmpfs -o ro none /tmp", "root"), ()),
    "no /dev/shm": (lambda lab: lab["node-b"].run("umount -l /dev/shm", "root"), ()),
}
"""What a node lacks, and which of the causes may be told of it; none: the checks need it not, and pass."""


ASK_A_TOOL = """
import json, sys
sys.path.insert(0, sys.argv[1])
from runbook.node import tools
prints = 'head -c "$1" /dev/zero | tr "\\\\0" x; head -c "$1" /dev/zero | tr "\\\\0" y >&2; exit 7'
print(json.dumps(tools.sendable_result(tools.run(["/bin/sh", "-c", prints, "sh", sys.argv[2]], 60))))
"""


@pytest.mark.parametrize(
    ("size", "code"),
    [(tools.MAX_SENT_CHARACTERS, 7), (2 * tools.MAX_SENT_CHARACTERS, None), (tools.MAX_TOOL_OUTPUT_BYTES + 1, None)],
)
def test_a_tool_that_prints_too_much_for_an_answer_has_an_answer_that_is_believed(size: int, code: int | None) -> None:
    """Not one whose beginning is judged as if it were all."""
    argv = [sys.executable, "-c", ASK_A_TOOL, str(Path(node.__file__).parents[2]), str(size)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    said = msgspec.json.decode(done.stdout, type=Ran)
    assert (said["code"], bool(said["out"]), "more than" in said["err"]) == (code, bool(code), not code)


START_A_TOOL = """
import resource, sys
sys.path.insert(0, sys.argv[1])
from runbook.node import tools
resource.setrlimit(resource.RLIMIT_NOFILE, (5, 5))
try:
    print(tools.run(["/bin/sh", "-c", "exit 7"], 5))
except OSError as error:
    print(error.errno)
"""


def test_a_tool_that_could_not_be_started_for_want_of_anything_has_said_nothing() -> None:
    """`ip route get` that met the limit is no refusal of the kernel's."""
    argv = [sys.executable, "-c", START_A_TOOL, str(Path(node.__file__).parents[2])]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"{errno.EMFILE}\n"


@pytest.mark.lab
@pytest.mark.parametrize(
    "lack",
    [
        pytest.param(name, marks=[] if name in ("14 processes", "files of 4 KiB") else [pytest.mark.thorough])
        for name in REAL
    ],
)
def test_what_a_node_lacks_is_told_or_not_missed(lack: str, lab_of: Callable[..., Lab]) -> None:
    breaks, causes = REAL[lack]
    lab = lab_of(2)
    told = run_fault(Fault(cause=None, within_s=30, breaks=breaks, playbook=CHECKS), lab)
    findings = [pair for verdict in ("fail", "unknown") for pair in told.findings(verdict)]
    assert {node for node, _ in findings} <= {"node-b"}, told.text
    assert {finding["cause"] for _, finding in findings} <= set(causes), told.text
    if lack != "14 processes":  # of which a slow machine may never need so many at once: then there is nothing to tell
        assert bool(findings) is bool(causes), told.text
    assert told.done.returncode == (told.document["exit_code"] if findings else 0)
    assert not re.search(r"bug of runbook|Traceback|python-missing", told.text), told.text
