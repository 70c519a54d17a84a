"""Readers of df, free, ulimit, lspci and lsmod: room on disks, in /dev/shm and in memory; limits of a process; and
settings that keep a NIC and a GPU from direct transfers."""

from __future__ import annotations

import re

from runbook.causes.catalogue import Confidence
from runbook.model.command_quoting import shell_word
from runbook.model.units import first_items_text
from runbook.parsers.tool_reading import CUT_OR_UNKNOWN, Reading, numbered_lines

# --- df and free ----------------------------------------------------------------------------------------------------

DF_ROW = re.compile(
    r"\A(?P<device>\S+(?:\s+\S+)*?)\s+(?:(?P<type>[a-z][\w.]*)\s+)?(?P<size>[\d.,]+[KMGTPEi]*B?"
    r"|-)\s+(?P<used>[\d.,]+[KMGTPEi]*B?|-)\s+(?P<free>-?[\d.,]+[KMGTPEi]*B?|-)\s+(?P<share>\d+%|-)\s+(?P<mount>/.*)\Z"
)
DF_HEADER = re.compile(
    r"^Filesystem\s.*(?<![\w-])(?P<kind>Size|Inodes|(?P<count>\d{1,6})(?P<unit>[KMGTPE]?)(?P<ten>B?)-blocks)\b.*$",
    re.MULTILINE,
)
READ_ONLY_MOUNT = re.compile(
    r"/snap/|/run/credentials|/media/|/cdrom|/sys/firmware|/boot/efi|/var/lib/snapd|/proc/|/mnt/iso"
)
WORK_MOUNT = re.compile(r"/(?:tmp|home|var|root|scratch|data|work|workspace|opt|mnt|fsx|shared)?(?:/|\Z)")
MAX_SMALL_SHM_BYTES = 64 << 20
"""Bytes of /dev/shm that Docker gives a container: enough for two GPUs, not for eight."""


def read_df(text: str) -> Reading | None:
    """Reads `df`, with sizes or with inodes (`-i`)."""
    head = DF_HEADER.search(text)
    if not head:
        return None
    inodes, unit = head["kind"] == "Inodes", _df_unit_bytes(head)
    blocks = f" {head['kind']}" if head["count"] else ""
    found, mounts = Reading(), 0
    for at, line in numbered_lines(text):
        if line.startswith(("Filesystem", "total ", "df: ")) or not line.strip():
            continue
        row = DF_ROW.match(line)
        if row is None:
            found.unknown = CUT_OR_UNKNOWN
            continue
        mounts += 1
        mount, used = row["mount"], f"({row['used']} of {row['size']}"
        if (
            READ_ONLY_MOUNT.search(mount)
            or row["device"].startswith("/dev/loop")
            or row["type"] in ("squashfs", "iso9660")
        ):
            continue
        full = row["share"] == "100%" and (_size_bytes(row["free"], unit) or 0) <= 1 << 20
        if mount == "/dev/shm" and not inodes:
            if full:
                found.proves("shm-too-small", f"/dev/shm is full {used})", (at,), way="full")
            elif 0 < (_size_bytes(row["size"], unit) or 0) <= MAX_SMALL_SHM_BYTES:
                says = f"/dev/shm has {row['size']}{blocks}: NCCL between many GPUs of one node needs 1 GiB or more"
                found.proves("shm-too-small", says, (at,), "medium", way="small")
        elif full:
            what = "inodes (small files)" if inodes else "space"
            way = "many-files" if inodes else "what-takes-it"
            sure: Confidence = "high" if WORK_MOUNT.match(mount) else "medium"
            says = f"{mount} has no {what} left {used} used)"
            found.proves("disk-full", says, (at,), sure, way=way, mount=shell_word(mount.rstrip("/") + "/"))
    if not mounts:
        found.unknown = CUT_OR_UNKNOWN
    return found


SIZE_FACTORS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50, "E": 1 << 60}


def _df_unit_bytes(head: re.Match[str]) -> int:
    """The bytes that one unit of a bare number stands for, by df's heading: `1K-blocks`, `1MB-blocks` (powers of ten),
    `512B-blocks`; 1 under `Size`; and 1 KiB under `Inodes`, which is the least that a file takes."""
    if not head["count"]:
        return 1 if head["kind"] == "Size" else 1 << 10
    step = 1000 if head["unit"] and head["ten"] else 1024
    return int(head["count"]) * int(step ** ("", *"KMGTPE").index(head["unit"]))


