"""`runbook run --drain`: drains nodes that a run proved bad, so that Slurm starts no more jobs on them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from runbook.causes.catalogue import causes_of_kind
from runbook.model.command_quoting import shell_word
from runbook.model.errors import Unreachable
from runbook.model.events import Event, OutcomeReached
from runbook.model.verdict import Finding, Verdict

if TYPE_CHECKING:
    from runbook.transport.slurm import SlurmNode

DRAIN_REASON_PREFIX = "runbook: "
"""The beginning of the reasons that runbook gives to Slurm: by it, nodes drained by runbook are known."""
MAX_REASON_CHARACTERS = 120  # the most characters of a reason; sinfo -R shows twenty of them


class Verdicts:
    """Reads a run's events, and collects the nodes that the run proved bad."""

    def __init__(self) -> None:
        self._stages: dict[str, dict[str, Finding | None]] = {}

    def __call__(self, event: Event) -> None:
        if isinstance(event, OutcomeReached):
            outcome = event.outcome
            failed = outcome.findings if outcome.verdict is Verdict.FAIL else ()
            self._stages.setdefault(event.stage, {})[outcome.node] = next(
                (finding for finding in failed if finding.cause in causes_of_kind("of the node")), None
            )

    def bad(self) -> dict[str, Finding]:
        """By bad node, the first finding that proves it bad. A stage in which all nodes agree proves none bad."""
        proven: dict[str, Finding] = {}
        for nodes in self._stages.values():
            alike = len(nodes) > 1 and len({finding.cause if finding else None for finding in nodes.values()}) == 1
            if not alike:
                proven = {**{name: finding for name, finding in nodes.items() if finding}, **proven}
        return proven


@dataclass(slots=True)
class Drained:
    """What was done: sentences, one a line, and the commands that are left for an administrator to type."""

    says: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)


def drain(bad: Mapping[str, Finding], run_id: str, at_most: float) -> Drained:
    """Drains the `bad` nodes. If these and the nodes that runbook drained before are more than `at_most` percent of the
    cluster, drains none. Raises Unreachable if Slurm cannot be asked.
    """
    done = Drained()
    if not bad:
        return done
    from runbook.transport.slurm import parse_slurm_nodes, run_slurm_program

    cluster = parse_slurm_nodes(run_slurm_program("scontrol", "show", "node"))
    wanted = nodes_to_drain(bad, cluster, done)
    ours = [node for node in cluster.values() if is_drained(node) and node.reason.startswith(DRAIN_REASON_PREFIX)]
    if len(ours) + len(wanted) > len(cluster) * at_most / 100:
        before = f", and {len(ours)} are drained already" if ours else ""
        done.says.append(
            f"{len(wanted)} of {len(cluster)} nodes would be drained{before}: more than --drain-at-most {at_most:g} "
            "%, so none is drained"
        )
        done.commands += [drain_command(name, drain_reason(bad[name], run_id)) for name in wanted]
        return done
    for name in wanted:
        why = drain_reason(bad[name], run_id)
        try:
            run_slurm_program("scontrol", "update", f"nodename={name}", "state=drain", f"reason={why}")
        except Unreachable as error:
            said = error.evidence[-1] if error.evidence else error.says
            done.says.append(f"{name} is not drained: {said}")
            done.commands.append(drain_command(name, why))
        else:
            done.says.append(f"{name} is drained: {why}")
    return done


def nodes_to_drain(bad: Mapping[str, Finding], cluster: Mapping[str, SlurmNode], done: Drained) -> list[str]:
    """The bad nodes that Slurm knows and that are not drained yet. `done` gets a sentence about each of the others."""
    wanted = []
    for name in bad:
        node = cluster.get(name)
        if node is None:
            done.says.append(f"{name} is not drained: Slurm knows no node of that name")
        elif is_drained(node):
            done.says.append(f"{name} is drained already: {node.reason}")
        else:
            wanted.append(name)
    return wanted


def is_drained(node: SlurmNode) -> bool:
    """Whether Slurm starts no more jobs on the node, because it is drained or being drained."""
    return any(state in ("DRAIN", "DRAINED", "DRAINING") for state in node.states)


def drain_reason(finding: Finding, run_id: str) -> str:
    """The reason given to Slurm: one line with the run's id at its end, without characters that would end the quotes in
    which Slurm shows it."""
    what = re.sub(r"[^ -~]|[\"'\\]", " ", finding.says)
    room = MAX_REASON_CHARACTERS - len(f"{DRAIN_REASON_PREFIX}{finding.cause}  ({run_id})")
    short = " ".join(what.split())
    return (
        f"{DRAIN_REASON_PREFIX}{finding.cause} {short if len(short) <= room else short[: room - 3].rstrip() + '...'} "
        f"({run_id})"
    )


def drain_command(name: str, why: str) -> str:
    """The command with which an administrator drains the node."""
    return f"sudo scontrol update nodename={shell_word(name)} state=drain reason={shell_word(why)}"


def drain_lines(done: Drained) -> Sequence[str]:
    """What was done, and the commands that are left, as lines for people."""
    return [*(f"drain: {line}" for line in done.says), *(f"  fix       {line}" for line in done.commands)]
