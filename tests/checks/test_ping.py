"""ping: from what the nodes said of names, routes, echoes and TCP to who fails and why. The texts are iputils' own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runbook.causes.catalogue import finding_for
from runbook.checks.context import Context, Facts
from runbook.checks.network.dial import Dial
from runbook.checks.network.pairs import Pairs, choose_pairs, nodes_to_blame
from runbook.checks.ping.host_names import name_findings, name_warnings
from runbook.checks.ping.loss import has_excess_loss, random_drop_findings
from runbook.checks.ping.no_answer import _wrong_gateway_finding
from runbook.checks.ping.observations import Observations, Pair
from runbook.checks.ping.packet_sizes import size_findings, vanishing_directions
from runbook.checks.ping.ping import Judge, Ping, name_and_address_findings, ping_targets, ssh_port
from runbook.checks.ping.routes import address_findings
from runbook.model.inventory import Container, Inventory, Network, Node, Ssh
from runbook.model.units import name_list_text
from runbook.model.verdict import Finding, Outcome, Verdict
from runbook.transport.node_answers import PingAnswer

from .made_up_cluster import (
    A,
    B,
    C,
    Nobody,
    Ruled,
    cluster,
    context,
    dial,
    facts_of,
    interface,
    machine,
    node,
    verdicts,
)

# Recorded from iputils 20221126 between two network namespaces.
SILENCE = """\
PING 10.0.0.2 (10.0.0.2) 56(84) bytes of data.

--- 10.0.0.2 ping statistics ---
20 packets transmitted, 0 received, 100% packet loss, time 190ms

"""
UNREACHABLE = "ping: connect: Network is unreachable\n"
TOO_LONG = """\
PING 10.0.0.2 (10.0.0.2) 1472(1500) bytes of data.
ping: local error: message too long, mtu=1400
ping: local error: message too long, mtu=1400

--- 10.0.0.2 ping statistics ---
2 packets transmitted, 0 received, +2 errors, 100% packet loss, time 34ms

"""
FRAG_NEEDED = """\
PING 10.0.0.2 (10.0.0.2) 1472(1500) bytes of data.
From 10.0.9.1 icmp_seq=1 Frag needed and DF set (mtu = 1400)

--- 10.0.0.2 ping statistics ---
5 packets transmitted, 0 received, +1 errors, 100% packet loss, time 34ms

