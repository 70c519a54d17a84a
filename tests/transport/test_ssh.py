"""SSH: which cause each error stands for, and what of ssh_config is honoured. Only loopback is ever dialled."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import pkgutil
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import paramiko
import pytest
from paramiko.auth_strategy import AuthFailure, AuthResult
from paramiko.ber import BERException
from paramiko.pkey import UnknownKeyType

from runbook.causes.catalogue import cause_pages as known_causes
from runbook.causes.catalogue import unreachable_for
from runbook.model.errors import Unreachable
from runbook.model.inventory import Node, Ssh
from runbook.transport import ssh, ssh_config
from runbook.transport.ssh import HUNG_UP_TEXT, Logins, SshStream
from runbook.transport.ssh_config import LoginTarget, resolve_login, split_host_port
from runbook.transport.ssh_dial import ProxyCommand, Wire
from runbook.transport.ssh_errors import ssh_login_failure, unknown_host_key_failure
from runbook.transport.ssh_keys import Known

TARGET = LoginTarget(
    host="10.0.0.1",
    port=22,
    user="ana",
    keys=("/home/ana/.ssh/id_ed25519",),
    jump=None,
    proxy_command=None,
    known_hosts=("/home/ana/.ssh/known_hosts",),
    known_as="10.0.0.1",
    explicit_key=True,
    accept_new=False,
    timeout_s=10.0,
)
KEY, OTHER = paramiko.RSAKey.generate(2048), paramiko.RSAKey.generate(2048)

EXPECTED: dict[str, tuple[BaseException, str]] = {
    "SSHException": (paramiko.SSHException("Error reading SSH protocol banner"), "ssh-handshake-failed"),
    "AuthenticationException": (paramiko.AuthenticationException("Authentication failed."), "ssh-auth-failed"),
    "PasswordRequiredException": (paramiko.PasswordRequiredException("encrypted"), "ssh-auth-failed"),
    "BadAuthenticationType": (paramiko.BadAuthenticationType("no", ["password"]), "ssh-auth-failed"),
    "PartialAuthentication": (paramiko.ssh_exception.PartialAuthentication(["password"]), "ssh-auth-failed"),
    "UnableToAuthenticate": (paramiko.ssh_exception.UnableToAuthenticate("no"), "ssh-auth-failed"),
    "ChannelException": (paramiko.ChannelException(1, "Administratively prohibited"), "ssh-handshake-failed"),
    "BadHostKeyException": (paramiko.BadHostKeyException("10.0.0.1", KEY, OTHER), "ssh-handshake-failed"),
    "IncompatiblePeer": (
        paramiko.ssh_exception.IncompatiblePeer("no acceptable kex algorithm"),
        "ssh-handshake-failed",
    ),
    "ProxyCommandFailure": (paramiko.ProxyCommandFailure("nc", "exit 1"), "ssh-handshake-failed"),
    "NoValidConnectionsError": (
        paramiko.ssh_exception.NoValidConnectionsError({("10.0.0.1", 22): OSError(111, "refused")}),
        "ssh-handshake-failed",
    ),
    "CouldNotCanonicalize": (paramiko.ssh_exception.CouldNotCanonicalize("x"), "ssh-handshake-failed"),
    "ConfigParseError": (paramiko.ConfigParseError("line 1"), "ssh-handshake-failed"),
    "MessageOrderError": (paramiko.ssh_exception.MessageOrderError("strict-kex"), "ssh-handshake-failed"),
    "AuthFailure": (AuthFailure(cast(AuthResult, "no source of a key")), "ssh-auth-failed"),
    "UnknownKeyType": (UnknownKeyType("ssh-x", b""), "ssh-handshake-failed"),
    "BERException": (BERException("broken"), "ssh-handshake-failed"),
    "InvalidHostKey": (paramiko.hostkeys.InvalidHostKey("line", ValueError("x")), "ssh-handshake-failed"),
    "NeedRekeyException": (paramiko.packet.NeedRekeyException(), "ssh-handshake-failed"),
    "PipeTimeout": (paramiko.buffered_pipe.PipeTimeout("timed out"), "ssh-timeout"),
    "SFTPError": (paramiko.SFTPError(1, "no"), "ssh-handshake-failed"),
}


def classes_of_paramiko() -> set[str]:
    """Every exception that paramiko defines, whatever its version."""
    found = set()
    for module in pkgutil.iter_modules(paramiko.__path__):
        try:
            loaded = importlib.import_module(f"paramiko.{module.name}")
        except (ImportError, AttributeError):
            continue  # made for Windows
        found |= {
            name
            for name, value in vars(loaded).items()
            if inspect.isclass(value) and issubclass(value, BaseException) and value.__module__.startswith("paramiko")
        }
    return found


def met(error: Exception) -> Unreachable:
    """What an error means on a connection where nothing was heard."""
    return ssh_login_failure(error, TARGET, "node-a", Wire(None))


def test_every_exception_of_paramiko_was_thought_of() -> None:
    assert classes_of_paramiko() - EXPECTED.keys() == set()


@pytest.mark.parametrize("name", EXPECTED)
def test_every_exception_of_paramiko_has_a_cause(name: str) -> None:
    error, cause = EXPECTED[name]
    assert isinstance(error, Exception)
    found = met(error)
    assert found.cause == cause
    assert "node-a" in found.says
    assert found.remedy
    assert found.evidence


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (paramiko.SSHException("No authentication methods available"), "ssh-auth-failed"),
        (TimeoutError("timed out"), "ssh-timeout"),
        (paramiko.SSHException("Timeout opening channel."), "ssh-timeout"),
        (EOFError(), "ssh-handshake-failed"),
        (ConnectionResetError(104, "Connection reset by peer"), "ssh-handshake-failed"),
        (OSError(5, "Input/output error"), "ssh-handshake-failed"),
        (KeyError("x"), "ssh-handshake-failed"),
    ],
)
def test_other_errors(error: Exception, cause: str) -> None:
    assert met(error).cause == cause
    assert cause in known_causes()


def test_a_login_that_takes_too_long_is_not_a_key_that_is_refused() -> None:
    assert met(paramiko.AuthenticationException("Authentication timeout.")).cause == "ssh-timeout"


def test_the_remedy_for_an_unknown_key_names_the_file_and_shows_the_fingerprint() -> None:
    found = unknown_host_key_failure(KEY, Known(()), TARGET, "node-a")
    assert found.cause == "ssh-host-key-unknown"
    assert "/home/ana/.ssh/known_hosts" in found.remedy
    assert any(KEY.fingerprint in line for line in found.evidence)


# Servers on loopback that are no SSH servers.


@contextlib.contextmanager
def server(talk: Callable[[socket.socket], None]) -> Iterator[int]:
    """Answers every connection with `talk`, until the test ends."""
    ending = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.05)

        def serve() -> None:
            while not ending.is_set():
                try:
                    sock, _ = listener.accept()
                except TimeoutError:
                    continue
                with sock, contextlib.suppress(OSError):
                    talk(sock)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield int(listener.getsockname()[1])
        finally:
            ending.set()
            thread.join()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder of this test's own, with no agent."""
    (tmp_path / ".ssh").mkdir(mode=0o700)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return tmp_path


