"""Nodes behind an agent: they dial `runbook serve`, and it hands us their streams over a Unix socket in its data
folder.

The server only carries bytes, so a run needs only this socket of it: `agents.sock` in $RUNBOOK_DATA, else in the folder
above that of the inventory (DATA/groups/NAME.yml), else in .runbook. Frames both ways: one byte that says what it is,
four of length, data.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import msgspec

from runbook.causes.catalogue import unreachable_for
from runbook.model.errors import Unreachable
from runbook.model.inventory import Node
from runbook.model.remedy import Remedy
from runbook.transport.bootstrap import command, last_lines
from runbook.transport.stream import ENDING_S

SOCKET = "agents.sock"
SERVER_GONE = "server-gone"
"""The cause when no server answers: then nothing is known about the agents."""

ASK, ENROL, OPENED, DATA, STDERR, END, KILL, OVER = b"?", b"@", b"+", b"d", b"e", b".", b"k", b"!"
"""Kinds of frames: a question; a request for an enrolment string; yes; bytes; bytes of stderr; no more bytes will come;
kill it; it is over, and why."""

HEADER = struct.Struct(">cI")
LONGEST = 1 << 20
ASKED_S = 3.0
OPENED_S = 25.0
"""Longer than the server waits for the agent."""

MOST_COMPLAINT = 1 << 16
LONGEST_PATH = 100
"""A Unix socket's address has room for 107 bytes; a longer path is reached through its folder's descriptor (Linux)."""


class StreamRequest(msgspec.Struct, frozen=True):
    """A question to the server about a node: to open a stream, or only its state. `looks`: nothing new is to run there,
    so the node may be drained. `person`: on whose behalf, when a page started this run."""

    node: str
    open: bool
    command: str = ""
    python: str = ""
    workdir: str = ""
    person: str = ""
    looks: bool = False


class EnrolmentRequest(msgspec.Struct, frozen=True):
    """A request for a string by which a host can be enrolled. `name`: only as this node."""

    by: str
    name: str | None = None


class StreamStatus(msgspec.Struct, frozen=True):
    """Why there is no stream, or none any more; `code`: how the program on the node ended. Without a `cause` no fault
    of the node is known."""

    cause: str | None = None
    says: str = ""
    remedy: str = ""
    node: str = ""  # where the remedy is done, if not here
    evidence: list[str] = []
    code: int | None = None

    def unreachable(self, before: str = "") -> Unreachable | None:
        if self.cause is None:
            return None
        says = f"{before}; {self.says}" if before and before != self.says else self.says
        return Unreachable(self.cause, says, Remedy.note(self.remedy, node=self.node), tuple(self.evidence))


_STREAM_STATUS = msgspec.json.Decoder(StreamStatus)


def framed(kind: bytes, data: bytes = b"") -> bytes:
    return HEADER.pack(kind, len(data)) + data


class AgentStream:
    """A supervisor's stdin and stdout, by way of the server and the node's agent. Raises Unreachable with the cause."""

    unanswered: ClassVar[str] = "agent-lost"

    def __init__(self, node: Node, inventory: str, *, looks: bool) -> None:
        """`inventory` is the path of its file, or empty. `looks`: nothing new is to run on the node."""
        self._node = node
        self._path = socket_path(inventory)
        self._complaint = b""
        self._status: StreamStatus | None = None
        self._heard = False
        self._over = threading.Event()
        self._closing = threading.Lock()
        self._socket = _connected(self._path, node.name)
        request = StreamRequest(
            node.name,
            open=True,
            command=command(node.interpreter),
            python=node.interpreter,
            workdir=node.workdir,
            person=os.environ.get("RUNBOOK_PERSON", ""),
            looks=looks,
        )
        try:
            self._socket.settimeout(OPENED_S)
            self._socket.sendall(framed(ASK, msgspec.json.encode(request)))
            kind, data = _read(self._socket)
            refused = None if kind == OPENED else _decoded_status(data)
            self._socket.settimeout(None)
        except (OSError, ValueError) as error:
            self._socket.close()
            raise _no_answer(node.name, self._path, f"it did not open a stream: {error}") from None
        if refused is not None:
            self._socket.close()
            raise refused.unreachable() or _no_answer(node.name, self._path, "it opened no stream")
        self._frames = self._receive()

    def write(self, data: bytes) -> None:
        for at in range(0, len(data), LONGEST):
            self._socket.sendall(framed(DATA, data[at : at + LONGEST]))

    def read(self) -> bytes:
        return next(self._frames, b"")

    def close(self) -> None:
        """At most once; gives the node's supervisor the time to end what it started."""
        if not self._closing.acquire(blocking=False):
            return
        with contextlib.suppress(OSError):
            self._socket.settimeout(ENDING_S)  # a server that does not read must not hold us for ever
            self._socket.sendall(framed(END))
            self._over.wait(ENDING_S)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # which also wakes a thread that reads
        self._over.wait(0.5)
        self._socket.close()

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.sendall(framed(KILL))

    def complaint(self) -> str:
        return self._complaint[-4096:].decode(errors="replace").strip()

    def why(self, says: str) -> Unreachable | None:
        """The fault of the node that the server knows; None when the node is online."""
        fault = self._status.unreachable(says) if self._status else None
        if self._status is None and self._over.is_set():  # a server that goes on says why a stream is over
            return gone(f"{says}; the server ended its stream without a reason: it was stopped, or is gone")
        try:
            fault = fault or ask(self._path, self._node.name).unreachable(says)
        except Unreachable as error:
            return Unreachable(error.cause, f"{says}; {error.says}", error.remedy, error.evidence)
        if fault is None and not self._heard:
            says = f"{says}, though its agent is online"
            return unreachable_for("agent-lost", says, last_lines(self.complaint()), way="online", node=self._node.name)
        return fault

    def _receive(self) -> Iterator[bytes]:
        try:
            while True:
                kind, data = _read(self._socket)
                if kind == DATA:
                    self._heard = True
                    yield data
                elif kind == STDERR:
                    self._complaint = (self._complaint + data)[-MOST_COMPLAINT:]
                elif kind == OVER:
                    self._status = _decoded_status(data)
                    return
        except (OSError, ValueError):
            return  # the server is gone: `why` finds out
        finally:
            self._over.set()


