"""`diagnose` calls nothing healthy that it has not read: every kind of file that cannot be read, in every place."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import random
import socket
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from diagnose.read import Told, diagnose
from hypothesis import given
from hypothesis import strategies as st
from profiles import examples, one_in

from runbook.cli.main import main

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

HEALTHY = "".join(f"step {at} loss 2.0\n" for at in range(50)).encode()
KILLED = HEALTHY + b"train.py FAILED\n  host      : gn2\n  rank      : 3 (local_rank: 1)\n  exitcode  : -9 (pid: 7)\n"
PAGE = b"<!DOCTYPE html>\n<html><head><title>job</title><script>let a = '" + b"x" * 20_000 + b"';</script></head><body><pre>%s</pre></body></html>"  # fmt: skip


def tar_of(*members: tuple[str, bytes], mode: str = "w") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as tar:  # type: ignore[call-overload]
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def zip_of(*members: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return out.getvalue()


def page(text: bytes) -> bytes:
    return PAGE % text


def encrypted(data: bytes) -> bytes:
    """A zip whose members say that they are encrypted."""
    raw = bytearray(zip_of(("a.log", data)))
    for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        raw[raw.find(mark) + at] |= 1
    return bytes(raw)


def in_encoding(name: str, data: bytes) -> bytes:
    return data.decode().encode(name)


TRANSFORMS: dict[str, Callable[[bytes], bytes]] = {
    "as it is": bytes,
    "gzip": gzip.compress,
    "gzip in two parts": lambda data: gzip.compress(data[:99]) + gzip.compress(data[99:]),
    "gzip, padded": lambda data: gzip.compress(data) + bytes(2000),
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": zstd.compress,
    "zstd behind a skippable frame": lambda data: b"\x50\x2a\x4d\x18\x04\0\0\0abcd" + zstd.compress(data),
    "UTF-8 with a mark": lambda data: b"\xef\xbb\xbf" + data,
    **{name: partial(in_encoding, name) for name in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be")},
    "UTF-16 with the mark of big ends": lambda data: b"\xfe\xff" + data.decode().encode("utf-16-be"),
    "a hole before": lambda data: bytes(9000) + data,
    "a hole before it, of odd size": lambda data: bytes(8191) + data,
    "a hole inside": lambda data: data[:100] + bytes(70_000) + data[100:],
    "UTF-16 added at the end": lambda data: data[:100] + data[100:].decode().encode("utf-16-le"),
    "Windows' ends of lines": lambda data: data.replace(b"\n", b"\r\n"),
    "a saved page": page,
    "tar": lambda data: tar_of(("x/a.log", data)),
    "tar.gz": lambda data: gzip.compress(tar_of(("a.log", data))),
    "tar.bz2": lambda data: bz2.compress(tar_of(("a.log", data))),
    "tar.xz": lambda data: lzma.compress(tar_of(("a.log", data))),
    "tar.zst": lambda data: zstd.compress(tar_of(("a.log", data))),
    "zip": lambda data: zip_of(("x/", b""), ("x/a.log", data)),
    "zip, stored": lambda data: zip_of(("a.log", data), method=zipfile.ZIP_STORED),
    "gzip in a tar": lambda data: tar_of(("a.log.gz", gzip.compress(data))),
    "zstd in a zip": lambda data: zip_of(("a.log.zst", zstd.compress(data))),
    "a page in a zip": lambda data: zip_of(("a.html", page(data))),
}  # fmt: skip


def beside(folder: Path, name: str, data: bytes) -> Path:
    """A folder with a healthy log and this file."""
    folder.mkdir(exist_ok=True)
    (folder / "good.log").write_bytes(HEALTHY)
    (folder / name).write_bytes(data)
    return folder


@pytest.mark.parametrize("kind", TRANSFORMS)
@pytest.mark.parametrize("name", one_in(3, ["job.log.1", "job.html", "job.zip"]))
def test_what_can_be_read_is_read_whatever_it_is_called(tmp_path: Path, kind: str, name: str) -> None:
    file = tmp_path / "f" / name
    beside(file.parent, name, TRANSFORMS[kind](HEALTHY))
    for place in (file, file.parent):
        told = diagnose(place)
        assert (told.exit_code, told.causes, told.unread) == (0, [], [])
    file.write_bytes(TRANSFORMS[kind](KILLED))
    for place in (file, file.parent):
        told = diagnose(place)
        assert (told.exit_code, told.first, told.unread) == (0, "rank-killed", [])
        assert told.causes[0]["evidence"][0]["file"].startswith(str(file))


@pytest.mark.parametrize("kind", ["a hole before", "a hole inside", "utf-16-le", "utf-32-be", "a saved page"])
def test_what_was_changed_to_read_it_is_said(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.log").write_bytes(TRANSFORMS[kind](HEALTHY))
    (note,) = diagnose(tmp_path).notes
    assert note["file"] == str(tmp_path / "a.log")
    assert main(["diagnose", str(tmp_path)]) == 0
    assert note["says"] in capsys.readouterr().out


NOISE = random.Random(1).randbytes(60_000)
UNREADABLE: dict[str, bytes] = {
    "noise": NOISE,
    "noise behind text": HEALTHY + NOISE,
    "noise far behind text": HEALTHY * 2000 + NOISE * 3,
    "nothing but NULs": bytes(9000),
    "NULs at its end": HEALTHY + bytes(9000),
    "EBCDIC": HEALTHY.decode().encode("cp500"),
    "Chinese in GBK": ("训练步骤完成，损失正常\n" * 200).encode("gbk"),
    "Japanese in Shift JIS": ("学習ステップ完了\n" * 200).encode("shift-jis"),
    "a core dump": b"\x7fELF" + NOISE,
    "a picture": b"\x89PNG\r\n\x1a\n" + NOISE,
    "a PDF": b"%PDF-1.4\n" + HEALTHY,
    "a journal": b"LPKSHHRH" + bytes(200) + HEALTHY,
    "7z": b"7z\xbc\xaf\x27\x1c" + HEALTHY,
    "RAR": b"Rar!\x1a\x07" + HEALTHY,
    "lz4": b"\x04\x22\x4d\x18" + HEALTHY,
    "compress": b"\x1f\x9d" + HEALTHY,
    "gzip, garbage behind": gzip.compress(HEALTHY) + b"garbage",
    "zstd, garbage behind": zstd.compress(HEALTHY) + b"garbage",
    "gzip of gzip": gzip.compress(gzip.compress(HEALTHY)),
    "xz of 1 GB of dictionary": lzma.compress(
        HEALTHY, filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 30, "mf": lzma.MF_HC3, "mode": lzma.MODE_FAST}]
    ),
    # A frame without a size of its own, and with a window of 256 MB.
    "zstd of 256 MB of window": b"\x28\xb5\x2f\xfd\x00\x90\x01\x00\x00",
    "a tar in a tar": tar_of(("good.log", HEALTHY), ("inner.tar", tar_of(("a.log", HEALTHY)))),
    "a zip in a tar": tar_of(("good.log", HEALTHY), ("inner.zip", zip_of(("a.log", HEALTHY)))),
    "a tar.gz in a zip": zip_of(("good.log", HEALTHY), ("a.tgz", gzip.compress(tar_of(("a.log", HEALTHY))))),
    "an encrypted zip": encrypted(HEALTHY),
    "a zip packed with lzma": zip_of(("good.log", HEALTHY), method=zipfile.ZIP_LZMA),
    "a zip packed with bzip2": zip_of(("good.log", HEALTHY), method=zipfile.ZIP_BZIP2),
    "a tar without its end": tar_of(("good.log", HEALTHY))[:-10_240 + 512 * 3],
    "a tar with something behind": tar_of(("good.log", HEALTHY)) + b"more",
    "two tars": tar_of(("good.log", HEALTHY)) * 2,
    "noise in a tar": tar_of(("good.log", HEALTHY), ("x", NOISE)),
    "noise in a zip": zip_of(("good.log", HEALTHY), ("x", NOISE)),
    "a page that shows no log": b"<html><body><p>hello</p></body></html>",
    "a page that breaks off": page(HEALTHY)[:500],
    "a line of 3 MB": HEALTHY + b"x" * 3_000_000 + b"\n" + HEALTHY,
}  # fmt: skip


@pytest.mark.parametrize("kind", one_in(2, UNREADABLE))
def test_what_cannot_be_read_is_listed_and_never_healthy(tmp_path: Path, kind: str) -> None:
    file = beside(tmp_path / "f", "job.log", UNREADABLE[kind]) / "job.log"
    for place in (file, file.parent):
        told = diagnose(place)
        assert (told.exit_code, told.first) == (1, "insufficient-evidence")
        assert any(one["file"].startswith(str(file)) and one["why"] for one in told.unread)
        assert "job.log" in told.causes[0]["says"]
    # A cause that is found beside it stays found, and the list stays with it.
    (file.parent / "good.log").write_bytes(KILLED)
    told = diagnose(file.parent)
    assert (told.exit_code, told.first) == (0, "rank-killed")
    assert told.unread


def test_the_page_for_people_lists_what_was_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    beside(tmp_path, "core", b"\x7fELF" + NOISE)
    assert main(["diagnose", str(tmp_path)]) == 1
    assert f"  not read   {tmp_path / 'core'}: it is not text but a program or a core dump" in capsys.readouterr().out
    (tmp_path / "good.log").write_bytes(KILLED)
    assert main(["diagnose", str(tmp_path)]) == 0
    assert "not read" in capsys.readouterr().out


PACKED = {
    "gzip": gzip.compress(HEALTHY * 20),
    "bzip2": bz2.compress(HEALTHY * 20),
    "xz": lzma.compress(HEALTHY * 20),
    "zstd": zstd.compress(HEALTHY * 20, options={zstd.CompressionParameter.checksum_flag: 1}),
    "tar": tar_of(("a.log", HEALTHY), ("b.log", HEALTHY)),
    "tar.gz": gzip.compress(tar_of(("a.log", HEALTHY), ("b.log", HEALTHY))),
    "tar.zst": zstd.compress(tar_of(("a.log", HEALTHY), ("b.log", HEALTHY))),
    "zip": zip_of(("a.log", HEALTHY), ("b.log", HEALTHY)),
}


@pytest.mark.parametrize("kind", one_in(3, PACKED))
@examples(50)
@given(share=st.floats(0, 1, exclude_max=True))
def test_what_is_cut_anywhere_is_never_healthy(
    tmp_path_factory: pytest.TempPathFactory, kind: str, share: float
) -> None:
    data = PACKED[kind]
    # The last zeros of a tar are padding: only where both blocks of its end are gone is it cut.
    cut = int(share * (len(data.rstrip(b"\0")) if kind == "tar" else len(data)))
    told = never_healthy(tmp_path_factory.mktemp("cut") / "job", data[:cut])
    assert told is None or told.unread or told.first


def never_healthy(file: Path, data: bytes) -> Told | None:
    """What is told of these bytes; None where nothing is to be read at all, as the exit code says."""
    file.write_bytes(data)
    if main(["diagnose", str(file)]) == 2:
        return None
    told = diagnose(file)
    assert told.exit_code == 1, told
    return told


@pytest.mark.parametrize("kind", ["gzip", "bzip2", "xz", "zstd", "tar.gz", "zip"])
@examples(50)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_damaged_one_is_told_or_reads_the_same(
    tmp_path_factory: pytest.TempPathFactory, kind: str, place: float, bit: int
) -> None:
    data = bytearray(PACKED[kind])
    data[int(place * len(data))] ^= 1 << bit
    file = tmp_path_factory.mktemp("odd") / "job"
    file.write_bytes(data)
    code = main(["diagnose", str(file)])
    assert code in (0, 1, 2)


def test_a_saved_page_of_many_elements_is_read_line_by_line(tmp_path: Path) -> None:
    rows = b"".join(b"<div class=line><code>" + line + b"</code></div>" for line in KILLED.splitlines())
    (tmp_path / "job.html").write_bytes(b"<html><style>a{}</style><!-- healthy --><body>" + rows + b"</body></html>")
    told = diagnose(tmp_path)
    assert (told.first, told.causes[0]["rank"]) == ("rank-killed", 3)


@pytest.mark.thorough
def test_more_members_than_are_read(tmp_path: Path) -> None:
    many = [(f"{at}.log", b"step 1 loss 2.0\n") for at in range(50_001)]
    (tmp_path / "a.tar").write_bytes(tar_of(*many))
    told = diagnose(tmp_path / "a.tar")
    assert (told.exit_code, told.first) == (1, "insufficient-evidence")
    assert "50,000 members" in told.unread[0]["why"]


@pytest.mark.parametrize("name", ["job.log", "job.tar", "x.html"])
def test_what_is_no_plain_file(tmp_path: Path, name: str) -> None:
    (tmp_path / "good.log").write_bytes(HEALTHY)
    for make in (os.mkfifo, _socket, lambda path: path.symlink_to("/dev/zero"), lambda path: path.symlink_to("gone")):
        path = tmp_path / name
        make(path)
        told = diagnose(tmp_path)
        assert (told.exit_code, told.first, told.unread[0]["file"]) == (1, "insufficient-evidence", str(path))
        path.unlink()
    assert diagnose(tmp_path).causes == []


def _socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # its name may have no more than a hundred characters
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    finally:
        os.chdir(here)


def test_folders_that_are_not_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "bad.log").write_bytes(KILLED)
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "good.log").write_bytes(HEALTHY)
    (folder / "here").symlink_to(folder)
    assert diagnose(folder).causes == []
    (folder / "there").symlink_to(elsewhere)
    assert diagnose(folder).unread == [{"file": str(folder / "there"), "why": "it is a link to a folder elsewhere: name that folder too"}]  # fmt: skip
    (folder / "there").unlink()
    (folder / "closed").mkdir()
    scandir = os.scandir

    def closed(path: str) -> object:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr("os.scandir", closed)
    assert diagnose(folder).first == "insufficient-evidence"


def test_what_shrinks_or_fails_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(HEALTHY)
    fstat = os.fstat
    larger = lambda at: os.stat_result((*fstat(at)[:6], fstat(at).st_size + 10, *fstat(at)[7:]))  # noqa: E731
    with monkeypatch.context() as patched:
        patched.setattr("os.fstat", larger)
        told = diagnose(log)
    assert (told.exit_code, told.first) == (1, "insufficient-evidence")
    assert "became shorter" in told.unread[0]["why"]
    with monkeypatch.context() as patched:
        patched.setattr("runbook.diagnose.sources.logfiles._file_bytes", lambda _file: _failing())
        told = diagnose(log)
    assert "Input/output error" in told.unread[0]["why"]


def _failing() -> Iterator[bytes]:
    yield HEALTHY
    raise OSError(5, "Input/output error")


@pytest.mark.parametrize("kind", ["as it is", "gzip", "zstd", "utf-16-le", "a hole before", "a saved page"])
def test_standard_input_is_unpacked_too(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    for data, first in ((HEALTHY, None), (KILLED, "rank-killed")):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TRANSFORMS[kind](data))))
        assert diagnose("-").first == first


@pytest.mark.parametrize(
    "data", [None, tar_of(("a.log", HEALTHY)), gzip.compress(tar_of(("a.log", HEALTHY))), zip_of(("a.log", HEALTHY))]
)
def test_an_archive_on_standard_input_is_refused_in_words(monkeypatch: pytest.MonkeyPatch, data: bytes | None) -> None:
    monkeypatch.setattr(sys, "stdin", None if data is None else io.TextIOWrapper(io.BytesIO(data)))
    assert diagnose("-").first == "insufficient-evidence"


def test_links_in_an_archive(tmp_path: Path) -> None:
    def archive(*links: tuple[str, str, bytes]) -> Path:
        with tarfile.open(tmp_path / "a.tar", "w") as tar:
            info = tarfile.TarInfo("logs/good.log")
            info.size = len(HEALTHY)
            tar.addfile(info, io.BytesIO(HEALTHY))
            for name, target, kind in links:
                info = tarfile.TarInfo(name)
                info.type, info.linkname = kind, target
                tar.addfile(info)
        return tmp_path / "a.tar"

    inside = [("logs/latest.log", "good.log", tarfile.SYMTYPE), ("b.log", "logs/good.log", tarfile.LNKTYPE), ("c.log", "./logs/../logs/good.log", tarfile.SYMTYPE)]  # fmt: skip
    assert diagnose(archive(*inside)).causes == []
    for target in ("/var/log/syslog", "../../secret.log", "gone.log"):
        told = diagnose(archive(("logs/bad.log", target, tarfile.SYMTYPE)))
        assert (told.first, told.unread[0]["file"]) == ("insufficient-evidence", f"{tmp_path / 'a.tar'}!logs/bad.log")


def test_files_that_are_no_logs_are_left_aside_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    beside(tmp_path, "train.py", b"raise KeyError\n")
    beside(tmp_path, "model.pt", NOISE)
    told = diagnose(tmp_path)
    assert (told.exit_code, told.causes, sorted(told.aside)) == (
        0,
        [],
        [str(tmp_path / "model.pt"), str(tmp_path / "train.py")],
    )
    assert main(["diagnose", str(tmp_path)]) == 0
    assert "train.py" in capsys.readouterr().out
    # Records may be a log as well as data: nobody knows before they are read.
    beside(tmp_path, "job.jsonl", b"{}\n")
    assert diagnose(tmp_path).first == "insufficient-evidence"


def test_every_part_of_a_long_line_is_searched(tmp_path: Path) -> None:
    said = b" torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB "
    for size in (1500, 3000, 70_000, 900_000):
        for share in (0.0, 0.3, 0.5, 0.9, 1.0):
            at = int(size * share)
            (tmp_path / "a.log").write_bytes(HEALTHY + b"x " * (at // 2) + said + b"y " * ((size - at) // 2) + b"\n")
            assert diagnose(tmp_path).first == "gpu-out-of-memory", (size, share)


def test_the_manifest_of_collect_says_what_is_missing(tmp_path: Path) -> None:
    def archive(*rows: str) -> Path:
        manifest = '{"files": [' + ", ".join(['{"path": "run/logs/rank-00000.a.log"}', *rows]) + "]}"
        members = (("README.txt", b"x"), ("manifest.json", manifest.encode()), ("run/logs/rank-00000.a.log", HEALTHY))
        (tmp_path / "a.tar.gz").write_bytes(gzip.compress(tar_of(*members)))
        return tmp_path / "a.tar.gz"

    assert diagnose(archive('{"path": null, "what": "nodes/a/gpu/nvidia-smi.txt", "missing": "not here"}')).causes == []
    for row in (
        '{"path": null, "what": "run/logs/old.log.gz", "missing": "packed or binary"}',
        '{"path": null, "what": "nodes/node-b", "missing": "node-unreachable"}',
        '{"path": "run/logs/rank-00000.a.log", "truncated": true, "bytes_left_out": 7}',
        '{"path":', "7", '{"path": [' + "[" * 5000,
    ):  # fmt: skip
        told = diagnose(archive(row))
        assert (told.exit_code, told.first) == (1, "insufficient-evidence"), row


def test_what_a_run_said_of_itself_stands_in_its_archive(tmp_path: Path) -> None:
    finding = {"cause": "firewall-drop", "says": "a rule", "evidence": [], "remedy": "nft delete rule …"}
    stage = {"outcomes": [{"node": "node-b", "findings": [finding]}]}
    result = {"verdict": "fail", "stopped_at": "firewall", "causes": ["firewall-drop"], "stages": [stage]}

    def archive(said: bytes, log: bytes = HEALTHY) -> Path:
        ours = (("README.txt", b"x"), ("manifest.json", b'{"files": []}'))
        (tmp_path / "a.tar").write_bytes(
            tar_of(*ours, ("run/result.json", said), ("run/logs/rank-00000.node-a.log", log))
        )
        return tmp_path / "a.tar"

    told = diagnose(archive(json.dumps(result).encode()))
    assert (told.exit_code, told.first, told.causes[0]["node"]) == (0, "firewall-drop", "node-b")
    ran_out = HEALTHY + b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    told = diagnose(archive(json.dumps(result).encode(), ran_out))
    assert [cause["cause"] for cause in told.causes] == ["firewall-drop", "gpu-out-of-memory"]
    passed = {**result, "verdict": "pass", "causes": [], "stages": []}
    assert diagnose(archive(json.dumps(passed).encode())).causes == []
    for broken in (b"{", b"[]", b'{"verdict": 7}', b"\xff", b"[" * 5000):
        told = diagnose(archive(broken))
        assert (told.exit_code, told.first) == (1, "insufficient-evidence"), broken


def test_an_archive_with_a_manifest_of_its_own_is_not_one_of_ours(tmp_path: Path) -> None:
    said = HEALTHY + b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    members = (("README.txt", b"my model"), ("manifest.json", b'{"name": "x"}'), ("out/train.log", said))
    (tmp_path / "a.tar").write_bytes(tar_of(*members))
    told = diagnose(tmp_path / "a.tar")
    assert (told.exit_code, told.first) == (0, "gpu-out-of-memory")


def test_names_that_no_system_opens(tmp_path: Path) -> None:
    assert main(["diagnose", "a" * 300]) == 2
    (tmp_path / "loop").symlink_to("loop")
    assert main(["diagnose", str(tmp_path / "loop")]) == 2


def test_an_honest_archive_of_many_ranks_is_read_whole(tmp_path: Path) -> None:
    """The bounds on work are for what is packed to deceive."""
    said = "".join(
        f"gn1:{at}:7 [0] NCCL INFO Channel {at:02d}/0 : 0[0] -> 1[0] [send] via NET/IB/{at % 4}/GDRDMA\n"
        for at in range(60)
    )
    ranks = [
        (
            f"logs/rank{rank}.log",
            (said + f"[rank{rank}]: step 1 loss 2.0\n" * 300).encode() + KILLED.replace(b"gn2", b"gn%d" % rank),
        )
        for rank in range(64)
    ]
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(tar_of(*ranks)))
    told = diagnose(tmp_path / "a.tar.gz")
    assert (told.exit_code, told.first, told.unread) == (0, "rank-killed", [])
