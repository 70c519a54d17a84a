"""From "the ranks did not get there" to outcomes: who is at fault, what happened, and what only followed from it."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from runbook.checks.context import no_answer
from runbook.checks.gang import Gang, Halt, Member
from runbook.model.units import bytes_text
from runbook.model.verdict import Finding, Outcome

FATAL_OF_ITS_OWN = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}


def outcomes_of_halt(gang: Gang, halt: Halt, doing: str) -> list[Outcome]:
    """One outcome a node. The guilty fail; the others are unknown, because nothing was proven about them."""
    guilty: dict[str, list[Finding]] = {}
    unknown: dict[str, Outcome] = {}
    for name, error in gang.failures.items():
        unknown[name] = no_answer(name, "launch", error)
    for member in gang.members:
        if member.remote is None and member.rank.node not in unknown:
            unknown[member.rank.node] = no_answer(
                member.rank.node,
                "launch",
                gang.run.site.failures.get(member.rank.node) or TimeoutError(f"{member.label} was never started"),
            )
        if member.lost:
            unknown[member.rank.node] = no_answer(member.rank.node, "launch", member.lost)
        elif finding := own_failure(gang, member, doing):
            guilty.setdefault(member.rank.node, []).append(finding)
    if not guilty and not unknown:
        gang.inspect()
        guilty = stuck(gang, halt, doing)
    names = sorted(guilty) or sorted(unknown)
    result: list[Outcome] = []
    for node in gang.inventory.nodes:
        if node.name in guilty:
            result.append(Outcome.failed(node.name, *guilty[node.name]))
        elif node.name in unknown:
            result.append(unknown[node.name])
        else:
            result.append(Outcome.unknown(node.name, bystander(gang, node.name, names, doing)))
    return result


def own_failure(gang: Gang, member: Member, doing: str) -> Finding | None:
    """What this rank did wrong by itself, or None when it merely suffers."""
    if member.aftermath:
        return None
    name, node = f"rank {member.rank.rank}", member.rank.node
    said = member.failure
    if said is not None:
        return reported(gang, member, said)
    if not member.over or member.lost:
        return None
    code = member.code
    tail = gang.lines(member)
    if code is not None and code < 0:
        number = -code
        text = signal_name(number)
        if number == signal.SIGKILL:
            return Finding(
                "rank-killed",
                f"{name} on {node} was killed ({text}) {doing}, {progress(member)}",
                f"on {node}: `sudo dmesg -T | grep -i -E 'out of memory|killed process'`; if the kernel killed it, "
                "give it less work or more memory; else find who sent the signal",
                (f"exit by {text}", *tail),
            )
        return Finding(
            "rank-crashed" if number in FATAL_OF_ITS_OWN else "rank-killed",
            f"{name} on {node} ended by {text} {doing}, {progress(member)}",
            f"look at its log: {log_name(gang, member)}",
            (f"exit by {text}", *tail),
        )
    return Finding(
        "program-error",
        f"{name} on {node} exited with code {code} {doing}, {progress(member)}",
        f"read its log: {log_name(gang, member)}",
        tail or (f"exit code {code}, nothing printed",),
    )


PHRASES = (
    ("address already in use", "port-in-use"),
    ("duplicate gpu detected", "duplicate-gpu"),
    ("invalid device ordinal", "device-ordinal-invalid"),
    ("out of memory", "gpu-out-of-memory"),
    ("driver is insufficient", "driver-too-old"),
    ("no kernel image is available", "gpu-arch-unsupported"),
    ("system not yet initialized", "fabricmanager-down"),
)
"""What torch, CUDA and NCCL say of themselves, and the cause it stands for."""

REMEDIES = {
    "duplicate-gpu": "give each rank a GPU of its own: `gpus:` of the nodes that are this machine",
    "gpu-out-of-memory": "see who uses the GPU (`nvidia-smi`), or lower `max_bytes:`",
    "driver-too-old": "update the NVIDIA driver, or install a torch built for an older CUDA",
    "gpu-arch-unsupported": "install a torch built for this GPU's compute capability",
    "fabricmanager-down": "`sudo systemctl restart nvidia-fabricmanager`, and look at its log",
    "torch-missing": "install it into that Python: `{python} -m pip install torch`, or name another one with `python:` "
    "or `activate:` in the inventory",
    "torch-distributed-not-built": "install a torch built with distributed (the official wheels are)",
    "nccl-not-built-in": "install a CUDA build of torch on that node, or set `rendezvous: {{backend: gloo}}`",
    "no-gpu-visible": "check `nvidia-smi` and CUDA_VISIBLE_DEVICES there; a CPU build of torch sees none: "
    "`{python} -c 'import torch; print(torch.version.cuda)'`",
    "device-ordinal-invalid": "put the number of GPUs that the node has into the inventory (`gpus:`)",
    "python-too-old": "name a newer Python in the inventory: `python:` or `activate:`",
    "port-in-use": "see who has it: `sudo ss -ltnp`; end that process, or choose another `rendezvous: {{port: …}}`",
    "program-error": "make `{python} -c 'import torch'` work on that node first",
}


def reported(gang: Gang, member: Member, said: dict[str, object]) -> Finding:
    node = gang.inventory.node(member.rank.node)
    tail = gang.lines(member)
    if said["event"] == "activation-failed":
        return Finding(
            "activation-failed",
            f"on {node.name} the inventory's activate line fails with code {said['code']}: {node.activate}",
            f"log in as the same user and run it: `{node.activate}`; mend it there or in the inventory",
            tail,
        )
    if said["event"] == "program-missing":
        return Finding(
            "python-missing",
            f"{node.name} has no {node.interpreter}",
            f"install it, or name the right one in the inventory: `python:` of {node.name}",
            tail,
        )
    cause = str(said.get("cause") or "program-error")
    text = str(said.get("text"))
    if not said.get("cause"):
        cause = next((id for phrase, id in PHRASES if phrase in text.lower()), cause)
    trace = said.get("traceback")
    lines = tuple(str(line) for line in trace) if isinstance(trace, list) else ()
    remedy = REMEDIES.get(cause, REMEDIES["program-error"]).format(python=node.interpreter)
    if cause == "program-error" and lines:
        remedy = f"read the traceback in {log_name(gang, member)}"
    return Finding(cause, f"{member.label}: {text}", remedy, lines or tail or (text,))


def stuck(gang: Gang, halt: Halt, doing: str) -> dict[str, list[Finding]]:
    """Nobody died and nothing moves: a stopped process, a rank that is behind, or all waiting for the network."""
    found: dict[str, list[Finding]] = {}
    for member in gang.members:
        asleep = next((process for process in member.processes if process["state"] in "TtD"), None)
        if asleep:
            found.setdefault(member.rank.node, []).append(stopped(member, asleep, doing))
    if found:
        return found
    failed = [member for member in gang.members if member.aftermath]
    if failed:
        return connection_lost(gang, failed, doing)
    first = min(gang.members, key=lambda member: member.place)
    last = max(gang.members, key=lambda member: member.place)
    waited = f"nothing moved for {halt.seconds:.0f} s" if halt.kind == "late" else "no rank makes progress"
    if first.place < last.place:
        behind = [member for member in gang.members if member.place == first.place]
        for member in behind:
            found.setdefault(member.rank.node, []).append(
                Finding(
                    "rank-behind",
                    f"{member.label} is behind the others {doing}: {progress(member)}, the others {progress(last)}",
                    f"see what {member.rank.node} is doing (load, disk, another job): `top`, and the stack below",
                    stack_lines([member, last]),
                )
            )
        return found
    finding = Finding(
        "collective-stall-uniform",
        f"all ranks wait in the same call {doing}, {progress(first)}: {waited}, and no rank is behind",
        "the data between them does not flow: check the links (packet size, loss), then the GPUs; run again with "
        "NCCL_DEBUG=INFO in the inventory's env to see the transport",
        stack_lines(gang.members[:2]),
    )
    return {node.name: [finding] for node in gang.inventory.nodes}


def stopped(member: Member, process: dict[str, object], doing: str) -> Finding:
    state, pid = process["state"], process["pid"]
    if state == "D":
        return Finding(
            "rank-stopped",
            f"{member.label} sits in uninterruptible sleep {doing}, {progress(member)}: the kernel waits for a device "
            "or a file system",
            f"on {member.rank.node}: `sudo cat /proc/{pid}/stack`; a hung NFS mount or GPU driver needs the node's owner",
            (f"pid {pid} is in state D, waiting in {process.get('wchan') or 'the kernel'}",),
        )
    return Finding(
        "rank-stopped",
        f"{member.label} is stopped {doing}, {progress(member)}: somebody sent SIGSTOP, or a debugger holds it",
        f"on {member.rank.node}: `kill -CONT {pid}`, or detach the debugger; then run again",
        (f"pid {pid} is in state {state} (stopped)",),
    )


def connection_lost(gang: Gang, failed: Sequence[Member], doing: str) -> dict[str, list[Finding]]:
    """Ranks report a broken connection and yet every rank's process lives: the network broke it, between all of them."""
    first = failed[0]
    finding = Finding(
        "tcp-connection-lost-midrun",
        f"the ranks lost an established connection {doing}, {progress(first)}; no rank had died",
        "look for what resets or forgets connections between the nodes: a firewall's connection table, a flapping link "
        "(`ip -s link`, `dmesg`); the `firewall` check, run now, finds a rule that came meanwhile",
        tuple(f"{member.label}: {(member.failure or {}).get('text')}" for member in failed[:6]),
    )
    return {node.name: [finding] for node in gang.inventory.nodes}


