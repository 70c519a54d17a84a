"""Frames as a supervisor sends them: a line with one JSON object, then as many bytes of payload as its `bytes` says.

A node may be broken or controlled by an attacker. So buffers have limits, the work grows only with the data that
arrives, and data that does not fit the described types raises `UnexpectedAnswer`, which names the field.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypedDict

import msgspec
from msgspec import Meta

from runbook.node.proc import MAX_ANSWER_INTEGER

MAX_FRAME_LINE_BYTES = 24 << 20
"""The most bytes of one line. The longest lines that a node has reason to send hold the rules of its packet filters."""

MAX_PAYLOAD_BYTES = 1 << 20
"""The most bytes of payload behind a line. A supervisor sends the output of programs in pieces of 64 KiB, and the first
MiB of a file."""

MIN_INTEGER, MAX_INTEGER = -MAX_ANSWER_INTEGER, MAX_ANSWER_INTEGER

Count = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
Integer = Annotated[int, Meta(ge=MIN_INTEGER, le=MAX_INTEGER)]
Pid = Annotated[int, Meta(ge=1, le=1 << 31)]
ExitCode = Annotated[int, Meta(ge=-256, le=1 << 32)]
ShortText = Annotated[str, Meta(max_length=4096)]
"""A name, a path, a sentence. It may hold any character: the code that prints it has to escape it."""

LongText = Annotated[str, Meta(max_length=MAX_FRAME_LINE_BYTES)]

Seconds = Annotated[float, Meta(ge=0, le=1e12)]
Milliseconds = Annotated[float, Meta(ge=0, le=1e12)]
UnixTime = Annotated[float, Meta(ge=-1e12, le=1e12)]


class UnexpectedAnswer(ValueError):
    """A node sent data that our own program never sends. The text names the field, and what is wrong with it."""


class Failure(TypedDict):
    """An exception on the node as data. `errno` is the name of the error number, such as ENOSPC."""

    type: ShortText
    errno: Annotated[str, Meta(pattern=r"\A[A-Z0-9]{1,32}\Z")] | None
    text: Annotated[str, Meta(max_length=1 << 16)]
    path: ShortText


class Frame(msgspec.Struct, frozen=True, gc=False):
    """The line of a frame. `event` decides which other fields have a meaning; `bytes` bytes of payload follow."""

    event: Literal["hello", "beat", "started", "output", "exit", "failed", "done", "bye"]
    id: Count | None = None
    bytes: Annotated[int, Meta(ge=0, le=MAX_PAYLOAD_BYTES)] = 0
    time: UnixTime = 0.0
    echo: ShortText | None = None
    pid: Pid | None = None
    stream: Literal[1, 2] = 1
    code: ExitCode | None = None
    timed_out: bool = False
    error: Failure = msgspec.field(default_factory=lambda: Failure(type="", errno=None, text="", path=""))
    answer: msgspec.Raw = msgspec.Raw(b"null")
    stopped: Count = 0
    swept: Count = 0
    left: Annotated[list[Pid], Meta(max_length=10_000)] = []


_FRAME_DECODER = msgspec.json.Decoder(Frame)


class FrameReader:
    """Cuts the arriving bytes into frames, in time proportional to their number."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._searched = 0  # the buffer has no line end before this offset
        self._frame: Frame | None = None  # a frame whose payload has not arrived whole
        self.line = b""
        """The line of the frame that `feed` gave last."""

    def feed(self, data: bytes) -> Iterator[tuple[Frame, bytes]]:
        """Every frame that is complete with this data, and its payload. Raises UnexpectedAnswer."""
        self._buffer += data
        while True:
            if self._frame is None:
                end = self._buffer.find(b"\n", self._searched)
                if (len(self._buffer) if end < 0 else end) > MAX_FRAME_LINE_BYTES:
                    raise UnexpectedAnswer(f"a line of more than {MAX_FRAME_LINE_BYTES >> 20} MiB")
                if end < 0:
                    self._searched = len(self._buffer)
                    return
                self.line = bytes(memoryview(self._buffer)[:end])
                self._drop(end + 1)
                self._frame = _decode_with(_FRAME_DECODER, self.line)
            if len(self._buffer) < self._frame.bytes:
                return
            frame, self._frame = self._frame, None
            payload = bytes(memoryview(self._buffer)[: frame.bytes])
            self._drop(frame.bytes)
            yield frame, payload

    def _drop(self, count: int) -> None:
        del self._buffer[:count]  # moves no bytes: a bytearray keeps the offset of its beginning
        self._searched = 0


def decode_json(data: bytes, description: Any) -> Any:
    """The value of the JSON `data`, as the type `description`. Raises UnexpectedAnswer with the field that does not
    fit."""
    return _decode_with(_json_decoder(description), data)


_DECODERS: dict[Any, msgspec.json.Decoder[Any]] = {}


_DECODERS_LOCK = threading.Lock()
"""Held while a decoder is made. msgspec crashes the interpreter when two threads make decoders of a new type at once:
the second thread finds the half-made work of the first (seen with 0.22)."""


def _json_decoder(description: Any) -> msgspec.json.Decoder[Any]:
    if description not in _DECODERS:
        with _DECODERS_LOCK:
            _DECODERS[description] = msgspec.json.Decoder(description, dec_hook=_construct_own_type)
    return _DECODERS[description]


def _construct_own_type(kind: Any, value: object) -> object:
    """An object of one of our own types, made from a decoded value: its constructor checks it and raises ValueError."""
    return kind(value)


def _decode_with(decoder: msgspec.json.Decoder[Any], data: bytes) -> Any:
    try:
        return decoder.decode(_without_lone_surrogates(data))
    except (ValueError, RecursionError, TypeError) as error:
        raise UnexpectedAnswer(str(error)) from None


_JSON_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|u[dD][89a-fA-F]..|.)")
_LONE_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]..\Z")


def _without_lone_surrogates(data: bytes) -> bytes:
    """JSON with `?` for every lone surrogate. Python on the node writes a byte of a file name that is no text as one
    half of a surrogate pair, and such a half cannot be printed."""
    if b"\\ud" not in data and b"\\uD" not in data:
        return data
    return _JSON_ESCAPE.sub(lambda escape: b"?" if _LONE_SURROGATE.match(escape[0]) else escape[0], data)