"""
ROUTE = {"dev": "eth0", "src": A, "via": None, "mtu": 1500}


def echo(sent: int = 20, received: int = 20, **options: Any) -> Facts:
    return {"code": 0 if received else 1, "raw": options.pop("raw", ""), "sent": sent, "received": received, **options}


GOOD = echo(ms=0.2)
FULL = echo(5, 5, ms=0.3)
LOST = echo(5, 0, raw=SILENCE)
MISSING = {"missing": True}


def target(peer: str, address: str, **options: Any) -> Facts:
    fields = {"peer": peer, "address": address, "resolved": [address], "route": ROUTE, "small": GOOD, "full": FULL}
    return {**fields, "spare_answers": False, "neighbour": None, **options}


def looked_up(addresses: list[str] | None, seconds: float = 0.0, *lines: str) -> Facts:
    return {"addresses": addresses, "seconds": seconds, "in_hosts": [[n, line] for n, line in enumerate(lines, 3)]}


def card(*prefixes: str, **options: Any) -> Facts:
    last = prefixes[0].partition("/")[0].rpartition(".")[2] if prefixes else "1"
    return {
        "mac": f"02:00:00:00:00:{last.zfill(2)[-2:]}",
        "mtu": 1500,
        "rp_filter": 0,
        "prefixes": list(prefixes),
        **options,
    }


def answer(*found: Facts, **options: Any) -> PingAnswer:
    given: Facts = {"names": {}, "hostname": "host", "own": None, "nameservers": [], "interfaces": {}}
    said: Any = {
        **given,
        "reverse_late": False,
        "rp_filtered": None,
        "neighbours_refused": None,
        "targets": list(found),
        **options,
    }
    return cast(PingAnswer, said)


def judged(
    a_to_b: Facts,
    dials: list[Dial],
    *,
    b_to_a: Facts | None = None,
    inventory: Inventory | None = None,
    facts: dict[str, Facts] | None = None,
) -> dict[str, Outcome]:
    """What becomes of node-a and node-b when node-a saw this of node-b."""
    at = context(inventory or cluster(), facts)
    answers = {"node-a": answer(a_to_b), "node-b": answer(b_to_a or target("node-a", A))}
    return {outcome.node: outcome for outcome in Judge(Observations(at, answers, dials)).outcomes({})}


OPEN = [
    dial(source, destination, "open", kind="full", mode=mode, port=40001)
    for source, destination in (("node-a", "node-b"), ("node-b", "node-a"))
    for mode in ("up", "down")
]


def dials_of(outcome: str) -> list[Dial]:
    return [dial(d.source, d.destination, outcome, kind="full", mode=d.mode, port=d.port) for d in OPEN]


def causes(outcomes: dict[str, Outcome]) -> dict[str, list[str]]:
    return {name: [finding.cause for finding in outcome.findings] for name, outcome in outcomes.items()}


@pytest.mark.parametrize(("errno", "causes_of_a"), [("EINVAL", ["no-route"]), ("EHOSTUNREACH", ["host-unreachable"])])
def test_a_kernel_that_refuses_to_send_is_named_without_iproute2(errno: str, causes_of_a: list[str]) -> None:
    refused = [
        dial("node-a", "node-b", "rejected", kind="full", mode="up", errno=errno),
        dial("node-b", "node-a", "dropped", kind="full", mode="up"),
    ]
    seen = target("node-b", B, route=None, small=LOST, full=None)
    outcomes = judged(seen, refused, b_to_a=target("node-a", A, route=None, small=LOST, full=None))
    assert causes(outcomes)["node-a"] == causes_of_a
    assert (outcomes["node-b"].verdict is Verdict.PASS) is (errno == "EINVAL")


@pytest.mark.parametrize(("login", "guilty"), [("node-a", ["master-addr-wrong-host"]), ("node-b", [])])
def test_a_login_that_leads_to_the_machine_of_another_node(login: str, guilty: list[str]) -> None:
    inventory = cluster(node("node-a"), node("node-b"), node("node-c"))
    at = context(
        inventory, {"node-a": machine(A), "node-b": machine({"node-a": A, "node-b": B}[login]), "node-c": machine(C)}
    )
    at.run.site.sessions = cast(Any, {"node-a": Nobody("node-a"), "node-b": Nobody(login), "node-c": Nobody("node-c")})
    addresses = {"node-a": A, "node-b": B, "node-c": C}
    answers = {name: answer(*(target(*one) for one in addresses.items() if one[0] != name)) for name in addresses}
    found = address_findings(Observations(at, answers, []))
    assert [one.cause for one in found.get("node-b", ())] == guilty
    assert set(found) <= {"node-b"}
    assert all("leads to the machine of node-a" in one.says for one in found.get("node-b", ()))


def test_healthy() -> None:
    outcomes = judged(target("node-b", B), OPEN)
    assert {o.verdict for o in outcomes.values()} == {Verdict.PASS}
    assert outcomes["node-a"].proof == "1 peer answers within 0.2 ms; full-size packets (MTU 1500) get through"
    assert outcomes["node-a"].warnings == ()


def test_loss_is_counted() -> None:
    outcomes = judged(target("node-b", B, small=echo(20, 13, ms=0.2)), dials_of("dropped"))
    assert causes(outcomes) == {"node-a": ["packet-loss"], "node-b": ["packet-loss"]}  # nothing tells whose it is
    assert "7 of 20 echoes" in outcomes["node-a"].findings[0].says
    assert outcomes["node-a"].findings[0].peers == ("node-b",)


@pytest.mark.parametrize(
    ("sent", "answered", "way"),
    [
        (20, 0, "what node-a sends gets lost"),
        (1, 18, "what arrives at node-a gets lost"),
        (4, 1, ""),
        (9, 7, ""),
        (0, 0, ""),
        (None, 30, ""),
    ],
)
def test_the_direction_of_a_loss_is_told_where_the_counts_prove_it(sent: int | None, answered: int, way: str) -> None:
    trips = [
        dial("node-a", "node-b", "open", kind="full", mode="trips", retransmitted=sent),
        dial("node-b", "node-a", "open", kind="full", mode="trips", retransmitted=answered),
    ]
    outcomes = judged(target("node-b", B, small=echo(20, 13, ms=0.2)), [*dials_of("dropped"), *trips])
    assert ("gets lost" in outcomes["node-a"].findings[0].says) is bool(way)
    assert way in outcomes["node-a"].findings[0].says


@pytest.mark.parametrize("late", [0, 1, 2])
def test_lost_echoes_where_tcp_flows_freely_are_a_warning(late: int) -> None:
    """A busy peer answers late now and then, and a packet is sent again."""
    trips = [
        dial("node-a", "node-b", "open", kind="full", mode="trips", retransmitted=late),
        dial("node-b", "node-a", "open", kind="full", mode="trips", retransmitted=0),
    ]
    outcomes = judged(target("node-b", B, small=echo(20, 13, ms=0.2)), [*OPEN, *trips])
    assert outcomes["node-a"].verdict is Verdict.PASS
    assert outcomes["node-a"].warnings[0].startswith("harmless: node-b or its network answers only so many pings")


def test_lost_echoes_hide_no_blackhole_where_tcp_loses_only_large_packets() -> None:
    """`ping` on a busy machine reads some answers too late."""
    trips = [
        dial(*way, "open", kind="full", mode="trips", retransmitted=0)
        for way in (("node-a", "node-b"), ("node-b", "node-a"))
    ]
    seen = {**target("node-b", B, small=echo(100, 54, ms=0.2), full=LOST), "again": echo(60, 12, ms=0.2)}
    outcomes = judged(seen, [*dials_of("lost"), *trips])
    assert {one.cause for name in outcomes for one in outcomes[name].findings} == {"mtu-blackhole"}


@pytest.mark.parametrize(("first", "second", "warned"), [(99, 200, False), (99, 199, True), (98, 195, True)])
def test_a_few_lost_echoes_are_at_most_a_warning(first: int, second: int, *, warned: bool) -> None:
    seen = {**target("node-b", B, small=echo(100, first, ms=0.2)), "again": echo(200, second, ms=0.2)}
    outcome = judged(seen, dials_of("dropped"))["node-a"]
    assert outcome.verdict is Verdict.PASS
    assert any("are lost" in warning for warning in outcome.warnings) == warned


@pytest.mark.parametrize(
    ("again", "verdict"),
    [
        (echo(60, 60), Verdict.PASS),
        (echo(60, 59), Verdict.PASS),
        (echo(60, 46), Verdict.FAIL),
        (echo(3, 3), Verdict.FAIL),  # too few to tell
    ],
)
def test_what_is_lost_in_one_moment_and_not_again_accuses_nobody(again: Facts, verdict: Verdict) -> None:
    seen = {**target("node-b", B, small=echo(100, 71, ms=0.2)), "again": again}
    outcome = judged(seen, dials_of("dropped"))["node-a"]
    assert outcome.verdict is verdict
    assert any("all in one moment" in warning for warning in outcome.warnings) == (verdict is Verdict.PASS)


def test_what_was_lost_is_counted_over_both_rounds() -> None:
    seen = {**target("node-b", B, small=echo(100, 97, ms=0.2)), "again": echo(200, 195, ms=0.2)}
    outcomes = judged(seen, dials_of("dropped"))
    assert causes(outcomes)["node-a"] == ["packet-loss"]
    assert "8 of 300 echoes" in outcomes["node-a"].findings[0].says


def test_full_size_icmp_alone_is_a_warning_where_tcp_carries_it() -> None:
    outcome = judged(target("node-b", B, full=LOST), OPEN)["node-a"]
    assert outcome.verdict is Verdict.PASS
    assert outcome.warnings[0].startswith("harmless: full-size pings to node-b are not answered")


def test_icmp_blocked_and_tcp_open_is_a_warning() -> None:
    outcomes = judged(target("node-b", B, small=echo(20, 0, raw=SILENCE), full=LOST), OPEN)
    assert outcomes["node-a"].verdict is Verdict.PASS
    assert "ICMP is blocked" in outcomes["node-a"].warnings[0]


@pytest.mark.parametrize(
    ("there", "back", "guilty"),
    [
        (("open", 0), ("open", 2), []),  # a busy peer answers late now and then
        (("open", 9), ("open", 0), ["packet-loss"]),
        (("open", 0), ("open", 9), ["packet-loss"]),
        (("lost", None), ("open", 0), ["packet-loss"]),
    ],
)
def test_no_echo_at_all_is_blocked_icmp_only_where_tcp_loses_nothing(
    there: tuple[str, int | None], back: tuple[str, int | None], guilty: list[str]
) -> None:
    trips = [
        dial("node-a", "node-b", there[0], kind="full", mode="trips", retransmitted=there[1]),
        dial("node-b", "node-a", back[0], kind="full", mode="trips", retransmitted=back[1]),
    ]
    outcome = judged(target("node-b", B, small=echo(20, 0, raw=SILENCE), full=None), [*OPEN, *trips])["node-a"]
    assert [finding.cause for finding in outcome.findings] == guilty
    assert any("ICMP is blocked" in warning for warning in outcome.warnings) is not bool(guilty)


@pytest.mark.parametrize("seen", ["refused", "reset", "stranger"])
def test_any_answer_over_tcp_proves_that_the_host_is_there(seen: str) -> None:
    outcomes = judged(target("node-b", B, small=echo(20, 0, raw=SILENCE), full=LOST), dials_of(seen))
    assert outcomes["node-a"].verdict is Verdict.PASS


def test_nothing_is_said_of_full_size_packets_that_nothing_proved() -> None:
    outcomes = judged(target("node-b", B, small=echo(20, 0, raw=SILENCE), full=LOST), dials_of("refused"))
    assert "get through" not in (outcomes["node-a"].proof or "")


@pytest.mark.parametrize("seen", ["dropped", "rejected", "unresolvable"])
def test_no_answer_to_anything(seen: str) -> None:
    outcomes = judged(target("node-b", B, small=echo(20, 0, raw=SILENCE), full=LOST), dials_of(seen))
    assert causes(outcomes)["node-a"] == ["host-unreachable"]
    assert any("100% packet loss" in line for line in outcomes["node-a"].findings[0].evidence)


def test_a_ping_that_printed_nothing_known_is_no_proof() -> None:
    hung = {"timed_out": True, "code": None}
    outcomes = judged(target("node-b", B, small=hung, full=hung), dials_of("dropped"))
    assert outcomes["node-a"].verdict is Verdict.FAIL


REFUSALS = [
    {"code": 2, "raw": "ping: unknown iana family\n"},
    {"code": 0, "raw": ""},
    {"code": 1, "raw": "ping: option value too small: 0.005\n"},
    {"code": 64, "raw": "ping: invalid option -- 'M'\nTry 'ping --help' or 'ping --usage' for more information.\n"},
    {
        "code": 1,
        "raw": "1.35.0-4) multi-call binary.\n\nUsage: ping [OPTIONS] HOST\n\nSend ICMP ECHO_REQUESTs to HOST\n",
    },
    {"code": 2, "raw": "ping: socket: Operation not permitted\n"},
]


@pytest.mark.parametrize("said", REFUSALS, ids=lambda said: said["raw"][:20])
def test_a_ping_program_that_sent_nothing_accuses_nobody(said: Facts) -> None:
    mute = target("node-b", B, small=said, full=None)
    outcomes = judged(mute, dials_of("dropped"), b_to_a=target("node-a", A, small=said, full=None))
    assert {outcome.verdict for outcome in outcomes.values()} == {Verdict.UNKNOWN}
    assert causes(outcomes)["node-a"] == ["tool-missing"]
    opened = judged(mute, OPEN)["node-a"]
    assert opened.verdict is Verdict.PASS
    assert "proven over TCP" in opened.warnings[0]
    only_small = target("node-b", B, full=said)
    assert causes(judged(only_small, dials_of("dropped")))["node-a"] == ["tool-missing"]
    (warning,) = judged(only_small, OPEN)["node-a"].warnings
    assert "cannot send full-size probes" in warning


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "sudo sed -i"),
        ({"container": Container("docker", "job")}, "--add-host gpu2:10.0.0.2"),
        ({"inside": ("enroot", "exec", "job")}, "--add-host gpu2:10.0.0.2"),
        ({"connection": "kubernetes"}, "hostAliases: [{ip: 10.0.0.2, hostnames: [gpu2]}]"),
    ],
)
@pytest.mark.parametrize("meant", [["127.0.1.1"], ["10.0.0.3"], None])
def test_what_mends_a_name_where_the_file_of_hosts_is_a_mount(
    options: dict[str, Any], says: str, meant: list[str] | None
) -> None:
    at = context(cluster(node("node-a", **options), node("node-b", address="gpu2"), node("node-c"), backend="nccl"))
    at.run.facts["node-b"] = machine(B)
    answers = {
        "node-a": answer(names={"gpu2": looked_up(meant, 0.0, "127.0.1.1 gpu2")}),
        "node-b": answer(names={"gpu2": looked_up([B])}),
    }
    (finding,) = name_findings(Observations(at, answers, []), at.nodes[0])
    assert says in finding.remedy
    assert ("sed" in finding.remedy) is not bool(options)


@pytest.mark.parametrize("means", [["127.0.1.1"], ["::1", "127.0.0.1"], ["127.0.1.1", B]])
@pytest.mark.parametrize("interface", [None, "eth0"])
def test_a_name_that_is_loopback_at_home_matters_where_somebody_dials_it(
    means: list[str], interface: str | None
) -> None:
    """With an interface in the inventory it is the master's alone, which is the rendezvous."""
    nodes = node("node-a", address="gpu1"), node("node-b", address="gpu2")
    inventory = cluster(*nodes, backend="nccl", network=Network(interface))
    at = context(inventory, {"node-a": machine(A), "node-b": machine(B)})
    answers = {
        "node-a": answer(names={"gpu1": looked_up(means), "gpu2": looked_up([B])}),
        "node-b": answer(names={"gpu1": looked_up([A]), "gpu2": looked_up(means)}),
    }
    seen = Observations(at, answers, [])
    found = [[finding.cause for finding in name_findings(seen, one)] for one in nodes]
    assert found[0]
    assert found[1] == ([] if interface else ["name-resolves-to-loopback"])
    assert any("its own name gpu2" in line for line in name_warnings(seen, nodes[1])) is (interface is not None)


