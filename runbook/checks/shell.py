"""shell: a stage of the user's own: one line of shell on every node, and its expected result."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import ClassVar

from runbook.causes.catalogue import finding_for
from runbook.checks.base import Check
from runbook.checks.capped_output import OutputFile
from runbook.checks.context import Context, no_answer_outcome
from runbook.model.inventory import Node
from runbook.model.playbook import Expect
from runbook.model.units import bytes_text
from runbook.model.verdict import Outcome
from runbook.transport.remote_program import MAX_PROGRAM_OUTPUT_BYTES, Answer

_NEGATIVE_LOOKAROUND = re.compile(r"\(\?<?!")
"""A pattern that forbids something (a negative lookahead or lookbehind): it may be violated in the part of the output
that was not kept."""


NO_OUTPUT_EVIDENCE = ("it printed nothing",)
"""The evidence of a program that printed nothing."""


@dataclass(frozen=True)
class Shell(Check):
    id: ClassVar[str] = "shell"
    timeout_s: ClassVar[float] = 60.0

    command: str = ""
    expect: Expect = field(default_factory=Expect)
    of_node: Mapping[str, str] = field(default_factory=dict)
    """The command by node, for nodes whose own facts or `vars` are part of it; other nodes run `command`."""

    @property
    def summary(self) -> str:
        """The shell line (for one node as an example where it differs between nodes), and what is expected beyond exit
        code 0."""
        shown = next((f"on {node}: {line}" for node, line in self.of_node.items()), self.command)
        wanted = [f"exit code {self.expect.exit}"] if self.expect.exit else []
        wanted += [f"/{self.expect.stdout}/ in its output"] if self.expect.stdout is not None else []
        return shown + (f"  (expects {', '.join(wanted)})" if wanted else "")

    def run(self, at: Context) -> list[Outcome]:
        def one(node: Node) -> Answer:
            file = OutputFile(at.run.run_dir, f"{_stage_file_name(at.stage)}.{node.name}.log", at.run.redactor)
            try:
                return at.session(node).shell(self._command(node.name), timeout_s=at.left_s, on_output=file.add)
            finally:
                file.close()

        answers = at.each(one)
        with PatternSearch(self.expect.stdout or "") as search:
            return [self._judge(node.name, answers[node.name], search) for node in at.nodes]

    def _command(self, node: str) -> str:
        return self.of_node.get(node, self.command)

    def _judge(self, node: str, answer: object, search: PatternSearch) -> Outcome:
        """The outcome of one node."""
        if not isinstance(answer, Answer):
            return no_answer_outcome(node, "shell", answer)
        said = tuple((answer.stdout[-65536:] + answer.stderr).strip().splitlines()[-8:])
        if answer.timed_out:
            says = f"`{self._command(node)}` on {node} did not end in the time of the stage"
            finding = finding_for(
                "insufficient-evidence", says, said or NO_OUTPUT_EVIDENCE, way="shell-late", node=node
            )
            return Outcome.unknown(node, finding)
        if answer.flooded:
            most = bytes_text(MAX_PROGRAM_OUTPUT_BYTES)
            says = f"`{self._command(node)}` on {node} was stopped: it printed more than {most}"
            finding = finding_for("program-error", says, said, way="too-much-output")
            return Outcome.failed(node, finding)
        if answer.code != self.expect.exit:
            says = f"`{self._command(node)}` on {node} exited with {answer.code}, not {self.expect.exit}"
            finding = finding_for("program-error", says, said or NO_OUTPUT_EVIDENCE, way="shell", node=node)
            return Outcome.failed(node, finding)
        found = self.expect.stdout is None or search(answer.stdout)
        if found is None:
            says = (
                f"/{self.expect.stdout}/ could not be searched in what `{self._command(node)}` on {node} printed:"
                f" that takes more than {MAX_SEARCH_CPU_S:g} s or too much memory"
            )
            finding = finding_for("insufficient-evidence", says, said, way="pattern")
            return Outcome.unknown(node, finding)
        if answer.left_out and (not found or _NEGATIVE_LOOKAROUND.search(self.expect.stdout or "")):
            says = f"`{self._command(node)}` on {node} printed too much to be searched whole for /{self.expect.stdout}/"
            seen = (f"{answer.left_out} characters in the middle were not searched",)
            finding = finding_for("insufficient-evidence", says, seen, way="too-much-output")
            return Outcome.unknown(node, finding)
        if not found:
            says = f"`{self._command(node)}` on {node} printed nothing that matches /{self.expect.stdout}/"
            finding = finding_for("program-error", says, said or NO_OUTPUT_EVIDENCE, way="shell", node=node)
            return Outcome.failed(node, finding)
        first = answer.stdout.strip().splitlines()[:1]
        return Outcome.passed(node, f"exit {answer.code}" + (f": {first[0][:100]}" if first else ""))


def _stage_file_name(stage: str) -> str:
    """The name of the stage, which may be any text, made fit for a file name."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", stage)[:60].lstrip(".-") or "shell"


