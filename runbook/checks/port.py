"""port: the rendezvous address is the master's own, and the ports that the job will bind are free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from runbook.causes.catalogue import finding_for
from runbook.checks.base import Check
from runbook.checks.context import Context, login_limit_finding
from runbook.checks.network.ephemeral_ports import few_ports_warning, port_range
from runbook.files.address import is_loopback, preferred_address
from runbook.launch.ranks import dialled_address
from runbook.model.command_quoting import shell_word
from runbook.model.inventory import Inventory, Node
from runbook.model.units import count_text, shortened_line
from runbook.model.verdict import Finding, Outcome
from runbook.transport.node_answers import PORT_PROGRAM

MAX_BOUND_PORTS = 256
"""The most ports of `network.ports` that the check binds on a node."""


@dataclass(frozen=True)
class PortCheck(Check):
    id: ClassVar[str] = "port"
    timeout_s: ClassVar[float] = 30.0
    looks_at_rendezvous: ClassVar[bool] = True

    def run(self, at: Context) -> list[Outcome]:
        master = at.inventory.rendezvous.master
        address = dialled_address(at.inventory.rendezvous, len(at.nodes))
        # Nodes that are one machine share its ports. Only the first of them binds: otherwise each would find the
        # other's program on the ports.
        first_of: dict[str, str] = {}
        for node in sorted(at.nodes, key=lambda node: node.name != master):
            first_of.setdefault(at.machine(node.name), node.name)
        promised = promised_ports(at.inventory)

        def arguments(node: Node) -> dict[str, Any]:
            ports: list[int] = []
            if first_of[at.machine(node.name)] == node.name:
                ports = sorted({*promised, *([at.inventory.rendezvous.port] if node.name == master else [])})
            if node.name == master:
                return {"address": address, "speaks": address, "ports": ports}
            return {"address": None, "speaks": at.data_address(node), "ports": ports}

        said = at.ask(PORT_PROGRAM, arguments, timeout_s=15.0)
        outcomes = []
        for node in at.nodes:
            answer = said[node.name]
            if isinstance(answer, Outcome):
                outcomes.append(answer)
            elif not answer["ports"]:
                owner = first_of[at.machine(node.name)]
                if owner == node.name:
                    proof = "the inventory promises no ports here, and the rendezvous port is the master's"
                else:
                    proof = f"the same machine as {owner}, which was checked"
                outcomes.append(Outcome.passed(node.name, proof))
            else:
                outcomes.append(port_outcome(at, node, answer, address))
        return outcomes


def promised_ports(inventory: Inventory, most: int = MAX_BOUND_PORTS) -> list[int]:
    """The ports of `network.ports`, each once. Of more than `most` ports, an even sample that has both ends of every
    range (unless there are very many ranges): a firewall rule rarely has holes of one port."""
    ranges = inventory.network.ports
    ports = sorted({port for low, high in ranges for port in range(low, high + 1)})
    if len(ports) <= most:
        return ports
    ends = {end for span in ranges for end in span}
    if 2 * len(ends) > most:
        ends = {ports[0], ports[-1]}
    count = most - len(ends) + 2  # the first and the last port are counted in both
    step = (len(ports) - 1) / (count - 1)
    return sorted(ends | {ports[round(index * step)] for index in range(count)})


def port_outcome(at: Context, node: Node, answer: Mapping[str, Any], address: str) -> Outcome:
    """The outcome for a node, from what it found when it bound the ports."""
    findings: list[Finding] = []
    where = answer["address"]
    port = at.inventory.rendezvous.port
    if where is not None and not where["local"]:
        findings.append(address_not_local_finding(at, node, where, address))
    findings += _held_port_findings(node, answer, port)
    if findings:
        return Outcome.failed(node.name, *findings)
    warnings = few_ports_warning(at.facts(node.name))
    handed_out = port_range(at.facts(node.name))
    if where is not None and handed_out and handed_out[0] <= port <= handed_out[1]:
        warnings.append(
            f"port {port} lies in the range the kernel hands out ({at.facts(node.name)['port_range']}): another "
            "program may take it at any time"
        )
    count = len(answer["ports"])
    proof = f"{count_text(count, 'port')} free to bind"
    if where is not None:
        proof = f"{address} is on this node, rendezvous port {port} is free" + (f", {proof}" if count > 1 else "")
    return Outcome.passed(node.name, proof, warnings=warnings)


def ask_port_holders(
    at: Context, ports: Mapping[str, Sequence[int]], rendezvous_port: int
) -> dict[str, list[Finding] | Outcome]:
    """By node, findings for the processes that hold ports of these; the outcome of a node that could not be asked."""
    nodes = [node for node in at.inventory.nodes if ports.get(node.name)]
    if not nodes:
        return {}

    def arguments(node: Node) -> dict[str, Any]:
        return {"address": None, "speaks": at.data_address(node), "ports": list(ports[node.name])}

    answers = at.ask(PORT_PROGRAM, arguments, timeout_s=8.0, nodes=nodes)
    told: dict[str, list[Finding] | Outcome] = {}
    for node in nodes:
        answer = answers[node.name]
        told[node.name] = answer if isinstance(answer, Outcome) else _held_port_findings(node, answer, rendezvous_port)
    return told


def _held_port_findings(node: Node, answer: Mapping[str, Any], port: int) -> list[Finding]:
    """One finding for each process that holds ports. `port` is the rendezvous port: where a process holds it among
    others, the finding names that one."""
    held: dict[object, list[int]] = {}
    for number, found in answer["ports"].items():
        if not found["free"]:
            holder = found.get("holder") or {}
            held.setdefault((found["errno"], holder.get("pid"), holder.get("uid")), []).append(int(number))
    spare = next((number for number, found in answer["ports"].items() if found["free"]), "…")
    findings = []
    for numbers in held.values():
        numbers.sort(key=lambda number: number != port)
        first = answer["ports"][str(numbers[0])]
        limit = answer.get("unprivileged")
        findings.append(
            taken_port_finding(node, numbers, first, rendezvous=numbers[0] == port, unprivileged=limit, spare=spare)
        )
    return findings


def address_not_local_finding(at: Context, node: Node, where: Mapping[str, Any], address: str) -> Finding:
    """The finding for a rendezvous address that is not on the master: it does not resolve there, or belongs to another
    node or to none."""
    interfaces = at.facts(node.name).get("interfaces", {})
    own = [a for name, entry in interfaces.items() if name != "lo" for a in entry["addresses"]]
    if where["resolved"] is None:
        says = f"{node.name} cannot resolve its own rendezvous address {address}"
        seen = (str(where.get("error")),)
        own_address = own[0] if own else "…"
        return finding_for("name-unresolvable", says, seen, way="master", address=address, own_address=own_address)
    others = [
        other.name
        for other in at.inventory.nodes
        if other.name != node.name and set(where["resolved"]) & set(at.own_addresses(other.name))
    ]
    belongs = f"it belongs to {', '.join(others)}" if others else "it is on no interface there"
    usable = preferred_address([a for a in own if not is_loopback(a)] or own or ["…"])
    resolved = ", ".join(where["resolved"])
    return finding_for(
        "master-address-not-local",
        f"the rendezvous address {address} is not an address of the master {node.name}: {belongs}",
        (
            *((f"{address} resolves to {resolved} on {node.name}",) if resolved != address else ()),
            f"addresses of {node.name}: {', '.join(own) or 'none'}",
        ),
        tuple(others),
        way="owner" if others else "own",
        owner=next(iter(others), ""),
        usable=usable,
    )


def taken_port_finding(
    node: Node,
    ports: list[int],
    found: Mapping[str, Any],
    *,
    rendezvous: bool,
    unprivileged: int | None = None,
    spare: str = "…",
) -> Finding:
    """The finding for all the ports that one process holds, or that the kernel refuses for one reason; it names the
    first of them."""
    port = ports[0]
    what = "the rendezvous port" if rendezvous else "the port"
    others = f" (and {len(ports) - 1} more ports)" if len(ports) > 1 else ""
    other = f"another port: `rendezvous: {{port: {spare}}}`" if rendezvous else "other `network: {ports: …}`"
    errno, first = str(found["errno"]), 1024 if unprivileged is None else unprivileged
    evidence: tuple[str, ...] = (f"bind({port}): {errno}",)
    if errno != "EADDRINUSE" and not (errno == "EACCES" and port < first):
        return unbindable_port_finding(node, f"{what} {port}{others}", errno, evidence, other)
    if errno == "EACCES":
        says = f"the login user may not bind {what} {port} of {node.name}: ports below {first} are root's"
        seen = (*evidence, f"net.ipv4.ip_unprivileged_port_start = {first}")
        return finding_for("port-privileged-or-reserved", says, seen, first=first)
    holder = found.get("holder") or {}
    # A pid that was seen in a container means another process on its host.
    entered = "" if found.get("on_host") else node.entry_typed
    kill = f"{'' if holder.get('ours', True) else 'sudo '}{entered}kill {shell_word(holder.get('pid'))}"
    user = holder.get("user") or (f"uid {holder['uid']}" if holder.get("uid") is not None else "an unknown user")
    if holder.get("listens"):
        evidence += (f"it listens on {holder['listens']}",)
        if is_loopback(holder["listens"].rpartition(":")[0].strip("[]")):
            evidence += ("a rank binds all addresses at once, so a listener on loopback alone is in its way too",)
    elif holder.get("peer"):
        evidence += (f"it is the near end of a connection to {holder['peer']}",)
    if holder.get("pid"):
        shown = f"`sudo ps -fp {shell_word(holder['pid'])}` there shows which"  # /proc may be mounted with hidepid
        who = f"process {holder['pid']} of {user}: {shortened_line(holder['command'] or shown)}"
        if who.endswith("…"):
            evidence += (f"process {holder['pid']}: {holder['command']}",)
        way = "process"
        if holder.get("run_id") and holder.get("left_behind"):
            who += f" (left behind by runbook's run {holder['run_id']}, whose controller is gone)"
            way = "left-behind"
        elif holder.get("run_id"):
            who += f" (it belongs to runbook's run {holder['run_id']}, which still goes on)"
            way = "other-run"
    elif not (holder.get("listens") or holder.get("peer")):
        who = "a process that has bound it and neither listens nor connects, which no table of the kernel shows"
        way = "only-bound"
    else:
        who = f"a process of {user} that only root can see"
        way = "hidden"
    says = f"{what} {port}{others} of {node.name} is taken by {who}"
    run, name = shell_word(holder.get("run_id")), node.name
    return finding_for("port-in-use", says, evidence, way=way, node=name, port=port, other=other, kill=kill, run=run)


def unbindable_port_finding(node: Node, what: str, errno: str, evidence: tuple[str, ...], other: str) -> Finding:
    """The finding for a port that no process holds and that cannot be bound all the same."""
    if met := login_limit_finding(node.name, "port", errno, ""):
        return met
    says = (
        f"the login user may not bind {what} of {node.name}: its kernel refuses that with {errno}, as SELinux and "
        "other security modules do"
    )
    return finding_for("port-privileged-or-reserved", says, evidence, way="refused", node=node.name, other=other)
