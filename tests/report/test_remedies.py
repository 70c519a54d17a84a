"""Where a remedy is to be done, as it is printed."""

from __future__ import annotations

import pytest

from runbook.model.verdict import Finding, Outcome, Verdict
from runbook.report.groups import FindingBlock, blocks
from runbook.report.record import record
from runbook.report.remedies import commands, placed

from .stories import PAIR, Story
from .test_console import page

A, B, BOTH = ("node-a",), ("node-b",), ("node-a", "node-b")


@pytest.mark.parametrize(
    ("remedy", "nodes", "parts"),
    [
        ("sudo reboot", B, [("node-b", "sudo reboot")]),
        ("sudo nft a && sudo nft b", BOTH, [("node-[a-b]", "sudo nft a && sudo nft b")]),
        ("echo '10.0.0.1 x' | sudo tee -a /etc/hosts", A, [("node-a", "echo '10.0.0.1 x' | sudo tee -a /etc/hosts")]),
        ("on node-b: `sudo tc qdisc del dev eth0 root`", B, [("node-b", "sudo tc qdisc del dev eth0 root")]),
        ("on node-b: `kill -CONT 4`, or wait", B, [("node-b", "`kill -CONT 4`, or wait")]),
        ("on node-a: sudo x; on node-b: sudo y", A, [("node-a", "sudo x"), ("node-b", "sudo y")]),
        ("on node-b, then on its switch: `ethtool eth0`", B, [("", "on node-b, then on its switch: `ethtool eth0`")]),
        ("on node-bc: `x`", B, [("", "on node-bc: `x`")]),
        ("`chmod 600 ~/.ssh/key`", B, [("", "`chmod 600 ~/.ssh/key`")]),
        ("see who it is: `sudo ss -ltnp` there", B, [("", "see who it is: `sudo ss -ltnp` there")]),
        ("take `hca:` out of the inventory", B, [("", "take `hca:` out of the inventory")]),
        ("sudo systemctl start ssh", (), [("", "sudo systemctl start ssh")]),
    ],
)
def test_a_command_is_given_its_node(remedy: str, nodes: tuple[str, ...], parts: list[tuple[str, str]]) -> None:
    assert list(placed(remedy, nodes, BOTH)) == parts


@pytest.mark.parametrize(
    ("remedy", "typed"),
    [
        ("sudo reboot", [("node-b", "sudo reboot")]),
        ("on node-b: `sudo tc qdisc del dev eth0 root`", [("node-b", "sudo tc qdisc del dev eth0 root")]),
        ("on node-a: sudo x; on node-b: sudo y", [("node-a", "sudo x"), ("node-b", "sudo y")]),
        ("on node-b: `kill -CONT 4`, or wait", []),
        ("see who it is: `sudo ss -ltnp` there", []),
        ("take `hca:` out of the inventory", []),
    ],
)
def test_only_what_is_surely_typed_on_a_node_is_a_command(remedy: str, typed: list[tuple[str, str]]) -> None:
    assert list(commands(remedy, "node-b", BOTH)) == typed


def told(*findings: Finding, verdict: Verdict = Verdict.FAIL) -> tuple[list[FindingBlock], str]:
    story = Story(PAIR, "reach")
    outcomes = (Outcome(node, verdict, None, (one,)) for node, one in zip(BOTH, findings, strict=True))
    story.step("reach", 1.0, *outcomes)
    events = story.end(verdict, 1, "reach", (findings[0].cause,))
    return blocks(record(events).stages, [findings[0].cause]), page(events)


def test_what_differs_in_the_nodes_own_name_is_said_once() -> None:
    (block,), shown = told(
        *(Finding("memlock-limit", f"logins on {n} lock little", f"on {n}: `ulimit -l`", ("64 KiB",)) for n in BOTH)
    )
    assert [entry.says for entry in block.entries] == ["logins on node-[a-b] lock little"]
    assert "   fix on node-[a-b]  ulimit -l\n" in shown
    assert shown.count("64 KiB") == 1
    assert shown.count("ulimit -l") == 1


def test_a_command_never_gets_a_folded_name() -> None:
    _, shown = told(*(Finding("name-unresolvable", f"{n} is lost", f"sudo host {n}") for n in BOTH))
    assert "fix on node-a  sudo host node-a\n" in shown
    assert "fix on node-b  sudo host node-b\n" in shown
    _, shown = told(*(Finding("name-unresolvable", f"{n} is lost", f"ssh {n} sudo true") for n in BOTH))
    assert "fix       ssh node-a sudo true\n" in shown
    assert "fix       ssh node-b sudo true\n" in shown


def test_of_a_common_cause_the_evidence_is_told_once_and_every_fix() -> None:
    findings = [
        Finding("ssh-auth-failed", f"{n}: 10.0.0.{i} says no", f"sudo x {i}", (f"seen {i}",))
        for i, n in enumerate(BOTH)
    ]
    _, shown = told(*findings)
    assert "seen 0" in shown
    assert "seen 1" not in shown
    assert "as for node-a, but for names and numbers" in shown
    assert "fix on node-a  sudo x 0" in shown
    assert "fix on node-b  sudo x 1" in shown


def test_what_all_show_comes_first_and_stays_with_its_heading() -> None:
    same = ("all", "rank is in:", "  frame", "next: try again", "why: that many")
    (block,), shown = told(*(Finding("mtu-blackhole", "lost", "look", (*same, *more)) for more in ((), ("kept",))))
    assert block.entries[0].evidence == ((BOTH, ("all", "rank is in:", "  frame")), (B, ("kept",)))
    assert "   next      try again\n" in shown
    assert "   why       that many\n" in shown
    assert shown.index("   fix  ") < shown.index("   next  ")


def test_a_node_that_cannot_be_reached_and_one_that_waited() -> None:
    _, shown = told(*(Finding("ssh-refused", f"{n}: no", "`x`") for n in BOTH), verdict=Verdict.UNKNOWN)
    assert " reach: node-[a-b] cannot be reached: ssh-refused\n" in shown
    assert "unknown" in shown
    assert "UNKNOWN at reach" in shown