MAX_SEARCH_CPU_S = 2.0  # CPU seconds that the search of one text may take
_SEARCH_TIMEOUT_S = 30.0  # seconds by the clock that the same search may take on a busy machine
_REPETITION = re.compile(r"[*+{]")  # a pattern without any of these is searched in time proportional to the text
_MAX_SEARCH_MEMORY_BYTES = 512 << 20  # bytes of memory for the process that searches
_SEARCH_PROGRAM = """
import json, re, resource, signal, sys
try:
    resource.setrlimit(resource.RLIMIT_AS, ({bytes}, {bytes}))
except (OSError, ValueError):
    pass
for number in (signal.SIGVTALRM, signal.SIGALRM):
    signal.signal(number, signal.SIG_DFL)
pattern = re.compile(json.loads(sys.stdin.readline()), re.MULTILINE)
for line in sys.stdin:
    signal.setitimer(signal.ITIMER_VIRTUAL, {seconds})
    signal.setitimer(signal.ITIMER_REAL, {at_most})
    found = pattern.search(json.loads(line)) is not None
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    print(int(found), flush=True)
"""
"""The program that searches. The default action of both timers' signals kills it: a handler in Python might wait until
the search is over."""


class PatternSearch(AbstractContextManager["PatternSearch"]):
    """Whether a pattern (`^` and `$` match at every line) is found in a text: True, False, or None where that takes too
    long or too much memory.

    A pattern with repetitions is searched in a process of its own. The text comes from a node and may make a pattern
    take hours, and in this process all threads would wait for it.
    """

    def __init__(self, pattern: str, *, seconds: float = MAX_SEARCH_CPU_S) -> None:
        self._pattern = pattern
        self._seconds = seconds
        self._process: subprocess.Popen[str] | None = None

    def __call__(self, text: str) -> bool | None:
        if not _REPETITION.search(self._pattern):
            return re.search(self._pattern, text, re.MULTILINE) is not None
        said = self._asked(text)
        if not said:
            self._end()
            return None
        return said == "1\n"

    def _asked(self, text: str) -> str:
        """The line that the searching process answers; "" when it was killed."""
        process = self._process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(text) + "\n")
            process.stdin.flush()
            return process.stdout.readline()
        except BrokenPipeError:
            return ""

    def _start(self) -> subprocess.Popen[str]:
        program = _SEARCH_PROGRAM.format(
            seconds=self._seconds, at_most=_SEARCH_TIMEOUT_S, bytes=_MAX_SEARCH_MEMORY_BYTES
        )
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="ascii",
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(self._pattern) + "\n")
        return process

    def _end(self) -> None:
        """Kills the searching process, if there is one."""
        if self._process is None:
            return
        process, self._process = self._process, None
        process.kill()
        with suppress(BrokenPipeError), process:  # closes its pipes and waits for it
            pass

    def __exit__(self, *_: object) -> None:
        self._end()
