"""What a server says before the login: which cause it stands for, and the algorithms it lists."""

from __future__ import annotations

import queue
import socket
import struct
import threading
import time

import paramiko
import pytest

from runbook.transport.ssh_dial import Wire
from runbook.transport.ssh_errors import TurnedAway, ssh_login_failure

from .test_ssh import TARGET


def lists(*names: str) -> bytes:
    return b"".join(struct.pack(">I", len(name)) + name.encode() for name in names)


def kexinit(kex: str, cipher: str = "aes256-ctr") -> bytes:
    body = bytes([20]) + bytes(16) + lists(kex, "ssh-ed25519", cipher, cipher, "hmac-sha2-256", "hmac-sha2-256")
    return struct.pack(">IB", len(body) + 1, 0) + body


class Link:
    """Gives these pieces and then the end, an error, or silence."""

    def __init__(self, *pieces: bytes | Exception) -> None:
        self.pieces = list(pieces)

    def recv(self, _size: int) -> bytes:
        if not self.pieces:
            raise TimeoutError("timed out")
        piece = self.pieces.pop(0)
        if isinstance(piece, Exception):
            raise piece
        return piece


def heard(*pieces: bytes | Exception) -> Wire:
    wire = Wire(Link(*pieces))
    try:
        while wire.recv(99):
            pass
    except OSError:
        pass
    return wire


FAILED = paramiko.SSHException("Error reading SSH protocol banner")
RESET = ConnectionResetError(104, "Connection reset by peer")


@pytest.mark.parametrize(
    ("pieces", "cause", "words"),
    [
        ((b"",), "ssh-handshake-failed", "MaxStartups"),
        ((RESET,), "ssh-handshake-failed", "MaxStartups"),
        ((b"Exceeded MaxStartups\r\n", b""), "ssh-handshake-failed", "MaxStartups"),
        ((b"Not allowed at this time\r\n", RESET), "ssh-handshake-failed", "PerSourcePenalties"),
        ((b"HTTP/1.1 400 Bad", b" Request\r\n", b""), "ssh-handshake-failed", "HTTP/1.1 400 Bad Request"),
        ((b"220 mail ESMTP\r\n",), "ssh-handshake-failed", "220 mail ESMTP"),
        ((b"\x00\x00\xff\xfe",), "ssh-handshake-failed", "not an SSH server"),
        ((b"welcome\r\nSSH-2.0-x\r\n", RESET), "ssh-handshake-failed", "handshake fails"),
    ],
)
def test_first_words(pieces: tuple[bytes | Exception, ...], cause: str, words: str) -> None:
    found = ssh_login_failure(FAILED, TARGET, "node-a", heard(*pieces))
    assert (found.cause, words in found.says) == (cause, True), found
    assert isinstance(found, TurnedAway) == (words in ("MaxStartups", "PerSourcePenalties"))


@pytest.mark.parametrize(("pieces", "words"), [((), "says nothing"), ((b"SSH-2.0-OpenSSH_9.2\r\n",), "OpenSSH_9.2")])
def test_silence(pieces: tuple[bytes, ...], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wire = heard(*pieces)
    error = paramiko.SSHException("No existing session")
    assert (
        ssh_login_failure(error, TARGET, "node-a", wire).cause == "ssh-handshake-failed"
    )  # an error at once is no silence
    monkeypatch.setattr(Wire, "quiet_s", TARGET.banner_s)
    found = ssh_login_failure(error, TARGET, "node-a", wire)
    assert (found.cause, words in found.says) == ("ssh-timeout", True)


def test_offers() -> None:
    wire = heard(b"motd\r\nSSH-2.0-OpenSSH_5.3\r\n" + kexinit("diffie-hellman-group1-sha1,ext-info-s"))
    assert wire.banner == "SSH-2.0-OpenSSH_5.3"
    assert wire.offers()["KexAlgorithms"] == ["diffie-hellman-group1-sha1"]
    assert wire.offers()["MACs"] == ["hmac-sha2-256"]
    whole = b"SSH-2.0-x\r\n" + kexinit("curve25519-sha256")
    for cut in range(len(whole)):
        heard(whole[:cut], b"").offers()  # half a packet is no crash


@pytest.mark.parametrize(
    ("packet", "option", "have"),
    [
        (kexinit("diffie-hellman-group1-sha1"), "KexAlgorithms", "diffie-hellman-group1-sha1"),
        (kexinit("ecdh-sha2-nistp256", "arcfour"), "Ciphers", "arcfour"),
    ],
)
def test_both_sides_are_told_where_nothing_is_in_common(packet: bytes, option: str, have: str) -> None:
    wire = heard(b"SSH-2.0-OpenSSH_5.3\r\n" + packet)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        transport = paramiko.Transport(ours)
        error = paramiko.ssh_exception.IncompatiblePeer("no acceptable something")
        found = ssh_login_failure(error, TARGET, "node-a", wire, transport)
    assert found.cause == "ssh-handshake-failed"
    assert f"no algorithm for {option}" in found.says
    assert have in found.says
    assert any(line.startswith("we offer: ") and len(line) > 20 for line in found.evidence)


def test_closing_wakes_whoever_waits_for_the_other_side() -> None:
    """Without that, paramiko's thread would notice only when its time to look up has come."""
    near, far = socket.socketpair()
    near.settimeout(600.0)
    wire, got = Wire(near), queue.SimpleQueue[bytes]()

    def wait() -> None:
        try:
            got.put(wire.recv(1))
        except OSError:  # it had not begun to wait
            got.put(b"")

    threading.Thread(target=wait, daemon=True).start()
    time.sleep(0.2)
    with far:
        wire.close()
        assert got.get(timeout=60) == b""
