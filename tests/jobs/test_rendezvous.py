"""Which ranks have not met, who is accused of it, and when nobody is: from sockets, states and stacks as nodes tell them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from checks import made_up_cluster
from checks.made_up_cluster import machine

from runbook.checks.context import Facts
from runbook.checks.network.live_traffic import Between
from runbook.jobs import rendezvous
from runbook.jobs.kept_processes import KeptProcesses
from runbook.jobs.rendezvous import IDLE_RECHECK_INTERVAL_S, RendezvousWatch
from runbook.jobs.seen_processes import unlike_settings
from runbook.model.verdict import Finding

from .made_up_attempts import attempt, journal, kept

PORT = 29500
JOINING = (
    'Current thread 0x1 (most recent call first):\n  File "/v/torch/distributed/rendezvous.py", line 189 in _create_c10d_store\n'
    '  File "/v/torch/distributed/distributed_c10d.py", line 1700 in init_process_group\n  File "/srv/train.py", line 29 in main\n'
)
ASLEEP = 'Current thread 0x1 (most recent call first):\n  File "/srv/train.py", line 20 in fetch\n  File "/srv/train.py", line 80 in <module>\n'


@dataclass
class World:
    """Two nodes with two ranks each: what their kernels and their ranks would tell."""

    made: KeptProcesses
    connected: set[int] = field(default_factory=set)
    dials: dict[int, str] = field(default_factory=dict)
    dialled: str = "10.0.0.1"
    address: str = "10.0.0.1"  # of the rendezvous, as the inventory writes it
    opened: bool = True
    listen: tuple[int, ...] = (0,)
    talk: bool = True
    moved: int = 0
    stacks: dict[int, str] = field(default_factory=dict)
    state: dict[int, str] = field(default_factory=dict)
    working: set[int] = field(default_factory=set)
    unheard: set[str] = field(default_factory=set)
    between: Between = field(default_factory=Between)
    settings: dict[int, dict[str, str]] = field(default_factory=dict)
    froze: int = 0
    said: list[str] = field(default_factory=list)

    def rank_connections(self, _: object) -> dict[str, Any]:
        told: dict[str, Any] = {}
        for node, rank in [(one.place.node, rank) for one in self.made.members for rank in one.place.ranks]:
            if node in self.unheard:
                continue
            its = told.setdefault(node, {"connections": [], "listening": []})
            ends = [(PORT, True)] if rank in self.connected else []
            ends += [(int(self.dials[rank]), False)] if rank in self.dials else []
            ends += [(50000, True)] if rank in self.connected and self.talk else []
            its["connections"] += [
                {
                    "remote": "10.0.0.1" if is_open else self.dialled,
                    "remote_port": port,
                    "local_port": 40000,
                    "open": is_open,
                    "rank": rank,
                }
                for port, is_open in ends
            ]
            its.setdefault("settings", {})[str(rank)] = self.settings.get(rank, {})
            its["listening"] += [{"port": PORT, "rank": rank}] if rank in self.listen and self.opened else []
        return told

    def freeze(self) -> dict[str, Facts]:
        self.froze += 1
        found: dict[str, Facts] = {}
        for member in self.made.members:
            rank = member.place.ranks[0]
            state = self.state.get(rank, "S")
            found.setdefault(member.place.node, {"ranks": {}})["ranks"][str(rank)] = {
                "processes": [
                    {"pid": 100 + rank, "state": state, "wchan": "", "rank": rank, "comm": "python", "cpu": 0.0}
                ],
                "works": rank in self.working,
                "moved": self.moved,
                "own_stacks": {"1": self.stacks[rank]} if rank in self.stacks else {},
                "stack": None,
            }
        return found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def world(tmp_path: Path, clock: Sequence[float], monkeypatch: pytest.MonkeyPatch) -> World:
    made = kept(tmp_path)
    for member in made.members:
        made.learn(member, journal("running", pid=100 + member.place.ranks[0], started=1.0))
    found = World(made)
    made.at = replace(made.at, say=lambda text, *_, **__: found.said.append(text))
    monkeypatch.setattr(rendezvous, "rank_connections", found.rank_connections)
    monkeypatch.setattr(rendezvous, "freeze", lambda made, seconds: found.freeze())
    monkeypatch.setattr(rendezvous, "traffic_between_nodes", lambda at, timeout_s: found.between)
    return found


def looks(world: World, clock: list[float], times: int = 1) -> dict[str, list[Finding]]:
    """What is found when it is due, so many times."""
    inventory = attempt().inventory
    rendezvous = replace(inventory.rendezvous, address=world.address)
    tried = RendezvousWatch(replace(inventory, rendezvous=rendezvous), 120.0)
    tried.begin()
    assert not tried.due()
    clock[0] += 120.0
    found: dict[str, list[Finding]] = {}
    for _ in range(times):
        while not tried.due():
            clock[0] += 1.0
            assert clock[0] < 1e5, "it is never due again"
        found = tried.look(world.made)
        if found:
            break
    return found


def test_ranks_that_have_met_are_not_looked_at_and_not_asked_again(world: World, clock: list[float]) -> None:
    world.connected = {0, 1, 2, 3}
    tried = RendezvousWatch(attempt().inventory, 120.0)
    tried.begin()
    clock[0] += 121.0
    assert tried.due()
    assert tried.look(world.made) == {}
    clock[0] += 1e9
    assert not tried.due()
    assert (world.froze, world.said) == (0, [])


def test_settings_that_only_some_ranks_have_are_told_once(world: World, clock: list[float]) -> None:
    world.settings = {0: {"NCCL_DEBUG": "INFO", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}}
    world.settings |= {rank: {"NCCL_DEBUG": "INFO"} for rank in (1, 2, 3)}
    assert looks(world, clock, 3) == {}
    (line,) = [text for text in world.said if "same" in text]
    assert line == (
        "TORCH_DISTRIBUTED_DEBUG is not the same everywhere: `DETAIL` for rank 0 on node-a, "
        "not set for rank 1 on node-a, rank 2 on node-b, rank 3 on node-b"
    )


def test_settings_of_the_inventory_and_of_nobody_else_are_not_told(world: World) -> None:
    nodes = (made_up_cluster.node(name, env={"NCCL_IB_HCA": name}) for name in ("node-a", "node-b"))
    world.made.at = replace(world.made.at, inventory=made_up_cluster.cluster(*nodes))
    told = {name: {"settings": {"0": {"NCCL_IB_HCA": name}}} for name in ("node-a", "node-b")}
    assert unlike_settings(world.made, told) == []
    assert unlike_settings(world.made, {"node-a": {"settings": {"0": {"NCCL_ALGO": "Ring"}}}, "node-b": {}}) == []


def test_a_job_that_does_not_meet_at_the_port_is_let_alone_and_looked_at_ever_more_rarely(
    world: World, clock: list[float]
) -> None:
    world.opened = False
    assert looks(world, clock, times=8) == {}
    assert clock[0] >= 1000.0 + 120.0 * 2**7
    assert world.said == []


def test_who_sleeps_elsewhere_in_two_looks_is_missing(world: World, clock: list[float]) -> None:
    world.connected = {0, 1, 2}
    world.stacks = {**dict.fromkeys(range(3), JOINING), 3: ASLEEP}
    assert looks(world, clock) == {}
    found = looks(world, clock, times=2)
    assert clock[0] < 1000.0 + 2 * 120.0 + IDLE_RECHECK_INTERVAL_S + 5.0 + 120.0
    ((node, (finding,)),) = found.items()
    assert (node, finding.cause) == ("node-b", "ranks-missing")
    assert "rank 3 on node-b has not come to the rendezvous: it sleeps in fetch (/srv/train.py:20)" in finding.says
    assert "3 of 4 wait for it" in finding.says
    assert finding.peers == ("node-a",)


def test_rank_0_that_opens_no_store_is_missing_and_those_who_are_refused_are_not(
    world: World, clock: list[float]
) -> None:
    world.opened = False
    world.stacks = {0: ASLEEP, 1: JOINING, 2: JOINING}  # rank 3 could not be asked
    ((node, (finding,)),) = looks(world, clock, times=2).items()
    assert (node, finding.cause) == ("node-a", "ranks-missing")
    assert "rank 0 on node-a" in finding.says


@pytest.mark.parametrize("how", ["works", "runs", "waits for a disk", "its neighbour works", "unheard"])
def test_who_is_on_its_way_is_accused_of_nothing_and_nobody_beside_it(
    world: World, clock: list[float], how: str
) -> None:
    world.connected = {0, 1}
    world.stacks = {0: JOINING, 1: JOINING, 2: ASLEEP, 3: ASLEEP}
    if how == "works":
        world.working = {2, 3}
    elif how == "runs":
        world.state = {2: "R", 3: "R"}
    elif how == "waits for a disk":
        world.state = {2: "D", 3: "D"}
    elif how == "its neighbour works":
        world.working = {2}
    else:
        world.unheard = {"node-b"}
    assert looks(world, clock, times=6) == {}
    assert world.said
    assert world.froze == 6


def test_who_works_at_one_of_two_looks_is_given_more_time(world: World, clock: list[float]) -> None:
    world.connected = {0, 1, 2}
    world.stacks = {**dict.fromkeys(range(3), JOINING), 3: ASLEEP}
    tried = RendezvousWatch(attempt().inventory, 120.0)
    tried.begin()
    for working in ({3}, set(), {3}, set()):
        world.working = working
        while not tried.due():
            clock[0] += 1.0
        assert tried.look(world.made) == {}
    world.working = set()
    clock[0] += IDLE_RECHECK_INTERVAL_S
    assert tried.look(world.made)


@pytest.mark.parametrize("dialled", ["", "29777"])
def test_who_waits_at_another_address_is_named_when_nothing_keeps_it_from_the_others(
    world: World, clock: list[float], dialled: str
) -> None:
    """The program itself sets MASTER_ADDR: dials are refused at once, and seldom seen."""
    world.connected, world.stacks = {0, 1, 2}, dict.fromkeys(range(4), JOINING)
    world.dials = {3: dialled} if dialled else {}
    assert looks(world, clock) == {}
    ((node, (finding,)),) = looks(world, clock, times=2).items()
    assert (node, finding.cause) == ("node-b", "master-addr-wrong-host")
    assert f"it dials {'10.0.0.1:29777' if dialled else 'another address or port'}" in finding.says
    world.dials = {3: str(PORT)}
    assert looks(world, clock, times=4) == {}, "it is on its way"
    world.opened, world.dials = False, {}
    assert looks(world, clock, times=4) == {}, "nobody is there yet"


@pytest.mark.parametrize(
    ("address", "own", "dialled", "accused"),
    [
        ("fd00::1", ("fd00::1",), "fd00::1", ""),
        ("fd00:0::1", ("10.0.0.1", "fd00::1"), "fd00::1", ""),
        ("fd00::1", ("fd00::1",), "fd00::2", "[fd00::2]:29500"),
        ("gpu1.cluster", ("10.0.0.1", "10.1.0.1"), "10.1.0.1", ""),
        ("gpu1.cluster", ("10.0.0.1",), "192.0.2.7", ""),  # what it means to that rank, and leads there perhaps
        ("gpu1.cluster", ("10.0.0.1",), "10.0.0.2", "10.0.0.2:29500"),
        ("gpu1.cluster", ("10.0.0.1",), "127.0.1.1", "127.0.1.1:29500"),
        ("10.0.0.1", ("10.0.0.1",), "192.0.2.7", "192.0.2.7:29500"),
    ],
)
def test_who_dials_the_master_and_gets_no_answer_is_at_no_other_address(
    world: World, clock: list[float], address: str, own: tuple[str, ...], dialled: str, accused: str
) -> None:
    world.address, world.dialled = address, dialled
    world.made.at.run.facts.update({"node-a": machine(*own), "node-b": machine("10.0.0.2", "fd00::2")})
    world.connected, world.stacks, world.dials = {0, 1, 2}, dict.fromkeys(range(4), JOINING), {3: str(PORT)}
    found = looks(world, clock, times=4)
    assert [(node, one.cause) for node, findings in found.items() for one in findings] == (
        [("node-b", "master-addr-wrong-host")] if accused else []
    )
    if accused:
        assert f"it dials {accused};" in found["node-b"][0].says


def test_a_stopped_rank_is_named_at_once(world: World, clock: list[float]) -> None:
    world.connected, world.stacks, world.state = {0, 1, 3}, {0: JOINING}, {2: "T"}
    ((node, (finding,)),) = looks(world, clock).items()
    assert (node, finding.cause) == ("node-b", "rank-stopped")


def test_a_rule_between_the_nodes_is_named_with_who_dials_in_vain(world: World, clock: list[float]) -> None:
    world.connected, world.dials = {0, 1}, {2: str(PORT)}
    rule = Finding("firewall-drop", "node-a drops TCP 29500", "open it", ("nft",))
    world.between = Between({"node-a": (rule,)})
    ((node, (finding,)),) = looks(world, clock).items()
    assert (node, finding.cause) == ("node-a", "firewall-drop")
    assert "rank 2 on node-b dials 10.0.0.1:29500" in finding.evidence


def test_data_ports_are_looked_at_where_all_reached_the_store(world: World, clock: list[float]) -> None:
    world.connected, world.dials = {0, 1, 2, 3}, {2: "41234", 3: "41235"}
    world.between = Between({"node-a": (Finding("data-ports-blocked", "x", "y"),)})
    assert list(looks(world, clock)) == ["node-a"]
    world.between = Between()
    assert looks(world, clock, times=4) == {}
    assert "nothing wrong is seen between them" in world.said[-1]


def test_who_waits_for_a_server_of_its_own_does_not_wait_for_the_others(world: World, clock: list[float]) -> None:
    world.connected, world.dials, world.dialled = {0, 1, 2, 3}, {2: "443"}, "192.0.2.7"
    assert looks(world, clock) == {}
    assert (world.froze, world.said) == (0, []), "they have met"
    world.connected, world.stacks = {0, 1, 3}, {0: JOINING, 2: ASLEEP}
    ((node, (finding,)),) = looks(world, clock, times=2).items()
    assert (node, finding.cause) == ("node-b", "ranks-missing"), "it is the one that has not come"


def test_ranks_that_all_wait_for_more_than_there_are_are_told_the_wrong_size(world: World, clock: list[float]) -> None:
    world.connected, world.talk = {0, 1, 2, 3}, False
    world.stacks, world.moved = dict.fromkeys(range(4), JOINING), 17_112  # rank 0 asks its own store
    found = looks(world, clock, times=2)
    assert sorted(found) == ["node-a", "node-b"]
    assert {one.cause for told in found.values() for one in told} == {"world-size-mismatch"}
    assert "init_process_group" in "".join(found["node-b"][0].evidence)
    assert world.froze == 2


def test_ranks_that_all_wait_for_each_other_and_nobody_at_the_port_meet_somewhere_else(
    world: World, clock: list[float]
) -> None:
    """As by a file that each node has for itself."""
    world.opened, world.stacks = False, dict.fromkeys(range(4), JOINING)
    assert looks(world, clock) == {}
    found = looks(world, clock, times=2)
    assert sorted(found) == ["node-a", "node-b"]
    assert {(one.cause, "file://" in one.says) for told in found.values() for one in told} == {("ranks-missing", True)}
    assert "grep -rn init_method" in str(found["node-a"][0].remedy)
    world.stacks[3] = ASLEEP
    ((node, (finding,)),) = looks(world, clock, times=2).items()
    assert (node, "it sleeps in fetch" in finding.says) == ("node-b", True), "it is the one that has not come"


def test_who_listens_where_only_rank_0_does_takes_itself_for_it(world: World, clock: list[float]) -> None:
    world.connected, world.talk, world.listen = {0, 1, 2, 3}, False, (0, 2)
    world.stacks = dict.fromkeys(range(4), JOINING)
    ((node, (finding,)),) = looks(world, clock, times=2).items()
    assert (node, finding.cause) == ("node-b", "duplicate-rank")
    assert "rank 2 on node-b listens on port" in finding.says


@pytest.mark.parametrize(
    ("stacks", "working", "looked"),
    [
        (dict.fromkeys(range(4), ASLEEP), set(), 1),  # they have come out of it, and need no connections
        ({**dict.fromkeys(range(4), JOINING), 2: ASLEEP}, set(), 1),
        ({}, set(), 1),
        (dict.fromkeys(range(4), JOINING), {1}, 4),  # it may be about to go on
    ],
)
def test_ranks_that_have_come_and_need_no_more_are_left_alone(
    world: World, clock: list[float], stacks: dict[int, str], working: set[int], looked: int
) -> None:
    world.connected, world.talk, world.stacks, world.working = {0, 1, 2, 3}, False, stacks, working
    tried = RendezvousWatch(attempt().inventory, 120.0)
    tried.begin()
    for _ in range(1000):
        clock[0] += 2.0
        if tried.due() and world.froze < 4:
            assert tried.look(world.made) == {}
    assert world.froze == looked


def test_a_stopped_helper_beside_a_rank_that_works_is_no_stopped_rank(world: World, clock: list[float]) -> None:
    world.connected, world.stacks, world.state, world.working = {0, 1, 3}, {0: JOINING}, {2: "T"}, {2}
    assert looks(world, clock) == {}


def test_a_node_that_nobody_could_look_at_may_be_the_one_that_all_wait_for(world: World, clock: list[float]) -> None:
    """Also where no journal of its ranks is known: whoever follows the job has never reached it."""
    world.connected, world.stacks = {0}, {0: JOINING, 1: ASLEEP}
    world.unheard = {"node-b"}
    world.made.members = [member for member in world.made.members if member.place.node == "node-a"]
    assert looks(world, clock, times=3) == {}
    assert "node-b could not be looked at" in world.said


@pytest.mark.parametrize("working", [False, True])
def test_of_the_ranks_that_torchrun_started_the_one_that_does_not_come_is_missing(
    tmp_path: Path, world: World, working: bool, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = kept(tmp_path / "torchrun", attempt(launcher="torchrun"))
    made.at = replace(made.at, say=lambda *_, **__: None)
    for member in made.members:
        made.learn(member, journal("running", pid=100, started=1.0))

    def freeze(_: object, seconds: float) -> dict[str, Facts]:
        found: dict[str, Facts] = {}
        for node, ranks in (("node-a", (0, 1)), ("node-b", (2, 3))):
            one = {"state": "S", "wchan": "", "comm": "python", "cpu": 0.0}
            processes = [{**one, "pid": 100, "rank": None}, *({**one, "pid": 100 + r, "rank": r} for r in ranks)]
            processes[-1]["cpu"] = 0.5 * working
            stacks = {str(100 + rank): JOINING if rank != 3 else ASLEEP for rank in ranks}
            seen = {"processes": processes, "works": True, "moved": 99, "own_stacks": stacks, "stack": None}
            found[node] = {"ranks": {str(ranks[0]): seen}}
        return found

    monkeypatch.setattr(rendezvous, "freeze", freeze)
    world.connected = {0, 1, 2}
    world_of_torchrun = replace(world, made=made)
    found = looks(world_of_torchrun, clock, times=3)
    if working:
        assert found == {}
    else:
        ((node, (finding,)),) = found.items()
        assert (node, finding.cause) == ("node-b", "ranks-missing")
        assert "rank 3 on node-b has not come" in finding.says
        assert "3 of 4 wait for it" in finding.says