def refusal(port: int, **options: Any) -> Unreachable:
    node = Node("node-a", "127.0.0.1", ssh=Ssh(port=port, user="ana", **{"connect_timeout_s": 10.0, **options}))
    with pytest.raises(Unreachable) as caught:
        Logins().connect(node)
    return caught.value


def test_a_port_where_nobody_listens(home: Path) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        error = refusal(sock.getsockname()[1])
    assert error.cause == "ssh-refused"


def silent(sock: socket.socket) -> None:
    """Listens until the other side has had enough."""
    sock.settimeout(30)
    while sock.recv(1000):
        pass


def test_a_server_that_says_nothing(home: Path) -> None:
    with server(silent) as port:
        assert refusal(port, connect_timeout_s=0.5).cause == "ssh-timeout"


@pytest.mark.parametrize(
    "talk",
    [
        lambda sock: None,
        lambda sock: sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        lambda sock: sock.sendall(b"SSH-2.0-x\r\n"),
    ],
)
def test_a_server_that_is_none(talk: Callable[[socket.socket], None], home: Path) -> None:
    with server(talk) as port:
        assert refusal(port).cause == "ssh-handshake-failed"


def test_a_name_that_does_not_resolve(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nobody)
    assert refusal(22).cause == "ssh-name-unresolvable"