def test_a_peer_that_was_not_tried_is_not_healthy() -> None:
    """Its name came too late, say, or it was the last of a thousand."""
    untried = target("node-b", B, resolved=None, route=None, small=None, full=None)
    for b_to_a in (target("node-a", A), {**untried, "peer": "node-a", "address": A}):
        outcomes = judged(untried, dials_of("dropped"), b_to_a=b_to_a)
        assert (outcomes["node-a"].verdict, causes(outcomes)["node-a"]) == (Verdict.UNKNOWN, ["insufficient-evidence"])
    opened = judged(untried, OPEN)["node-a"]
    assert opened.verdict is Verdict.PASS
    assert "proven over TCP" in opened.warnings[0]


def test_a_node_is_asked_for_the_names_that_it_meets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many nodes each meets a few, and what a name means is judged from those who were asked."""
    names = [f"n{number}" for number in range(64)]
    inventory = cluster(*(node(name, address=f"{name}.nat") for name in names), backend="nccl")
    at = context(inventory, {name: machine(f"10.0.0.{number + 1}") for number, name in enumerate(names)})
    pairs = choose_pairs(names, "n0")
    asked: dict[str, list[str]] = {}

    def ask(_: object, __: object, arguments: Callable[[Node], Facts], **___: object) -> dict[str, Outcome]:
        asked.update({one.name: arguments(one)["names"] for one in at.nodes})
        return {name: Outcome.skipped(name, "nobody is there") for name in names}

    monkeypatch.setattr(Context, "ask", ask)
    Ping()._asked(at, pairs)
    for name in names:
        assert {*asked[name]} == {f"{met}.nat" for met in (name, "n0", *pairs.peers[name])}
    floating = {f"{name}.nat": looked_up([f"203.0.113.{number + 1}"]) for number, name in enumerate(names)}
    answers = {name: answer(names={one: floating[one] for one in asked[name]}) for name in names}
    assert not any(name_findings(Observations(at, answers, []), one) for one in inventory.nodes)
    stray = looked_up(["203.0.113.99"])
    answers["n5"] = answer(names={one: stray if one == "n0.nat" else floating[one] for one in asked["n5"]})
    seen = Observations(at, answers, [])
    found = {one.name: [finding.cause for finding in name_findings(seen, one)] for one in inventory.nodes}
    assert found["n5"] == ["name-wrong-address"]


def test_no_route() -> None:
    route = {"error": "RTNETLINK answers: Network is unreachable"}
    small = {"code": 2, "raw": UNREACHABLE}
    outcomes = judged(target("node-b", B, route=route, small=small, full=small), [])
    assert causes(outcomes) == {"node-a": ["no-route"], "node-b": []}
    assert "RTNETLINK answers: Network is unreachable" in outcomes["node-a"].findings[0].evidence[0]


def test_an_ip_that_does_not_know_the_question_says_nothing_of_the_route() -> None:
    route = {"error": "ip: unrecognized option: j\nBusyBox v1.36.1 multi-call binary."}
    outcomes = judged(target("node-b", B, route=route, small=LOST, full=None), dials_of("dropped"))
    assert {cause for told in causes(outcomes).values() for cause in told} == {"host-unreachable"}


def test_a_node_without_ip_has_no_route_error() -> None:
    """`ip` is missing there: that says nothing of the route, and the echoes came back."""
    outcome = judged(target("node-b", B, route={"error": None}), OPEN)["node-a"]
    assert (outcome.verdict, outcome.proof) == (
        Verdict.PASS,
        "1 peer answers within 0.2 ms; full-size packets get through",
    )


def test_without_a_ping_program_tcp_has_to_prove_it() -> None:
    lacking = target("node-b", B, small=MISSING, full=MISSING)
    good = judged(lacking, OPEN)["node-a"]
    assert good.verdict is Verdict.PASS
    assert "iputils-ping" in good.warnings[0]
    bad = judged(lacking, dials_of("dropped"))["node-a"]
    assert (bad.verdict, [f.cause for f in bad.findings]) == (Verdict.UNKNOWN, ["tool-missing"])
    assert judged(lacking, [])["node-a"].verdict is Verdict.UNKNOWN


BUSYBOX = {"code": 1, "raw": "ping: invalid option -- 'M'\nBusyBox v1.36.1 multi-call binary.\n"}


def test_a_ping_that_cannot_do_full_size_leaves_it_to_tcp() -> None:
    outcome = judged(target("node-b", B, full=BUSYBOX), OPEN)["node-a"]
    assert outcome.verdict is Verdict.PASS
    assert "proven over TCP instead" in outcome.warnings[0]


def test_a_ping_that_cannot_do_full_size_and_no_tcp_is_not_a_pass() -> None:
    outcome = judged(target("node-b", B, full=BUSYBOX), dials_of("dropped"))["node-a"]
    assert outcome.verdict is not Verdict.PASS


@pytest.mark.parametrize("raw", [TOO_LONG, FRAG_NEEDED])
def test_a_path_that_says_how_little_it_carries_is_a_warning(raw: str) -> None:
    outcome = judged(target("node-b", B, full=echo(5, 0, raw=raw)), OPEN)["node-a"]
    assert outcome.verdict is Verdict.PASS
    assert "(1400)" in outcome.warnings[0]


def test_full_size_packets_that_vanish() -> None:
    outcomes = judged(target("node-b", B, full=LOST), dials_of("dropped"))
    finding = outcomes["node-a"].findings[0]
    assert causes(outcomes) == {"node-a": ["mtu-blackhole"], "node-b": ["mtu-blackhole"]}
    assert any("ping -M do -s 1472 from node-a to node-b" in line for line in finding.evidence)


def test_tcp_says_which_way_loses() -> None:
    """The echo needs both ways; TCP up from node-b arrives, up from node-a does not: node-a to node-b loses."""
    dials = [
        dial("node-a", "node-b", "lost", kind="full", mode="up", port=40001),
        dial("node-a", "node-b", "open", kind="full", mode="down", port=40001),
        dial("node-b", "node-a", "open", kind="full", mode="up", port=40001),
        dial("node-b", "node-a", "lost", kind="full", mode="down", port=40001),
    ]
    outcomes = judged(target("node-b", B, full=LOST), dials, b_to_a=target("node-a", A, full=LOST))
    assert causes(outcomes) == {"node-a": ["mtu-blackhole"], "node-b": ["mtu-blackhole"]}
    for outcome in outcomes.values():
        assert outcome.findings[0].says.startswith("full-size packets from node-a to node-b vanish")


def test_tcp_alone_finds_it_where_icmp_is_blocked() -> None:
    blocked = target("node-b", B, small=echo(20, 0, raw=SILENCE), full=LOST)
    back = target("node-a", A, small=echo(20, 0, raw=SILENCE), full=LOST)
    outcomes = judged(blocked, dials_of("lost"), b_to_a=back)
    assert "mtu-blackhole" in {f.cause for o in outcomes.values() for f in o.findings}


QUOTA = "-A INPUT -p tcp -m tcp ! --dport 22 -m quota --quota 2000 -j DROP"
LARGE = "-A INPUT -p tcp -m length --length 1400:65535 -j DROP"


@pytest.mark.parametrize(("rule", "cause"), [(QUOTA, "firewall-drop"), (LARGE, "mtu-blackhole")])
def test_a_rule_that_breaks_transfers_off_is_a_matter_of_size_only_where_it_asks_for_the_size(
    rule: str, cause: str
) -> None:
    at = context(cluster())
    cast(dict[str, Any], at.run.site.sessions).update({"node-a": Ruled(), "node-b": Ruled(rule)})
    answers = {"node-a": answer(target("node-b", B)), "node-b": answer(target("node-a", A))}
    outcomes = {outcome.node: outcome for outcome in Judge(Observations(at, answers, dials_of("lost"))).outcomes({})}
    assert causes(outcomes) == {"node-a": [], "node-b": [cause]}
    (finding,) = outcomes["node-b"].findings
    assert rule in finding.says
    assert finding.remedy.count("sudo iptables -I INPUT 1 ") == 2, "what it is sent, and the answers that it gets"


EVERY_THIRD = "-A INPUT -m statistic --mode nth --every 3 --packet 0 -j DROP"


@pytest.mark.parametrize(
    ("rule", "found"),
    [
        (EVERY_THIRD, {"node-b": ["firewall-drop"]}),
        (EVERY_THIRD.replace("-m stat", "-p icmp -m stat"), {}),  # pings alone are no loss to the job
        (EVERY_THIRD.replace("-m stat", "-s 10.0.0.9 -m stat"), {}),
        ("-A INPUT -m limit --limit 100/sec -j ACCEPT", {}),
    ],
)
def test_echoes_that_a_rule_takes_at_random(rule: str, found: dict[str, list[str]]) -> None:
    at = context(cluster())
    cast(dict[str, Any], at.run.site.sessions).update({"node-a": Ruled(), "node-b": Ruled(rule)})
    answers = {"node-a": answer(target("node-b", B, small=echo(100, 66))), "node-b": answer(target("node-a", A))}
    seen = Observations(at, answers, [])
    losing = [pair for pair in seen.pairs if has_excess_loss(pair)]
    assert [(pair.source, pair.peer) for pair in losing] == [("node-a", "node-b")]
    told = random_drop_findings(seen, losing)
    assert {name: [finding.cause for finding in those] for name, those in told.items()} == found
    for finding in told.get("node-b", []):
        assert rule in finding.says
        assert finding.remedy == rule.replace("-A", "sudo iptables -D", 1)


@pytest.mark.parametrize(
    ("mine", "its", "guilty", "fix"),
    [
        (1500, 900, "node-b", "mtu 1500"),  # less than any network is made for
        (900, 1500, "node-a", "mtu 1500"),
        (9000, 1500, "node-a", "mtu 1500"),
        (1500, 1450, "node-a", "mtu 1450"),  # a tunnel's or a cloud's: what it allows passes everywhere
    ],
)
def test_of_two_mtus_the_one_that_no_network_has_or_the_larger_is_odd(
    mine: int, its: int, guilty: str, fix: str
) -> None:
    there, back = ({**ROUTE, "mtu": mtu} for mtu in (mine, its))
    outcomes = judged(
        target("node-b", B, route=there, full=LOST), OPEN, b_to_a=target("node-a", A, route=back, full=FULL)
    )
    other = {"node-a": "node-b", "node-b": "node-a"}[guilty]
    assert causes(outcomes) == {guilty: ["mtu-blackhole"], other: []}
    finding = outcomes[guilty].findings[0]
    assert finding.remedy.endswith(fix)
    assert all(
        f"interface MTU of {name}: {mtu}" in finding.evidence for name, mtu in (("node-a", mine), ("node-b", its))
    )


def test_different_mtus_are_named() -> None:
    large = {**ROUTE, "mtu": 9000}
    outcomes = judged(target("node-b", B, route=large, full=LOST), OPEN)
    (finding,) = outcomes["node-a"].findings
    assert finding.cause == "mtu-blackhole"
    assert "9000 on node-a, 1500 on node-b" in finding.says
    assert finding.remedy.endswith("mtu 1500")


def test_a_silent_node_keeps_its_own_outcome() -> None:
    at = context(cluster())
    silent = Outcome.unknown("node-b", Finding("tool-output-unknown", "said nothing", "look"))
    outcomes = Judge(Observations(at, {"node-a": answer(target("node-b", B))}, [])).outcomes({"node-b": silent})
    assert verdicts(outcomes)["node-b"] == (Verdict.UNKNOWN, ("tool-output-unknown",))


def test_the_address_on_the_named_interface_is_the_one_that_is_dialled() -> None:
    inventory = cluster(network=Network("ib"))
    facts = {n.name: machine(n.address, ib0=interface(f"10.1.0.{i}")) for i, n in enumerate(inventory.nodes, 1)}
    at = context(inventory, facts)
    pairs = Pairs.every(["node-a", "node-b"])
    assert ping_targets(at, inventory.nodes[0], pairs) == [{"peer": "node-b", "address": "10.1.0.2", "spare": B}]
    assert ping_targets(context(cluster()), cluster().nodes[0], pairs) == [
        {"peer": "node-b", "address": B, "spare": None}
    ]


def test_the_ssh_port_is_a_place_where_something_listens() -> None:
    at = context(cluster(node("node-a"), node("node-b", ssh=Ssh(port=2222))))
    assert ssh_port(at, at.nodes[0]) == [(A, 22, "ssh")]
    assert ssh_port(at, at.nodes[1]) == [(B, 2222, "ssh")]
    assert ssh_port(at, node("node-c", connection="local")) == []


def names(inventory: Inventory, who: str, **said: list[str] | None) -> list[str]:
    """The causes that `who` gets when it resolves names (dashes for underscores) like this."""
    resolved = {name.replace("_", "-"): looked_up(addresses) for name, addresses in said.items()}
    right = {n.address: looked_up([A, B, C][i : i + 1]) for i, n in enumerate(inventory.nodes)}
    facts = {n.name: machine([A, B, C][i]) for i, n in enumerate(inventory.nodes)}
    answers = {n.name: answer(names=dict(right)) for n in inventory.nodes}
    answers[who] = answer(names={**right, **resolved})
    return [f.cause for f in name_findings(Observations(context(inventory, facts), answers, []), inventory.node(who))]


NAMED = cluster(node("node-a", address="host-a"), node("node-b", address="host-b"))


@pytest.mark.parametrize(
    ("said", "causes"),
    [
        ({}, []),
        ({"host_b": None}, ["name-unresolvable"]),
        ({"host_b": []}, ["name-unresolvable"]),
        ({"host_a": ["127.0.1.1"]}, ["name-resolves-to-loopback"]),
        ({"host_b": ["127.0.0.1", "::1"]}, ["name-resolves-to-loopback"]),
        ({"host_b": [C]}, ["name-wrong-address"]),
        ({"host_b": [A]}, ["name-wrong-address"]),
        ({"host_b": [B, "127.0.0.1"]}, []),
        ({"host_b": ["127.0.0.1", B]}, ["name-resolves-to-loopback"]),
        ({"host_b": ["10.0.0.200", B]}, ["name-wrong-address"]),
        ({"host_b": ["fd00::200", B]}, []),
        ({"host_a": None, "host_b": [A]}, ["name-unresolvable", "name-wrong-address"]),
    ],
)
def test_names(said: dict[str, list[str] | None], causes: list[str]) -> None:
    assert names(NAMED, "node-a", **said) == causes


@pytest.mark.parametrize(
    ("told", "lines", "says", "remedy"),
    [
        ({}, (), "cannot resolve host-b", "echo '10.0.0.2 host-b' | sudo tee -a /etc/hosts"),
        ({"hosts_unreadable": "Permission denied"}, (), "may not read /etc/hosts", "sudo chmod 644 /etc/hosts"),
        ({"name_sources": "hosts: dns"}, ("10.0.0.2 host-b",), "`hosts: dns`", "/etc/nsswitch.conf"),
        ({"name_sources": "hosts: files dns"}, ("10.0.0 host-b",), "cannot resolve host-b", "sudo sed -i -E '3s/"),
    ],
)
def test_why_a_name_is_not_found(told: Facts, lines: tuple[str, ...], says: str, remedy: str) -> None:
    names = {"host-a": looked_up([A]), "host-b": looked_up(None, 0.0, *lines)}
    answers = {"node-a": answer(names=names, **told), "node-b": answer()}
    facts = {"node-a": machine(A), "node-b": machine(B)}
    (finding,) = name_findings(Observations(context(NAMED, facts), answers, []), NAMED.nodes[0])
    assert finding.cause == "name-unresolvable"
    assert says in finding.says
    assert remedy in finding.remedy


def test_a_name_that_everyone_takes_for_an_address_behind_nat_is_left_alone() -> None:
    """No node has it on an interface, and all agree: a translated address, not a mistake."""
    inventory = NAMED
    outside = {"host-a": looked_up(["203.0.113.1"]), "host-b": looked_up(["203.0.113.2"])}
    answers = {n.name: answer(names=outside) for n in inventory.nodes}
    facts = {"node-a": machine(A), "node-b": machine(B)}
    assert name_findings(Observations(context(inventory, facts), answers, []), inventory.nodes[0]) == []


def test_gloo_tells_peers_its_own_host_name() -> None:
    """Without an interface in the inventory it is the host name that counts, whatever the inventory calls the node."""

    def found(inventory: Inventory, means: tuple[str, ...] = ("127.0.1.1",)) -> list[str]:
        at = context(inventory, facts_of(inventory))
        answers = {n.name: answer(own=looked_up(list(means))) for n in inventory.nodes}
        return [f.cause for f in name_findings(Observations(at, answers, []), inventory.nodes[0])]

    assert found(cluster()) == ["name-resolves-to-loopback"]
    assert found(cluster(), ()) == ["name-unresolvable"]
    assert found(cluster(), ("10.0.0.200",)) == ["name-wrong-address"]
    assert found(cluster(), ("10.0.0.200", A)) == []
    assert found(cluster(network=Network("eth0"))) == []
    assert found(cluster(backend="nccl")) == []
    assert found(cluster(*(node(n, connection="local") for n in ("node-a", "node-b")))) == []


@pytest.mark.parametrize(("hostname", "cloned"), [("node-a", True), ("node-b", False)])
def test_a_machine_with_the_host_name_of_another_node_gets_a_name_of_its_own(hostname: str, cloned: bool) -> None:
    at = context(cluster(), facts_of(cluster()))
    answers = {
        name: answer(hostname=called, own=looked_up([A]))
        for name, called in (("node-a", "node-a"), ("node-b", hostname))
    }
    (finding,) = name_findings(Observations(at, answers, []), cluster().nodes[1])
    assert finding.cause == "name-wrong-address"
    assert ("has the host name of node-a" in finding.says) is cloned
    assert ("hostnamectl set-hostname node-b" in str(finding.remedy)) is cloned


def triangle(*said: Facts) -> dict[str, list[str]]:
    """The causes of three nodes when this is what they saw of a `peer` from a `source`, and all else is healthy."""
    names = ["node-a", "node-b", "node-c"]
    inventory = cluster(*(node(name) for name in names))
    seen = {(one["source"], one["peer"]): one for one in said}
    addresses = dict(zip(names, (A, B, C), strict=True))
    answers = {
        name: answer(
            *({**target(peer, addresses[peer]), **seen.get((name, peer), {})} for peer in names if peer != name),
            interfaces={"eth0": card(f"{addresses[name]}/24")},
        )
        for name in names
    }
    outcomes = Judge(Observations(context(inventory), answers, [])).outcomes({})
    return {name: told for name, told in causes({outcome.node: outcome for outcome in outcomes}).items() if told}


LOSING = echo(100, 90, ms=0.2)
REFUSED = {"error": "RTNETLINK answers: Network is unreachable"}
NO_WAY = {"route": REFUSED, "small": {"code": 2, "raw": UNREACHABLE}}
NOTHING = {"small": echo(100, 0, raw=SILENCE), "full": LOST}


@pytest.mark.parametrize(
    ("what", "cause"),
    [({"small": LOSING}, "packet-loss"), ({"full": LOST}, "mtu-blackhole"), (NOTHING, "host-unreachable")],
)
def test_the_node_that_bad_pairs_have_in_common_is_named_alone(what: Facts, cause: str) -> None:
    said = [
        {"source": "node-a", "peer": "node-c", **what},
        {"source": "node-b", "peer": "node-c", **what},
    ]
    assert triangle(*said) == {"node-c": [cause]}


def test_no_node_is_singled_out_when_every_pair_is_bad() -> None:
    names = ("node-a", "node-b", "node-c")
    said = [{"source": one, "peer": other, **NOTHING} for one in names for other in names if one != other]
    assert triangle(*said) == {name: ["host-unreachable"] for name in names}


def test_culprits() -> None:
    def bad(*pairs: str) -> dict[str, list[str]]:
        return dict(nodes_to_blame(frozenset(pair) for pair in pairs))

    assert bad() == {}
    assert bad("ab") == {"a": ["b"], "b": ["a"]}
    assert bad("ac", "bc") == {"c": ["a", "b"]}
    assert bad("ac", "bc", "ad", "bd", "cd") == {"c": ["a", "b", "d"], "d": ["a", "b", "c"]}
    assert bad("ab", "cd") == {"a": ["b"], "b": ["a"], "c": ["d"], "d": ["c"]}
    assert bad("ae", "be", "ce", "ab") == {"e": ["a", "b", "c"], "a": ["b"], "b": ["a"]}


def test_listed() -> None:
    assert [name_list_text(names) for names in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == [
        "",
        "a",
        "a and b",
        "a, b and c",
    ]
    assert name_list_text("abcdefgh") == "a, b, c, d and 4 more"


def remedy_of_no_route(route: Facts, *prefixes: str, peer: str = "10.0.0.2/24") -> tuple[str, str]:
    at = context(cluster())
    answers = {
        "node-a": answer(
            target("node-b", B, **{**NO_WAY, "route": {**REFUSED, **route}}),
            interfaces={"eth0": card(*prefixes)},
        ),
        "node-b": answer(target("node-a", A), interfaces={"eth0": card(peer)}),
    }
    outcome = Judge(Observations(at, answers, [])).outcomes({})[0]
    return outcome.findings[0].says, outcome.findings[0].remedy


RULES = [
    {"priority": 0, "src": "all", "table": "local"},
    {"priority": 100, "src": A, "table": "77"},
    {"priority": 32766, "src": "all", "table": "main"},
]


@pytest.mark.parametrize(
    ("route", "prefixes", "fix"),
    [
        # `ip -j route show table all match` and `ip -j rule show`, iproute2 6.1
        (
            {"rules": RULES, "routes": [{"type": "blackhole", "dst": B, "table": "main"}]},
            ["10.0.0.1/24"],
            f"route del blackhole {B}",
        ),
        (
            {"src": A, "rules": RULES, "routes": [{"type": "unreachable", "dst": "default", "table": "77"}]},
            ["10.0.0.1/24"],
            "route del unreachable default table 77",
        ),
        (
            {"rules": [{"priority": 9, "src": "all", "dst": "10.0.0.0", "dstlen": 24, "action": "prohibit"}, *RULES]},
            ["10.0.0.1/24"],
            "rule del priority 9",
        ),
        ({}, ["10.0.0.1/24"], "route add 10.0.0.0/24 dev eth0 src 10.0.0.1"),
        (
            {},
            ["10.0.0.1/32"],
            (
                "address add 10.0.0.1/24 dev eth0 && sudo ip address del 10.0.0.1/32 dev eth0"
                " && sudo ip neighbor flush dev eth0 nud noarp"
            ),
        ),
    ],
)
def test_what_mends_a_missing_route(route: Facts, prefixes: list[str], fix: str) -> None:
    assert remedy_of_no_route(route, *prefixes)[1] == f"sudo ip {fix}"


@pytest.mark.parametrize("small", [{}, {"error": "ping: Do you want to ping broadcast? Then -b."}])
def test_a_peer_whose_address_a_narrow_netmask_makes_the_broadcast_address_is_not_silent(small: Facts) -> None:
    """The kernel finds a route to it, of type broadcast: it is the netmask of the sender, and nobody else's doing."""
    inventory = cluster(node("node-a"), node("node-b", address="10.0.0.7"), node("node-c"))
    narrow, wide = {"eth0": card("10.0.0.1/29")}, {"eth0": card("10.0.0.7/24")}
    silent = {**NOTHING, "route": {"dev": "eth0", "src": A}}
    refused = {**silent, "small": small} if small else silent
    answers = {
        "node-a": answer(target("node-b", "10.0.0.7", **refused), target("node-c", C), interfaces=narrow),
        "node-b": answer(target("node-a", A, **silent), target("node-c", C), interfaces=wide),
        "node-c": answer(target("node-a", A), target("node-b", "10.0.0.7"), interfaces={"eth0": card("10.0.0.3/24")}),
    }
    outcomes = Judge(Observations(context(inventory), answers, [])).outcomes({})
    failed = {outcome.node: [finding.cause for finding in outcome.findings] for outcome in outcomes if outcome.findings}
    assert failed == {"node-a": ["no-route"]}
    assert "10.0.0.1/29, which leaves node-b out" in outcomes[0].findings[0].says


