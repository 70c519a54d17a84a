"""connection: one process a rank joins the process group and passes a barrier, on exactly the inventory's hosts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from runbook.causes.catalogue import finding_for
from runbook.checks.base import Check, argument
from runbook.checks.context import TORCH_IMPORT_TIMEOUT_S, Context
from runbook.checks.ranks.evidence import gather_evidence, rank_log_path, stack_lines
from runbook.checks.ranks.pool import Halt, RankMember, RankPool, start_pool
from runbook.files.address import is_loopback
from runbook.launch.ranks import dialled_address, endpoint_text
from runbook.model.command_quoting import shell_word
from runbook.model.text_search import compile_bounded
from runbook.model.units import count_text
from runbook.model.verdict import Finding, Outcome, outcomes_from_findings
from runbook.node.proc import this_machine

MAX_NCCL_LINE_CHARACTERS = 4096
"""Characters. A longer line of a log is read in pieces."""
RANKS_STALL_TIMEOUT_S = 4.0
"""Seconds. The ranks stall when no rank makes a step for this long. Torch's own timeout would come minutes later."""

ASTRAY_STALL_TIMEOUT_S = 1.0
"""Seconds of a stall, when a rank dials or listens elsewhere than at the rendezvous."""

UNPROVEN_LATENESS = "the ranks did not meet in time, and nothing shows why"
UNPROVEN_STALL_TIMEOUT_S = {"gloo": 8.0, "nccl": 30.0}
"""Seconds of a stall by backend, when nothing proves a fault. NCCL reports no step while it looks at the hardware and
connects every adapter, which takes seconds on two nodes and longer on many."""


@dataclass(frozen=True)
class Connection(Check):
    id: ClassVar[str] = "connection"
    timeout_s: ClassVar[float] = 120.0
    needs_ranks: ClassVar[bool] = True
    judges_together: ClassVar[bool] = True

    stall: float = argument(
        RANKS_STALL_TIMEOUT_S, "seconds", "how long without any progress counts as a stall, for example 5s"
    )

    def run(self, at: Context) -> list[Outcome]:
        pool = start_pool(at.run, at.inventory, at.script)
        problem = join_ranks(pool, at, self.stall)
        if problem:
            return problem
        if wrong := wrong_host_outcomes(pool, at) or tcp_fallback_outcomes(pool, at):
            return wrong
        slowest = max(float(member.steps["imported"]["seconds"]) for member in pool.members)
        world, hosts = len(pool.members), len({at.machine(node.name) for node in at.nodes})
        return [
            Outcome.passed(
                node.name,
                f"{count_text(world, 'rank')} on {count_text(hosts, 'host')} joined at "
                f"{rendezvous_endpoint(at)} over {at.inventory.rendezvous.backend} and passed a barrier",
                metrics={"world_size": world, "import_seconds": slowest},
            )
            for node in at.nodes
        ]


def tcp_fallback_outcomes(pool: RankPool, at: Context) -> list[Outcome] | None:
    """Outcomes when the inventory has InfiniBand, but NCCL says in the log of a rank that it took TCP instead; else
    None."""
    if at.inventory.infiniband is None or at.inventory.rendezvous.backend != "nccl":
        return None
    found: dict[str, list[Finding]] = {}
    for member in pool.members:
        log = Path(rank_log_path(pool, member))
        if member.rank.node in found or not log.is_file():
            continue
        with log.open(errors="replace") as file:  # a log may be long, and have no line ends
            if finding := tcp_fallback_finding(
                member.rank.node, iter(lambda: file.readline(MAX_NCCL_LINE_CHARACTERS), "")
            ):
                found[member.rank.node] = [finding]
    if not found:
        return None
    return outcomes_from_findings(at.names, found, "its ranks joined, and do not say that they use TCP")


