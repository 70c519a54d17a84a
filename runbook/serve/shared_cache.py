"""A cache for values that many tabs ask for at the same time: each value is computed once for all of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Made(Generic[T]):
    """A computed value."""

    at: float  # when its computation began
    ended: float
    change: int  # the number of the last change when its computation began
    value: T


@dataclass(eq=False)
class _Entry(Generic[T]):
    """The latest value of a key; `lock` is held while a new one is computed."""

    made: _Made[T] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class Recent(Generic[T]):
    """Values by key. A value is good for `seconds` after its computation began, or until something changes, which
    raises the number that `changes` returns. The key holds everything else that the value depends on. May be used from
    several threads."""

    def __init__(self, seconds: float, changes: Callable[[], int], now: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._changes = changes
        self._now = now
        self._entries: dict[Hashable, _Entry[T]] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of `key`, which may be twice as old as `seconds`: the caller calls `renew` once it has answered, so
        that nobody waits when many ask. A caller that comes while the value is computed waits for it, and computes it
        again only if something has changed since that computation began. So there is one computation at a time, however
        much changes and however many ask."""
        return self._at_most(2 * self._seconds, key, make)

    def renew(self, key: Hashable, make: Callable[[], T]) -> None:
        """Compute the value again for later callers, unless that was done less than `seconds` ago."""
        made = self._entry(key).made
        if made is None or self._now() - made.ended >= self._seconds:
            self._at_most(self._seconds, key, make)

    def _at_most(self, old_s: float, key: Hashable, make: Callable[[], T]) -> T:
        """The value of `key`, computed again if it is older than `old_s` or something has changed since."""
        seen, entry = self._changes(), self._entry(key)

        def good() -> _Made[T] | None:
            made = entry.made
            return made if made and made.change >= seen and self._now() - made.at < old_s else None

        if (made := good()) is None:
            with entry.lock:
                if (made := good()) is None:
                    at, change = self._now(), self._changes()
                    value = make()
                    made = entry.made = _Made(at, self._now(), change, value)
        return made.value

    def _entry(self, key: Hashable) -> _Entry[T]:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                self._forget()
                entry = self._entries[key] = _Entry()
            return entry

    def _forget(self) -> None:
        """Forget the values that are too old to be given to anybody."""
        old = self._now() - 2 * self._seconds
        for key in [key for key, entry in self._entries.items() if entry.made and entry.made.at < old]:
            del self._entries[key]
