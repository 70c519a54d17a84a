"""People, their credentials (passwords, sessions, login links, tokens), and the audit of what they changed.

A reader of the database cannot log in: it holds passwords as scrypt, and secrets that we drew ourselves (32 random
bytes) as SHA-256. Every secret is compared by its hash."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import threading
import time
from dataclasses import dataclass

from runbook.model.errors import FilesWrong
from runbook.serve.page import ROLES, Role
from runbook.serve.store import Store

PERSON_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}\Z")
SESSION_LIFETIME_S = 7 * 24 * 3600.0
LOGIN_LINK_LIFETIME_S = 300.0
MIN_PASSWORD_CHARACTERS = 10
MAX_PASSWORD_CHARACTERS = 1000
TOKEN_PREFIX = "rbk_"
_SCRYPT_PARAMETERS = {"n": 2**15, "r": 8, "p": 1, "maxmem": 64 * 1024 * 1024, "dklen": 32}
_SCRYPT_SLOTS = threading.BoundedSemaphore(2)
"""Limits how many scrypts run at once: each takes 32 MiB and 0.1 s of a core, and many logins at once must not take the
whole machine."""


@dataclass(frozen=True, slots=True)
class Person:
    """A person, and their role in this request. `session` is the id of the browser's session, empty for a token."""

    name: str
    role: Role
    session: str = ""


@dataclass(frozen=True, slots=True)
class Token:
    """A token of a person, without its secret; `role` limits what it allows."""

    id: str
    person: str
    role: Role
    purpose: str
    created_at: float


