"""connection: one process a rank joins the process group and passes a barrier, on exactly the inventory's hosts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from runbook.checks.base import Check, argument
from runbook.checks.context import Context
from runbook.checks.gang import Gang, Member, start_gang
from runbook.checks.halts import outcomes_of_halt
from runbook.launch.ranks import dialled_address
from runbook.model.verdict import Finding, Outcome

IMPORT_TIMEOUT_S = 90.0
STALL_S = 4.0
"""No rank makes a step for this long: they would only wait for each other until torch's own timeout, minutes away."""


@dataclass(frozen=True)
class Connection(Check):
    id: ClassVar[str] = "connection"
    timeout_s: ClassVar[float] = 120.0
    needs_ranks: ClassVar[bool] = True

    stall: float = argument(STALL_S, "seconds", "how long without any progress counts as a stall, for example 5s")

    def run(self, at: Context) -> list[Outcome]:
        gang = start_gang(at.run, at.inventory, at.script)
        problem = join(gang, at, self.stall)
        if problem:
            return problem
        if wrong := wrong_hosts(gang, at):
            return wrong
        slowest = max(float(member.steps["imported"]["seconds"]) for member in gang.members)
        world = len(gang.members)
        where = f"{dialled_address(at.inventory.rendezvous, len(at.nodes))}:{at.inventory.rendezvous.port}"
        return [
            Outcome.passed(
                node.name,
                f"{world} rank{'s' if world > 1 else ''} on {len(at.nodes)} host{'s' if len(at.nodes) > 1 else ''} joined at {where} over "
                f"{at.inventory.rendezvous.backend} and passed a barrier",
                metrics={"world_size": world, "import_seconds": slowest},
            )
            for node in at.nodes
        ]


def join(gang: Gang, at: Context, stall_s: float = STALL_S) -> list[Outcome] | None:
    """Bring every rank into the process group, unless it is there already; outcomes only when that fails."""
    if gang.joined:
        return None
    # Imports may take long and show no progress; a rank that dies meanwhile still ends the wait at once.
    halt = gang.until("imported", timeout_s=min(at.left_s, IMPORT_TIMEOUT_S), stall_s=lambda: IMPORT_TIMEOUT_S)
    if halt is None:
        gang.order({"do": "join"})

        def tell(member: Member, message: Mapping[str, Any]) -> None:
            if message.get("event") == "step":
                reason = f" ({message['reason']})" if message.get("reason") else ""
                at.say(f"rank {member.rank.rank}: {message['step']}{reason}", member.rank.node, member.rank.rank)

        halt = gang.until("done", timeout_s=at.left_s, stall_s=lambda: stall_s, on_message=tell)
    if halt is None:
        gang.joined = True
        return None
    if halt.kind in ("stalled", "late") and (outcomes := unjoined(gang, at)):
        return outcomes
    return outcomes_of_halt(gang, halt, "while joining")


def unjoined(gang: Gang, at: Context) -> list[Outcome] | None:
    """Name what keeps the ranks apart, from how far each came; None when a process is stopped or dead instead."""
    gang.inspect()
    if any(process["state"] in "TtDZ" for member in gang.members for process in member.processes):
        return None
    rendezvous = at.inventory.rendezvous
    where = f"{dialled_address(rendezvous, len(at.nodes))}:{rendezvous.port}"
    dialling = [member for member in gang.members if member.step == "dialling"]
    connected = [member for member in gang.members if "connected" in member.steps and "done" not in member.steps]
    absent = [member for member in gang.members if "imported" not in member.steps]
    findings: dict[str, Finding] = {}
    if dialling:
        for member in dialling:
            step = member.steps["dialling"]
            reason = str(step.get("reason", ""))
            dialled = (
                f"{step['address']}:{step['port']}" if "address" in step else where
            )  # `env:` or `activate` may have changed it
            findings.setdefault(
                member.rank.node,
                misdirected(member, dialled, where)
                if dialled != where
                else cannot_dial(member, reason, where, rendezvous.master, rendezvous.port),
            )
    elif absent:
        for member in absent:
            findings[member.rank.node] = Finding(
                "ranks-missing",
                f"{member.label} never came: last step {member.step}",
                f"see why torch does not load on {member.rank.node}: its log is in the run's folder",
                gang.lines(member) or ("it printed nothing",),
            )
    elif connected:
        for member in connected:
            peers = tuple(sorted({m.rank.node for m in gang.members} - {member.rank.node}))
            findings[member.rank.node] = Finding(
                "data-ports-blocked",
                f"every rank reached the store at {where}, but the ranks do not reach each other: {member.label} got as "
                f"far as '{member.step}'",
                "ranks talk on ports that the kernel picks (see /proc/sys/net/ipv4/ip_local_port_range): allow TCP between "
                "the nodes on all ports; the `firewall` check finds the rule",
                tuple(f"{m.label}: {m.step}" for m in gang.members[:8]),
                peers,
            )
    else:
        return None
    progress = tuple(f"{member.label}: {member.step}" for member in gang.members[:16])
    outcomes = []
    for node in at.nodes:
        if node.name in findings:
            outcomes.append(Outcome.failed(node.name, findings[node.name]))
        else:
            others = tuple(findings)
            outcomes.append(
                Outcome.unknown(
                    node.name,
                    Finding(
                        "ranks-missing",
                        f"the ranks of {node.name} waited for {', '.join(others)}",
                        f"mend {', '.join(others)} first",
                        progress,
                        others,
                    ),
                )
            )
    return outcomes


