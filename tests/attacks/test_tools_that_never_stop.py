"""Programs of this machine that the controller starts: whatever they print, for however long, it costs little memory and
disk, ends in time, and leaves nothing running."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from profiles import one_in
from syntax_trees import SOURCE, nodes

import runbook
from runbook.model.errors import Unreachable
from runbook.model.inventory import Kubernetes, Ssh
from runbook.transport import kubernetes, slurm, ssh_config
from runbook.transport.local_programs import MAX_STDOUT_BYTES, run_program
from runbook.transport.stream import ProcessStream

STARTS = {
    *(f"subprocess.{name}" for name in ("run", "Popen", "call", "check_call", "check_output", "getoutput")),
    *("asyncio.create_subprocess_exec", "asyncio.create_subprocess_shell", "os.popen", "os.system"),
}
ALLOWED = {
    "transport/local_programs.py": "the one place where output is read",
    "transport/stream.py": "carries frames, which are bounded",
    "transport/ssh_dial.py": "carries SSH, read by paramiko",
    "serve/run_processes.py": "runbook itself, into a file",
    "agent/agent.py": "carries frames",
    "agent/systemd.py": "prints for the user",
    "checks/shell.py": "our own program, which answers a character",
}
OUT, ERR = 'exec yes "$0 nodes: {}"', "exec yes >&2"
TOOLS = {"stdout": OUT, "stderr": ERR, "stdout of a child": "yes & wait", "one line": "exec cat /dev/zero"}
ASKING: dict[str, Callable[[], object]] = {
    "kubectl": lambda: kubernetes.run_kubectl(Kubernetes(), "get", "pods"),
    "scontrol": lambda: slurm.run_slurm_program("scontrol", "show", "node"),
    "squeue": lambda: slurm.run_slurm_program("squeue", "--me"),
    "ssh": lambda: ssh_config._resolved_ssh_options("node-a", Ssh()),
}


def fake(folder: Path, name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    tool = folder / name
    tool.write_text(f"#!/bin/sh\necho $$ >> {folder}/pids\n{text}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return tool


def nothing_runs(folder: Path) -> bool:
    groups = {int(line) for line in (folder / "pids").read_text().split()}
    alive = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        alive += [group] if int(group) in groups and state != "Z" else []
    return not alive


@pytest.mark.parametrize(("tool", "says"), one_in(5, ((tool, says) for tool in ASKING for says in TOOLS), thorough=2))
def test_what_it_prints_for_ever_is_stopped(
    tool: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(tmp_path, tool, TOOLS[says], monkeypatch)
    monkeypatch.setattr(ssh_config, "_wants_openssh", lambda _config: True)
    tracemalloc.start()
    try:
        with pytest.raises(Unreachable) as caught:
            ASKING[tool]()
        assert tracemalloc.get_traced_memory()[1] < 2 * MAX_STDOUT_BYTES
    finally:
        tracemalloc.stop()
    assert len(f"{caught.value.says} {caught.value.evidence}") < 20_000
    assert nothing_runs(tmp_path)


@pytest.mark.parametrize("says", TOOLS)
def test_it_is_said_that_it_printed_too_much(says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = run_program([str(fake(tmp_path, "tool", TOOLS[says], monkeypatch))], 600.0)
    assert (done.returncode, done.stdout) == (-9, "")
    assert "it printed more than" in done.stderr.splitlines()[-1]
    assert len(done.stderr) < 5000
    assert nothing_runs(tmp_path)


@pytest.mark.parametrize(
    ("tool", "kind"),
    [
        ("kubectl", "a folder"),
        ("kubectl", "not executable"),
        ("scontrol", "no program"),
        ("scontrol", "no interpreter"),
    ],
)
def test_what_does_not_start_is_said(tool: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = tmp_path / tool
    if kind == "a folder":
        there.mkdir()
    else:
        there.write_text("#!/no/such/program\n" if kind == "no interpreter" else "\x7fELF nothing")
        there.chmod(0o644 if kind == "not executable" else 0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unreachable) as caught:
        ASKING[tool]()
    assert caught.value.cause.endswith("-tool-missing")


def test_one_that_is_silent_ends_at_the_deadline_with_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = fake(tmp_path, "silent", "sleep 1000 & sleep 1000", monkeypatch)
    with pytest.raises(subprocess.TimeoutExpired):
        run_program([str(tool)], 1.0)
    assert nothing_runs(tmp_path)


def test_what_it_leaves_running_does_not_keep_us_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = fake(tmp_path, "daemon", "sleep 30 &\nsaid=$!\necho $said", monkeypatch)
    done = run_program([str(tool)], 600.0)
    try:
        assert done.returncode == 0
        os.kill(int(done.stdout), 0)
    finally:
        os.kill(int(done.stdout), 9)


def test_all_of_a_large_output_is_read(tmp_path: Path) -> None:
    program = (
        f"import sys; sys.stdout.write('é' * {MAX_STDOUT_BYTES // 2}); sys.stderr.write('x' * 1000_000); sys.exit(7)"
    )
    done = run_program([sys.executable, "-c", program], 60.0)
    assert (done.returncode, len(done.stdout), len(done.stderr)) == (7, MAX_STDOUT_BYTES // 2, 1000_000)
    assert set(done.stdout) == {"é"}


def test_complaints_without_end_take_little_of_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """As srun and kubectl write them while they carry a connection."""
    monkeypatch.setattr("runbook.transport.stream._MAX_STDERR_FILE_BYTES", 1 << 20)
    stream = ProcessStream(["/bin/sh", "-c", "yes complaint | head -c 6000000 >&2; echo the last >&2; echo; exec cat"])
    try:
        while not stream.read().endswith(b"\n"):
            pass
        stream.write(b"x")
        assert stream.read() == b"x"
        assert stream.complaint().endswith("complaint\nthe last")
        assert os.fstat(stream._stderr.file.fileno()).st_blocks * 512 < 100_000
    finally:
        stream.kill()
        stream.close()


@SOURCE
def test_nothing_else_reads_what_a_program_prints() -> None:
    found = set()
    package = Path(runbook.__file__).parent
    for file in package.rglob("*.py"):
        name = file.relative_to(package).as_posix()
        if name.startswith("node/"):
            continue
        for node in nodes(file):
            called = node.func if isinstance(node, ast.Call) else None
            if called is not None and ast.unparse(called) in STARTS:
                found.add(name)
    assert found == set(ALLOWED)
