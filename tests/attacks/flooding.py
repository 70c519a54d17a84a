"""One command against a node that says something without end. A program of its own, so that its memory is its own.

`python -m attacks.flooding RECORDING WHEN WHAT FOLDER` prints {"code", "complaint", "cpu_s", "more_mb", "longest_line", "text"}, where
`more_mb` is what the peak of memory rose by, over a run in which nobody floods.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from runbook.transport.remote_program import MESSAGE_MARK as MESSAGE

from .hostile_run import attack, changing
from .recorded_node import Json, RecordedNode, Recording, recording, unchanged


def _frames(line: bytes) -> Iterator[bytes]:
    while True:
        yield line * (65536 // len(line) + 1)


def _once_then(first: bytes, rest: bytes) -> Iterator[bytes]:
    yield first
    yield from _frames(rest)


def _output(id: int, piece: bytes) -> bytes:
    return b'{"id": %d, "event": "output", "stream": 1, "bytes": %d}\n' % (id, len(piece)) + piece


FLOODS: Mapping[str, Callable[[int], Iterator[bytes]]] = {
    "a line without end": lambda id: _frames(b"x" * 65536),
    "a JSON line without end": lambda id: _once_then(b'{"event": "done", "answer": {"a": "', b"x" * 65536),
    "nesting without end": lambda id: _frames(b"[" * 65536),
    "nesting in a line": lambda id: _frames(b'{"event": "done", "answer": ' + b"[" * 20000 + b"]" * 20000 + b"}\n"),
    "payload without end": lambda id: _once_then(
        b'{"event": "output", "id": %d, "bytes": 1048576}\n' % id, b"x" * 65536
    ),
    "a payload that is too large": lambda id: _frames(b'{"event": "output", "id": %d, "bytes": 99999999999}\n' % id),
    "a negative payload": lambda id: _frames(b'{"event": "output", "id": %d, "bytes": -5}\n' % id),
    "no object": lambda id: _frames(b"[1, 2]\n"),
    "beats": lambda id: _frames(b'{"event": "beat", "time": 1.0, "echo": null}\n'),
    "beats that were asked for": lambda id: _frames(b'{"event": "beat", "time": 1.0, "echo": "clock-4"}\n'),
    "answers to nobody": lambda id: _frames(b'{"event": "done", "id": 99999, "answer": [1]}\n'),
    "hellos": lambda id: _frames(b'{"event": "hello"}\n'),
    "output of a program": lambda id: _frames(_output(id, b"y\n" * 32768)),
    "output in small pieces": lambda id: _frames(_output(id, b"y\n")),
    "output without a line's end": lambda id: _frames(_output(id, b"z" * 65536)),
    "messages": lambda id: _frames(_output(id, MESSAGE + b'{"event": "beat", "phase": "x", "size": 1}\n')),
    "a message without end": lambda id: _once_then(
        _output(id, MESSAGE + b'{"event": "failed", "text": "'), _output(id, b"x" * 65536)
    ),
    "empty objects": lambda id: _once_then(b'{"event": "done", "id": %d, "answer": {"targets": [' % id, b"{}," * 20000),
    "carriage returns": lambda id: _frames(b"\r" * 65536),
    "the end of a program, again and again": lambda id: _frames(b'{"event": "exit", "id": %d, "code": 0}\n' % id),
}


class FloodingNode(RecordedNode):
    """From the moment when this program would speak, something without end in its name, until the pipe is closed."""

    def __init__(self, said: Mapping[str, list[Json]], when: str, flood: Callable[[int], Iterator[bytes]]) -> None:
        super().__init__(said, self._begin)
        self._when = when
        self._flood: Callable[[int], Iterator[bytes]] | None = flood
        self._id = 0  # of the order that is obeyed

    def _obey(self, frame: Json, payload: bytes) -> None:
        of = frame.get("program")
        self._id = of if isinstance(of, int) else frame.get("id", 0)
        super()._obey(frame, payload)

    def _begin(self, program: str, said: Json) -> Json:
        if program == self._when and self._flood is not None:
            flood, self._flood = self._flood, None
            threading.Thread(target=self._pour, args=(flood(self._id),), daemon=True).start()
        return said

    def _pour(self, flood: Iterator[bytes]) -> None:
        for piece in flood:
            if self.closed.is_set():
                return
            self.put(piece)


def peak_mb() -> int:
    """The most memory that this program has had; rusage also counts what whoever started it had."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024


def main(name: str, when: str, what: str, folder: str) -> None:
    def make(found: Recording, node: str) -> RecordedNode:
        said = found.said[node]
        return FloodingNode(said, when, FLOODS[what]) if node == "node-b" else RecordedNode(said)

    found = recording(name)
    attack(found, changing("", unchanged), Path(folder) / "calm")
    before = peak_mb()
    done = attack(found, make, Path(folder) / "flood")
    told = {
        "code": done.code,
        "complaint": done.complaint(),
        "cpu_s": round(done.cpu_s, 2),
        "more_mb": peak_mb() - before,
        "seconds": round(done.seconds, 1),
        "longest_line": max(map(len, str(done).splitlines())),
        "text": str(done)[-3000:],
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
