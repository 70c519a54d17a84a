"""Nodes behind an agent. The agent dials `runbook serve`, and the server hands us a stream to the node over a Unix
socket in its data folder.

The server only carries bytes, so this socket is all that a run needs of it: `agents.sock` in $RUNBOOK_DATA, else in the
folder above that of the inventory (DATA/groups/NAME.yml), else in .runbook. A frame, in either direction, is one byte
for its kind, four bytes of length, and data.
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
from runbook.transport.bootstrap import bootstrap_command, last_evidence_lines
from runbook.transport.stream import END_TIMEOUT_S, SHOWN_STDERR_BYTES

AGENT_SOCKET_FILE = "agents.sock"
SERVER_GONE = "server-gone"
"""The cause when no server answers; nothing is known about the agents then."""

ASK_FRAME, ENROL_FRAME, OPENED_FRAME, DATA_FRAME, STDERR_FRAME, END_FRAME, KILL_FRAME, OVER_FRAME = (
    b"?",
    b"@",
    b"+",
    b"d",
    b"e",
    b".",
    b"k",
    b"!",
)
"""Kinds of frames. ASK_FRAME: a StreamRequest; ENROL_FRAME: an EnrolmentRequest; OPENED_FRAME: the stream is open;
DATA_FRAME: bytes of stdin or stdout; STDERR_FRAME: bytes of stderr; END_FRAME: no more bytes will come; KILL_FRAME:
kill the program on the node; OVER_FRAME: the stream is over, with a StreamStatus that says why."""

FRAME_HEADER = struct.Struct(">cI")
"""What precedes the data of a frame: its kind and the length of the data."""

MAX_FRAME_BYTES = 1 << 20
"""The most bytes of data in a frame."""

ANSWER_DEADLINE_S = 3.0
"""How long the server may take to answer a question."""

OPENING_TIMEOUT_S = 25.0
"""How long the server may take to open a stream: longer than the server itself waits for the agent."""

MAX_SOCKET_PATH_BYTES = 100
"""A Unix socket's address has room for 107 bytes; a longer path is reached through its folder's descriptor (Linux)."""


class StreamRequest(msgspec.Struct, frozen=True):
    """A request to the server about a node: to open a stream to it (`open`), or only to tell its state. `looks`:
    nothing new is to run there, so a drained node is fine. `person`: who started this run on the server's page."""

    node: str
    open: bool
    command: str = ""
    python: str = ""
    workdir: str = ""
    person: str = ""
    looks: bool = False


class EnrolmentRequest(msgspec.Struct, frozen=True):
    """A request for an enrolment string. `by` is who asks; with a `name`, a host can be enrolled only as that node."""

    by: str
    name: str | None = None


class StreamStatus(msgspec.Struct, frozen=True):
    """Why a stream was not opened or has ended; `code` is the exit code of the program on the node. Without a `cause`
    no fault of the node is known."""

    cause: str | None = None
    says: str = ""
    remedy: str = ""
    node: str = ""  # the node on which the remedy is carried out; empty for this machine
    evidence: list[str] = []
    code: int | None = None

    def unreachable(self, before: str = "") -> Unreachable | None:
        """The fault as an error, its sentence after `before`; None without a cause."""
        if self.cause is None:
            return None
        says = f"{before}; {self.says}" if before and before != self.says else self.says
        return Unreachable(self.cause, says, Remedy.note(self.remedy, node=self.node), tuple(self.evidence))


_STREAM_STATUS_DECODER = msgspec.json.Decoder(StreamStatus)


def agent_frame(kind: bytes, data: bytes = b"") -> bytes:
    """The bytes of a frame."""
    return FRAME_HEADER.pack(kind, len(data)) + data


