"""SSH nodes, by Fabric: what `ssh` itself would do with the same names and files, and every wait with a deadline.

Facts this stands on, measured on Fabric 3.2 and paramiko 5: a Fabric connection accepts unknown and even changed host
keys unless known_hosts is loaded *and* a policy set; `run(timeout=)` does not bound the opening of a channel; `Include`
and `ProxyJump none` of ssh_config are not understood. So the TCP connection, the policy and the channel are ours, and
`ssh -G` resolves the configuration where OpenSSH is installed.
"""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import functools
import os
import pwd
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fabric
import paramiko
from paramiko.hostkeys import HostKeys

from runbook.model.errors import Unreachable
from runbook.model.inventory import Node, Ssh
from runbook.transport.bootstrap import command

AUTH_TIMEOUT_S = 15.0
CHANNEL_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Target:
    """Where and how to log in, after the inventory, ssh_config and ssh's defaults were folded."""

    host: str
    port: int
    user: str
    keys: tuple[str, ...]
    jump: str | None
    proxy_command: str | None
    known_hosts: tuple[str, ...]
    known_as: str
    explicit_key: bool
    accept_new: bool
    timeout_s: float
    identities_only: bool = False

    @property
    def label(self) -> str:
        return f"{self.user}@{self.host}" + (f":{self.port}" if self.port != 22 else "")

    @property
    def entry(self) -> str:
        """How known_hosts spells this host."""
        return self.known_as if self.port == 22 else f"[{self.known_as}]:{self.port}"


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
                host, port = _host_port(rest)
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
        sock = _through(gateway, target, name) if gateway else _dial(target, name)
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
            raise _why(error, target, name) from error
        return connection

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


class _UnknownKey(Exception):
    def __init__(self, key: paramiko.PKey) -> None:
        self.key = key


class _Refuse(paramiko.MissingHostKeyPolicy):
    def missing_host_key(self, _client: object, _hostname: str, key: paramiko.PKey) -> None:
        raise _UnknownKey(key)


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


def resolve(host: str, ssh: Ssh) -> Target:
    """Fold the inventory's settings, ssh_config (with Include and ProxyJump) and ssh's defaults."""
    options = _ssh_g(host, ssh)

    def one(name: str) -> str | None:
        values = options.get(name)
        return None if not values or values[0] == "none" else values[0]

    home = str(Path.home())
    account_home = pwd.getpwuid(os.getuid()).pw_dir

    def path(text: str) -> str:
        text = text.replace("%d", home)
        if text.startswith("~/"):
            return home + text[1:]
        # OpenSSH takes the account's home folder, everybody else takes $HOME: follow $HOME, as paramiko does.
        if text.startswith(account_home + "/.ssh/") and home != account_home:
            return home + text[len(account_home) :]
        return text

    known = [path(word) for line in options.get("userknownhostsfile", ["~/.ssh/known_hosts"]) for word in line.split()]
    known += [
        word for line in options.get("globalknownhostsfile", ["/etc/ssh/ssh_known_hosts"]) for word in line.split()
    ]
    if ssh.key:
        keys: tuple[str, ...] = (path(ssh.key),)
    else:
        candidates = [path(name) for name in options.get("identityfile", [])]
        keys = tuple(name for name in candidates if Path(name).exists())
    real = one("hostname") or host
    return Target(
        host=real.strip("[]"),
        port=ssh.port or int(one("port") or 22),
        user=ssh.user or one("user") or pwd.getpwuid(os.getuid()).pw_name,
        keys=keys,
        jump=ssh.jump or (one("proxyjump") or "").split(",")[-1] or None,
        proxy_command=None if ssh.jump else one("proxycommand"),
        known_hosts=tuple(known),
        known_as=one("hostkeyalias") or real.strip("[]"),
        explicit_key=ssh.key is not None,
        accept_new=ssh.host_keys == "accept-new",
        timeout_s=ssh.connect_timeout_s,
        identities_only=one("identitiesonly") == "yes",
    )


DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")


def _ssh_g(host: str, ssh: Ssh) -> dict[str, list[str]]:
    """What `ssh -G` says of this host; where the configuration is simple, or without OpenSSH, what paramiko reads."""
    user_config = Path.home() / ".ssh" / "config"
    defaults = {"identityfile": [f"~/.ssh/{name}" for name in DEFAULT_KEYS]}
    program = shutil.which("ssh") if _wants_openssh(user_config) else None
    if program:
        command = [program, "-G"]
        if str(Path.home()) != pwd.getpwuid(os.getuid()).pw_dir and user_config.exists():
            command += ["-F", str(user_config)]
        if ssh.user:
            command += ["-l", ssh.user]
        if ssh.port:
            command += ["-p", str(ssh.port)]
        try:
            done = subprocess.run([*command, "--", host], capture_output=True, text=True, timeout=5, check=False)
        except (OSError, subprocess.TimeoutExpired):
            done = None
        if done is not None:
            if done.returncode != 0:
                raise Unreachable(
                    "ssh-handshake-failed",
                    f"ssh refuses its own configuration for {host}: {done.stderr.strip()}",
                    f"mend ~/.ssh/config until `ssh -G {host}` succeeds",
                )
            options: dict[str, list[str]] = {}
            for line in done.stdout.splitlines():
                name, _, value = line.partition(" ")
                options.setdefault(name, []).append(value)
            return options
    if not user_config.exists():
        return defaults
    found: dict[str, Any] = dict(_parsed(user_config, user_config.stat().st_mtime_ns).lookup(host))
    return defaults | {
        name: list(value) if isinstance(value, (list, tuple)) else [str(value)] for name, value in found.items()
    }


