"""Faults that nvidia-smi shows: why it lists no GPU, and whether each GPU of the inventory is sound and free."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from runbook.causes.catalogue import finding_for
from runbook.model.command_quoting import shell_word
from runbook.model.inventory import Node
from runbook.model.units import count_text, name_list_text, shortened_line
from runbook.model.verdict import Finding
from runbook.parsers.nvidia_smi_facts import (
    BAD_ROWS,
    FABRIC_WAITING_STATES,
    NO_SPARE_ROWS,
    SMI_REFUSALS,
    App,
    Details,
    Gpu,
    Listing,
    asks_for_recovery,
    bus_key,
    has_no_spare_rows,
    unready_fabric_state,
    unwrapped_text,
    waits_to_remap,
)
from runbook.transport.node_answers import GpuProcess

SMI_DEADLINE_S = 12
"""Seconds that nvidia-smi may take: without persistence mode it wakes eight GPUs one by one, a second each."""

GPU_LIST_TIMEOUT_S = 26.0
"""Seconds for the list of GPUs. A driver that does not know all the fields we ask for is asked more than once."""

INFOROM_CORRUPT = 14
"""nvidia-smi's exit code when the infoROM, a card's configuration memory, is corrupt. The answer is complete all the
same."""


def unusable_list_finding(
    node: Node, smi: Mapping[str, Any], listing: Listing, facts: Mapping[str, Any]
) -> Finding | None:
    """Why nvidia-smi gave no usable list of GPUs; None when it did."""
    wanted = count_text(len(node.gpus), "GPU")
    if smi.get("missing"):
        return no_nvidia_smi_finding(node, wanted, facts)
    if smi.get("timed_out"):
        asleep = smi.get("state") == "D"
        return finding_for(
            "gpu-tool-hung",
            f"nvidia-smi does not return on {node.name}: the driver or a GPU hangs"
            + (", and the kernel cannot end it" if asleep else ""),
            (
                f"nvidia-smi: no answer within {SMI_DEADLINE_S} s"
                + (", in uninterruptible sleep (state D)" if asleep else ""),
            ),
            node=node.name,
        )
    said = nvidia_smi_evidence(smi)
    text = unwrapped_text(f"{smi.get('out', '')} {smi.get('err', '')}").lower()
    sound = smi.get("code") in (0, INFOROM_CORRUPT)
    if listing.gpus and (sound or listing.lost):
        return None
    told = [one for one in SMI_REFUSALS if one.of_node and one.phrase in text]  # some refusals come with exit code 0
    if listing.lost and not told:
        return None
    by_code = [one for one in SMI_REFUSALS if one.code and one.code == smi.get("code")]
    for one in (told or by_code)[:1]:
        seen = (f"nvidia-smi ended with code {smi.get('code')}", *said)
        return finding_for(one.cause_of_node or one.cause, f"{node.name}: {one.says}", seen, way=one.way)
    unread = "printed more than is read" if smi.get("too_long") else "could not be started"
    how = f"ended with code {smi.get('code')}" if smi.get("code") is not None else unread
    listed = "and its list may be cut" if listing.gpus else "and lists no GPU in a way that is understood"
    says = f"nvidia-smi on {node.name} {how} {listed}, so {wanted} cannot be checked"
    return finding_for("tool-output-unknown", says, said, way="gpus-as-user", node=node.name)


def no_nvidia_smi_finding(node: Node, wanted: str, facts: Mapping[str, Any]) -> Finding:
    """The finding for a node without nvidia-smi. `wanted`: the number of its GPUs in words."""
    pci = facts.get("pci")
    seen = ["nvidia-smi is not on PATH"]
    if pci is not None:
        seen.append(f"the kernel shows {count_text(pci, 'NVIDIA GPU')} on the PCI bus")
    if facts.get("amd"):
        says, way = f"{node.name} has AMD's tools and no nvidia-smi: runbook can look at NVIDIA's GPUs only", "gpus"
        seen.append(f"{facts['amd']} is there")
    elif node.connection == "kubernetes" or node.entry:
        says = f"{node.place} has no nvidia-smi, so {wanted} cannot be checked: most likely it was not given the GPUs"
        way = "gpus-container" if node.entry else "gpus-pod"
    else:
        says = f"{node.name} has no nvidia-smi, so its {wanted} cannot be checked"
        way = "gpus-driver" if pci == 0 else "gpus-tools"
    return finding_for("tool-missing", says, tuple(seen), way=way, gpus=len(node.gpus), node=node.name)


def nvidia_smi_evidence(smi: Mapping[str, Any]) -> tuple[str, ...]:
    """The first six lines that nvidia-smi printed."""
    text = f"{smi.get('out', '')}\n{smi.get('err', '')}".strip()
    return tuple(line.strip() for line in text.splitlines() if line.strip())[:6] or ("it printed nothing",)


MAX_FOREIGN_MEMORY_SHARE = 0.25
"""A share of a GPU's memory. Processes that hold more belong to another job: a desktop, a monitor and the driver hold
less."""

MPS_SERVER = "nvidia-cuda-mps-server"
"""The MPS server. It lets several programs share a GPU that is in an exclusive mode, and that mode is meant for it."""

BRIDGED_GPU_NAMES = re.compile(r"PCI-?E|NVL|RTX|Quadro|TITAN|\bA[34]0\b", re.IGNORECASE)
"""Names of GPUs whose NVLinks need a bridge. Such a GPU without any active link may simply have no bridge."""


def health_findings(node: Node, gpus: Sequence[Gpu], details: Details) -> Iterator[Finding]:
    """Findings for faults of the hardware and its settings: one for each kind of fault, with all GPUs that have it."""
    seen: dict[str, dict[int, str]] = {}
    for gpu in gpus:
        detail = details.gpus.get(bus_key(gpu.fields.get("pci.bus_id", "")) or "", {})
        for kind, what in filter(
            None, (_worst_hardware_fault(gpu, detail), _fabric_fault(detail), *_setting_faults(gpu))
        ):
            seen.setdefault(kind, {})[gpu.index] = f"GPU {gpu.index}: {what}"
    for kind, (cause, says) in GPU_FAULTS.items():
        if kind in seen:
            what = f"GPU {gpu_numbers_text(seen[kind])} of {node.name} {says}"
            yield finding_for(cause, what, tuple(seen[kind].values()), way=kind, indices=gpu_numbers_text(seen[kind]))


GPU_FAULTS = {
    "lost": ("gpu-fell-off-bus", "does not answer the driver any more"),
    "reboot": ("gpu-reset-required", "needs a reboot of its node"),
    "replace": ("gpu-reset-required", NO_SPARE_ROWS),
    "ecc": ("gpu-ecc-uncorrectable", "has had memory errors that could not be corrected"),
    "reset": ("gpu-reset-required", "waits for a reset"),
    "pending": ("gpu-reset-required", BAD_ROWS),
    "fabric": (
        "fabricmanager-down",
        "is not connected to the NVSwitch fabric: the fabric manager has not set it up, and CUDA will not start",
    ),
    "mig": ("gpu-count-mismatch", "is split by MIG: a rank would see a slice of it, or nothing"),
    "prohibited": ("gpu-busy", "is in compute mode Prohibited: no program may use it"),
}
"""Kinds of fault, in the order in which they are reported: the cause, and what is said of the GPU."""


def _worst_hardware_fault(gpu: Gpu, detail: Mapping[str, str]) -> tuple[str, str] | None:
    """The kind of the worst hardware fault of a GPU, and the field that shows it; None when there is none."""
    broken = {value.strip(" []").lower() for value in gpu.broken.values()}
    action = detail.get("GPU Recovery Action", "None")
    errors = gpu.number("ecc.errors.uncorrected.volatile.total") or 0
    if "gpu is lost" in broken:
        return "lost", "its fields read [GPU is lost]"
    if "gpu requires reset" in broken:
        return "reset", "its fields read [GPU requires reset]"
    if asks_for_recovery(action):
        return ("reboot" if "reboot" in action.lower() else "reset"), f"GPU Recovery Action: {action}"
    if has_no_spare_rows(detail):
        return "replace", "Remapped Rows: Remapping Failure Occurred: Yes"
    if errors > 0:
        return "ecc", f"{count_text(int(errors), 'uncorrectable memory error')} since the driver was loaded"
    if waits_to_remap(detail):
        return "pending", "Remapped Rows: Pending: Yes"
    if gpu.value("retired_pages.pending") == "Yes":
        return "pending", "Retired pages: Pending: Yes"
    return None


def _fabric_fault(detail: Mapping[str, str]) -> tuple[str, str] | None:
    """The kind "fabric" and the field that shows it, when the GPU is not connected to the NVSwitch fabric; else
    None."""
    outside = unready_fabric_state(detail)
    if outside is None:
        return None
    state, status = outside
    return "fabric", f"Fabric State: {state}" if state in FABRIC_WAITING_STATES else f"Fabric Status: {status}"


def _setting_faults(gpu: Gpu) -> Iterator[tuple[str, str]]:
    """The kinds of fault in a GPU's settings, and the fields that show them."""
    if gpu.value("mig.mode.current") == "Enabled":
        yield "mig", "MIG mode: Enabled"
    if gpu.value("compute_mode") == "Prohibited":
        yield "prohibited", "Compute mode: Prohibited"


