"""Whether the interfaces that NCCL and gloo are set to use exist, are up, and have an address that other nodes
reach."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from runbook.causes.catalogue import finding_for
from runbook.checks.context import Facts
from runbook.files.address import is_ip, is_link_local, is_loopback, normal_spelling
from runbook.launch.ranks import socket_interfaces
from runbook.model.command_quoting import shell_word
from runbook.model.inventory import Inventory, Node
from runbook.model.nccl_devices import is_guest_interface, select_interfaces
from runbook.model.verdict import Finding

if TYPE_CHECKING:
    from runbook.transport.kubernetes_pods import Pod

NO_CARRIER = ("DOWN", "LOWERLAYERDOWN", "NOTPRESENT")
"""States (operstate, RFC 2863) of an interface that carries nothing: it is down itself, or the interface below a VLAN
is, or its device is gone."""


def interface_findings(inventory: Inventory, node: Node, facts: Mapping[str, Any]) -> list[Finding]:
    """Findings for interfaces that NCCL and gloo are set to use and that do not exist here, are down, or have no
    address."""
    settings = socket_interfaces(inventory, node)
    used = "NCCL_SOCKET_IFNAME" if inventory.rendezvous.backend == "nccl" else "GLOO_SOCKET_IFNAME"
    findings: list[Finding] = _loopback_down_findings(node, facts["interfaces"])
    judged: set[str] = set()
    for name, expression in sorted(settings.items(), key=lambda item: item[0] != used):
        finding = None if expression in judged else interface_finding(inventory, node, facts, name, expression)
        judged.add(expression)
        if finding is not None:
            findings.append(finding)
    return findings


def _loopback_down_findings(node: Node, interfaces: Mapping[str, Facts]) -> list[Finding]:
    """A finding when `lo` is down. Packets of a node to an address of its own go over `lo`, whichever interface has the
    address."""
    entry = interfaces.get("lo")
    # An interface that is up may have no state of its own: `lo` reads UNKNOWN.
    if entry is None or entry["state"] != "DOWN" or "UP" in entry["flags"]:
        return []
    says = f"interface lo of {node.name} is down: nothing on {node.name} reaches an address of {node.name} itself"
    return [finding_for("interface-missing", says, (f"{node.name}: lo, state DOWN",), way="down", name="lo")]


def pod_scope_text(pod: Pod) -> str:
    """The machine that a pod is on, and what of that machine is not checked, in words."""
    if pod.host_network:
        return f"pod on {pod.machine}, with its network; its kernel's log not checked"
    return (
        f"pod on {pod.machine}, with a network of its own; packet filters and kernel's log of {pod.machine} not checked"
    )


def separate_network_findings(
    inventory: Inventory, node: Node, facts: Mapping[str, Any], pod: Pod | None = None
) -> list[Finding]:
    """A finding for a container or pod with a network of its own, when the address that other nodes dial is not in that
    network."""
    if not _lacks_dialled_address(inventory, facts):
        return []
    if pod:
        return [] if _is_address_of(node, pod) else [_pod_address_finding(node, pod)]
    if not facts.get("outside"):
        return []
    own = _addresses_text(facts)
    runtime = node.container.runtime if node.container else ""
    return [
        finding_for(
            "container-bridge-network",
            f"{node.place} has a network of its own ({own or 'without any address'}): {node.address}, which the other "
            "nodes dial, is the host's, and leads to nothing in it",
            (f"in the container: {own or 'no address but loopback'}", f"on the host: {node.address}"),
            way="runtime" if runtime in ("docker", "podman") else "container",
            runtime=runtime,
            node=node.name,
        )
    ]


def entered_pod_findings(inventory: Inventory, node: Node, facts: Mapping[str, Any], pod: Pod | None) -> list[Finding]:
    """A finding when what was entered does not have the address that the API server gave for the pod. As long as a pod
    that was deleted by force still ends, kubectl may lead into it rather than into the new one of its name; and the pod
    may have been replaced since the API server was asked."""
    if pod is None or not _lacks_dialled_address(inventory, facts) or not _is_address_of(node, pod):
        return []
    from runbook.transport.kubernetes_pods import kubectl_command  # loaded for pods alone

    ask = ("get", "events", "--field-selector", f"involvedObject.name={pod.name}")
    return [
        finding_for(
            "kubernetes-pod-restarted",
            f"kubectl led into another pod than the one that the API server listed as {pod.name} ({pod.address}): an "
            "earlier one of that name, which has not ended yet, or a newer one",
            (f"in it: {_addresses_text(facts) or 'no address but loopback'}", pod.says),
            way="another",
            look=kubectl_command(node.kubernetes, *ask),
        )
    ]


def _lacks_dialled_address(inventory: Inventory, facts: Mapping[str, Any]) -> bool:
    """Whether there are peers, and the address that they dial is none of those where the facts were taken."""
    return len(inventory.nodes) > 1 and facts.get("own") is False


def _is_address_of(node: Node, pod: Pod) -> bool:
    """Whether peers dial the pod's own address, as the API server gave it."""
    return normal_spelling(node.address) == normal_spelling(pod.address)


def _addresses_text(facts: Mapping[str, Any]) -> str:
    """The interfaces and addresses that others could dial, as `eth0 10.0.0.7`."""
    return " ".join(
        f"{name} {address}"
        for name, entry in facts["interfaces"].items()
        for address in entry["addresses"]
        if not is_loopback(address) and not is_link_local(address)
    )


