"""The server's database: SQLite in one file, read and written by short statements from any thread.

Other processes (`runbook serve user add`) open the same file. A transaction blocks every other writer, so nothing slow
may happen inside of one.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

from runbook.model.errors import FilesWrong

SqlValue = str | int | float | bytes | None

BUSY_TIMEOUT_S = 10.0
"""How long a statement waits for another process's transaction."""


class Store:
    """The database in the file `path`, which is made if it is missing, readable by us alone. It has to be closed.
    Raises FilesWrong for a database of a newer runbook."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600))
        self._write_lock = threading.RLock()
        self._read_lock = threading.Lock()
        self._writer = self._connect()
        self._reader = self._connect()
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            self._migrate()
            self._reader.execute("PRAGMA query_only = 1")
            undo.pop_all()

    def read(self, sql: str, *args: SqlValue) -> list[sqlite3.Row]:
        """All rows that a SELECT gives."""
        with self._read_lock:
            return self._reader.execute(sql, args).fetchall()

    @contextlib.contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """A context that is one transaction: committed when the block ends, undone when it raises. Keep it short."""
        with self._write_lock:
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
            except BaseException:
                self._writer.execute("ROLLBACK")
                raise
            self._writer.execute("COMMIT")

    def close(self) -> None:
        with self._write_lock, self._read_lock:
            self._reader.close()
            self._writer.close()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        connection.row_factory = sqlite3.Row
        for pragma in ("journal_mode = WAL", "synchronous = NORMAL", "foreign_keys = 1", "trusted_schema = 0"):
            connection.execute(f"PRAGMA {pragma}")
        return connection

    def _migrate(self) -> None:
        """Run the SQL files that this database has not seen. The number of a new file has to be higher than those of
        all released ones."""
        files = sql_files()
        with self.write() as db:
            (has,) = db.execute("PRAGMA user_version").fetchone()
            newest = max(files)
            if has > newest:
                message = f"{self.path} was written by a newer runbook (its version is {has}, ours {newest})"
                raise FilesWrong.of("serve.newer-database", message, help="update runbook, or name another --data")
            for number in sorted(files):
                if number > has:
                    for statement in _sql_statements(files[number]):
                        db.execute(statement)
            db.execute(f"PRAGMA user_version = {newest}")


def sql_files() -> dict[int, str]:
    """The text of every `sql/NNN_name.sql`, by its number."""
    folder = resources.files("runbook.serve") / "sql"
    files = [file for file in folder.iterdir() if file.name.endswith(".sql")]
    return {int(file.name.partition("_")[0]): file.read_text(encoding="utf-8") for file in files}


def _sql_statements(text: str) -> Iterator[str]:
    """The statements of a file one by one: `executescript` would end the transaction that they are in."""
    whole = ""
    for line in text.splitlines(keepends=True):
        whole += line
        if sqlite3.complete_statement(whole):
            yield whole
            whole = ""
    if whole.strip():
        raise ValueError(f"a statement has no end: {whole.strip()[:80]}")
