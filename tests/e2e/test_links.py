"""`links` on real hosts with limited links: who is slow is named, with the direction, and nobody else."""

from __future__ import annotations

import csv
import json
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from lab import Lab
from lab.cli import CliResult, runbook_finish, runbook_start
from lab.needs import lab_missing

pytestmark = [
    pytest.mark.lab,
    pytest.mark.torch,
    pytest.mark.skipif(bool(lab_missing()), reason="; ".join(lab_missing()) or "no lab"),
]

PLAYBOOK = """\
name: links
stages:
  - check: connection
  - {check: links, pairs: auto}
"""

LEAF = 4
SEEDS = [pytest.param(seed, marks=pytest.mark.scale if seed else ()) for seed in range(20)]

Found = dict[str, set[str]]
"""The causes that are told of each node that failed."""


def all_at(lab: Lab, mbit: float) -> None:
    """Every host sends and receives so much. All links together must stay far below what the machine's CPUs can move."""
    for host in lab:
        host.unlimit()
        host.limit(mbit)
        host.limit_incoming(mbit)


def in_leaves(lab: Lab) -> dict[str, Any]:
    return {"nodes": {host.name: {"leaf": f"leaf{host.index // LEAF}"} for host in lab}}


def run_links(lab: Lab, **overrides: Any) -> tuple[CliResult, Any, list[dict[str, str]]]:
    """What was printed, the stage in the result, and the rows of links.csv."""
    number = len(list(lab.tmp.glob("links-*")))
    run_dir = lab.tmp / f"links-{number}"
    playbook = lab.tmp / "links.yml"
    playbook.write_text(PLAYBOOK)
    inventory = lab.inventory(**overrides)
    done = runbook_finish(runbook_start(lab, "run", playbook, "-i", inventory, "--run-dir", run_dir), timeout=240)
    result = json.loads((run_dir / "result.json").read_text())
    stage = next((stage for stage in result["stages"] if stage["name"] == "links"), None)
    assert stage, done
    with (run_dir / "links.csv").open() as file:
        return done, stage, list(csv.DictReader(file))


def accused(stage: Any) -> Found:
    return {
        outcome["node"]: {finding["cause"] for finding in outcome["findings"]}
        for outcome in stage["outcomes"]
        if outcome["verdict"] == "fail"
    }


def says(stage: Any) -> str:
    return " ".join(f["says"] for outcome in stage["outcomes"] for f in outcome["findings"])


@pytest.mark.xdist_group("one at a time")
@pytest.mark.thorough
def test_of_eight_hosts_the_slow_sender_is_named() -> None:
    with Lab(8) as lab:
        all_at(lab, 30)
        lab["node-c"].limit(15)
        done, stage, rows = run_links(lab)
        assert accused(stage) == {"node-c": {"node-slow"}}, done
        assert re.search(r"node-c sends at (?:[\d.]+ to )?1\d", says(stage))
        assert "eth0 is limited to 15 Mbit/s" in done.stdout
        assert done.returncode == 1
        tried = {(row["from"], row["to"]) for row in rows}
        assert len(tried) == 8 * 7
        told = {(link["from"], link["to"], link["round"]) for link in stage["metrics"]["links"]}
        assert told == {(row["from"], row["to"], int(row["round"])) for row in rows if row["counts"] == "1"}


@pytest.mark.xdist_group("one at a time")
@pytest.mark.thorough
def test_of_four_hosts_the_link_that_loses_packets_is_named_and_then_the_node() -> None:
    """The rate is as good as any: on so short a way TCP hides the loss."""
    with Lab(4) as lab:
        all_at(lab, 30)
        lab["node-b"].switch_rule(f"ip daddr {lab['node-d'].address} numgen random mod 100 < 6 drop")
        done, stage, _ = run_links(lab)
        assert accused(stage) == {"node-b": {"link-lossy"}, "node-d": {"link-lossy"}}, done
        assert "of the TCP segments or more are lost" in done.stdout
        lab["node-b"].lose(5)
        done, stage, _ = run_links(lab)
        # Where the loss takes most of the rate as well, the node is slow: a rate limit loses packets too. On a machine that
        # is busy with other tests it may stay unknown.
        named = ({"node-b": {"link-lossy"}}, {"node-b": {"node-slow"}})
        assert accused(stage) in (named if done.returncode == 1 else ({},)), done
        assert done.returncode in (1, 3)


@pytest.fixture(scope="module")
def sixteen() -> Iterator[Lab]:
    with Lab(16) as lab:
        yield lab


Break = Callable[[Lab, random.Random], Found]


def slow_sender(lab: Lab, chance: random.Random) -> Found:
    host = chance.choice(lab.hosts)
    host.limit(8)
    return {host.name: {"node-slow"}}


def slow_receiver(lab: Lab, chance: random.Random) -> Found:
    host = chance.choice(lab.hosts)
    host.limit_incoming(8)
    return {host.name: {"node-slow"}}


def slow_link(lab: Lab, chance: random.Random) -> Found:
    """Between two hosts that the first round has meet: host k of leaf a and host a of leaf k."""
    leaf, place = chance.sample(range(LEAF), 2)
    one, other = lab.hosts[leaf * LEAF + place], lab.hosts[place * LEAF + leaf]
    one.limit_towards(other.address, 8, 16)
    return {one.name: {"link-slow"}, other.name: {"link-slow"}}


def slow_leaf(lab: Lab, chance: random.Random) -> Found:
    """Each of its hosts, also among themselves."""
    number = chance.randrange(LEAF)
    hosts = lab.hosts[number * LEAF : (number + 1) * LEAF]
    for host in hosts:
        host.limit(8)
    return {host.name: {"leaf-slow"} for host in hosts}


def sound(_lab: Lab, _chance: random.Random) -> Found:
    return {}


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.xdist_group("one at a time")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("broken", [slow_sender, slow_receiver, slow_link, slow_leaf, sound])
def test_of_sixteen_hosts_the_slow_one_is_named(sixteen: Lab, broken: Break, seed: int) -> None:
    all_at(sixteen, 16)
    wanted = broken(sixteen, random.Random(seed))
    done, stage, _ = run_links(sixteen, **in_leaves(sixteen))
    assert accused(stage) == wanted, done


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.xdist_group("one at a time")
@pytest.mark.parametrize("seed", SEEDS)
def test_of_sixteen_hosts_the_leaf_with_a_narrow_uplink_is_named_and_none_of_its_hosts(sixteen: Lab, seed: int) -> None:
    number = random.Random(seed).randrange(LEAF)
    hosts = sixteen.hosts[number * LEAF : (number + 1) * LEAF]
    all_at(sixteen, 16)
    sixteen.leaf("narrow", hosts, leaves=12)  # of each pair one sends first, so two of the four send at once
    try:
        done, stage, _ = run_links(sixteen, **in_leaves(sixteen))
    finally:
        sixteen.join("narrow", hosts)
    assert accused(stage) == {host.name: {"leaf-slow"} for host in hosts}, done
    assert f"all 4 nodes of leaf{number}" in says(stage)
    assert f"what joins leaf{number} to the others is slow" in says(stage)
