"""Who is let in, for how long, and what is kept of it."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runbook.model.errors import FilesWrong
from runbook.serve.guards import TokenBucket
from runbook.serve.people import LOGIN_LINK_LIFETIME_S, SESSION_LIFETIME_S, People, Person
from runbook.serve.store import Store

PASSWORD = "correct horse battery"
ORIGIN = "http://127.0.0.1:8400"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "serve.db")
    yield store
    store.close()


@pytest.fixture
def people(store: Store) -> People:
    people = People(store)
    people.add("root", "admin")
    return people


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds by which the clock is ahead."""
    ahead, now = [0.0], time.time
    monkeypatch.setattr(time, "time", lambda: now() + ahead[0])
    return ahead


def test_a_password_is_its_own_and_no_other(people: People) -> None:
    people.add("eve", "viewer", PASSWORD)
    assert people.by_password("eve", PASSWORD) == Person("eve", "viewer")
    for name, password in (("eve", PASSWORD + "x"), ("eve", ""), ("Eve", PASSWORD), ("nobody", PASSWORD), ("root", "")):
        assert people.by_password(name, password) is None, (name, password)
    people.change("eve", password="another password")
    assert people.by_password("eve", PASSWORD) is None
    assert people.by_password("eve", "another password") == Person("eve", "viewer")


@pytest.mark.parametrize("name", ["", "a b", "<b>", "../x", "a/b", "a" * 65, "-a", "ä", "a\n"])
def test_a_name_is_one_word(name: str, people: People) -> None:
    with pytest.raises(FilesWrong, match="name"):
        people.add(name, "viewer")


@pytest.mark.parametrize("password", ["", "123456789", "a" * 1001])
def test_a_password_is_neither_short_nor_a_load(password: str, people: People) -> None:
    with pytest.raises(FilesWrong, match="password"):
        people.add("eve", "viewer", password)
    assert [one.name for one in people.all()] == ["root"]


def test_a_link_logs_in_once_within_five_minutes(people: People, later: list[float]) -> None:
    link = people.link("root")
    assert people.by_link(link + "x") is None
    assert people.by_link(link) == Person("root", "admin")
    assert people.by_link(link) is None
    link = people.link("root")
    later[0] += LOGIN_LINK_LIFETIME_S + 1
    assert people.by_link(link) is None
    with pytest.raises(FilesWrong, match="no person"):
        people.link("nobody")


def test_a_session_is_of_one_origin_and_ends(people: People, later: list[float]) -> None:
    secret = people.begin_session(Person("root", "admin"), ORIGIN)
    person = people.by_session(secret, ORIGIN)
    assert person is not None
    assert (person.name, person.role) == ("root", "admin")
    assert people.by_session(secret, "http://127.0.0.1:8401") is None
    later[0] += SESSION_LIFETIME_S + 1
    assert people.by_session(secret, ORIGIN) is None
    later[0] = 0
    people.end_session(person.session)
    assert people.by_session(secret, ORIGIN) is None


def test_another_role_or_password_ends_the_sessions_and_the_links(people: People) -> None:
    people.add("eve", "operator", PASSWORD)
    for change in ({"role": "viewer"}, {"password": "another password"}):
        secret, link = people.begin_session(Person("eve", "operator"), ORIGIN), people.link("eve")
        people.change("eve", **change)  # type: ignore[arg-type]
        assert people.by_session(secret, ORIGIN) is None
        assert people.by_link(link) is None


def test_whoever_is_removed_has_nothing_left(people: People) -> None:
    people.add("eve", "admin", PASSWORD)
    session, link = people.begin_session(Person("eve", "admin"), ORIGIN), people.link("eve")
    _, token = people.make_token("eve", "admin", "a script")
    people.remove("eve")
    assert people.by_session(session, ORIGIN) is None
    assert people.by_link(link) is None
    assert people.by_token(token) is None
    assert people.tokens() == []
    people.add("eve", "viewer")  # somebody else of that name gets none of it
    assert people.by_token(token) is None


def test_the_last_admin_stays(people: People) -> None:
    people.add("eve", "viewer")
    with pytest.raises(FilesWrong, match="last admin"):
        people.remove("root")
    with pytest.raises(FilesWrong, match="last admin"):
        people.change("root", role="viewer")
    assert people.all() == [Person("eve", "viewer"), Person("root", "admin")]
    people.change("eve", role="admin")
    people.remove("root")


def test_a_token_allows_the_lesser_of_two_roles(people: People) -> None:
    people.add("eve", "operator")
    _, high = people.make_token("eve", "admin", "high")
    identity, low = people.make_token("eve", "viewer", "low")
    assert people.by_token(high) == Person("eve", "operator")
    assert people.by_token(low) == Person("eve", "viewer")
    people.change("eve", role="viewer")
    assert people.by_token(high) == Person("eve", "viewer")
    people.revoke_token(identity)
    assert people.by_token(low) is None


def test_nothing_in_the_database_lets_its_reader_in(people: People, store: Store, tmp_path: Path) -> None:
    people.add("eve", "viewer", PASSWORD)
    secrets = [
        people.begin_session(Person("eve", "viewer"), ORIGIN),
        people.link("eve"),
        people.make_token("eve", "viewer", "x")[1],
    ]
    store.close()
    data = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"eve" in data
    assert [secret for secret in (*secrets, PASSWORD) if secret.encode() in data] == []
    assert (tmp_path / "serve.db").stat().st_mode & 0o077 == 0
    with pytest.raises(sqlite3.ProgrammingError):
        people.all()


def test_a_rate_is_of_each_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    rate = TokenBucket(3, 10.0)
    assert [rate.wait_s("a") for _ in range(3)] == [0, 0, 0]
    assert rate.wait_s("a") == pytest.approx(10)
    assert rate.wait_s("b") == 0
    now[0] += 10
    assert rate.wait_s("a") == 0
    assert rate.wait_s("a") == pytest.approx(10)  # what was refused did not count
    now[0] += 1000
    assert [rate.wait_s("a") for _ in range(4)] == [0, 0, 0, pytest.approx(10)]
