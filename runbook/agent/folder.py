"""The folder of an agent on its node: its identity, the server that it trusts, its owner's rules, and its state.

Every host has a folder of its own, since many hosts may share one home: `~/.runbook-agent/HOSTNAME/` with
`identity.json` (0600: it holds the agent's token), `agent.yml` (the owner's rules), `state.json` (for `runbook agent
status`), `drained` (there while the node is drained) and `lock`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from runbook.model.errors import FilesWrong
from runbook.model.inventory import NODE_NAME
from runbook.node import own_files
from runbook.node.proc import this_machine

NO_CHECK_TIME = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME: dates are not checked, since the certificate is trusted by its hash, and a
node's clock may be wrong."""


class Identity(msgspec.Struct, frozen=True):
    """Who the agent is: its node's name, its server's URL, and its token. `certificate` is the server's, in PEM, and
    the only one that is trusted; None for plain HTTP."""

    name: str
    url: str
    token: str
    certificate: str | None = None

    def context(self) -> ssl.SSLContext | None:
        """A TLS context that trusts only this certificate, whatever names and dates it has; None for plain HTTP."""
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


class AgentFolder:
    """The agent's folder. Files count only if they are this account's and no other user could have put or changed
    them."""

    def __init__(self, path: Path | None = None) -> None:
        """Raises FilesWrong when no `path` is given and the account has no home folder."""
        try:
            self.path = path or Path.home() / ".runbook-agent" / short_hostname()
        except RuntimeError:  # neither $HOME nor an account
            why = f"the user id {os.getuid()} has no account here, and so no home for the agent's files"
            raise FilesWrong.of("agent.home", why, help="name one: HOME=/path runbook agent …") from None
        self.rules = self.path / "agent.yml"
        self._identity = self.path / "identity.json"
        self._state = self.path / "state.json"
        self._drained = self.path / "drained"

    def identity(self) -> Identity | None:
        """The identity of this host; None if it was never enrolled. Raises FilesWrong when the file cannot be
        trusted."""
        if not self._identity.exists():
            return None
        try:
            identity = msgspec.convert(self._read(self._identity), Identity)
        except (OSError, ValueError) as error:
            why = f"{self._identity} cannot be used: {getattr(error, 'strerror', None) or error}"
            fix = "`runbook agent uninstall`, and enrol this host again"
            raise FilesWrong.of("agent.identity", why, help=fix) from None
        if not NODE_NAME.match(identity.name):
            raise FilesWrong.of("agent.identity", f"{self._identity} holds no valid name of a node")
        return identity

    def remember(self, identity: Identity) -> None:
        """Write the identity into the folder, which is made if it is missing."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        own_files.require_safe_path(str(self.path))
        own_files.write_atomically(str(self._identity), json.dumps(msgspec.to_builtins(identity)))

    def forget(self) -> None:
        """Remove the identity, the state and the mark of a drained node."""
        for file in (self._identity, self._state, self._drained):
            file.unlink(missing_ok=True)

    @property
    def drained(self) -> bool:
        """Whether the node was drained on the node itself."""
        return self._drained.exists()

    def drain(self, on: bool) -> None:
        if on:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._drained.touch()
        else:
            self._drained.unlink(missing_ok=True)

    def write_state(self, state: State) -> None:
        with contextlib.suppress(OSError):  # a full disk must not end the agent
            own_files.write_atomically(str(self._state), json.dumps(asdict(state)))

    def state(self) -> State | None:
        """The state of the agent that runs now; None if none runs."""
        if not self._locked():
            return None
        try:
            return msgspec.convert(self._read(self._state), State)
        except (OSError, ValueError):
            return None

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """A context in which this agent holds the folder's lock. Raises FilesWrong when another agent holds it."""
        with (self.path / "lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                why = f"an agent of {self.path} runs already"
                raise FilesWrong.of("agent.runs-already", why, help="`runbook agent status` shows it") from None
            yield

    def _locked(self) -> bool:
        """Whether an agent holds the folder's lock."""
        try:
            with (self.path / "lock").open("r") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def _read(self, path: Path) -> Mapping[str, Any]:
        """The content of a JSON file in the folder, which must be safe from other users. Raises OSError, ValueError."""
        own_files.require_safe_path(str(self.path))
        found: Mapping[str, Any] = own_files.read_json_object(str(path))
        return found


def short_hostname() -> str:
    """The host's own short name."""
    return socket.gethostname().partition(".")[0] or "node"


def machine_identity() -> str:
    """A text that tells this host from a copy of its disk: the boot of its kernel, its network namespace, its name."""
    return f"{this_machine()} {socket.gethostname()}".strip()[:200]
