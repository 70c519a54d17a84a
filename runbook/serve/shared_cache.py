"""A cache for what many tabs ask for at once, which is made once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(eq=False)
class _Entry(Generic[T]):
    made: tuple[float, T] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class Recent(Generic[T]):
    """Values by a key, each kept for this many seconds after its computation began. A key has all that a value depends
    on except time. May be used from several threads."""

    def __init__(self, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._now = now
        self._entries: dict[Hashable, _Entry[T]] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """A caller that comes while it is made waits for it."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                self._forget()
                entry = self._entries[key] = _Entry()
        with entry.lock:
            now = self._now()
            if entry.made is None or now - entry.made[0] >= self._seconds:
                entry.made = (now, make())
            return entry.made[1]

    def _forget(self) -> None:
        old = self._now() - self._seconds
        for key in [key for key, entry in self._entries.items() if entry.made and entry.made[0] < old]:
            del self._entries[key]
