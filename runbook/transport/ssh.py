"""SSH nodes, by Fabric: does what `ssh` itself would do with the same names and files; every wait has a deadline.

Measured on Fabric 3.2 and paramiko 5: a Fabric connection accepts unknown and even changed host keys unless known_hosts
is loaded *and* a policy set; `run(timeout=)` does not bound the opening of a channel; `Include` and `ProxyJump none` of
ssh_config are not understood. So the TCP connection, the policy and the channel are our own, and `ssh -G` resolves the
configuration where OpenSSH is installed.
"""

from __future__ import annotations

import contextlib
import encodings.idna  # noqa: F401 - else the first look-up of a name imports it, which opens a file
import errno
import functools
import logging
import os
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import fabric
import paramiko

from runbook.causes.catalogue import page_texts_by_family, unreachable_for
from runbook.model.command_quoting import shell_word
from runbook.model.errors import Unreachable
from runbook.model.inventory import Node
from runbook.transport.bootstrap import bootstrap_command
from runbook.transport.ssh_config import LoginTarget, resolve_login, split_host_port
from runbook.transport.ssh_dial import FILE_SHORTAGE_ERRNOS, Transport, dial_host, dial_through_jump_host
from runbook.transport.ssh_errors import (
    TurnedAway,
    changed_host_key_failure,
    revoked_host_key_failure,
    ssh_login_failure,
    unknown_host_key_failure,
    unsaved_host_key_failure,
    unusable_key_failure,
)
from runbook.transport.ssh_keys import Keys, Known, KnownHosts

AUTH_TIMEOUT_S = 15.0
CHANNEL_TIMEOUT_S = 10.0
MSG_CHANNEL_REQUEST = b"\x62"  # RFC 4254, section 6.9: signals
WAKE_INTERVAL_S = 2.0
"""How often a thread that waits for a node wakes up by itself, in seconds, in case it was not woken. (paramiko's own
0.1 s suits a login; over a thousand nodes and an hour it would take most of a core.)"""

LOGIN_RETRY_TIMEOUT_S = 4.0
"""How long a login is tried again after the server hung up before its first line: our own other logins, which may fill
the server's queue (MaxStartups), are done in a second or two."""

MAX_JUMP_FAILURE_AGE_S = 10.0
"""How long the failed login to a jump host counts for all nodes behind it, which come one after the other. After that,
as for another attempt of a job, the login is tried anew."""

HUNG_UP_TEXT = "it closed the connection"
"""The words for an error that has none, such as EOFError."""


# paramiko reports errors as exceptions; its log would print tracebacks on the user's terminal.
logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False

# The texts of findings come from files. They are read now, while files can be opened: later a login may hit the limit.
page_texts_by_family()


