"""A node that says what real ones once said, or something else: the far end of a session, for attacks on the controller.

`recorded/NAME.json` holds what the nodes of a real lab answered to one command, with its inventory and playbook; `record`
makes them. The controller in these tests is the real one; a node in somebody else's hands is what is played.
"""

from __future__ import annotations

import json
import queue
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from runbook.transport.bootstrap import SUPERVISOR_MARK
from runbook.transport.remote_program import MESSAGE_MARK as MESSAGE

FOLDER = Path(__file__).parent / "recorded"

Json = Any
Change = Callable[[str, Json], Json]
"""What becomes of something that is about to be said: (the program, or `hello`; what it would say) -> what it says."""


@dataclass(frozen=True)
class Recording:
    """`command` has {inventory}, {playbook} and {run} where the paths of those stand; it ended with `code`, and `causes` are
    those of a run. `said` has by node and program, in order: the answers of a call, or for a program that runs the messages
    of each start; null for what failed.
    """

    name: str
    command: tuple[str, ...]
    code: int
    causes: tuple[str, ...]
    inventory: str
    playbook: str
    said: Mapping[str, Mapping[str, list[Json]]]

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(self.said)

    @property
    def runs(self) -> bool:
        """A playbook, whose result says what became of each node."""
        return self.command[0] == "run"


def recordings() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


@cache
def recording(name: str) -> Recording:
    found = json.loads((FOLDER / f"{name}.json").read_text())
    command, causes = tuple(found.pop("command")), tuple(found.pop("causes"))
    return Recording(name, command=command, causes=causes, **found)


UNANSWERED = object()
"""What a change gives for a question that the node leaves unanswered."""


def unchanged(_program: str, said: Json) -> Json:
    return said


