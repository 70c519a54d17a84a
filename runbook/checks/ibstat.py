"""ibstat: every InfiniBand port that NCCL would use is Active, LinkUp and as fast as the inventory promises."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from runbook.causes.catalogue import finding_for
from runbook.checks.base import Check
from runbook.checks.context import Context
from runbook.files.suggestions import nearest_word
from runbook.launch.ranks import hca_expression, network_environment
from runbook.model.command_quoting import shell_word
from runbook.model.grouping import values_by_key
from runbook.model.inventory import Node
from runbook.model.nccl_devices import Selection, parse_device_selection
from runbook.model.units import count_text, first_items_text, name_list_text, parse_whole_number
from runbook.model.verdict import Finding, Outcome, Verdict, outcomes_with_findings
from runbook.node.ibstat import MAX_GIDS
from runbook.parsers.infiniband import PORT_STATES, Port, parse, ports_from_sysfs, read
from runbook.transport.node_answers import IBSTAT_PROGRAM

IBSTAT_PHYSICAL_STATES = {
    "linkup": "LinkUp",
    "linkerrorrecovery": "LinkErrorRecovery",
    "portconfigurationtraining": "PortConfigurationTraining",
}
"""How ibstat writes the physical states that have more than one word."""


@dataclass(frozen=True)
class Ibstat(Check):
    id: ClassVar[str] = "ibstat"
    timeout_s: ClassVar[float] = 30.0

    def run(self, at: Context) -> list[Outcome]:
        promise = at.inventory.infiniband
        if promise is None:
            return [Outcome.skipped(node.name, "the inventory has no infiniband: block") for node in at.nodes]
        said = at.ask(IBSTAT_PROGRAM, lambda node: {}, timeout_s=15.0)
        spare = spare_ports(
            {n: ports_and_source(answer)[0] for n, answer in said.items() if not isinstance(answer, Outcome)}
        )
        outcomes = []
        for node in at.nodes:
            answer = said[node.name]
            if isinstance(answer, Outcome):
                outcomes.append(answer)
                continue
            index = network_environment(at.inventory, node).get("NCCL_IB_GID_INDEX")
            gid_index = index if isinstance(index, str) else None
            expression = hca_expression(at.inventory, node)
            outcomes.append(ibstat_outcome(node, answer, expression, promise.min_rate_gbps, gid_index, spare=spare))
        return compare_node_ports(at, said, outcomes)


def compare_node_ports(at: Context, said: Mapping[str, Any], outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The outcomes with what differs between nodes whose ports are all sound: findings for different fabrics, else
    warnings."""
    if any(outcome.verdict is not Verdict.PASS for outcome in outcomes):
        return list(outcomes)
    chosen = {
        node.name: [
            p for p in select_ports(hca_expression(at.inventory, node), ports_and_source(said[node.name])[0]) if p.sound
        ]
        for node in at.nodes
    }
    if odd := odd_fabric_findings(chosen):
        return outcomes_with_findings(outcomes, odd)
    promised = bool(at.inventory.infiniband and at.inventory.infiniband.min_rate_gbps)
    warnings = uneven_port_warnings(chosen, promised=promised)
    return [replace(one, warnings=(*one.warnings, *warnings.get(one.node, ()))) for one in outcomes]


def ports_and_source(answer: Mapping[str, Any]) -> tuple[list[Port], str]:
    """The node's ports and their source: ibstat, or the kernel if ibstat shows no port or not every port."""
    printed, seen = parse(str(answer["ibstat"].get("out") or "")), ports_from_sysfs(answer["sysfs"] or {})
    if seen and (not printed or incomplete_output_reason(answer)):
        return seen, "/sys/class/infiniband"
    details = {port.name: port.detail for port in seen}
    return [replace(port, detail=details.get(port.name, "")) for port in printed], "ibstat"


def incomplete_output_reason(answer: Mapping[str, Any]) -> str:
    """Why the output of ibstat is not complete: a port without its state, fewer ports than announced, or an error in
    the middle; empty when nothing is missing."""
    tool = answer["ibstat"]
    reading = read(f"{tool.get('out') or ''}\n{tool.get('err') or ''}")
    return reading.unknown if reading else ""


