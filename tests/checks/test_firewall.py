"""firewall: what dials saw to who is guilty. How a rule is found is tested where the rules are read: tests/firewall."""

from __future__ import annotations

import json
import shlex
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import permutations, product
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest
from profiles import one_in

from runbook.checks.firewall import Firewall, firewall_outcomes
from runbook.checks.network import dead_paths
from runbook.checks.network.dead_paths import dead_path_findings
from runbook.checks.network.dial import (
    Dial,
    ephemeral_range,
    needed_ports,
    numeric_address,
    numeric_node_address,
    ports_text,
)
from runbook.checks.network.failed_dials import Trouble
from runbook.checks.network.live_traffic import RankConnection, stopped_connection_findings
from runbook.checks.network.mesh import Mesh
from runbook.firewall.collected_rules import Evidence
from runbook.model.verdict import Finding, Outcome, Verdict
from runbook.transport.remote_program import Answer

from .made_up_cluster import A, B, C, cluster, context, dial, machine, node, ruled, rules, with_ports

RANGE = with_ports(cluster(), (29500, 29510))


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        (["rendezvous"], [(29500, 29500)]),
        (["range"], [(29500, 29510)]),
        (["ephemeral"], [(32768, 60999)]),
        (["rendezvous", "range", "ephemeral"], [(29500, 29500), (29500, 29510), (32768, 60999)]),
        ([], []),
    ],
)
def test_what_one_allow_command_should_open(kinds: list[str], expected: list[tuple[int, int]]) -> None:
    dials = [dial("node-a", "node-b", "dropped", kind=kind, port=40000) for kind in kinds]
    assert needed_ports(RANGE, dials) == expected


def test_a_kernel_with_another_range_widens_what_is_opened() -> None:
    dials = [dial("node-a", "node-b", "dropped", kind="ephemeral", port=port) for port in (15000, 64000)]
    assert ephemeral_range(dials) == (15000, 64000)
    assert ephemeral_range(dials, [(20000, 30000), (20000, 64999)]) == (15000, 64999)
    assert ephemeral_range(dials[:1], [(10000, 20000)]) == (10000, 20000)


def test_text_of_many_ports() -> None:
    dials = [dial("node-a", "node-b", "dropped", port=port) for port in (5, 4, 3, 9, 7, 7)]
    assert ports_text(dials) == "TCP 3-5, 7, 9"


@pytest.mark.parametrize("name", ["name.invalid", "gpu..lab", f"{'long' * 16}.lab"])
def test_addresses_that_only_the_nodes_know(name: str) -> None:
    at = context(cluster())
    assert numeric_address(at, "10.0.0.1") == "10.0.0.1"
    assert numeric_address(at, "::1") == "::1"
    assert numeric_address(at, name) == "0.0.0.0"


def test_name_servers_of_this_machine_that_do_not_answer_hold_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    over = threading.Event()

    def silence(name: str, *_: object, **__: object) -> NoReturn:
        asked.append(name)
        if not over.wait(10):
            raise AssertionError("it was waited for")
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr("runbook.checks.network.dial.NAME_LOOKUP_TIMEOUT_S", 0.05)
    monkeypatch.setattr(socket, "getaddrinfo", silence)
    nodes = [node(name, address=f"{name}.lab") for name in ("node-a", "node-b", "node-c")]
    at = context(cluster(*nodes), {"node-a": machine(A, "192.168.0.1"), "node-b": machine(B), "node-c": machine(C)})
    assert [numeric_node_address(at, one.name) for one in nodes for _ in range(2)] == [A, A, B, B, C, C]
    over.set()
    assert sorted(asked) == ["node-a.lab", "node-b.lab", "node-c.lab"], "all of them together, and once"


def mesh_of(*dials: Dial, **options: Any) -> Mesh:
    fields: dict[str, Any] = {"dials": list(dials), "occupied": {}, "silent": {}, "busy": {}, **options}
    return cast(Mesh, SimpleNamespace(**fields))


def guilty(*dials: Dial) -> tuple[str, Finding]:
    """The one node that is blamed for these dials between node-a and node-b, and the one finding."""
    ((name, (finding,)),) = Trouble.of(context(cluster()), dials).findings().items()
    return name, finding