def test_the_jump_host_is_blamed_once_for_all_behind_it(home: Path) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        jump = f"ana@127.0.0.1:{sock.getsockname()[1]}"
        logins = Logins()
        for name in ("node-a", "node-b"):
            with pytest.raises(Unreachable) as caught:
                logins.connect(Node(name, "10.0.0.1", ssh=Ssh(jump=jump, user="ana", connect_timeout_s=10)))
            assert caught.value.cause == "ssh-jump-failed"
            assert "[ssh-refused]" in caught.value.says


def test_a_jump_host_that_failed_or_was_lost_is_logged_in_to_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have been restarted meanwhile."""
    jumps: list[SimpleNamespace] = []
    clock = [100.0]

    def login(_: Logins, target: LoginTarget, name: str, gateway: object) -> SimpleNamespace:
        if name.startswith("jump host"):
            jumps.append(SimpleNamespace(is_connected=len(jumps) > 0))
        if len(jumps) < 2 or gateway:
            raise unreachable_for("ssh-refused", name, host="x", port=22, name=name)
        return jumps[-1]

    def tried() -> tuple[str, int]:
        with pytest.raises(Unreachable) as caught:
            logins.connect(Node("node-a", "10.0.0.1", ssh=Ssh(jump="ana@127.0.0.1", user="ana")))
        return caught.value.cause, len(jumps)

    monkeypatch.setattr(Logins, "_login", login)
    monkeypatch.setattr(ssh, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    logins = Logins()
    assert [tried(), tried()] == [("ssh-jump-failed", 1)] * 2
    clock[0] += 60.0
    assert [tried(), tried()] == [("ssh-refused", 2)] * 2
    jumps[-1].is_connected = False
    assert [tried(), tried()] == [("ssh-refused", 3)] * 2


# ssh_config.

needs_ssh = pytest.mark.skipif(shutil.which("ssh") is None, reason="OpenSSH resolves Include and ProxyJump none")


def config(home: Path, text: str) -> None:
    (home / ".ssh" / "config").write_text(text)


def test_without_any_configuration(home: Path) -> None:
    (home / ".ssh" / "id_ed25519").write_text("")
    target = resolve_login("10.0.0.1", Ssh(user="ana"))
    assert (target.host, target.port, target.user, target.jump) == ("10.0.0.1", 22, "ana", None)
    assert target.keys == (str(home / ".ssh" / "id_ed25519"),)
    assert target.known_hosts[0] == str(home / ".ssh" / "known_hosts")
    assert (target.entry, target.label) == ("10.0.0.1", "ana@10.0.0.1")
    assert not target.explicit_key


CONFIG = """\
Host bastion
  HostName 192.0.2.1
  User jumper
Host node-*
  User trainer
  Port 2222
  ProxyJump bastion
  IdentityFile ~/.ssh/cluster
  UserKnownHostsFile ~/.ssh/cluster_hosts
Host node-a
  HostName 10.0.0.7
  HostKeyAlias alpha