def ibstat_outcome(
    node: Node,
    answer: Mapping[str, Any],
    expression: str | None,
    min_rate: float | None,
    gid_index: str | None = None,
    *,
    spare: Collection[str] = (),
) -> Outcome:
    """The outcome for a node, from what ibstat or sysfs shows there. Pure. `spare`: ports that are down on every
    node."""
    tool = answer["ibstat"]
    ports, source = ports_and_source(answer)
    if not ports:
        return no_ports_outcome(node, answer)
    chosen = select_ports(expression, ports)
    shown = tuple(f"{p.name}: {p.state}, {p.physical}, {p.detail or port_rate_text(p)}, {p.link_layer}" for p in ports)
    metrics: dict[str, object] = {"ports": shown}
    if missing := missing_hca_findings(node, expression, ports, shown):
        return Outcome.failed(node.name, *missing, *port_fault_findings(node, chosen, min_rate), metrics=metrics)
    idle = [port for port in chosen if port.name in spare and not is_hca_named(expression, port)]
    chosen = [port for port in chosen if port not in idle] or chosen
    why = incomplete_output_reason(answer) if source == "ibstat" else ""
    readable = [
        port
        for port in chosen
        if not why or (port.state in PORT_STATES and port.physical and port.rate_gbps is not None)
    ]
    findings = [
        *port_fault_findings(node, readable, min_rate),
        *gid_findings(node, readable, answer.get("gids"), gid_index),
    ]
    if findings:
        return Outcome.failed(node.name, *findings, metrics=metrics)
    if why:
        return Outcome.unknown(node.name, incomplete_output_finding(node, tool, why), metrics=metrics)
    slowest = min((p.rate_gbps for p in chosen if p.rate_gbps is not None), default=None)
    speed = f" at {slowest:g} Gbit/s" if slowest is not None else ""
    promised = f" (promised {min_rate:g})" if min_rate else ""
    warnings = [
        f"`{name}` takes every HCA whose name begins so, {', '.join(more)} as well: write `={name}` for that one alone"
        for name, more in ambiguous_hca_names(expression, ports).items()
    ]
    if not expression and (ethernet := [p.name for p in ports if p.ethernet and p.sound and p not in chosen]):
        warnings.append(
            f"{', '.join(ethernet)} is Ethernet and NCCL may take it too: name the others in `infiniband: {{hca: …}}`"
        )
    if idle:
        warnings.append(
            f"{', '.join(p.name for p in idle)} is down on every node, so taken for a spare: NCCL leaves it out"
        )
    if tool.get("timed_out"):
        warnings.append("ibstat did not return within 8 s")
    proof = f"{', '.join(p.name for p in chosen)} Active, LinkUp{speed}{promised}, by {source}"
    return Outcome.passed(node.name, proof, metrics=metrics, warnings=warnings)


def spare_ports(ports: Mapping[str, Sequence[Port]]) -> set[str]:
    """Ports that are down on every node that has them, of several. They are spares: cards often have more ports than
    cables."""
    states = values_by_key((port.name, port.state) for shown in ports.values() for port in shown)
    return {name for name, those in states.items() if len(those) > 1 and set(those) == {"down"}}


def missing_hca_findings(
    node: Node, expression: str | None, ports: Sequence[Port], shown: tuple[str, ...]
) -> list[Finding]:
    """Findings for names that select no port. The names of an expression that excludes need not exist, but it must
    leave a port."""
    wanted = parse_device_selection(expression or "")
    hcas = sorted({port.hca for port in ports})
    there = f"it has {first_items_text(hcas)}"
    if wanted.excludes:
        if select_ports(expression, ports):
            return []
        says = f"`{expression}` leaves {node.name} no HCA: {there}"
        return [finding_for("ib-hca-missing", says, shown, way="inventory", node=node.name)]
    found = []
    for chosen in wanted.names:
        if any(is_port_selected(chosen, port, wanted) for port in ports):
            continue
        name, _, number = chosen.partition(":")
        near = nearest_word(name, hcas)
        if number and any(wanted.fits(name, hca) for hca in hcas):
            says = f"no HCA that `{name}` means has a port {number} on {node.name}"
            way = "inventory"
        elif wanted.exact and any(hca.startswith(name) for hca in hcas):
            says = f"{node.name} has no HCA with the exact name {name}: {there}"
            way = "exact"
        else:
            says = f"{node.name} has no HCA {name}: {there}"
            way = "near" if near else "unknown"
        found.append(finding_for("ib-hca-missing", says, shown, way=way, node=node.name, name=name, near=near))
    return found


