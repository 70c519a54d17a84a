"""Tries real TCP between nodes: listens on the ports that matter, then dials every peer and reports each dial's result.

Argument, JSON: {"run_id": str, "address": to listen on, "listen": [[port (0: an ephemeral one), whether on all
addresses]]}.
Says {"event": "listening", "ports": [...], "errors": [...]}, then takes orders on stdin, one a line:
{"dial": [{"address", "port", "mode", "from_port": for a single try, from that port}], "open_s", "reply_s", "within_s",
"at_once", "hold"}, and says for each order
{"event": "dialled", "results": [...], "awake": ...}. A result is null if the dial opened at the first try and no
segment had to be sent again. The connections of an order stay open until all are dialled, as ranks keep theirs: a
firewall rule may count them. Listeners stay up until stdin ends, for peers that still dial. `awake` says how late this
process ran since the order before, how many connections it could not accept, and how many the kernel had no room for;
an order without dials asks only that.

Modes: "greet" reads the listener's greeting; "up" sends TRANSFER_BYTES bytes and waits for the receipt; "down" asks for
TRANSFER_BYTES bytes; "knock" only opens, for a port on which another program listens; "trips" sends single bytes back
and forth, so that each is a packet, whatever the card merges. Full-size segments in one direction at a time show a path
that loses large packets, and in which direction.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import json
import os
import socket
import struct
import sys
import termios
import threading
import time

from runbook.node.event_loop import READ, WRITE, EventLoop, wait_in_loop
from runbook.node.message import write_message
from runbook.node.proc import kernel_counters, raise_open_file_limit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any, Literal

    from runbook.node.event_loop import Conversation, Task
    from runbook.transport.node_answers import AwakeFacts, Dialled

    Outcome = Literal["open", "stranger", "silent", "lost"]
    Refusal = Literal["refused", "reset", "dropped"]

TRANSFER_BYTES = 64 * 1024  # bytes that "up" and "down" move
MAX_TRIPS, TRIPS_TIMEOUT_S = 200, 1.0  # the most trips, and the most seconds, of "trips"
# The most connections kept open: a rule may count them, and a process may have no more than 1024.
MAX_HELD_CONNECTIONS = 128
TRY_STARTS_S = (0.0, 0.1, 0.25, 0.45, 0.8, 1.2, 1.7)
"""Seconds at which the tries of one dial start. The kernel repeats a lost SYN only after a second; a fresh socket asks
sooner. At any loss that `ping` accepts, it is no accident if six in a row are lost."""
REFUSALS: dict[int, Refusal] = {
    errno.ECONNREFUSED: "refused",
    errno.ECONNRESET: "reset",
    errno.EPIPE: "reset",
    errno.ETIMEDOUT: "dropped",
}
SOCKET_SHORTAGE_ERRNOS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""The errors of a kernel that has no socket to give. They say nothing about the network."""
SOCKET_WAIT_TIMEOUT_S = 5.0
"""Seconds for which a dial waits until another one gives a socket back."""
MAX_WAITING_CONNECTIONS = 4096  # of a listener: every node dials the master's at once, each perhaps several times
LISTENER_TIMEOUT_S = 10.0  # seconds that a listener waits for its peer
LOOKUP_TIMEOUT_S = 10.0  # seconds that a dial waits for a name server
UNMEASURED: Dialled = {
    "outcome": "unmeasured",
    "errno": None,
    "seconds": 0.0,
    "tries": 0,
    "retransmitted": None,
    "local": None,
    "from_ports": [],
    "remote": None,
}


class PatienceOver(Exception):
    """Raised if the other end did not answer in time."""


def listener_greeting(run_id: str) -> bytes:
    return ("runbook " + run_id + "\n").encode()


# Conversations: each is a generator that the event loop resumes.


def receive_bytes(sock: socket.socket, count: int, seconds: float) -> Generator[Any, Any, bytes]:
    """Receives `count` bytes, or those that came before the other end closed. Raises PatienceOver."""
    data = b""
    while len(data) < count:
        ready = yield (sock,), READ, seconds
        if not ready:
            raise PatienceOver(data)
        piece = sock.recv(min(65536, count - len(data)))
        if not piece:
            break
        data += piece
    return data