def _pod_address_finding(node: Node, pod: Pod) -> Finding:
    """The finding for a pod with a network of its own that does not have the node's address."""
    evidence = (
        f"pod {pod.namespace}/{pod.name}: podIP {pod.address}, hostIP {pod.host_address}, machine {pod.machine}",
    )
    if node.address == pod.host_address:
        says = (
            f"the pod {pod.name} has a network of its own ({pod.address}): {node.address}, which the other nodes dial, "
            "is its machine's, and leads to nothing in it"
        )
        return finding_for("container-bridge-network", says, evidence, way="pod", address=pod.address, node=node.name)
    says = (
        f"{node.address}, which the other nodes dial, is not an address of the pod {pod.name} ({pod.address}): "
        "a pod that is started anew gets another one"
    )
    return finding_for("interface-wrong", says, evidence, way="pod", address=pod.address, node=node.name)


def interface_finding(
    inventory: Inventory, node: Node, facts: Mapping[str, Any], variable: str, expression: str
) -> Finding | None:
    """The finding for one setting of interfaces, or None. `variable` is where it is set, `expression` its value: it
    names no interface that exists, one that others cannot reach, or one that cannot be used."""
    interfaces: Mapping[str, Facts] = facts["interfaces"]
    listed = "; ".join(f"{name} {' '.join(entry['addresses']) or '(no address)'}" for name, entry in interfaces.items())
    evidence = (f"interfaces of {node.name}: {listed}",)
    address = normal_spelling(node.address)
    owner = next((name for name, entry in interfaces.items() if address in entry["addresses"]), None)
    suggestion = owner or next(
        (
            name
            for name, entry in interfaces.items()
            if name != "lo" and not is_guest_interface(name) and any(not is_link_local(a) for a in entry["addresses"])
        ),
        "the right one",
    )
    chosen = select_interfaces(expression, interfaces)
    if variable == "GLOO_SOCKET_IFNAME" and variable_is_read(inventory, variable):
        words = expression.split(",")  # gloo knows no prefixes, `=` or `^`, and opens every name that is listed
        chosen = words if all(word in interfaces for word in words) else []
    cause = "interface-wrong" if chosen else "interface-missing"
    several = len(inventory.nodes) > 1 and not inventory.one_machine
    # Without iproute2 the flags of interfaces are unknown, and so are their IPv6 addresses.
    blind = (":" in address or not is_ip(address)) and not any(entry["flags"] for entry in interfaces.values())
    usable = [
        name
        for name in chosen
        if interfaces[name]["state"] not in NO_CARRIER
        and (blind or name == owner or any(not is_link_local(a) for a in interfaces[name]["addresses"]))
    ]
    if not chosen:
        says = f"{node.name} has no interface {expression}" + (f"; {owner} carries {node.address}" if owner else "")
    elif several and all(is_guest_interface(name) and name != owner for name in chosen):
        says = (
            f"{node.name} is set to use {chosen[0]}, which exists for the guests of that machine only: no other "
            "node can reach it"
        )
    elif not usable:
        return unusable_interface_finding(node, chosen[0], interfaces[chosen[0]], owner, evidence)
    elif several and all(_is_loopback_interface(interfaces[name]) for name in usable):
        says = f"{node.name} is set to use {usable[0]}, its loopback: no other node can reach it there"
    else:
        return None
    return finding_for(cause, says, evidence, way="named", node=node.name, name=suggestion)


def _is_loopback_interface(entry: Facts) -> bool:
    """Whether an interface is loopback: by its flags, or by its addresses where its flags are unknown."""
    return "LOOPBACK" in entry["flags"] or (bool(entry["addresses"]) and all(map(is_loopback, entry["addresses"])))


def unusable_interface_finding(
    node: Node, name: str, entry: Facts, owner: str | None, evidence: tuple[str, ...]
) -> Finding:
    """The finding for an interface that exists but cannot be used: it is down, has no carrier, or has no address."""
    says = f"interface {name} of {node.name} "
    if entry["state"] in NO_CARRIER and "UP" in entry["flags"]:
        says += "has no carrier: it is switched on, and no signal comes from the other end"
        evidence = (f"{name}: NO-CARRIER, state {entry['state']}", *evidence)
        return finding_for("interface-missing", says, evidence, way="no-carrier", name=shell_word(name), node=node.name)
    if entry["state"] in NO_CARRIER:
        return finding_for("interface-missing", f"{says}is down", evidence, way="down", name=shell_word(name))
    address = node.address if is_ip(node.address) and owner is None else "ADDRESS"
    length = 64 if ":" in address else 24
    if entry.get("ipv6_off") and ":" in address:
        setting = f"net.ipv6.conf.{name.replace('.', '/')}.disable_ipv6"  # as sysctl spells `eth0.100`
        return finding_for(
            "interface-missing",
            f"{says}has no address that others can reach: IPv6 is switched off there",
            (f"{node.name}: {setting} = 1", *evidence),
            way="family-off",
            setting=shell_word(f"{setting}=0"),
            address=shell_word(f"{address}/{length}"),
            name=shell_word(name),
        )
    return finding_for(
        "interface-missing",
        f"{says}has no address that others can reach",
        evidence,
        way="no-address",
        address=shell_word(address),
        length=shell_word(length),
        name=shell_word(name),
        such_as=f", such as {owner}, which carries {node.address}" if owner else "",
    )


def variable_is_read(inventory: Inventory, variable: str) -> bool:
    """Whether the job's backend reads this variable: gloo reads GLOO_…, NCCL the others."""
    return variable.startswith("GLOO") == (inventory.rendezvous.backend == "gloo")
