"""Every node once, with what is known of it: its groups, its agent, its ranks and how they are."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from runbook.load.inventory import natural
from runbook.serve.agents.fleet import Fleet
from runbook.serve.agents.states import AgentState
from runbook.serve.runs.folders import NoRun, RunFilter, RunRow
from runbook.serve.workspace import GroupView, Workspace

GLYPHS = {
    "running": "▶",
    "waiting": "·",
    "ended": "✓",
    "failed": "✗",
    "unknown": "?",
    "none": "–",
}
"""Of ranks, by the word for how one is: `waiting` before the launch, `none` where nothing was started."""

_WORDS = {"waiting": "waiting", "running": "running", "stopping": "running", "ended": "ended", "failed": "failed"}
"""Our words for an agent's."""

NODE_GLYPHS = {
    "ONLINE": "●",
    "SUSPECT": "◐",
    "LOST": "○",
    "DRAINING": "◇",
    "REVOKED": "⊘",
    "TOO_OLD": "▲",
    "no agent": "–",
}
"""Of nodes, by the state of their agent."""


@dataclass(frozen=True, slots=True)
class RankCell:
    """A rank on a node. `step_age_s` is how long ago it told of that step; `pid` of the process kept for it, and in which
    attempt of its launch that is."""

    rank: int
    state: str
    step: str | None = None
    step_age_s: float | None = None
    pid: int | None = None
    attempt: int | None = None

    @property
    def glyph(self) -> str:
        return GLYPHS.get(self.state, "?")


@dataclass(frozen=True, slots=True)
class NodeRow:
    """`state` is the agent's, or `no agent`; `beat_age_s` since its last heartbeat. `run` is the group's latest."""

    name: str
    group: str
    state: str
    address: str
    beat_age_s: float | None
    gpus: str
    load: float | None
    version: str
    ranks: tuple[RankCell, ...]
    run: str

    @property
    def glyph(self) -> str:
        return NODE_GLYPHS.get(self.state, "?")

    @property
    def busy(self) -> bool:
        return any(cell.state in ("running", "waiting") for cell in self.ranks)


def rows(workspace: Workspace, fleet: Fleet) -> list[NodeRow]:
    """By group, and in each as its ranks go; then the agents of no group, by name. A node of two groups has two rows."""
    agents = {agent.name: agent for agent in fleet.nodes()}
    found: list[NodeRow] = []
    seen: set[str] = set()
    for look in workspace.all_groups():
        found += _of_group(workspace, look, agents)
        seen.update(row.name for row in found)
    for name in sorted(set(agents) - seen, key=natural):
        found.append(_row(name, "", agents[name], (), ""))
    return found


def _of_group(workspace: Workspace, look: GroupView, agents: Mapping[str, AgentState]) -> list[NodeRow]:
    name = look.file.name
    latest = latest_run(workspace, name)
    states = rank_states(workspace, latest) if latest else {}
    cells: dict[str, list[RankCell]] = {node: [] for node in look.meaning.nodes}
    for rank in look.meaning.ranks:
        cells[rank.node].append(RankCell(rank.rank, states.get(rank.node, "none")))
    found = []
    for node, own in cells.items():
        agent = agents.get(node)
        job = latest.job if latest else ""
        found.append(_row(node, name, agent, _told(own, agent, job), latest.id if latest else ""))
    return found


def _row(name: str, group: str, agent: AgentState | None, ranks: tuple[RankCell, ...], run: str) -> NodeRow:
    if agent is None:
        return NodeRow(name, group, "no agent", "", None, "", None, "", ranks, run)
    gpus = str(len(agent.gpus))
    return NodeRow(
        name, group, agent.state, agent.address, agent.beat_age_s, gpus, agent.load, agent.version, ranks, run
    )


def _told(cells: Iterable[RankCell], agent: AgentState | None, job: str) -> tuple[RankCell, ...]:
    """What the node's agent says of the job's ranks, in its latest attempt, is newer than what the run has written."""
    own = [one for one in (agent.jobs if agent else ()) if one.job == job]
    told = {
        one.rank: RankCell(one.rank, _WORDS.get(one.state, "unknown"), one.step, one.step_age_s, one.pid, one.attempt)
        for one in sorted(own, key=lambda one: one.attempt)
    }
    return tuple(told.get(cell.rank, cell) for cell in cells)


def latest_run(workspace: Workspace, group: str) -> RunRow | None:
    found, _ = workspace.runs.search(RunFilter(group=group), most=1)
    return found[0] if found else None


def rank_states(workspace: Workspace, run: RunRow) -> dict[str, str]:
    """By node, how its ranks are, as far as the run has written: one of GLYPHS."""
    alive = workspace.processes.lives(run.id)
    try:
        document = workspace.runs.document(run.id)
    except NoRun:
        return {}
    launches = [stage for stage in document["stages"] if stage.get("check") == "launch"]
    if not launches:
        return dict.fromkeys(run.nodes, "waiting" if alive else "none")
    verdicts = {one["node"]: one["verdict"] for one in launches[-1].get("outcomes", ())}
    words = {"pass": "ended", "fail": "failed", "unknown": "unknown", "skip": "none"}
    return {node: words.get(verdicts.get(node, ""), "running" if alive else "unknown") for node in run.nodes}


def ago(seconds: float | None) -> str:
    """How long ago, short: `3 s`, `12 min`, `5 h`, `2 d`; empty for what is not known."""
    if seconds is None:
        return ""
    seconds = max(0.0, seconds)
    for limit, divisor, unit in ((90, 1, "s"), (5400, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / divisor:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def moment(at: float | None) -> str:
    """A time of this machine's clock, for people."""
    return "" if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