@pytest.mark.parametrize(
    ("outcome", "node", "cause"),
    [
        ("unresolvable", "node-a", "name-unresolvable"),
        ("stranger", "node-b", "name-wrong-address"),
        ("reset", "node-b", "tcp-connection-lost-midrun"),
        ("silent", "node-b", "packet-loss"),
        ("lost", "node-b", "mtu-blackhole"),
        ("dropped", "node-b", "firewall-drop"),
        ("rejected", "node-b", "firewall-reject"),
        ("refused", "node-b", "firewall-reject"),
    ],
)
def test_each_way_to_fail(outcome: str, node: str, cause: str) -> None:
    name, finding = guilty(dial("node-a", "node-b", outcome, errno="EHOSTUNREACH" if outcome == "rejected" else None))
    assert (name, finding.cause) == (node, cause)
    assert finding.peers == tuple({"node-a", "node-b"} - {name})
    assert any("10.0.0.2" in line and "29500" in line for line in finding.evidence)


def test_ranks_that_meet_and_cannot_talk() -> None:
    name, finding = guilty(
        dial("node-b", "node-a", "open"),
        dial("node-a", "node-b", "dropped", kind="ephemeral", port=40123),
    )
    assert (name, finding.cause) == ("node-b", "data-ports-blocked")
    assert finding.says.startswith("the rendezvous port 29500 opens, but")
    _, other = guilty(
        dial("node-a", "node-b", "dropped", kind="range"),
        dial("node-a", "node-b", "dropped", kind="ephemeral", port=40123),
    )
    assert other.cause == "firewall-drop"


def test_one_finding_for_all_ports_of_a_pair_and_one_for_each_kind_of_trouble() -> None:
    at = context(cluster())
    same = [dial("node-a", "node-b", "dropped", port=port) for port in (29500, 29501)]
    assert [len(found) for found in Trouble.of(at, same).findings().values()] == [1]
    other = [*same, dial("node-a", "node-b", "refused", port=29502)]
    assert sum(len(found) for found in Trouble.of(at, other).findings().values()) == 2
    assert Trouble.of(at, []).findings() == {}


LATE = [
    dial("node-a", "node-b", "open", port=port, tries=2, from_ports=(40000 + 2 * port, 40001 + 2 * port))
    for port in range(29500, 29506)
]
"""Each opened from its second port, which is odd."""


@pytest.mark.parametrize(
    ("silent", "causes"),
    [
        (lambda port: port % 2 == 0, {"node-a": ["packet-loss"], "node-b": ["packet-loss"]}),
        (lambda port: False, {}),  # a busy moment
        (lambda port: port % 3 == 0, {}),  # whatever the port: loss
        (lambda port: True, {}),  # a limit for connections
    ],
)
def test_ports_that_are_silent_again_beside_ports_that_open_again_are_a_dead_path(
    silent: Callable[[int], bool], causes: dict[str, list[str]]
) -> None:
    def again(dials: Sequence[Dial]) -> list[Dial]:
        return [replace(d, outcome="dropped" if silent(d.from_ports[0]) else "open", tries=1) for d in dials]

    found = dead_path_findings(context(cluster()), mesh_of(*LATE, from_ports=again))
    assert {name: [finding.cause for finding in findings] for name, findings in found.items()} == causes
    assert all("-p 99000 10.0.0.2 29500` on node-a" in one.remedy for findings in found.values() for one in findings)
    assert not dead_path_findings(context(cluster()), mesh_of(*LATE[:2], from_ports=again))


def test_a_dead_path_behind_next_hops_of_a_node_is_that_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    hops = [{"gateway": "10.0.0.8", "dev": "eth0"}, {"gateway": "10.0.0.9", "dev": "eth1"}]
    routes = {f"routes {A}": {"status": "ok", "rc": 0, "stdout": json.dumps([{"dst": A, "nexthops": hops}])}}
    known = Evidence.of({"tools": routes, "facts": {}})
    monkeypatch.setattr(dead_paths, "rules_of", lambda *_, **__: {"node-b": known})

    def again(dials: Sequence[Dial]) -> list[Dial]:
        return [replace(d, outcome="open" if d.from_ports[0] % 2 else "dropped", tries=1) for d in dials]

    ((name, (finding,)),) = dead_path_findings(context(cluster()), mesh_of(*LATE, from_ports=again)).items()
    assert (name, finding.peers) == ("node-b", ("node-a",))
    assert f"the route of node-b to {A} has 2 next hops, and one of them is dead" in finding.says
    assert "(10.0.0.8, 10.0.0.9)" in finding.remedy


