"""The bytes of a log as UTF-8 text: unpacked, decoded, holes of NULs dropped, a saved page of HTML stripped.

Packed bytes (gzip, bzip2, xz, zstd) are a stream that only goes forward, in memory and work in proportion to its size
on disk. A packed file may come from an attacker: ten megabytes can claim to be ten gigabytes. So no more is unpacked
than an honest log of that size would give, and no more memory is used than an honest packer needs. Nothing is dropped
in silence: `Account` records what was changed, and what could not be understood.
"""

from __future__ import annotations

import bz2
import codecs
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from itertools import chain
from typing import BinaryIO, Protocol

# --- packed bytes ---------------------------------------------------------------------------------------------------

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

BLOCK = 16 << 10  # packed bytes that are taken at once
FREE = 64 << 20  # unpacked bytes that anything may have
RATIO = 100  # unpacked bytes for each packed one, beyond FREE: logs have 5 to 30
PARTS = 1000  # packed files behind one another, and one more for each BYTES_A_PART
BYTES_A_PART = 100
XZ_MEMORY = 72 << 20  # `xz -9` asks for 65 MiB
ZSTD_WINDOW = 25  # 32 MiB, as a power of two; `zstd -19` asks for 8 MiB


class UnreadError(Exception):
    """Something cannot be read, or not from here on; the message says why, and names no file."""


class _Decoder(Protocol):
    """What bz2, lzma and zstd have in common."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class _Gzip:
    """zlib's decoder, with the ways of the others."""

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(zlib.MAX_WBITS | 16)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._zlib.eof

    @property
    def unused_data(self) -> bytes:
        return self._zlib.unused_data

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        out = self._zlib.decompress(self._zlib.unconsumed_tail + data, max_length)
        self.needs_input = len(out) < max_length and not self._zlib.unconsumed_tail
        return out


def _xz() -> _Decoder:
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY)


def _zstd() -> _Decoder:
    return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: ZSTD_WINDOW})


@dataclass(frozen=True, slots=True)
class Packing:
    """How something is packed. `unpack` is the command that does by hand what is not done here."""

    name: str
    magics: tuple[bytes, ...]
    decoder: Callable[[], _Decoder]
    unpack: str

    def begins(self, head: bytes) -> bool:
        return head.startswith(self.magics)


_SKIPPABLE = tuple(bytes([0x50 + at, 0x2A, 0x4D, 0x18]) for at in range(16))
"""Frames of zstd that hold no data; pzstd begins with one."""
PACKINGS = (
    Packing("gzip", (b"\x1f\x8b\x08",), _Gzip, "gzip -dc"),
    Packing("bzip2", (b"BZh",), bz2.BZ2Decompressor, "bzip2 -dc"),
    Packing("xz", (b"\xfd7zXZ\0",), _xz, "xz -dc"),
    Packing("zstd", (b"\x28\xb5\x2f\xfd", *_SKIPPABLE), _zstd, "zstd -dc --long=31"),
)
_DAMAGED = (zlib.error, lzma.LZMAError, zstd.ZstdError, OSError, EOFError, ValueError)


def packing_of(head: bytes) -> Packing | None:
    """By the first bytes, whatever the name says."""
    return next((packing for packing in PACKINGS if packing.begins(head)), None)


class Unpacked:
    """The unpacked bytes of `stream`, forward only."""

    def __init__(self, stream: BinaryIO, packing: Packing) -> None:
        self._stream = stream
        self._packing = packing
        self._decoder: _Decoder | None = None
        self._parts = 0
        self._rest = b""
        self._at = 0
        self.packed = 0  # bytes taken so far

    def tell(self) -> int:
        return self._at

    def read(self, most: int) -> bytes:
        """Up to `most` bytes, none at the end. UnreadError when it is damaged or breaks off: what came before is
        good."""
        while True:
            if self._decoder is None and not self._next_part():
                return b""
            assert self._decoder is not None
            if out := self._decode(self._decoder, most):
                self._at += len(out)
                if self._at > FREE + RATIO * self.packed:
                    raise UnreadError(
                        f"it unpacks to more than {RATIO} times its size, and was read up to there; look at it with "
                        f"`{self._packing.unpack} FILE | head`, and give what it holds unpacked"
                    )
                return out

    def seek(self, at: int) -> None:
        """Onward: read up to there and forget it; it is the end where that comes first."""
        while self._at < at and self.read(min(1 << 18, at - self._at)):
            pass

    def _decode(self, decoder: _Decoder, most: int) -> bytes:
        data = b""
        if decoder.needs_input:
            data = self._rest or self._take()
            self._rest = b""
            if not data:
                raise UnreadError(f"it breaks off in the middle of its packing ({self._packing.name})")
        try:
            out = decoder.decompress(data, most)
        except _DAMAGED as error:
            why = f"its packing ({self._packing.name}) is damaged: {error}"
            if "memory" in str(error).lower():  # xz and zstd were told how much it may be
                by_hand = f"`{self._packing.unpack} FILE`"
                why = f"unpacking it takes more memory than is spent on it; give it unpacked ({by_hand})"
            raise UnreadError(why) from error
        if decoder.eof:
            self._rest, self._decoder = decoder.unused_data, None
        return out

    def _next_part(self) -> bool:
        """Packed files may stand one behind the other; False at the end."""
        longest = max(map(len, self._packing.magics))
        while len(rest := self._rest.lstrip(b"\0") if self._parts else self._rest) < longest:
            more = self._take()
            self._rest = rest + more
            if not more:
                break
        self._rest = rest if len(rest) >= longest else self._rest
        if not self._rest.strip(b"\0") and self._parts:
            return False
        if not self._packing.begins(self._rest):
            raise UnreadError(f"what follows its packed part is not packed with {self._packing.name}, and was not read")
        self._parts += 1
        if self._parts > PARTS + self.packed // BYTES_A_PART:
            raise UnreadError(f"it is made of more than {self._parts - 1} tiny packed files, one behind the other")
        self._decoder = self._packing.decoder()
        return True

    def _take(self) -> bytes:
        data = self._stream.read(BLOCK)
        self.packed += len(data)
        return data


