"""Are the GPUs that the inventory promises there, and each of them given to one node only?"""

from __future__ import annotations

import csv

from runbook.checks.context import Context, Facts
from runbook.model.inventory import Node
from runbook.model.verdict import Finding


def judge_gpus(node: Node, smi: Facts) -> Finding | None:
    """The GPUs that the inventory names are there, by what `nvidia-smi --query-gpu=index,...` printed."""
    if smi.get("missing"):
        return Finding(
            "tool-missing",
            f"{node.name} has no nvidia-smi, so its {len(node.gpus)} GPUs cannot be looked at",
            "install the driver's tools (package nvidia-utils-*, or the driver itself), or put `gpus: 0` if it has none",
            ("nvidia-smi is not on PATH",),
        )
    if smi.get("timed_out"):
        return Finding(
            "gpu-tool-hung",
            f"nvidia-smi does not return on {node.name}: the driver or a GPU hangs",
            f"on {node.name}: `ps axo stat,pid,cmd | grep '^D'` and `sudo dmesg -T | grep -i -E 'nvrm|xid'`; "
            "a reset or reboot is likely needed",
            ("no answer within 10 s",),
        )
    text = (smi.get("out", "") + smi.get("err", "")).strip()
    said = tuple(text.splitlines()[:6]) or ("it printed nothing",)
    rows = [row for row in csv.reader(text.splitlines(), skipinitialspace=True) if len(row) >= 3 and row[0].isdigit()]
    if smi.get("code") != 0 or not rows:
        for phrase, cause, says, remedy in SMI_ERRORS:  # some of them come with exit code 0
            if phrase in text.lower().replace("\n", " "):
                return Finding(cause, f"{node.name}: {says}", remedy, said)
        return Finding(
            "tool-output-unknown",
            f"nvidia-smi on {node.name} ended with code {smi.get('code')} and printed what nobody here knows",
            f"run `nvidia-smi` on {node.name} by hand",
            said,
        )
    present = {int(row[0]) for row in rows}
    absent = sorted(set(node.gpus) - present)
    if absent:
        return Finding(
            "gpu-count-mismatch",
            f"{node.name} shows {len(present)} GPUs, the inventory wants {len(node.gpus)} "
            f"(missing: {', '.join(map(str, absent))})",
            f"on {node.name}: `nvidia-smi -L` and `sudo dmesg -T | grep -i xid`: a GPU may have fallen off the bus; "
            "else correct `gpus:` in the inventory",
            said,
        )
    return None


def shared_gpus(at: Context, node: Node) -> list[Finding]:
    """GPUs of this node that another node of the inventory, which is the same machine, has as well."""
    found: list[Finding] = []
    for other in at.nodes:
        twice = sorted(set(node.gpus) & set(other.gpus))
        if other.name != node.name and twice and at.machine(other.name) == at.machine(node.name):
            found.append(
                Finding(
                    "duplicate-gpu",
                    f"{node.name} and {other.name} are one machine and share GPU {', '.join(map(str, twice))}: NCCL wants a "
                    "GPU for each rank",
                    f"give {node.name} and {other.name} different `gpus:`, or make them one node",
                    (f"both report machine {at.machine(node.name)}",),
                    (other.name,),
                )
            )
    return found


SMI_ERRORS = (
    (
        "driver/library version mismatch",
        "driver-library-mismatch",
        "the NVIDIA kernel module and its libraries are of different versions",
        "reload the kernel module, or reboot: the driver was updated under a running system",
    ),
    (
        "couldn't communicate with the nvidia driver",
        "no-gpu-visible",
        "nvidia-smi cannot talk to the driver",
        "load the kernel module (`sudo modprobe nvidia`), or reinstall the driver for this kernel",
    ),
    (
        "no devices were found",
        "gpu-count-mismatch",
        "the driver finds no GPU at all",
        "`lspci | grep -i nvidia` and `sudo dmesg -T | grep -i nvrm`",
    ),
    (
        "gpu is lost",
        "gpu-fell-off-bus",
        "a GPU is lost: it has fallen off the bus",
        "reboot the node; if it comes back, have the board and its power looked at",
    ),
)
