"""Who changed what, from where, and what came of it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from runbook.serve.store import Store

KEPT = 100_000
"""Rows; the oldest go first."""
SHOWN = 200


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """`at`: seconds since 1970. `status`: what the client was answered."""

    id: int
    at: float
    person: str
    address: str
    what: str
    path: str
    status: int


class Audit:
    def __init__(self, store: Store) -> None:
        self._store = store

    def note(self, person: str, address: str, what: str, path: str, status: int = 200) -> None:
        """`what` in a few words, `status` as the client was answered."""
        with self._store.write() as db:
            row = (time.time(), person, address, what, path[:SHOWN], status)
            done = db.execute(
                "INSERT INTO audit (at, person, address, what, path, status) VALUES (?, ?, ?, ?, ?, ?)", row
            )
            db.execute("DELETE FROM audit WHERE id <= ?", ((done.lastrowid or 0) - KEPT,))

    def newest(self, count: int, before: int | None = None) -> list[AuditEntry]:
        """At most `count` entries, the newest first; only those older than the one with the id `before`."""
        sql = "SELECT id, at, person, address, what, path, status FROM audit WHERE id < ? ORDER BY id DESC LIMIT ?"
        return [AuditEntry(*row) for row in self._store.read(sql, before or 2**62, count)]
