"""NetworkPolicies of Kubernetes: which of them forbid one pod to dial another. Pure.

A pod that no policy selects may dial and be dialled. A pod that policies select may do only what a rule of one of these
policies allows.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PolicyObject = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class End:
    """A pod at one end of a connection, as policies see it; `labels` are the pod's."""

    namespace: str
    address: str
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Forbids:
    """The policies that forbid a connection: `names` select a pod in one direction, and none of them allows it.
    `egress`: they select the pod that dials; else, the pod that is dialled."""

    egress: bool
    names: tuple[str, ...]


def parse_network_policies(text: str) -> list[PolicyObject]:
    """The policies in `kubectl get networkpolicies -o json`. Raises ValueError for other text."""
    try:
        return list(json.loads(text)["items"])
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"no list of policies: {error}") from None


def forbidding_policies(policies: Sequence[PolicyObject], source: End, destination: End, port: int) -> Forbids | None:
    """The policies that certainly forbid TCP from `source` to this port of `destination`; None if none do. Raises
    ValueError for a policy that is not understood."""
    try:
        for egress, pod, peer in ((True, source, destination), (False, destination, source)):
            kind = "Egress" if egress else "Ingress"
            mine = [one for one in policies if kind in _policy_directions(one["spec"]) and _selects_pod(one, pod)]
            rules = [rule for one in mine for rule in one["spec"].get(kind.lower()) or ()]
            if mine and not any(
                _allows_connection(rule, "to" if egress else "from", pod, peer, port) for rule in rules
            ):
                return Forbids(egress, tuple(sorted(one["metadata"]["name"] for one in mine)))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a NetworkPolicy as it is known: {error!r}") from None
    return None


def _policy_directions(spec: PolicyObject) -> Sequence[str]:
    """The directions, `Ingress` or `Egress`, that a policy is about."""
    return spec.get("policyTypes") or (["Ingress", "Egress"] if "egress" in spec else ["Ingress"])


def _selects_pod(policy: PolicyObject, pod: End) -> bool:
    return policy["metadata"]["namespace"] == pod.namespace and matches_labels(
        policy["spec"].get("podSelector") or {}, pod.labels
    )


def _allows_connection(rule: PolicyObject, peers: str, pod: End, peer: End, port: int) -> bool:
    """Whether a rule allows a connection between `pod`, which its policy selects, and `peer`; `peers` is the rule's key
    for peers, `to` or `from`. An undecided rule counts as allowing: no policy is accused on a guess."""
    listed, ports = rule.get(peers) or (), rule.get("ports") or ()
    return (not listed or any(_takes_peer(one, pod, peer) for one in listed)) and (
        not ports or any(_selects_port(one, port) for one in ports)
    )


def _takes_peer(one: PolicyObject, pod: End, peer: End) -> bool:
    """Whether an entry of a rule's peers takes `peer`; `pod` is the pod that the policy selects."""
    if block := one.get("ipBlock"):
        address = ipaddress.ip_address(peer.address)
        inside = [
            address in ipaddress.ip_network(cidr, strict=False) for cidr in (block["cidr"], *block.get("except", ()))
        ]
        return inside[0] and not any(inside[1:])
    if one.get("namespaceSelector") is None:
        return peer.namespace == pod.namespace and matches_labels(one.get("podSelector") or {}, peer.labels)
    # The labels of namespaces are not known here: any namespace may be the selected one.
    return matches_labels(one.get("podSelector") or {}, peer.labels)


def _selects_port(one: PolicyObject, port: int) -> bool:
    if one.get("protocol", "TCP") != "TCP":
        return False
    first = one.get("port")
    if first is None or isinstance(first, str):  # a pod's own name for a port: which port, is not known here
        return True
    return int(first) <= port <= int(one.get("endPort", first))


def matches_labels(selector: PolicyObject, labels: Mapping[str, str]) -> bool:
    """Whether a label selector takes these labels; an empty one takes all."""
    wanted: Mapping[str, str] = selector.get("matchLabels") or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    return all(_meets_expression(one, labels) for one in selector.get("matchExpressions") or ())


def _meets_expression(one: PolicyObject, labels: Mapping[str, str]) -> bool:
    key, values = one["key"], one.get("values") or ()
    held = {
        "In": labels.get(key) in values,
        "NotIn": labels.get(key) not in values,
        "Exists": key in labels,
        "DoesNotExist": key not in labels,
    }
    if one["operator"] not in held:
        raise KeyError(one["operator"])
    return held[one["operator"]]
