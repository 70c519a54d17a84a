"""A node's network adapters by the node's own account: their rates, and what limits them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from runbook.causes.catalogue import remedy_from_page
from runbook.checks.context import Context, Facts
from runbook.checks.ibstat import ports_and_source, select_ports
from runbook.files.address import normal_spelling
from runbook.launch.ranks import hca_expression, network_environment, socket_interface
from runbook.model.command_quoting import shell_word
from runbook.model.grouping import values_by_key
from runbook.model.inventory import Node
from runbook.model.nccl_devices import select_interfaces
from runbook.model.verdict import Outcome
from runbook.parsers.infiniband import Port
from runbook.transport import node_answers
from runbook.transport.node_answers import AdapterFacts, IbstatAnswer

TC_RATE_UNITS = {"": 1e-9, "K": 1e-6, "M": 1e-3, "G": 1.0, "T": 1e3}
"""Gbit/s by the unit that `tc` prints."""
TC_RATE = r"(\d+(?:\.\d+)?)([KMGT]?)bit"
"""A rate as `tc` prints it: a number, and the prefix of its unit."""

MIN_OUTRUN_FACTOR = 1.5
"""What carries more than this many times the rate of a limit is not held back by it."""

PartOf = Literal["", "sent", "received"]
"""The part of a node's traffic that a limit may be about; "": all of it."""


@dataclass(frozen=True, slots=True)
class NodeAdapters:
    """The adapters of one node. `interfaces`: what `node/adapters.py` says of the interfaces that TCP uses. `ports`:
    the HCA ports that NCCL uses. `inner`: the loopback interface, which carries TCP between ranks of the node."""

    interfaces: Mapping[str, AdapterFacts]
    ports: tuple[Port, ...] = ()
    inner: Mapping[str, AdapterFacts] = field(default_factory=dict)

    @property
    def gbps(self) -> float | None:
        """Gbit/s of the slowest interface; None when the kernel does not know the rate of every interface."""
        rates = [facts["mbit"] for facts in self.interfaces.values()]
        known = [rate for rate in rates if rate]
        return min(known) / 1000 if known and len(known) == len(rates) else None


@dataclass(frozen=True, slots=True)
class SlowReason:
    """Why a node is slow, by its own account. `gbytes`: the rate that this limits it to, in GB/s; None when it sets no
    rate. `part_of`: it holds for a class or a filter of what is `sent` or `received`, perhaps for other traffic than
    the job's."""

    says: str
    command: str
    evidence: str
    gbytes: float | None
    part_of: PartOf = ""

    def outrun(self, sent: float, received: float) -> bool:
        """Whether the node's fastest links, in GB/s, show that the limit is not for this traffic. They show nothing
        about a limit of all traffic: it may allow bursts."""
        carried = {"sent": sent, "received": received}.get(self.part_of, 0.0)
        return self.gbytes is not None and carried > MIN_OUTRUN_FACTOR * self.gbytes


def ask_adapters(at: Context) -> dict[str, NodeAdapters | Outcome]:
    """The adapters of every node by name, or the outcome of a node that could not be asked."""
    adapters = at.ask(
        node_answers.ADAPTERS_PROGRAM, lambda node: {"interfaces": [*job_interfaces(at, node), "lo"]}, timeout_s=6.0
    )
    rdma = at.inventory.rendezvous.backend == "nccl" and at.ask(
        node_answers.IBSTAT_PROGRAM, lambda node: {}, timeout_s=10.0
    )
    found: dict[str, NodeAdapters | Outcome] = {}
    for node in at.nodes:
        answer, ib = adapters[node.name], rdma[node.name] if rdma else None
        if isinstance(answer, Outcome) or isinstance(ib, Outcome):
            found[node.name] = answer if isinstance(answer, Outcome) else ib  # type: ignore[assignment]  # one of them
            continue
        outer = {name: facts for name, facts in answer["interfaces"].items() if name != "lo"}
        inner = {name: facts for name, facts in answer["interfaces"].items() if name == "lo"}
        found[node.name] = NodeAdapters(outer, tuple(active_rdma_ports(at, node, ib)) if ib else (), inner)
    return found


def job_interfaces(at: Context, node: Node) -> list[str]:
    """The interfaces that carry the job's TCP: those that the inventory names, else the interface with the node's
    address."""
    known: Mapping[str, Facts] = at.facts(node.name).get("interfaces", {})
    expression = socket_interface(at.inventory, node)
    if expression and (chosen := select_interfaces(expression, known)):
        return chosen
    address = normal_spelling(at.data_address(node))
    return [name for name, facts in known.items() if address in facts["addresses"]]


def active_rdma_ports(at: Context, node: Node, answer: IbstatAnswer) -> list[Port]:
    """The active ports that NCCL would use; none if it is set to use no port, or if there are none."""
    if network_environment(at.inventory, node).get("NCCL_IB_DISABLE") == "1":
        return []
    chosen = select_ports(hca_expression(at.inventory, node), ports_and_source(answer)[0])
    return [port for port in chosen if port.state == "active"]


def slow_adapter_reasons(wires: NodeAdapters, others: Sequence[NodeAdapters]) -> list[SlowReason]:
    """What slows down the node's own adapters, the slowest first. `others` are the adapters of the other nodes."""
    found = slow_port_reasons(wires, others) if wires.ports else slow_interface_reasons(wires, others)
    return sorted(found, key=lambda reason: (reason.gbytes is None, reason.gbytes or 0.0))