SIMPLE = frozenset(
    ["host", "hostname", "user", "port", "identityfile", "identitiesonly", "userknownhostsfile", "globalknownhostsfile", "hostkeyalias", "stricthostkeychecking", "connecttimeout", "serveraliveinterval", "serveralivecountmax", "loglevel", "batchmode", "compression", "forwardagent", "addkeystoagent", "tcpkeepalive", "sendenv", "hashknownhosts", "gssapiauthentication", "passwordauthentication", "controlmaster", "controlpath", "controlpersist"]
)
"""Keywords that paramiko reads as OpenSSH does, or that do not matter to us. Any other has `ssh -G` decide, which
costs a process a node."""


def _wants_openssh(user_config: Path) -> bool:
    system = Path("/etc/ssh/ssh_config")
    if any(Path("/etc/ssh/ssh_config.d").glob("*.conf")):
        return True
    # What the system's file says is not read by paramiko at all; `Include` of an empty folder is all Debian puts there.
    beyond = _keywords(system) - {"host", "include", "sendenv", "hashknownhosts", "gssapiauthentication"}
    return bool(beyond) or not _keywords(user_config) <= SIMPLE


def _keywords(config: Path) -> set[str]:
    try:
        lines = [line.strip() for line in config.read_text(errors="replace").splitlines()]
    except OSError:
        return set()
    return {re.split(r"[\s=]", line, maxsplit=1)[0].lower() for line in lines if line and not line.startswith("#")}


@functools.lru_cache(maxsize=4)
def _parsed(user_config: Path, _changed: int) -> paramiko.SSHConfig:
    config = paramiko.SSHConfig()
    with user_config.open() as file:
        config.parse(file)
    return config


def _host_port(text: str) -> tuple[str, int | None]:
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        return host, int(rest[1:]) if rest.startswith(":") else None
    if text.count(":") == 1:
        host, _, port = text.partition(":")
        return host, int(port)
    return text, None


def _dial(target: Target, name: str) -> socket.socket:
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


def _through(gateway: fabric.Connection, target: Target, name: str) -> socket.socket:
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


def _why(error: Exception, target: Target, name: str) -> Unreachable:
    """Which cause an exception of paramiko, Fabric or the socket stands for."""
    seen = (f"{type(error).__name__}: {error}",)
    if isinstance(error, _UnknownKey):
        fingerprint = error.key.fingerprint
        return Unreachable(
            "ssh-host-key-unknown",
            f"{name}: {target.entry} shows a {error.key.get_name()} host key that no known_hosts file has",
            f"compare the fingerprint with the machine's own, then: `ssh-keyscan -p {target.port} {target.known_as} >> "
            f"{target.known_hosts[0]}`; or trust on first use with `ssh: {{host_keys: accept-new}}` in the inventory",
            (f"offered: {fingerprint}", f"looked in: {' '.join(target.known_hosts)}"),
        )
    if isinstance(error, paramiko.BadHostKeyException):
        return Unreachable(
            "ssh-host-key-changed",
            f"{name}: the host key of {target.entry} is not the one in known_hosts: a reinstalled machine, another "
            "machine at this address, or somebody in between",
            f"if the machine was reinstalled: `ssh-keygen -f {target.known_hosts[0]} -R '{target.entry}'`, then add its new key",
            (f"offered: {error.key.fingerprint}", f"expected: {error.expected_key.fingerprint}"),
        )
    text = str(error).lower()
    if isinstance(error, TimeoutError) or "timed out" in text or "timeout" in text or _silent(error):
        return Unreachable(
            "ssh-timeout",
            f"{name}: TCP {target.port} of {target.host} opens, but the SSH server says nothing within {target.timeout_s:g} s",
            f"on {name}'s console look at sshd (`systemctl status ssh`), its load, and whether another service holds port {target.port}",
            seen,
        )
    unreadable = (FileNotFoundError, PermissionError, IsADirectoryError, ValueError)
    if isinstance(error, (paramiko.AuthenticationException, *unreadable)):
        keys = ", ".join(target.keys) or "the agent's keys"
        extra = ""
        if isinstance(error, paramiko.PasswordRequiredException):
            extra = " (the key has a passphrase: load it with `ssh-add`)"
        elif isinstance(error, OSError):
            extra = f" (cannot read {error.filename})"
        return Unreachable(
            "ssh-auth-failed",
            f"{name}: {target.label} does not accept our key{extra}; tried {keys}",
            f"check user and key (`ssh: {{user: …, key: …}}`), then install the key: `ssh-copy-id -p {target.port} "
            f"{target.user}@{target.known_as}`",
            seen,
        )
    if isinstance(error, paramiko.SSHException) and "No authentication methods" in str(error):
        return Unreachable(
            "ssh-auth-failed",
            f"{name}: there is no key to offer to {target.label}: no agent, and none of ssh's default keys exists",
            "name one with `ssh: {key: ~/.ssh/…}`, or start an agent and `ssh-add`",
            seen,
        )
    return Unreachable(
        "ssh-handshake-failed",
        f"{name}: {target.host} port {target.port} answers, but the SSH handshake fails: {str(error) or type(error).__name__}",
        f"look at sshd's log on {name} (`journalctl -u ssh`): MaxStartups, fail2ban, or no algorithm in common",
        seen,
    )


def _silent(error: Exception) -> bool:
    """paramiko wraps a banner that never came; EOF and resets are not silence."""
    return isinstance(error, paramiko.SSHException) and isinstance(error.__context__, TimeoutError)