@pytest.mark.parametrize(
    ("before", "after", "found"), [(4, 6, ["packet-loss"]), (4, 4, []), (None, 6, []), (4, None, [])]
)
def test_a_link_that_does_not_stay_up_is_its_nodes_fault(
    before: int | None, after: int | None, found: list[str]
) -> None:
    """By the kernel's own count, also where what was tried came through between two times."""
    inventory = cluster()
    facts = facts_of(inventory)
    facts["node-b"]["interfaces"]["eth0"]["carrier_changes"] = before
    answers = {
        "node-a": answer(target("node-b", B), interfaces={"eth0": card("10.0.0.1/24")}),
        "node-b": answer(target("node-a", A), interfaces={"eth0": card("10.0.0.2/24", carrier_changes=after)}),
    }
    outcomes = Judge(Observations(context(inventory, facts), answers, [])).outcomes({})
    assert [[finding.cause for finding in outcome.findings] for outcome in outcomes] == [[], found]


def test_a_route_that_may_not_be_the_one_is_not_blamed() -> None:
    """A longer one wins, and a rule that looks at a mark that somebody may set is only likely."""
    routes = [{"type": "blackhole", "dst": "10.0.0.0/8", "table": "main"}, {"dst": "10.0.0.0/24", "table": "main"}]
    marked = {"priority": 1, "src": "all", "fwmark": "0x1", "table": "9"}
    elsewhere = {"type": "prohibit", "dst": "default", "table": "9"}
    says, _ = remedy_of_no_route({"rules": [marked, *RULES], "routes": [*routes, elsewhere]}, "10.0.0.1/24")
    assert "blackhole" not in says
    assert "most likely route `prohibit" in says


