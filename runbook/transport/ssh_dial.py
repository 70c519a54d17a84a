"""The TCP connection under a login: made by us, so that name, route, refusal and silence are told apart."""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import socket
import sys
import time
from typing import Any

import fabric
import paramiko

from runbook.model.errors import Unreachable
from runbook.transport.ssh_config import Target

SMALL = 1000
"""Bytes of TCP payload a packet. A path that loses full-size packets would also lose our login, and with it every
chance to say so; what we send is small, and any path carries packets of this size."""

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
                # The path is broken, then, and nobody may be kept waiting for it: TCP may do as it likes.
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
        sock.settimeout(timeout_s)
        try:
            sock.connect(address)
        except OSError as error:
            sock.close()
            last = error
            continue
        return sock
    raise last or OSError(f"{host} has no address")


def dial(target: Target, name: str) -> socket.socket:
    """A TCP connection, so that name, route, refusal and silence are told apart before SSH begins."""
    if target.proxy_command:
        return paramiko.ProxyCommand(  # type: ignore[return-value]
            target.proxy_command.replace("%h", target.host).replace("%p", str(target.port)).replace("%r", target.user)
        )
    where = f"{target.host} port {target.port}"
    try:
        sock = _connect(target.host, target.port, target.timeout_s)
    except socket.gaierror as error:
        raise Unreachable(
            "ssh-name-unresolvable",
            f"{name}: this machine cannot resolve {target.host!r}",
            f"put the right address into the inventory (`address:` or `ssh: {{host: …}}` of {name}), or the name into DNS or /etc/hosts here",
            (f"getaddrinfo({target.host}): {error.strerror}",),
        ) from error
    except ConnectionRefusedError as error:
        raise Unreachable(
            "ssh-refused",
            f"{name}: {where} refuses the connection: the host is up, no sshd listens there",
            f"on {name}: `sudo systemctl start ssh` (or sshd), or name its port: `ssh: {{port: …}}`",
            (f"connect({where}): {error.strerror}",),
        ) from error
    except TimeoutError as error:
        raise Unreachable(
            "ssh-unreachable",
            f"{name}: nothing answers at {where} within {target.timeout_s:g} s",
            f"check that {name} is up, that its address is right, and that no firewall drops TCP {target.port} from here",
            (f"connect({where}): no answer within {target.timeout_s:g} s",),
        ) from error
    except OSError as error:
        code = errno.errorcode.get(error.errno or 0, "")
        raise Unreachable(
            "ssh-unreachable",
            f"{name}: {where} cannot be reached: {error.strerror or error}",
            f"check the route to {target.host}: `ip route get {target.host}`, and that {name} is up",
            (f"connect({where}): {code} {error.strerror or error}",),
        ) from error
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def through(gateway: fabric.Connection, target: Target, name: str) -> socket.socket:
    try:
        channel = gateway.transport.open_channel(
            "direct-tcpip", (target.host, target.port), ("127.0.0.1", 0), timeout=target.timeout_s
        )
    except paramiko.ChannelException as error:
        refused = "refused" in str(error).lower()
        raise Unreachable(
            "ssh-refused" if refused else "ssh-unreachable",
            f"{name}: the jump host is fine, but from there {target.host} port {target.port} cannot be reached: {error}",
            f"on the jump host try `nc -zv {target.host} {target.port}`",
        ) from error
    except (paramiko.SSHException, EOFError, OSError) as error:
        raise Unreachable(
            "ssh-unreachable",
            f"{name}: no answer through the jump host from {target.host} port {target.port}: {error}",
            f"on the jump host try `nc -zv {target.host} {target.port}`",
        ) from error
    return channel  # type: ignore[no-any-return]  # a channel has a socket's methods, which is all paramiko wants
