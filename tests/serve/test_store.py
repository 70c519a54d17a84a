"""The database: whole changes or none, from several threads and processes, and never an older program's guess."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest

from runbook.model.errors import FilesWrong
from runbook.serve.store import Store, sql_files


def test_a_change_is_kept_whole_or_not_at_all(tmp_path: Path) -> None:
    store = Store(tmp_path / "serve.db")
    with store.write() as db:
        db.execute("INSERT INTO people VALUES ('eve', 'viewer', NULL, 0)")
    with pytest.raises(sqlite3.IntegrityError), store.write() as db:
        db.executemany("INSERT INTO people VALUES (?, 'viewer', NULL, 0)", [("bob",), ("eve",)])
    assert [row["name"] for row in store.read("SELECT name FROM people")] == ["eve"]
    with pytest.raises(sqlite3.OperationalError):
        store.read("DELETE FROM people RETURNING name")
    store.close()
    again = Store(tmp_path / "serve.db")
    assert [row["name"] for row in again.read("SELECT name FROM people")] == ["eve"]
    again.close()


def test_two_stores_and_many_threads_lose_nothing(tmp_path: Path) -> None:
    stores = [Store(tmp_path / "serve.db") for _ in range(2)]
    wrong: list[BaseException] = []

    def add(store: Store, who: int) -> None:
        try:
            for number in range(20):
                with store.write() as db:
                    db.execute("INSERT INTO people VALUES (?, 'viewer', NULL, 0)", (f"{who}-{number}",))
                assert store.read("SELECT 1 FROM people WHERE name = ?", f"{who}-{number}")
        except BaseException as error:  # noqa: BLE001  told below
            wrong.append(error)

    threads = [threading.Thread(target=add, args=(stores[who % 2], who)) for who in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert stores[0].read("SELECT count(*) AS n FROM people")[0]["n"] == 120
    for store in stores:
        store.close()


def test_a_database_of_a_newer_runbook_is_left_alone(tmp_path: Path) -> None:
    Store(tmp_path / "serve.db").close()
    with sqlite3.connect(tmp_path / "serve.db") as db:
        db.execute("PRAGMA user_version = 999")
    db.close()
    with pytest.raises(FilesWrong, match="newer runbook"):
        Store(tmp_path / "serve.db")


def test_files_of_sql_are_numbered_once_and_run_from_nothing(tmp_path: Path) -> None:
    numbers = [int(file.name[:3]) for file in (Path(__file__).parents[2] / "runbook/serve/sql").glob("*.sql")]
    assert sorted(numbers) == sorted(sql_files())
    store = Store(tmp_path / "serve.db")
    assert store.read("PRAGMA user_version")[0][0] == max(numbers)
    store.close()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "serve.db").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        Store(tmp_path / "serve.db")
    assert not (tmp_path / "elsewhere").exists()
