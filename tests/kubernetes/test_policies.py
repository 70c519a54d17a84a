"""Which connections NetworkPolicies forbid, after the API's own description of them."""

from __future__ import annotations

from typing import Any

import pytest

from runbook.firewall.network_policy import End, Forbids, forbidding_policies, matches_labels, parse_network_policies

TRAIN = {"app": "train"}
A = End("default", "10.244.1.7", {**TRAIN, "index": "0"})
B = End("default", "10.244.2.4", {**TRAIN, "index": "1"})


def policy(name: str = "p", namespace: str = "default", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": namespace}, "spec": {"podSelector": {}, **spec}}


def test_without_policies_all_is_allowed() -> None:
    assert forbidding_policies([], A, B, 29500) is None
    assert forbidding_policies([policy(namespace="other")], A, B, 29500) is None
    assert forbidding_policies([policy(podSelector={"matchLabels": {"app": "web"}})], A, B, 29500) is None


def test_what_selects_a_pod_and_allows_nothing_forbids_all() -> None:
    assert forbidding_policies([policy("deny")], A, B, 29500) == Forbids(egress=False, names=("deny",))
    assert forbidding_policies([policy("out", policyTypes=["Egress"])], A, B, 29500) == Forbids(
        egress=True, names=("out",)
    )
    only_b = policy("one", podSelector={"matchLabels": {"index": "1"}})
    assert forbidding_policies([only_b], A, B, 29500) == Forbids(egress=False, names=("one",))
    assert forbidding_policies([only_b], B, A, 29500) is None


def test_policies_add_up() -> None:
    port = policy("port", ingress=[{"ports": [{"port": 29500}]}])
    assert forbidding_policies([policy("deny"), port], A, B, 29500) is None
    assert forbidding_policies([policy("deny"), port], A, B, 40000) == Forbids(egress=False, names=("deny", "port"))
    assert forbidding_policies([policy("deny"), port, policy("all", ingress=[{}])], A, B, 40000) is None


@pytest.mark.parametrize(
    ("ports", "allowed"),
    [
        ([{"port": 29500}], True),
        ([{"port": 29500, "protocol": "UDP"}], False),
        ([{"port": 29000, "endPort": 30000}], True),
        ([{"port": 29000, "endPort": 29400}], False),
        ([{"protocol": "TCP"}], True),
        ([{"port": "rendezvous"}], True),  # a name: what it stands for is not known here
        ([{"port": 22}, {"port": 29500}], True),
    ],
)
def test_ports(ports: list[dict[str, Any]], allowed: bool) -> None:
    assert (forbidding_policies([policy(ingress=[{"ports": ports}])], A, B, 29500) is None) is allowed


@pytest.mark.parametrize(
    ("peer", "allowed"),
    [
        ({"podSelector": {"matchLabels": TRAIN}}, True),
        ({"podSelector": {"matchLabels": {"app": "web"}}}, False),
        ({"podSelector": {}}, True),
        ({"ipBlock": {"cidr": "10.244.0.0/16"}}, True),
        ({"ipBlock": {"cidr": "10.244.0.0/16", "except": ["10.244.1.0/24"]}}, False),
        ({"ipBlock": {"cidr": "fd00::/8"}}, False),
        ({"namespaceSelector": {"matchLabels": {"team": "x"}}}, True),  # the labels of namespaces are not known here
        ({"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "web"}}}, False),
    ],
)
def test_peers(peer: dict[str, Any], allowed: bool) -> None:
    assert (forbidding_policies([policy(ingress=[{"from": [peer]}])], A, B, 29500) is None) is allowed


def test_a_pod_of_another_namespace_is_not_meant_by_its_labels() -> None:
    far = End("other", "10.244.1.9", TRAIN)
    assert forbidding_policies([policy(ingress=[{"from": [{"podSelector": {}}]}])], far, B, 29500) is not None


@pytest.mark.parametrize(
    ("expression", "taken"),
    [
        ({"key": "app", "operator": "In", "values": ["train", "web"]}, True),
        ({"key": "app", "operator": "NotIn", "values": ["train"]}, False),
        ({"key": "role", "operator": "NotIn", "values": ["x"]}, True),
        ({"key": "app", "operator": "Exists"}, True),
        ({"key": "app", "operator": "DoesNotExist"}, False),
    ],
)
def test_expressions(expression: dict[str, Any], taken: bool) -> None:
    assert matches_labels({"matchLabels": {}, "matchExpressions": [expression]}, TRAIN) is taken


def test_what_is_not_understood_is_not_judged() -> None:
    with pytest.raises(ValueError, match="not a NetworkPolicy"):
        forbidding_policies([policy(podSelector={"matchExpressions": [{"key": "a", "operator": "Gt"}]})], A, B, 1)
    with pytest.raises(ValueError, match="no list"):
        parse_network_policies("[]")
    assert parse_network_policies('{"kind": "List", "items": []}') == []