# --- encodings and pages --------------------------------------------------------------------------------------------

HEAD = 4096  # bytes that tell an encoding
CONTROLS = bytes({*range(32), 127} - set(b"\b\t\n\f\r\x1b"))
BINARY = 0.03
"""Share of control characters from which on bytes are no text."""
FOREIGN = 0.3
"""Share of bytes that are not UTF-8 from which on a text cannot be understood."""
WINDOW = 16 << 10  # bytes of which that is a share
END = 64  # NULs at a file's end that are no writer's mark
MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # it begins as the one of UTF-16 does
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),  # what PowerShell's `>` writes
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
FORMATS = (
    (b"\x7fELF", "a program or a core dump"),
    (b"%PDF", "a PDF"),
    (b"\x89PNG", "a picture"),
    (b"\xff\xd8\xff", "a picture"),
    (b"SQLite format 3", "a database (SQLite)"),
    (b"LPKSHHRH", "a binary journal; give what `journalctl --file FILE` prints"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive; give what it holds"),
    (b"Rar!\x1a\x07", "a RAR archive; give what it holds"),
    (b"\x04\x22\x4d\x18", "packed with lz4; give what `lz4 -dc FILE` prints"),
    (b"\x1f\x9d", "packed with compress; give what `gzip -dc FILE` prints"),
    (b"PK\x03\x04", "a zip archive, and those are read only as files of their own"),
    (b"PK\x05\x06", "an empty zip archive"),
)
HTML = re.compile(rb"\A\s*(?:<!--[^>]{0,500}-->\s*)?<(?:!doctype\s+html|html)[\s>]", re.IGNORECASE)
PREFORMATTED = frozenset({"pre", "code", "samp", "textarea"})
BREAKS = frozenset({"br", "div", "p", "tr", "li", "h1", "h2", "h3", "h4", "pre"})
TAG = 4096  # characters of one tag


class Account(Protocol):
    """Receives the notes on one file."""

    def unread(self, why: str) -> None:
        """Part of it, or all, was not read or not understood."""

    def note(self, says: str) -> None:
        """It was read, with changes."""


def decoded(chunks: Iterable[bytes], account: Account) -> Iterator[bytes]:
    """The text as UTF-8, without NULs and tags."""
    rest = iter(chunks)
    head = b""
    hole = False
    for chunk in rest:
        head += chunk
        # A hole at the beginning, which truncating the file of a writer leaves; UTF-16 and UTF-32 have three at most.
        if head.startswith(bytes(4)):
            head, hole = head.lstrip(b"\0"), True
        if len(head) >= HEAD:
            break
    if hole and not head:
        account.unread("it holds nothing but NUL bytes")
        return
    if hole:
        account.note(
            "it begins with NUL bytes (a hole, as truncating a file leaves that is still written); they were dropped"
        )
    if kind := next((kind for magic, kind in FORMATS if head.startswith(magic)), None):
        account.unread(f"it is not text but {kind}")
        return
    whole = chain([head], rest)
    encoding, marked = _encoding(head)
    if encoding != "utf-8":
        if not marked:
            account.note(f"it was read as {encoding.upper()}: it looks like that, without a mark")
        yield from _recoded(whole, encoding, account)
    elif HTML.match(head.removeprefix(codecs.BOM_UTF8)):
        yield from _stripped(_plain(whole, account), account)
    else:
        yield from _plain(whole, account)


def _encoding(head: bytes) -> tuple[str, bool]:
    """The name of it, and whether a mark says so."""
    for mark, name in MARKS:
        if head.startswith(mark):
            return name, True
    sample = head[: len(head) // 4 * 4][:HEAD]
    if b"\0" not in sample:
        return "utf-8", False
    nuls = [sample[at::4].count(0) / max(1, len(sample) // 4) for at in range(4)]
    most, least = 0.4, 0.1
    for name, empty, full in (
        ("utf-32-le", (1, 2, 3), (0,)),
        ("utf-32-be", (0, 1, 2), (3,)),
        ("utf-16-le", (1, 3), (0, 2)),
        ("utf-16-be", (0, 2), (1, 3)),
    ):
        if all(nuls[at] > most for at in empty) and all(nuls[at] < least for at in full):
            return name, False
    # Other scripts have fewer NULs: then every letter has to make sense.
    wide = sample[:HEAD].replace(bytes(8), b"")
    for name in ("utf-16-le", "utf-16-be"):
        text = _strictly(wide, name)
        if text and "\n" in text and all(char.isprintable() or char in "\t\r\n\x1b" for char in text):
            return name, False
    return "utf-8", False


def _strictly(data: bytes, encoding: str) -> str | None:
    try:
        return codecs.getincrementaldecoder(encoding)().decode(data)
    except UnicodeDecodeError:
        return None


def _recoded(chunks: Iterable[bytes], encoding: str, account: Account) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    odd = False
    for chunk in chunks:
        text = decoder.decode(chunk)
        odd = odd or text.count("\ufffd") > FOREIGN * len(text)
        yield text.replace("\0", "").encode("utf-8", "replace")
    if odd:
        account.unread(f"part of it is no {encoding.upper()}")


def _plain(chunks: Iterable[bytes], account: Account) -> Iterator[bytes]:
    """Bytes of UTF-8, or nearly."""
    nuls, binary, foreign = False, False, False
    tail = b""
    for chunk in chunks:
        tail = chunk[-END:] if len(chunk) >= END else (tail + chunk)[-END:]
        text = chunk
        if b"\0" in chunk:
            nuls, text = True, chunk.translate(None, b"\0")
        for at in range(0, 0 if binary else len(text), WINDOW):
            part = text[at : at + WINDOW]
            binary = binary or is_binary(part)
            foreign = foreign or is_foreign(part)
        yield text
    if binary:
        account.unread("it is not text, or part of it is not")
    elif foreign:
        account.unread("its letters are neither UTF-8 nor UTF-16 (`iconv -f ENCODING -t UTF-8`)")
    elif tail == bytes(END):
        account.unread(
            "it ends in NUL bytes, as a machine leaves a file that loses power: what was written last is not there"
        )
    elif nuls:
        account.note("there are NUL bytes in it; they were dropped")


def is_binary(data: bytes) -> bool:
    """Control characters all over: no text of any encoding. NULs are gone: a hole has them, and UTF-16 that
    PowerShell's `>>` added to a file."""
    return len(data) - len(data.translate(None, CONTROLS)) > BINARY * len(data)


def is_foreign(data: bytes) -> bool:
    """Bytes of no encoding that is read here."""
    if data.isascii():
        return False
    return data.decode("utf-8", "replace").count("\ufffd") > FOREIGN * len(data)


def _stripped(chunks: Iterable[bytes], account: Account) -> Iterator[bytes]:
    """What a page of HTML shows."""
    page, seen = _Page(), _VisibleText()
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for chunk in chunks:
        text = seen.of(decoder.decode(chunk))
        # In small pieces: the parser looks again at all of a tag that has no end yet.
        for at in range(0, len(text), TAG):
            page.feed(text[at : at + TAG])
            if len(page.rawdata) > 2 * TAG:
                account.unread("its HTML is not understood; save the page as text")
                return
        yield page.take()
    page.feed(seen.rest)
    page.close()
    yield page.take()
    if seen.hidden:
        account.unread("its HTML breaks off; save the page as text")
    elif not page.preformatted:
        account.unread("it is a page of HTML that shows no log; save the log itself, as text")
    else:
        account.note("it is a page of HTML; its text was read")


class _VisibleText:
    """Takes out scripts, styles and comments, however long they are."""

    BEGINS = re.compile(r"<(?:(script|style)\b|!--)", re.IGNORECASE)
    ENDS = re.compile(r"</(?:script|style)\s*>", re.IGNORECASE)
    LONGEST = 16  # characters of a mark that may be cut by the end of a chunk

    def __init__(self) -> None:
        self.rest = ""  # characters that may begin a mark
        self.hidden: re.Pattern[str] | None = None

    def of(self, text: str) -> str:
        text = self.rest + text
        shown: list[str] = []
        at = 0
        while True:
            found = (self.hidden or self.BEGINS).search(text, at)
            if found is None:
                break
            if self.hidden is None:
                shown.append(text[at : found.start()])
                self.hidden = self.ENDS if found[1] else re.compile("-->")
            else:
                self.hidden = None
            at = found.end()
        if self.hidden is not None:
            self.rest = text[max(at, len(text) - self.LONGEST) :]
            return "".join(shown)
        mark = text.rfind("<", max(at, len(text) - self.LONGEST))
        end = mark if mark >= 0 else len(text)
        self.rest = text[end:]
        return "".join([*shown, text[at:end]])


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.rawdata: str
        self.preformatted = False
        self._text: list[str] = []

    def take(self) -> bytes:
        """What was read since."""
        text, self._text = "".join(self._text), []
        return text.encode("utf-8", "replace")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        self.preformatted = self.preformatted or tag in PREFORMATTED
        if tag in BREAKS:
            self._text.append("\n")

    def handle_data(self, data: str) -> None:
        self._text.append(data)
