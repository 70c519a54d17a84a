"""The connection under a login. We make it ourselves to tell errors of name, route, refusal and silence apart, and keep
what the server sends on it before the login, since paramiko's exceptions do not tell kinds of silence apart."""

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
from runbook.model.command_quoting import shell_word
from runbook.model.errors import Unreachable
from runbook.transport.ssh_config import LoginTarget
from runbook.transport.stream import Complaints

MAX_GREETING_BYTES = 8192
"""Bytes from the server that are kept: its greeting and its first packet, which lists its algorithms, take about 2
KiB."""

KEXINIT = 20  # RFC 4253, section 7.1
KEXINIT_LISTS = ("KexAlgorithms", "HostKeyAlgorithms", "Ciphers", "Ciphers", "MACs", "MACs")
"""The lists in a KEXINIT packet in their order, by their names in sshd_config. Ciphers and MACs occur twice, once for
each direction."""


class Wire:
    """A socket for paramiko that remembers the first bytes that the server sent (`heard`) and whether the connection
    has ended. `link` is a socket, a ProxyCommand or a channel through a jump host."""

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
        if len(self.heard) < MAX_GREETING_BYTES:
            self.heard += data
        return data

    def close(self) -> None:
        """Close the connection, and wake a thread that waits in `recv`: closing alone would leave it there until its
        timeout."""
        with contextlib.suppress(Exception):
            self._link.shutdown(socket.SHUT_RDWR)
        self._link.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    def complaint(self) -> str:
        """The last line on stderr of a ProxyCommand; empty for other connections."""
        return self._link.complaint() if isinstance(self._link, ProxyCommand) else ""

    @property
    def quiet_s(self) -> float:
        """The seconds since the last byte on an open connection; 0 on a connection that has ended."""
        return 0.0 if self.ended else time.monotonic() - self._last

    @property
    def banner(self) -> str | None:
        """The line in which an SSH server names itself, which other lines may precede; None when none has come."""
        return next((line for line in self._lines() if line.startswith("SSH-")), None)

    @property
    def words(self) -> str:
        """The first line that is not empty of what the server sent, whatever it is; at most 200 characters."""
        return next((line for line in self._lines() if line), "")[:200]

    def _lines(self) -> list[str]:
        return [line.decode(errors="replace").strip() for line in self.heard.split(b"\n")[:100]]

    def offers(self) -> dict[str, list[str]]:
        """The algorithms that the server offers, by the names in KEXINIT_LISTS; empty when its KEXINIT packet has not
        come."""
        start = self.heard.find(b"SSH-")
        packet = self.heard[self.heard.find(b"\n", start) + 1 :] if start >= 0 else b""
        if len(packet) < 22 or packet[5] != KEXINIT:
            return {}
        at = 4 + 1 + 1 + 16  # length, padding, kind, cookie
        found: dict[str, list[str]] = {}
        try:
            for name in KEXINIT_LISTS:
                (size,) = struct.unpack_from(">I", packet, at)
                listed = packet[at + 4 : at + 4 + size].decode(errors="replace").split(",")
                # Not algorithms: names by which the server announces extensions (RFC 8308, Terrapin).
                found.setdefault(name, [word for word in listed if not word.startswith(("ext-info", "kex-strict"))])
                at += 4 + size
        except struct.error:
            return {}
        return found


SMALL_SEGMENT_BYTES = 1000
"""Bytes of TCP payload a packet. A path that loses full-size packets would lose our login as well, and nothing could be
diagnosed; any path carries packets of this size, and what we send is small."""

RSA_SIGNATURE_ALGORITHMS = ("rsa-sha2-512", "rsa-sha2-256", "ssh-rsa")
"""The signature algorithms of an RSA key: a host with an `ssh-rsa` key may offer any of them."""

TCP_THIN_LINEAR_TIMEOUTS = 16  # linux/tcp.h: lost data is sent again every 0.2 s, not after 0.2, 0.4, 0.8, … s

FILE_SHORTAGE_ERRNOS = (errno.EMFILE, errno.ENFILE)
"""The errors for too many open files, in this process or on this machine: they say nothing about a node."""

SIOCOUTQNSD = 0x894B  # linux/sockios.h: bytes in the send queue that have not been sent


class _SmallSegments(socket.socket):
    """A TCP socket that hands the kernel one small segment at a time.

    TCP_MAXSEG alone is not enough: the kernel would pass several segments at once down to the interface (TSO), and a
    packet filter on a virtual network would see one large packet. So a segment is written only when the one before it
    has left the send queue.
    """

    stalled = False

    def send(self, data: Any, flags: int = 0) -> int:
        piece = memoryview(data)[:SMALL_SEGMENT_BYTES]
        if sys.platform == "linux" and not self.stalled:
            deadline = time.monotonic() + 0.25
            while self._unsent() and not self.stalled:
                time.sleep(0.0002)
                # A queue that does not drain means a broken path. Callers must not wait for it: let TCP do as it likes.
                self.stalled = time.monotonic() > deadline
        return super().send(piece, flags)

    def _unsent(self) -> int:
        """The bytes in the send queue that were never sent; 0 when the kernel does not tell."""
        waiting = array.array("i", [0])
        try:
            fcntl.ioctl(self.fileno(), SIOCOUTQNSD, waiting)
        except OSError:
            return 0
        return waiting[0]


