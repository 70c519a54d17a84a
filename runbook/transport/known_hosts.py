"""known_hosts as OpenSSH reads it (sshd(8), SSH_KNOWN_HOSTS FILE FORMAT).

paramiko's own reader stumbles over markers and over any line that is no key, knows no wildcards, and keeps one key of a
kind for a host.
"""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hashlib
import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

LINE = re.compile(
    r"(?:@(?P<marker>[\w-]+)\s+)?(?P<hosts>[^@#\s]\S*)\s+(?P<kind>[\w@.-]+)\s+(?P<key>[A-Za-z0-9+/=]+)(?:\s|$)"
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One line. `marker`: `revoked`, `cert-authority` or empty; `key` as it travels on the wire."""

    place: str
    marker: str
    hosts: str
    kind: str
    key: bytes

    @property
    def fingerprint(self) -> str:
        return "SHA256:" + base64.b64encode(hashlib.sha256(self.key).digest()).decode().rstrip("=")

    def is_for(self, host: str) -> bool:
        """Whether the line speaks of this host, as OpenSSH spells it: a hash of it, or a list of patterns."""
        if self.hosts.startswith("|"):
            return _is_hash_of(self.hosts, host)
        found = False
        for pattern in self.hosts.lower().split(","):
            plain = pattern.removeprefix("!").replace("[", "[[]")  # the brackets of `[host]:port` are no class here
            if fnmatch.fnmatchcase(host.lower(), plain):
                if pattern.startswith("!"):
                    return False
                found = True
        return found


@dataclass(frozen=True, slots=True)
class Known:
    """What the files say of one host. `unread`: files that exist and could not be read, with the reason."""

    entries: tuple[Entry, ...]
    unread: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[Entry, ...]:
        return self._marked("")

    @property
    def authorities(self) -> tuple[Entry, ...]:
        return self._marked("cert-authority")

    def revokes(self, key: bytes) -> Entry | None:
        return next((entry for entry in self._marked("revoked") if entry.key == key), None)

    def _marked(self, marker: str) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.marker == marker)


@dataclass(frozen=True, slots=True)
class KnownHosts:
    """All lines of some files, in their order."""

    entries: tuple[Entry, ...]
    unread: tuple[str, ...]

    @classmethod
    def read(cls, files: Iterable[str]) -> KnownHosts:
        entries: list[Entry] = []
        unread: list[str] = []
        for file in files:
            try:
                text = Path(file).read_text(errors="replace")
            except FileNotFoundError:
                continue
            except OSError as error:
                unread.append(f"{file}: {error.strerror}")
                continue
            entries += [
                found for number, line in enumerate(text.splitlines(), 1) if (found := _entry(line, file, number))
            ]
        return cls(tuple(entries), tuple(unread))

    def of(self, *names: str) -> Known:
        """What stands under the first of these names that has a key."""
        found: tuple[Entry, ...] = ()
        for name in names:
            found = tuple(entry for entry in self.entries if entry.is_for(name))
            if any(not entry.marker for entry in found):
                break
        return Known(found, self.unread)


def _entry(line: str, file: str, number: int) -> Entry | None:
    """A line, or None where it is a comment or says nothing that can be read: OpenSSH passes over these as well."""
    match = LINE.match(line.strip())
    if match is None:
        return None
    try:
        key = base64.b64decode(match["key"], validate=True)
    except (binascii.Error, ValueError):
        return None
    return Entry(f"{file}:{number}", match["marker"] or "", match["hosts"], match["kind"], key)


def _is_hash_of(text: str, host: str) -> bool:
    """`|1|SALT|HASH`, as HashKnownHosts writes it."""
    try:
        _, version, salt, digest = text.split("|")
        wanted = base64.b64decode(digest)
        return version == "1" and hmac.digest(base64.b64decode(salt), host.lower().encode(), "sha1") == wanted
    except (binascii.Error, ValueError):
        return False