def test_two_nodes_with_one_address() -> None:
    def found(inventory: Inventory, facts: dict[str, Facts]) -> dict[str, list[str]]:
        answers = {
            n.name: answer(*(target(peer.name, peer.address) for peer in inventory.nodes if peer != n))
            for n in inventory.nodes
        }
        told = name_and_address_findings(Observations(context(inventory, facts), answers, []))
        return {name: [finding.cause for finding in findings] for name, findings in told.items()}

    twice = cluster(node("node-a"), node("node-b", address=A))
    assert found(twice, {"node-a": machine(A), "node-b": machine(B)}) == {"node-b": ["duplicate-address"]}
    both = {"node-a": machine(A), "node-b": machine(A, B)}
    assert found(cluster(), both) == {"node-b": ["duplicate-address"]}
    assert found(cluster(), {"node-a": machine(A), "node-b": machine(B)}) == {}


def test_a_name_server_that_answers_late_is_a_warning() -> None:
    at = context(cluster())
    answers = {"node-a": answer(target("node-b", B), names={"host-a": looked_up([A], 5.01)}, nameservers=["10.0.0.53"])}
    answers["node-b"] = answer(target("node-a", A), reverse_late=True)
    warned = [" ".join(outcome.warnings) for outcome in Judge(Observations(at, answers, OPEN)).outcomes({})]
    assert "host-a takes 5.0 s" in warned[0]
    assert "10.0.0.53" in warned[0]
    assert "ranks start 5 s later" in warned[1]


