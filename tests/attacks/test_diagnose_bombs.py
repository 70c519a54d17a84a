"""Small files that say that they are large: `diagnose` spends no more memory and work on them than their size explains.

Each is read by the command itself in a process of its own, whose memory and CPU time the system counts.
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import random
import resource
import struct
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from profiles import one_in

from .test_diagnose_reads_everything import tar_of, zip_of

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="how much memory a process took is told by Linux"),
]

MEMORY_MB = 150
CPU_S = 10
"""Of which half a second is the start; a busy machine doubles CPU time too. Unbounded, these take minutes."""
MB = 1 << 20
CHANCE = random.Random(1)
WORDS = (
    "RuntimeError: Connection refused",
    "NCCL WARN",
    "error:",
    "failed",
    "out of memory",
    "rank 3",
    "timed out",
    "exitcode : -9",
)


def letters(count: int) -> str:
    return "".join(CHANCE.choice("abcdefghij") for _ in range(count))


def unlike(count: int) -> bytes:
    return "".join(f"{CHANCE.choice(WORDS)} {letters(6)} {CHANCE.choice(WORDS)}\n" for _ in range(count)).encode()


def header(name: str, size: int, kind: bytes) -> bytes:
    """A tar's header that promises any size."""
    info = tarfile.TarInfo(name)
    raw = bytearray(info.tobuf(tarfile.GNU_FORMAT)[:512])
    raw[124:136] = b"\x80" + size.to_bytes(11, "big", signed=True)[-11:]
    raw[156:157] = kind
    raw[148:156] = b" " * 8
    raw[148:156] = b"%06o\0 " % sum(raw)
    return bytes(raw)


def record(number: int, kind: bytes) -> bytes:
    return header("x", 512, kind) + (b"30 k%07d=aaaaaaaaaaaaaaaaaaa\n" % number).ljust(512, b"\0")


def zeros(packer: Callable[[bytes], bytes], megabytes: int, times: int) -> bytes:
    return packer(bytes(megabytes * MB)) * times


def ten_gigabytes() -> bytes:
    """As one stream of ten megabytes."""
    packer = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    block = packer.compress(bytes(64 * MB)) + packer.flush(zlib.Z_FULL_FLUSH)
    more = packer.compress(bytes(64 * MB)) + packer.flush(zlib.Z_FULL_FLUSH)
    return block + more * 159