def ask(path: Path, node: str) -> StreamStatus:
    """What the server knows of a node. Raises Unreachable where no server answers."""
    return _answer(path, node, ASK, StreamRequest(node, open=False))


def enrolment(path: Path, by: str, name: str | None) -> str:
    """An enrolment string from the running server. Raises Unreachable when none answers, or it refuses."""
    answer = _answer(path, name or "a new node", ENROL, EnrolmentRequest(by, name))
    if (refused := answer.unreachable()) is not None:
        raise refused
    return answer.says


def _answer(path: Path, node: str, kind: bytes, request: StreamRequest | EnrolmentRequest) -> StreamStatus:
    with _connected(path, node) as asking:
        try:
            asking.sendall(framed(kind, msgspec.json.encode(request)))
            return _decoded_status(_read(asking)[1])
        except (OSError, ValueError) as error:
            raise _no_answer(node, path, f"it does not answer: {error}") from None


def socket_path(inventory: str) -> Path:
    """Where the server's socket is, for an inventory's file."""
    if data := os.environ.get("RUNBOOK_DATA"):
        return Path(data) / SOCKET
    above = Path(inventory).absolute().parent.parent / SOCKET
    return above if inventory and above.exists() else Path(".runbook") / SOCKET


@contextlib.contextmanager
def reachable(path: Path) -> Iterator[str]:
    """The address of a Unix socket at this path, which may be longer than an address has room for."""
    text = str(path)
    if len(os.fsencode(text)) <= LONGEST_PATH:
        yield text
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def gone(says: str) -> Unreachable:
    return unreachable_for(SERVER_GONE, says, way="here")


def _no_answer(node: str, path: Path, says: str) -> Unreachable:
    return gone(f"{node} is reached by its agent, and no server answers at {path}: {says}")


def _connected(path: Path, node: str) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.settimeout(ASKED_S)
        with reachable(path) as address:
            made.connect(address)
    except OSError as error:
        made.close()
        raise _no_answer(node, path, str(error)) from None
    return made


def _read(source: socket.socket) -> tuple[bytes, bytes]:
    """One frame. Raises OSError at the end, ValueError for one that neither program sends."""
    kind, length = HEADER.unpack(_exactly(source, HEADER.size))
    if length > LONGEST:
        raise ValueError(f"a frame of {length} bytes")
    return kind, _exactly(source, length)


def _exactly(source: socket.socket, count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        data = source.recv(min(count - len(found), 1 << 16))
        if not data:
            raise ConnectionResetError("it closed the connection")
        found += data
    return bytes(found)


def _decoded_status(data: bytes) -> StreamStatus:
    try:
        return _STREAM_STATUS.decode(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"an answer that no server gives: {error}") from None