def gpu_numbers_text(numbers: Iterable[int]) -> str:
    """These numbers, sorted, as one word: `0,3`."""
    return ",".join(map(str, sorted(numbers)))


def unreadable_gpu_finding(node: Node, gpus: Sequence[Gpu]) -> Finding | None:
    """A finding for fields that the driver answers with `[Unknown Error]`: something is wrong, but not known what."""
    broken = [
        gpu for gpu in gpus if {v.strip(" []").lower() for v in gpu.broken.values()} & {"unknown error", "err", "err!"}
    ]
    if not broken:
        return None
    numbers = [gpu.index for gpu in broken]
    return finding_for(
        "tool-output-unknown",
        f"GPU {gpu_numbers_text(numbers)} of {node.name} is listed, and the driver cannot read it: "
        f"{', '.join(sorted(broken[0].broken))}",
        tuple(f"GPU {gpu.index}: {name}: {value}" for gpu in broken for name, value in gpu.broken.items())[:8],
        way="gpu-silent",
        indices=gpu_numbers_text(numbers),
    )


def busy_gpu_findings(
    node: Node, gpus: Sequence[Gpu], apps: Sequence[App], processes: Mapping[str, GpuProcess]
) -> tuple[list[Finding], list[str]]:
    """Who else uses these GPUs: a finding when too little memory is left or a GPU admits only one process, else a
    warning."""
    taken: list[str] = []
    present: list[str] = []
    numbers: set[int] = set()
    pids: set[int] = set()
    first = ""
    for gpu in gpus:
        total, used = gpu.number("memory.total"), gpu.number("memory.used")
        here = [app for app in apps if app.uuid == gpu.fields["uuid"]]
        ours = {app for app in here if processes.get(str(app.pid), {}).get("ours") or MPS_SERVER in app.program}
        others = [app for app in here if app not in ours]
        mine = sum(app.mib or 0 for app in here if app in ours)
        held = max(sum(app.mib or 0 for app in others), (used or 0) - mine)
        alone = (gpu.value("compute_mode") or "").startswith("Exclusive")
        people = [(app, processes.get(str(app.pid), {})) for app in others]
        lines = [f"GPU {gpu.index}: {gpu_process_text(*one)}" for one in people]
        if (others and alone) or (total and held > MAX_FOREIGN_MEMORY_SHARE * total):
            numbers.add(gpu.index)
            pids |= {app.pid for app in others}
            first = first or (gpu_process_text(*people[0], brief=True) if people else "")
            taken += lines or [
                f"GPU {gpu.index}: {held:.0f} of {total:.0f} MiB in use by a process that cannot be seen from here"
            ]
            if alone and others:
                taken.append(f"GPU {gpu.index}: compute mode {gpu.value('compute_mode')}: one process at a time")
        else:
            present += [f"GPU {gpu.index}: {gpu_process_text(*one, brief=True)}" for one in people]
    warnings = [f"other processes are on its GPUs as well: {'; '.join(present[:4])}"] if present else []
    if not numbers:
        return [], warnings
    first = first or taken[0].partition(": ")[2]
    finding = finding_for(
        "gpu-busy",
        f"GPU {gpu_numbers_text(numbers)} of {node.name} is in use: {first}",
        tuple(taken[:10]),
        way="others" if pids else "unseen",
        node=node.name,
        pids=" ".join(map(shell_word, sorted(pids))),
        indices=gpu_numbers_text(numbers),
    )
    return [finding], warnings