class Logins:
    """Opens connections for one run: known_hosts is read once, and all nodes behind a jump host share one login to
    it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known_hosts: dict[tuple[str, ...], KnownHosts] = {}
        self._keys = Keys()
        self._bastions: dict[str, _Bastion] = {}

    def connect(self, node: Node) -> SshStream:
        """A stream to the node's supervisor. Raises Unreachable with the cause."""
        try:
            return self._connect(node)
        except Unreachable:
            raise
        except Exception as error:  # too many open files may fail anything: configuration, accounts, sockets
            if not (getattr(error, "errno", None) in FILE_SHORTAGE_ERRNOS or _is_open_file_limit_reached()):
                raise
            raise unreachable_for(
                "open-files-limit",
                f"{node.name}: runbook cannot open more files on this machine, so it cannot connect",
                (f"{type(error).__name__}: {error}",),
                way="controller",
            ) from error

    def _connect(self, node: Node) -> SshStream:
        target = resolve_login(node.ssh.host or node.address, node.ssh)
        gateway = self._gateway(target, node) if target.jump else None
        return SshStream(self._login(target, node.name, gateway), node, target)

    def _gateway(self, target: LoginTarget, node: Node) -> fabric.Connection:
        """A connection to the last jump host before the target, by way of the jump hosts before that."""
        gateway: fabric.Connection | None = None
        way = ""
        for name, hop in self._hops(target, node):
            way = f"{way},{name}"
            with self._lock:
                bastion = self._bastions.setdefault(way, _Bastion())
            with bastion.lock:
                if not bastion.is_open():
                    if bastion.failure and time.monotonic() - bastion.failed < MAX_JUMP_FAILURE_AGE_S:
                        raise bastion.failure
                    try:
                        bastion.connection = self._login(hop, f"jump host {name}", gateway)
                    except Unreachable as error:
                        bastion.failure, bastion.failed = _jump_host_failure(name, error), time.monotonic()
                        raise bastion.failure from error
                gateway = bastion.connection
        assert gateway is not None
        return gateway

    def _hops(self, target: LoginTarget, node: Node) -> list[tuple[str, LoginTarget]]:
        """The name and login of each jump host, the nearest to this machine first. Raises Unreachable for a name that
        is malformed, and when the way leads in a circle. The first host of a ProxyJump list may have a jump host of its
        own."""
        hops: list[tuple[str, LoginTarget]] = []
        places = [(target.host, target.port)]
        left = target.jump
        while left:
            before, _, jump = left.rpartition(",")
            user, _, rest = jump.removeprefix("ssh://").strip("/").rpartition("@")
            # A jump host's user and port come from its name or ssh_config, its key and known hosts from the inventory.
            try:
                host, port = split_host_port(rest)
                hop = resolve_login(host, replace(node.ssh, user=user or None, port=port, host=None, jump=None))
            except Unreachable as error:
                raise _jump_host_failure(jump, error) from error
            except ValueError as error:
                raise unreachable_for(
                    "ssh-jump-failed", f"{node.name}: `{jump}` names no jump host", way="malformed"
                ) from error
            if (hop.host, hop.port) in places:
                raise unreachable_for(
                    "ssh-jump-failed",
                    f"{node.name}: its jump hosts form a circle: the way to {hop.host} port {hop.port} leads through "
                    "itself",
                    tuple(f"on the way: {place} port {number}" for place, number in places),
                    way="config",
                    host=host,
                )
            places.append((hop.host, hop.port))
            hops.insert(0, (jump, hop))
            left = before or hop.jump
        return hops

    def _login(self, target: LoginTarget, name: str, gateway: fabric.Connection | None) -> fabric.Connection:
        """Log in; try again for LOGIN_RETRY_TIMEOUT_S when the server hangs up before its first line. Raises
        Unreachable."""
        deadline = time.monotonic() + LOGIN_RETRY_TIMEOUT_S
        pause = 0.2
        while True:
            try:
                return self._login_once(target, name, gateway)
            except TurnedAway:
                if time.monotonic() + pause > deadline:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, 1.0)

    def _login_once(self, target: LoginTarget, name: str, gateway: fabric.Connection | None) -> fabric.Connection:
        """Log in by the keys and known hosts of the target, over a connection or a gateway. Raises Unreachable."""
        keys = [self._keys(path) for path in target.keys]
        if target.explicit_key and keys[0].wrong:
            raise unusable_key_failure(keys[0], name)
        usable = [key for key in keys if not key.wrong]
        known_hosts = self._known(target.known_hosts)
        known = known_hosts.of(*target.entries)
        wire = dial_through_jump_host(gateway, target, name) if gateway else dial_host(target, name)
        kwargs: dict[str, object] = {
            "sock": wire,
            "allow_agent": not target.explicit_key and not target.identities_only,
            "look_for_keys": False,
            "banner_timeout": target.banner_s,
            "auth_timeout": AUTH_TIMEOUT_S,
            "channel_timeout": CHANNEL_TIMEOUT_S,
            "transport_factory": functools.partial(Transport, kinds=known.kinds),
        }
        if len(usable) == 1 and usable[0].key is not None:
            kwargs["pkey"] = usable[0].key
        elif usable:
            kwargs["key_filename"] = [key.path for key in usable]
        connection = fabric.Connection(
            target.known_as,
            user=target.user,
            port=target.port,
            config=fabric.Config(lazy=True),  # not shared: a connection changes its configuration
            connect_timeout=target.banner_s,
            connect_kwargs=kwargs,
        )
        client = connection.client
        # paramiko gets no known keys, so it asks the policy about every key.
        client.set_missing_host_key_policy(_Verify(target, name, known_hosts, known))
        try:
            connection.open()
            connection.transport.set_keepalive(5)
            wire.settimeout(WAKE_INTERVAL_S)
        except Exception as error:
            plain = isinstance(error, Unreachable) or (
                isinstance(error, OSError) and error.errno in FILE_SHORTAGE_ERRNOS
            )
            found = None if plain else ssh_login_failure(error, target, name, wire, client.get_transport(), keys)
            wire.close()
            connection.close()
            if found is None:
                raise
            raise found from error
        return connection

    def _known(self, files: tuple[str, ...]) -> KnownHosts:
        """The content of these known_hosts files, read once for a run."""
        with self._lock:
            if files not in self._known_hosts:
                self._known_hosts[files] = KnownHosts(files)
            return self._known_hosts[files]


def _is_open_file_limit_reached() -> bool:
    """Whether the limit of open files is reached now."""
    try:
        with Path(os.devnull).open():
            return False
    except OSError as error:
        return error.errno in FILE_SHORTAGE_ERRNOS


def _jump_host_failure(jump: str, error: Unreachable) -> Unreachable:
    """The failure of a login to a jump host, as that of the node behind it."""
    if error.cause == "ssh-jump-failed":
        return error
    says = f"the jump host {jump} fails: {error.says} [{error.cause}]"
    return Unreachable("ssh-jump-failed", says, error.remedy, error.evidence)


