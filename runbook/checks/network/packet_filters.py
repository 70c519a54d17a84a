"""Rules that forbid a connection: packet filters of the nodes where it failed, and NetworkPolicies of a cluster."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from runbook.causes.catalogue import finding_for
from runbook.checks.context import Context
from runbook.checks.network.dial import Dial, numeric_address, numeric_node_address, ports_text
from runbook.firewall.collected_rules import Evidence
from runbook.model.errors import Unreachable
from runbook.model.inventory import Node
from runbook.model.verdict import Finding
from runbook.transport.remote_program import ProgramNotStarted

if TYPE_CHECKING:
    from runbook.firewall.network_policy import Forbids
    from runbook.transport.kubernetes_pods import Pod

ANSWER_OVERHEAD_S = 1.5
"""Seconds for the start of the program on a node and for the way of its answer."""

UNASKED_NODE_ERRORS = (Unreachable, ProgramNotStarted, ValueError, TimeoutError)
"""Errors of a node that could not be asked."""


def rules_of(
    at: Context,
    names: Sequence[str],
    peers: Mapping[str, Sequence[str]],
    *,
    timeout_s: float = 12.0,
    routes: bool = False,
) -> dict[str, Evidence | None]:
    """The firewall rules of these nodes by name, asked in parallel; None for a node that could not be asked in time.
    With `routes` also routes to their peers that refuse nothing.

    A busy node sends what it has read shortly before the time is up: the kernel's rules are there long before the front
    ends (Python programs, all of them) have listed theirs."""
    asked = {
        "seconds": round(max(1.0, min(6.0, timeout_s - ANSWER_OVERHEAD_S)), 1),
        **({"routes": True} if routes else {}),
    }

    def one(node: Node) -> Evidence | None:
        asking = {"peers": list(peers.get(node.name, ())), **asked}
        program = at.session(node).program("firewall_rules", asking, timeout_s=8.0)
        answer = program.wait(min(10.0, timeout_s))
        return Evidence.of(answer.message) if answer.message else None

    evidence: dict[str, Evidence | None] = dict.fromkeys(names)
    for name, found in at.each(one, at.reached(names), timeout_s=timeout_s).items():
        if isinstance(found, BaseException) and not isinstance(found, UNASKED_NODE_ERRORS):
            raise found
        evidence[name] = found if isinstance(found, Evidence) else None
    return evidence


def peer_addresses(at: Context, dials: Iterable[Dial]) -> dict[str, list[str]]:
    """By node, the addresses of its peers in these dials."""
    addresses = {node.name: numeric_node_address(at, node.name) for node in at.nodes}
    found: dict[str, set[str]] = defaultdict(set)
    for dial in dials:
        found[dial.source].add(addresses[dial.destination])
        found[dial.source].add(dial.remote or numeric_address(at, dial.address))
        found[dial.destination].add(dial.local or addresses[dial.source])
    return {name: sorted(listed) for name, listed in found.items()}


UNEXPLAINED_PODS_EVIDENCE = (
    "a NetworkPolicy may be what drops it: `kubectl get networkpolicies --namespace {namespace}`; packet filters of "
    "the machines below the pods cannot be seen from here"
)
"""The line of evidence for dials between pods that nothing explains."""


def network_policy_finding(at: Context, dials: Sequence[Dial], seen: tuple[str, ...]) -> tuple[str, Finding] | None:
    """The guilty pod's node and the finding, when NetworkPolicies allow none of these dials between two pods; None when
    that is not known."""
    first = dials[0]
    source, destination = at.run.site.pod(first.source), at.run.site.pod(first.destination)
    if source is None or destination is None or source.host_network or destination.host_network:
        return None
    found = [_forbidding_policies(at, source, destination, dial) for dial in dials]
    forbids = found[0]
    if forbids is None or any(one is None or one.egress != forbids.egress for one in found):
        return None
    guilty, other = (first.source, first.destination) if forbids.egress else (first.destination, first.source)
    pod, way = (source, "dial") if forbids.egress else (destination, "be dialled by")
    several = len(forbids.names) > 1
    label = next(
        (f"{key}: {value}" for key, value in sorted(source.labels.items()) if destination.labels.get(key) == value), ""
    )
    rule = f"{'to' if forbids.egress else 'from'}: [{{podSelector: {{matchLabels: {{{label or 'LABEL: VALUE'}}}}}}}]"
    return guilty, finding_for(
        "kubernetes-network-policy",
        f"the pod {pod.name} may not {way} {other} on {ports_text(list(dials))}: the "
        f"NetworkPolic{'ies' if several else 'y'} {', '.join(forbids.names)} select{'' if several else 's'} it, and "
        f"allow{'' if several else 's'} no such connection",
        (*seen, *(f"NetworkPolicy {pod.namespace}/{name}" for name in forbids.names)),
        (other,),
        direction="egress" if forbids.egress else "ingress",
        rule=rule,
        namespace=pod.namespace,
    )


def _forbidding_policies(at: Context, source: Pod, destination: Pod, dial: Dial) -> Forbids | None:
    """The policies that forbid this dial, and the direction; None when there are none, or the policies cannot be
    read."""
    from runbook.firewall.network_policy import (  # only pods have policies
        End,
        forbidding_policies,
        parse_network_policies,
    )

    near, far = (End(pod.namespace, pod.address, pod.labels) for pod in (source, destination))
    policies = []
    for name in {source.namespace: dial.source, destination.namespace: dial.destination}.values():
        node = next(node for node in at.nodes if node.name == name)
        try:
            policies += parse_network_policies(at.run.site.pods.policies(node))
        except (Unreachable, ValueError):
            return None
    try:
        return forbidding_policies(policies, near, far, dial.port)
    except ValueError:
        return None


def unexplained_pods_evidence(at: Context, dials: Sequence[Dial]) -> tuple[str, ...]:
    """Lines of evidence: a note for dials between pods that nothing else explains."""
    pod = next((p for name in (dials[0].destination, dials[0].source) if (p := at.run.site.pod(name))), None)
    return () if pod is None or pod.host_network else (UNEXPLAINED_PODS_EVIDENCE.format(namespace=pod.namespace),)
