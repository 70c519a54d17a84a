"""What a server says before the login: kept, because paramiko's exceptions do not tell one silence from another."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from typing import Any

KEPT = 8192
"""Bytes: the greeting and the first packet, in which each side lists its algorithms, take about 2 KiB."""

KEXINIT = 20  # RFC 4253, section 7.1
LISTS = ("KexAlgorithms", "HostKeyAlgorithms", "Ciphers", "Ciphers", "MACs", "MACs")
"""The lists of that packet in their order, by the names that sshd_config has for them; two are once for each way."""


class Wire:
    """A socket, or what paramiko takes for one, that remembers how the other side began and whether it hung up."""

    def __init__(self, link: Any) -> None:
        self._link = link
        self.heard = b""
        self.ended = False
        self._last = time.monotonic()

    def send(self, data: bytes) -> int:
        try:
            sent: int = self._link.send(data)
        except TimeoutError:
            raise
        except Exception:
            self.ended = True
            raise
        return sent

    def recv(self, size: int) -> bytes:
        try:
            data: bytes = self._link.recv(size)
        except TimeoutError:
            raise
        except Exception:
            self.ended = True
            raise
        self.ended = self.ended or not data
        self._last = time.monotonic()
        if len(self.heard) < KEPT:
            self.heard += data
        return data

    def close(self) -> None:
        """Also for a thread that waits in `recv`: closing alone would leave it there until its time is up."""
        with contextlib.suppress(Exception):
            self._link.shutdown(socket.SHUT_RDWR)
        self._link.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    @property
    def quiet_s(self) -> float:
        """How long nothing has come on a connection that stands; 0 on one that was closed."""
        return 0.0 if self.ended else time.monotonic() - self._last

    @property
    def banner(self) -> str | None:
        """The line in which an SSH server names itself; others may precede it."""
        return next((line for line in self._lines() if line.startswith("SSH-")), None)

    @property
    def words(self) -> str:
        """The first line that the other side said, whatever it is."""
        return next((line for line in self._lines() if line), "")[:200]

    def _lines(self) -> list[str]:
        return [line.decode(errors="replace").strip() for line in self.heard.split(b"\n")[:100]]

    def offers(self) -> dict[str, list[str]]:
        """The algorithms that the server offers, by what they are for; empty where it has not said."""
        start = self.heard.find(b"SSH-")
        packet = self.heard[self.heard.find(b"\n", start) + 1 :] if start >= 0 else b""
        if len(packet) < 22 or packet[5] != KEXINIT:
            return {}
        at = 4 + 1 + 1 + 16  # length, padding, kind, cookie
        found: dict[str, list[str]] = {}
        try:
            for name in LISTS:
                (size,) = struct.unpack_from(">I", packet, at)
                listed = packet[at + 4 : at + 4 + size].decode(errors="replace").split(",")
                # The pseudo-algorithms in it say what the server can besides (RFC 8308, Terrapin).
                found.setdefault(name, [word for word in listed if not word.startswith(("ext-info", "kex-strict"))])
                at += 4 + size
        except struct.error:
            return {}
        return found