def send_bytes(sock: socket.socket, data: bytes | memoryview, seconds: float) -> Conversation:
    """Sends all data, waiting at most `seconds` for every piece. Raises PatienceOver."""
    view = memoryview(data)
    while view:
        ready = yield (sock,), WRITE, seconds
        if not ready:
            raise PatienceOver()
        view = view[sock.send(view) :]


def send_full_segments(sock: socket.socket, data: bytes, seconds: float) -> Conversation:
    """Sends data; the first full segment goes alone until it has arrived. Segments sent together are merged (GSO), and
    virtual networks pass merged ones even if they drop each single one, as a switch does. Raises PatienceOver."""
    view = memoryview(data)
    if hasattr(socket, "TCP_MAXSEG"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        first = sock.send(view[: sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)])
        view, waited = view[first:], 0.0
        while unacknowledged_bytes(sock):
            if waited > seconds:
                raise PatienceOver()
            yield from wait_in_loop(0.001)
            waited += 0.001
    yield from send_bytes(sock, view, seconds)


def receive_receipt(sock: socket.socket, seconds: float) -> Generator[Any, Any, bytes]:
    """Receives the two bytes that acknowledge a transfer; waits as long as fewer and fewer bytes are on the way."""
    left = unacknowledged_bytes(sock)
    while True:
        try:
            return (yield from receive_bytes(sock, 2, seconds))
        except PatienceOver:
            before, left = left, unacknowledged_bytes(sock)
            if left is None or before is None or left >= before:
                raise


def serve_connection(sock: socket.socket, run_id: str) -> Conversation:
    """Handles one connection to a listener of this program."""
    with sock:
        try:
            yield from send_bytes(sock, listener_greeting(run_id), LISTENER_TIMEOUT_S)
            mode = yield from receive_bytes(sock, 1, LISTENER_TIMEOUT_S)
            if mode == b"u":
                yield from receive_bytes(sock, TRANSFER_BYTES, LISTENER_TIMEOUT_S)
                yield from send_bytes(sock, b"ok", LISTENER_TIMEOUT_S)
            elif mode == b"d":
                yield from send_full_segments(sock, b"x" * TRANSFER_BYTES, LISTENER_TIMEOUT_S)
            elif mode == b"t":
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while (yield from receive_bytes(sock, 1, LISTENER_TIMEOUT_S)):
                    sock.send(b"x")
            yield from receive_bytes(sock, 1, LISTENER_TIMEOUT_S)
        except (OSError, PatienceOver):
            pass


def dial_target(
    target: dict[str, Any], order: dict[str, Any], run_id: str, held: list[socket.socket], loop: EventLoop
) -> Generator[Any, Any, Dialled | None]:
    """Makes one dial. Its outcome: open, stranger, refused, dropped (silence), rejected (the network said no), unsent
    (no local port left), unresolvable, reset, silent, lost, or unmeasured (this machine had no socket for it). `tries`:
    the number of the try that opened, without the kernel's own repetitions; the number of all tries if none did.
    `local`, `remote`: the numeric addresses of both ends. `from_ports`: the local port of each try."""
    begun = loop.clock
    result: Dialled = {**UNMEASURED, "from_ports": []}
    try:
        sock = yield from connect_with_retries(target, result, order["open_s"], loop)
        knock = target.get("mode") == "knock"
        kept = order["hold"] and not knock and len(held) < MAX_HELD_CONNECTIONS
        if kept:
            held.append(sock)
        try:
            result["outcome"] = (
                "open" if knock else (yield from talk_to_listener(sock, target, run_id, order["reply_s"], loop))
            )
            result["retransmitted"] = retransmitted_segments(sock)
        finally:
            if not kept:
                sock.close() if knock else reset_connection(sock)
    except socket.gaierror as error:
        result["outcome"], result["errno"] = "unresolvable", error.strerror
    except PatienceOver:
        result["outcome"] = "dropped"
    except OSError as error:
        result["errno"] = errno.errorcode.get(error.errno or 0, str(error))
        result["outcome"] = (
            "unmeasured" if error.errno in SOCKET_SHORTAGE_ERRNOS else REFUSALS.get(error.errno or 0, "rejected")
        )
        if (
            error.errno == errno.EADDRNOTAVAIL
            and result["remote"]
            and has_source_address(result["remote"], target["port"])
        ):
            result["outcome"] = "unsent"
    result["seconds"] = round(loop.clock - begun, 3)
    plain = (result["outcome"], result["tries"], result["retransmitted"]) == ("open", 1, 0)
    return None if plain else result


