"""SSH nodes, by Fabric: what `ssh` itself would do with the same names and files, and every wait with a deadline.

Facts this stands on, measured on Fabric 3.2 and paramiko 5: a Fabric connection accepts unknown and even changed host
keys unless known_hosts is loaded *and* a policy set; `run(timeout=)` does not bound the opening of a channel; `Include`
and `ProxyJump none` of ssh_config are not understood. So the TCP connection, the policy and the channel are ours, and
`ssh -G` resolves the configuration where OpenSSH is installed.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import fabric
import paramiko
from paramiko.hostkeys import HostKeys

from runbook.model.errors import Unreachable
from runbook.model.inventory import Node, Ssh
from runbook.transport.bootstrap import command
from runbook.transport.ssh_config import Target, host_port, resolve
from runbook.transport.ssh_dial import dial, through
from runbook.transport.ssh_errors import UnknownKey, why

AUTH_TIMEOUT_S = 15.0
CHANNEL_TIMEOUT_S = 10.0


# What paramiko has to say arrives as exceptions; its log would come as tracebacks on the user's terminal.
logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False


class Logins:
    """Opens connections for one run: known_hosts is read once, and nodes behind one bastion share one login to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._host_keys: dict[str, HostKeys] = {}
        self._private_keys: dict[str, paramiko.PKey | None] = {}
        self._config = fabric.Config(lazy=True)
        self._bastions: dict[str, _Bastion] = {}

    def connect(self, node: Node) -> SshStream:
        """A stream to the node's supervisor. Raises Unreachable with the cause."""
        target = resolve(node.ssh.host or node.address, node.ssh)
        gateway = self._bastion(target.jump, node) if target.jump else None
        return SshStream(self._login(target, node.name, gateway), node, target)

    def _bastion(self, jump: str, node: Node) -> fabric.Connection:
        with self._lock:
            bastion = self._bastions.setdefault(jump, _Bastion())
        with bastion.lock:
            if bastion.connection is None and bastion.failure is None:
                user, _, rest = jump.rpartition("@")
                host, port = host_port(rest)
                # The bastion's own user and port come from ssh_config; the key and the trust from the inventory.
                settings = Ssh(
                    user=user or None,
                    port=port,
                    key=node.ssh.key,
                    host_keys=node.ssh.host_keys,
                    connect_timeout_s=node.ssh.connect_timeout_s,
                )
                try:
                    target = resolve(host, settings)
                    inner = self._bastion(target.jump, node) if target.jump else None
                    bastion.connection = self._login(target, f"jump host {host}", inner)
                except Unreachable as error:
                    bastion.failure = Unreachable(
                        "ssh-jump-failed",
                        f"the jump host {jump} is what fails: {error.says} [{error.cause}]",
                        error.remedy,
                        error.evidence,
                    )
            if bastion.failure:
                raise bastion.failure
            assert bastion.connection is not None
            return bastion.connection

    def _login(self, target: Target, name: str, gateway: fabric.Connection | None) -> fabric.Connection:
        """Log in, trying again for a short while when the server turns us away before saying a word (MaxStartups)."""
        deadline = time.monotonic() + target.timeout_s
        pause = 0.2
        while True:
            try:
                return self._login_once(target, name, gateway)
            except Unreachable as error:
                if error.cause != "ssh-handshake-failed" or time.monotonic() + pause > deadline:
                    raise
            time.sleep(pause)
            pause *= 2

    def _login_once(self, target: Target, name: str, gateway: fabric.Connection | None) -> fabric.Connection:
        sock = through(gateway, target, name) if gateway else dial(target, name)
        if target.explicit_key and self._private(target.keys[0]) is None:
            try:
                self._readable(target.keys[0], name)
            except Unreachable:
                sock.close()
                raise
        kwargs: dict[str, object] = {
            "sock": sock,
            "allow_agent": not target.explicit_key and not target.identities_only,
            "look_for_keys": False,
            "banner_timeout": target.timeout_s,
            "auth_timeout": AUTH_TIMEOUT_S,
            "channel_timeout": CHANNEL_TIMEOUT_S,
        }
        if len(target.keys) == 1 and (key := self._private(target.keys[0])) is not None:
            kwargs["pkey"] = key
        elif target.keys:
            kwargs["key_filename"] = list(target.keys)
        connection = fabric.Connection(
            target.known_as,
            user=target.user,
            port=target.port,
            config=self._config,
            connect_timeout=target.timeout_s,
            connect_kwargs=kwargs,
        )
        client = connection.client
        for file in target.known_hosts:
            for key_type, key in (self._known(file).lookup(target.entry) or {}).items():
                client.get_host_keys().add(target.entry, key_type, key)
        policy = _AcceptNew(target, self._lock) if target.accept_new else _Refuse()
        client.set_missing_host_key_policy(policy)
        try:
            connection.open()
            connection.transport.set_keepalive(5)
        except Exception as error:
            sock.close()
            connection.close()
            raise why(error, target, name) from error
        return connection

    def _readable(self, file: str, name: str) -> None:
        """A key that the inventory names and that cannot be used is told before it is offered."""
        why = None
        try:
            paramiko.PKey.from_path(file)
        except paramiko.PasswordRequiredException:
            return  # perhaps the agent has it: the login will tell
        except OSError as error:
            why = error.strerror
        except Exception as error:  # noqa: BLE001  a dozen kinds, all of which mean: this is no private key
            why = f"it is not a private key ({type(error).__name__})"
        if why:
            raise Unreachable(
                "ssh-auth-failed",
                f"{name}: the key {file} cannot be used: {why}",
                "name the right file in the inventory: `ssh: {key: ~/.ssh/id_ed25519}`",
                (f"{file}: {why}",),
            )

    def _private(self, file: str) -> paramiko.PKey | None:
        """A private key, read once for all nodes; None where it cannot be, and paramiko's own attempt tells why."""
        with self._lock:
            if file not in self._private_keys:
                certificate = Path(f"{file}-cert.pub")
                try:
                    key = None if certificate.exists() else paramiko.PKey.from_path(file)
                except Exception:  # noqa: BLE001  from_path raises a dozen kinds; a login with it will say which
                    key = None
                self._private_keys[file] = key
            return self._private_keys[file]

    def _known(self, file: str) -> HostKeys:
        with self._lock:
            if file not in self._host_keys:
                keys = HostKeys()
                with contextlib.suppress(OSError, paramiko.SSHException):
                    keys.load(file)
                self._host_keys[file] = keys
            return self._host_keys[file]


