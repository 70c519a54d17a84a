"""The failure of a login: which cause an exception means, together with what the server had sent by then."""

from __future__ import annotations

import re
from collections.abc import Sequence

import paramiko

from runbook.causes.catalogue import unreachable_for
from runbook.model.command_quoting import shell_word
from runbook.model.errors import Unreachable
from runbook.transport.ssh_config import LoginTarget
from runbook.transport.ssh_dial import Wire
from runbook.transport.ssh_keys import KeyFile, Known, KnownHost


class TurnedAway(Unreachable):
    """The server hung up before its banner. A login may succeed a moment later, so it is tried again."""


# The evidence for a key that is refused: why sshd may refuse a key that is in authorized_keys.
REFUSED_KEY_HINT = (
    "next: if the key is in its ~/.ssh/authorized_keys already, `sudo journalctl -u ssh -u sshd -n 20` on {name} says "
    "why it is refused: account locked or expired, AllowUsers or AllowGroups, no such shell, a home that others may "
    "write to, a `from=` before the key, or PubkeyAcceptedAlgorithms"
)

_TIMED_OUT = re.compile("timed out|timeout", re.IGNORECASE)
TURNED_AWAY_TEXTS = ("MaxStartups", "Not allowed at this time")
"""What OpenSSH says in place of its banner when it turns a client away: the first since 8.5, the second since 9.8 with
PerSourcePenalties. Older versions say nothing."""


def ssh_login_failure(
    error: Exception,
    target: LoginTarget,
    name: str,
    wire: Wire,
    transport: paramiko.Transport | None = None,
    keys: Sequence[KeyFile] = (),
) -> Unreachable:
    """The failure that an exception of paramiko, Fabric or the socket means.

    `wire` is the connection that the exception came from; `keys` are the key files of the login, usable or not.
    """
    said = getattr(transport, "farewell", "")
    seen = (f"{type(error).__name__}: {error}", *([f"the server hung up: {said}"] if said else []))
    if "Too many authentication failures" in said:
        return _too_many_keys_failure(target, name, keys, seen)
    if isinstance(error, paramiko.AuthenticationException) and "timeout" not in str(error).lower():
        return _refused_login_failure(error, target, name, keys, seen)
    if isinstance(error, paramiko.SSHException) and "No authentication methods" in str(error):
        return _no_key_to_offer_failure(target, name, keys, seen)
    if isinstance(error, paramiko.ssh_exception.IncompatiblePeer) and wire.offers():
        return _no_common_algorithm_failure(error, target, name, wire, transport)
    return _pre_login_failure(error, target, name, wire, seen)


def _pre_login_failure(
    error: Exception, target: LoginTarget, name: str, wire: Wire, seen: tuple[str, ...]
) -> Unreachable:
    """The failure of a connection on which no login began: its ProxyCommand gives no connection, or the server hangs
    up, is silent, is not an SSH server, or fails the handshake."""
    if target.proxy_command and not wire.heard:
        complaint = wire.complaint()
        return unreachable_for(
            "ssh-jump-failed",
            f"{name}: the ProxyCommand of ~/.ssh/config gives no connection: `{target.proxy_command}`"
            + (f" says: {complaint}" if complaint else ""),
            seen,
            way="proxy-command",
            host=target.host,
            port=target.port,
        )
    where, fails = f"{target.host} port {target.port}", str(error) or type(error).__name__
    if wire.ended and (not wire.words or any(words in wire.words for words in TURNED_AWAY_TEXTS)):
        return _turned_away_failure(target, name, wire.words, seen)
    cause, way = "ssh-handshake-failed", "closed"
    if wire.words and wire.banner is None:
        way, says = "another-service", f"{where} is not an SSH server: it says {wire.words!r}"
    elif wire.quiet_s > 0.8 * target.banner_s or isinstance(error, TimeoutError) or _TIMED_OUT.search(fails):
        cause, way = "ssh-timeout", "live"
        says = f"TCP {target.port} of {target.host} opens, but the SSH server says nothing within {target.banner_s:g} s"
        if wire.banner:
            says = f"{where} says it is {wire.banner}, and then nothing more in time"
    else:
        says = f"{where} answers, but the SSH handshake fails: {fails}"
        seen += (f"the server is {wire.banner}",) if wire.banner else ()
    return unreachable_for(cause, f"{name}: {says}", seen, way=way, name=name, port=target.port)