@pytest.mark.parametrize(("refused", "says"), [(7, SILENCE), (None, "ping: sendmsg: No buffer space available\n")])
def test_a_full_neighbour_table_is_the_senders_own_doing(refused: int | None, says: str) -> None:
    at = context(cluster())
    silent = {"code": 1, "raw": says, "sent": 20, "received": 0}
    lost = [dial("node-a", "node-b", "dropped", kind="full", mode="up")]
    answers = {
        "node-a": answer(target("node-b", B, small=silent, full=None), neighbours_refused=refused),
        "node-b": answer(target("node-a", A)),
    }
    outcomes = Judge(Observations(at, answers, lost)).outcomes({})
    assert verdicts(outcomes)["node-a"] == (Verdict.FAIL, ("neighbour-table-full",))
    assert "gc_thresh3" in outcomes[0].findings[0].remedy
    assert verdicts(outcomes)["node-b"][0] == Verdict.PASS


def test_the_addresses_of_many_nodes_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every two of 1,000 nodes are half a million pairs: only those that share an address are compared."""
    counted: list[str] = []
    own = Context.own_addresses

    def looked_at(at: Context, name: str) -> list[str]:
        counted.append(name)
        return own(at, name)

    monkeypatch.setattr(Context, "own_addresses", looked_at)
    nodes = [node(f"n{i}", address=f"n{i}.lab") for i in range(60)]
    numbers = {one.name: f"10.0.0.{i}" for i, one in enumerate(nodes, 1)}
    numbers["n59"] = numbers["n7"]
    at = context(cluster(*nodes), {name: machine(number) for name, number in numbers.items()})
    meant = {f"{name}.lab": looked_up([number]) for name, number in numbers.items()}
    answers = {one.name: answer(target("n7", "n7.lab", resolved=[numbers["n7"]]), names=meant) for one in nodes}
    told = name_and_address_findings(Observations(at, answers, []))
    assert {name: [finding.cause for finding in those] for name, those in told.items()} == {
        "n59": ["duplicate-address"]
    }
    assert len(counted) <= 4 * len(nodes)


def test_the_mtus_of_many_nodes_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[str] = []
    route = vars(Pair)["route"].fget

    def read(pair: Pair) -> Facts:
        counted.append(pair.source)
        return cast(Facts, route(pair))

    monkeypatch.setattr(Pair, "route", property(read))
    nodes = [node(f"n{i}", address=f"10.0.0.{i + 1}") for i in range(20)]
    at = context(cluster(*nodes))
    large, full = {**ROUTE, "mtu": 9000}, LOST
    answers = {
        one.name: answer(
            *(
                target(peer.name, peer.address, full=full, **({"route": large} if one.name == "n7" else {}))
                for peer in nodes
                if peer != one and "n7" in (one.name, peer.name)
            )
        )
        for one in nodes
    }
    seen = Observations(at, answers, [])
    told = size_findings(seen, vanishing_directions(seen, seen.pairs, []))
    assert {name: [finding.cause for finding in those] for name, those in told.items()} == {"n7": ["mtu-blackhole"]}
    assert len(counted) <= 10 * len(seen.pairs)


@pytest.mark.parametrize(
    ("dropped", "heard", "rule", "found"),
    [
        (40, True, "-A INPUT -j DROP", "host-unreachable"),
        (0, False, "-A INPUT -j DROP", "host-unreachable"),  # the filter covers ARP as well
        (0, True, "-A INPUT -j DROP", None),  # it dropped nothing of what came, and a rule does
        (0, True, "-A INPUT -j ACCEPT", "host-unreachable"),  # nothing else is left
    ],
)
def test_a_strict_reverse_path_filter_that_dropped_nothing_comes_behind_other_reasons(
    dropped: int, heard: bool, rule: str, found: str | None
) -> None:
    neighbour = {"lladdr": "02:00:00:00:00:02", "state": ["REACHABLE"]} if heard else {"state": ["FAILED"]}
    away = {**ROUTE, "dev": "eth1"}
    assert reverse_path(A, B, dropped=dropped, away=away, neighbour=neighbour, rule=rule) == found


def test_ipv6_has_no_reverse_path_filter() -> None:
    away = {**ROUTE, "dev": "eth1"}
    assert reverse_path("fd00::1", "fd00::2", dropped=40, away=away, neighbour=None) is None


def reverse_path(
    one: str, other: str, *, dropped: int, away: Facts, neighbour: Facts | None, rule: str = "-A INPUT -j ACCEPT"
) -> str | None:
    """The cause, where node-b's filter is named for the silence of `other`."""
    inventory = cluster(node("node-a", address=one), node("node-b", address=other))
    at = context(inventory, {"node-a": machine(one), "node-b": machine(other)})
    cast(dict[str, Any], at.run.site.sessions).update({"node-a": Ruled(), "node-b": Ruled(rule)})
    length = 64 if ":" in one else 24
    places = {
        name: {"eth0": card(f"{number}/{length}", rp_filter=1)} for name, number in (("node-a", one), ("node-b", other))
    }
    answers = {
        "node-a": answer(
            target("node-b", other, small=LOST, full=None, neighbour=neighbour), interfaces=places["node-a"]
        ),
        "node-b": answer(target("node-a", one, route=away), interfaces=places["node-b"], rp_filtered=dropped),
    }
    lost = [dial("node-a", "node-b", "dropped", kind="full", mode="up", address=other)]
    outcome = Judge(Observations(at, answers, lost)).outcomes({})[1]
    return next((f.cause for f in outcome.findings if "rp_filter" in f.says), None)