def reset_connection(sock: socket.socket) -> None:
    """Closes a connection to a listener of this program with a reset: otherwise its local port stays taken for a minute
    (TIME_WAIT), and few may be left for later programs."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    except OSError:
        pass
    sock.close()


def has_source_address(address: str, port: int) -> bool:
    """Whether this machine has a local address from which to dial `address`: without an IPv6 address the kernel gives
    the same error as without a free port. It is asked by UDP, which has ports of its own."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((address, port))
    except OSError as error:
        return error.errno != errno.EADDRNOTAVAIL
    return True


class Lookups:
    """Resolves each name once, in a thread: getaddrinfo has no deadline, and must not block the answers to
    peers."""

    def __init__(self) -> None:
        self.found: dict[str, list[Any] | OSError | None] = {}

    def of(self, address: str, port: int) -> Generator[Any, Any, list[Any]]:
        if address not in self.found:
            try:
                self.found[address] = socket.getaddrinfo(
                    address, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
                )
            except (socket.gaierror, UnicodeError):
                self.found[address] = None
                threading.Thread(target=self._look_up, args=(address, port), daemon=True).start()
        waited = 0.0
        while self.found[address] is None and waited < LOOKUP_TIMEOUT_S:
            yield from wait_in_loop(0.01)
            waited += 0.01
        found = self.found[address]
        if found is None:
            raise socket.gaierror(socket.EAI_AGAIN, "no name server answered within %g s" % LOOKUP_TIMEOUT_S)
        if isinstance(found, OSError):
            raise found
        return found

    def _look_up(self, address: str, port: int) -> None:
        try:
            self.found[address] = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            wrong = error if isinstance(error, socket.gaierror) else socket.gaierror(socket.EAI_NONAME, str(error))
            self.found[address] = wrong


LOOKUPS = Lookups()


def connect_with_retries(
    target: dict[str, Any], result: Dialled, seconds: float, loop: EventLoop
) -> Generator[Any, Any, socket.socket]:
    """The socket of the try that opens first; its number is noted in `result`. On a long way, or a busy host, that is
    often the first try, though others were sent after it. Raises PatienceOver."""
    found = yield from LOOKUPS.of(target["address"], target["port"])
    family, kind, protocol, _, where = found[0]
    where = (where[0], target["port"]) + tuple(where[2:])
    result["remote"] = where[0]
    asked = begun = loop.clock
    pending: list[socket.socket] = []
    starts: tuple[float, ...] = TRY_STARTS_S[:1] if target.get("from_port") else TRY_STARTS_S
    try:
        while True:
            waited = loop.clock - begun
            if len(pending) < len(starts) and waited >= starts[len(pending)]:
                try:
                    sock = socket.socket(family, kind, protocol)
                except OSError as error:
                    if error.errno not in SOCKET_SHORTAGE_ERRNOS or (
                        not pending and loop.clock - asked >= SOCKET_WAIT_TIMEOUT_S
                    ):
                        raise
                    if not pending:
                        yield from wait_in_loop(0.05)
                        begun = loop.clock
                    starts = TRY_STARTS_S[: len(pending)] if pending else TRY_STARTS_S
                    continue
                pending.append(sock)
                sock.setblocking(False)
                if target.get("from_port"):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    sock.bind(("", target["from_port"]))
                refused = sock.connect_ex(where)
                if refused == errno.EADDRNOTAVAIL and len(pending) > 1:
                    pending.pop().close()  # no port is left for another try: only the tries under way remain
                    starts = TRY_STARTS_S[: len(pending)]
                    continue
                if refused not in (0, errno.EINPROGRESS):
                    raise OSError(refused, os.strerror(refused))
                result["local"], port = sock.getsockname()[:2]
                result["from_ports"].append(port)
                result["tries"] = len(pending)
            following = starts[len(pending)] if len(pending) < len(starts) else seconds
            alive = [sock for sock in pending if sock.fileno() >= 0]
            ready: list[socket.socket] = yield alive, WRITE, max(0.0, min(following, seconds) - waited)
            for sock in sorted(ready, key=pending.index):
                refused = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if refused == errno.ETIMEDOUT:
                    sock.close()  # the kernel gave up on this try; the others go on
                    continue
                if refused:
                    raise OSError(refused, os.strerror(refused))
                result["tries"] = pending.index(sock) + 1
                pending.remove(sock)
                return sock
            if loop.clock - begun >= seconds:
                raise PatienceOver()
    finally:
        for sock in pending:
            sock.close()