def test_connections_that_wait_for_the_kernel_to_leave_out_ecn_are_a_warning() -> None:
    late = [dial("node-a", "node-b", "open", port=port, tries=1, seconds=1.01, retransmitted=1) for port in (1, 2)]
    for asks in (True, False):
        at = context(cluster(), {"node-a": {**machine(A), "asks_ecn": asks}, "node-b": machine(B)})
        (told, _) = firewall_outcomes(at, mesh_of(*late, dial("node-b", "node-a", "open")), None)
        assert told.verdict is Verdict.PASS
        assert ["tcp_ecn=2" in line for line in told.warnings] == [True] * asks
        # Silence that a rule does not explain is tried for longer: the kernel's repetition may open it.
        clean = [dial("node-a", "node-b", "open", port=port, tries=1) for port in range(4)]
        trouble = Trouble(at, [dial("node-a", "node-b", "dropped")], clean)
        assert bool(trouble.unexplained()) is asks


def judged(*dials: Dial, **options: Any) -> dict[str, Outcome]:
    inventory = cluster(node("node-a"), node("node-b"), node("node-c"))
    at, mesh = context(inventory), mesh_of(*dials, **options)
    outcomes = firewall_outcomes(at, mesh, Trouble.of(at, dials))
    assert [outcome.node for outcome in outcomes] == ["node-a", "node-b", "node-c"]
    return {outcome.node: outcome for outcome in outcomes}


EVERY = [
    dial(source, destination, "open")
    for source in ("node-a", "node-b", "node-c")
    for destination in ("node-a", "node-b", "node-c")
    if source != destination
]


def test_all_open() -> None:
    outcomes = judged(*EVERY)
    assert {outcome.verdict for outcome in outcomes.values()} == {Verdict.PASS}
    assert outcomes["node-a"].proof == "1 ports open from 2 peers"


def test_only_the_guilty_node_fails() -> None:
    seen = [dial(d.source, d.destination, "dropped") if d.destination == "node-b" else d for d in EVERY]
    outcomes = judged(*seen)
    assert {name: o.verdict.value for name, o in outcomes.items()} == {
        "node-a": "pass",
        "node-b": "fail",
        "node-c": "pass",
    }
    assert "node-b's doing" in (outcomes["node-a"].proof or "")


def test_what_may_be_the_fault_of_either_end_is_nobodys_doing() -> None:
    seen = [
        dial(d.source, d.destination, "silent") if (d.source, d.destination) == ("node-a", "node-c") else d
        for d in EVERY
    ]
    outcomes = judged(*seen)
    assert outcomes["node-c"].verdict is Verdict.FAIL
    assert "may be the fault of either end" in (outcomes["node-a"].proof or "")
    assert "at either end, or between them" in outcomes["node-c"].findings[0].says


def test_a_node_that_nobody_dialled_is_not_healthy() -> None:
    outcomes = judged(*(d for d in EVERY if d.destination != "node-c"))
    assert outcomes["node-c"].verdict is Verdict.UNKNOWN
    assert {outcome.verdict for outcome in judged().values()} == {Verdict.UNKNOWN}


def test_a_node_whose_listeners_did_not_come_up_is_unknown() -> None:
    silent = Outcome.unknown("node-c", Finding("tool-output-unknown", "no listeners", "look"))
    outcomes = judged(*(d for d in EVERY if "node-c" not in (d.source, d.destination)), silent={"node-c": silent})
    assert outcomes["node-c"] is silent


def test_a_port_that_is_taken_fails_although_all_else_is_open() -> None:
    taken = {"node-b": [{"port": 29500, "errno": "EADDRINUSE", "text": "in use"}]}
    outcomes = judged(*EVERY, occupied=taken)
    assert [f.cause for f in outcomes["node-b"].findings] == ["port-in-use"]
    assert outcomes["node-a"].verdict is Verdict.PASS
    refused = {"node-b": [{"port": 29500, "errno": "EACCES", "text": "Permission denied"}]}
    assert [f.cause for f in judged(*EVERY, occupied=refused)["node-b"].findings] == ["port-privileged-or-reserved"]


