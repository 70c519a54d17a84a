"""The judgement of a node's GPUs from its facts: one list of findings, the root first. Compares with other nodes and
torch."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from runbook.causes.catalogue import finding_for
from runbook.checks.context import Context
from runbook.checks.reach.gpu_faults import (
    GPU_LIST_TIMEOUT_S,
    SMI_DEADLINE_S,
    busy_gpu_findings,
    device_order_warnings,
    health_findings,
    nvlink_finding,
    slowed_gpu_warnings,
    unreadable_gpu_finding,
    unusable_list_finding,
)
from runbook.launch.ranks import network_environment
from runbook.model.inventory import Node
from runbook.model.units import count_text, name_list_text, parse_whole_number
from runbook.model.verdict import Finding, Outcome
from runbook.parsers.nvidia_logs import APPLICATION_XIDS, REMEDY_BY_CAUSE, XidEvent, event_age_text, xid_events
from runbook.parsers.nvidia_smi_facts import Gpu, Listing, bus_key, parse_apps, parse_details, parse_gpus, parse_links
from runbook.transport.node_answers import GPUS_PROGRAM

if TYPE_CHECKING:
    from runbook.checks.ranks.pool import RankMember, RankPool


GPU_UNKNOWN_CAUSES = ("tool-missing", "tool-output-unknown")
"""Causes that say that the check could not look."""
FAULT_LOOKALIKE_CAUSES = ("gpu-tool-hung", "no-gpu-visible", *GPU_UNKNOWN_CAUSES)
"""Causes that a GPU with a fault in KERNEL_LOG_CAUSES can look like."""
KERNEL_LOG_CAUSES = ("gpu-fell-off-bus", "gpu-ecc-uncorrectable", "nvlink-error", "gpu-reset-required")
"""Causes that the kernel log can show. Each stands before those that it leads to."""

GPU_CAUSE_ORDER = (*KERNEL_LOG_CAUSES, "fabricmanager-down", "gpu-count-mismatch", "gpu-busy")
"""The order in which findings about GPUs are reported: roots first."""


@dataclass(frozen=True, slots=True)
class GpuJudgement:
    """What is known of a node's GPUs. `findings` are faults, `unknown` findings about what could not be found out; when
    both are empty, the GPUs are there and sound. `driver` and `cuda` are versions that nvidia-smi shows."""

    findings: tuple[Finding, ...] = ()
    unknown: tuple[Finding, ...] = ()
    warnings: tuple[str, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    cuda: str | None = None


def judge_gpus(node: Node, facts: Mapping[str, Any], device_order: object = None) -> GpuJudgement:
    """The judgement of whether the GPUs that the inventory names are there, sound and free. Pure."""
    smi: Mapping[str, Any] = facts.get("gpu") or {"code": None, "err": "nvidia-smi gave no answer"}
    listing = parse_gpus(str(smi.get("out") or ""), smi.get("fields") or (), str(smi.get("err") or ""))
    details = parse_details(nvidia_smi_stdout(facts, "all"))
    named = [gpu for gpu in listing.gpus if gpu.index in node.gpus]
    logs = [facts.get("dmesg") or (), facts.get("journal") or ()]
    kernels, warnings = kernel_log_findings(node, listing, xid_events(logs, float(facts.get("uptime_s") or 0)))
    found: list[Finding] = []
    failed = unusable_list_finding(node, smi, listing, facts)
    if failed is None:
        gone = lost_gpu_findings(node, listing)
        if {gpu.index for gpu in named} >= set(node.gpus):
            warnings += [f"{finding.says}, none of those that the inventory names" for finding in gone]
        else:
            found += gone
        found += health_findings(node, named, details)
        if link := nvlink_finding(node, named, parse_links(nvidia_smi_stdout(facts, "links"))):
            found.append(link)
        failed = missing_gpu_finding(node, listing, facts.get("pci")) or unreadable_gpu_finding(node, named)
        held, others = busy_gpu_findings(
            node, named, parse_apps(nvidia_smi_stdout(facts, "apps")), facts.get("processes") or {}
        )
        found += held
        warnings += [*others, *slowed_gpu_warnings(named), *device_order_warnings(node, listing.gpus, device_order)]
        warnings += unanswered_query_warnings(facts)
    found = merge_by_cause([*found, *kernels])
    if failed is not None and is_failure_explained(found, failed):
        proof = dict.fromkeys((*found[0].evidence, failed.says, *failed.evidence[:3]))
        found[0] = replace(found[0], evidence=tuple(proof)[:10])
        failed = None
    unknown = [failed] if failed and failed.cause in GPU_UNKNOWN_CAUSES else []
    if failed and not unknown:
        found.insert(0, failed)
    drivers = {version for gpu in named if (version := gpu.value("driver_version"))}
    return GpuJudgement(
        tuple(found),
        tuple(unknown),
        tuple(warnings),
        tuple(named),
        next(iter(drivers), None),
        details.head.get("CUDA Version") or details.head.get("CUDA UMD Version"),
    )


def nvidia_smi_stdout(facts: Mapping[str, Any], name: str) -> str:
    """The stdout of one query to nvidia-smi, or ""."""
    return str((facts.get(name) or {}).get("out") or "")


def merge_by_cause(findings: Sequence[Finding]) -> list[Finding]:
    """One finding a cause, the root first. A fault that both the kernel and nvidia-smi show keeps the evidence of
    both."""
    kept: dict[str, Finding] = {}
    for finding in findings:
        first = kept.get(finding.cause, finding)
        proof = tuple(dict.fromkeys((*first.evidence, *finding.evidence)))
        kept[finding.cause] = replace(first, evidence=proof[:10])
    return sorted(kept.values(), key=lambda finding: GPU_CAUSE_ORDER.index(finding.cause))


def is_failure_explained(found: Sequence[Finding], failed: Finding) -> bool:
    """Whether `failed` only follows from a faulty GPU. GPUs count as missing because of a fault only when one fell off
    the bus."""
    if not found or found[0].cause not in KERNEL_LOG_CAUSES:
        return False
    return failed.cause in FAULT_LOOKALIKE_CAUSES or (
        failed.cause == "gpu-count-mismatch" and found[0].cause == "gpu-fell-off-bus"
    )


def lost_gpu_findings(node: Node, listing: Listing) -> list[Finding]:
    """A finding for the GPUs that nvidia-smi reports as lost."""
    if not listing.lost:
        return []
    says = f"{node.name} has lost a GPU: the driver cannot reach GPU {', '.join(listing.lost)}"
    return [finding_for("gpu-fell-off-bus", says, gpu_listing_evidence(listing))]


def gpu_listing_evidence(listing: Listing) -> tuple[str, ...]:
    """The evidence from nvidia-smi: a line for each GPU it listed, after its other output."""
    gpus = [f"GPU {gpu.index}: {gpu.name}, {gpu.value('pci.bus_id') or gpu.fields['uuid']}" for gpu in listing.gpus]
    return tuple([*(line.strip() for line in listing.other if line.strip()), *gpus][:8]) or ("it printed nothing",)


def missing_gpu_finding(node: Node, listing: Listing, on_bus: int | None) -> Finding | None:
    """A finding for GPUs that the inventory names and nvidia-smi does not list, or None. `on_bus`: how many GPUs the
    PCI bus has."""
    present = {gpu.index for gpu in listing.gpus}
    absent = sorted(set(node.gpus) - present)
    if not absent:
        return None
    if listing.garbled:
        says = (
            f"nvidia-smi on {node.name} printed a line that is cut or garbled, so GPU {', '.join(map(str, absent))} "
            "cannot be checked"
        )
        return finding_for("tool-output-unknown", says, listing.garbled[:6], way="gpus", node=node.name)
    shown = ", ".join(map(str, sorted(present)))
    return finding_for(
        "gpu-count-mismatch",
        f"{node.name} has {count_text(len(present), 'GPU')} (index {shown}), the inventory names "
        f"{len(node.gpus)} (missing: {', '.join(map(str, absent))})",
        (*gpu_listing_evidence(listing), *([f"the PCI bus has {on_bus}"] if on_bus and on_bus > len(present) else [])),
        node=node.name,
    )


XID_TEXTS = {
    "gpu-fell-off-bus": "has fallen off the bus",
    "gpu-ecc-uncorrectable": "had a memory error that could not be corrected",
    "nvlink-error": "had an NVLink error",
    "gpu-reset-required": "is stuck and waits for a reset",
}
"""What is said of a GPU whose fault an Xid in the kernel log shows, by cause."""


def kernel_log_findings(node: Node, listing: Listing, log: Sequence[XidEvent]) -> tuple[list[Finding], list[str]]:
    """Findings for faults of the last hour that the kernel log shows, and warnings for other entries. A fault counts on
    a GPU of the inventory, on a switch, or on a GPU that is no longer listed. When all GPUs of the inventory are
    listed, an unlisted one is not ours: a container has some GPUs of its host, and the log of all of them."""
    index = {bus: gpu.index for gpu in listing.gpus if (bus := bus_key(gpu.fields.get("pci.bus_id", "")))}
    complete = set(node.gpus) <= set(index.values())
    causes: dict[str, list[XidEvent]] = {}
    warnings: dict[str, str] = {}
    for event in log:
        if event.bus in index and index[event.bus] not in node.gpus:
            continue
        at, ours = _event_device_text(event, index), event.bus in index or event.of_nvswitch or not complete
        if event.cause and event.recent and ours:
            causes.setdefault(event.cause, []).append(event)
        elif event.cause:
            warnings[f"{event.number} {event.bus}"] = (
                f"the kernel log has Xid {event.number} of {at}, {event_age_text(event)}: {event.text}"
            )
        elif event.number in APPLICATION_XIDS and event.recent and ours:
            what = APPLICATION_XIDS[event.number]
            warnings[f"{event.number} {event.bus}"] = (
                f"a program on {at} died of {what} (Xid {event.number}), "
                f"{event_age_text(event)}: most often the program's own "
                "fault"
            )
    found = []
    for cause, those in causes.items():
        last = those[-1]
        numbers = sorted({index[event.bus] for event in those if event.bus in index})
        says = (
            f"{_event_device_text(last, index)} of {node.name} {XID_TEXTS[cause]}, by the "
            f"kernel's log {event_age_text(last)}"
        )
        says += f" (Xid {last.number})"
        texts = tuple(dict.fromkeys(event.text for event in those))[-6:]
        way = REMEDY_BY_CAUSE[cause] if numbers else "reboot"
        found.append(finding_for(cause, says, texts, way=way, indices=",".join(map(str, numbers))))
    return found, list(warnings.values())[:6]


def _event_device_text(event: XidEvent, index: Mapping[str, int]) -> str:
    """The GPU or NVSwitch that the entry is about, in words."""
    if event.bus in index:
        return f"GPU {index[event.bus]}"
    return f"the {'NVSwitch' if event.of_nvswitch else 'GPU'} at {event.bus}"


def unanswered_query_warnings(facts: Mapping[str, Any]) -> list[str]:
    """Warnings about queries to nvidia-smi that it did not answer in time, or answered at too great length, although it
    listed the GPUs."""
    asked = {"apps": "--query-compute-apps", "links": "nvlink -s", "all": "-q"}
    ends = {"timed_out": f"did not return within {SMI_DEADLINE_S} s", "too_long": "printed more than is read"}
    mute = {
        how: [f"`nvidia-smi {words}`" for name, words in asked.items() if (facts.get(name) or {}).get(how)]
        for how in ends
    }
    return [f"{' and '.join(queries)} {ends[how]}" for how, queries in mute.items() if queries]


GPU_CONSEQUENCE_CAUSES = {
    "no-gpu-visible",
    "device-ordinal-invalid",
    "gpu-busy",
    "gpu-out-of-memory",
    "fabricmanager-down",
}
"""Causes of a rank's error that follow from a fault of its node's GPUs."""


def look_at_gpus(at: Context) -> dict[str, GpuJudgement]:
    """Asks every node whose GPUs the inventory names, and judges the answers: the judgement by node."""
    named = [node for node in at.nodes if node.gpus]
    if not named:
        return {}
    question = {"run_id": at.run.run_id, "deadline_s": SMI_DEADLINE_S, "in_all_s": GPU_LIST_TIMEOUT_S}
    said = at.ask(GPUS_PROGRAM, lambda node: question, timeout_s=30.0, nodes=named)
    judged: dict[str, GpuJudgement] = {}
    for node in named:
        answer = said[node.name]
        if isinstance(answer, Outcome):
            judged[node.name] = GpuJudgement(unknown=answer.findings)
            continue
        order = network_environment(at.inventory, node).get("CUDA_DEVICE_ORDER")
        judged[node.name] = judge_gpus(node, answer, order)
    for name, warning in driver_warnings(judged).items():
        judged[name] = replace(judged[name], warnings=(*judged[name].warnings, warning))
    return judged


def has_only_sound_gpus(gpus: Mapping[str, GpuJudgement]) -> bool:
    """Whether no node has a faulty GPU, or a GPU that could not be looked at."""
    return not any(judged.findings or judged.unknown for judged in gpus.values())


def torch_findings_beside_gpus(
    pool: RankPool | None, node: Node, imported: set[str], gpus: Mapping[str, GpuJudgement], *, waited: bool
) -> tuple[list[Finding], list[Finding]]:
    """What the ranks of a node say about torch, without errors that follow from a faulty GPU: findings that fail the
    node, and findings that leave it unknown. `waited`: whether the ranks had the full time for an import."""
    judged = gpus.get(node.name, GpuJudgement())
    ranks = pool.on(node.name) if pool else []
    if not waited and node.name not in imported and not any(rank.failure or rank.over for rank in ranks):
        return [], []
    from runbook.checks.reach.torch import torch_findings  # needed only where there are ranks

    torch, unproven = torch_findings(pool, node, imported)
    if judged.findings or judged.unknown:
        return [
            f
            for f in torch
            if f.cause not in GPU_CONSEQUENCE_CAUSES and not (f.cause == "program-error" and "CUDA" in f.says)
        ], unproven
    if torch and (old := old_driver_finding(node, judged, torch_cuda_version(ranks))):
        return [old], unproven
    return torch, unproven


def torch_cuda_version(ranks: Sequence[RankMember]) -> str | None:
    """The CUDA version that torch was built for, from torch's version text (2.5.1+cu124) in the failure of a rank; None
    if no rank gives it."""
    for rank in ranks:
        if match := re.search(r"torch \S+\+cu(\d{1,3})(\d)\b", str((rank.failure or {}).get("text"))):
            return f"{match[1]}.{match[2]}"
    return None


def driver_warnings(judged: Mapping[str, GpuJudgement]) -> dict[str, str]:
    """A warning for each node whose driver is not the most common one. Of equally common drivers, the newest counts as
    that."""
    drivers = {name: one.driver for name, one in judged.items() if one.driver}
    if len(set(drivers.values())) < 2:
        return {}
    counts = Counter(drivers.values())
    most = max(counts, key=lambda driver: (counts[driver], version_numbers(driver)))
    others = name_list_text(name for name, driver in drivers.items() if driver == most)
    return {
        name: f"its NVIDIA driver is {driver}, that of {others} is {most}"
        for name, driver in drivers.items()
        if driver != most
    }


def old_driver_finding(node: Node, judged: GpuJudgement, torch_cuda: str | None) -> Finding | None:
    """A finding for a driver of an older CUDA generation than torch's. Within one generation (from 11 on) any driver
    will do."""
    if not judged.cuda or not torch_cuda:
        return None
    have, want = version_numbers(judged.cuda), version_numbers(torch_cuda)
    if not have or not want or (have[0] >= want[0] >= 11) or have >= want:
        return None
    says = (
        f"the NVIDIA driver {judged.driver or ''} of {node.name} knows CUDA {judged.cuda}, and torch was built for "
        f"CUDA {torch_cuda}"
    )
    seen = (f"nvidia-smi: CUDA Version {judged.cuda}", f"torch.version.cuda: {torch_cuda}")
    return finding_for("driver-too-old", says, seen, have=have[0], interpreter=node.interpreter)


def version_numbers(text: str) -> tuple[int, ...]:
    """The numbers of a version up to the first space, for comparison."""
    head = text.strip().split(" ", 1)[0]
    return tuple(found for part in head.split(".") if (found := parse_whole_number(part)) is not None)


def shared_gpu_findings(at: Context, node: Node, of_its_machine: Iterable[Node]) -> list[Finding]:
    """Findings for GPUs of this node that the inventory also gives to another node on the same machine."""
    found: list[Finding] = []
    for other in of_its_machine:
        twice = sorted(set(node.gpus) & set(other.gpus)) if other.name != node.name else []
        if twice and not (_has_cluster_gpus(at, node) and _has_cluster_gpus(at, other)):
            says = (
                f"{node.name} and {other.name} are one machine and share GPU {', '.join(map(str, twice))}: NCCL "
                "needs a GPU for each rank"
            )
            seen = (f"both report machine {at.machine(node.name)}",)
            found.append(finding_for("duplicate-gpu", says, seen, (other.name,), node=node.name, other=other.name))
    return found


def _has_cluster_gpus(at: Context, node: Node) -> bool:
    """Whether the node is a pod that got GPUs from its cluster. A cluster gives each GPU to one pod only, and every pod
    counts its GPUs from 0."""
    pod = at.run.site.pod(node.name)
    return pod is not None and pod.gpus > 0