def join_ranks(pool: RankPool, at: Context, stall_s: float = RANKS_STALL_TIMEOUT_S) -> list[Outcome] | None:
    """Brings every rank into the process group, unless the ranks are there already. Returns outcomes only when that
    fails."""
    if pool.joined:
        return None
    outcomes: list[Outcome] = []
    # Imports may take long and show no progress; a rank that dies meanwhile still ends the wait at once.
    halt = pool.until(
        "imported", timeout_s=min(at.left_s, TORCH_IMPORT_TIMEOUT_S), stall_s=lambda: TORCH_IMPORT_TIMEOUT_S
    )
    if halt is None and (wrong := misnumbered_rank_outcomes(pool)):
        return wrong
    if halt is None:
        pool.order({"do": "join"})

        def tell(member: RankMember, message: Mapping[str, Any]) -> None:
            if message.get("event") == "step":
                reason = f" ({message['reason']})" if message.get("reason") else ""
                at.say(f"rank {member.rank.rank}: {message['step']}{reason}", member.rank.node, member.rank.rank)

        halt = pool.until(
            "done",
            timeout_s=at.left_s,
            stall_s=lambda: (
                stall_s
                if not wrong_rendezvous_findings(pool, rendezvous_endpoint(at))
                else min(ASTRAY_STALL_TIMEOUT_S, stall_s)
            ),
            on_message=tell,
        )
        if halt and halt.kind in ("stalled", "silent"):
            if proven := join_failure_outcomes(pool, at, replace(halt, kind="silent")):
                return proven
            patience = max(stall_s, UNPROVEN_STALL_TIMEOUT_S[at.inventory.rendezvous.backend])
            while halt := pool.until(
                "done", timeout_s=at.left_s, stall_s=lambda: patience, on_message=tell, silence_s=patience
            ):
                if halt.kind == "late" or (outcomes := join_failure_outcomes(pool, at, halt)):
                    break
                pool.go_on(halt)  # data flows, or nothing is proven: they may still be connecting
    if halt is None:
        pool.joined = True
        return None
    return (
        outcomes
        or join_failure_outcomes(pool, at, halt)
        or [
            Outcome.unknown(name, finding_for("tool-output-unknown", UNPROVEN_LATENESS, (), way="late", node=name))
            for name in at.names
        ]
    )


def join_failure_outcomes(pool: RankPool, at: Context, halt: Halt) -> list[Outcome]:
    """Outcomes that say why the ranks do not meet. When a rank is only silent (`halt.kind`), these say only what is
    proven."""
    from runbook.checks.ranks.halts import outcomes_of_halt

    if halt.kind in ("stalled", "silent", "late") and (
        outcomes := join_progress_outcomes(pool, at, proven=halt.kind == "silent")
    ):
        return outcomes
    return outcomes_of_halt(pool, halt, "while joining")


def join_progress_outcomes(pool: RankPool, at: Context, *, proven: bool = False) -> list[Outcome] | None:
    """Outcomes that say what keeps the ranks apart, from how far each rank came; None when nothing is found, or when a
    process is stopped or dead, which explains more.

    With `proven`, only causes that a rank met or a node measured count, and not that something takes long.
    """
    from runbook.checks.network.live_traffic import Between  # needed only when ranks do not meet
    from runbook.checks.ranks.collective_calls import busy_elsewhere_findings
    from runbook.checks.ranks.halts import examine_live_traffic

    gather_evidence(pool)
    if any(member.asleep or any(one["state"] == "Z" for one in member.processes) for member in pool.members):
        return None
    where = rendezvous_endpoint(at)
    findings = wrong_rendezvous_findings(pool, where) or unimported_torch_findings(pool)
    seen = Between()
    if not findings:
        busy = busy_elsewhere_findings(pool, "while joining")
        seen = seen if busy else examine_live_traffic(pool)
        if between := busy or seen.findings:
            return outcomes_with_bystanders(pool, {name: list(listed) for name, listed in between.items()})
    findings = findings or silent_name_server_findings(pool)
    if not proven or "listening" in pool.members[0].steps:  # else rank 0 may be on its way
        findings = findings or unopened_store_findings(pool, where) or failed_dial_findings(pool, where)
    if seen.blind and not proven:  # some nodes could not be looked at; the ports of the others are open
        findings = findings or blocked_data_port_findings(pool, where)
    return outcomes_with_bystanders(pool, {name: [finding] for name, finding in findings.items()}) if findings else None