class People:
    """The people, and their sessions, login links and tokens, in the database. May be used from any thread."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def add(self, name: str, role: Role, password: str | None = None) -> None:
        """Add a person. Raises FilesWrong if the name is taken, or if the name or the password is not valid."""
        _check_person_name(name)
        kept = None if password is None else hash_password(password)
        with self._store.write() as db:
            if db.execute("SELECT 1 FROM people WHERE name = ?", (name,)).fetchone():
                raise _serve_error("person-exists", f"there is a person `{name}` already")
            db.execute("INSERT INTO people VALUES (?, ?, ?, ?)", (name, role, kept, time.time()))

    def change(self, name: str, *, role: Role | None = None, password: str | None = None) -> None:
        """Give a person another role or password, and end the person's sessions. Raises FilesWrong; also if no admin
        would be left."""
        kept = None if password is None else hash_password(password)
        with self._store.write() as db:
            self._known(name)
            if role is not None:
                db.execute("UPDATE people SET role = ? WHERE name = ?", (role, name))
                _refuse_without_admin(db.execute("SELECT count(*) FROM people WHERE role = 'admin'").fetchone()[0])
            if kept is not None:
                db.execute("UPDATE people SET password = ? WHERE name = ?", (kept, name))
            db.execute("DELETE FROM sessions WHERE person = ?", (name,))
            db.execute("DELETE FROM login_links WHERE person = ?", (name,))

    def remove(self, name: str) -> None:
        """Remove a person with their sessions, links and tokens. Raises FilesWrong; also if no admin would be left."""
        with self._store.write() as db:
            self._known(name)
            db.execute("DELETE FROM people WHERE name = ?", (name,))
            _refuse_without_admin(db.execute("SELECT count(*) FROM people WHERE role = 'admin'").fetchone()[0])

    def all(self) -> list[Person]:
        return [Person(row["name"], row["role"]) for row in self._store.read("SELECT * FROM people ORDER BY name")]

    def by_password(self, name: str, password: str) -> Person | None:
        """The person, if name and password are right. Takes as long for a name that does not exist."""
        rows = self._store.read("SELECT role, password FROM people WHERE name = ?", name)
        kept = rows[0]["password"] if rows else None
        right = _is_correct_password(password, kept or _DUMMY_PASSWORD_HASH)
        return Person(name, rows[0]["role"]) if right and kept else None

    def link(self, name: str) -> str:
        """A secret that logs this person in once, within five minutes."""
        secret = secrets.token_urlsafe(32)
        with self._store.write() as db:
            self._known(name)
            db.execute("DELETE FROM login_links WHERE expires_at < ?", (time.time(),))
            db.execute(
                "INSERT INTO login_links VALUES (?, ?, ?)",
                (secret_hash(secret), name, time.time() + LOGIN_LINK_LIFETIME_S),
            )
        return secret

    def by_link(self, secret: str) -> Person | None:
        """The person of a login link, which is used up now; None if it was used before or is too old."""
        with self._store.write() as db:
            row = db.execute("DELETE FROM login_links WHERE hash = ? RETURNING *", (secret_hash(secret),)).fetchone()
            if row is None or row["expires_at"] < time.time():
                return None
            person = db.execute("SELECT * FROM people WHERE name = ?", (row["person"],)).fetchone()
            return Person(person["name"], person["role"])

    def begin_session(self, person: Person, origin: str) -> str:
        """The secret of a new session, for the browser's cookie."""
        secret, now = secrets.token_urlsafe(32), time.time()
        with self._store.write() as db:
            db.execute("DELETE FROM sessions WHERE expires_at < ?", (now,))
            row = (secret_hash(secret), person.name, origin, now, now + SESSION_LIFETIME_S)
            db.execute("INSERT INTO sessions VALUES (?, ?, ?, ?, ?)", row)
        return secret

    def by_session(self, secret: str, origin: str) -> Person | None:
        """The person of the session with this secret, if it was made for this origin."""
        return self.of_session(secret_hash(secret), origin)

    def of_session(self, session: str, origin: str) -> Person | None:
        """The person of the session with this id (the hash of its secret), if it was made for this origin."""
        sql = (
            "SELECT name, role, hash FROM sessions JOIN people ON name = person "
            "WHERE hash = ? AND origin = ? AND expires_at > ?"
        )
        rows = self._store.read(sql, session, origin, time.time())
        return Person(rows[0]["name"], rows[0]["role"], rows[0]["hash"]) if rows else None

    def end_session(self, session: str) -> None:
        with self._store.write() as db:
            db.execute("DELETE FROM sessions WHERE hash = ?", (session,))

    def make_token(self, name: str, role: Role, purpose: str) -> tuple[str, str]:
        """Make a token; returns its id and the token itself, which is never shown again. It allows what both `role` and
        the person's role allow. Raises FilesWrong."""
        identity, secret = secrets.token_hex(4), TOKEN_PREFIX + secrets.token_urlsafe(32)
        if not purpose.strip() or len(purpose) > 200 or not purpose.isprintable():
            raise _serve_error("token-purpose", "a token needs a word on what it is for, of at most 200 characters")
        with self._store.write() as db:
            self._known(name)
            row = (identity, secret_hash(secret), name, role, purpose.strip(), time.time())
            db.execute("INSERT INTO tokens VALUES (?, ?, ?, ?, ?, ?)", row)
        return identity, secret

    def by_token(self, secret: str) -> Person | None:
        """The person of a token, with the lower of the person's and the token's role; None for an unknown token."""
        sql = "SELECT name, people.role, tokens.role AS most FROM tokens JOIN people ON name = person WHERE hash = ?"
        rows = self._store.read(sql, secret_hash(secret))
        return Person(rows[0]["name"], min(rows[0]["role"], rows[0]["most"], key=ROLES.index)) if rows else None

    def tokens(self) -> list[Token]:
        rows = self._store.read("SELECT id, person, role, purpose, created_at FROM tokens ORDER BY created_at")
        return [Token(*row) for row in rows]

    def revoke_token(self, identity: str) -> None:
        with self._store.write() as db:
            if db.execute("DELETE FROM tokens WHERE id = ?", (identity,)).rowcount == 0:
                raise _serve_error("no-such-token", "there is no such token")

    def _known(self, name: str) -> None:
        if not self._store.read("SELECT 1 FROM people WHERE name = ?", name):
            raise _serve_error("no-such-person", f"there is no person `{name[:64]}`")


