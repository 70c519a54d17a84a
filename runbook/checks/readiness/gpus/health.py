"""Each GPU that the inventory names: is it sound, whole and free? From what nvidia-smi told of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from runbook.checks.context import Facts
from runbook.checks.shortened import in_brief
from runbook.model.commands import word
from runbook.model.inventory import Node
from runbook.model.verdict import Finding
from runbook.parsers.nvidia import (
    BAD_ROWS,
    FABRIC_WAITS,
    NO_SPARE_ROWS,
    App,
    Details,
    Gpu,
    bus_key,
    outside_the_fabric,
    throttled,
    waits_to_remap,
    without_spare_rows,
)

BUSY_SHARE = 0.25
"""More than this share of a GPU's memory in other hands is another job: not a desktop, a monitor or a driver's own."""

SHARER = "nvidia-cuda-mps-server"
"""It lets several programs into a GPU that is in an exclusive mode: that is what the mode is set for."""

BRIDGED = ("PCIe", "NVL", "RTX", "Quadro", "PCI-E", "TITAN")
"""In the names of GPUs whose NVLinks need a bridge: one without any active link may simply have none."""


def reset(numbers: Iterable[int]) -> str:
    return f"sudo nvidia-smi --gpu-reset -i {','.join(map(str, sorted(numbers)))}"


def health_findings(node: Node, gpus: Sequence[Gpu], details: Details) -> Iterator[Finding]:
    """Faults of the hardware and its settings; one finding a cause, with all GPUs that have it."""
    told = {gpu.index: details.gpus.get(bus_key(gpu.fields.get("pci.bus_id", "")) or "", {}) for gpu in gpus}
    by_cause: dict[str, dict[int, str]] = {}

    def found(cause: str, gpu: Gpu, evidence: str) -> None:
        by_cause.setdefault(cause, {})[gpu.index] = f"GPU {gpu.index}: {evidence}"

    for gpu in gpus:
        detail = told[gpu.index]
        broken = {value.strip(" []").lower() for value in gpu.broken.values()}
        action = detail.get("GPU Recovery Action", "None")
        if "gpu is lost" in broken:
            found("lost", gpu, "its fields read [GPU is lost]")
        elif "gpu requires reset" in broken:
            found("reset", gpu, "its fields read [GPU requires reset]")
        elif action.lower() in ("reset", "gpu reset required", "drain and reset"):
            found("reset", gpu, f"GPU Recovery Action: {action}")
        elif action.lower() in ("reboot", "node reboot required"):
            found("reboot", gpu, f"GPU Recovery Action: {action}")
        elif without_spare_rows(detail):
            found("replace", gpu, "Remapped Rows: Remapping Failure Occurred: Yes")
        elif (gpu.number("ecc.errors.uncorrected.volatile.total") or 0) > 0:
            count = gpu.number("ecc.errors.uncorrected.volatile.total") or 0
            found(
                "ecc",
                gpu,
                f"{count:.0f} uncorrectable memory error{'s' if count != 1 else ''} since the driver was loaded",
            )
        elif waits_to_remap(detail):
            found("pending", gpu, "Remapped Rows: Pending: Yes")
        elif gpu.told("retired_pages.pending") == "Yes":
            found("pending", gpu, "Retired pages: Pending: Yes")
        if outside := outside_the_fabric(detail):
            state, status = outside
            found("fabric", gpu, f"Fabric State: {state}" if state in FABRIC_WAITS else f"Fabric Status: {status}")
        if gpu.told("mig.mode.current") == "Enabled":
            found("mig", gpu, "MIG mode: Enabled")
        if gpu.told("compute_mode") == "Prohibited":
            found("prohibited", gpu, "Compute mode: Prohibited")
    where = {cause: f"GPU {listed(seen)} of {node.name}" for cause, seen in by_cause.items()}
    for cause, id, says, remedy in (
        ("lost", "gpu-fell-off-bus", "does not answer the driver any more", "sudo reboot"),
        ("reboot", "gpu-reset-required", "is in a state that only a reboot of the node ends", "sudo reboot"),
        (
            "replace",
            "gpu-reset-required",
            NO_SPARE_ROWS,
            "leave it out of `gpus:` and have it replaced: a reset does not mend it",
        ),
        ("ecc", "gpu-ecc-uncorrectable", "has had memory errors that could not be corrected", ""),
        ("reset", "gpu-reset-required", "waits for a reset", ""),
        ("pending", "gpu-reset-required", BAD_ROWS, ""),
        (
            "fabric",
            "fabricmanager-down",
            "is not connected to the NVSwitch fabric: the fabric manager has not set it up, and CUDA will not start",
            "sudo systemctl restart nvidia-fabricmanager",
        ),
        (
            "mig",
            "gpu-count-mismatch",
            "is split by MIG: a rank would see a slice of it, or nothing",
            f"sudo nvidia-smi -i {listed(by_cause.get('mig', {}))} -mig 0",
        ),
        (
            "prohibited",
            "gpu-busy",
            "is in compute mode Prohibited: no program may use it",
            f"sudo nvidia-smi -i {listed(by_cause.get('prohibited', {}))} -c DEFAULT",
        ),
    ):
        if cause in by_cause:
            proof = tuple(by_cause[cause].values())
            yield Finding(id, f"{where[cause]} {says}", remedy or reset(by_cause[cause]), proof)


def listed(numbers: Iterable[int]) -> str:
    return ",".join(map(str, sorted(numbers)))


def unreadable(node: Node, gpus: Sequence[Gpu]) -> Finding | None:
    """Fields that the driver answers with `[Unknown Error]`: nobody knows what is wrong, and something is."""
    broken = [
        gpu for gpu in gpus if {v.strip(" []").lower() for v in gpu.broken.values()} & {"unknown error", "err", "err!"}
    ]
    if not broken:
        return None
    numbers = [gpu.index for gpu in broken]
    return Finding(
        "tool-output-unknown",
        f"GPU {listed(numbers)} of {node.name} is listed, and the driver cannot read it: {', '.join(sorted(broken[0].broken))}",
        f"`sudo dmesg -T | grep -i xid` says why; most often it wants `{reset(numbers)}`, else a reboot",
        tuple(f"GPU {gpu.index}: {name}: {value}" for gpu in broken for name, value in gpu.broken.items())[:8],
    )


def busy(
    node: Node, gpus: Sequence[Gpu], apps: Sequence[App], processes: Mapping[str, Facts]
) -> tuple[list[Finding], list[str]]:
    """Who else holds these GPUs: a finding where too little is left or nobody else is let in, else a warning."""
    taken: list[str] = []
    present: list[str] = []
    numbers: set[int] = set()
    pids: set[int] = set()
    first = ""
    for gpu in gpus:
        total, used = gpu.number("memory.total"), gpu.number("memory.used")
        here = [app for app in apps if app.uuid == gpu.fields["uuid"]]
        others = [app for app in here if not (processes.get(str(app.pid), {}).get("ours") or SHARER in app.program)]
        mine = sum(app.mib or 0 for app in here if app not in others)
        held = max(sum(app.mib or 0 for app in others), (used or 0) - mine)
        alone = (gpu.told("compute_mode") or "").startswith("Exclusive")
        people = [(app, processes.get(str(app.pid), {})) for app in others]
        lines = [f"GPU {gpu.index}: {who(*one)}" for one in people]
        if (others and alone) or (total and held > BUSY_SHARE * total):
            numbers.add(gpu.index)
            pids |= {app.pid for app in others}
            first = first or (who(*people[0], brief=True) if people else "")
            taken += lines or [
                f"GPU {gpu.index}: {held:.0f} of {total:.0f} MiB in use by a process that cannot be seen from here"
            ]
            if alone and others:
                taken.append(f"GPU {gpu.index}: compute mode {gpu.told('compute_mode')}: one process at a time")
        else:
            present += [f"GPU {gpu.index}: {who(*one, brief=True)}" for one in people]
    warnings = [f"other processes are on its GPUs as well: {'; '.join(present[:4])}"] if present else []
    if not numbers:
        return [], warnings
    first = first or taken[0].partition(": ")[2]
    ids = " ".join(map(word, sorted(pids)))
    remedy = (
        f"wait for it, take other GPUs in `gpus:`, or, if it is a leftover, on {node.name}: `sudo kill {ids}`"
        if pids
        else f"on {node.name}: `sudo fuser -v /dev/nvidia*` shows who it is, in containers as well; `{reset(numbers)}` frees "
        "memory that nobody holds any more"
    )
    finding = Finding("gpu-busy", f"GPU {listed(numbers)} of {node.name} is in use: {first}", remedy, tuple(taken[:10]))
    return [finding], warnings


def who(app: App, process: Facts, *, brief: bool = False) -> str:
    """One process for people: pid, user, command, memory."""
    memory = f"{app.mib:.0f} MiB" if app.mib is not None else "memory of unknown size"
    if not process:
        return f"pid {app.pid} ({app.program}, not to be seen from here) holds {memory}"
    command = process["command"] or app.program
    return f"pid {app.pid} of {process['user']} ({in_brief(command) if brief else command}) holds {memory}"


def link_finding(node: Node, gpus: Sequence[Gpu], links: Mapping[int, Mapping[int, bool]]) -> Finding | None:
    """A GPU with fewer active NVLinks than its like on the same node. Links that no card of this kind has are not missed."""
    active = {gpu.index: sum(links[gpu.index].values()) for gpu in gpus if gpu.index in links}
    best: Counter[str] = Counter()
    for gpu in gpus:
        best[gpu.name] = max(best[gpu.name], active.get(gpu.index, 0))
    short: dict[int, str] = {}
    for gpu in gpus:
        count = active.get(gpu.index)
        if count is None or count == best[gpu.name] or (count == 0 and any(word in gpu.name for word in BRIDGED)):
            continue
        dead = ", ".join(str(link) for link, up in sorted(links[gpu.index].items()) if not up) or "all"
        short[gpu.index] = f"GPU {gpu.index}: {count} of {best[gpu.name]} NVLinks active, inactive: {dead}"
    if not short:
        return None
    return Finding(
        "nvlink-error",
        f"GPU {listed(short)} of {node.name} has lost NVLinks that the other {gpus[0].name} there have",
        f"on {node.name}: `nvidia-smi nvlink -e -i {listed(short)}` and `sudo dmesg -T | grep -i xid`; reset all of its GPUs "
        "together: `sudo nvidia-smi --gpu-reset`, then reseat or replace the board if they stay away",
        tuple(short.values()),
    )


def slow_clocks(gpus: Sequence[Gpu]) -> Iterator[str]:
    """Warnings: a GPU that is being held back by heat or power."""
    for gpu in gpus:
        for name in ("clocks_event_reasons.active", "clocks_throttle_reasons.active"):
            if reasons := throttled(int(gpu.number(name) or 0)):
                yield f"GPU {gpu.index} is slowed down: {', '.join(reasons)}"


def order_of_devices(node: Node, gpus: Sequence[Gpu], order: object) -> Iterator[str]:
    """A warning where CUDA's numbers are not nvidia-smi's: it puts the fastest model first."""
    models = sorted({gpu.name for gpu in gpus})
    if len(models) > 1 and order != "PCI_BUS_ID" and len(node.gpus) < len(gpus):
        yield f"its GPUs are of {len(models)} models ({', '.join(models)}), and CUDA numbers the fastest first: set CUDA_DEVICE_ORDER: PCI_BUS_ID in `env:`"