def test_one_node_has_no_wire_to_cross() -> None:
    (outcome,) = Firewall().run(context(cluster(node("node-a"))))
    assert outcome.verdict is Verdict.PASS
    assert "one node" in (outcome.proof or "")


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        ("dropped", "no answer within 2.2 s (4 tries)"),
        ("refused", "refused (RST)"),
        ("rejected", "rejected (EHOSTUNREACH)"),
    ],
)
def test_a_dial_in_words(outcome: str, text: str) -> None:
    one = dial("node-a", "node-c", outcome, seconds=2.2, tries=4, errno="EHOSTUNREACH")
    assert str(one) == f"node-a → {C}:29500: {text}"


ALSO_OPEN = [dial("node-a", "node-b", "open", port=port) for port in range(29501, 29505)]


def test_silence_beside_a_clean_path_needs_no_second_look_and_beside_a_lossy_one_it_does() -> None:
    silent = dial("node-a", "node-b", "dropped")
    late = dial("node-b", "node-a", "open", tries=3)
    at = context(cluster())
    assert Trouble.of(at, [silent, *ALSO_OPEN]).unexplained() == []
    assert Trouble.of(at, [silent, *ALSO_OPEN, late]).unexplained() == [silent]
    assert Trouble.of(at, [silent]).unexplained() == [silent]


class Between:
    """Nodes whose programs dial as node/mesh.py does, on a clock of their own. `outcome(source, destination, port,
    turn)` is what a dial meets; a node in `mute` answers its first order only."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int, outcome: Callable[..., str]) -> None:
        self.now, self.outcome, self.mute = 1000.0, outcome, set[str]()
        names = [f"n{number:02}" for number in range(count)]
        self.addresses = {f"10.0.0.{number + 1}": name for number, name in enumerate(names)}
        nodes = [node(name, address=address) for address, name in self.addresses.items()]
        self.at = context(with_ports(cluster(*nodes, backend="nccl"), (29500, 29599)))
        self.at = replace(self.at, deadline=self.now + Firewall.timeout_s)
        sessions = cast(dict[str, Any], self.at.run.site.sessions)
        sessions |= {name: self.session(name) for name in names}
        site = cast(Any, self.at.run.site)
        site.each, site.pace = self.each, SimpleNamespace(turn=lambda *_: nullcontext())
        for module in ("context", "network.mesh"):
            monkeypatch.setattr(f"runbook.checks.{module}.time", SimpleNamespace(monotonic=lambda: self.now))

    def each(self, nodes: Sequence[Any], work: Callable[[Any], object], **_: object) -> dict[str, object]:
        """All of them at once: the clock goes on by the longest."""
        begun, ends, found = self.now, [self.now], {}
        for one in nodes:
            self.now = begun
            found[one.name] = work(one)
            ends.append(self.now)
        self.now = max(ends)
        return found

    def session(self, name: str) -> Any:
        def program(what: str, arguments: Mapping[str, Any], **_: object) -> object:
            if what == "firewall_rules":
                return SimpleNamespace(wait=lambda seconds: SimpleNamespace(message=rules()))
            return DiallingNode(self, name, [port or 45000 + at for at, (port, _) in enumerate(arguments["listen"])])

        return SimpleNamespace(program=program, lost=None, silence_s=0.0, hello={"machine": f"boot-{name}"})


class DiallingNode:
    def __init__(self, between: Between, name: str, ports: Sequence[int]) -> None:
        self.between, self.name, self.turn = between, name, 0
        self.over = threading.Event()
        self.over.set()
        self.said: list[tuple[float, dict[str, Any]]] = [(0.1, {"ports": ports, "errors": []})]

    def tell(self, order: Mapping[str, Any]) -> None:
        self.turn += bool(order["dial"])
        if self.turn > 1 and self.name in self.between.mute:
            return
        met = [self.met(target) for target in order["dial"]]
        silent, at_once = met.count("dropped"), order["at_once"]
        seconds = -(-silent // at_once) * order["open_s"]
        left = (
            min(silent, int(order["within_s"] / order["open_s"]) * at_once) if seconds > order["within_s"] else silent
        )
        results: list[dict[str, Any] | None] = []
        for target, outcome in zip(order["dial"], met, strict=True):
            left -= outcome == "dropped"
            known = outcome if left >= 0 else "unmeasured"
            ends = {"local": self.between.at.inventory.node(self.name).address, "remote": target["address"]}
            told = {"outcome": known, "errno": None, "seconds": order["open_s"], "tries": 4, "retransmitted": None}
            results.append(None if outcome == "open" else {**told, **ends, "from_ports": [40000]})
        awake = {"seconds": 1.0, "late_s": 0.0, "latest_s": 0.0, "pressure": 0.0, "shut_out": 0}
        self.said.append((min(seconds, order["within_s"]), {"results": results, "awake": awake}))

    def met(self, target: Mapping[str, Any]) -> str:
        there = self.between.addresses[target["address"]]
        if there == self.name:
            return "open"
        return self.between.outcome(self.name, there, target["port"], self.turn)

    def messages(self, seconds: float) -> Iterator[dict[str, Any]]:
        if not self.said or self.said[0][0] > seconds:
            self.between.now += seconds
            return
        took, message = self.said.pop(0)
        self.between.now += took
        yield message

    def wait(self, seconds: float) -> Answer:
        self.between.now += seconds
        return Answer(None, None, "", "", True, seconds)

    def feed(self, *_: object, **__: object) -> None:
        pass


@pytest.mark.parametrize(("closed", "count"), one_in(4, product([1, 99], [12, 2, 8, 16])))
def test_silence_of_any_extent_is_told_within_the_stage(
    count: int, closed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether one node of them is cut off or every one."""
    cut_off = {f"n{number:02}" for number in range(count)[-closed:]}
    between = Between(monkeypatch, count, lambda source, there, *_: "dropped" if {source, there} & cut_off else "open")
    outcomes = {outcome.node: outcome for outcome in Firewall().run(between.at)}
    guilty = cut_off if count > 2 else set(outcomes)  # of two, nothing tells which one it is
    for name, outcome in outcomes.items():
        causes = [finding.cause for finding in outcome.findings]
        if name in guilty:
            assert (outcome.verdict, {*causes}) == (Verdict.FAIL, {"firewall-drop"}), name
        else:
            assert outcome.verdict is Verdict.PASS, (name, causes)