def rendezvous_endpoint(at: Context) -> str:
    """The address and port of the rendezvous that the ranks of this job dial."""
    return endpoint_text(dialled_address(at.inventory.rendezvous, len(at.nodes)), at.inventory.rendezvous.port)


def outcomes_with_bystanders(pool: RankPool, findings: Mapping[str, list[Finding]]) -> list[Outcome]:
    """Outcomes for all nodes: the findings of each node in `findings`; every other node has a finding that its ranks
    waited for those nodes."""
    progress = tuple(f"{member.label}: {member.step}" for member in pool.members[:16])
    others = tuple(findings)
    names = ", ".join(others)
    says = f"not judged: waited for {names}"
    waited = finding_for("ranks-missing", says, progress, others, way="others", others=names)
    return outcomes_from_findings((node.name for node in pool.inventory.nodes), findings, waited)


def misnumbered_rank_outcomes(pool: RankPool) -> list[Outcome] | None:
    """Outcomes that name ranks with a wrong RANK or WORLD_SIZE; None when there are none."""
    world = len(pool.members)
    found: dict[str, list[Finding]] = {}
    for member in pool.members:
        started_as = member.steps.get("started", {}).get("seat")
        if not started_as or (started_as["rank"] == member.rank.rank and started_as["world_size"] == world):
            continue
        node = member.rank.node
        name, given, right, cause = (
            ("RANK", started_as["rank"], member.rank.rank, "duplicate-rank")
            if started_as["rank"] != member.rank.rank
            else ("WORLD_SIZE", started_as["world_size"], world, "world-size-mismatch")
        )
        says = f"{member.label} started with {name}={given} instead of {right}: something on {node} sets {name}"
        seen = (f"{member.label} started with RANK={started_as['rank']} WORLD_SIZE={started_as['world_size']}",)
        found.setdefault(node, []).append(finding_for(cause, says, seen, way="set-there", node=node))
    return outcomes_with_bystanders(pool, found) if found else None


def wrong_rendezvous_findings(pool: RankPool, where: str) -> dict[str, Finding]:
    """By node, ranks that dial or listen elsewhere than at the rendezvous: `env:` or `activate` may have changed the
    address."""
    found: dict[str, Finding] = {}
    for member in pool.members:
        step = member.steps.get("dialling" if member.step == "dialling" else "listening", {})
        if "address" in step and endpoint_text(step["address"], step["port"]) != where:
            verb = "dials" if member.step == "dialling" else "listens at"
            found[member.rank.node] = wrong_rendezvous_finding(member, verb, step, where)
    return found


def unimported_torch_findings(pool: RankPool) -> dict[str, Finding]:
    """By node, ranks that have not imported torch."""
    found: dict[str, Finding] = {}
    for member in pool.members:
        if "imported" not in member.steps:
            says = f"{member.label} never came: last step {member.step}"
            found[member.rank.node] = finding_for(
                "ranks-missing", says, pool.lines(member) or ("it printed nothing",), way="torch", node=member.rank.node
            )
    return found


def silent_name_server_findings(pool: RankPool) -> dict[str, Finding]:
    """By node, ranks in which torch waits for a name server. Torch asks name servers even when the rendezvous is an IP
    address."""
    found: dict[str, Finding] = {}
    for member in pool.members:
        if waiting := member.steps.get("looking-up"):
            found[member.rank.node] = finding_for(
                "name-unresolvable",
                f"the name servers of {member.rank.node} do not answer, and torch waits for them: "
                f"{waiting['seconds']:g} s for {waiting['address']} so far",
                (f"{member.label}: last step {member.step}; looking up {waiting['address']}",),
                way="name-server",
                node=member.rank.node,
            )
    return found


