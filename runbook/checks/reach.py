"""reach: every node can be logged in to and has what the job needs. Runs before the playbook's own stages."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from runbook.checks.base import Check
from runbook.checks.context import Context, Facts, folder_finding, no_answer, select_interfaces
from runbook.checks.gang import Gang, start_gang
from runbook.checks.halts import own_failure, stopped
from runbook.launch.environment import socket_interface, socket_interfaces
from runbook.model.inventory import Inventory, Node
from runbook.model.verdict import Finding, Outcome
from runbook.transport import bootstrap

ROOM_BYTES = 64 << 20
SKEW_WARN_S, SKEW_FAIL_S = 2.0, 10.0
"""torch's elastic agent drops a peer whose stamped heartbeat is more than 15 s old (pytorch#56538)."""

IMPORT_TIMEOUT_S = 90.0
MEMLOCK_BYTES = 64 << 20
SHM_BYTES = 1 << 30
"""NCCL needs a few tens of MiB of shared memory for each pair of GPUs of a node; Docker gives 64 MiB in all."""


@dataclass(frozen=True)
class Reach(Check):
    id: ClassVar[str] = "reach"
    timeout_s: ClassVar[float] = 120.0

    def run(self, at: Context) -> list[Outcome]:
        at.run.site.open(at.nodes)
        reached = [node for node in at.nodes if node.name in at.run.site.sessions]
        at.say(f"logged in to {len(reached)} of {len(at.nodes)} nodes")
        gang = None
        if at.needs_gang is not None and all(node in reached for node in at.needs_gang.nodes):
            # torch takes seconds to import: the ranks do that while we look at the rest.
            gang = start_gang(at.run, at.needs_gang, at.script)
        facts = at.ask("reach", lambda node: {"gpus": bool(node.gpus)}, timeout_s=30.0)
        clocks = at.each(lambda node: at.session(node).clock(), reached)
        offsets = {name: value[0] for name, value in clocks.items() if isinstance(value, tuple)}
        for name, found in facts.items():
            if not isinstance(found, Outcome):
                at.run.facts[name] = found
        imported: set[str] = set()
        if gang:
            at.say("importing torch")
            gang.gather("imported", timeout_s=min(IMPORT_TIMEOUT_S, at.left_s))
            imported = {member.rank.node for member in gang.members if "imported" in member.steps}
        outcomes = [self._node(at, node, facts.get(node.name), offsets, gang, imported) for node in at.nodes]
        return compare_versions(outcomes, gang) if gang else outcomes

    def _node(
        self,
        at: Context,
        node: Node,
        facts: Facts | Outcome | None,
        offsets: Mapping[str, float],
        gang: Gang | None,
        imported: set[str],
    ) -> Outcome:
        session = at.run.site.sessions.get(node.name)
        if session is None:
            return no_answer(node.name, "login", at.run.site.failures[node.name])
        if "folder_error" in session.hello:
            return Outcome.failed(node.name, folder_finding(node.name, session.hello["folder_error"]))
        if isinstance(facts, Outcome):
            return facts
        if facts is None:
            return no_answer(node.name, "reach", TimeoutError())
        findings = folder_findings(node, session.hello)
        warnings: list[str] = []
        clock = clock_finding(node.name, offsets, warnings)
        if clock:
            findings.append(clock)
        findings += interface_findings(at.inventory, node, facts)
        findings += shared_gpus(at, node)
        limit_warnings(at.inventory, node, facts, warnings)
        unknown: list[Finding] = []
        if node.gpus:
            gpu = judge_gpus(node, facts["nvidia_smi"])
            if gpu is not None:
                (unknown if gpu.cause in ("tool-missing", "tool-output-unknown") else findings).append(gpu)
        said = f"Python {session.hello['python']}"
        metrics: dict[str, object] = {
            "hostname": facts["hostname"],
            "clock_offset_s": round(offsets.get(node.name, 0.0), 4),
        }
        python = python_finding(node, session.hello)
        if python is not None:
            findings.append(python)
        elif at.needs_gang is not None and node in at.needs_gang.nodes:
            torch, unproven = torch_findings(gang, node, imported)
            findings += torch
            unknown += unproven
            if gang and not torch and not unproven:
                step = next(m.steps["imported"] for m in gang.members if m.rank.node == node.name)
                said = f"Python {step['python']}, torch {step['torch']}, {at.inventory.rendezvous.backend}"
                metrics |= {"torch": step["torch"], "nccl": step["nccl"], "gpus": step["gpus"], "gpu": step["gpu"]}
        if findings:
            return Outcome.failed(node.name, *findings, *unknown, metrics=metrics, warnings=warnings)
        if unknown:
            return Outcome.unknown(node.name, *unknown, metrics=metrics)
        parts = [said]
        if node.gpus:
            parts.append(f"{len(node.gpus)} GPU" + ("s" if len(node.gpus) > 1 else ""))
        parts.append("workdir writable")
        if interface := socket_interface(at.inventory, node):
            parts.append(f"interface {interface}")
        if abs(offsets.get(node.name, 0.0)) < SKEW_WARN_S:
            parts.append("clock in step")
        return Outcome.passed(node.name, ", ".join(parts), metrics=metrics, warnings=warnings)


