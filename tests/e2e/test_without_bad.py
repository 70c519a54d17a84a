"""`when_bad: drop` in a lab: who is bad goes, the others go on as if they were all there is, and no such run passes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from lab import Host, Lab, runbook_cli
from lab.needs import lab_missing

from .conftest import Ran
from .test_links import all_at

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(bool(lab_missing()), reason="; ".join(lab_missing()) or "no lab"),
]

SMALL = ("-e", "max_bytes=64K", "-e", "iterations=2", "-e", "budget=5s")

NUMBERS = """\
name: who is who
stages:
  - check: ping
  - check: port
  - check: firewall
  - {name: numbers, launch: {command: ["{{ python }}", -c, "import os; print('I am', *(os.environ[k] for k in ('RANK', 'WORLD_SIZE', 'MASTER_ADDR')))"]}}
"""


def closed(host: Host) -> None:
    """To everything but logins and pings."""
    host.nft("add table inet odd; add chain inet odd c { type filter hook input priority 0; }")
    host.nft("add rule inet odd c tcp dport 1024-65535 drop")


def run(lab: Lab, playbook: str | Path, *arguments: str, timeout: float = 240) -> Ran:
    folder = lab.tmp / "run"
    given = ("run", str(playbook), "-i", str(lab.inventory()), "--run-dir", str(folder), *arguments)
    return Ran(runbook_cli(lab, *given, timeout=timeout), folder)


def last(ran: Ran) -> Mapping[str, dict[str, str]]:
    """By stage, as it was last looked at: what became of each node."""
    return {
        stage["name"]: {outcome["node"]: outcome["verdict"] for outcome in stage["outcomes"]}
        for stage in ran.document["stages"]
    }


def nodes(ran: Ran) -> tuple[Any, ...]:
    told = ran.document["nodes"]
    return told["bad"], told["dropped"], told["unknown"]


@pytest.mark.xdist_group("one at a time")
@pytest.mark.thorough
@pytest.mark.torch
def test_the_burn_in_takes_out_the_master_and_proves_the_others() -> None:
    with Lab(5) as lab:
        all_at(lab, 30)
        closed(lab["node-a"])
        ran = run(lab, "cluster_burn_in", *SMALL, "-e", "seconds=300ms")
    assert (ran.code, ran.document["verdict"], ran.document["stopped_at"]) == (1, "fail", None), ran.text()
    assert nodes(ran) == (["node-a"], ["node-a"], []), ran.text()
    rest = dict.fromkeys(("node-b", "node-c", "node-d", "node-e"), "pass")
    told = last(ran)
    assert {
        name: told[name] for name in ("ping", "port", "connection", "links", "AllReduce over all")
    } == dict.fromkeys(("ping", "port", "connection", "links", "AllReduce over all"), rest), ran.text()
    assert {*told["ibstat"].values(), *told["each node's own GPUs"].values()} == {"skip"}
    assert "going on with 4 nodes, master node-b" in ran.done.stdout
    assert f"joined at {lab['node-b'].address}:29500" in ran.done.stdout
    assert "without node-a; the other 4 nodes passed every stage" in ran.done.stdout


def test_a_launch_is_made_for_those_who_are_left() -> None:
    """The master cannot be looked at, and another one is bad: only the one is called so."""
    with Lab(5) as lab:
        lab["node-a"].stop_sshd(sessions=True)
        closed(lab["node-d"])
        playbook = lab.tmp / "numbers.yml"
        playbook.write_text(NUMBERS)
        ran = run(lab, playbook, "--without-bad")
        address = lab["node-b"].address
    assert ran.code == 1, ran.text()
    assert nodes(ran) == (["node-d"], ["node-a", "node-d"], ["node-a"]), ran.text()
    assert last(ran)["numbers"] == dict.fromkeys(("node-b", "node-c", "node-e"), "pass")
    for rank in range(3):
        assert f"I am {rank} 3 {address}" in ran.done.stdout, ran.text()
    assert "without node-d and node-a (unknown); the other 3 nodes passed every stage" in ran.done.stdout


def test_with_an_unknown_node_alone_it_is_neither_a_pass_nor_a_failure() -> None:
    with Lab(4) as lab:
        lab["node-c"].stop_sshd(sessions=True)
        playbook = lab.tmp / "ping.yml"
        playbook.write_text("when_bad: drop\nstages: [{check: ping}]\n")
        ran = run(lab, playbook)
        events = [json.loads(line) for line in (ran.folder / "events.jsonl").read_text().splitlines()]
    assert (ran.code, ran.document["verdict"], ran.document["stopped_at"]) == (3, "unknown", None), ran.text()
    assert nodes(ran) == ([], ["node-c"], ["node-c"])
    (drop,) = [event for event in events if event["event"] == "nodes-dropped"]
    assert (drop["stage"], drop["reasons"], drop["unknown"]) == ("reach", {"node-c": "ssh-refused"}, ["node-c"])
    assert drop["left"] == ["node-a", "node-b", "node-d"]


@pytest.mark.thorough
def test_never_below_the_fewest() -> None:
    with Lab(4) as lab:
        closed(lab["node-c"])
        closed(lab["node-d"])
        playbook = lab.tmp / "numbers.yml"
        playbook.write_text(NUMBERS)
        ran = run(lab, playbook, "--without-bad", "--min-nodes", "3")
    assert (ran.code, ran.document["stopped_at"]) == (1, "firewall"), ran.text()
    assert nodes(ran) == (["node-c", "node-d"], [], [])
    why = "without node-[c-d] only 2 of 4 nodes would be left, and `min_nodes` is 3"
    assert ran.document["not_dropped"] == why
    assert f"nobody dropped: {why}" in ran.done.stdout


@pytest.mark.xdist_group("one at a time")
@pytest.mark.thorough
@pytest.mark.torch
@pytest.mark.slow
def test_of_a_bad_link_one_end_goes() -> None:
    with Lab(6) as lab:
        all_at(lab, 30)
        lab["node-a"].limit_towards(lab["node-d"].address, 10, 30)
        ran = run(lab, "cluster_burn_in", *SMALL)
    assert (ran.code, ran.document["stopped_at"], ran.document["causes"]) == (1, None, ["link-slow"]), ran.text()
    assert nodes(ran) == ([], ["node-d"], []), ran.text()


@pytest.mark.torch
@pytest.mark.parametrize("bad", [pytest.param(0, marks=pytest.mark.scale), pytest.param(3, marks=pytest.mark.alone)])
def test_the_burn_in_of_64_hosts(lab_of: Callable[..., Lab], bad: int) -> None:
    """Without `links`, which would measure the CPUs that these hosts share. On a busy machine some may not import torch in time:
    they are left out as unknown, and nobody is accused."""
    lab = lab_of(hosts=64)
    names = [lab.hosts[place].name for place in (0, 20, 41)[:bad]]
    for name in names:
        closed(lab[name])
    arguments = (
        "--min-nodes",
        "32",
        "--skip-tags",
        "links",
        "-e",
        "max_bytes=4K",
        "-e",
        "iterations=1",
        "-e",
        "budget=5s",
    )
    ran = run(lab, "cluster_burn_in", *arguments, timeout=900)
    told_bad, dropped, unknown = nodes(ran)
    assert {*told_bad, *unknown} >= set(names) >= set(told_bad), ran.text()
    left_out = {*told_bad, *unknown}
    assert set(dropped) == (left_out if 64 - len(left_out) >= 32 else set()), ran.text()
    assert (ran.code, ran.document["stopped_at"]) == (1 if told_bad else 3 if unknown else 0, None), ran.text()
    assert [*last(ran)["AllReduce over all"].values()] == ["pass"] * (64 - len(dropped))