def unopened_store_findings(pool: RankPool, where: str) -> dict[str, Finding]:
    """A finding for the master's node, when other ranks dial and rank 0 has not opened the store yet."""
    first = pool.members[0]
    if "listening" in first.steps or not any(member.step == "dialling" for member in pool.members):
        return {}
    finding = finding_for(
        "ranks-missing",
        f"{first.label} does not open the store at {where}, which the others dial: last step {first.step}",
        (*stack_lines([first]), *pool.lines(first)) or ("it printed nothing",),
        first.peers_among(pool.members),
        way="hangs",
        node=first.rank.node,
        pid=shell_word(first.steps["started"]["pid"]),
    )
    return {first.rank.node: finding}


def failed_dial_findings(pool: RankPool, where: str) -> dict[str, Finding]:
    """By node, what its rank met when it dialled the master. No rule of a firewall has explained it."""
    rendezvous = pool.inventory.rendezvous
    findings: dict[str, Finding] = {}
    for member in pool.members:
        if member.step == "dialling":
            reason = str(member.steps["dialling"].get("reason", ""))
            findings.setdefault(
                member.rank.node, master_dial_finding(member, reason, where, rendezvous.master, rendezvous.port)
            )
    return findings


def blocked_data_port_findings(pool: RankPool, where: str) -> dict[str, Finding]:
    """By node, ranks that reached the store but did not finish joining."""
    findings: dict[str, Finding] = {}
    for member in pool.members:
        if "connected" in member.steps and "done" not in member.steps:
            peers = member.peers_among(pool.members)
            findings[member.rank.node] = finding_for(
                "data-ports-blocked",
                f"every rank reached the store at {where}, but the ranks do not reach each other: {member.label} got "
                f"as far as '{member.step}'",
                tuple(f"{m.label}: {m.step}" for m in pool.members[:8]),
                peers,
            )
    return findings


def wrong_rendezvous_finding(member: RankMember, verb: str, step: Mapping[str, Any], where: str) -> Finding:
    """The finding for a rank that dials or listens at another address or port than the rendezvous `where`."""
    used = endpoint_text(step["address"], step["port"])
    return finding_for(
        "master-addr-loopback" if is_loopback(step["address"]) else "master-addr-wrong-host",
        f"{member.label} {verb} {used}, although the rendezvous is at {where}: something sets MASTER_ADDR or "
        "MASTER_PORT",
        (f"{member.label} {verb} {used}",),
        way="set-there",
        node=member.rank.node,
    )


def master_dial_finding(member: RankMember, reason: str, where: str, master: str, port: int) -> Finding:
    """The finding for a rank that cannot dial the master; `reason` is what the rank said of its last try."""
    node = member.rank.node
    evidence = (f"{member.label} dialled {where}: {reason}",)
    if reason.startswith("unresolvable"):
        says = f"{node} cannot resolve the rendezvous address {where}"
        return finding_for("name-unresolvable", says, evidence, (master,), way="rendezvous", node=node)
    if reason.startswith("no local port"):
        says = f"{node} has no local port left to dial {where} from: its kernel hands out too few, or all are taken"
        return finding_for("ephemeral-ports-exhausted", says, evidence, (master,), way="node", node=node)
    if reason.startswith("unreachable"):
        return finding_for("no-route", f"{node} has no way to {where}: {reason}", evidence, (master,), way="there")
    cause = "firewall-drop"
    says = f"{node} gets no answer from {where}, although rank 0 listens there: something drops the packets"
    if reason == "refused":
        cause = "firewall-reject"
        says = (
            f"{node} is refused at {where}, although rank 0 listens there: a rule rejects it, or the address leads to "
            "another machine"
        )
    return finding_for(cause, says, evidence, (master,), way="joining", master=master, port=port, node=node)


def _is_one_machine_intended(at: Context) -> bool:
    """Whether the inventory itself says that all its nodes are the controller's own machine, as when the tool is tried
    out. The address of an agent is the one it dialled from: loopback also for an agent behind a tunnel. So agents count
    only if all nodes are this machine."""
    if at.inventory.one_machine:
        return True
    loopback = all(is_loopback(node.address) for node in at.nodes if node.connection == "agent")
    here = {at.machine(node.name) for node in at.nodes} == {this_machine()}
    return loopback and here and all(node.connection in ("local", "agent") for node in at.nodes)


