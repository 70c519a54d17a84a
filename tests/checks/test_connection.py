"""connection: from how far each rank came to who keeps the others apart, and whether the right machines met."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runbook.checks.connection import unjoined, wrong_hosts
from runbook.checks.context import Context
from runbook.checks.gang import Gang
from runbook.model.inventory import Inventory
from runbook.model.verdict import Outcome, Verdict
from runbook.transport import Remote

from .world import FakeRemote, Nobody, cluster, context, gang_of, node, verdicts

WAITING = (Verdict.UNKNOWN, ("ranks-missing",))
ORDER = ("imported", "listening", "dialling", "connected", "joined", "done")


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking at a rank waits for its stack to be written; ours lies there already."""
    clock = SimpleNamespace(sleep=lambda _: None, monotonic=time.monotonic)
    monkeypatch.setattr("runbook.checks.gang.time", clock)


def joining(inventory: Inventory | None = None, **steps: str) -> tuple[Gang, Context]:
    """Ranks that came so far: node_a="listening"; a reason after a colon for those that dial."""
    gang = gang_of(inventory or cluster(node("node-a"), node("node-b"), node("node-c")))
    for member in gang.members:
        last, _, reason = steps[member.rank.node.replace("-", "_")].partition(":")
        member.step = last
        before = ORDER[: ORDER.index(last) + 1] if last in ORDER else ()
        if member.rank.rank == 0:
            before = tuple(step for step in before if step != "dialling")
        member.steps = {step: {"event": "step", "step": step} for step in before}
        if reason:
            member.steps["dialling"]["reason"] = reason
    return gang, Context(gang.run, gang.inventory, "connection", 0.0, lambda *_, **__: None)


def judged(gang: Gang, at: Context) -> dict[str, tuple[Verdict, tuple[str, ...]]]:
    outcomes = unjoined(gang, at)
    assert outcomes is not None
    assert [outcome.node for outcome in outcomes] == [one.name for one in at.nodes]
    return verdicts(outcomes)


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("no answer", "firewall-drop"),
        ("refused", "firewall-reject"),
        ("unresolvable: Name or service not known", "name-unresolvable"),
        ("unreachable: No route to host", "no-route"),
    ],
)
def test_a_rank_that_cannot_dial_the_master(reason: str, cause: str) -> None:
    gang, at = joining(node_a="connected", node_b=f"dialling:{reason}", node_c="connected")
    assert judged(gang, at) == {"node-a": WAITING, "node-b": (Verdict.FAIL, (cause,)), "node-c": WAITING}


def test_every_rank_that_cannot_dial_is_named() -> None:
    gang, at = joining(node_a="listening", node_b="dialling:no answer", node_c="dialling:refused")
    found = judged(gang, at)
    assert found["node-b"] == (Verdict.FAIL, ("firewall-drop",))
    assert found["node-c"] == (Verdict.FAIL, ("firewall-reject",))


def test_ranks_that_reach_the_store_and_not_each_other() -> None:
    gang, at = joining(node_a="connected", node_b="connected", node_c="joined")
    found = judged(gang, at)
    assert set(found.values()) == {(Verdict.FAIL, ("data-ports-blocked",))}


def test_a_rank_that_never_imported() -> None:
    gang, at = joining(node_a="listening", node_b="started", node_c="connected")
    gang.members[1].log = ["OMP: Warning #123\n"]
    assert judged(gang, at) == {"node-a": WAITING, "node-b": (Verdict.FAIL, ("ranks-missing",)), "node-c": WAITING}
    outcome = (unjoined(gang, at) or [])[1]
    assert outcome.findings[0].evidence == ("OMP: Warning #123",)


@pytest.mark.parametrize("state", ["T", "t", "D", "Z"])
def test_a_process_that_is_stopped_or_dead_is_left_to_the_halts(state: str) -> None:
    gang, at = joining(node_a="listening", node_b="dialling:no answer", node_c="connected")
    gang.members[1].remote = cast(Remote, FakeRemote(state))
    assert unjoined(gang, at) is None


def test_when_no_step_tells_it_is_left_to_the_halts() -> None:
    gang, at = joining(node_a="done", node_b="done", node_c="done")
    assert unjoined(gang, at) is None


def met(at: Context, gang: Gang, *machines: str) -> list[Outcome] | None:
    gang.extra["world"] = {"event": "world", "hosts": [{"host": f"h-{m}", "machine": m} for m in machines]}
    return wrong_hosts(gang, at)


def two(**options: Any) -> tuple[Gang, Context]:
    return joining(cluster(node("node-a", **options), node("node-b", **options)), node_a="done", node_b="done")


def test_the_right_machines_met() -> None:
    gang, at = two()
    assert met(at, gang, "boot-node-a", "boot-node-b") is None


def test_a_rank_from_another_machine() -> None:
    gang, at = two()
    outcomes = met(at, gang, "boot-node-a", "boot-node-x") or []
    assert verdicts(outcomes)["node-b"] == (Verdict.FAIL, ("solo-world",))
    assert "h-boot-node-x" in outcomes[1].findings[0].says


def one_machine(gang: Gang, *names: str) -> None:
    for name in names:
        cast(Nobody, gang.run.site.sessions[name]).hello["machine"] = "boot-same"


def test_two_nodes_that_are_one_machine_over_ssh() -> None:
    gang, at = two()
    one_machine(gang, "node-a", "node-b")
    assert verdicts(met(at, gang, "boot-same", "boot-same") or [])["node-b"] == (Verdict.FAIL, ("solo-world",))


def test_two_nodes_that_are_meant_to_be_this_machine() -> None:
    gang, at = two(connection="local")
    one_machine(gang, "node-a", "node-b")
    assert met(at, gang, "boot-same", "boot-same") is None


def test_the_made_up_context_knows_its_machines() -> None:
    assert context(cluster()).machine("node-a") == "node-a"
    assert joining(node_a="done", node_b="done", node_c="done")[1].machine("node-b") == "boot-node-b"