def test_where_some_of_a_pair_open_at_the_second_try_all_others_are_tried_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    between = Between(monkeypatch, 8, lambda source, there, port, turn: "dropped" if turn == 1 else "open")
    assert {outcome.verdict for outcome in Firewall().run(between.at)} == {Verdict.PASS}
    between = Between(
        monkeypatch, 3, lambda source, there, port, turn: "open" if turn > 1 and port == 45001 else "dropped"
    )
    outcomes = Firewall().run(between.at)
    assert {outcome.verdict for outcome in outcomes} == {Verdict.FAIL}, "one port of them is open, and only that"


def test_a_node_that_is_mute_at_the_second_look_keeps_what_the_first_showed(monkeypatch: pytest.MonkeyPatch) -> None:
    between = Between(monkeypatch, 4, lambda source, there, *_: "dropped" if "n03" in (source, there) else "open")
    between.mute.add("n03")
    outcomes = {outcome.node: outcome for outcome in Firewall().run(between.at)}
    assert [finding.cause for finding in outcomes["n03"].findings][:1] == ["firewall-drop"]
    assert {outcomes[name].verdict for name in ("n00", "n01", "n02")} == {Verdict.PASS}


@pytest.mark.parametrize(
    ("error", "cause"), [("EMFILE", "open-files-limit"), ("ENFILE", "open-files-limit"), (None, "node-too-busy")]
)
def test_a_node_that_had_no_socket_accuses_nobody(error: str | None, cause: str) -> None:
    outcomes = judged(*EVERY, dial("node-a", "node-b", "unmeasured", port=29501, errno=error))
    assert (outcomes["node-a"].verdict, outcomes["node-a"].findings[0].cause) == (Verdict.UNKNOWN, cause)
    assert {outcomes[name].verdict for name in ("node-b", "node-c")} == {Verdict.PASS}


