"""known_hosts lines, and what OpenSSH makes of them."""

from __future__ import annotations

import base64
import hashlib
import hmac
from pathlib import Path

import pytest

from runbook.transport.ssh_keys import KnownHosts

KEY = b"\x00\x00\x00\x0bssh-ed25519" + bytes(36)
OTHER = b"\x00\x00\x00\x0bssh-ed25519" + bytes(35) + b"\x01"


def line(hosts: str, key: bytes = KEY, marker: str = "") -> str:
    return f"{marker}{hosts} ssh-ed25519 {base64.b64encode(key).decode()} somebody@somewhere\n"


def hashed(host: str) -> str:
    salt = b"01234567890123456789"
    digest = hmac.new(salt, host.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


@pytest.mark.parametrize(
    ("hosts", "known"),
    [
        ("10.0.0.2", True),
        ("node-b,10.0.0.2", True),
        ("10.0.*", True),
        ("10.0.0.?", True),
        ("10.0.*,!10.0.0.2", False),
        ("!10.0.0.3,10.0.*", True),
        ("*.cluster", False),
        ("[10.0.0.2]:22", False),
        (hashed("10.0.0.2"), True),
        (hashed("10.0.0.3"), False),
        ("|1|no|base64", False),
    ],
)
def test_whom_a_line_is_for(hosts: str, known: bool, tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(line(hosts))
    assert bool(KnownHosts([str(file)]).of("10.0.0.2").keys) is known


def test_lines_that_say_nothing_are_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text("# a comment\n\njunk\nhost ssh-ed25519 not!base64\n" + line("host"))
    (entry,) = KnownHosts([str(tmp_path / "none"), str(file)]).of("host").keys
    assert (entry.place, entry.key) == (f"{file}:5", KEY)
    assert entry.fingerprint == "SHA256:" + base64.b64encode(hashlib.sha256(KEY).digest()).decode().rstrip("=")


def test_markers(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(line("host") + line("*", OTHER, "@revoked ") + line("*", KEY, "@cert-authority "))
    known = KnownHosts([str(file)]).of("host")
    assert [entry.key for entry in known.keys] == [KEY]
    assert known.revokes(KEY) is None
    assert known.revokes(OTHER) is not None
    assert [entry.place for entry in known.authorities] == [f"{file}:3"]


def test_without_a_line_for_the_port_the_one_without_it_counts(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(line("host", OTHER))
    known = KnownHosts([str(file)]).of("[host]:2222", "host")
    assert (known.has(OTHER), known.has(KEY), known.keys) == (True, False, ())
    file.write_text(line("host", OTHER) + line("[host]:2222", KEY))
    assert [entry.key for entry in KnownHosts([str(file)]).of("[host]:2222", "host").keys] == [KEY]


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    known = KnownHosts([str(tmp_path)]).of("host")
    assert known.keys == ()
    assert str(tmp_path) in known.unread[0]