def gpu_process_text(app: App, process: GpuProcess, *, brief: bool = False) -> str:
    """One process in words: pid, user, command and memory."""
    memory = f"{app.mib:.0f} MiB" if app.mib is not None else "memory of unknown size"
    if not process:
        return f"pid {app.pid} ({app.program}, which cannot be seen from here) holds {memory}"
    command = process["command"] or app.program
    return f"pid {app.pid} of {process['user']} ({shortened_line(command) if brief else command}) holds {memory}"


def nvlink_finding(node: Node, gpus: Sequence[Gpu], links: Mapping[int, Mapping[int, bool]]) -> Finding | None:
    """A finding for GPUs with fewer active NVLinks than others of their model on the node. A link that none of them has
    active does not count."""
    active = {gpu.index: sum(links[gpu.index].values()) for gpu in gpus if gpu.index in links}
    best: Counter[str] = Counter()
    for gpu in gpus:
        best[gpu.name] = max(best[gpu.name], active.get(gpu.index, 0))
    short: dict[int, str] = {}
    for gpu in gpus:
        count = active.get(gpu.index)
        if count is None or count == best[gpu.name] or (count == 0 and BRIDGED_GPU_NAMES.search(gpu.name)):
            continue
        dead = ", ".join(str(link) for link, up in sorted(links[gpu.index].items()) if not up) or "all"
        short[gpu.index] = f"GPU {gpu.index}: {count} of {best[gpu.name]} NVLinks active, inactive: {dead}"
    if not short:
        return None
    models = name_list_text(sorted({gpu.name for gpu in gpus if gpu.index in short}))
    says = f"GPU {gpu_numbers_text(short)} of {node.name} has lost NVLinks that the other {models} there have"
    return finding_for("nvlink-error", says, tuple(short.values()), node=node.name, short=gpu_numbers_text(short))


def slowed_gpu_warnings(gpus: Sequence[Gpu]) -> Iterator[str]:
    """Warnings about GPUs that heat or power limits hold back."""
    for gpu in gpus:
        if gpu.slowed_by:
            yield f"GPU {gpu.index} is slowed down: {', '.join(gpu.slowed_by)}"


def device_order_warnings(node: Node, gpus: Sequence[Gpu], order: object) -> Iterator[str]:
    """A warning when CUDA may number the GPUs differently from nvidia-smi: CUDA puts the fastest model first."""
    models = sorted({gpu.name for gpu in gpus})
    if len(models) > 1 and order != "PCI_BUS_ID" and len(node.gpus) < len(gpus):
        yield (
            f"its GPUs are of {len(models)} models ({', '.join(models)}), and CUDA numbers the fastest first: set "
            "CUDA_DEVICE_ORDER: PCI_BUS_ID in `env:`"
        )