def incomplete_output_finding(node: Node, tool: Mapping[str, Any], why: str) -> Finding:
    """The finding when the output of ibstat shows no fault but is not complete."""
    said = f"{tool.get('err') or ''}\n{tool.get('out') or ''}".strip().splitlines()
    says = f"ibstat on {node.name} does not show every port in full (exit {tool.get('code')}): {why}"
    seen = tuple(line.strip() for line in said[:3] + said[3:][-5:])
    return finding_for("tool-output-unknown", says, seen, way="ibstat", node=node.name)


def no_ports_outcome(node: Node, answer: Mapping[str, Any]) -> Outcome:
    """The outcome when no port was read: a failure when there is no device, unknown when the check could not look."""
    tool, sysfs, cards = answer["ibstat"], answer["sysfs"], answer.get("cards")
    text = f"{tool.get('out') or ''}{tool.get('err') or ''}".strip()
    said = tuple(text.splitlines()[:8])
    on_bus = () if cards is None else (f"the kernel shows {count_text(cards, 'Mellanox card')} on the PCI bus",)
    # With no device ibstat prints nothing and ends with 0; an empty list from the kernel proves the same.
    silent = tool.get("code") == 0 and not text and not tool.get("missing")
    no_driver = any("/dev/infiniband" in line and "no such file" in line.lower() for line in said)
    if (sysfs == {} or silent or no_driver) and not tool.get("timed_out"):
        says = f"{node.name} has no InfiniBand device"
        says += ": its card is there, and no driver has taken it" if cards else ""
        seen = (*(said or ("ibstat lists no adapter",)), *on_bus)
        return Outcome.failed(node.name, finding_for("ib-no-device", says, seen, way="driver" if cards else "card"))
    cause, way = "tool-output-unknown", "ibstat"
    if tool.get("missing"):
        says = f"{node.name} has no ibstat, and its kernel shows no /sys/class/infiniband to read instead"
        seen = ("ibstat is neither on PATH nor in /usr/sbin", *on_bus)
        cause = "tool-missing"
    elif tool.get("timed_out"):
        says = f"ibstat does not return on {node.name}, and its kernel shows no port in /sys/class/infiniband"
        seen = ("ibstat: no answer within 8 s", *on_bus)
        way = "ibstat-hangs"
    else:
        says = f"ibstat on {node.name} printed something that runbook does not understand (exit {tool.get('code')})"
        seen = said or ("it printed nothing",)
    return Outcome.unknown(node.name, finding_for(cause, says, seen, way=way, node=node.name))


def port_fault_findings(node: Node, chosen: Sequence[Port], min_rate: float | None) -> list[Finding]:
    """The findings for the chosen ports, at most one a port."""
    return [finding for port in chosen if (finding := port_fault_finding(node, port, min_rate))]


