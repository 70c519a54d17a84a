"""One command against a node that says something without end. A program of its own, so that its memory is its own.

`python -m attacks.flooding RECORDING WHEN WHAT FOLDER` prints {"code", "complaint", "cpu_s", "more_mb", "text"}, where
`more_mb` is what the peak of memory rose by, over a run in which nobody floods.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from runbook.transport.remote_program import MARK as MESSAGE

from .hostile_run import attack, changing
from .recorded_node import Json, RecordedNode, Recording, recording, unchanged


def _frames(line: bytes) -> Iterator[bytes]:
    while True:
        yield line * (65536 // len(line) + 1)


def _once_then(first: bytes, rest: bytes) -> Iterator[bytes]:
    yield first
    yield from _frames(rest)


def _output(piece: bytes, number: int = 4) -> bytes:
    return b'{"id": %d, "event": "output", "stream": 1, "bytes": %d}\n' % (number, len(piece)) + piece


FLOODS: Mapping[str, Iterator[bytes]] = {
    "a line without end": _frames(b"x" * 65536),
    "a JSON line without end": _once_then(b'{"event": "done", "answer": {"a": "', b"x" * 65536),
    "nesting without end": _frames(b"[" * 65536),
    "nesting in a line": _frames(b'{"event": "done", "answer": ' + b"[" * 20000 + b"]" * 20000 + b"}\n"),
    "payload without end": _once_then(b'{"event": "output", "id": 4, "bytes": 1048576}\n', b"x" * 65536),
    "a payload that is too large": _frames(b'{"event": "output", "id": 4, "bytes": 99999999999}\n'),
    "a negative payload": _frames(b'{"event": "output", "id": 4, "bytes": -5}\n'),
    "no object": _frames(b"[1, 2]\n"),
    "beats": _frames(b'{"event": "beat", "time": 1.0, "echo": null}\n'),
    "beats that were asked for": _frames(b'{"event": "beat", "time": 1.0, "echo": "clock-4"}\n'),
    "answers to nobody": _frames(b'{"event": "done", "id": 99999, "answer": [1]}\n'),
    "hellos": _frames(b'{"event": "hello"}\n'),
    "output of a program": _frames(_output(b"y\n" * 32768)),
    "output in small pieces": _frames(_output(b"y\n")),
    "output without a line's end": _frames(_output(b"z" * 65536)),
    "messages": _frames(_output(MESSAGE + b'{"event": "beat", "phase": "x", "size": 1}\n')),
    "a message without end": _once_then(_output(MESSAGE + b'{"event": "failed", "text": "'), _output(b"x" * 65536)),
    "empty objects": _once_then(b'{"event": "done", "id": 5, "answer": {"targets": [', b"{}," * 20000),
    "carriage returns": _frames(b"\r" * 65536),
    "the end of a program, again and again": _frames(b'{"event": "exit", "id": 4, "code": 0}\n'),
}


class FloodingNode(RecordedNode):
    """From the moment when this program would speak, something without end, until the pipe is closed."""

    def __init__(self, said: Mapping[str, list[Json]], when: str, flood: Iterator[bytes]) -> None:
        super().__init__(said, self._begin)
        self._when = when
        self._flood: Iterator[bytes] | None = flood

    def _begin(self, program: str, said: Json) -> Json:
        if program == self._when and self._flood is not None:
            flood, self._flood = self._flood, None
            threading.Thread(target=self._pour, args=(flood,), daemon=True).start()
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
        "text": str(done)[-3000:],
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
