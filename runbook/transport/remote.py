"""A program that runs on a node, as the controller sees it: its messages while it runs, and how it ended."""

from __future__ import annotations

import codecs
import contextlib
import json
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from runbook.model.errors import Unreachable

if TYPE_CHECKING:
    from runbook.transport.session import Session

Message = dict[str, Any]

MARK = b"\x1erunbook "
"""Starts each JSON line that a node program says to us; every other line it prints is its log."""

LONGEST_LINE = 64 * 1024
STDERR_LIMIT = 64 * 1024


def from_json(data: bytes) -> Any:
    """What a node says. A name there may be of bytes that are no text, and JSON can say even that; nobody could print it."""
    said = json.loads(data)
    return _as_text(said) if re.search(rb"\\u[dD][89a-fA-F]", data) else said


def _as_text(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, list):
        return [_as_text(item) for item in value]
    if isinstance(value, dict):
        return {_as_text(key): _as_text(item) for key, item in value.items()}
    return value


@dataclass(frozen=True, slots=True)
class Answer:
    """How a program ended. `code` is negative for a signal, as in `subprocess`; `None` when the node was lost."""

    code: int | None
    messages: tuple[Message, ...]
    stdout: str
    stderr: str
    timed_out: bool
    seconds: float

    @property
    def message(self) -> Message | None:
        """The last thing the program said, for programs that say one thing."""
        return self.messages[-1] if self.messages else None


@dataclass
class _Text:
    """Decodes a byte stream into lines: JSON messages behind the mark, everything else as log text."""

    on_message: Callable[[Message], None]
    on_log: Callable[[str], None]
    marked: bool
    pending: bytes = b""
    held: str = ""
    decoder: codecs.IncrementalDecoder = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))

    def feed(self, data: bytes, *, final: bool = False) -> None:
        if not self.marked:
            # Whole lines, so that whoever looks for something in them finds it; but not for ever.
            text = self.held + self.decoder.decode(data, final)
            whole = len(text) if final or len(text) > LONGEST_LINE else text.rfind("\n") + 1
            self.held = text[whole:]
            if whole:
                self.on_log(text[:whole])
            return
        *lines, self.pending = (self.pending + data).split(b"\n")
        if final and self.pending:
            lines.append(self.pending)
            self.pending = b""
        if len(self.pending) > LONGEST_LINE and MARK not in self.pending:
            kept = len(self.pending) - len(MARK)  # a mark may have begun to arrive
            self.on_log(self.pending[:kept].decode(errors="replace"))
            self.pending = self.pending[kept:]
        for line in lines:
            _, mark, body = line.partition(MARK)
            if mark:
                with contextlib.suppress(ValueError):
                    message = from_json(body)
                    if isinstance(message, dict):
                        self.on_message(message)
                        continue
            self.on_log(line.decode(errors="replace") + "\n")


class Remote:
    """A program that was started on a node. Its messages arrive while it runs."""

    def __init__(
        self,
        session: Session,
        number: int,
        on_message: Callable[[Message], None] | None,
        on_log: Callable[[str], None] | None,
        on_end: Callable[[], None] | None,
    ) -> None:
        self._session = session
        self.number = number
        self.pid: int | None = None
        self.over = threading.Event()
        self.started = threading.Event()
        self.error: Mapping[str, str] | None = None
        self.lost: Unreachable | None = None
        self.code: int | None = None
        self.timed_out = False
        self._on_message = on_message
        self._on_log = on_log
        self._on_end = on_end
        self._messages: list[Message] = []
        self._arrived: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._out: list[str] = []
        self._err: list[str] = []
        self._err_size = 0
        self._begun = time.monotonic()
        self._ended = self._begun
        self._texts = {1: _Text(self._said, self._logged, True), 2: _Text(self._said, self._complained, False)}

    # What the reader thread calls.

    def _said(self, message: Message) -> None:
        self._messages.append(message)
        self._arrived.put(message)
        if self._on_message:
            self._on_message(message)

    def _logged(self, text: str) -> None:
        if self._on_log:
            self._on_log(text)
        else:
            self._out.append(text)

    def _complained(self, text: str) -> None:
        if self._on_log:
            self._on_log(text)
        if self._err_size < STDERR_LIMIT:
            self._err.append(text)
            self._err_size += len(text)

    def handle(self, frame: Message, payload: bytes) -> None:
        event = frame["event"]
        if event == "started":
            self.pid = frame["pid"]
            self.started.set()
        elif event == "output":
            self._texts[frame["stream"]].feed(payload)
        elif event == "failed":
            self.error = frame["error"]
            self._end()
        elif event == "exit":
            self.code = frame["code"]
            self.timed_out = frame["timed_out"]
            self._end()

    def lose(self, reason: Unreachable) -> None:
        self.lost = reason
        self._end()

    def _end(self) -> None:
        for text in self._texts.values():
            text.feed(b"", final=True)
        self._ended = time.monotonic()
        self.started.set()
        self.over.set()
        self._arrived.put(None)
        if self._on_end:
            self._on_end()

    # What callers use.

    def messages(self, timeout_s: float) -> Iterator[Message]:
        """Messages as they arrive; ends when the program ends or the time is up."""
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            try:
                message = self._arrived.get(timeout=left)
            except queue.Empty:
                return
            if message is None:
                return
            yield message

    def feed(self, data: bytes, *, end: bool = False) -> None:
        self._session.order({"do": "feed", "program": self.number, "end": end}, data)

    def tell(self, message: Message) -> None:
        self.feed(json.dumps(message).encode() + b"\n")

    def signal(self, name: str) -> None:
        self._session.order({"do": "signal", "program": self.number, "signal": name})

    def stop(self, grace_s: float = 1.0) -> None:
        self._session.order({"do": "stop", "program": self.number, "grace": grace_s})

    def wait(self, timeout_s: float) -> Answer:
        """How it ended. Raises Unreachable if the node was lost; stops the program if the time is up."""
        timed_out = not self.over.wait(timeout_s)
        if timed_out:
            self.stop()
            self.over.wait(3.0)
        if self.lost:
            raise self.lost
        if self.error:
            raise ProgramNotStarted(dict(self.error))
        return Answer(
            self.code,
            tuple(self._messages),
            "".join(self._out),
            "".join(self._err),
            timed_out or self.timed_out,
            self._ended - self._begun,
        )


class ProgramNotStarted(RuntimeError):
    """The supervisor could not do what it was asked: `error` has type, errno name, text and path."""

    def __init__(self, error: dict[str, str]) -> None:
        self.error = error
        super().__init__(f"{error.get('path', '')}: {error.get('text', '')}".strip(": "))