def port_fault_finding(node: Node, port: Port, min_rate: float | None) -> Finding | None:
    """What is wrong with one port: not set up, not active, or slower than `min_rate` in Gbit/s; None when it is
    sound."""
    where = f"{port.name} of {node.name}"
    state, physical = port.state.capitalize(), IBSTAT_PHYSICAL_STATES.get(port.physical, port.physical.capitalize())
    seen = (f"{port.name}: State {state}, Physical state {physical}, Rate {port.detail or port_rate_text(port)}",)
    if port.cause == "ib-port-initializing":
        return finding_for(
            "ib-port-initializing", f"{where} is {state}: the link is up, but no subnet manager has set it up", seen
        )
    if port.cause == "ib-port-not-active":
        way = {"disabled": "disabled", "linkerrorrecovery": "unsteady"}.get(port.physical, "cable")
        return finding_for(
            "ib-port-not-active",
            f"{where} is {state or 'in an unknown state'} (physical state {physical or 'unknown'})",
            seen,
            way="ethernet" if port.ethernet else way,
            node=node.name,
            hca=shell_word(port.hca),
            number=port.number,
        )
    if min_rate and port.rate_gbps is not None and port.rate_gbps < min_rate:
        narrow = " over one lane instead of four" if "(1X" in port.detail else ""
        says = f"{where} runs at {port.rate_gbps:g} Gbit/s{narrow}, not at the promised {min_rate:g}"
        return finding_for("ib-rate-low", says, seen, way="slow")
    if min_rate and port.rate_gbps is None:
        return finding_for("ib-rate-low", f"{where} shows no rate", seen, way="no-rate", hca=shell_word(port.hca))
    return None


def port_rate_text(port: Port) -> str:
    """The port's rate in words."""
    return "no rate" if port.rate_gbps is None else f"{port.rate_gbps:g} Gbit/s"


def select_ports(expression: str | None, ports: Sequence[Port]) -> list[Port]:
    """The ports that NCCL_IB_HCA selects: a list of prefixes, `=` for exact names, `^` to exclude, `:port` for one
    port.

    Without an expression NCCL takes every active port and ignores the rest, so an idle spare port is no fault: the
    active ports are chosen, or all ports if none is active. Ethernet ports beside InfiniBand ports are left out: an
    `infiniband:` block does not mean them.
    """
    if not expression:
        active = [port for port in ports if port.state == "active"]
        return [port for port in active if not port.ethernet] or active or list(ports)
    chosen = parse_device_selection(expression)
    return [
        port for port in ports if any(is_port_selected(name, port, chosen) for name in chosen.names) != chosen.excludes
    ]


def is_port_selected(word: str, port: Port, chosen: Selection) -> bool:
    """Whether one word of an expression selects this port."""
    name, _, number = word.partition(":")
    if number and parse_whole_number(number) not in (None, port.number):
        return False
    return chosen.fits(name, port.hca)


def is_hca_named(expression: str | None, port: Port) -> bool:
    """Whether the expression has the whole name of this port's HCA, and not only a beginning of it."""
    chosen = parse_device_selection(expression or "")
    words = {word.partition(":")[0] for word in chosen.names if is_port_selected(word, port, chosen)}
    return not chosen.excludes and port.hca in words


def ambiguous_hca_names(expression: str | None, ports: Sequence[Port]) -> dict[str, list[str]]:
    """Words that are the whole name of one HCA and also the beginning of others, which NCCL takes too; by word, those
    others. Example: mlx5_1 and mlx5_10."""
    chosen = parse_device_selection(expression or "")
    if chosen.exact:
        return {}
    hcas = sorted({port.hca for port in ports})
    words = {word.partition(":")[0] for word in chosen.names} & set(hcas)
    return {word: more for word in sorted(words) if (more := [h for h in hcas if h != word and h.startswith(word)])}


def odd_fabric_findings(chosen: Mapping[str, Sequence[Port]]) -> dict[str, Finding]:
    """A finding by node when its ports speak Ethernet and those of most other nodes InfiniBand, or the reverse: RDMA
    cannot connect them. If as many speak one as the other, Ethernet is the odd one, since the inventory says
    `infiniband:`."""
    ethernet = {name: {port.ethernet for port in ports} for name, ports in chosen.items() if ports}
    if len(ethernet) < 2 or set.intersection(*ethernet.values()):
        return {}
    votes = Counter(kind for kinds in ethernet.values() for kind in kinds)
    usual = votes[True] > votes[False]
    others = [name for name, kinds in ethernet.items() if usual in kinds]
    found = {}
    for name, kinds in ethernet.items():
        if usual in kinds:
            continue
        ports = chosen[name]
        mine, theirs = ("InfiniBand", "Ethernet") if usual else ("Ethernet", "InfiniBand")
        found[name] = finding_for(
            "rdma-peer-unreachable",
            f"{', '.join(port.name for port in ports)} of {name} speak{'s' if len(ports) == 1 else ''} {mine}, the "
            f"ports of {name_list_text(others)} {theirs}: RDMA cannot connect the two",
            tuple(f"{one}: {port.name}: Link layer {port.link_layer}" for one in chosen for port in chosen[one])[:8],
            tuple(others),
            way="link-layer",
            node=name,
            hca=shell_word(ports[0].hca),
            number=shell_word(ports[0].number),
            kind=shell_word(2 if usual else 1),
        )
    return found


