"""A user's regular expression, searched in what a node printed: in a process of its own, which a limit of CPU time ends."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import AbstractContextManager, suppress

SECONDS = 2.0  # of CPU time a text
_SECONDS_AT_MOST = 30.0  # by the clock, on a machine that has no time
_REPEATS = re.compile(r"[*+{]")  # without any of these nothing takes longer than its text is long
_BYTES = 512 << 20  # of memory
_PROGRAM = """
import json, re, resource, signal, sys
try:
    resource.setrlimit(resource.RLIMIT_AS, ({bytes}, {bytes}))
except (OSError, ValueError):
    pass
for number in (signal.SIGVTALRM, signal.SIGALRM):
    signal.signal(number, signal.SIG_DFL)
pattern = re.compile(json.loads(sys.stdin.readline()), re.MULTILINE)
for line in sys.stdin:
    signal.setitimer(signal.ITIMER_VIRTUAL, {seconds})
    signal.setitimer(signal.ITIMER_REAL, {at_most})
    found = pattern.search(json.loads(line)) is not None
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    print(int(found), flush=True)
"""
"""The signals of both timers kill it: a handler in Python may wait until a search is over."""


class PatternSearch(AbstractContextManager["PatternSearch"]):
    """Whether a pattern (`^` and `$` at every line) is found in a text: True, False, or None where that takes too long or too much memory.

    A node may print what makes a pattern take hours, and the threads of one process wait for a search that runs in it.
    """

    def __init__(self, pattern: str, *, seconds: float = SECONDS) -> None:
        self._pattern = pattern
        self._seconds = seconds
        self._process: subprocess.Popen[str] | None = None

    def __call__(self, text: str) -> bool | None:
        if not _REPEATS.search(self._pattern):
            return re.search(self._pattern, text, re.MULTILINE) is not None
        said = self._asked(text)
        if not said:
            self._end()
            return None
        return said == "1\n"

    def _asked(self, text: str) -> str:
        process = self._process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(text) + "\n")
            process.stdin.flush()
            return process.stdout.readline()
        except BrokenPipeError:
            return ""

    def _start(self) -> subprocess.Popen[str]:
        program = _PROGRAM.format(seconds=self._seconds, at_most=_SECONDS_AT_MOST, bytes=_BYTES)
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="ascii",
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(self._pattern) + "\n")
        return process

    def _end(self) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        process.kill()
        with suppress(BrokenPipeError), process:  # closes its pipes and waits for it
            pass

    def __exit__(self, *_: object) -> None:
        self._end()