def unknown_host_key_failure(key: paramiko.PKey, known: Known, target: LoginTarget, name: str) -> Unreachable:
    """The failure for a host key that no known_hosts file has; `known` are the lines about that host."""
    signed = [f"{entry.place}: @cert-authority {entry.hosts}" for entry in known.authorities]
    says = f"{name}: {target.entry} shows a {key.get_name()} host key that no known_hosts file has"
    if signed:
        says += ": they trust a certificate authority for it, and runbook cannot verify host certificates"
    remedy = (
        "compare the fingerprint with the machine's own, then: "
        f"`{_learn_host_key_command(target, target.known_hosts[0])}`"
    )
    if known.unread:
        says += f", as far as they can be read: {known.unread[0]}"
        remedy = (
            "mend that file, or name another in ~/.ssh/config (`UserKnownHostsFile`); then, if the key is still "
            "unknown, compare the fingerprint with the machine's own and add it: "
            f"`{_learn_host_key_command(target, '~/.ssh/known_hosts')}`"
        )
    elif not target.accept_new:
        remedy += "; or trust on first use with `ssh: {host_keys: accept-new}` in the inventory"
    return Unreachable(
        "ssh-host-key-unknown",
        says,
        remedy,
        (f"offered: {key.fingerprint}", f"looked in: {' '.join(target.known_hosts)}", *signed, *known.unread[:8]),
    )


def unsaved_host_key_failure(key: paramiko.PKey, file: str, reason: str, target: LoginTarget, name: str) -> Unreachable:
    """The failure for a new host key that may be trusted on first use, but cannot be saved for later logins."""
    return unreachable_for(
        "ssh-host-key-unknown",
        f"{name}: {target.entry} shows a {key.get_name()} host key that is new, and it cannot be kept in "
        f"{file}: {reason}",
        (f"offered: {key.fingerprint}", f"{file}: {reason}"),
        way="not-kept",
    )


def _quoted_host_entry(entry: str) -> str:
    """A name of known_hosts in quotes for a shell, always: most shells interpret the brackets of `[host]:port`."""
    return quoted if (quoted := shell_word(entry)) != entry else f"'{entry}'"


def _learn_host_key_command(target: LoginTarget, file: str) -> str:
    """The command that writes the host's present key into a known_hosts file."""
    if target.jump or target.proxy_command:  # ssh-keyscan knows neither
        jump = f"-J {shell_word(target.jump)} " if target.jump else ""
        trust = f"-o StrictHostKeyChecking=accept-new -o UserKnownHostsFile={shell_word(file)}"
        return f"ssh {jump}-p {target.port} {trust} {shell_word(target.user)}@{shell_word(target.host)} true"
    rename = f" | sed {shell_word(f's/^[^ ]*/{target.entry}/')}" if target.aliased else ""
    return f"ssh-keyscan -p {target.port} {shell_word(target.host)}{rename} >> {shell_word(file)}"


def revoked_host_key_failure(key: paramiko.PKey, entry: KnownHost, target: LoginTarget, name: str) -> Unreachable:
    """The failure for a host key that the line `entry` of known_hosts has revoked."""
    return unreachable_for(
        "ssh-host-key-changed",
        f"{name}: {target.entry} shows a host key that {entry.place} has revoked: it must not be trusted",
        (f"offered: {key.fingerprint}", f"{entry.place}: @revoked {entry.hosts}"),
        way="revoked",
        name=name,
        learn=_learn_host_key_command(target, target.known_hosts[0]),
    )


def changed_host_key_failure(
    key: paramiko.PKey, known: Sequence[KnownHost], target: LoginTarget, name: str
) -> Unreachable:
    """The failure for a host that shows a key other than its `known` ones. A key of another type than theirs is a
    changed key as well, unlike an unknown one: else an attacker in between would only have to make a key of an unknown
    type. OpenSSH does the same."""
    shown = key.get_name()
    entry = next((one for one in known if one.kind == shown), known[0])
    file = entry.place.rpartition(":")[0]
    return unreachable_for(
        "ssh-host-key-changed",
        f"{name}: the host key of {target.entry} is not the one in known_hosts"
        + (f" ({shown}, and known is one of type {entry.kind})" if shown != entry.kind else "")
        + ": a reinstalled machine, another machine at this address, or an attacker in between",
        (f"offered: {key.fingerprint} ({shown})", f"expected: {entry.fingerprint} ({entry.kind}, {entry.place})"),
        way="live",
        name=name,
        file=shell_word(file),
        entry=_quoted_host_entry(target.entry),
        learn=_learn_host_key_command(target, file),
    )


def _turned_away_failure(target: LoginTarget, name: str, words: str, seen: tuple[str, ...]) -> TurnedAway:
    """The failure for a server that hung up before its banner; `words` are what it sent before that."""
    where = f"{target.host} port {target.port}"
    if "Not allowed at this time" in words:
        return TurnedAway(
            "ssh-handshake-failed",
            f"{name}: sshd at {where} refuses this machine for a while (PerSourcePenalties), after too many failed "
            "logins",
            f"wait a minute, or on {name}'s console: `sudo systemctl restart ssh || sudo systemctl restart sshd`; "
            "PerSourcePenaltyExemptList keeps it off",
            (f"it says: {words}",),
        )
    return TurnedAway(
        "ssh-handshake-failed",
        f"{name}: sshd at {where} hangs up before the login: too many others are logging in (MaxStartups), or "
        "a filter such as fail2ban or hosts.deny turns us away",
        f"on {name}'s console: `sudo sshd -T | grep -i maxstartups` and `sudo journalctl -u ssh -u sshd -n 20`; raise "
        "it in /etc/ssh/sshd_config (`MaxStartups 100:30:200`) and `sudo systemctl reload ssh || sudo systemctl reload "
        "sshd`; fewer logins at once: -f 4",
        (f"it says: {words}" if words else "it hangs up without a reason", *seen),
    )


