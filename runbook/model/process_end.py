"""How a process of a rank ended, and what that means: one judge for ranks of checks and of launches."""

from __future__ import annotations

import signal
from dataclasses import dataclass


def _numbers(*names: str) -> frozenset[int]:
    """The signals of this system."""
    return frozenset(number for name in names if (number := getattr(signal, name, None)) is not None)


_CRASHES = _numbers("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS")
"""Signals that a process gets for an error of its own."""

_REQUESTS = _numbers("SIGTERM", "SIGINT", "SIGQUIT")
"""Signals by which another process asks it to end."""

_HANGUP = _numbers("SIGHUP")
_OF_OTHERS = _REQUESTS | _numbers("SIGKILL")


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """`code` is the exit code; negative: the signal that ended it; None: the end was not seen."""

    code: int | None

    @property
    def signal(self) -> int | None:
        """The signal that ended it, also as a shell in between reports it (128 and more); None if it ended by
        itself."""
        if self.code is None or not (self.code < 0 or 128 < self.code < 160):
            return None
        return -self.code if self.code < 0 else self.code - 128

    @property
    def signal_name(self) -> str | None:
        """`SIGKILL`; None also for a number that this system has no name for."""
        try:
            return signal.Signals(self.signal or 0).name
        except ValueError:
            return None

    @property
    def signal_text(self) -> str:
        """`signal 9, SIGKILL`."""
        return f"signal {self.signal}, {self.signal_name}" if self.signal_name else f"signal {self.signal}"

    @property
    def raised(self) -> bool:
        """Whether it ended by itself with an error."""
        return bool(self.code) and self.signal is None

    @property
    def from_outside(self) -> bool:
        """Whether a signal ended it that never follows from an error of its own."""
        return self.signal in _OF_OTHERS

    @property
    def cause(self) -> str:
        """The cause that a signal proves; an exit code proves only that the program failed."""
        if self.signal is None:
            return "program-error"
        if self.signal in _REQUESTS:
            return "terminated-from-outside"
        if self.signal in _HANGUP:
            return "terminal-closed"
        return "rank-crashed" if self.signal in _CRASHES else "rank-killed"