def test_the_neighbour_table_of_ipv6_has_limits_of_its_own() -> None:
    one, other = "fd00::1", "fd00::2"
    at = context(
        cluster(node("node-a", address=one), node("node-b", address=other)),
        {"node-a": machine(one), "node-b": machine(other)},
    )
    lost = [dial("node-a", "node-b", "dropped", kind="full", mode="up", address=other)]
    answers = {
        "node-a": answer(target("node-b", other, small=LOST, full=None), neighbours_refused=7),
        "node-b": answer(target("node-a", one)),
    }
    (finding,) = Judge(Observations(at, answers, lost)).outcomes({})[0].findings
    assert finding.cause == "neighbour-table-full"
    assert finding.remedy.count("net.ipv6.neigh.default.") == 2
    assert "ipv4" not in "".join((finding.remedy, *finding.evidence))


@pytest.mark.parametrize("proven", [True, False])
def test_tcp_that_our_program_could_not_try_says_nothing_of_the_path(
    proven: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where echoes are filtered, and the program that listens could not be started, nobody was heard to be silent."""
    limited = Outcome.unknown(
        "node-b", finding_for("process-limit", "it may start no more processes", way="limit", node="node-b")
    )
    mesh = SimpleNamespace(
        dials=[], busy={}, occupied={}, silent={"node-b": limited}, dial=lambda *_, **__: None, again=lambda _: None
    )
    monkeypatch.setattr("runbook.checks.ping.ping.Mesh", lambda *_: nullcontext(mesh))
    seen = {"small": GOOD, "full": FULL} if proven else {"small": LOST, "full": None}
    answers = {"node-a": answer(target("node-b", B, **seen)), "node-b": answer(target("node-a", A, **seen))}
    monkeypatch.setattr(Ping, "_asked", lambda *_: answers)
    outcomes = {outcome.node: outcome for outcome in Ping().run(context(cluster()))}
    assert outcomes["node-a"].verdict is Verdict.PASS
    assert outcomes["node-b"] == limited if not proven else outcomes["node-b"].verdict is Verdict.PASS


def test_a_node_without_iproute2_is_no_router_on_its_own_way() -> None:
    """Its own kernel says that no neighbour answers; the route that would tell its address is not known."""
    one, other = "fd00::1", "fd00::2"
    inventory = cluster(node("node-a", address=one), node("node-b", address=other))
    says = f"From {one} icmp_seq=1 Destination unreachable: Address unreachable\n"
    silent = target("node-b", other, route={"error": None}, small=echo(5, 0, raw=says), full=None)
    lost = [dial("node-a", "node-b", "dropped", kind="full", mode="up", address=other, local=one)]
    outcomes = judged(
        silent,
        lost,
        b_to_a=target("node-a", one),
        inventory=inventory,
        facts={"node-a": machine(), "node-b": machine()},
    )
    (finding,) = outcomes["node-a"].findings
    assert (finding.cause, "on the way" in finding.says) == ("host-unreachable", False)


@pytest.mark.parametrize("own_route", [True, False])
def test_the_default_route_is_never_to_be_deleted(own_route: bool) -> None:
    """The kernel lists every route that matches, the default one first."""
    routes = [{"dst": "default", "gateway": "10.0.0.1"}]
    routes += [{"dst": "10.0.0.12", "gateway": "10.0.0.1"}] if own_route else []
    seen = cast(Observations, SimpleNamespace(prefixes=lambda _: [("eth0", "10.0.0.11/24")], owners={}, answers={}))
    target = {"gateway": {"neighbour": {"state": ["FAILED"]}, "routes": routes}}
    pair = SimpleNamespace(
        route={"via": "10.0.0.1"}, target=target, numeric="10.0.0.12", source="node-a", peer="node-b"
    )
    found = _wrong_gateway_finding(seen, cast(Pair, pair))
    assert found is not None
    mended = "route del 10.0.0.12 via 10.0.0.1" if own_route else "route add 10.0.0.0/24 dev eth0 src 10.0.0.11"
    assert mended in found[1].remedy