def _refused_login_failure(
    error: paramiko.AuthenticationException,
    target: LoginTarget,
    name: str,
    keys: Sequence[KeyFile],
    seen: tuple[str, ...],
) -> Unreachable:
    """The failure for a login that the server refused: its account or kind of login, or all of our keys."""
    allowed = list(getattr(error, "allowed_types", []) or [])
    if allowed and "publickey" not in allowed:
        words = " or ".join(sorted(set(allowed)))
        asks = "keyboard-interactive" in allowed and "taken" in str(error)
        says = f"{target.label} takes no keys, {f'only {words}' if words else 'and nothing else either'}"
        if asks:
            says = f"{target.label} takes our key and asks for a second factor, which a run cannot type"
        way = "second-factor" if asks else "no-keys"
        return unreachable_for("ssh-auth-failed", f"{name}: {says}", seen, way=way, name=name)
    if "EOF" in str(error):
        says = f"{name}: {target.label} hangs up during our login: most likely it accepts the key and refuses the "
        says += "account, which has expired or is excluded by a PAM rule"
        return unreachable_for("ssh-auth-failed", says, seen, way="account", name=name, user=shell_word(target.user))
    offered = [key.label for key in keys if key.wrong is None]
    file = next((key.path for key in keys if key.wrong is None), "~/.ssh/id_ed25519")
    return unreachable_for(
        "ssh-auth-failed",
        f"{name}: {target.label} accepts none of our keys: {', '.join(offered) or 'the agent has them'}",
        (*seen, *_unusable_key_evidence(keys), REFUSED_KEY_HINT.format(name=name)),
        way="key-refused",
        file=shell_word(file),
        port=target.port,
        user=shell_word(target.user),
        known_as=shell_word(target.known_as),
        login=target.user,
    )


def _too_many_keys_failure(
    target: LoginTarget, name: str, keys: Sequence[KeyFile], seen: tuple[str, ...]
) -> Unreachable:
    files = [key.path for key in keys if key.wrong is None]
    return unreachable_for(
        "ssh-auth-failed",
        f"{name}: {target.label} hangs up before it tries our key: too many are offered for its MaxAuthTries "
        f"({len(files)} files{'' if target.identities_only else ', and those of the agent'})",
        (*seen, *(f"offered: {file}" for file in files[:8])),
        way="too-many-keys",
    )


def _no_key_to_offer_failure(
    target: LoginTarget, name: str, keys: Sequence[KeyFile], seen: tuple[str, ...]
) -> Unreachable:
    if wrong := [key for key in keys if key.wrong]:
        return unusable_key_failure(wrong[0], name, _unusable_key_evidence(wrong))
    return unreachable_for(
        "ssh-auth-failed",
        f"{name}: there is no key to offer to {target.label}: no agent, and none of ssh's default keys exists",
        seen,
        way="no-key",
    )


def unusable_key_failure(key: KeyFile, name: str, evidence: tuple[str, ...] = ()) -> Unreachable:
    return Unreachable(
        "ssh-auth-failed",
        f"{name}: the key {key.path} cannot be used: {key.wrong}",
        key.remedy,
        evidence or _unusable_key_evidence([key]),
    )


def _unusable_key_evidence(keys: Sequence[KeyFile]) -> tuple[str, ...]:
    """Lines of evidence: each key that cannot be used, and why."""
    return tuple(f"{key.path}: {key.wrong}" for key in keys if key.wrong)


def _no_common_algorithm_failure(
    error: Exception, target: LoginTarget, name: str, wire: Wire, transport: paramiko.Transport | None
) -> Unreachable:
    """The failure for two sides that share no algorithm of some kind: the lists of both for the first such kind."""
    theirs = wire.offers()
    own = transport.get_security_options() if transport is not None else None
    ours = (
        {}
        if own is None
        else {"KexAlgorithms": own.kex, "HostKeyAlgorithms": own.key_types, "Ciphers": own.ciphers, "MACs": own.digests}
    )
    option = next((kind for kind in theirs if kind in ours and not set(theirs[kind]) & set(ours[kind])), None)
    if option is None:
        option = "KexAlgorithms"
    have, want = ", ".join(theirs[option]), ", ".join([str(word) for word in ours.get(option, ())][:4])
    return unreachable_for(
        "ssh-handshake-failed",
        f"{name}: {target.host} port {target.port} ({wire.banner}) and this machine share no algorithm for {option}: "
        f"it offers only {have}",
        (f"it offers: {have}", f"we offer: {', '.join(str(word) for word in ours.get(option, ()))}", str(error)),
        way="algorithms",
        name=name,
        option=shell_word(option),
        want=want,
    )