def retransmitted_segments(sock: socket.socket) -> int | None:
    """How many segments of a connection were sent again, by Linux's `struct tcp_info`; None elsewhere."""
    try:
        return int(struct.unpack_from("=I", sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), 100)[0])
    except (AttributeError, OSError, struct.error):
        return None


def talk_to_listener(
    sock: socket.socket, target: dict[str, Any], run_id: str, seconds: float, loop: EventLoop
) -> Generator[Any, Any, Outcome]:
    """Talks to the listener at the other end as the mode says; the outcome."""
    expected = listener_greeting(run_id)
    try:
        if (yield from receive_bytes(sock, len(expected), seconds)) != expected:
            return "stranger"
    except PatienceOver:
        return "silent"
    mode = target.get("mode", "greet")
    try:
        if mode == "up":
            sock.send(b"u")
            yield from send_full_segments(sock, b"x" * TRANSFER_BYTES, seconds)
            return "open" if len((yield from receive_receipt(sock, seconds))) == 2 else "lost"
        if mode == "down":
            sock.send(b"d")
            return (
                "open" if len((yield from receive_bytes(sock, TRANSFER_BYTES, seconds))) == TRANSFER_BYTES else "lost"
            )
        if mode == "trips":
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.send(b"t")
            begun = loop.clock
            for _ in range(MAX_TRIPS):
                sock.send(b"x")
                if not (yield from receive_bytes(sock, 1, seconds)):
                    return "lost"
                if loop.clock - begun > TRIPS_TIMEOUT_S:
                    break
    except PatienceOver:
        return "lost"
    return "open"


def unacknowledged_bytes(sock: socket.socket) -> int | None:
    """Bytes that were sent and are not acknowledged, by Linux's SIOCOUTQ; None elsewhere."""
    try:
        return int(struct.unpack("=i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0" * 4))[0])
    except (AttributeError, OSError):
        return None


# The program: listeners, and orders.


def listen_addresses(address: str, port: int) -> list[tuple[int, Any]]:
    """Where to listen, the first choice first. If `address` is not this machine's (NAT), all addresses remain
    as choices."""
    everywhere: list[tuple[int, Any]] = [(socket.AF_INET6, ("::", port)), (socket.AF_INET, ("0.0.0.0", port))]
    if not address:
        return everywhere
    try:
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        return everywhere
    return [(found[0], found[4]), *everywhere]


def listen_overflows() -> int:
    """How many connections found no room in the queue of a listener of this machine since boot. Their other end takes
    them for open, and hears nothing until the kernel tries again. 0 if the kernel does not tell."""
    return kernel_counters("/proc/net/netstat", "TcpExt:").get("ListenOverflows", 0)