def overlapping() -> bytes:
    """A zip whose members all are the same bytes."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    data = packer.compress(bytes(100 * MB)) + packer.flush()
    sizes = (zlib.crc32(bytes(100 * MB)), len(data), 100 * MB)
    local = struct.pack("<4s2B4HL2L2H", b"PK\3\4", 20, 0, 0, 8, 0, 0, *sizes, 5, 0) + b"a.log" + data
    entry = struct.pack("<4s4B4HL2L5H2L", b"PK\1\2", 20, 3, 20, 0, 0, 8, 0, 0, *sizes, 5, 0, 0, 0, 0, 0, 0) + b"a.log"
    return (
        local
        + entry * 10_000
        + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 10_000, 10_000, len(entry) * 10_000, len(local), 0)
    )


def directory_alone(entries: int) -> bytes:
    entry = struct.pack("<4s4B4HL2L5H2L", b"PK\1\2", 20, 3, 20, *[0] * 8, 4, *[0] * 6) + b"a.lo"
    return (
        b"PK\3\4" + entry * entries + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 65535, 65535, len(entry) * entries, 4, 0)
    )


BOMBS: dict[str, Callable[[], bytes]] = {
    "a name of 1.5 GB": lambda: header("././@LongLink", 3 << 29, b"L") + b"a" * 512 + bytes(4096),
    "a name of 1.5 GB, packed": lambda: gzip.compress(header("././@LongLink", 3 << 29, b"L") + bytes(100 * MB)),
    "the target of a link of 1.5 GB": lambda: gzip.compress(header("././@LongLink", 3 << 29, b"K") + bytes(100 * MB)),
    "attributes of 1.5 GB": lambda: gzip.compress(header("x", 3 << 29, b"x") + bytes(100 * MB)),
    "a number of 900,000 digits": lambda: header("x", 900_000, b"x") + b"1" * 900_064,
    "numbers of 60,000 digits": lambda: (header("x", 60_000, b"x") + (b"1" * 60_000).ljust(60_416, b"\0")) * 16,
    "attributes of all, 40,000 times": lambda: gzip.compress(b"".join(record(at, b"g") for at in range(40_000))),
    "attributes of attributes": lambda: b"".join(record(at, b"x") for at in range(900)),
    "attributes and members": lambda: gzip.compress(b"".join(record(at, b"g") + header(f"{at}.log", 0, b"0") for at in range(25_000))),
    "a negative size": lambda: header("a.log", -10_240, b"0") * 20,
    "a size of an exabyte": lambda: header("a.log", 1 << 60, b"0") + b"step 1\n" * 100,
    "60,000 members": lambda: gzip.compress(b"".join(header(f"{at}.log", 2, b"0") + b"a\n".ljust(512, b"\0") for at in range(60_000))),
    "names of 4,000 letters": lambda: gzip.compress(tar_of(*((f"{at}{'n' * 4000}.log", b"a\n") for at in range(9000)))),
    "10 GB of zeros": ten_gigabytes,
    "200 GB of zeros in bzip2": lambda: zeros(bz2.compress, 64, 3200),
    "4 GB of zeros in xz": lambda: zeros(lzma.compress, 40, 100),
    "20 GB of zeros in zstd": lambda: zeros(zstd.compress, 256, 80),
    "100,000 empty parts": lambda: zstd.compress(b"") * 100_000,
    "200 MB of ends of lines": lambda: gzip.compress(b"\n" * (200 * MB)),
    "200 MB of steps": lambda: zstd.compress(b"step 1 loss 2.0\n" * (200 * MB // 16)),
    "lines unlike each other": lambda: zstd.compress(b"".join(b"%s\n" % str(at).translate(str.maketrans("0123456789", "abcdefghij")).encode() for at in range(600_000))),
    "lines that all say something": lambda: gzip.compress(unlike(2_000) * 60),
    "members that all say something": lambda: gzip.compress(tar_of(*((f"{at}.log", unlike(400)) for at in range(40)))),
    "one line of all words": lambda: " ".join(CHANCE.choice(WORDS) for _ in range(60_000)).encode() + b"\n",
    "one line that is drawn again and again": lambda: unlike(20_000).replace(b"\n", b"\r") + b"\n",
    "one line of JSON": lambda: json.dumps({"message": unlike(18_000).decode()}).encode() + b"\n",
    "braces in braces": lambda: b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"\n",
    "tags without end": lambda: b"<html><pre>" + b"<" * MB,
    "an attribute without end": lambda: b"<html><pre>" + b"<a b='" * 170_000,
    "a zip whose members lie over each other": overlapping,
    "a zip of zeros": lambda: zip_of(*((f"{at}.log", bytes(100 * MB)) for at in range(4))),
    "a zip that is all directory": lambda: directory_alone(20_000),
    "a zip whose directory has 10 MB": lambda: directory_alone(200_000),
}  # fmt: skip


MEASURE = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[2:])
used = resource.getrusage(resource.RUSAGE_CHILDREN)
open(sys.argv[1], "w").write("%d %f %f" % (code, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024))
"""
"""A program of its own: what a process once needed counts for what it becomes by exec as well, and ours is large."""


def spent_on(path: Path) -> tuple[int, str, float, float]:
    """Exit code, what was printed, CPU seconds and the most memory in MB of `runbook diagnose PATH`."""

    def limits() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
        resource.setrlimit(resource.RLIMIT_CPU, (60, 60))

    out = path.with_suffix(".out")
    with out.open("wb") as printed:
        command = [sys.executable, "-m", "runbook", "diagnose", "-o", "json", str(path)]
        spent = path.with_suffix(".spent")
        measured = [sys.executable, "-S", "-c", MEASURE, str(spent), *command]
        subprocess.run(measured, stdout=printed, stderr=subprocess.STDOUT, preexec_fn=limits, check=True)
    code, cpu_s, memory = spent.read_text().split()
    return int(code), out.read_text(), float(cpu_s), float(memory)


@pytest.mark.parametrize("kind", one_in(17, BOMBS, thorough=2))
def test_a_bomb_is_bounded_before_it_is_allocated(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "job"
    path.write_bytes(BOMBS[kind]())
    code, said, _, memory_mb = spent_on(path)
    assert code in (0, 1), said
    document = json.loads(said)
    assert document["causes"], "nothing of this kind is healthy"
    assert memory_mb <= MEMORY_MB


@pytest.mark.cost
@pytest.mark.parametrize("kind", BOMBS)
def test_what_a_bomb_costs(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "job"
    path.write_bytes(BOMBS[kind]())
    assert spent_on(path)[2] <= CPU_S


def test_a_hole_of_ten_terabytes(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    with path.open("wb") as file:
        file.seek(10 << 40)
        file.write(b"step 1 loss 2.0\n" * 9)
    code, said, _, memory_mb = spent_on(path)
    assert (code, json.loads(said)["causes"]) == (0, [])
    assert "NUL" in json.loads(said)["notes"][0]["says"]
    os.truncate(path, 11 << 40)
    assert spent_on(path)[0] == 1
    assert memory_mb <= MEMORY_MB
