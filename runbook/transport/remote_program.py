"""A program that runs on a node, as the controller sees it: its messages and output while it runs, and its end."""

from __future__ import annotations

import codecs
import json
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from runbook.model.errors import Unreachable
from runbook.node.message import MESSAGE_MARK as MARK_TEXT
from runbook.transport import node_answers
from runbook.transport.frames import MAX_FRAME_LINE_BYTES, Failure, Frame, UnexpectedAnswer

if TYPE_CHECKING:
    from runbook.transport.session import Session

Message = dict[str, Any]

MESSAGE_MARK = MARK_TEXT.encode()
"""The bytes before the JSON of a message; a line of output without them is log text."""

MAX_UNFINISHED_LINE_BYTES = 64 * 1024
"""Bytes (of decoded text: characters) of an unfinished line that are held back; a longer line is passed on in parts."""

MAX_STDERR_CHARACTERS = 64 * 1024
"""Characters of a program's stderr after which no more is kept."""

MAX_MESSAGES_BYTES = MAX_FRAME_LINE_BYTES
"""The most bytes of messages from one program in all. The messages of a rank grow by some hundred bytes a second."""

MAX_PROGRAM_OUTPUT_BYTES = 256 << 20
"""The most bytes that one program may print; then it is stopped. Larger output is written to files on the node."""

OUTPUT_HEAD_CHARACTERS, OUTPUT_TAIL_CHARACTERS = 1 << 20, 1 << 20
"""Characters from the beginning and from the end of a program's output that are kept in memory."""


@dataclass(frozen=True, slots=True)
class Answer:
    """How a program ended. `code` is negative for a signal, as in `subprocess`; None when it had not ended yet.

    `left_out`: the number of characters that are missing between the beginning and the end in `stdout`. `flooded`: the
    program was stopped because it printed more than MAX_PROGRAM_OUTPUT_BYTES.
    """

    code: int | None
    message: Message | None  # the last message
    stdout: str
    stderr: str
    timed_out: bool
    seconds: float
    left_out: int = 0
    flooded: bool = False


class _Output:
    """The beginning and the end of a long text: the first OUTPUT_HEAD_CHARACTERS and the last OUTPUT_TAIL_CHARACTERS
    characters."""

    def __init__(self) -> None:
        self._head: list[str] = []
        self._room = OUTPUT_HEAD_CHARACTERS
        self._tail: list[str] = []
        self._tail_size = 0
        self.left_out = 0

    def add(self, text: str) -> None:
        if self._room:
            self._head.append(text[: self._room])
            text = text[self._room :]
            self._room -= len(self._head[-1])
        if text:
            self._tail.append(text)
            self._tail_size += len(text)
            if self._tail_size > 2 * OUTPUT_TAIL_CHARACTERS:
                self._trim()

    def _trim(self) -> None:
        whole = "".join(self._tail)
        self.left_out += max(0, len(whole) - OUTPUT_TAIL_CHARACTERS)
        self._tail = [whole[-OUTPUT_TAIL_CHARACTERS:]]
        self._tail_size = len(self._tail[0])

    def text(self) -> str:
        self._trim()
        between = f"\n[{self.left_out} characters are left out here]\n" if self.left_out else ""
        return "".join((*self._head, between, *self._tail))


