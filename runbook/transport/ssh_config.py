"""Where and how to log in to a host: the inventory's settings first, then ssh_config (with Include and ProxyJump), then
ssh's own defaults."""

from __future__ import annotations

import functools
import io
import os
import pwd
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paramiko

from runbook.causes.catalogue import unreachable_for
from runbook.model.command_quoting import shell_word
from runbook.model.inventory import Ssh
from runbook.model.safe_files import is_file, open_regular_file
from runbook.node.proc import account_name
from runbook.transport.local_programs import run_program


@dataclass(frozen=True)
class LoginTarget:
    """Where and how to log in to one host: what `resolve` made of the inventory, ssh_config and ssh's defaults.

    `known_as` is the host's name in known_hosts; `aliased`: HostKeyAlias gave it. `explicit_key`: the inventory names
    the key. `accept_new`: a new host key is trusted on first use."""

    host: str
    port: int
    user: str
    keys: tuple[str, ...]
    jump: str | None  # jump hosts as in ProxyJump: with commas between them, the nearest to this machine first
    proxy_command: str | None
    known_hosts: tuple[str, ...]
    known_as: str
    explicit_key: bool
    accept_new: bool
    timeout_s: float
    identities_only: bool = False
    aliased: bool = False
    new_keys_file: str | None = None  # the first of `known_hosts` that is the user's own

    @property
    def banner_s(self) -> float:
        """How long the server may take for its first line, in seconds. The kernel answers TCP, but sshd sends this
        line, and sshd may be busy, swapped out, or wait for a dead name server."""
        return 2 * self.timeout_s

    @property
    def label(self) -> str:
        return f"{self.user}@{self.host}" + (f":{self.port}" if self.port != 22 else "")

    @property
    def entry(self) -> str:
        """How known_hosts spells this host: with its port, unless HostKeyAlias gives it a name of its own."""
        return self.known_as if self.port == 22 or self.aliased else f"[{self.known_as}]:{self.port}"

    @property
    def entries(self) -> tuple[str, ...]:
        """The names under which OpenSSH looks for the host's key: `entry`, and then the name without its port."""
        return (self.entry,) if self.entry == self.known_as else (self.entry, self.known_as)


def resolve_login(host: str, ssh: Ssh) -> LoginTarget:
    """The login to `host`: the inventory's settings, ssh_config (with Include and ProxyJump) and ssh's defaults folded.
    Raises Unreachable when the configuration cannot be read or there is no user to log in as."""
    options = _resolved_ssh_options(host, ssh)

    def one(name: str) -> str | None:
        values = options.get(name)
        return None if not values or values[0] == "none" else values[0]

    home = str(_home_folder())
    account_home = str(_account_home_folder())

    def path(text: str) -> str:
        text = text.replace("%d", home)
        if text.startswith("~/"):
            return home + text[1:]
        # OpenSSH uses the account's home folder. We use $HOME, as paramiko and other programs do.
        if text.startswith(account_home + "/.ssh/") and home != account_home:
            return home + text[len(account_home) :]
        return text

    def files(name: str, default: str) -> list[str]:
        return [word for line in options.get(name, [default]) for word in line.split() if word != "none"]

    own = [path(word) for word in files("userknownhostsfile", "~/.ssh/known_hosts")]
    known = own + files("globalknownhostsfile", "/etc/ssh/ssh_known_hosts") or [f"{home}/.ssh/known_hosts"]
    if ssh.key:
        keys: tuple[str, ...] = (path(ssh.key),)
    else:
        candidates = [path(name) for name in options.get("identityfile", [])]
        keys = tuple(name for name in candidates if is_file(Path(name)))
    real = one("hostname") or host
    return LoginTarget(
        host=real.strip("[]"),
        port=ssh.port or int(one("port") or 22),
        user=ssh.user or one("user") or _account_name(),
        keys=keys,
        jump=one("proxyjump") if ssh.jump is None else ssh.jump if ssh.jump != "none" else None,
        proxy_command=None if ssh.jump else one("proxycommand"),
        known_hosts=tuple(known),
        known_as=one("hostkeyalias") or real.strip("[]"),
        explicit_key=ssh.key is not None,
        accept_new=ssh.host_keys == "accept-new",
        timeout_s=ssh.connect_timeout_s,
        identities_only=one("identitiesonly") == "yes",
        aliased=one("hostkeyalias") is not None,
        new_keys_file=own[0] if own else None,
    )


DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")
SSH_G_TIMEOUT_S = 15.0
"""How long `ssh -G` may take: it may run programs (`Match exec`) and look up names."""