class MeshProgram:
    """The listeners of this program, and the orders that it takes."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.loop = EventLoop()
        self.shut_out = 0  # how often this process had no descriptor for a connection
        self.overflows = listen_overflows()
        self.over = False

    def listen(self, address: str, port: int) -> int:
        """Opens a listener; its port. With an empty `address` it listens on all addresses, as torch's store does."""
        first: OSError | None = None
        for family, where in listen_addresses(address, port):
            try:
                listener = socket.socket(family, socket.SOCK_STREAM)
            except OSError as error:
                first = first or error  # a kernel without IPv6
                continue
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                if family == socket.AF_INET6 and where[0] == "::":
                    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                listener.bind(where)
                listener.listen(MAX_WAITING_CONNECTIONS)
            except OSError as error:
                listener.close()
                first = first or error
                if address and error.errno != errno.EADDRNOTAVAIL:
                    break
                continue
            listener.setblocking(False)
            self.loop.start(self.accept(listener))
            return int(listener.getsockname()[1])
        raise first or OSError("no place to listen")

    def accept(self, listener: socket.socket) -> Conversation:
        while True:
            yield (listener,), READ, None
            try:
                for _ in range(MAX_WAITING_CONNECTIONS):  # all that wait: at one in a turn the last would wait for long
                    sock, _ = listener.accept()
                    sock.setblocking(False)
                    self.loop.start(serve_connection(sock, self.run_id))
            except OSError as error:
                if error.errno in SOCKET_SHORTAGE_ERRNOS:
                    self.shut_out += 1
                    yield from wait_in_loop(0.05)

    def orders(self) -> Conversation:
        """Takes orders from the lines of stdin; the end of stdin ends the program."""
        os.set_blocking(0, False)
        pending = b""
        while True:
            yield (0,), READ, None
            data = os.read(0, 1 << 20)
            if not data:
                self.over = True
                return
            lines = (pending + data).split(b"\n")
            pending = lines.pop()
            for line in lines:
                Dialling(self, json.loads(line.decode())).begin()

    def awake(self) -> AwakeFacts:
        shut_out, self.shut_out = self.shut_out, 0
        before, self.overflows = self.overflows, listen_overflows()
        told = self.loop.report()
        told["shut_out"] = shut_out
        told["overflows"] = max(0, self.overflows - before)
        return told


class Dialling:
    """Makes the dials of one order, `at_once` at a time, until the last has ended, or `within_s` has passed, even if
    the loop's clock stood still meanwhile; the dials that are left then are unmeasured."""

    def __init__(self, mesh: MeshProgram, order: dict[str, Any]) -> None:
        self.mesh, self.order = mesh, order
        self.targets = order["dial"]
        self.results: list[Dialled | None] = [UNMEASURED.copy() for _ in self.targets]
        self.left = list(reversed(range(len(self.targets))))
        self.under_way: dict[int, Task] = {}
        self.held: list[socket.socket] = []
        self.told = False

    def begin(self) -> None:
        self.mesh.loop.start(self.minded())
        self.fill()

    def fill(self) -> None:
        while self.left and len(self.under_way) < self.order["at_once"]:
            at = self.left.pop()
            conversation = dial_target(self.targets[at], self.order, self.mesh.run_id, self.held, self.mesh.loop)
            self.under_way[at] = self.mesh.loop.start(conversation, functools.partial(self.ended, at))
        if not self.left and not self.under_way:
            self.tell()

    def ended(self, at: int, result: Dialled | None) -> None:
        self.results[at] = result
        del self.under_way[at]
        self.fill()

    def minded(self) -> Conversation:
        deadline = time.monotonic() + self.order["within_s"]
        while not self.told and time.monotonic() < deadline:
            yield from wait_in_loop(0.25)
        self.tell()

    def tell(self) -> None:
        if self.told:
            return
        self.told = True
        for task in list(self.under_way.values()):
            self.mesh.loop.cancel(task)
        for sock in self.held:
            reset_connection(sock)
        write_message({"event": "dialled", "results": self.results, "awake": self.mesh.awake()})


def main() -> None:
    arguments = json.loads(sys.argv[1])
    raise_open_file_limit()  # all nodes dial the master's listeners
    mesh = MeshProgram(arguments["run_id"])
    ports, errors = [], []
    for port, everywhere in arguments["listen"]:
        try:
            ports.append(mesh.listen("" if everywhere else arguments["address"], port))
        except OSError as error:
            errors.append({"port": port, "errno": errno.errorcode.get(error.errno or 0, ""), "text": str(error)})
    write_message({"event": "listening", "ports": ports, "errors": errors})
    mesh.loop.start(mesh.orders())
    while not mesh.over:
        mesh.loop.turn()
    os._exit(0)


if __name__ == "__main__":
    main()