def _size_bytes(text: str, unit: int = 1 << 10) -> float | None:
    """The bytes of a size such as `64M`; a bare number counts units of `unit` bytes; None if the text is no size."""
    found = re.match(r"([\d.]+)([KMGTPE]?)", text.replace(",", "."))
    if not found or found[1].count(".") > 1 or not found[1].strip("."):
        return None
    return float(found[1]) * (SIZE_FACTORS[found[2]] if found[2] or found[1] == "0" else unit)


def read_free(text: str) -> Reading | None:
    """Reads `free`."""
    head = re.search(r"^[ \t]+total\s+used\s+free\s+shared\b.*$", text, re.MULTILINE)
    if not head:
        return None
    names = head[0].split()
    at, row = next(((at, line) for at, line in numbered_lines(text) if line.startswith("Mem:")), (0, ""))
    values = row.split()[1:]
    columns = dict(zip(names, values, strict=False))
    available = columns.get("available", "")  # an older `free` has no such column, and its `free` says little
    total, left = _size_bytes(columns.get("total", "")), _size_bytes(available)
    found = Reading.of(bool(row) and len(values) == len(names) and total is not None and left is not None)
    if total and left is not None and left < 0.05 * total:
        says = f"{available} of {columns['total']} memory are left: the kernel ends processes then"
        found.explains("rank-killed", says, (at,), way="no-memory")
    return found


# --- ulimit -a and /proc/PID/limits ---------------------------------------------------------------------------------

MIN_MEMLOCK_KIB = 64 << 10
"""With less lockable memory two nodes cannot start over RDMA; the live check uses it as well. RDMA pins the memory that
it moves, and the kernel counts it (ib_umem_get fails with ENOMEM beyond the limit, and NCCL with `ibv_reg_mr failed:
Cannot allocate memory`). One connection of NCCL pins 4 MiB for each of its channels, of which there are 2 to 32."""

TINY_MEMLOCK_KIB = 1024
"""With no more lockable memory every use of RDMA fails. A limit above it is a fault of low confidence: new
systems start with 8 MiB, which says little about a node without RDMA."""

MIN_OPEN_FILES = 256
"""A limit of fewer open files is too low, as the live check says too: torch, its libraries and its threads hold about
100."""
LIMIT_VALUE = r"unlimited|-?\d+"
MEMLOCK_LINES = (
    re.compile(rf"(?:max )?locked memory\s*\((?P<unit>kbytes|bytes)(?:, -l)?\)\s+(?P<value>{LIMIT_VALUE})\s*\Z"),
    re.compile(
        rf"-l: locked[- ](?:in-memory size|memory size|memory) \((?P<unit>kbytes)\)\s+(?P<value>{LIMIT_VALUE})\s*\Z"
    ),
    re.compile(rf"Max locked memory\s+(?P<value>{LIMIT_VALUE})\s+(?:{LIMIT_VALUE})\s+(?P<unit>bytes)\s*\Z"),
)
OPEN_FILES_LINE = re.compile(
    r"(?:open files\s+\(-n\)|nofiles|-n: file descriptors"
    rf"|Max open files)\s+(?P<value>{LIMIT_VALUE})(?:\s+(?:{LIMIT_VALUE})\s+files)?\s*\Z"
)


def read_limits(text: str) -> Reading | None:
    """Reads `ulimit -a` of sh, bash and zsh, and /proc/PID/limits."""
    memlock: tuple[float, int] | None = None
    files: tuple[float, int] | None = None
    for at, line in numbered_lines(text):
        if found := next((match for pattern in MEMLOCK_LINES if (match := pattern.match(line.strip()))), None):
            memlock = (_limit_value(found["value"]) / (1 if found["unit"] == "kbytes" else 1024), at)
        elif found := OPEN_FILES_LINE.match(line.strip()):
            files = (_limit_value(found["value"]), at)
    if memlock is None and files is None:
        return None
    reading = Reading.of(memlock is not None and files is not None)
    if memlock and memlock[0] < MIN_MEMLOCK_KIB:
        says = f"only {memlock[0]:.0f} KiB of memory may be locked: RDMA cannot register its buffers in that"
        sure: Confidence = "medium" if memlock[0] <= TINY_MEMLOCK_KIB else "low"
        reading.proves("memlock-limit", says, (memlock[1],), sure, way="here")
    if files and files[0] < MIN_OPEN_FILES:
        says = f"only {files[0]:.0f} files may be open at once"
        reading.proves("open-files-limit", says, (files[1],), "medium", way="here")
    return reading


