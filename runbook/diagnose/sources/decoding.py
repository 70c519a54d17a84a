"""Turns the bytes of a log into UTF-8 text: unpacks and decodes them, drops NUL bytes, and strips a saved page of HTML.

Packed bytes (gzip, bzip2, xz, zstd) are read as a stream, forward only. A packed file may come from an attacker: ten
megabytes can claim to be ten gigabytes. So no more is unpacked than an honest log of that size on disk would give, and
no more memory is used than an honest packer needs. Nothing is dropped in silence: `Account` receives notes about
changes, and about bytes that could not be understood.
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

PACKED_READ_BYTES = 16 << 10  # packed bytes that are read at once
FREE_UNPACKED_BYTES = 64 << 20  # unpacked bytes that any file may have
# Unpacked bytes for each packed byte that are allowed beyond FREE_UNPACKED_BYTES: logs have 5 to 30.
MAX_UNPACK_RATIO = 100
MAX_BASE_PARTS = 1000  # packed parts that a file may be made of, and one more for each BYTES_PER_PART of its size
BYTES_PER_PART = 100
MAX_XZ_MEMORY_BYTES = 72 << 20  # `xz -9` asks for 65 MiB
MAX_ZSTD_WINDOW_LOG = 25  # 32 MiB, as a power of two; `zstd -19` asks for 8 MiB


class UnreadError(Exception):
    """A log cannot be read, or not from here on; the message says why, and names no file."""


class _Decoder(Protocol):
    """The decoder interface that bz2, lzma and zstd share."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class _Gzip:
    """zlib's decoder for gzip, with the interface of the others."""

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


def _xz_decoder() -> _Decoder:
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MAX_XZ_MEMORY_BYTES)


def _zstd_decoder() -> _Decoder:
    return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: MAX_ZSTD_WINDOW_LOG})


@dataclass(frozen=True, slots=True)
class Packing:
    """A way of packing. `magics`: the bytes with which packed files begin; `unpack`: the command to unpack by hand."""

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
    Packing("xz", (b"\xfd7zXZ\0",), _xz_decoder, "xz -dc"),
    Packing("zstd", (b"\x28\xb5\x2f\xfd", *_SKIPPABLE), _zstd_decoder, "zstd -dc --long=31"),
)
_DAMAGED = (zlib.error, lzma.LZMAError, zstd.ZstdError, OSError, EOFError, ValueError)


def detect_packing(head: bytes) -> Packing | None:
    """How a file with these first bytes is packed; None if it is not, or in an unknown way."""
    return next((packing for packing in PACKINGS if packing.begins(head)), None)


class Unpacked:
    """The unpacked bytes of `stream`, read forward only; `packed` counts the bytes taken from it."""

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
        """Up to `most` bytes, none at the end. UnreadError if the packing is damaged or breaks off, or if it unpacks to
        too much; all bytes given before are good."""
        while True:
            if self._decoder is None and not self._next_part():
                return b""
            assert self._decoder is not None
            if out := self._decode(self._decoder, most):
                self._at += len(out)
                if self._at > FREE_UNPACKED_BYTES + MAX_UNPACK_RATIO * self.packed:
                    raise UnreadError(
                        f"it unpacks to more than {MAX_UNPACK_RATIO} times its size, and was read up to there; look at "
                        f"it with `{self._packing.unpack} FILE | head`, and give what it holds unpacked"
                    )
                return out

    def seek(self, at: int) -> None:
        """Skips forward to byte `at`, or to the end if that comes first."""
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
            if "memory" in str(error).lower():  # xz and zstd refuse to use more memory than they were allowed
                by_hand = f"`{self._packing.unpack} FILE`"
                why = f"unpacking it takes more memory than is spent on it; give it unpacked ({by_hand})"
            raise UnreadError(why) from error
        if decoder.eof:
            self._rest, self._decoder = decoder.unused_data, None
        return out

    def _next_part(self) -> bool:
        """Begins the next packed part, since a file may hold several in a row; False at the end."""
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
        if self._parts > MAX_BASE_PARTS + self.packed // BYTES_PER_PART:
            raise UnreadError(f"it is made of more than {self._parts - 1} tiny packed files, one behind the other")
        self._decoder = self._packing.decoder()
        return True

    def _take(self) -> bytes:
        data = self._stream.read(PACKED_READ_BYTES)
        self.packed += len(data)
        return data