@dataclass
class _Bastion:
    """The one login to a jump host, or why it failed."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    connection: fabric.Connection | None = None
    failure: Unreachable | None = None
    failed: float = 0.0  # when, on our monotonic clock

    def is_open(self) -> bool:
        """Whether its connection still stands. A lost connection, as after a restart of the jump host, is made anew for
        the next node."""
        return self.connection is not None and bool(self.connection.is_connected)


class SshStream:
    """The supervisor's stdin and stdout over one channel of one connection."""

    unanswered: ClassVar[str] = "ssh-unreachable"

    def __init__(self, connection: fabric.Connection, node: Node, target: LoginTarget) -> None:
        self.shared = bool(target.jump)
        self._connection = connection
        self._stderr = b""
        try:
            self._channel = connection.transport.open_session(timeout=CHANNEL_TIMEOUT_S)
        except (paramiko.SSHException, OSError, EOFError) as error:
            connection.close()
            raise unreachable_for(
                "ssh-handshake-failed",
                f"{node.name}: logged in as {target.label}, but the server opens no session: "
                f"{str(error) or HUNG_UP_TEXT}",
                way="no-session",
                node=node.name,
            ) from error
        try:
            self._channel.settimeout(None)
            self._channel.exec_command(bootstrap_command(node.interpreter))
        except (paramiko.SSHException, OSError, EOFError) as error:
            connection.close()
            raise unreachable_for(
                "login-shell-failed",
                f"{node.name}: logged in as {target.label}, but the server starts no shell for us: "
                f"{str(error) or HUNG_UP_TEXT}",
                way="cannot-start",
                node=node.name,
                user=target.user,
                user_typed=shell_word(target.user),
            ) from error
        self._news = threading.Event()
        self._channel.in_buffer.set_event(self._news)
        self._channel.in_stderr_buffer.set_event(self._news)

    def write(self, data: bytes) -> None:
        try:
            self._channel.sendall(data)
        except (paramiko.SSHException, EOFError) as error:  # the connection broke, or exchanges no new keys
            raise BrokenPipeError(errno.EPIPE, str(error) or HUNG_UP_TEXT) from error

    def read(self) -> bytes:
        while True:
            # stdout and stderr share one window: unread stderr would in the end stop stdout as well.
            self.complaint()
            if self._channel.recv_ready() or self._channel.eof_received or self._channel.closed:
                return bytes(self._channel.recv(1 << 18))
            self._news.wait(WAKE_INTERVAL_S)

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._channel.close()
        with contextlib.suppress(Exception):
            self._connection.close()

    def kill(self) -> None:
        with contextlib.suppress(Exception):
            order = paramiko.Message()
            order.add_byte(MSG_CHANNEL_REQUEST)
            order.add_int(self._channel.remote_chanid)
            order.add_string("signal")
            order.add_boolean(False)
            order.add_string("KILL")
            self._connection.transport._send_user_message(order)  # paramiko does not support signals

    def why(self, _says: str) -> Unreachable | None:
        return None

    def complaint(self) -> str:
        with contextlib.suppress(Exception):
            while self._channel.recv_stderr_ready():
                self._stderr = (self._stderr + self._channel.recv_stderr(1 << 16))[-8192:]
        return self._stderr.decode(errors="replace").strip()


class _Verify(paramiko.MissingHostKeyPolicy):
    """Accepts a known host key. Accepts an unknown key only with `accept-new`, and adds it to the user's own
    known_hosts file. OpenSSH does the same, except that we accept no new key while parts of known_hosts could not be
    read: they may hold another key of this host."""

    def __init__(self, target: LoginTarget, name: str, known_hosts: KnownHosts, known: Known) -> None:
        self._target = target
        self._name = name
        self._known_hosts = known_hosts
        self._known = known

    def missing_host_key(self, _client: object, _hostname: str, key: paramiko.PKey) -> None:
        shown, node = key.asbytes(), (self._target, self._name)
        if revoked := self._known.revokes(shown):
            raise revoked_host_key_failure(key, revoked, *node)
        if self._known.has(shown):
            return
        if self._known.keys:
            raise changed_host_key_failure(key, self._known.keys, *node)
        if not self._target.accept_new or self._known.unread:
            raise unknown_host_key_failure(key, self._known, *node)
        file = self._target.new_keys_file
        if file is None:
            raise unsaved_host_key_failure(key, "no known_hosts file", "ssh_config names none of the user's own", *node)
        try:
            other = self._known_hosts.learn(file, self._target.entry, key.get_name(), shown)
        except OSError as error:
            raise unsaved_host_key_failure(key, file, error.strerror or str(error), *node) from error
        if other is not None:
            raise changed_host_key_failure(key, (other,), *node)
