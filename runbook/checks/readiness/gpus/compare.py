"""The GPUs of one node beside those of the others, and beside what torch wants of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from runbook.checks.context import Context
from runbook.checks.readiness.gpus.judge import GpuJudgement, judge_gpus
from runbook.checks.readiness.gpus.refused import SMI_DEADLINE_S
from runbook.launch.ranks import network_environment
from runbook.model.inventory import Node
from runbook.model.verdict import Finding, Outcome

if TYPE_CHECKING:
    from runbook.checks.ranks.pool import RankMember, RankPool

FOLLOWS = {"no-gpu-visible", "device-ordinal-invalid", "gpu-busy", "gpu-out-of-memory", "fabricmanager-down"}
"""What a rank says of a GPU that something else is wrong with."""


def look_at_gpus(at: Context) -> dict[str, GpuJudgement]:
    """Ask every node whose GPUs the inventory names, and judge the answers."""
    named = [node for node in at.nodes if node.gpus]
    if not named:
        return {}
    question = {"run_id": at.run.run_id, "deadline_s": SMI_DEADLINE_S}
    said = at.ask("gpus", lambda node: question, timeout_s=30.0, nodes=named)
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


def all_sound(gpus: Mapping[str, GpuJudgement]) -> bool:
    return not any(judged.findings or judged.unknown for judged in gpus.values())


def torch_beside_gpus(
    pool: RankPool | None, node: Node, imported: set[str], gpus: Mapping[str, GpuJudgement], *, waited: bool
) -> tuple[list[Finding], list[Finding]]:
    """What the ranks of a node found of torch, without what they only found because of a GPU that is at fault.

    `waited`: they had the time that an import may take.
    """
    judged = gpus.get(node.name, GpuJudgement())
    ranks = pool.on(node.name) if pool else []
    if not waited and node.name not in imported and not any(rank.failure or rank.over for rank in ranks):
        return [], []
    from runbook.checks.readiness.torch import torch_findings  # only where there are ranks

    torch, unproven = torch_findings(pool, node, imported)
    if judged.findings or judged.unknown:
        return [
            f for f in torch if f.cause not in FOLLOWS and not (f.cause == "program-error" and "CUDA" in f.says)
        ], unproven
    if torch and (old := driver_too_old(node, judged, cuda_of(ranks))):
        return [old], unproven
    return torch, unproven


def cuda_of(ranks: Sequence[RankMember]) -> str | None:
    """The CUDA that torch was built for, from its own version text (2.5.1+cu124) where a rank did not come further."""
    for rank in ranks:
        if match := re.search(r"torch \S+\+cu(\d+)(\d)\b", str((rank.failure or {}).get("text"))):
            return f"{match[1]}.{match[2]}"
    return None


def driver_warnings(judged: Mapping[str, GpuJudgement]) -> dict[str, str]:
    """Nodes whose driver is not the one that most have, or not the newest of two: a warning for each."""
    drivers = {name: one.driver for name, one in judged.items() if one.driver}
    if len(set(drivers.values())) < 2:
        return {}
    counts = Counter(drivers.values())
    most = max(counts, key=lambda driver: (counts[driver], version(driver)))
    return {
        name: f"its NVIDIA driver is {driver}, that of {', '.join(n for n, d in drivers.items() if d == most)} is {most}"
        for name, driver in drivers.items()
        if driver != most
    }


def driver_too_old(node: Node, judged: GpuJudgement, torch_cuda: str | None) -> Finding | None:
    """A driver of an older CUDA generation than torch's; within one generation (from 11 on) any driver will do."""
    if not judged.cuda or not torch_cuda:
        return None
    have, want = version(judged.cuda), version(torch_cuda)
    if not have or not want or (have[0] >= want[0] >= 11) or have >= want:
        return None
    return Finding(
        "driver-too-old",
        f"the NVIDIA driver {judged.driver or ''} of {node.name} knows CUDA {judged.cuda}, and torch was built for CUDA {torch_cuda}",
        f"update the driver, or install a torch for CUDA {have[0]} into {node.interpreter}",
        (f"nvidia-smi: CUDA Version {judged.cuda}", f"torch.version.cuda: {torch_cuda}"),
    )


def version(text: str) -> tuple[int, ...]:
    head = text.strip().split(" ", 1)[0]
    return tuple(int(part) for part in head.split(".") if part.isdigit())


def shared_gpus(at: Context, node: Node) -> list[Finding]:
    """GPUs of this node that another node of the inventory, which is the same machine, has as well."""
    found: list[Finding] = []
    for other in at.nodes:
        if _own_gpus(at, node) and _own_gpus(at, other):
            continue
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


def _own_gpus(at: Context, node: Node) -> bool:
    """Whether a cluster gave its pod GPUs: it gives each to one pod only, and every pod counts its own from 0."""
    pod = at.run.site.pods.entered(node.name)
    return pod is not None and pod.gpus > 0
