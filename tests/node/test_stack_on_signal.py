"""A training that is prepared to be asked where it is: real programs, as the keeper starts them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from lab.processes import wait_until

from runbook.node import stack_on_signal
from runbook.node.proc import process_stat, settings_of_ranks
from runbook.node.rank_processes import catches_signal, has_interpreter_ended, own_stacks
from runbook.parsers.python_stacks import crashed_thread_frames, main_thread_frames

CRASH = "import os, signal\ndef step():\n    {how}\nstep()\n"


def begun(folder: Path, text: str) -> subprocess.Popen[str]:
    shutil.copy(stack_on_signal.__file__, folder / "sitecustomize.py")
    (folder / "train.py").write_text(text)
    env = {"PYTHONPATH": str(folder), "RUNBOOK_STACKS": str(folder)}
    command = [sys.executable, str(folder / "train.py")]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def prepared(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    with begun(folder, text) as program:
        out, err = program.communicate(timeout=60)
    return subprocess.CompletedProcess(program.args, program.returncode, out, err)


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS])
def test_a_crash_writes_where_it_was_and_ends_by_its_signal(tmp_path: Path, number: int) -> None:
    done = prepared(tmp_path, CRASH.format(how=f"os.kill(os.getpid(), {int(number)})"))
    assert done.returncode == -number
    frames = crashed_thread_frames(done.stderr)
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


@pytest.mark.parametrize(
    ("text", "before", "after"),
    [
        ("import ctypes; c = ctypes.CDLL(None); c.__cxa_atexit(c.pause, None, None); input()", False, True),
        ("import os; input(); os.execvp('sleep', ['sleep', '60'])", False, False),
    ],
)
def test_who_has_come_to_its_end_is_told_from_one_that_has_become_another_program(
    tmp_path: Path, text: str, before: bool, after: bool
) -> None:
    """Below Python, a library may take long to end; there nothing answers any more."""
    with begun(tmp_path, text) as program:
        try:
            assert program.stdin is not None
            file = tmp_path / f"{program.pid}.stack"
            wait_until("it can be asked", lambda: catches_signal(program.pid))
            assert has_interpreter_ended(program.pid, str(file)) is before
            program.stdin.write("\n")
            program.stdin.flush()
            wait_until("it cannot be asked", lambda: not catches_signal(program.pid))
            wait_until("it sleeps", lambda: (its := process_stat(program.pid)) and its.state == "S")
            assert has_interpreter_ended(program.pid, str(file)) is after
        finally:
            program.kill()


THREADS = """
import threading
def deep(n, *a, **k):
    return 0 if n == 0 else 1 + deep(n - 1, *a, **k)
def load():
    while True:
        deep(200)
        exec(compile("def f(x):\\n    return x and f(x - 1)\\nf(20)", "<made>", "exec"), {})
for _ in range(3):
    threading.Thread(target=load, daemon=True).start()
print("up", flush=True)
threading.Event().wait()
"""
AT_EXIT = "import threading\ndef helper():\n    threading.Event().wait()\nthreading.Thread(target=helper).start()\n"


def test_who_works_in_several_threads_lives_on_however_often_it_is_asked(tmp_path: Path) -> None:
    with begun(tmp_path, THREADS) as program:
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == "up\n"
            said: dict[int, str] = {}
            for _ in range(100):
                said = own_stacks(str(tmp_path), [(program.pid, "S")]) or said
                assert program.poll() is None
            assert [frame.function for frame in main_thread_frames(said[program.pid])][-1] == "<module>"
        finally:
            program.kill()


def test_who_is_over_says_which_of_its_threads_is_not(tmp_path: Path) -> None:
    with begun(tmp_path, AT_EXIT) as program:
        try:
            wait_until(
                "it is asked at its exit",
                lambda: "in helper" in own_stacks(str(tmp_path), [(program.pid, "S")]).get(program.pid, ""),
            )
        finally:
            program.kill()


def test_who_leaves_signals_to_another_thread_is_not_asked(tmp_path: Path) -> None:
    """It would write that one's stack."""
    text = "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\nprint('ready', flush=True)\ninput()\n"
    with begun(tmp_path, text) as program:
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == "ready\n"
            assert catches_signal(program.pid)
            assert own_stacks(str(tmp_path), [(program.pid, "S")]) == {}
        finally:
            program.kill()


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
