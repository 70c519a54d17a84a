"""runbook itself, with an ear on every connection: what each node says goes into a file, as `RecordedNode` plays it back.

`python -m attacks.wiretap FILE WORDS…` runs `runbook WORDS…`, and writes {node: {program: [what it said, …]}} when it ends.
"""

from __future__ import annotations

import json
import sys
import threading
from collections import defaultdict
from pathlib import Path
from typing import ClassVar
from unittest import mock

from runbook.cli.main import main as runbook
from runbook.model.errors import Unreachable
from runbook.model.inventory import Node
from runbook.transport.bootstrap import SUPERVISOR_MARK
from runbook.transport.frames import Frame, FrameReader
from runbook.transport.node_sessions import Site
from runbook.transport.remote_program import MESSAGE_MARK as MESSAGE
from runbook.transport.stream import Stream

from .recorded_node import Json, OrderReader, asked

Said = dict[str, list[Json]]


class Tapped:
    """A `Stream` that writes down what passes it, in the order in which it was asked for."""

    unanswered: ClassVar[str] = "ssh-unreachable"
    shared = False

    def __init__(self, stream: Stream, said: Said) -> None:
        self._stream = stream
        self._said = said
        self._orders = OrderReader()
        self._frames = FrameReader()
        self._opened = False
        self._before = b""
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[list[Json], int]] = {}  # the list and the place where the answer belongs
        self._printed: dict[int, tuple[str, bytearray]] = {}

    def write(self, data: bytes) -> None:
        with self._lock:
            for frame, _ in self._orders.feed(data):
                if name := asked(frame):
                    answers = self._said[name]
                    self._waiting[frame["id"]] = answers, len(answers)
                    answers.append(None)
                    if frame["do"] == "start":
                        self._printed[frame["id"]] = name, bytearray()
        self._stream.write(data)

    def read(self) -> bytes:
        data = self._stream.read()
        with self._lock:
            self._hear(data)
        return data

    def _hear(self, data: bytes) -> None:
        if not self._opened:
            _, mark, rest = (self._before + data).partition(SUPERVISOR_MARK)
            self._opened = bool(mark)
            self._before += data
            data = rest
        for frame, payload in self._frames.feed(data):
            if frame.event == "hello":
                self._said["hello"].append(json.loads(self._frames.line))
            elif frame.id in self._printed and frame.event == "output" and frame.stream == 1:
                self._printed[frame.id][1].extend(payload)
            elif frame.id in self._waiting and frame.event == "done":
                self._answered(frame, payload)

    def _answered(self, frame: Frame, payload: bytes) -> None:
        assert frame.id is not None
        answers, place = self._waiting.pop(frame.id)
        answers[place] = payload.decode(errors="replace") if payload else json.loads(bytes(frame.answer))

    def programs_are_over(self) -> None:
        """Put what programs printed in its place."""
        for number, (name, printed) in self._printed.items():
            answers, place = self._waiting[number]
            text = bytes(printed)
            messages = [line.partition(MESSAGE)[2] for line in text.split(b"\n") if MESSAGE in line]
            answers[place] = [text.decode(errors="replace")] if name == "shell" else [json.loads(m) for m in messages]

    def close(self) -> None:
        self._stream.close()

    def kill(self) -> None:
        self._stream.kill()

    def why(self, says: str) -> Unreachable | None:
        return self._stream.why(says)

    def complaint(self) -> str:
        return self._stream.complaint()


def main(file: str, *words: str) -> int:
    tapped: list[Tapped] = []
    said: dict[str, Said] = defaultdict(lambda: defaultdict(list))
    connect = Site._stream

    def stream(site: Site, node: Node) -> Tapped:
        tapped.append(Tapped(connect(site, node), said[node.name]))
        return tapped[-1]

    try:
        with mock.patch.object(Site, "_stream", stream):
            return runbook(list(words))
    finally:
        for one in tapped:
            one.programs_are_over()
        Path(file).write_text(json.dumps(said))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
