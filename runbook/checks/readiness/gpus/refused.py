"""nvidia-smi that is missing, hangs, or says an error instead of listing the GPUs: what that means."""

from __future__ import annotations

from runbook.checks.context import Facts
from runbook.model.inventory import Node
from runbook.model.verdict import Finding
from runbook.parsers.nvidia import REFUSALS, Listing, flat

SMI_DEADLINE_S = 12
"""How long nvidia-smi may take. Without persistence mode it wakes eight GPUs one after the other, for about a second each."""

INFOROM_CORRUPT = 14
"""nvidia-smi's exit code when all it has to complain of is a card's configuration memory; the answer is whole."""

CODES = {
    6: "no devices were found",
    9: "couldn't communicate with the nvidia driver",
    12: "couldn't find libnvidia-ml",
    15: "gpu is lost",
    18: "driver/library version mismatch",
}
"""What the exit code alone tells, as nvidia-smi's manual has it, where the words are missing or of another language."""


def refused(node: Node, smi: Facts, listing: Listing, facts: Facts) -> Finding | None:
    """Why nvidia-smi listed nothing that can be gone by; None when it did its work."""
    wanted = f"{len(node.gpus)} GPU" + ("s" if len(node.gpus) > 1 else "")
    if smi.get("missing"):
        return missing(node, wanted, facts)
    if smi.get("timed_out"):
        asleep = smi.get("state") == "D"
        return Finding(
            "gpu-tool-hung",
            f"nvidia-smi does not return on {node.name}: the driver or a GPU hangs"
            + (", and the kernel cannot end it" if asleep else ""),
            f"on {node.name}: `ps axo stat,pid,wchan:32,cmd | grep '^D'` and `sudo dmesg -T | grep -i -E 'nvrm|xid'`; "
            "a GPU that hangs the driver needs `sudo reboot`",
            (
                f"nvidia-smi: no answer within {SMI_DEADLINE_S} s"
                + (", in uninterruptible sleep (state D)" if asleep else ""),
            ),
        )
    said = evidence(smi)
    text = flat(f"{smi.get('out', '')} {smi.get('err', '')}").lower()
    sound = smi.get("code") in (0, INFOROM_CORRUPT)
    if listing.gpus and (sound or listing.lost):
        return None
    for hint in (text, "" if listing.lost else CODES.get(smi.get("code") or 0, "")):
        for one in REFUSALS:  # some of them come with exit code 0
            if one.remedy_of_node is not None and one.phrase in hint:
                seen = (f"nvidia-smi ended with code {smi.get('code')}", *said)
                return Finding(one.cause_of_node or one.cause, f"{node.name}: {one.says}", one.remedy_of_node, seen)
    if listing.lost:
        return None
    how = f"ended with code {smi.get('code')}" if smi.get("code") is not None else "could not be started"
    listed = "and its list may be cut" if listing.gpus else "and lists no GPU in a way that is understood"
    return Finding(
        "tool-output-unknown",
        f"nvidia-smi on {node.name} {how} {listed}, so {wanted} cannot be looked at",
        f"run `nvidia-smi` on {node.name} by hand, as the same user",
        said,
    )


def missing(node: Node, wanted: str, facts: Facts) -> Finding:
    pci = facts.get("pci")
    seen = ["nvidia-smi is not on PATH"]
    if pci is not None:
        seen.append(f"the kernel shows {pci} NVIDIA GPU{'' if pci == 1 else 's'} on the PCI bus")
    if facts.get("amd"):
        return Finding(
            "tool-missing",
            f"{node.name} has AMD's tools and no nvidia-smi: runbook can look at NVIDIA's GPUs only",
            f"write `processes: {len(node.gpus)}` instead of `gpus:` for {node.name}: its ranks then take the GPU of their "
            "local rank, and nobody looks at them before",
            (*seen, f"{facts['amd']} is there"),
        )
    if node.connection == "kubernetes" and not node.entry:
        return Finding(
            "tool-missing",
            f"{node.place} has no nvidia-smi, so {wanted} cannot be looked at: most likely it was not given the GPUs",
            f"ask for them in its container (`resources: {{limits: {{nvidia.com/gpu: {len(node.gpus)}}}}}`), or put `gpus: 0` if it needs none",
            tuple(seen),
        )
    if node.entry:
        return Finding(
            "tool-missing",
            f"{node.place} has no nvidia-smi, so {wanted} cannot be looked at: most likely it was not given the GPUs",
            "start it again with them (`docker run --gpus all …`, `podman run --device nvidia.com/gpu=all …`, `apptainer … --nv`), or put "
            "`gpus: 0` if it needs none",
            tuple(seen),
        )
    return Finding(
        "tool-missing",
        f"{node.name} has no nvidia-smi, so its {wanted} cannot be looked at",
        "put `gpus: 0` if it has none; else install its driver"
        if pci == 0
        else "install the driver's tools (nvidia-utils-*, or the driver itself), or put `gpus: 0` if it has none",
        tuple(seen),
    )


def evidence(smi: Facts) -> tuple[str, ...]:
    text = f"{smi.get('out', '')}\n{smi.get('err', '')}".strip()
    return tuple(line.strip() for line in text.splitlines() if line.strip())[:6] or ("it printed nothing",)