class OrderReader:
    """Cuts what the controller writes into its orders, each with its payload."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> Iterator[tuple[Json, bytes]]:
        self._held += data
        while b"\n" in self._held:
            line, _, rest = self._held.partition(b"\n")
            if line.startswith(b"exit #"):
                size = line[6:]
                if not size.isdigit():  # the name of an interpreter
                    self._held = rest
                    continue
                if len(rest) < int(size):
                    return
                self._held = rest[int(size) :]
                continue
            frame = json.loads(line)
            size = frame.get("bytes", 0)
            if len(rest) < size:
                return
            self._held = rest[size:]
            yield frame, zlib.decompress(rest[:size]) if size else b""


def asked(frame: Json) -> str | None:
    """The name in a recording of what this order makes a node say; None where that is told nowhere."""
    if frame["do"] == "call":
        return str(frame["program"]) + (f" {frame['arguments']['do']}" if "do" in frame["arguments"] else "")
    if frame["do"] == "read":
        return f"read {frame['path']}"
    if frame["do"] == "start":
        if frame["argv"][:2] == ["/bin/sh", "-c"]:
            return "shell"
        words = " ".join(frame["argv"])
        return next((name for name in ("mesh", "firewall_rules", "keeper") if f"/{name}.py" in words), "rank")
    return None


class RecordedNode:
    """A `Stream` to a node of a recording. `change` may alter whatever it says; `flood` is said without end from then on."""

    def __init__(self, said: Mapping[str, list[Json]], change: Change = unchanged) -> None:
        self._said = {program: list(answers) for program, answers in said.items()}
        self._change = change
        self._out: queue.Queue[bytes] = queue.Queue(maxsize=16)
        self._orders = OrderReader()
        self._orders_in: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._programs: dict[int, _Program] = {}
        self.closed = threading.Event()
        threading.Thread(target=self._live, daemon=True).start()

    # What the controller does.

    def write(self, data: bytes) -> None:
        if self.closed.is_set():
            raise OSError("closed")
        self._orders_in.put(data)

    def read(self) -> bytes:
        while True:
            try:
                return self._out.get(timeout=0.05)
            except queue.Empty:
                if self.closed.is_set():
                    return b""

    def close(self) -> None:
        self.closed.set()

    def kill(self) -> None:
        self.closed.set()

    unanswered: ClassVar[str] = "ssh-unreachable"
    shared = False

    def why(self, _says: str) -> None:
        return None

    def complaint(self) -> str:
        return ""

    # What the node does.

    def _live(self) -> None:
        while not self.closed.is_set():
            try:
                data = self._orders_in.get(timeout=0.2)
            except queue.Empty:
                continue
            for frame, payload in self._orders.feed(data):
                self._obey(frame, payload)

    def say(self, frame: Json, payload: bytes = b"") -> None:
        """A frame, unless it is bytes already."""
        line = frame if isinstance(frame, bytes) else json.dumps(frame).encode() + b"\n"
        self.put(line + payload)

    def put(self, data: bytes) -> None:
        """Wait for room as a full pipe does."""
        while not self.closed.is_set():
            try:
                self._out.put(data, timeout=0.05)
            except queue.Full:
                continue
            return

    def _obey(self, frame: Json, payload: bytes) -> None:
        order, number, name = frame["do"], frame.get("id"), asked(frame)
        if order == "config":
            self.put(SUPERVISOR_MARK)
            said = self._change("hello", dict(self._next("hello")))
            self.say(said + b"\n" if isinstance(said, bytes) else said)
        elif order == "beat":
            self.say({"event": "beat", "time": time.time(), "echo": frame.get("echo")})
        elif order == "call" and name:
            self._answer(number, name, self._next(name))
        elif order == "put":
            self.say({"id": number, "event": "done"})
        elif order == "read" and name:
            text = self._next(name)
            if text is None:
                failure = {
                    "type": "FileNotFoundError",
                    "errno": "ENOENT",
                    "text": "No such file",
                    "path": frame["path"],
                }
                self.say({"id": number, "event": "failed", "error": failure})
            else:
                data = str(self._change(name, text)).encode(errors="replace")
                self.say({"id": number, "event": "done", "bytes": len(data)}, data)
        elif order == "start" and name:
            self._programs[frame["id"]] = _Program(self, frame["id"], name)
        elif order in ("feed", "stop", "signal") and frame["program"] in self._programs:
            self._programs[frame["program"]].obey(order, frame, payload)
        elif order == "bye":
            self.say({"id": number, "event": "bye", "stopped": 0, "swept": 0, "left": []})

    def _answer(self, number: int, name: str, answer: Json) -> None:
        if answer is None:
            failure = {"type": "RuntimeError", "errno": None, "text": f"nothing of {name} was recorded", "path": ""}
            self.say({"id": number, "event": "failed", "error": failure})
            return
        changed = self._change(name, answer)
        if changed is UNANSWERED:
            return
        if isinstance(changed, bytes):
            self.put(b'{"id": %d, "event": "done", "answer": ' % number + changed + b"}\n")
        else:
            self.say({"id": number, "event": "done", "answer": changed})

    def _next(self, name: str) -> Json:
        """What was said at this place; the last thing again, where more is asked than was recorded."""
        answers = self._said.get(name, [])
        return json.loads(json.dumps(answers.pop(0) if len(answers) > 1 else answers[0])) if answers else None

    def changed(self, name: str, message: Json) -> Json:
        return self._change(name, message)

    def next(self, name: str) -> Json:
        return self._next(name)


class _Program:
    """Something that was started: the listeners, the look at packet filters, a rank, or a line of shell."""

    def __init__(self, node: RecordedNode, number: int, name: str) -> None:
        self._node = node
        self._id = number
        self._name = name
        self._left: list[Json] = node.next(self._name) or []
        self._over = False
        node.say({"id": self._id, "event": "started", "pid": 4242})
        if self._name in ("firewall_rules", "shell"):
            self._all()
            self._exit(0)
        elif self._name == "mesh":
            self._until(lambda message: "ports" in message)
        elif self._name == "keeper":
            self._until(lambda message: message.get("state") == "waiting")
        else:
            self._until(lambda message: message.get("step") in ("imported", "done"))

    def obey(self, order: str, frame: Json, payload: bytes) -> None:
        if order == "signal":
            return
        if order == "stop" or frame.get("end"):
            self._exit(0)
        elif self._name == "mesh":
            self._dial(json.loads(payload)["dial"])
        elif self._name == "keeper":
            self._all()
            self._exit(0)
        elif b"flight" not in payload:
            self._until(lambda message: message.get("step") == "done" or message["event"] == "failed")

    def _dial(self, targets: Json) -> None:
        recorded = next((message for message in self._left if "results" in message), None)
        if recorded:
            self._left.remove(recorded)
        if not recorded or len(recorded["results"]) != len(targets):
            blank = {"outcome": "open", "errno": None, "seconds": 0.01, "tries": 1, "retransmitted": 0}
            ends = {"local": "10.77.0.1", "remote": "10.77.0.2"}
            recorded = {"event": "dialled", "results": [{**target, **blank, **ends} for target in targets]}
        self._say(recorded)

    def _until(self, last: Callable[[Json], bool]) -> None:
        while self._left:
            message = self._left.pop(0)
            self._say(message)
            if last(message):
                return

    def _all(self) -> None:
        while self._left:
            self._say(self._left.pop(0))

    def _say(self, message: Json) -> None:
        changed = self._node.changed(self._name, message)
        if self._name == "shell":
            line = changed if isinstance(changed, bytes) else str(changed).encode(errors="surrogatepass")
        else:
            line = MESSAGE + (changed if isinstance(changed, bytes) else json.dumps(changed).encode()) + b"\n"
        for at in range(0, len(line), 65536):
            piece = line[at : at + 65536]
            self._node.say({"id": self._id, "event": "output", "stream": 1, "bytes": len(piece)}, piece)

    def _exit(self, code: int) -> None:
        if not self._over:
            self._over = True
            self._node.say({"id": self._id, "event": "exit", "code": code, "timed_out": False})