def slow_loopback_reasons(wires: NodeAdapters) -> list[SlowReason]:
    """What slows down TCP inside the node."""
    return [reason for name, facts in wires.inner.items() for reason in tc_limit_reasons(name, facts["tc"] or {})]


def slow_interface_reasons(wires: NodeAdapters, others: Sequence[NodeAdapters]) -> list[SlowReason]:
    """What slows down the interfaces that TCP uses: limits of `tc`, half duplex, or a lower rate than on other
    nodes."""
    found: list[SlowReason] = []
    usual = max((other.gbps for other in others if other.gbps), default=None)
    for name, facts in wires.interfaces.items():
        found += tc_limit_reasons(name, facts["tc"] or {})
        mbit, metal = facts["mbit"], facts["hardware"] or [name]  # a bond has several devices
        renegotiate = {
            device: remedy_from_page("node-slow", "renegotiate", metal=shell_word(device)) for device in metal
        }
        for device, duplex in zip(metal, facts["duplex"], strict=False):
            if duplex == "half":
                proof = f"/sys/class/net/{device}/duplex: half"
                found.append(SlowReason(f"{device} runs at half duplex", renegotiate[device], proof, None))
        if mbit and usual and mbit / 1000 < usual:
            says = f"{'/'.join(metal)} runs at {mbit:g} Mbit/s, where other nodes have {usual * 1000:g}"
            proof = f"{', '.join(f'/sys/class/net/{device}/speed' for device in metal)}: {mbit}"
            found.append(SlowReason(says, " && ".join(renegotiate.values()), proof, mbit / 8000))
    return found


def slow_port_reasons(wires: NodeAdapters, others: Sequence[NodeAdapters]) -> list[SlowReason]:
    """HCA ports that came up slower than ports of the same name on other nodes; or slower than the fastest of all,
    where no other node has a port of that name. A node's ports may be of several kinds."""
    rates = [(port.name, port.rate_gbps) for each in others for port in each.ports if port.rate_gbps]
    alike = {name: max(those) for name, those in values_by_key(rates).items()}
    fastest = max([*alike.values(), *(port.rate_gbps or 0.0 for port in wires.ports)], default=0.0)
    return [
        SlowReason(
            f"{port.name} runs at {port.rate_gbps:g} Gbit/s, where others have {usual:g}",
            remedy_from_page(
                "node-slow",
                "port-renegotiate" if port.ethernet else "port-reset",
                hca=shell_word(port.hca),
                number=port.number,
            ),
            f"{port.name}: Rate {port.rate_gbps:g}",
            port.rate_gbps / 8,
        )
        for port in wires.ports
        if port.rate_gbps and port.rate_gbps < (usual := alike.get(port.name, fastest))
    ]


def tc_limit_reasons(name: str, tc: Mapping[str, str]) -> list[SlowReason]:
    """Limits that `tc` sets: on what leaves (tbf, htb, hfsc, cake, netem, fq) and on what arrives."""
    found: list[SlowReason] = []

    def limit(rate: float | None, line: str, part_of: PartOf = "", where: str = "root") -> bool:
        if rate is not None:
            what = "what arrives at " if part_of == "received" else ""
            says = f"{what}{name} is limited to {bit_rate_text(rate)} by `tc`"
            remedy = remedy_from_page("node-slow", "shaper", name=shell_word(name), root_or_ingress=where)
            found.append(SlowReason(says, remedy, line.strip(), rate / 8, part_of))
        return rate is not None

    for line in tc.get("qdisc", "").splitlines():
        kind = line.partition("qdisc ")[2].partition(" ")[0]
        wanted = {"tbf": "rate", "cake": "bandwidth", "netem": "rate", "fq": "maxrate"}.get(kind)
        part_of: PartOf = "sent" if " parent " in line else ""
        limited = limit(tc_rate_after(wanted, line) if wanted else None, line, part_of)
        if not limited and kind == "netem" and re.search(r"\b(delay|loss|reorder|corrupt|duplicate)\b", line):
            remedy = remedy_from_page("node-slow", "shaper", name=shell_word(name), root_or_ingress="root")
            found.append(SlowReason(f"{name} is disturbed by `tc`: {line.strip()}", remedy, line.strip(), None))
    for line in tc.get("class", "").splitlines():
        if re.search(r"class (htb|hfsc) ", line):
            limit(tc_rate_after("ceil", line) or tc_rate_after("ul m1 0bit d 0us m2", line), line, "sent")
    ingress = tc.get("ingress", "")
    if "police" in ingress:
        where = "clsact" if "clsact" in tc.get("qdisc", "") else "ingress"
        line = next((line for line in ingress.splitlines() if "rate" in line), "")
        limit(tc_rate_after("rate", ingress), line, "received", where)
    return found


def tc_rate_after(word: str, text: str) -> float | None:
    """The Gbit/s after this word in the output of `tc`, or None."""
    match = re.search(rf"\b{word} {TC_RATE}", text)
    return float(match[1]) * TC_RATE_UNITS[match[2]] if match else None


def bit_rate_text(gbps: float) -> str:
    """A rate in words; Gbit/s in."""
    return f"{gbps:g} Gbit/s" if gbps >= 1 else f"{gbps * 1000:g} Mbit/s"


def interface_error_lines(wires: NodeAdapters) -> list[str]:
    """Errors that the interfaces counted since boot, a line for each interface that has any."""
    return [
        f"{name}: {', '.join(f'{key} {count}' for key, count in facts['counters'].items() if count)}"
        for name, facts in wires.interfaces.items()
        if any(facts["counters"].values())
    ]