def test_lost_packets_are_not_taken_for_a_firewall() -> None:
    late = dial("node-b", "node-a", "open", tries=3)
    _, finding = guilty(dial("node-a", "node-b", "dropped"), *ALSO_OPEN, late)
    assert finding.cause == "packet-loss"
    assert "1 connection opened only after several tries (up to 3), 1 never" in finding.says
    _, finding = guilty(dial("node-a", "node-b", "dropped"), *ALSO_OPEN)
    assert finding.cause == "firewall-drop"


@pytest.mark.parametrize(("tries", "cause"), [(2, "packet-loss"), (5, "firewall-drop")])
def test_a_few_repetitions_are_not_why_a_port_never_opens_where_no_rules_were_read(tries: int, cause: str) -> None:
    busy = dial("node-b", "node-a", "open", retransmitted=3)
    never = dial("node-a", "node-b", "dropped", tries=tries)
    at = context(cluster())
    ((_, (unread,)),) = (
        Trouble.of(at, [never, *ALSO_OPEN, busy], {"node-a": ruled(), "node-b": None}).findings().items()
    )
    ((_, (read,)),) = (
        Trouble.of(at, [never, *ALSO_OPEN, busy], {"node-a": ruled(), "node-b": ruled()}).findings().items()
    )
    assert (unread.cause, read.cause) == (cause, "packet-loss")


def test_what_a_node_loses_on_the_way_to_itself_is_no_cable() -> None:
    late = dial("node-b", "node-b", "open", tries=3)
    name, finding = guilty(dial("node-b", "node-b", "silent"), late)
    assert (name, finding.cause, finding.peers) == ("node-b", "packet-loss", ())
    assert finding.says.startswith("packets that node-b sends to itself are lost")
    assert "transceiver" not in finding.remedy


DICE = "-A INPUT -p tcp -m tcp ! --dport 22 -m statistic --mode random --probability 0.3 -j DROP"
LIMIT = "-A INPUT -p tcp -m tcp ! --dport 22 -m limit --limit 5/sec -j DROP"


@pytest.mark.parametrize(("rule", "cause"), [(DICE, "firewall-drop"), (LIMIT, "packet-loss")])
def test_loss_is_a_rules_doing_only_where_the_rule_draws_lots(rule: str, cause: str) -> None:
    dials = [
        dial("node-a", "node-b", "silent", port=29501),
        dial("node-a", "node-b", "open", tries=3),
        dial("node-b", "node-b", "open"),
        dial("node-b", "node-a", "open", kind="ephemeral", port=40123),
    ]
    ((name, (finding,)),) = (
        Trouble.of(context(cluster()), dials, {"node-a": ruled(), "node-b": ruled(rule)}).findings().items()
    )
    assert (name, finding.cause) == ("node-b", cause)
    if cause == "firewall-drop":
        assert finding.says.startswith("node-b drops some of the packets of TCP 29501 from 10.0.0.1 to 10.0.0.2")
        assert rule in finding.says
        removed = ["sudo", "iptables", "-D", *rule.split()[1:]]
        assert shlex.split(finding.remedy) == removed, "an exception would leave it to whom it did not strike yet"


def test_who_got_some_through_a_rule_that_stops_others_met_no_loss() -> None:
    failed = [dial("node-a", "node-b", "dropped"), dial("node-c", "node-b", "dropped", port=29501)]
    late = dial("node-c", "node-b", "open", tries=4)
    rules_ = {"node-a": ruled(), "node-b": ruled(LIMIT), "node-c": ruled()}
    at = context(cluster(node("node-a"), node("node-b"), node("node-c")))
    ((name, (finding,)),) = Trouble.of(at, [*failed, late], rules_).findings().items()
    assert (name, finding.cause, finding.peers) == ("node-b", "firewall-drop", ("node-a", "node-c"))
    assert all(address in finding.remedy for address in (A, C))


FOUR = ("node-a", "node-b", "node-c", "node-d")