def folder_findings(node: Node, hello: Mapping[str, Any]) -> list[Finding]:
    folder, free = hello["folder"], hello.get("free_bytes")
    if free is not None and free < ROOM_BYTES:
        return [
            Finding(
                "disk-full",
                f"{node.name} has {free >> 20} MiB left where {folder} lies; the job needs at least {ROOM_BYTES >> 20} MiB",
                f"free some space (`df -h {folder}`), or name another `workdir:`",
                (f"{free} bytes available",),
            )
        ]
    if hello.get("noexec"):
        return [
            Finding(
                "workdir-not-writable",
                f"{folder} on {node.name} lies on a file system mounted noexec: programs put there cannot be started",
                "name a `workdir:` on a file system that allows it, or remount without noexec",
                ("the mount has the flag noexec",),
            )
        ]
    return []


def python_finding(node: Node, hello: Mapping[str, Any]) -> Finding | None:
    """Whether the supervisor had to do without the interpreter that the inventory names, and why.

    With an `activate` line the name may only mean something behind it: then the ranks find out.
    """
    rejected = list(hello.get("rejected") or ())
    if node.activate or not rejected:
        return None
    name, code = node.interpreter, int(rejected[0])
    if code == bootstrap.TOO_OLD:
        return Finding(
            "python-too-old",
            f"{name} on {node.name} is older than Python 3.8",
            f"name a newer one in the inventory: `python:` of {node.name} (this one is there: {hello['executable']})",
            (f"`{name} --version` on {node.name}; {hello['executable']} is {hello['python']}",),
        )
    why = "is not there" if code == bootstrap.MISSING else f"does not start (exit code {code})"
    return Finding(
        "python-missing",
        f"{name} {why} on {node.name}",
        f"install it, or name the right one in the inventory: `python:` of {node.name} (this one is there: "
        f"{hello['executable']})",
        (f"`{name} --version` on {node.name}; {hello['executable']} is {hello['python']}",),
    )


def clock_finding(node: str, offsets: Mapping[str, float], warnings: list[str]) -> Finding | None:
    """Compare with the clock that most others agree with, this machine's included: the odd one out is wrong."""
    if node not in offsets:
        return None
    clocks = [0.0, *offsets.values()]  # ours first: it wins a tie
    right = max(clocks, key=lambda clock: sum(abs(clock - other) < SKEW_WARN_S for other in clocks))
    skew = offsets[node] - right
    apart = max(offsets.values()) - min(offsets.values())
    if abs(skew) < SKEW_WARN_S:
        return None
    way = "ahead of" if skew > 0 else "behind"
    # Two that are each a little off, in different directions, are far from each other.
    far = abs(skew) >= SKEW_FAIL_S or (apart >= SKEW_FAIL_S and abs(skew) >= apart / 2)
    if not far or len(offsets) == 1:
        warnings.append(f"clock is {abs(skew):.1f} s {way} the others: start chrony or systemd-timesyncd")
        return None
    return Finding(
        "clock-skew",
        f"the clock of {node} is {abs(skew):.0f} s {way} the others",
        f"on {node}: `sudo timedatectl set-ntp true` (or `sudo chronyc makestep`), then check `date` on every node",
        tuple(f"{name}: {offset:+.1f} s from this machine's clock" for name, offset in sorted(offsets.items())[:8]),
    )


def interface_findings(inventory: Inventory, node: Node, facts: Facts) -> list[Finding]:
    """Whether the interfaces that NCCL and gloo are told to use exist here, are up, and have an address.

    Both are looked at, whatever the backend: a name that is wrong for one of them is a mistake that waits.
    """
    settings = socket_interfaces(inventory, node)
    used = "NCCL_SOCKET_IFNAME" if inventory.rendezvous.backend == "nccl" else "GLOO_SOCKET_IFNAME"
    findings: list[Finding] = []
    judged: set[str] = set()
    for name, expression in sorted(settings.items(), key=lambda item: item[0] != used):
        finding = None if expression in judged else interface_finding(inventory, node, facts, name, expression)
        judged.add(expression)
        if finding is not None:
            findings.append(finding)
    return findings


