"""The programs of this machine that know a cluster (scontrol, srun, kubectl): what their failures are, and one answer
for many nodes."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from runbook.causes.catalogue import unreachable_for
from runbook.model.command_quoting import word
from runbook.model.errors import Unreachable, limit_behind

T = TypeVar("T")


KUBECTL = "kubectl"
"""The others are Slurm's."""


def no_tool(name: str, error: OSError) -> Unreachable:
    """For a program that did not start. Raises `error` where it says nothing of the program: this machine lacks
    something."""
    if limit_behind(error):
        raise error
    cause = "kubernetes-tool-missing" if name == KUBECTL else "slurm-tool-missing"
    path = (f"PATH={os.environ.get('PATH', '')}",)
    missing = isinstance(error, FileNotFoundError)
    says = f"there is no `{name}` on this machine's PATH" if missing else f"`{name}` does not start: {error.strerror}"
    return unreachable_for(cause, says, path)


def not_understood(what: str, done: subprocess.CompletedProcess[str], seen: tuple[str, ...]) -> Unreachable:
    """The failure of a program whose words, `seen`, mean nothing that is known."""
    cause = "kubernetes-exec-failed" if done.args[0] == KUBECTL else "slurm-step-failed"
    says = f"`{what}` ended with code {done.returncode}" + (f": {seen[-1]}" if seen else "")
    return unreachable_for(cause, says, seen, way="unknown-words", map_=" ".join(map(word, done.args)))


class LatestAnswers:
    """When a job or a machine ends, all of its nodes ask at once: one question at a time, and its answer serves all."""

    def __init__(self) -> None:
        self._asking = threading.Lock()
        self._known: dict[Hashable, tuple[float, Any]] = {}

    def ask(self, key: Hashable, fresh_s: float, question: Callable[[], T]) -> T:
        """What this question gave, or the Unreachable that it raised, not longer than `fresh_s` ago."""
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
