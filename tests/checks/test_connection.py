"""connection: from how far each rank came to who keeps the others apart, and whether the right machines met."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from runbook.checks import connection
from runbook.checks.connection import (
    join_progress_outcomes,
    join_ranks,
    misnumbered_rank_outcomes,
    tcp_fallback_outcomes,
    wrong_host_outcomes,
    wrong_rendezvous_findings,
)
from runbook.checks.context import Context
from runbook.checks.network.live_traffic import Between
from runbook.checks.ranks.evidence import rank_log_path
from runbook.checks.ranks.pool import Halt, RankPool
from runbook.model.inventory import Infiniband, Inventory
from runbook.model.verdict import Finding, Outcome, Verdict
from runbook.transport.remote_program import Remote

from .made_up_cluster import FakeRemote, Nobody, cluster, context, node, pool_of, verdicts

WAITING = (Verdict.UNKNOWN, ("ranks-missing",))
ORDER = ("imported", "listening", "dialling", "connected", "joined", "done")


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking at a rank waits for its stack to be written; ours lies there already. Nothing lies between these nodes."""
    monkeypatch.setattr("runbook.checks.ranks.evidence.STACK_DUMP_WAIT_S", 0.0)
    monkeypatch.setattr("runbook.checks.ranks.halts.examine_live_traffic", lambda _: Between())


def joining(inventory: Inventory | None = None, **steps: str) -> tuple[RankPool, Context]:
    """Ranks that came so far: node_a="listening"; a reason after a colon for those that dial."""
    pool = pool_of(inventory or cluster(node("node-a"), node("node-b"), node("node-c")))
    for member in pool.members:
        last, _, reason = steps[member.rank.node.replace("-", "_")].partition(":")
        member.step = last
        before = ORDER[: ORDER.index(last) + 1] if last in ORDER else ()
        if member.rank.rank == 0:
            before = tuple(step for step in before if step != "dialling")
        member.steps = {step: {"event": "step", "step": step} for step in before}
        if reason:
            member.steps["dialling"]["reason"] = reason
    return pool, Context(pool.run, pool.inventory, "connection", 0.0, lambda *_, **__: None)


def judged(pool: RankPool, at: Context) -> dict[str, tuple[Verdict, tuple[str, ...]]]:
    outcomes = join_progress_outcomes(pool, at)
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
    pool, at = joining(node_a="connected", node_b=f"dialling:{reason}", node_c="connected")
    assert judged(pool, at) == {"node-a": WAITING, "node-b": (Verdict.FAIL, (cause,)), "node-c": WAITING}


def test_every_rank_that_cannot_dial_is_named() -> None:
    pool, at = joining(node_a="listening", node_b="dialling:no answer", node_c="dialling:refused")
    found = judged(pool, at)
    assert found["node-b"] == (Verdict.FAIL, ("firewall-drop",))
    assert found["node-c"] == (Verdict.FAIL, ("firewall-reject",))


def test_ranks_that_reach_the_store_and_not_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, at = joining(node_a="connected", node_b="connected", node_c="joined")
    assert join_progress_outcomes(pool, at) is None, "connections between the nodes open: no port is closed"
    monkeypatch.setattr(
        "runbook.checks.ranks.halts.examine_live_traffic", lambda _: Between(blind={"node-a": "no sudo"})
    )
    found = judged(pool, at)
    assert set(found.values()) == {(Verdict.FAIL, ("data-ports-blocked",))}