"""


def test_ssh_config_is_honoured(home: Path) -> None:
    config(home, CONFIG)
    (home / ".ssh" / "cluster").write_text("")
    target = resolve_login("node-a", Ssh())
    assert (target.host, target.port, target.user, target.jump) == ("10.0.0.7", 2222, "trainer", "bastion")
    assert target.keys == (str(home / ".ssh" / "cluster"),)
    assert target.known_hosts[0] == str(home / ".ssh" / "cluster_hosts")
    assert (target.known_as, target.entry) == ("alpha", "alpha")
    jump = resolve_login("bastion", Ssh())
    assert (jump.host, jump.port, jump.user, jump.jump) == ("192.0.2.1", 22, "jumper", None)


def test_the_inventory_wins_over_ssh_config(home: Path) -> None:
    config(home, CONFIG)
    target = resolve_login(
        "node-b", Ssh(user="ana", port=2200, key="~/.ssh/mine", jump="other", host_keys="accept-new")
    )
    assert (target.host, target.port, target.user, target.jump) == ("node-b", 2200, "ana", "other")
    assert (target.keys, target.explicit_key, target.accept_new) == ((str(home / ".ssh" / "mine"),), True, True)


@needs_ssh
def test_included_files(home: Path) -> None:
    (home / "more.conf").write_text("Host node-a\n  HostName 10.0.0.9\n  User included\n")
    config(home, f"Include {home}/more.conf\nHost *\n  User other\n  Port 2022\n")
    target = resolve_login("node-a", Ssh())
    assert (target.host, target.user, target.port) == ("10.0.0.9", "included", 2022)


@needs_ssh
def test_proxyjump_none_is_no_host_called_none(home: Path) -> None:
    config(home, "Host node-a\n  ProxyJump none\nHost *\n  ProxyJump bastion\n")
    assert resolve_login("node-a", Ssh()).jump is None
    assert resolve_login("node-b", Ssh()).jump == "bastion"


def test_a_chain_of_jumps_is_kept_whole(home: Path) -> None:
    config(home, "Host node-a\n  ProxyJump one,two\n")
    assert resolve_login("node-a", Ssh()).jump == "one,two"
    assert resolve_login("node-a", Ssh(jump="none")).jump is None


def test_a_proxy_command_and_a_jump_of_the_inventory(home: Path) -> None:
    config(home, "Host node-a\n  ProxyCommand nc -X 5 -x proxy:1080 %h %p\n")
    found = resolve_login("node-a", Ssh()).proxy_command
    assert found is not None
    assert found.startswith("nc -X 5 -x proxy:1080")
    assert resolve_login("node-a", Ssh(jump="bastion")).proxy_command is None


@needs_ssh
def test_a_broken_ssh_config_is_the_users_to_mend(home: Path) -> None:
    config(home, "Host node-a\n  Prot 22\n")
    with pytest.raises(Unreachable) as caught:
        resolve_login("node-a", Ssh())
    assert "ssh -G node-a" in caught.value.remedy
    assert "prot" in caught.value.says.lower()


@needs_ssh
def test_a_configuration_that_takes_too_long_is_not_read_another_way(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That might lead to another host, as another user."""
    monkeypatch.setattr(ssh_config, "SSH_G_TIMEOUT_S", 0.2)
    config(home, 'Match exec "sleep 30"\n  User slow\nHost *\n  User other\n')
    with pytest.raises(Unreachable) as caught:
        resolve_login("node-a", Ssh())
    assert "within 0.2 s" in caught.value.says


def test_without_openssh_paramiko_reads_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config(home, CONFIG)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    target = resolve_login("node-a", Ssh())
    assert (target.host, target.port, target.user, target.jump) == ("10.0.0.7", 2222, "trainer", "bastion")


def test_identities_only(home: Path) -> None:
    config(home, "Host node-a\n  IdentitiesOnly yes\n")
    assert resolve_login("node-a", Ssh()).identities_only
    assert not resolve_login("node-b", Ssh()).identities_only


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("h", "h", None),
        ("h:22", "h", 22),
        ("[::1]:22", "::1", 22),
        ("[::1]", "::1", None),
        ("fe80::1", "fe80::1", None),
    ],
)
def test_hosts_with_ports(text: str, host: str, port: int | None) -> None:
    assert split_host_port(text) == (host, port)


def test_the_last_words_of_a_proxy_command_outlive_it() -> None:
    wire = ProxyCommand("sh -c 'echo first >&2; echo tunnel: no such server >&2'")
    assert wire.recv(100) == b""
    wire.close()
    wire.close()
    assert wire.complaint() == "tunnel: no such server"


@pytest.mark.parametrize("error", [EOFError(), paramiko.SSHException("Key-exchange timed out")])
def test_a_connection_that_breaks_while_we_write_is_an_error_of_the_system(error: Exception) -> None:
    """As every stream's: whoever writes beats and orders knows no errors of paramiko's."""
    stream = object.__new__(SshStream)
    stream._channel = Mock(sendall=Mock(side_effect=error))
    with pytest.raises(OSError, match=str(error) or HUNG_UP_TEXT):
        stream.write(b"beat")


def test_a_configuration_that_we_may_not_read_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As ssh passes it over."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text("Host node-a\n  Port 2222\n")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    before = resolve_login("node-a", Ssh())
    monkeypatch.setattr(ssh_config, "_parse_ssh_config", Mock(side_effect=PermissionError(13, "Permission denied")))
    assert (before.port, resolve_login("node-a", Ssh()).port) == (2222, 22)
