"""Who is drained: only who was proven bad, by what stays with the machine, and never too many."""

from __future__ import annotations

import pytest

from runbook.causes.catalogue import causes_of_kind
from runbook.engine.slurm_drain import MAX_REASON_CHARACTERS, Verdicts, drain, drain_reason
from runbook.model.events import OutcomeReached
from runbook.model.verdict import Finding, Outcome

NODES = "".join(
    f"NodeName=n{n} Arch=x\n   NodeAddr=10.0.0.{n} Version=22\n   State=IDLE ThreadsPerCore=1\n\n" for n in range(1, 11)
)


def finding(cause: str, says: str = "it is broken") -> Finding:
    return Finding(cause, says, "mend it")


def verdicts(*outcomes: Outcome) -> Verdicts:
    read = Verdicts()
    for outcome in outcomes:
        read(OutcomeReached(0.0, "stage", outcome))
    return read


def test_the_causes_that_stay_with_a_machine_are_nothing_vague() -> None:
    assert causes_of_kind("of the node")
    assert not causes_of_kind("of the node") & (causes_of_kind("consequence") | causes_of_kind("vague"))


def test_a_failed_node_is_bad_and_an_unknown_one_is_not() -> None:
    read = verdicts(
        Outcome.failed("n1", finding("ib-port-not-active")),
        Outcome.unknown("n2", finding("ib-port-not-active")),
        Outcome.passed("n3", "it is up"),
    )
    assert set(read.bad()) == {"n1"}


@pytest.mark.parametrize(
    "cause", ["program-error", "gpu-busy", "gpu-count-mismatch", "workdir-not-writable", "port-in-use"]
)
def test_what_the_user_or_the_program_did_is_no_reason(cause: str) -> None:
    assert verdicts(Outcome.failed("n1", finding(cause)), Outcome.passed("n2", "fine")).bad() == {}


def test_what_all_nodes_have_alike_is_none_of_theirs() -> None:
    assert verdicts(*(Outcome.failed(f"n{n}", finding("clock-skew")) for n in (1, 2, 3))).bad() == {}


class Slurm:
    """Stands for scontrol: knows ten nodes, and takes what it is told, or nothing."""

    def __init__(self, nodes: str = NODES, refuses: str = "") -> None:
        self.nodes, self.refuses = nodes, refuses
        self.told: list[tuple[str, ...]] = []

    def __call__(self, *argv: str, **_: object) -> str:
        if argv[:3] == ("scontrol", "show", "node"):
            return self.nodes
        self.told.append(argv)
        if self.refuses:
            from runbook.model.errors import Unreachable

            raise Unreachable("slurm-step-failed", "scontrol ended with code 1", "look", (self.refuses,))
        return ""


def ask(monkeypatch: pytest.MonkeyPatch, slurm: Slurm) -> Slurm:
    monkeypatch.setattr("runbook.transport.slurm.run_slurm_program", slurm)
    return slurm


def test_a_bad_node_is_drained_with_the_cause_and_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = ask(monkeypatch, Slurm())
    done = drain({"n3": finding("ib-port-not-active", "mlx5_0 on n3 is Down")}, "20261122-1", 10.0)
    said = "reason=runbook: ib-port-not-active mlx5_0 on n3 is Down (20261122-1)"
    assert slurm.told == [("scontrol", "update", "nodename=n3", "state=drain", said)]
    assert done.commands == []


def test_more_than_the_limit_is_not_drained_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = ask(monkeypatch, Slurm())
    bad = {name: finding("clock-skew") for name in ("n1", "n2")}
    done = drain(bad, "r", 10.0)
    assert slurm.told == []
    assert "2 of 10 nodes" in done.says[0]
    assert len(done.commands) == 2
    assert len(drain(bad, "r", 20.0).says) == len(slurm.told) == 2


def test_those_of_earlier_runs_count_and_an_administrators_reason_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    earlier = NODES.replace("State=IDLE", "State=IDLE+DRAIN", 1).replace(
        "PerCore=1", "PerCore=1\n   Reason=runbook: clock-skew x (r)", 1
    )
    slurm = ask(monkeypatch, Slurm(earlier))
    assert "1 are drained already" in drain({"n2": finding("clock-skew")}, "r", 10.0).says[0]
    assert "n1 is drained already" in drain({"n1": finding("clock-skew")}, "r", 100.0).says[0]
    assert slurm.told == []


def test_without_the_right_the_command_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    ask(monkeypatch, Slurm(refuses="slurm_update error: Invalid user id"))
    done = drain({"n3": finding("clock-skew", "it's 12 s ahead")}, "r", 10.0)
    assert done.says == ["n3 is not drained: slurm_update error: Invalid user id"]
    assert done.commands == [
        "sudo scontrol update nodename=n3 state=drain reason='runbook: clock-skew it s 12 s ahead (r)'"
    ]


def test_a_node_that_slurm_does_not_know_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = ask(monkeypatch, Slurm())
    assert "Slurm knows no node" in drain({"other": finding("clock-skew")}, "r", 100.0).says[0]
    assert slurm.told == []


def test_a_reason_is_one_short_line_without_quotes() -> None:
    said = drain_reason(finding("packet-loss", 'a "b"\n' + "x" * 500), "20261122-1")
    assert len(said) <= MAX_REASON_CHARACTERS
    assert said.endswith("... (20261122-1)")
    assert not set(said) & set("\"'\n\\")