@dataclass
class _Text:
    """Splits one output stream of a program into messages, which follow MESSAGE_MARK in their line, and log text. A
    stream that is not `marked` is all log text.

    `on_message` gets the bytes that follow MESSAGE_MARK, and whether their line is whole; it returns whether they were
    a message. Raises UnexpectedAnswer for a message of more than MAX_FRAME_LINE_BYTES.
    """

    on_message: Callable[[bytes, bool], bool]
    on_log: Callable[[str], None]
    marked: bool
    pending: bytearray = field(default_factory=bytearray)
    message: bool = False  # whether MESSAGE_MARK is in the pending line
    edge: bytes = b""  # the last bytes of the pending line, where MESSAGE_MARK may begin
    held: str = ""  # the unfinished line of a stream that is not marked
    decoder: codecs.IncrementalDecoder = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))

    def feed(self, data: bytes, *, final: bool = False) -> None:
        """Take the next bytes of the stream; `final`: no more will come."""
        if not self.marked:
            # Only whole lines are passed on, so that a search in them works; a very long line goes on in parts.
            text = self.held + self.decoder.decode(data, final)
            whole = len(text) if final or len(text) > MAX_UNFINISHED_LINE_BYTES else text.rfind("\n") + 1
            self.held = text[whole:]
            if whole:
                self.on_log(text[:whole])
            return
        first, newline, rest = data.partition(b"\n")
        self._hold(first)
        if newline:
            self._line(self._release())
            lines, newline, last = rest.rpartition(b"\n")
            if newline and MESSAGE_MARK not in lines:  # the quick way for by far the most common case
                self.on_log((lines + newline).decode(errors="replace"))
            elif newline:
                for line in lines.split(b"\n"):
                    self._line(line)
            self._hold(last)
        if final and self.pending:
            self._line(self._release(), whole=False)
        elif len(self.pending) > MAX_UNFINISHED_LINE_BYTES and not self.message:
            whole_line = self._release()
            kept = len(whole_line) - len(MESSAGE_MARK)  # MESSAGE_MARK may have begun to arrive
            self.on_log(whole_line[:kept].decode(errors="replace"))
            self._hold(whole_line[kept:])
        elif len(self.pending) > MAX_FRAME_LINE_BYTES:
            self.pending = bytearray()  # else the end of the program would read it once more
            raise UnexpectedAnswer(f"a message of more than {MAX_FRAME_LINE_BYTES >> 20} MiB")

    def _hold(self, piece: bytes) -> None:
        """Keep a piece of an unfinished line, and note whether MESSAGE_MARK is in the line, also when two pieces share
        it."""
        if not piece:
            return
        self.message = self.message or MESSAGE_MARK in self.edge + piece
        self.edge = (self.edge + piece[-len(MESSAGE_MARK) :])[-len(MESSAGE_MARK) :]
        self.pending += piece

    def _release(self) -> bytes:
        line = bytes(self.pending)
        self.pending, self.message, self.edge = bytearray(), False, b""
        return line

    def _line(self, line: bytes, *, whole: bool = True) -> None:
        _, mark, body = line.partition(MESSAGE_MARK)
        if not (mark and self.on_message(body, whole)):
            self.on_log(line.decode(errors="replace") + "\n")


