"""The TCP connection under a login: made by us, to distinguish errors of name, route, refusal and silence; and what the
server says on it before the login, since paramiko's exceptions do not distinguish kinds of silence."""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import fabric
import paramiko

from runbook.causes.catalogue import unreachable_for
from runbook.model.command_quoting import word
from runbook.model.errors import Unreachable
from runbook.transport.ssh_config import LoginTarget
from runbook.transport.stream import Complaints

KEPT = 8192
"""Bytes: the greeting and the first packet, in which each side lists its algorithms, take about 2 KiB."""

KEXINIT = 20  # RFC 4253, section 7.1
LISTS = ("KexAlgorithms", "HostKeyAlgorithms", "Ciphers", "Ciphers", "MACs", "MACs")
"""The lists of that packet in their order, by the names that sshd_config has for them; two occur once for each
direction."""


class Wire:
    """A socket, or a replacement for paramiko, that remembers how the other side began and whether it hung up."""

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

    def complaint(self) -> str:
        """What a program that carries the connection said last."""
        return self._link.complaint() if isinstance(self._link, ProxyCommand) else ""

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


SMALL = 1000
"""Bytes of TCP payload a packet. A path that loses full-size packets would also lose our login, and with it every
chance to say so; what we send is small, and any path carries packets of this size."""

RSA = ("rsa-sha2-512", "rsa-sha2-256", "ssh-rsa")
"""The ways in which one and the same RSA key may sign."""

TCP_THIN_LINEAR_TIMEOUTS = 16  # linux/tcp.h: lost data is sent again every 0.2 s, not after 0.2, 0.4, 0.8, … s

NO_FILES = (errno.EMFILE, errno.ENFILE)
"""Limits of this process or this machine, which say nothing about a node."""

SIOCOUTQNSD = 0x894B  # linux/sockios.h: bytes in the send queue that have not been sent


class _SmallSegments(socket.socket):
    """A TCP socket that hands the kernel one small segment at a time.

    TCP_MAXSEG alone is not enough: the kernel would pass several segments at once down to the interface (TSO), which
    a packet filter on a virtual network sees as one large packet. So a piece is only written when the one before has
    left the queue.
    """

    stalled = False

    def send(self, data: Any, flags: int = 0) -> int:
        piece = memoryview(data)[:SMALL]
        if sys.platform == "linux" and not self.stalled:
            deadline = time.monotonic() + 0.25
            while self._unsent() and not self.stalled:
                time.sleep(0.0002)
                # The path is broken then, and callers must not wait for it: TCP may send as it likes.
                self.stalled = time.monotonic() > deadline
        return super().send(piece, flags)

    def _unsent(self) -> int:
        waiting = array.array("i", [0])
        try:
            fcntl.ioctl(self.fileno(), SIOCOUTQNSD, waiting)
        except OSError:
            return 0
        return waiting[0]


def _connect(host: str, port: int, timeout_s: float) -> socket.socket:
    """As socket.create_connection, with small segments, which have to be asked for before the handshake."""
    last: OSError | None = None
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = _SmallSegments(family, kind, protocol)
        with contextlib.suppress(OSError, AttributeError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SMALL)
        if sys.platform == "linux":
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, 1)
        sock.settimeout(timeout_s)
        try:
            sock.connect(address)
        except OSError as error:
            sock.close()
            last = error
            continue
        return sock
    raise last or OSError(f"{host} has no address")


class ProxyCommand:
    """A program that reaches the server for us, as a socket. paramiko's own cannot tell that its program has ended, and
    runs it without a shell, which OpenSSH gives it: it may have quotes and `2>/dev/null`."""

    def __init__(self, command: str) -> None:
        self._last_line = ""
        self._near, far = socket.socketpair()
        self._stderr = Complaints()
        with far:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command}"],
                stdin=far.fileno(),
                stdout=far.fileno(),
                stderr=self._stderr.file,
                start_new_session=True,  # Ctrl-C is for the controller, which still says goodbye over this connection
            )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._near, name)

    def send(self, data: bytes) -> int:
        self._stderr.trim()
        return self._near.send(data)

    def complaint(self) -> str:
        """The last line that the program wrote to stderr; also after `close`, which paramiko calls before it raises."""
        if not self._stderr.closed:
            lines = self._stderr.last().splitlines()
            self._last_line = next((line.strip() for line in reversed(lines) if line.strip()), "")[:300]
        return self._last_line

    def close(self) -> None:
        self._near.close()
        if self._stderr.closed:
            return
        self._process.terminate()
        try:
            self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.complaint()
        self._stderr.close()


