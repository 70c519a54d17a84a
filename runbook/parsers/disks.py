"""df and free: is there room, on disks, in /dev/shm, in memory?"""

from __future__ import annotations

import re

from runbook.causes.catalogue import Confidence
from runbook.model.commands import word
from runbook.parsers.reading import CUT, Fault, Reading, Support, Tool, numbered

ROW = re.compile(
    r"\A(?P<device>\S+(?:\s+\S+)*?)\s+(?:(?P<type>[a-z][\w.]*)\s+)?(?P<size>[\d.,]+[KMGTPEi]*B?|-)\s+(?P<used>[\d.,]+[KMGTPEi]*B?|-)\s+"
    r"(?P<free>-?[\d.,]+[KMGTPEi]*B?|-)\s+(?P<share>\d+%|-)\s+(?P<mount>/.*)\Z"
)
READ_ONLY = re.compile(r"/snap/|/run/credentials|/media/|/cdrom|/sys/firmware|/boot/efi|/var/lib/snapd|/proc/|/mnt/iso")
WORKED_IN = re.compile(r"/(?:tmp|home|var|root|scratch|data|work|workspace|opt|mnt|fsx|shared)?(?:/|\Z)")
SMALLEST_SHM = 64 << 20
"""What Docker gives: enough for two GPUs, not for eight."""


def disks(text: str) -> Reading | None:
    head = re.search(
        r"^Filesystem\s.*\b(?P<kind>Size|1K-blocks|1M-blocks|1024-blocks|512-blocks|Inodes)\b.*$", text, re.MULTILINE
    )
    if not head:
        return None
    inodes = head["kind"] == "Inodes"
    faults, mounts, bad = [], {}, 0
    for at, line in numbered(text):
        if line.startswith(("Filesystem", "total ", "df: ")) or not line.strip():
            continue
        row = ROW.match(line)
        if row is None:
            bad += 1
            continue
        mounts[row["mount"]] = {"size": row["size"], "available": row["free"], "used_pct": row["share"].rstrip("%")}
        if (
            READ_ONLY.search(row["mount"])
            or row["device"].startswith("/dev/loop")
            or row["type"] in ("squashfs", "iso9660")
        ):
            continue
        full = row["share"] == "100%" and (_bytes(row["free"]) or 0) <= 1 << 20
        if row["mount"] == "/dev/shm" and not inodes:
            faults += _shared(row, full, at)
        elif full:
            what = "inodes (small files)" if inodes else "space"
            remedy = f"sudo du -xsh {word(row['mount'].rstrip('/'))}/* | sort -h | tail   # what takes it" if not inodes else (
                f"sudo du --inodes -xs {word(row['mount'].rstrip('/'))}/* | sort -n | tail   # where the many files are")  # fmt: skip
            sure: Confidence = "high" if WORKED_IN.match(row["mount"]) else "medium"
            faults.append(
                Fault(
                    "disk-full",
                    f"{row['mount']} has no {what} left ({row['used']} of {row['size']} used)",
                    remedy,
                    (at,),
                    sure,
                )
            )
    return Reading("df", {"mounts": mounts, "inodes": inodes}, tuple(faults), (), CUT if bad or not mounts else "")


def _shared(row: re.Match[str], full: bool, at: int) -> list[Fault]:
    size = _bytes(row["size"])
    remedy = "sudo mount -o remount,size=8G /dev/shm   # in Docker: --shm-size=8g or --ipc=host"
    if full:
        return [Fault("shm-too-small", f"/dev/shm is full ({row['used']} of {row['size']})", f"ls -lS /dev/shm | head   # rm /dev/shm/nccl-* of ended jobs; {remedy}", (at,))]  # fmt: skip
    if size is not None and 0 < size <= SMALLEST_SHM:
        return [
            Fault(
                "shm-too-small",
                f"/dev/shm has {row['size']}: NCCL between many GPUs of one node wants 1 GiB or more",
                remedy,
                (at,),
                "medium",
            )
        ]
    return []


FACTORS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50, "E": 1 << 60}


def _bytes(text: str) -> float | None:
    """`64M`; a bare number counts blocks of 1 KiB, as df does without -h."""
    found = re.match(r"([\d.]+)([KMGTPE]?)", text.replace(",", "."))
    if not found or found[1].count(".") > 1 or not found[1].strip("."):
        return None
    return float(found[1]) * (FACTORS[found[2]] if found[2] or found[1] == "0" else 1024)


def memory(text: str) -> Reading | None:
    head = re.search(r"^[ \t]+total\s+used\s+free\s+shared\b.*$", text, re.MULTILINE)
    if not head:
        return None
    names = head[0].split()
    row = next(((at, line) for at, line in numbered(text) if line.startswith("Mem:")), None)
    values = row[1].split()[1:] if row else []
    facts = dict(zip(names, values, strict=False))
    total, left = _bytes(facts.get("total", "")), _bytes(facts.get("available", facts.get("free", "")))
    whole = row is not None and len(values) == len(names) and total is not None and left is not None
    supports: tuple[Support, ...] = ()
    if row and total and left is not None and left < 0.05 * total:
        says = f"{facts.get('available', facts.get('free'))} of {facts['total']} memory are left: the kernel ends processes then"
        supports = (
            Support(
                ("rank-killed",),
                says,
                (row[0],),
                "sudo dmesg -T | grep -i 'out of memory'   # fewer workers or a smaller batch",
            ),
        )
    return Reading("free", facts, (), supports, "" if whole else CUT)


TOOLS = (
    Tool("df", r"df\b", r"Filesystem\s+(?:Type\s+)?(?:Size|1K-blocks|1M-blocks|1024-blocks|512-blocks|Inodes)\b", r"Filesystem|\S.*\s\S+%?\s+/|\s*$|df: ", ("Filesystem",), disks),
    Tool("free", r"free\b", r"\s+total\s+used\s+free\s+shared", r"\s+total|Mem:|Swap:|-/\+ buffers|Total:", ("buff/cache", "buffers"), memory),
)  # fmt: skip