def _connect_tcp(host: str, port: int, timeout_s: float) -> socket.socket:
    """A connection as socket.create_connection makes it, but with small segments, which have to be set up before the
    handshake. Raises OSError."""
    last: OSError | None = None
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = _SmallSegments(family, kind, protocol)
        with contextlib.suppress(OSError, AttributeError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SMALL_SEGMENT_BYTES)
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
    """The program of a `ProxyCommand`, which connects to the server for us, in the form of a socket. paramiko's own
    class does not notice the end of the program, and starts it without a shell; OpenSSH uses a shell, so that a command
    may have quotes and `2>/dev/null`."""

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
                start_new_session=True,  # so that Ctrl-C reaches only us: we still say goodbye over this connection
            )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._near, name)

    def send(self, data: bytes) -> int:
        self._stderr.trim()
        return self._near.send(data)

    def complaint(self) -> str:
        """The last line that the program wrote to stderr; known after `close` too, which paramiko calls before it
        raises."""
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
    """paramiko's transport with three changes. It keeps why a channel was refused (`refusal`) and what the server said
    when it hung up (`farewell`). It never asks a question in the terminal. It asks for host keys of the known `kinds`
    first, since a server has several keys and shows only one."""

    farewell = ""

    def __init__(self, *args: Any, kinds: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        options = self.get_security_options()
        wanted = [name for kind in kinds for name in (RSA_SIGNATURE_ALGORITHMS if kind == "ssh-rsa" else (kind,))]
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
        """Why the last channel that this thread asked for was refused: the code of RFC 4254 and the server's words;
        (0, "") when nothing is known."""
        return self._refusals.get(getattr(self._mine, "number", -1), (0, ""))

    def auth_interactive_dumb(self, *_args: Any, **_kwargs: Any) -> list[str]:
        # paramiko would print the server's question and wait for input at the terminal.
        raise paramiko.BadAuthenticationType("the key was taken, and more is asked for", ["keyboard-interactive"])


def dial_host(target: LoginTarget, name: str) -> Wire:
    """A connection to the host, by TCP or by its ProxyCommand. Raises Unreachable, which tells errors of name, route,
    refusal and silence apart; OSError when no more files can be opened."""
    if target.proxy_command:
        return Wire(ProxyCommand(_filled_proxy_command(target)))
    try:
        sock = _connect_tcp(target.host, target.port, target.timeout_s)
    except OSError as error:
        if error.errno in FILE_SHORTAGE_ERRNOS:
            raise
        raise _connect_failure(target, name, error) from error
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Wire(sock)


def _filled_proxy_command(target: LoginTarget) -> str:
    """The ProxyCommand with its tokens (%h, %p, %r, %n, %%) filled in."""
    values = {"%h": target.host, "%p": str(target.port), "%r": target.user, "%n": target.known_as, "%%": "%"}
    return re.sub(r"%.", lambda token: values.get(token[0], token[0]), target.proxy_command or "")


def _connect_failure(target: LoginTarget, name: str, error: OSError) -> Unreachable:
    """The failure that an error of the name look-up or of `connect` means."""
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
        # EHOSTUNREACH has three reasons: no answer to ARP, a router's message, and iptables' `icmp-host-prohibited`.
        way = "rejected"
        says = f"{where} cannot be reached: {text}: it is off, a router has no way to it, or a firewall rejects us"
    else:
        way, says = "route", f"{where} cannot be reached: {text}"
    host = shell_word(target.host)
    return unreachable_for(cause, f"{name}: {says}", (seen,), way=way, name=name, host=host, port=target.port)


def _is_directly_reachable(target: LoginTarget) -> bool:
    """Whether TCP opens directly from this machine. If it does, the host is up and only the jump host's way fails."""
    try:
        _connect_tcp(target.host, target.port, min(1.0, target.timeout_s)).close()
    except OSError:
        return False
    return True


OPEN_ADMINISTRATIVELY_PROHIBITED = 1  # RFC 4254, section 5.1


def dial_through_jump_host(gateway: fabric.Connection, target: LoginTarget, name: str) -> Wire:
    """A connection to the host that the jump host (`gateway`) makes for us. Raises Unreachable."""
    try:
        channel = gateway.transport.open_channel(
            "direct-tcpip", (target.host, target.port), ("127.0.0.1", 0), timeout=target.timeout_s
        )
    except (paramiko.SSHException, EOFError, OSError) as error:
        raise _behind_jump_host_failure(gateway, target, name, error) from error
    return Wire(channel)


def _behind_jump_host_failure(
    gateway: fabric.Connection, target: LoginTarget, name: str, error: Exception
) -> Unreachable:
    """The failure of a connection behind a jump host. The jump host's error decides which machine is at fault."""
    where, jump, transport = f"{target.host} port {target.port}", gateway.original_host, gateway.transport
    code, text = transport.refusal() if isinstance(transport, Transport) else (0, "")
    refused = "refused" in text.lower()
    fails = "refuses the connection" if refused else "cannot be reached"
    cause = "ssh-jump-failed"
    if not transport.is_active():
        way, says = "closed", f"the jump host {jump} hung up on us"
    elif code == OPEN_ADMINISTRATIVELY_PROHIBITED:
        way, says = "forbidden", f"the jump host {jump} accepted the login and forbids connections to {where}"
    elif "not known" in text or "resolution" in text or "resolve" in text:
        way, says = "name", f"the jump host {jump} cannot resolve {target.host!r}"
    elif _is_directly_reachable(target):
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
        host=shell_word(target.host),
        port=target.port,
        name=name,
    )