def parse_role(word: str) -> Role:
    """The role that a word means. Raises FilesWrong for any other word."""
    if word not in ROLES:
        raise _serve_error("role", f"a role is one of {', '.join(ROLES)}")
    return word


def secret_hash(secret: str) -> str:
    """The SHA-256 of a secret that we drew, in hexadecimal. The secret has 256 bits, so one fast hash is enough."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def csrf_token(session_secret: str) -> str:
    """The token in every form of this session. Another site cannot read it, and the cookie cannot be worked out from
    it."""
    return hmac.new(session_secret.encode(), b"csrf", hashlib.sha256).hexdigest()


def hash_password(password: str) -> str:
    """The salt and the scrypt of a password, as the database keeps them. Raises FilesWrong for a password that is too
    short or too long."""
    if not MIN_PASSWORD_CHARACTERS <= len(password) <= MAX_PASSWORD_CHARACTERS:
        raise _serve_error(
            "password", f"a password has {MIN_PASSWORD_CHARACTERS} to {MAX_PASSWORD_CHARACTERS} characters"
        )
    salt = secrets.token_bytes(16)
    return f"{salt.hex()}:{_scrypt_hash(password, salt).hex()}"


def _is_correct_password(password: str, kept: str) -> bool:
    """Whether a password has the kept salt and hash."""
    salt, _, wanted = kept.partition(":")
    return len(password) <= MAX_PASSWORD_CHARACTERS and hmac.compare_digest(
        _scrypt_hash(password, bytes.fromhex(salt)), bytes.fromhex(wanted)
    )


def _scrypt_hash(password: str, salt: bytes) -> bytes:
    with _SCRYPT_SLOTS:
        return hashlib.scrypt(password.encode("utf-8", "surrogatepass"), salt=salt, **_SCRYPT_PARAMETERS)


# In place of the password of a name that does not exist, so that a refusal takes as long as for one that does.
_DUMMY_PASSWORD_HASH = f"{secrets.token_hex(16)}:{secrets.token_hex(32)}"


def _check_person_name(name: str) -> None:
    if not PERSON_NAME.match(name):
        raise _serve_error(
            "person-name",
            "a person's name has letters, digits and `_.@-`, 64 at most, and begins with one of the first two",
        )


def _refuse_without_admin(admins: int) -> None:
    if admins == 0:
        raise _serve_error("last-admin", "this is the last admin: make another person one first")


def _serve_error(id: str, message: str) -> FilesWrong:
    return FilesWrong.of(f"serve.{id}", message)


MAX_AUDIT_ENTRIES = 100_000
"""How many entries of the audit are kept; the oldest are removed."""
MAX_AUDIT_PATH_CHARACTERS, MAX_AUDIT_ACTION_CHARACTERS = 200, 300


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """A change that a person made or tried. `at` is in seconds since 1970; `status` is the HTTP status of the
    answer."""

    id: int
    at: float
    person: str
    address: str
    what: str
    path: str
    status: int


class Audit:
    """The record of the changes that people made, in the database."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def note(self, person: str, address: str, what: str, path: str, status: int = 200) -> None:
        """Add an entry. `what` says in a few words what was done; `status` is the HTTP status of the answer."""
        with self._store.write() as db:
            row = (
                time.time(),
                person,
                address,
                what[:MAX_AUDIT_ACTION_CHARACTERS],
                path[:MAX_AUDIT_PATH_CHARACTERS],
                status,
            )
            done = db.execute(
                "INSERT INTO audit (at, person, address, what, path, status) VALUES (?, ?, ?, ?, ?, ?)", row
            )
            db.execute("DELETE FROM audit WHERE id <= ?", ((done.lastrowid or 0) - MAX_AUDIT_ENTRIES,))

    def newest(self, count: int, before: int | None = None) -> list[AuditEntry]:
        """At most `count` entries, the newest first; with `before`, only entries with a smaller id."""
        sql = "SELECT id, at, person, address, what, path, status FROM audit WHERE id < ? ORDER BY id DESC LIMIT ?"
        return [AuditEntry(*row) for row in self._store.read(sql, before or 2**62, count)]