def bystander(gang: Gang, node: str, names: Sequence[str], doing: str) -> Finding:
    others = tuple(name for name in names if name != node)
    members = [member for member in gang.members if member.rank.node == node]
    said = [str(member.failure.get("text")) for member in members if member.failure]
    return Finding(
        "peer-died",
        f"nothing was proven about {node} {doing}: the job ended because of {', '.join(others) or 'another node'}",
        f"nothing to do on {node}: mend {', '.join(others) or 'the other node'} first",
        tuple(said[:2]),
        others,
    )


def progress(member: Member) -> str:
    """How far a rank came, for people."""
    size, turn = member.place
    if size:
        text = f"at {bytes_text(size)}, iteration {turn} of {member.beat.get('turns', '?')}"
        return text + (f" (last finished size {bytes_text(member.finished_size)})" if member.finished_size else "")
    return f"last step: {member.step}"


def stack_lines(members: Sequence[Member]) -> tuple[str, ...]:
    lines: list[str] = []
    for member in members:
        if member.stack:
            lines.append(f"{member.label} is in:")
            lines.extend(f"  {frame}" for frame in member.stack[:5])
    return tuple(lines)


def signal_name(number: int) -> str:
    try:
        return f"signal {number}, {signal.Signals(number).name}"
    except ValueError:
        return f"signal {number}"


def log_name(gang: Gang, member: Member) -> str:
    return str(gang.run.run_dir / "logs" / f"rank-{member.rank.rank:05d}.{member.rank.node}.log")