class AgentStream:
    """A supervisor's stdin and stdout, by way of the server and the node's agent. The constructor raises Unreachable
    with the cause."""

    unanswered: ClassVar[str] = "agent-lost"
    shared = False

    def __init__(self, node: Node, inventory: str, *, looks: bool) -> None:
        """`inventory` is the path of the inventory file, or empty. `looks`: nothing new is to run on the node."""
        self._node = node
        self._path = socket_path(inventory)
        self._complaint = b""
        self._status: StreamStatus | None = None
        self._heard = False
        self._over = threading.Event()
        self._closing = threading.Lock()
        self._socket = _connect_to_server(self._path, node.name)
        request = StreamRequest(
            node.name,
            open=True,
            command=bootstrap_command(node.interpreter),
            python=node.interpreter,
            workdir=node.workdir,
            person=os.environ.get("RUNBOOK_PERSON", ""),
            looks=looks,
        )
        try:
            self._socket.settimeout(OPENING_TIMEOUT_S)
            self._socket.sendall(agent_frame(ASK_FRAME, msgspec.json.encode(request)))
            kind, data = _read_frame(self._socket)
            refused = None if kind == OPENED_FRAME else _decoded_status(data)
            self._socket.settimeout(None)
        except (OSError, ValueError) as error:
            self._socket.close()
            raise _no_server_for_node_failure(node.name, self._path, f"it did not open a stream: {error}") from None
        if refused is not None:
            self._socket.close()
            raise refused.unreachable() or _no_server_for_node_failure(node.name, self._path, "it opened no stream")
        self._frames = self._receive()

    def write(self, data: bytes) -> None:
        for at in range(0, len(data), MAX_FRAME_BYTES):
            self._socket.sendall(agent_frame(DATA_FRAME, data[at : at + MAX_FRAME_BYTES]))

    def read(self) -> bytes:
        return next(self._frames, b"")

    def close(self) -> None:
        """Close the stream, and give the node's supervisor END_TIMEOUT_S to end what it started. Later calls do
        nothing."""
        if not self._closing.acquire(blocking=False):
            return
        with contextlib.suppress(OSError):
            self._socket.settimeout(END_TIMEOUT_S)  # a server that does not read must not block us for ever
            self._socket.sendall(agent_frame(END_FRAME))
            self._over.wait(END_TIMEOUT_S)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # also wakes the thread that reads
        self._over.wait(0.5)
        self._socket.close()

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.sendall(agent_frame(KILL_FRAME))

    def complaint(self) -> str:
        return self._complaint.decode(errors="replace").strip()

    def why(self, says: str) -> Unreachable | None:
        """The fault of the node by what the server says of it; None when it knows none and bytes have come. A server
        that is gone, and a node that is online but has sent nothing, are faults as well."""
        fault = self._status.unreachable(says) if self._status else None
        if (
            self._status is None and self._over.is_set()
        ):  # a server that goes on running sends OVER_FRAME with the reason
            return server_gone_failure(
                f"{says}; the server ended its stream without a reason: it was stopped, or is gone"
            )
        try:
            fault = fault or ask_node_status(self._path, self._node.name).unreachable(says)
        except Unreachable as error:
            return Unreachable(error.cause, f"{says}; {error.says}", error.remedy, error.evidence)
        if fault is None and not self._heard:
            says = f"{says}, though its agent is online"
            return unreachable_for(
                "agent-lost", says, last_evidence_lines(self.complaint()), way="online", node=self._node.name
            )
        return fault

    def _receive(self) -> Iterator[bytes]:
        """The bytes of stdout as they arrive; keeps stderr and the final status aside."""
        try:
            while True:
                kind, data = _read_frame(self._socket)
                if kind == DATA_FRAME:
                    self._heard = True
                    yield data
                elif kind == STDERR_FRAME:
                    self._complaint = (self._complaint + data)[-SHOWN_STDERR_BYTES:]
                elif kind == OVER_FRAME:
                    self._status = _decoded_status(data)
                    return
        except (OSError, ValueError):
            return  # the server is gone: `why` finds out
        finally:
            self._over.set()


def ask_node_status(path: Path, node: str) -> StreamStatus:
    """The state of a node by what the server knows. Raises Unreachable when no server answers."""
    return _ask_server(path, node, ASK_FRAME, StreamRequest(node, open=False))


def ask_enrolment_string(path: Path, by: str, name: str | None) -> str:
    """An enrolment string from the running server. Raises Unreachable when no server answers, or it refuses."""
    answer = _ask_server(path, name or "a new node", ENROL_FRAME, EnrolmentRequest(by, name))
    if (refused := answer.unreachable()) is not None:
        raise refused
    return answer.says


def _ask_server(path: Path, node: str, kind: bytes, request: StreamRequest | EnrolmentRequest) -> StreamStatus:
    """The server's answer to one request over a connection of its own. Raises Unreachable."""
    with _connect_to_server(path, node) as asking:
        try:
            asking.sendall(agent_frame(kind, msgspec.json.encode(request)))
            return _decoded_status(_read_frame(asking)[1])
        except (OSError, ValueError) as error:
            raise _no_server_for_node_failure(node, path, f"it does not answer: {error}") from None


def socket_path(inventory: str) -> Path:
    """The path of the server's socket, for the path of an inventory file (or empty)."""
    if data := os.environ.get("RUNBOOK_DATA"):
        return Path(data) / AGENT_SOCKET_FILE
    above = Path(inventory).absolute().parent.parent / AGENT_SOCKET_FILE
    return above if inventory and above.exists() else Path(".runbook") / AGENT_SOCKET_FILE


@contextlib.contextmanager
def short_socket_address(path: Path) -> Iterator[str]:
    """A context that gives the address of the Unix socket at `path`, even when the path is longer than
    MAX_SOCKET_PATH_BYTES."""
    text = str(path)
    if len(os.fsencode(text)) <= MAX_SOCKET_PATH_BYTES:
        yield text
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def server_gone_failure(says: str) -> Unreachable:
    """The failure for a server that does not answer."""
    return unreachable_for(SERVER_GONE, says, way="here")


def _no_server_for_node_failure(node: str, path: Path, says: str) -> Unreachable:
    return server_gone_failure(f"{node} is reached by its agent, and no server answers at {path}: {says}")


def _connect_to_server(path: Path, node: str) -> socket.socket:
    """A connection to the server's socket. Raises Unreachable."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.settimeout(ANSWER_DEADLINE_S)
        with short_socket_address(path) as address:
            made.connect(address)
    except OSError as error:
        made.close()
        raise _no_server_for_node_failure(node, path, str(error)) from None
    return made


def _read_frame(source: socket.socket) -> tuple[bytes, bytes]:
    """The kind and data of the next frame. Raises OSError at the end, and ValueError for a frame that is too long."""
    kind, length = FRAME_HEADER.unpack(_receive_exactly(source, FRAME_HEADER.size))
    if length > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {length} bytes")
    return kind, _receive_exactly(source, length)


def _receive_exactly(source: socket.socket, count: int) -> bytes:
    """The next `count` bytes. Raises ConnectionResetError when the connection ends before."""
    found = bytearray()
    while len(found) < count:
        data = source.recv(min(count - len(found), 1 << 16))
        if not data:
            raise ConnectionResetError("it closed the connection")
        found += data
    return bytes(found)


def _decoded_status(data: bytes) -> StreamStatus:
    try:
        return _STREAM_STATUS_DECODER.decode(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"an answer that no server gives: {error}") from None