@dataclass
class _Bastion:
    lock: threading.Lock = field(default_factory=threading.Lock)
    connection: fabric.Connection | None = None
    failure: Unreachable | None = None


class SshStream:
    """The supervisor's stdin and stdout over one channel of one connection."""

    def __init__(self, connection: fabric.Connection, node: Node, target: Target) -> None:
        self._connection = connection
        self._stderr = b""
        try:
            self._channel = connection.transport.open_session(timeout=CHANNEL_TIMEOUT_S)
            self._channel.settimeout(None)
            self._channel.exec_command(command(node.interpreter))
        except (paramiko.SSHException, OSError, EOFError) as error:
            connection.close()
            raise Unreachable(
                "ssh-handshake-failed",
                f"{node.name}: logged in as {target.label}, but the server opens no session: {error}",
                f"look at sshd's MaxSessions and ForceCommand and at the server's log on {node.name}",
            ) from error

    def write(self, data: bytes) -> None:
        self._channel.sendall(data)

    def read(self) -> bytes:
        return bytes(self._channel.recv(1 << 18))

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._channel.close()
        with contextlib.suppress(Exception):
            self._connection.close()

    def complaint(self) -> str:
        with contextlib.suppress(Exception):
            while self._channel.recv_stderr_ready() and len(self._stderr) < 8192:
                self._stderr += self._channel.recv_stderr(4096)
        return self._stderr.decode(errors="replace").strip()


class _Refuse(paramiko.MissingHostKeyPolicy):
    def missing_host_key(self, _client: object, _hostname: str, key: paramiko.PKey) -> None:
        raise UnknownKey(key)


class _AcceptNew(paramiko.MissingHostKeyPolicy):
    """Trust on first use, written to the first known_hosts file, once."""

    def __init__(self, target: Target, lock: threading.Lock) -> None:
        self._target = target
        self._lock = lock

    def missing_host_key(self, _client: object, _hostname: str, key: paramiko.PKey) -> None:
        file = Path(self._target.known_hosts[0])
        with self._lock:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with file.open("a") as out:
                out.write(f"{self._target.entry} {key.get_name()} {key.get_base64()}\n")
