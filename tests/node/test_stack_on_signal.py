"""A training that is prepared to be asked where it is: real programs, as the keeper starts them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from runbook.jobs.seen_processes import frames_of_crash
from runbook.node import stack_on_signal
from runbook.node.proc import settings_of_ranks

CRASH = "import os, signal\ndef step():\n    {how}\nstep()\n"


def prepared(folder: Path, text: str, **more: str) -> subprocess.CompletedProcess[str]:
    shutil.copy(stack_on_signal.__file__, folder / "sitecustomize.py")
    (folder / "train.py").write_text(text)
    env = {"PYTHONPATH": str(folder), "RUNBOOK_STACKS": str(folder), **more}
    command = [sys.executable, str(folder / "train.py")]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS])
def test_a_crash_writes_where_it_was_and_ends_by_its_signal(tmp_path: Path, number: int) -> None:
    done = prepared(tmp_path, CRASH.format(how=f"os.kill(os.getpid(), {int(number)})"))
    assert done.returncode == -number
    frames = frames_of_crash(done.stderr)
    assert [(frame.file, frame.line) for frame in frames] == [(str(tmp_path / "train.py"), line) for line in (3, 4)]


def test_who_asked_for_that_gets_what_it_asked_for(tmp_path: Path) -> None:
    """A file of its own, from then on."""
    how = "import faulthandler; faulthandler.enable(open('crash.txt', 'w')); os.abort()"
    done = prepared(tmp_path, f"import os\nos.chdir({str(tmp_path)!r})\n{CRASH.format(how=how)}")
    assert (done.returncode, done.stderr) == (-signal.SIGABRT, "")
    assert "in step" in (tmp_path / "crash.txt").read_text()


def test_an_exception_and_a_good_end_are_as_without_us(tmp_path: Path) -> None:
    assert prepared(tmp_path, "import sys; sys.exit('no data')").stderr == "no data\n"
    assert prepared(tmp_path, "print(1)").stdout == "1\n"


def test_the_settings_of_a_rank_are_those_of_its_program() -> None:
    env = {"RANK": "7", "NCCL_DEBUG": "INFO", "TORCH_DISTRIBUTED_DEBUG": "DETAIL", "HOME": "/", "NCCL_lower": "1"}
    program = subprocess.Popen(["sleep", "60"], env=env)
    shell = subprocess.Popen(["sh", "-c", "sleep 60 & wait"], env={**env, "RANK": "8"}, start_new_session=True)
    try:
        told = settings_of_ranks([shell.pid, program.pid, 1 << 22])
        assert told == {"7": {"NCCL_DEBUG": "INFO", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}}
    finally:
        program.kill()
        program.wait()
        os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()