class Remote:
    """A program that was started on a node. Messages go to `on_message`, or else to `messages` and the answer; output
    goes to `on_log`, or else to the answer; `on_output` gets output as well; `on_end` is called when it has ended."""

    def __init__(
        self,
        session: Session,
        number: int,
        says: node_answers.Messages | None,
        *,
        on_message: Callable[[Message], None] | None = None,
        on_log: Callable[[str], None] | None = None,
        on_end: Callable[[], None] | None = None,
        on_output: Callable[[str], None] | None = None,
    ) -> None:
        self._session = session
        self.number = number
        self.pid: int | None = None
        self.over = threading.Event()
        self.started = threading.Event()
        self.error: Failure | None = None
        self.lost: Unreachable | None = None
        self.code: int | None = None
        self.timed_out = False
        self.flooded = False
        self._says = says
        self._on_message = on_message
        self._on_log = on_log
        self._on_end = on_end
        self._on_output = on_output
        self._last: Message | None = None
        self._arrived: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._room = MAX_MESSAGES_BYTES
        self._printed = 0
        self._out = _Output()
        self._err: list[str] = []
        self._err_size = 0
        self._begun = time.monotonic()
        self._ended = self._begun
        self._texts = {
            1: _Text(self._said, self._logged, marked=says is not None),
            2: _Text(self._said, self._complained, marked=False),
        }

    # What the reader thread calls.

    def _said(self, body: bytes, whole: bool) -> bool:
        """Take a message; whether the bytes behind MESSAGE_MARK were one. Raises UnexpectedAnswer."""
        message = node_answers.checked_message(self._says, body, whole=whole) if self._says else None
        if message is None:
            return False
        self._room -= len(body)
        if self._room < 0:
            raise UnexpectedAnswer(f"messages of more than {MAX_MESSAGES_BYTES >> 20} MiB")
        self._last = message
        if self._on_message:
            self._on_message(message)
        else:
            self._arrived.put(message)
        return True

    def _logged(self, text: str) -> None:
        if self._on_output:
            self._on_output(text)
        if self._on_log:
            self._on_log(text)
        else:
            self._out.add(text)

    def _complained(self, text: str) -> None:
        if self._on_output:
            self._on_output(text)
        if self._on_log:
            self._on_log(text)
        if self._err_size < MAX_STDERR_CHARACTERS:
            self._err.append(text[:MAX_STDERR_CHARACTERS])
            self._err_size += len(text)

    def handle(self, frame: Frame, payload: bytes) -> None:
        if frame.event == "started":
            self.pid = frame.pid
            self.started.set()
        elif frame.event == "output":
            self._take(frame.stream, payload)
        elif frame.event == "failed":
            self.error = frame.error
            self._end()
        elif frame.event == "exit":
            self.code = frame.code
            self.timed_out = frame.timed_out
            self._end()

    def _take(self, stream: int, payload: bytes) -> None:
        """Take output; stop a program that prints more than MAX_PROGRAM_OUTPUT_BYTES. Raises UnexpectedAnswer."""
        self._printed += len(payload)
        if self.flooded:
            if self._printed > 2 * MAX_PROGRAM_OUTPUT_BYTES:
                raise UnexpectedAnswer(
                    f"more than {2 * MAX_PROGRAM_OUTPUT_BYTES >> 20} MiB of a program that was to be stopped"
                )
            return
        self._texts[stream].feed(payload)
        if self._printed > MAX_PROGRAM_OUTPUT_BYTES:
            self.flooded = True
            # In a thread of its own: this one reads from the node, and must not wait to write into a full pipe.
            threading.Thread(target=self._stop_flood, daemon=True).start()

    def _stop_flood(self) -> None:
        try:
            self.stop(0.0)
        except Unreachable:
            return

    def lose(self, reason: Unreachable) -> None:
        if not self.over.is_set():
            self.lost = reason
            self._end()

    def _end(self) -> None:
        for text in self._texts.values():
            try:
                text.feed(b"", final=True)
            except UnexpectedAnswer as error:
                self.lost = self.lost or self._session.unexpected("a program that runbook started there", error)
        self._ended = time.monotonic()
        self.started.set()
        self.over.set()
        self._arrived.put(None)
        if self._on_end:
            self._on_end()

    # What callers use.

    def messages(self, timeout_s: float) -> Iterator[Message]:
        """The messages as they arrive, until the program ends or `timeout_s` is over."""
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
        """Write to the program's stdin, and close it after that if `end`. Raises Unreachable."""
        self._session.order({"do": "feed", "program": self.number, "end": end}, data)

    def tell(self, message: Message) -> None:
        """Write a message to the program's stdin, as one line of JSON. Raises Unreachable."""
        self.feed(json.dumps(message).encode() + b"\n")

    def signal(self, name: str) -> None:
        self._session.order({"do": "signal", "program": self.number, "signal": name})

    def stop(self, grace_s: float = 1.0) -> None:
        """Have the node end the program: TERM, and KILL after `grace_s`. Does not wait. Raises Unreachable."""
        self._session.order({"do": "stop", "program": self.number, "grace": grace_s})

    def wait(self, timeout_s: float) -> Answer:
        """How the program ended; it is stopped if it has not ended within `timeout_s`. Raises Unreachable when the node
        was lost, and ProgramNotStarted."""
        timed_out = not self.over.wait(timeout_s)
        if timed_out:
            self.stop()
            self.over.wait(3.0)
        if self.lost:
            raise self.lost
        if self.error:
            raise ProgramNotStarted(self.error)
        return Answer(
            code=self.code,
            message=self._last,
            stdout=self._out.text(),
            stderr="".join(self._err),
            timed_out=timed_out or self.timed_out,
            seconds=self._ended - self._begun,
            left_out=self._out.left_out,
            flooded=self.flooded,
        )


class ProgramNotStarted(RuntimeError):
    """The supervisor could not carry out an order: `error` has the exception's type, errno name, text and path."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        self.error: dict[str, Any] = {**error}
        super().__init__(f"{error.get('path', '')}: {error.get('text', '')}".strip(": "))
