"""Where a remedy is to be done, as it is printed."""

from __future__ import annotations

from runbook.model.redact import Redactor
from runbook.model.remedy import Remedy, RemedyStep
from runbook.model.secrets import Secret
from runbook.model.verdict import Finding, Outcome, Verdict
from runbook.report.folding import FindingBlock, finding_blocks
from runbook.report.run_record import record_of_events

from .made_up_runs import PAIR, Story
from .test_console import page

A, B, BOTH = ("node-a",), ("node-b",), ("node-a", "node-b")


def test_every_step_is_given_its_place() -> None:
    everywhere = Remedy.run("sudo nft a", "sudo nft b")
    assert [(where, step.what) for where, step in everywhere.placed(BOTH)] == [
        ("node-[a-b]", "sudo nft a && sudo nft b")
    ]
    assert [where for where, _ in everywhere.placed(())] == [""]
    assert [where for where, _ in Remedy.note("see who it is").placed(B)] == [""]
    assert [where for where, _ in Remedy.note("`kill -CONT 4`, or wait", node="node-b").placed(B)] == ["node-b"]


def test_only_commands_are_typed_and_no_note_is() -> None:
    assert list(Remedy.run("sudo reboot").typed("node-b")) == [("node-b", "sudo reboot")]
    two = Remedy(RemedyStep("node-a", ("sudo x",)), RemedyStep("node-b", ("sudo y",)))
    assert two == "on node-a: `sudo x`; on node-b: `sudo y`"
    assert list(two.typed("node-c")) == [("node-a", "sudo x"), ("node-b", "sudo y")]
    assert list(Remedy.note("`kill -CONT 4`, or wait", node="node-b").typed("node-b")) == []
    assert list(Remedy.run("chmod 600 key", node="").typed("node-b")) == []


def test_several_become_one_with_a_step_a_node() -> None:
    one = Remedy(RemedyStep("node-a", ("sudo x",)), RemedyStep("node-b", ("sudo y",)))
    both = Remedy.together((one, Remedy.run("sudo z", node="node-a"), one))
    assert list(both.typed("node-c")) == [("node-a", "sudo x"), ("node-a", "sudo z"), ("node-b", "sudo y")]
    plain = Remedy.together(("sudo x", Remedy.note("then look", node="node-b"), "sudo x", "sudo y"))
    assert plain == "sudo x && sudo y; on node-b: then look"
    assert list(plain.typed("node-c")) == [("node-c", "sudo x"), ("node-c", "sudo y")]


def test_a_secret_in_a_command_leaves_it_a_command() -> None:
    redacted = Redactor([Secret("hunter2secret", "a test")]).anything(
        Finding("disk-full", "full", Remedy.run("rm /hunter2secret/x"))
    )
    assert isinstance(redacted.remedy, Remedy)
    assert [(where, "hunter2" in command) for where, command in redacted.remedy.typed("node-a")] == [("node-a", False)]
    assert "hunter2" not in redacted.remedy


def told(*findings: Finding, verdict: Verdict = Verdict.FAIL) -> tuple[list[FindingBlock], str]:
    story = Story(PAIR, "reach")
    outcomes = (Outcome(node, verdict, None, (one,)) for node, one in zip(BOTH, findings, strict=True))
    story.step("reach", 1.0, *outcomes)
    events = story.end(verdict, 1, "reach", (findings[0].cause,))
    return finding_blocks(record_of_events(events).stages, [findings[0].cause]), page(events)


def test_what_differs_in_the_nodes_own_name_is_said_once() -> None:
    (block,), shown = told(
        *(
            Finding("memlock-limit", f"logins on {n} lock little", Remedy.run("ulimit -l", node=n), ("64 KiB",))
            for n in BOTH
        )
    )
    assert [entry.says for entry in block.entries] == ["logins on node-[a-b] lock little"]
    assert "   fix on node-[a-b]  ulimit -l\n" in shown
    assert shown.count("64 KiB") == 1
    assert shown.count("ulimit -l") == 1


def test_a_command_never_gets_a_folded_name() -> None:
    _, shown = told(*(Finding("name-unresolvable", f"{n} is lost", Remedy.run(f"sudo host {n}")) for n in BOTH))
    assert "fix on node-a  sudo host node-a\n" in shown
    assert "fix on node-b  sudo host node-b\n" in shown
    _, shown = told(
        *(Finding("name-unresolvable", f"{n} is lost", Remedy.run(f"ssh {n} sudo true", node="")) for n in BOTH)
    )
    assert "fix       ssh node-a sudo true\n" in shown
    assert "fix       ssh node-b sudo true\n" in shown


def test_of_a_common_cause_the_evidence_is_told_once_and_every_fix() -> None:
    findings = [
        Finding("ssh-auth-failed", f"{n}: 10.0.0.{i} says no", Remedy.run(f"sudo x {i}"), (f"seen {i}",))
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