def interface_finding(inventory: Inventory, node: Node, facts: Facts, variable: str, expression: str) -> Finding | None:
    interfaces: Mapping[str, Facts] = facts["interfaces"]
    listed = "; ".join(f"{name} {' '.join(entry['addresses']) or '(no address)'}" for name, entry in interfaces.items())
    evidence = (f"interfaces of {node.name}: {listed}",)
    owner = next((name for name, entry in interfaces.items() if node.address in entry["addresses"]), None)
    suggestion = owner or next(
        (name for name, entry in interfaces.items() if name != "lo" and entry["addresses"]), "the right one"
    )
    fix = (
        f"name the interface of {node.name} in the inventory: `interface: {suggestion}` under `network:`, or for this "
        f"node alone `env: {{NCCL_SOCKET_IFNAME: {suggestion}, GLOO_SOCKET_IFNAME: {suggestion}}}`"
    )
    chosen = select_interfaces(expression, interfaces)
    if variable == "GLOO_SOCKET_IFNAME" and variable_is_read(inventory, variable):
        words = expression.split(",")  # gloo knows no prefixes, `=` or `^`, and opens every name that is listed
        chosen = words if all(word in interfaces for word in words) else []
    if not chosen:
        says = f"{node.name} has no interface {expression}" + (f"; {owner} carries {node.address}" if owner else "")
        return Finding("interface-missing", says, fix, evidence)
    usable = [
        name
        for name in chosen
        if interfaces[name]["state"] != "DOWN" and any(not link_local(a) for a in interfaces[name]["addresses"])
    ]
    if not usable:
        why = "is down" if interfaces[chosen[0]]["state"] == "DOWN" else "has no address that others can reach"
        return Finding(
            "interface-missing",
            f"interface {chosen[0]} of {node.name} {why}",
            f"`sudo ip link set {chosen[0]} up` and give it an address, or {fix}",
            evidence,
        )
    several = len(inventory.nodes) > 1 and not inventory.one_machine
    if several and all("LOOPBACK" in interfaces[name]["flags"] for name in usable):
        says = f"{node.name} is told to use {usable[0]}, its loopback: no other node can reach it there"
        return Finding("interface-wrong", says, fix, evidence)
    return None


def variable_is_read(inventory: Inventory, variable: str) -> bool:
    """Whether the job's backend reads this variable: gloo's own, when the backend is gloo."""
    return variable.startswith("GLOO") == (inventory.rendezvous.backend == "gloo")


def link_local(address: str) -> bool:
    """Addresses that a host gives itself when nobody gave it one."""
    return address.startswith(("fe80:", "169.254."))


def limit_warnings(inventory: Inventory, node: Node, facts: Facts, warnings: list[str]) -> None:
    memlock = facts["limits"].get("memlock_bytes")
    if inventory.infiniband and memlock is not None and memlock < MEMLOCK_BYTES:
        warnings.append(f"memlock limit is {memlock >> 10} KiB: RDMA registers memory beyond that; set it to unlimited")
    shm = facts.get("shm")
    if len(node.gpus) > 1 and shm and shm["bytes"] < SHM_BYTES:
        warnings.append(f"/dev/shm has {shm['bytes'] >> 20} MiB: NCCL between GPUs of one node wants 1 GiB or more")


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


def torch_findings(gang: Gang | None, node: Node, imported: set[str]) -> tuple[list[Finding], list[Finding]]:
    """What stands between this node's ranks and an imported torch: failures, and what could not be found out."""
    if gang is None:
        return [], []  # some node could not be reached: nothing was started, and that node's outcome says why
    if isinstance(error := gang.failures.get(node.name), BaseException):
        outcome = no_answer(node.name, "launch", error)
        return ([], list(outcome.findings)) if outcome.verdict.value == "unknown" else (list(outcome.findings), [])
    members = [member for member in gang.members if member.rank.node == node.name]
    failures = [finding for member in members if (finding := own_failure(gang, member, "while importing torch"))]
    if failures:
        return failures[:1], []
    if node.name in imported:
        return [], []
    gang.inspect()
    waiting = [member for member in members if "imported" not in member.steps]
    for member in waiting:
        asleep = next((process for process in member.processes if process["state"] in "TtD"), None)
        if asleep:
            return [stopped(member, asleep, "while starting")], []
    if node.activate and all("started" not in member.steps for member in waiting):
        finding = Finding(
            "activation-failed",
            f"on {node.name} the inventory's activate line does not come to an end: {node.activate}",
            f"log in as the same user and run it with its input closed: `{node.activate} </dev/null`; mend it there or in "
            "the inventory",
            tuple(f"{p['comm']} (pid {p['pid']}) is running" for m in waiting[:1] for p in m.processes[:4])
            or ("it printed nothing",),
        )
        return [finding], []
    return [], [
        Finding(
            "tool-output-unknown",
            f"torch was not imported on {node.name} in time",
            f"time it by hand: `time {node.interpreter} -c 'import torch'`; a slow network file system is the usual reason",
            tuple(line for member in members[:1] for line in gang.lines(member)),
        )
    ]


def compare_versions(outcomes: list[Outcome], gang: Gang) -> list[Outcome]:
    """Nodes with different torch versions: they may not even agree on the wire format. The minority is named."""
    versions = {m.rank.node: str(m.steps["imported"]["torch"]) for m in gang.members if "imported" in m.steps}
    if len(set(versions.values())) < 2:
        return outcomes
    common = statistics.mode(versions.values())
    evidence = tuple(f"{node}: torch {version}" for node, version in versions.items())
    changed = []
    for outcome in outcomes:
        version = versions.get(outcome.node)
        if version in (None, common):
            changed.append(outcome)
            continue
        finding = Finding(
            "torch-version-mismatch",
            f"{outcome.node} runs torch {version}, the others {common}",
            f"install one version everywhere: `{gang.inventory.node(outcome.node).interpreter} -m pip install torch=={common}`",
            evidence[:8],
        )
        changed.append(Outcome.failed(outcome.node, *outcome.findings, finding, metrics=outcome.metrics))
    return changed
