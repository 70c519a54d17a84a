"""Which cause an exception of a login stands for."""

from __future__ import annotations

import paramiko

from runbook.model.errors import Unreachable
from runbook.transport.ssh_config import Target


class UnknownKey(Exception):
    def __init__(self, key: paramiko.PKey) -> None:
        self.key = key


def why(error: Exception, target: Target, name: str) -> Unreachable:
    """Which cause an exception of paramiko, Fabric or the socket stands for."""
    seen = (f"{type(error).__name__}: {error}",)
    if isinstance(error, UnknownKey):
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
