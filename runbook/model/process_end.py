"""How a rank's process ended, and which cause that proves: one judge for ranks of checks and of launches."""

from __future__ import annotations

import signal
from dataclasses import dataclass


def _signal_numbers(*names: str) -> frozenset[int]:
    """The numbers of these signals, without signals that this system does not have."""
    return frozenset(number for name in names if (number := getattr(signal, name, None)) is not None)


_CRASH_SIGNALS = _signal_numbers("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS")
"""Signals that a process gets for an error of its own."""

_END_REQUEST_SIGNALS = _signal_numbers("SIGTERM", "SIGINT", "SIGQUIT")
"""Signals by which another process asks a process to end."""

_HANGUP_SIGNALS = _signal_numbers("SIGHUP")
_SIGNALS_FROM_OTHERS = _END_REQUEST_SIGNALS | _signal_numbers("SIGKILL")


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """The end of a process. `code` is its exit code; if negative, minus the number of the signal that ended it; None:
    the end was not seen."""

    code: int | None

    @property
    def signal(self) -> int | None:
        """The number of the signal that ended the process, also where a shell reports it as 128 plus the number; None
        if it ended by itself or its end was not seen."""
        if self.code is None or not (self.code < 0 or 128 < self.code < 160):
            return None
        return -self.code if self.code < 0 else self.code - 128

    @property
    def signal_name(self) -> str | None:
        """The signal's name, such as `SIGKILL`; None without a signal, or for a number that has no name on this
        system."""
        try:
            return signal.Signals(self.signal or 0).name
        except ValueError:
            return None

    @property
    def signal_text(self) -> str:
        """The signal as messages name it: `signal 9, SIGKILL`."""
        return f"signal {self.signal}, {self.signal_name}" if self.signal_name else f"signal {self.signal}"

    @property
    def raised(self) -> bool:
        """Whether the process ended by itself with an error."""
        return bool(self.code) and self.signal is None

    @property
    def from_outside(self) -> bool:
        """Whether the process was ended by a signal that an error of its own never causes."""
        return self.signal in _SIGNALS_FROM_OTHERS

    @property
    def cause(self) -> str:
        """The id of the cause that the signal proves; an exit code proves only `program-error`."""
        if self.signal is None:
            return "program-error"
        if self.signal in _END_REQUEST_SIGNALS:
            return "terminated-from-outside"
        if self.signal in _HANGUP_SIGNALS:
            return "terminal-closed"
        return "rank-crashed" if self.signal in _CRASH_SIGNALS else "rank-killed"