def without_a_rule(*dials: Dial) -> dict[str, list[Finding]]:
    """Of four nodes; all dials between them that are not given open, and no node has a rule."""
    failed = {(one.source, one.destination) for one in dials}
    fine = [dial(one, other, "open") for one, other in permutations(FOUR, 2) if (one, other) not in failed]
    return dict(
        Trouble.of(context(cluster(*map(node, FOUR))), [*dials, *fine], dict.fromkeys(FOUR, ruled())).findings()
    )


@pytest.mark.parametrize("outcome", ["dropped", "refused", "rejected", "silent", "lost", "reset", "stranger"])
@pytest.mark.parametrize("way", [1, -1])
def test_without_a_rule_it_is_the_node_that_all_failures_have_in_common(outcome: str, way: int) -> None:
    """Also where that one dials: those whom it cannot reach are reached by the others."""
    pairs = [("node-c", other)[::way] for other in ("node-a", "node-b", "node-d")]
    ((name, (finding,)),) = without_a_rule(*(dial(pair[0], pair[1], outcome) for pair in pairs)).items()
    assert (name, finding.peers) == ("node-c", ("node-a", "node-b", "node-d"))
    assert finding.says.startswith("what fails with node-a, node-b and node-d has node-c in common: ")


def test_a_rule_that_is_found_needs_nothing_in_common() -> None:
    failed = [dial("node-c", "node-a", "dropped"), dial("node-c", "node-b", "dropped")]
    at = context(cluster(*map(node, FOUR)))
    closed = ruled("-A INPUT -p tcp -m tcp --dport 29500 -j DROP")
    found = Trouble.of(at, failed, {"node-a": closed, "node-b": closed, "node-c": ruled()}).findings()
    assert set(found) == {"node-a", "node-b"}


@pytest.mark.parametrize(("of_c", "opened"), [("dropped", [B, C, "10.0.0.4"]), ("open", [B])])
def test_of_many_nodes_those_that_were_not_tried_are_let_in_as_well(of_c: str, opened: list[str]) -> None:
    """In a large cluster only some pairs are dialled. Where all of them are stopped, so is who was not tried."""
    dials = [dial("node-b", "node-a", "dropped"), dial("node-c", "node-a", of_c), dial("node-d", "node-c", "open")]
    rules_ = dict.fromkeys(FOUR, ruled())
    closed = {**rules_, "node-a": ruled("-A INPUT -p tcp -m tcp --dport 29500 -j DROP")}
    ((name, (finding,)),) = Trouble.of(context(cluster(*map(node, FOUR))), dials, closed).findings().items()
    assert name == "node-a"
    assert f"-s {','.join(opened)} " in finding.remedy


def test_connections_that_opened_late_are_a_warning() -> None:
    outcomes = judged(*EVERY, dial("node-a", "node-b", "open", port=29501, tries=4))
    assert outcomes["node-b"].verdict is Verdict.PASS
    assert outcomes["node-b"].warnings[0].startswith("1 of 3 connections opened only after up to 4 tries")
    assert outcomes["node-a"].warnings == ()


def test_what_a_node_does_to_itself_and_to_others_is_one_finding() -> None:
    name, finding = guilty(dial("node-b", "node-a", "dropped"), dial("node-a", "node-a", "dropped"))
    assert (name, finding.cause, finding.peers) == ("node-a", "firewall-drop", ("node-b",))
    assert len([line for line in finding.evidence if "no answer within" in line]) == 2


def test_of_thousands_of_connections_those_that_stand_still_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[RankConnection] = []
    monkeypatch.setattr("runbook.checks.network.live_traffic.MIN_RULES_COMPARISON_S", -1.0)
    monkeypatch.setattr(
        "runbook.checks.network.live_traffic.stopped_connection_finding", lambda _at, stream, _: looked.append(stream)
    )
    still, moving = (
        [RankConnection("node-a", "node-b", A, B, port, 29500, said) for port in range(40000, 40100)]
        for said in (("sent again",), ())
    )
    at = context(cluster())
    assert list(stopped_connection_findings(replace(at, deadline=0.0), [*still, *moving], {}, set())) == []
    assert looked == still
    looked.clear()
    assert list(stopped_connection_findings(at, [*still, *moving], {}, set())) == []
    assert looked == [*still, *moving]
