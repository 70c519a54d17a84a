"""What an agent keeps on its node (who it is, whom it trusts, what its owner allows, what it is doing), and how a host
is made known to a server.

A folder a host, since many hosts may share one home: `~/.runbook-agent/HOSTNAME/` with `identity.json` (0600: it holds
the agent's token), `agent.yml` (the owner's rules), `state.json` (for `runbook agent status`), `drained` (while it is)
and `lock`. To enrol, the pasted string is spent for a token, over a connection to the one certificate that it names.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import http.client
import json
import socket
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from runbook.agent.protocol import DIAL_S, NAME, Enrolment, ProtocolError
from runbook.causes.findings import unreachable_for
from runbook.model.commands import word
from runbook.model.errors import FilesWrong, Problem, Unreachable
from runbook.node import own_files
from runbook.node.proc import this_machine

NO_CHECK_TIME = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME: the certificate is trusted by its hash, and a node's clock may be wrong."""


class Identity(msgspec.Struct, frozen=True):
    """`certificate` is the server's own, in PEM: the only one that is trusted; None for plain HTTP."""

    name: str
    url: str
    token: str
    certificate: str | None = None

    def context(self) -> ssl.SSLContext | None:
        """Trusts this one certificate, whatever names and dates stand in it."""
        if self.certificate is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.verify_flags |= NO_CHECK_TIME
        context.load_verify_locations(cadata=self.certificate)
        return context


@dataclass(frozen=True)
class State:
    """What a running agent is doing, in a sentence; `since` is in seconds since 1970."""

    pid: int
    since: float
    connected: bool
    says: str