def misdirected(member: Member, dialled: str, where: str) -> Finding:
    return Finding(
        "master-addr-wrong-host",
        f"{member.label} dials {dialled}, although the rendezvous is at {where}: something sets MASTER_ADDR or MASTER_PORT",
        f"take MASTER_ADDR and MASTER_PORT out of `env:` and of the `activate:` line of {member.rank.node}",
        (f"{member.label} dialled {dialled}",),
    )


def cannot_dial(member: Member, reason: str, where: str, master: str, port: int) -> Finding:
    node = member.rank.node
    evidence = (f"{member.label} dialled {where}: {reason}",)
    if reason.startswith("unresolvable"):
        return Finding(
            "name-unresolvable",
            f"{node} cannot resolve the rendezvous address {where}",
            f"add it to /etc/hosts or DNS on {node}, or use an IP address as `rendezvous: {{address: …}}`",
            evidence,
            (master,),
        )
    if reason == "refused":
        return Finding(
            "firewall-reject",
            f"{node} is refused at {where}, although rank 0 listens there: a rule rejects it, or the address leads to "
            "another machine",
            f"on {master}: `sudo nft list ruleset`; allow TCP {port} from {node}; the `firewall` check finds the rule",
            evidence,
            (master,),
        )
    if reason.startswith("unreachable"):
        return Finding(
            "no-route", f"{node} has no way to {where}: {reason}", "check `ip route` there", evidence, (master,)
        )
    return Finding(
        "firewall-drop",
        f"{node} gets no answer from {where}, although rank 0 listens there: something drops the packets",
        f"on {master}: allow TCP {port} from {node}; the `firewall` check finds the rule",
        evidence,
        (master,),
    )


def wrong_hosts(gang: Gang, at: Context) -> list[Outcome] | None:
    """The machines that joined must be the inventory's, each its own: a job of one host twice must not pass."""
    world = gang.extra.get("world")
    if world is None:
        return None
    hosts = world["hosts"]
    found: dict[str, Finding] = {}
    for member in gang.members:
        expected = at.machine(member.rank.node)
        got = hosts[member.rank.rank]
        if got["machine"] != expected:
            found[member.rank.node] = Finding(
                "solo-world",
                f"{member.label} joined from {got['host']}, which is not the machine that {member.rank.node} is",
                "check the addresses in the inventory: another process may have taken this rank's place",
                (f"expected {expected}, got {got['machine']}",),
            )
    machines: dict[str, str] = {}
    for node in at.nodes:
        first = machines.setdefault(at.machine(node.name), node.name)
        if first != node.name and node.connection == "ssh":
            found.setdefault(
                node.name,
                Finding(
                    "solo-world",
                    f"{node.name} and {first} are one machine: their ranks never crossed a network",
                    f"give {node.name} its own address in the inventory",
                    (f"both report machine {at.machine(node.name)}",),
                    (first,),
                ),
            )
    if not found:
        return None
    return [
        Outcome.failed(node.name, found[node.name])
        if node.name in found
        else Outcome.passed(node.name, "its ranks joined from the right host")
        for node in at.nodes
    ]
