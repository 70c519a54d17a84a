"""How often somebody may try: a bucket of attempts for each, filled again with time."""

from __future__ import annotations

import time
from collections import OrderedDict

MOST_KNOWN = 10_000


class TokenBucket:
    """`burst` attempts at once, and then one every `every_s` seconds. Belongs to one event loop."""

    def __init__(self, burst: int, every_s: float) -> None:
        self._burst = burst
        self._every_s = every_s
        self._full_at: OrderedDict[str, float] = OrderedDict()

    def wait_s(self, who: str) -> float:
        """Count an attempt: 0 where it may be made, else the seconds until one may be (and it is not counted)."""
        now = time.monotonic()
        full_at = max(now, self._full_at.pop(who, now)) + self._every_s
        wait = full_at - now - self._burst * self._every_s
        self._full_at[who] = full_at if wait <= 0 else full_at - self._every_s
        while len(self._full_at) > MOST_KNOWN:
            self._full_at.popitem(last=False)
        return max(0.0, wait)
