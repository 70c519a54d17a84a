"""lspci -vvv (ACS and link states) and lsmod: what stands between a NIC and a GPU."""

from __future__ import annotations

import re

from runbook.parsers.reading import CUT, Fault, Reading, Support, Tool, numbered, some

FLAGS = re.compile(r"\s*ACSCtl:\s*(?P<flags>(?:\w+[+-]\s*)+)\Z")
DEVICE = re.compile(r"(?P<at>(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) (?P<what>.*)", re.IGNORECASE)


def lspci(text: str) -> Reading | None:
    device = ""
    on: list[tuple[int, str]] = []
    narrow: list[tuple[int, str]] = []
    bridges = bad = 0
    for at, line in numbered(text):
        if found := DEVICE.match(line):
            device = found["at"]
        elif "ACSCtl:" in line or ("ReqRedir" in line and "ACSCap:" not in line):
            flags = FLAGS.match(line)
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
    faults = []
    if on:
        where = some([name for _, name in on if name], 4)
        says = f"ACS is on in {len(on)} of {bridges} PCIe bridges{f' ({where})' if where else ''}: GPUs and NICs reach each other through the CPU only"
        remedy = "turn ACS off in the BIOS, or per bridge: sudo setpci -s BRIDGE ECAP_ACS+0x6.w=0000   # virtual machines need it on"
        faults.append(Fault("acs-breaks-gdr", says, remedy, tuple(at for at, _ in on[:6]), "low"))
    supports = []
    if on:
        causes = ("p2p-hang-acs-iommu", "acs-breaks-gdr", "gdr-disabled")
        supports.append(Support(causes, f"ACS is on in {len(on)} PCIe bridges", tuple(at for at, _ in on[:4])))
    if narrow:
        says = f"a PCIe link is narrower than it could be: {some([what for _, what in narrow], 3)}"
        supports.append(Support(("allreduce-slow", "rank-behind"), says, tuple(at for at, _ in narrow[:4])))
    facts = {"bridges": bridges, "acs_enabled": len(on), "narrow": [what for _, what in narrow]}
    return Reading("lspci", facts, tuple(faults), tuple(supports), CUT if bad else "")


MODULE = re.compile(
    r"(?P<name>[\w-]+)\s+(?P<size>\d+)\s+(?P<users>-?\d+)(?:\s+(?P<by>\S+))?(?: (?P<state>Live|Loading|Unloading) .*)?\s*\Z"
)


def lsmod(text: str) -> Reading | None:
    rows = [(at, line) for at, line in numbered(text) if line.strip() and not line.startswith("Module ")]
    modules = {
        found["name"]: (found["by"] or "").strip(",").split(",") for _, line in rows if (found := MODULE.match(line))
    }
    if not modules:
        return None
    peer = next((name for name in ("nvidia_peermem", "nv_peer_mem") if name in modules), None)
    supports: tuple[Support, ...] = ()
    if "Module " in text and peer is None and "nvidia" in modules and "ib_core" in modules:
        head = next(at for at, line in numbered(text) if line.startswith("Module "))
        says = "nvidia_peermem is not loaded: without it (or dma-buf, from Linux 5.12 and CUDA 11.7 on) there is no GPUDirect RDMA"
        supports = (Support(("gdr-disabled",), says, (head,), "sudo modprobe nvidia-peermem"),)
    facts = {
        "modules": sorted(modules),
        "nvidia_peermem_loaded": peer is not None,
        "linked_to_ib_core": peer is not None and peer in modules.get("ib_core", []),
    }
    whole = len(rows) == sum(bool(MODULE.match(line)) for _, line in rows)
    return Reading("lsmod", facts, (), supports, "" if whole else CUT)


TOOLS = (
    Tool("lspci", r"(?:sudo )?lspci\b.*-v", r"\s*ACSCtl:|[0-9a-f:]{5,12}\.[0-7] .*(?:PCI bridge|NVIDIA|Mellanox|Non-Volatile)", r"\s+|[0-9a-f:]{5,12}\.[0-7] |--", ("ACSCtl:", "LnkSta:"), lspci),
    Tool("lsmod", r"(?:lsmod|cat /proc/modules)\b", r"Module\s+Size\s+Used by|(?:nvidia\w*|nv_peer_mem|ib_core|mlx5_\w+)\s+\d+\s+\d+(?:\s|\Z)", r"Module |[\w-]+\s+\d+\s+-?\d+", ("nvidia_", "ib_core", "mlx5_core", "mlx5_ib", "Used by", "nv_peer_mem"), lsmod),
)  # fmt: skip
