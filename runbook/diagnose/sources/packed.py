"""Packed bytes (gzip, bzip2, xz, zstd) as a stream that only goes forward, in memory and work that its size on disk pays for.

What is packed may come from anybody: ten megabytes can say that they are ten gigabytes. So no more is unpacked than an
honest log of that size would give, and no more memory is taken than an honest packer asks for.
"""

from __future__ import annotations

import bz2
import lzma
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO, Protocol

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
        """Up to `most` bytes, none at the end. UnreadError when it is damaged or breaks off: what came before is good."""
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

    def skip_to(self, at: int) -> None:
        """Read up to there and forget it; it is the end where that comes first."""
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
        except lzma.LZMAError as error:
            if "limit" in str(error):
                raise UnreadError(self._too_large()) from error
            raise UnreadError(self._damaged(error)) from error
        except zstd.ZstdError as error:
            if "memory" in str(error):
                raise UnreadError(self._too_large()) from error
            raise UnreadError(self._damaged(error)) from error
        except _DAMAGED as error:
            raise UnreadError(self._damaged(error)) from error
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

    def _damaged(self, error: Exception) -> str:
        return f"its packing ({self._packing.name}) is damaged: {error}"

    def _too_large(self) -> str:
        return f"unpacking it takes more memory than is spent on it; give it unpacked (`{self._packing.unpack} FILE`)"