def wrong_host_outcomes(pool: RankPool, at: Context) -> list[Outcome] | None:
    """Outcomes that fail nodes whose ranks joined from another machine, or that are one machine with another node: a
    job on one host twice must not pass. None when every rank is on the right host."""
    world = pool.extra.get("world")
    if world is None:
        return None
    hosts = world["hosts"]
    found: dict[str, list[Finding]] = {}
    for member in pool.members:
        expected = at.machine(member.rank.node)
        got = hosts[member.rank.rank]
        if got["machine"] != expected:
            says = f"{member.label} joined from {got['host']}, which is not the machine that {member.rank.node} is"
            seen = f"expected {expected}, got {got['machine']}"
            found[member.rank.node] = [finding_for("solo-world", says, (seen,), way="place-taken")]
    machines: dict[str, str] = {}
    meant = _is_one_machine_intended(at)
    for node in at.nodes:
        name, machine = node.name, at.machine(node.name)
        first = machines.setdefault(machine, name)
        if first != name and not meant:
            says = f"{name} and {first} are one machine: their ranks never crossed a network"
            seen = f"both report machine {machine}"
            one = finding_for("solo-world", says, (seen,), (first,), way="one-machine", node=name)
            found.setdefault(name, [one])
    return outcomes_from_findings(at.names, found, "its ranks joined from the right host") if found else None


NCCL_TCP_LINE = compile_bounded(r"NCCL INFO .*(?:\bvia NET/Socket/\d|Using network Socket\b)")
"""A line of NCCL's log that says that data between nodes goes over TCP sockets."""
NCCL_RDMA_LINE = compile_bounded(r"NCCL INFO .*(?:\bvia NET/(?!Socket)\w+/\d|Using network (?!Socket\b)\w)")
"""A line of NCCL's log that says that data between nodes goes over any other network, such as InfiniBand."""
TCP_REASONS = {
    "disabled": (re.compile(r"NCCL_IB_DISABLE set by environment to 1"), "NCCL_IB_DISABLE=1 forbids it"),
    "socket": (re.compile(r"NCCL_NET set by environment to Socket", re.I), "NCCL_NET=Socket asks for TCP"),
    "library": (
        compile_bounded(r"Failed to open libibverbs|libibverbs\.so.*cannot open|Unable to load libibverbs", re.I),
        "the library libibverbs is not installed there",
    ),
    "device": (re.compile(r"NET/IB : No device found"), "NCCL finds no device that it may use"),
}
"""Why NCCL takes TCP: by the `way` of the remedy, the line of the log that shows it, and the reason in words. The first
entry that is found is the reason: a device that is forbidden is not found either."""


def tcp_fallback_finding(node: str, lines: Iterable[str]) -> Finding | None:
    """A finding when NCCL says that it moves data between nodes over TCP sockets, and never that it uses another
    network.

    For a job whose inventory has an `infiniband:` block. None when the lines say nothing about TCP.
    """
    over_tcp: list[str] = []
    said: dict[str, str] = {}
    for raw in lines:
        line = raw.strip()
        if NCCL_RDMA_LINE.search(line):
            return None
        if NCCL_TCP_LINE.search(line) and len(over_tcp) < 3:
            over_tcp.append(line)
        for way, (pattern, _) in TCP_REASONS.items():
            if pattern.search(line):
                said.setdefault(way, line)
    if not over_tcp:
        return None
    way = next((way for way in TCP_REASONS if way in said), "untold")
    reason = f": {TCP_REASONS[way][1]}" if way in said else ", and does not say why"
    says = f"NCCL on {node} moves its data over TCP instead of InfiniBand{reason}"
    seen = tuple(dict.fromkeys([*([said[way]] if way in said else []), *over_tcp]))
    return finding_for("ib-not-used-socket-fallback", says, seen, way=way)
