"""Programs on this machine that answer a question: their output, limited in time and in bytes. For the programs that
know a cluster (scontrol, srun, kubectl) also: the failures they mean, and one answer that serves many nodes."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

from runbook.causes.catalogue import unreachable_for
from runbook.model.command_quoting import shell_word
from runbook.model.errors import Unreachable, machine_limit_finding

MAX_STDOUT_BYTES = 32 << 20
"""The most bytes of output: `kubectl get pods -o json` takes 10 KiB a pod, `scontrol show node` 1 KiB a node."""
MAX_STDERR_BYTES = 1 << 20  # the most bytes of stderr
# How long output is read on after the program has ended: a child of it may hold the pipe open.
_OPEN_PIPE_TIMEOUT_S = 1.0
_POLL_INTERVAL_S = 0.2  # the interval at which the program is looked at, whether it has ended


def run_program(
    argv: Sequence[str], timeout_s: float, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The exit code, stdout and stderr of a program. A program that prints more than MAX_STDOUT_BYTES or
    MAX_STDERR_BYTES is killed: its stdout is then empty, so that a part does not pass as the whole, and the last line
    of its stderr says so. A program that is killed takes the rest of its process group with it.

    Raises OSError when the program does not start, and TimeoutExpired.
    """
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    out, err = bytearray(), bytearray()
    try:
        with selectors.PollSelector() as streams:  # takes no descriptor of its own
            streams.register(process.stdout, selectors.EVENT_READ, (out, MAX_STDOUT_BYTES))
            streams.register(process.stderr, selectors.EVENT_READ, (err, MAX_STDERR_BYTES))
            until = time.monotonic() + timeout_s
            ended = False
            while streams.get_map() and (left := until - time.monotonic()) > 0:
                for key, _ in streams.select(min(left, _POLL_INTERVAL_S)):
                    data = os.read(key.fd, 1 << 16)
                    kept, most = key.data
                    if not data:
                        streams.unregister(key.fileobj)
                    elif len(kept) + len(data) > most:
                        says = f"it printed more than {most >> 20} MiB, and was stopped"
                        return subprocess.CompletedProcess(
                            argv, -signal.SIGKILL, "", f"{_decoded_output(err[:4096])}\n{says}"
                        )
                    else:
                        kept += data
                if not ended and process.poll() is not None:
                    ended, until = True, min(until, time.monotonic() + _OPEN_PIPE_TIMEOUT_S)
        try:
            code = process.wait(0 if ended else max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise subprocess.TimeoutExpired(argv, timeout_s) from None
        return subprocess.CompletedProcess(argv, code, _decoded_output(out), _decoded_output(err))
    finally:
        _kill_group(process)


def _decoded_output(data: bytes | bytearray) -> str:
    """The text of `data`, with every line break as `\\n`."""
    return data.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a program that still runs, with its process group, and close its streams."""
    if process.poll() is None:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # not even KILL ends a program that waits for a dead disk
            process.wait(1.0)
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


T = TypeVar("T")


KUBECTL = "kubectl"
"""The failures of this program are Kubernetes'; those of every other program here are Slurm's."""


def tool_start_failure(name: str, error: OSError) -> Unreachable:
    """The failure for a program that did not start. Raises `error` itself when a limit of this machine is behind it,
    which says nothing about the program."""
    if machine_limit_finding(error):
        raise error
    cause = "kubernetes-tool-missing" if name == KUBECTL else "slurm-tool-missing"
    path = (f"PATH={os.environ.get('PATH', '')}",)
    missing = isinstance(error, FileNotFoundError)
    says = f"there is no `{name}` on this machine's PATH" if missing else f"`{name}` does not start: {error.strerror}"
    return unreachable_for(cause, says, path)


def unrecognized_stderr_failure(
    what: str, done: subprocess.CompletedProcess[str], seen: tuple[str, ...]
) -> Unreachable:
    """The failure for a program whose stderr, `seen`, matches no known error. `what` is the command to name."""
    cause = "kubernetes-exec-failed" if done.args[0] == KUBECTL else "slurm-step-failed"
    says = f"`{what}` ended with code {done.returncode}" + (f": {seen[-1]}" if seen else "")
    return unreachable_for(cause, says, seen, way="unknown-words", map_=" ".join(map(shell_word, done.args)))


class LatestAnswers:
    """Answers that are shared: when a job or a machine ends, all of its nodes ask the same at once. One question is
    asked at a time, and its answer serves all who ask within the next seconds."""

    def __init__(self) -> None:
        self._asking = threading.Lock()
        self._known: dict[Hashable, tuple[float, Any]] = {}

    def ask(self, key: Hashable, fresh_s: float, question: Callable[[], T]) -> T:
        """The answer to the question named `key`: the known one if it is at most `fresh_s` old, else that of
        `question()`. An Unreachable that `question` raised is kept and raised in the same way."""
        with self._asking:
            when, known = self._known.get(key, (0.0, None))
            if known is None or time.monotonic() - when > fresh_s:
                try:
                    known = question()
                except Unreachable as error:
                    known = error
                self._known[key] = time.monotonic(), known
        if isinstance(known, Unreachable):
            raise known
        answer: T = known
        return answer