Gids = Mapping[str, Mapping[str, str]]
"""A GID table by index: gid, type and ndev. Entries that are all zeros are left out."""


def gid_findings(
    node: Node, ports: Sequence[Port], gids: Mapping[str, Any] | None, index: str | None
) -> Iterator[Finding]:
    """Findings for RoCE ports. An index that NCCL_IB_GID_INDEX sets must be a routable RoCE v2 GID; without one, some
    routable GID must exist. Tables that are not readable, and indexes beyond the GIDs that were read, are not
    judged."""
    index = None if index == "-1" else index  # NCCL's own value for "look for one"
    for port in ports:
        table: Gids | None = (gids or {}).get(port.name)
        if not port.ethernet or table is None or (index and (parse_whole_number(index) or 0) >= MAX_GIDS):
            continue
        shown = tuple(f"GID {n}: {e.get('gid')} ({e.get('type')}, {e.get('ndev')})" for n, e in table.items())[:8]
        good = [n for n, entry in table.items() if is_gid_routable(entry)]
        way = "index" if index else "no-address"
        if index and index not in table:
            says = f"{port.name} of {node.name} has no GID {index}, which NCCL_IB_GID_INDEX asks for"
        elif index and index in table and not is_gid_routable(table[index]):
            asked = "which NCCL_IB_GID_INDEX asks for"
            says = f"GID {index} of {port.name} on {node.name}, {asked}, is not a routable RoCE v2 GID"
        elif not index and not good:
            says = f"{port.name} of {node.name} has no RoCE v2 GID with an address: its interface has none"
        else:
            continue
        one_of = f", or set it to {good[-1]} for this node" if good else ""
        seen = shown or ("its GID table is empty",)
        hca = shell_word(port.hca)
        yield finding_for("roce-wrong-gid-index", says, seen, way=way, one_of=one_of, node=node.name, hca=hca)


def is_gid_routable(entry: Mapping[str, str]) -> bool:
    """Whether the GID is of RoCE v2 and not link-local."""
    return "v2" in (entry.get("type") or "").lower() and not (entry.get("gid") or "fe80").lower().startswith("fe80")


def uneven_port_warnings(chosen: Mapping[str, Sequence[Port]], *, promised: bool) -> dict[str, list[str]]:
    """Warnings by node: different numbers of ports, and different rates. Rates are compared only where the inventory
    promises none; with a promise they were judged already."""
    warnings: dict[str, list[str]] = {name: [] for name in chosen}
    counts = Counter(len(ports) for ports in chosen.values())
    if len(counts) > 1:
        usual = max(counts, key=lambda count: (counts[count], count))
        others = name_list_text(name for name, ports in chosen.items() if len(ports) == usual)
        for name, ports in chosen.items():
            if len(ports) != usual:
                warnings[name].append(
                    f"NCCL would use {count_text(len(ports), 'port')} here "
                    f"({', '.join(p.name for p in ports)}) and {usual} on {others}: the rails do not match, and the "
                    "smaller number sets the pace"
                )
    rates = {(name, port.name): port.rate_gbps for name, ports in chosen.items() for port in ports if port.rate_gbps}
    if not promised and len(set(rates.values())) > 1:
        best = max(rate for rate in rates.values() if rate)
        for (name, port), rate in rates.items():
            if rate and rate < best:
                warnings[name].append(
                    f"{port} runs at {rate:g} Gbit/s, others at {best:g}: the slowest link sets the pace"
                )
    return {name: lines for name, lines in warnings.items() if lines}