class Home:
    """The agent's folder. Only what is ours counts, where nobody else could have put or changed it."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or Path.home() / ".runbook-agent" / hostname()
        self.rules = self.path / "agent.yml"
        self._identity = self.path / "identity.json"
        self._state = self.path / "state.json"
        self._drained = self.path / "drained"

    def identity(self) -> Identity | None:
        """None where this host was never enrolled. Raises FilesWrong where what lies there cannot be believed."""
        if not self._identity.exists():
            return None
        try:
            identity = msgspec.convert(self._read(self._identity), Identity)
        except (OSError, ValueError) as error:
            why = f"{self._identity} cannot be used: {getattr(error, 'strerror', None) or error}"
            fix = "`runbook agent uninstall`, and enrol this host again"
            raise FilesWrong([Problem("agent.identity", why, None, fix)]) from None
        if not NAME.match(identity.name):
            raise FilesWrong([Problem("agent.identity", f"{self._identity} holds no name of a node")])
        return identity

    def remember(self, identity: Identity) -> None:
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        own_files.safe(str(self.path))
        own_files.write(str(self._identity), json.dumps(msgspec.to_builtins(identity)))

    def forget(self) -> None:
        for file in (self._identity, self._state, self._drained):
            file.unlink(missing_ok=True)

    @property
    def drained(self) -> bool:
        return self._drained.exists()

    def drain(self, on: bool) -> None:
        if on:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._drained.touch()
        else:
            self._drained.unlink(missing_ok=True)

    def tell(self, state: State) -> None:
        with contextlib.suppress(OSError):  # a full disk must not end the agent
            own_files.write(str(self._state), json.dumps(asdict(state)))

    def told(self) -> State | None:
        """What the agent that runs now is doing; None where none runs."""
        if not self._locked():
            return None
        try:
            return msgspec.convert(self._read(self._state), State)
        except (OSError, ValueError):
            return None

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the folder: raises FilesWrong where another agent does."""
        with (self.path / "lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                why = f"an agent of {self.path} runs already"
                raise FilesWrong(
                    [Problem("agent.runs-already", why, None, "`runbook agent status` shows it")]
                ) from None
            yield

    def _locked(self) -> bool:
        try:
            with (self.path / "lock").open("r") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def _read(self, path: Path) -> Mapping[str, Any]:
        own_files.safe(str(self.path))
        found: Mapping[str, Any] = own_files.document(str(path))
        return found


def hostname() -> str:
    """The host's own short name."""
    return socket.gethostname().partition(".")[0] or "node"


def machine() -> str:
    """What tells this host from a copy of its disk: the boot of its kernel, and its network namespace."""
    return f"{this_machine()} {socket.gethostname()}".strip()[:200]


LONGEST_ANSWER = 64 << 10


class EnrolmentAnswer(msgspec.Struct, frozen=True):
    name: str
    token: str


def enrol(home: Home, text: str, name: str) -> Identity:
    """Raises FilesWrong where the string, the name or the server's answer will not do; Unreachable."""
    try:
        told = Enrolment.of(text)
    except ProtocolError as error:
        raise FilesWrong([Problem("agent.enrol", str(error))]) from None
    if not NAME.match(name):
        fix = "name the node: `runbook agent enrol STRING --name gn01`"
        raise FilesWrong([Problem("agent.enrol", f"a node cannot be called {name!r}", None, fix)])
    certificate = certificate_of(told) if told.certificate else None
    pinned = Identity(name, told.url, "", certificate)
    status, body = _post(pinned, {"secret": told.secret, "name": name})
    if status != 200:
        raise FilesWrong([Problem("agent.enrol", f"{told.url} says: {_reason(status, body)}")])
    try:
        answer = msgspec.json.decode(body, type=EnrolmentAnswer)
    except ValueError as error:
        raise FilesWrong([Problem("agent.enrol", f"{told.url} is no runbook server: {error}")]) from None
    identity = Identity(answer.name, told.url, answer.token, certificate)
    if not NAME.match(identity.name) or not identity.token.isascii() or not identity.token:
        raise FilesWrong([Problem("agent.enrol", f"{told.url} answers what no runbook server does")])
    home.remember(identity)
    return identity


def certificate_of(told: Enrolment) -> str:
    """The server's certificate in PEM, once it is the one that the string names. Raises Unreachable, FilesWrong."""
    host, port = address(told.url)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # its hash is compared, and only then anything is said
    try:
        with (
            socket.create_connection((host, port), DIAL_S) as plain,
            context.wrap_socket(plain, server_hostname=host) as wrapped,
        ):
            der = wrapped.getpeercert(binary_form=True) or b""
    except OSError as error:
        raise _unreached(told.url, error) from None
    if hashlib.sha256(der).hexdigest() != told.certificate:
        why = f"the certificate of {told.url} is not the one that the enrolment string names: nothing was sent"
        fix = (
            "take a new string from the server itself; if it differs again, somebody is between this host and the "
            "server"
        )
        raise FilesWrong([Problem("agent.certificate", why, None, fix)])
    return ssl.DER_cert_to_PEM_cert(der)


def address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def _post(server: Identity, body: object) -> tuple[int, bytes]:
    host, port = address(server.url)
    context = server.context()
    connection = (
        http.client.HTTPConnection(host, port, timeout=DIAL_S)
        if context is None
        else http.client.HTTPSConnection(host, port, timeout=DIAL_S, context=context)
    )
    try:
        connection.request("POST", "/agent/enrol", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read(LONGEST_ANSWER)
    except (OSError, http.client.HTTPException) as error:
        raise _unreached(server.url, error) from None
    finally:
        connection.close()


def _reason(status: int, body: bytes) -> str:
    try:
        return str(msgspec.json.decode(body)["error"])[:500]
    except (ValueError, KeyError, TypeError):
        return f"HTTP {status}"


def _unreached(url: str, error: Exception) -> Unreachable:
    return unreachable_for(
        "agent-lost",
        f"the server at {url} cannot be reached from this host",
        (f"{type(error).__name__}: {error}",),
        way="enrolling",
        url=word(url + "/healthz"),
    )