def test_a_rule_between_the_nodes_is_named_instead_of_what_the_ranks_met(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = Finding("firewall-drop", "node-a drops TCP 29500: rule 7", "sudo nft delete rule …")
    monkeypatch.setattr("runbook.checks.ranks.halts.examine_live_traffic", lambda _: Between({"node-a": (rule,)}))
    pool, at = joining(node_a="listening", node_b="dialling:no answer", node_c="dialling:no answer")
    assert judged(pool, at) == {"node-a": (Verdict.FAIL, ("firewall-drop",)), "node-b": WAITING, "node-c": WAITING}


def dials(pool: RankPool, number: int, address: str, port: int, step: str = "dialling") -> None:
    pool.members[number].steps[step] |= {"address": address, "port": port, "reason": "refused"}


@pytest.mark.parametrize(
    ("address", "cause"),
    [
        ("127.0.0.1", "master-addr-loopback"),
        ("::1", "master-addr-loopback"),
        ("10.0.0.9", "master-addr-wrong-host"),
        ("fd00::9", "master-addr-wrong-host"),
    ],
)
def test_a_rank_that_dials_elsewhere(address: str, cause: str) -> None:
    pool, at = joining(node_a="listening", node_b="dialling", node_c="connected")
    dials(pool, 1, address, 29500)
    assert judged(pool, at)["node-b"] == (Verdict.FAIL, (cause,))


@pytest.mark.parametrize("addresses", [("10.0.0.1", "10.0.0.9"), ("fd00::1", "fd00::9"), ("gpu1.lab", "gpu2.lab")])
def test_only_another_place_than_the_rendezvous_is_elsewhere(addresses: tuple[str, str]) -> None:
    right, wrong = addresses
    for address, port, astray in ((right, 29500, []), (right, 29501, ["node-a"]), (wrong, 29500, ["node-a"])):
        inventory = cluster(node("node-a", address=right), node("node-b"), node("node-c"))
        pool, at = joining(inventory, node_a="listening", node_b="dialling", node_c="connected")
        dials(pool, 0, address, port, "listening")
        dials(pool, 1, right, 29500)
        assert list(wrong_rendezvous_findings(pool, connection.rendezvous_endpoint(at))) == astray


def test_a_master_that_listens_elsewhere_is_to_blame_for_those_who_are_refused() -> None:
    pool, at = joining(node_a="listening", node_b="dialling", node_c="dialling")
    dials(pool, 0, "10.0.0.1", 29777, "listening")
    for number in (1, 2):
        dials(pool, number, "10.0.0.1", 29500)
    expected = (Verdict.FAIL, ("master-addr-wrong-host",))
    assert judged(pool, at) == {"node-a": expected, "node-b": WAITING, "node-c": WAITING}


def test_a_master_that_may_only_be_slow_is_not_yet_to_blame_for_those_who_are_refused() -> None:
    """On a busy machine rank 0 takes seconds to open its store, and perhaps it will listen elsewhere."""
    pool, at = joining(node_a="imported", node_b="dialling:refused", node_c="dialling:refused")
    assert join_progress_outcomes(pool, at, proven=True) is None
    pool.members[0].steps["started"] = {"event": "step", "pid": 7}
    assert judged(pool, at) == {"node-a": (Verdict.FAIL, ("ranks-missing",)), "node-b": WAITING, "node-c": WAITING}


@pytest.mark.parametrize(
    ("rank", "world", "cause"),
    [(1, 3, None), (0, 3, "duplicate-rank"), (1, 4, "world-size-mismatch"), (2, 9, "duplicate-rank")],
)
def test_a_rank_that_was_told_who_it_is_by_somebody_else(rank: int, world: int, cause: str | None) -> None:
    pool, _ = joining(node_a="imported", node_b="imported", node_c="imported")
    pool.members[1].steps["started"] = {"event": "step", "seat": {"rank": rank, "world_size": world}}
    outcomes = misnumbered_rank_outcomes(pool)
    if cause is None:
        assert outcomes is None
    else:
        assert verdicts(outcomes or [])["node-b"] == (Verdict.FAIL, (cause,))


def test_a_rank_that_never_imported() -> None:
    pool, at = joining(node_a="listening", node_b="started", node_c="connected")
    pool.members[1].log = ["OMP: Warning #123\n"]
    assert judged(pool, at) == {"node-a": WAITING, "node-b": (Verdict.FAIL, ("ranks-missing",)), "node-c": WAITING}
    outcome = (join_progress_outcomes(pool, at) or [])[1]
    assert outcome.findings[0].evidence == ("OMP: Warning #123",)


@pytest.mark.parametrize("state", ["T", "t", "D", "Z"])
def test_a_process_that_is_stopped_or_dead_is_left_to_the_halts(state: str) -> None:
    pool, at = joining(node_a="listening", node_b="dialling:no answer", node_c="connected")
    pool.members[1].remote = cast(Remote, FakeRemote(state))
    assert join_progress_outcomes(pool, at) is None


def test_when_no_step_tells_it_is_left_to_the_halts() -> None:
    pool, at = joining(node_a="done", node_b="done", node_c="done")
    assert join_progress_outcomes(pool, at) is None


def met(at: Context, pool: RankPool, *machines: str) -> list[Outcome] | None:
    pool.extra["world"] = {"event": "world", "hosts": [{"host": f"h-{m}", "machine": m} for m in machines]}
    return wrong_host_outcomes(pool, at)


def two(**options: Any) -> tuple[RankPool, Context]:
    return joining(cluster(node("node-a", **options), node("node-b", **options)), node_a="done", node_b="done")


def test_the_right_machines_met() -> None:
    pool, at = two()
    assert met(at, pool, "boot-node-a", "boot-node-b") is None


def test_a_rank_from_another_machine() -> None:
    pool, at = two()
    outcomes = met(at, pool, "boot-node-a", "boot-node-x") or []
    assert verdicts(outcomes)["node-b"] == (Verdict.FAIL, ("solo-world",))
    assert "h-boot-node-x" in outcomes[1].findings[0].says


def one_machine(pool: RankPool, *names: str) -> None:
    for name in names:
        cast(Nobody, pool.run.site.sessions[name]).hello["machine"] = "boot-same"


def test_two_nodes_that_are_one_machine_over_ssh() -> None:
    pool, at = two()
    one_machine(pool, "node-a", "node-b")
    assert verdicts(met(at, pool, "boot-same", "boot-same") or [])["node-b"] == (Verdict.FAIL, ("solo-world",))


def test_two_nodes_that_are_meant_to_be_this_machine() -> None:
    pool, at = two(connection="local")
    one_machine(pool, "node-a", "node-b")
    assert met(at, pool, "boot-same", "boot-same") is None


def test_agents_on_loopback_are_one_machine_only_where_that_is_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, at = joining(
        cluster(
            node("node-a", connection="agent", address="127.0.0.1"),
            node("node-b", connection="agent", address="127.0.0.1"),
        ),
        node_a="done",
        node_b="done",
    )
    one_machine(pool, "node-a", "node-b")
    assert verdicts(met(at, pool, "boot-same", "boot-same") or [])["node-b"] == (Verdict.FAIL, ("solo-world",))
    monkeypatch.setattr(connection, "this_machine", lambda: "boot-same")
    assert met(at, pool, "boot-same", "boot-same") is None


def test_the_made_up_context_knows_its_machines() -> None:
    assert context(cluster()).machine("node-a") == "node-a"
    assert joining(node_a="done", node_b="done", node_c="done")[1].machine("node-b") == "boot-node-b"


@pytest.mark.parametrize(("network", "causes"), [("Socket", ["ib-not-used-socket-fallback"]), ("IB", [])])
def test_nccl_that_took_tcp_where_there_is_infiniband(tmp_path: Path, network: str, causes: list[str]) -> None:
    pool = pool_of(cluster(backend="nccl", infiniband=Infiniband("mlx5")))
    at = context(pool.inventory)
    pool.run.run_dir = tmp_path
    (tmp_path / "logs").mkdir()
    for member in pool.members:
        log = Path(rank_log_path(pool, member))
        log.write_text(f"node:7:7 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/{network}/0\n")
    outcomes = tcp_fallback_outcomes(pool, at) or []
    assert sorted({finding.cause for outcome in outcomes for finding in outcome.findings}) == causes


@pytest.mark.parametrize("met", [True, False])
def test_ranks_that_only_take_long_are_waited_for_and_never_pass_without_meeting(
    monkeypatch: pytest.MonkeyPatch, met: bool
) -> None:
    """Data flows between them, so that no stall is proven."""
    pool, at = joining(node_a="joined", node_b="joined", node_c="joined")
    halts = [None, Halt("stalled", 4.0), Halt("stalled", 30.0), Halt("silent", 61.0)]
    halts.append(None if met else Halt("late", 120.0))
    monkeypatch.setattr(pool, "until", lambda *_, **__: halts.pop(0))
    monkeypatch.setattr(pool, "order", lambda _: None)
    monkeypatch.setattr(connection, "join_failure_outcomes", lambda *_: [])
    outcomes = join_ranks(pool, at)
    assert halts == []
    assert pool.joined is met
    assert (outcomes is None) is met
    assert {one.verdict for one in outcomes or ()} <= {Verdict.UNKNOWN}