def _limit_value(text: str) -> float:
    return float("inf") if text == "unlimited" or text.startswith("-") else float(text)


def read_locked_memory(text: str) -> Reading | None:
    """Reads `ulimit -l`, which prints a bare number of KiB."""
    words = text.split()
    if len(words) != 1 or not re.fullmatch(LIMIT_VALUE, words[0]):
        return None
    reading = read_limits(f"max locked memory (kbytes, -l) {words[0]}")
    return reading and Reading(faults=reading.faults)


# --- lspci -vvv (ACS and link states) and lsmod ---------------------------------------------------------------------

ACS_FLAGS = re.compile(r"\s*ACSCtl:\s*(?P<flags>(?:\w+[+-]\s*)+)\Z")
PCI_DEVICE = re.compile(r"(?P<at>(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) (?P<what>.*)", re.IGNORECASE)


def read_lspci(text: str) -> Reading | None:
    """Reads `lspci -vvv`: bridges with ACS on, and PCIe links that are narrower than they could be."""
    device = ""
    on: list[tuple[int, str]] = []
    narrow: list[tuple[int, str]] = []
    bridges = bad = 0
    for at, line in numbered_lines(text):
        if found := PCI_DEVICE.match(line):
            device = found["at"]
        elif "ACSCtl:" in line or ("ReqRedir" in line and "ACSCap:" not in line):
            flags = ACS_FLAGS.match(line)
            if flags is None or "ReqRedir" not in flags["flags"]:
                bad += 1
                continue
            bridges += 1
            if re.search(r"(?:ReqRedir|CmpltRedir|UpstreamFwd)\+", flags["flags"]):
                on.append((at, device))
        elif (state := re.search(r"LnkSta:.*Width x(\d+) \(downgraded\)", line)) and state[1] != "0":
            narrow.append((at, f"{device} runs over {state[1]} lanes"))
    if not bridges and not narrow and "LnkSta:" not in text and not bad:
        return None
    reading = Reading.of(not bad)
    if on:
        where = first_items_text([name for _, name in on if name], 4)
        says = (
            f"ACS is on in {len(on)} of {bridges} PCIe bridges{f' ({where})' if where else ''}: GPUs and NICs "
            "reach each other through the CPU only"
        )
        reading.proves("acs-breaks-gdr", says, [at for at, _ in on[:6]], "low", way="bridges")
        says, also = f"ACS is on in {len(on)} PCIe bridges", ("acs-breaks-gdr", "gdr-disabled")
        reading.explains("p2p-hang-acs-iommu", says, [at for at, _ in on[:4]], also=also)
    if narrow:
        says = f"a PCIe link is narrower than it could be: {first_items_text([what for _, what in narrow], 3)}"
        reading.explains("allreduce-slow", says, [at for at, _ in narrow[:4]], also=("rank-behind",))
    return reading


LSMOD_ROW = re.compile(
    r"(?P<name>[\w-]+)\s+(?P<size>\d+)\s+(?P<users>-?\d+)(?:\s+(?P<by>\S+))?(?: (?P<state>Live|Loading"
    r"|Unloading) .*)?\s*\Z"
)


def read_lsmod(text: str) -> Reading | None:
    """Reads `lsmod`: whether the module for GPUDirect RDMA is loaded."""
    rows = [(at, line) for at, line in numbered_lines(text) if line.strip() and not line.startswith("Module ")]
    modules = [found["name"] for _, line in rows if (found := LSMOD_ROW.match(line))]
    if not modules:
        return None
    reading = Reading.of(len(rows) == len(modules))
    missing = not {"nvidia_peermem", "nv_peer_mem"} & set(modules)
    if "Module " in text and missing and {"nvidia", "ib_core"} <= set(modules):
        head = next(at for at, line in numbered_lines(text) if line.startswith("Module "))
        says = (
            "nvidia_peermem is not loaded: without it (or dma-buf, from Linux 5.12 and CUDA 11.7 on) there is no "
            "GPUDirect RDMA"
        )
        reading.explains("gdr-disabled", says, (head,), way="module")
    return reading