# --- encodings and pages --------------------------------------------------------------------------------------------

ENCODING_SAMPLE_BYTES = 4096  # bytes by which an encoding is recognised
CONTROL_CHARACTERS = bytes({*range(32), 127} - set(b"\b\t\n\f\r\x1b"))
MAX_CONTROL_SHARE = 0.03
"""Bytes with a larger share of control characters are no text."""
MAX_NON_UTF8_SHARE = 0.3
"""A text with a larger share of bytes that are not UTF-8 cannot be understood."""
SHARE_WINDOW_BYTES = 16 << 10  # bytes; both shares are taken of each window of so many
NUL_TAIL_BYTES = 64  # so many NUL bytes at a file's end were written by no program: the machine lost power
BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16's mark, with which it begins
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),  # what PowerShell's `>` writes
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
REFUSED_FORMATS = (
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
LINE_BREAK_TAGS = frozenset({"br", "div", "p", "tr", "li", "h1", "h2", "h3", "h4", "pre"})
HTML_CHUNK_CHARACTERS = 4096  # characters of HTML that are parsed at once; a tag may have twice as many


class Account(Protocol):
    """Receives notes about one file."""

    def unread(self, why: str) -> None:
        """Notes that part of the file, or all of it, was not read or not understood."""

    def note(self, says: str) -> None:
        """Notes that the file was read with a change."""


def decode_log(chunks: Iterable[bytes], account: Account) -> Iterator[bytes]:
    """The text of a log in UTF-8, without NUL bytes and without HTML; `account` receives notes about it."""
    rest = iter(chunks)
    head = b""
    hole = False
    for chunk in rest:
        head += chunk
        # Four NUL bytes are a hole, as is left when a file is truncated while a program writes it: UTF-16 and UTF-32
        # begin with three at most.
        if head.startswith(bytes(4)):
            head, hole = head.lstrip(b"\0"), True
        if len(head) >= ENCODING_SAMPLE_BYTES:
            break
    if hole and not head:
        account.unread("it holds nothing but NUL bytes")
        return
    if hole:
        account.note(
            "it begins with NUL bytes (a hole, as truncating a file leaves that is still written); they were dropped"
        )
    if kind := next((kind for magic, kind in REFUSED_FORMATS if head.startswith(magic)), None):
        account.unread(f"it is not text but {kind}")
        return
    whole = chain([head], rest)
    encoding, marked = _detect_encoding(head)
    if encoding != "utf-8":
        if not marked:
            account.note(f"it was read as {encoding.upper()}: it looks like that, without a mark")
        yield from _recode_to_utf8(whole, encoding, account)
    elif HTML.match(head.removeprefix(codecs.BOM_UTF8)):
        yield from _strip_html(_clean_utf8(whole, account), account)
    else:
        yield from _clean_utf8(whole, account)


def _detect_encoding(head: bytes) -> tuple[str, bool]:
    """(name, marked): the encoding of a text with this beginning, and whether a byte order mark tells it."""
    for mark, name in BYTE_ORDER_MARKS:
        if head.startswith(mark):
            return name, True
    sample = head[: len(head) // 4 * 4][:ENCODING_SAMPLE_BYTES]
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
    # Scripts other than Latin have fewer NULs in UTF-16: there the whole sample must decode to printable text.
    wide = sample[:ENCODING_SAMPLE_BYTES].replace(bytes(8), b"")
    for name in ("utf-16-le", "utf-16-be"):
        text = _decode_strictly(wide, name)
        if text and "\n" in text and all(char.isprintable() or char in "\t\r\n\x1b" for char in text):
            return name, False
    return "utf-8", False


def _decode_strictly(data: bytes, encoding: str) -> str | None:
    """The text of bytes that may end inside a character; None if they are not of this encoding."""
    try:
        return codecs.getincrementaldecoder(encoding)().decode(data)
    except UnicodeDecodeError:
        return None


def _recode_to_utf8(chunks: Iterable[bytes], encoding: str, account: Account) -> Iterator[bytes]:
    """The text in UTF-8, decoded from another encoding."""
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    odd = False
    for chunk in chunks:
        text = decoder.decode(chunk)
        odd = odd or text.count("\ufffd") > MAX_NON_UTF8_SHARE * len(text)
        yield text.replace("\0", "").encode("utf-8", "replace")
    if odd:
        account.unread(f"part of it is no {encoding.upper()}")


def _clean_utf8(chunks: Iterable[bytes], account: Account) -> Iterator[bytes]:
    """The text of bytes in UTF-8, without NUL bytes; notes if they are not quite UTF-8."""
    nuls, binary, foreign = False, False, False
    tail = b""
    for chunk in chunks:
        tail = chunk[-NUL_TAIL_BYTES:] if len(chunk) >= NUL_TAIL_BYTES else (tail + chunk)[-NUL_TAIL_BYTES:]
        text = chunk
        if b"\0" in chunk:
            nuls, text = True, chunk.translate(None, b"\0")
        for at in range(0, 0 if binary else len(text), SHARE_WINDOW_BYTES):
            part = text[at : at + SHARE_WINDOW_BYTES]
            binary = binary or is_binary(part)
            foreign = foreign or is_foreign_encoding(part)
        yield text
    if binary:
        account.unread("it is not text, or part of it is not")
    elif foreign:
        account.unread("its letters are neither UTF-8 nor UTF-16 (`iconv -f ENCODING -t UTF-8`)")
    elif tail == bytes(NUL_TAIL_BYTES):
        account.unread(
            "it ends in NUL bytes, as a machine leaves a file that loses power: what was written last is not there"
        )
    elif nuls:
        account.note("there are NUL bytes in it; they were dropped")


def is_binary(data: bytes) -> bool:
    """Whether bytes have so many control characters that they are no text. The caller has dropped NULs, which occur in
    holes, and in UTF-16 that PowerShell's `>>` added to a file."""
    return len(data) - len(data.translate(None, CONTROL_CHARACTERS)) > MAX_CONTROL_SHARE * len(data)


def is_foreign_encoding(data: bytes) -> bool:
    """Whether bytes are of an encoding that is not read here."""
    if data.isascii():
        return False
    return data.decode("utf-8", "replace").count("\ufffd") > MAX_NON_UTF8_SHARE * len(data)


def _strip_html(chunks: Iterable[bytes], account: Account) -> Iterator[bytes]:
    """The text that a page of HTML shows."""
    page, seen = _Page(), _VisibleText()
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for chunk in chunks:
        text = seen.of(decoder.decode(chunk))
        # In small pieces, since the parser searches an unfinished tag anew with each piece.
        for at in range(0, len(text), HTML_CHUNK_CHARACTERS):
            page.feed(text[at : at + HTML_CHUNK_CHARACTERS])
            if len(page.rawdata) > 2 * HTML_CHUNK_CHARACTERS:
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
    """Removes scripts, styles and comments from HTML in chunks. `hidden`: the end mark of the one that is open."""

    BEGINS = re.compile(r"<(?:(script|style)\b|!--)", re.IGNORECASE)
    ENDS = re.compile(r"</(?:script|style)\s*>", re.IGNORECASE)
    LONGEST = 16  # characters at a chunk's end that may be the beginning of a mark

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
    """The text of a page of HTML. `preformatted`: it has an element that a log may be in."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.rawdata: str
        self.preformatted = False
        self._text: list[str] = []

    def take(self) -> bytes:
        """The text since the last call, in UTF-8."""
        text, self._text = "".join(self._text), []
        return text.encode("utf-8", "replace")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        self.preformatted = self.preformatted or tag in PREFORMATTED
        if tag in LINE_BREAK_TAGS:
            self._text.append("\n")

    def handle_data(self, data: str) -> None:
        self._text.append(data)