def _resolved_ssh_options(host: str, ssh: Ssh) -> dict[str, list[str]]:
    """The options of ssh for this host, each with its values: from `ssh -G`, or, when the configuration is simple or
    OpenSSH is not installed, as paramiko reads them."""
    user_config = _home_folder() / ".ssh" / "config"
    defaults = {"identityfile": [f"~/.ssh/{name}" for name in DEFAULT_KEYS]}
    program = shutil.which("ssh") if _wants_openssh(user_config) else None
    if program:
        command = [program, "-G"]
        if _home_folder() != _account_home_folder() and is_file(user_config):
            command += ["-F", str(user_config)]
        if ssh.user:
            command += ["-l", ssh.user]
        if ssh.port:
            command += ["-p", str(ssh.port)]
        if (options := _options_from_ssh_g([*command, "--", host], host)) is not None:
            return options
    if not is_file(user_config):
        return defaults
    try:
        found: dict[str, Any] = dict(_parse_ssh_config(user_config, user_config.stat().st_mtime_ns).lookup(host))
    except PermissionError:
        return defaults  # ssh does not mention a configuration of this user's that it may not read, either
    except (paramiko.SSHException, OSError, ValueError) as error:
        says = f"{user_config} is no configuration of ssh: {str(error)[:200]}"
        raise unreachable_for("ssh-handshake-failed", says, way="config", host=shell_word(host)) from None
    return defaults | {
        name: list(value) if isinstance(value, (list, tuple)) else [str(value)] for name, value in found.items()
    }


def _options_from_ssh_g(command: list[str], host: str) -> dict[str, list[str]] | None:
    """The options that `ssh -G` prints; None when it cannot be started. Raises Unreachable when it fails: paramiko's
    reading of the same file might lead to another host or user."""
    try:
        done = run_program(command, SSH_G_TIMEOUT_S)
    except OSError:
        return None
    except subprocess.TimeoutExpired:
        problem = f"no answer of `ssh -G {shell_word(host)}` came within {SSH_G_TIMEOUT_S:g} s: a slow `Match exec`?"
    else:
        if done.returncode == 0:
            options: dict[str, list[str]] = {}
            for line in done.stdout.splitlines():
                name, _, value = line.partition(" ")
                options.setdefault(name, []).append(value)
            return options
        problem = f"ssh refuses its own configuration for {shell_word(host)}: {done.stderr.strip()}"
    raise unreachable_for("ssh-handshake-failed", problem, way="config", host=shell_word(host))


PARAMIKO_KEYWORDS = frozenset(
    """host hostname user port identityfile identitiesonly userknownhostsfile globalknownhostsfile hostkeyalias
    stricthostkeychecking connecttimeout serveraliveinterval serveralivecountmax loglevel batchmode compression
    forwardagent addkeystoagent tcpkeepalive sendenv hashknownhosts gssapiauthentication passwordauthentication
    controlmaster controlpath controlpersist""".split()
)
"""Keywords that paramiko reads as OpenSSH does, or that do not matter to us. With any other keyword we run `ssh -G`,
which costs a process a node."""


def _account_home_folder() -> Path:
    """The home folder of this user's account; the root folder when the user id has no account, as in a container."""
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return Path("/")


def _home_folder() -> Path:
    """The home folder by $HOME, else by the account."""
    try:
        return Path.home()
    except RuntimeError:  # neither $HOME nor an account
        return _account_home_folder()


def _account_name() -> str:
    """The name of this user's account. Raises Unreachable when the user id has none."""
    if name := account_name(os.getuid()):
        return name
    says = f"no user to log in as: the user id {os.getuid()} has no account here, and the inventory names no user"
    raise unreachable_for("ssh-auth-failed", says, way="no-user")


def _wants_openssh(user_config: Path) -> bool:
    """Whether the configuration has keywords that only `ssh -G` resolves as OpenSSH does."""
    system = Path("/etc/ssh/ssh_config")
    if any(Path("/etc/ssh/ssh_config.d").glob("*.conf")):
        return True
    # paramiko does not read the system's file; on Debian it has only an `Include` of an empty folder.
    beyond = _config_keywords(system) - {"host", "include", "sendenv", "hashknownhosts", "gssapiauthentication"}
    return bool(beyond) or not _config_keywords(user_config) <= PARAMIKO_KEYWORDS


def _config_keywords(config: Path) -> set[str]:
    """The keywords, in lower case, that a configuration file uses; empty if it cannot be read."""
    try:
        lines = [line.strip() for line in _config_text(config).splitlines()]
    except OSError:
        return set()
    return {re.split(r"[\s=]", line, maxsplit=1)[0].lower() for line in lines if line and not line.startswith("#")}


MAX_CONFIG_BYTES = 1 << 20
"""The most bytes of a configuration file that are read."""


@functools.lru_cache(maxsize=4)
def _parse_ssh_config(user_config: Path, _changed: int) -> paramiko.SSHConfig:
    """A configuration as paramiko reads it; `_changed`, the time of its last change, only makes the cache look
    again."""
    config = paramiko.SSHConfig()
    config.parse(io.StringIO(_config_text(user_config)))
    return config


def _config_text(config: Path) -> str:
    with open_regular_file(config) as file:
        return file.read(MAX_CONFIG_BYTES).decode("utf-8", "replace")


def split_host_port(text: str) -> tuple[str, int | None]:
    """The host and port in `host`, `host:port` or `[host]:port`; None for no port. Raises ValueError."""
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        return host, int(rest[1:]) if rest.startswith(":") else None
    if text.count(":") == 1:
        host, _, port = text.partition(":")
        return host, int(port)
    return text, None
