"""shell: a stage of the user's own: one line of shell on every node, and what it must give."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from runbook.checks.base import Check
from runbook.checks.context import Context, no_answer
from runbook.model.playbook import Expect
from runbook.model.verdict import Finding, Outcome
from runbook.transport import Answer


@dataclass(frozen=True)
class Shell(Check):
    id: ClassVar[str] = "shell"
    timeout_s: ClassVar[float] = 60.0

    command: str = ""
    expect: Expect = field(default_factory=Expect)
    of_node: Mapping[str, str] = field(default_factory=dict)
    """The command on a node whose own facts or `vars` stand in it."""

    def run(self, at: Context) -> list[Outcome]:
        answers = at.each(lambda node: at.session(node).shell(self._command(node.name), timeout_s=at.left_s))
        return [self._judge(node.name, answers[node.name]) for node in at.nodes]

    def _command(self, node: str) -> str:
        return self.of_node.get(node, self.command)

    def _judge(self, node: str, answer: object) -> Outcome:
        if not isinstance(answer, Answer) or answer.timed_out:
            return no_answer(node, "shell", answer)
        said = tuple((answer.stdout + answer.stderr).strip().splitlines()[-8:])
        if answer.code != self.expect.exit:
            finding = Finding(
                "program-error",
                f"`{self._command(node)}` on {node} exited with {answer.code}, not {self.expect.exit}",
                f"run it on {node} by hand",
                said or ("it printed nothing",),
            )
            return Outcome.failed(node, finding)
        if self.expect.stdout is not None and not re.search(self.expect.stdout, answer.stdout, re.MULTILINE):
            finding = Finding(
                "program-error",
                f"`{self._command(node)}` on {node} printed nothing that matches /{self.expect.stdout}/",
                f"run it on {node} by hand",
                said or ("it printed nothing",),
            )
            return Outcome.failed(node, finding)
        first = answer.stdout.strip().splitlines()[:1]
        return Outcome.passed(node, f"exit {answer.code}" + (f": {first[0][:100]}" if first else ""))