class Transport(paramiko.Transport):
    """paramiko's, with some things of ours: it keeps why a channel was refused and what the server said when it hung up
    (`farewell`), never asks a question in a terminal, and asks first for host keys of the `kinds` that are known, since
    a server has several and shows one."""

    farewell = ""

    def __init__(self, *args: Any, kinds: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        options = self.get_security_options()
        wanted = [name for kind in kinds for name in (RSA if kind == "ssh-rsa" else (kind,))]
        options.key_types = sorted(options.key_types, key=lambda name: name not in wanted)
        self._mine = threading.local()
        self._refusals: dict[int, tuple[int, str]] = {}

    def _next_channel(self) -> int:
        number: int = super()._next_channel()  # type: ignore[misc]  # the stubs have public names only
        self._mine.number = number
        return number

    def _parse_channel_open_failure(self, message: paramiko.Message) -> None:
        number, code, text = message.get_int(), message.get_int(), message.get_text()
        self._refusals[number] = (code, text)
        message.rewind()
        super()._parse_channel_open_failure(message)  # type: ignore[misc]

    def _parse_disconnect(self, message: paramiko.Message) -> None:
        message.get_int()
        self.farewell = message.get_text()[:200]
        message.rewind()
        super()._parse_disconnect(message)  # type: ignore[misc]

    def refusal(self) -> tuple[int, str]:
        """Why the channel that this thread asked for last was refused: the code of RFC 4254 and the server's words."""
        return self._refusals.get(getattr(self._mine, "number", -1), (0, ""))

    def auth_interactive_dumb(self, *_args: Any, **_kwargs: Any) -> list[str]:
        # paramiko would print the server's question and wait for input at the terminal.
        raise paramiko.BadAuthenticationType("the key was taken, and more is asked for", ["keyboard-interactive"])


def dial(target: LoginTarget, name: str) -> Wire:
    """A TCP connection, to distinguish errors of name, route, refusal and silence before SSH begins."""
    if target.proxy_command:
        return Wire(ProxyCommand(_filled_in(target)))
    try:
        sock = _connect(target.host, target.port, target.timeout_s)
    except OSError as error:
        if error.errno in NO_FILES:
            raise
        raise _no_way(target, name, error) from error
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Wire(sock)


def _filled_in(target: LoginTarget) -> str:
    values = {"%h": target.host, "%p": str(target.port), "%r": target.user, "%n": target.known_as, "%%": "%"}
    return re.sub(r"%.", lambda token: values.get(token[0], token[0]), target.proxy_command or "")


def _no_way(target: LoginTarget, name: str, error: OSError) -> Unreachable:
    where, text = f"{target.host} port {target.port}", error.strerror or str(error)
    seen = f"connect({where}): {errno.errorcode.get(error.errno or 0, '')} {text}"
    cause, way = "ssh-unreachable", "live"
    if isinstance(error, socket.gaierror):
        cause, seen = "ssh-name-unresolvable", f"getaddrinfo({target.host}): {text}"
        says = f"this machine cannot resolve {target.host!r}"
    elif isinstance(error, ConnectionRefusedError):
        cause, seen = "ssh-refused", f"connect({where}): {text}"
        says = f"{where} refuses the connection: the host is up, no sshd listens there"
    elif isinstance(error, TimeoutError):
        seen = f"connect({where}): no answer within {target.timeout_s:g} s"
        says = f"nothing answers at {where} within {target.timeout_s:g} s"
    elif error.errno == errno.EADDRNOTAVAIL and ":" not in target.host:
        cause, way = "ephemeral-ports-exhausted", "here"
        says = f"this machine has no local port left to dial {where} from"
    elif error.errno in (errno.EHOSTUNREACH, errno.EACCES, errno.EPERM):
        # The same error for a neighbour that does not answer, a router's message, and iptables' `icmp-host-prohibited`.
        way = "rejected"
        says = f"{where} cannot be reached: {text}: it is off, a router has no way to it, or a firewall rejects us"
    else:
        way, says = "route", f"{where} cannot be reached: {text}"
    host = word(target.host)
    return unreachable_for(cause, f"{name}: {says}", (seen,), way=way, name=name, host=host, port=target.port)


def _answers(target: LoginTarget) -> bool:
    """Whether TCP opens from here: a host that one of two machines reaches is up."""
    try:
        _connect(target.host, target.port, min(1.0, target.timeout_s)).close()
    except OSError:
        return False
    return True


PROHIBITED = 1  # RFC 4254, section 5.1


def through(gateway: fabric.Connection, target: LoginTarget, name: str) -> Wire:
    """A connection that the jump host makes for us."""
    try:
        channel = gateway.transport.open_channel(
            "direct-tcpip", (target.host, target.port), ("127.0.0.1", 0), timeout=target.timeout_s
        )
    except (paramiko.SSHException, EOFError, OSError) as error:
        raise _no_way_on(gateway, target, name, error) from error
    return Wire(channel)


def _no_way_on(gateway: fabric.Connection, target: LoginTarget, name: str, error: Exception) -> Unreachable:
    """The jump host's error decides which machine is at fault."""
    where, jump, transport = f"{target.host} port {target.port}", gateway.original_host, gateway.transport
    code, text = transport.refusal() if isinstance(transport, Transport) else (0, "")
    refused = "refused" in text.lower()
    fails = "refuses the connection" if refused else "cannot be reached"
    cause = "ssh-jump-failed"
    if not transport.is_active():
        way, says = "closed", f"the jump host {jump} hung up on us"
    elif code == PROHIBITED:
        way, says = "forbidden", f"the jump host {jump} accepted the login and forbids connections to {where}"
    elif "not known" in text or "resolution" in text or "resolve" in text:
        way, says = "name", f"the jump host {jump} cannot resolve {target.host!r}"
    elif _answers(target):
        way, says = "no-way", f"from the jump host {jump} {where} {fails}, while it answers this machine directly"
    else:
        cause, way = "ssh-refused" if refused else "ssh-unreachable", "behind-jump"
        says = f"the jump host {jump} accepted the login, but from there {where} {fails}"
        says += ": no sshd listens there" if refused else ""
    return unreachable_for(
        cause,
        f"{name}: {says}",
        (f"the jump host {jump} says: {text or error}",),
        way=way,
        jump=jump,
        host=word(target.host),
        port=target.port,
        name=name,
    )
