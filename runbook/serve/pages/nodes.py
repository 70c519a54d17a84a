"""The fleet, which is every node with its groups, its agent and the states of its ranks; and one node: as pages and as
JSON."""

from __future__ import annotations

import contextlib
import gzip
from collections import Counter
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from statistics import fmean
from typing import Any
from urllib.parse import quote

import msgspec
from markupsafe import Markup
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from runbook.files.inventory import natural_sort_key
from runbook.model.safe_files import open_file_below
from runbook.serve.agent_fleet import Fleet
from runbook.serve.agent_states import AgentState
from runbook.serve.group_files import MAX_GROUP_BYTES
from runbook.serve.group_preview import assigned_ranks
from runbook.serve.guards import RequestRefused, read_json_body
from runbook.serve.page import Page
from runbook.serve.rendering import AsciiJson, ago, html_response, json_response, template_environment
from runbook.serve.run_folders import NoRun, RunFilter, RunRow
from runbook.serve.run_processes import GROUP
from runbook.serve.workspace import GroupView, Workspace, fleet_of, is_run_active, workspace_of

RANK_GLYPHS = {"running": "▶", "waiting": "·", "ended": "✓", "failed": "✗", "unknown": "?", "none": "–"}
"""The signs of ranks, by the page's word for a rank's state: `waiting` before the launch, `none` if nothing was
started."""

_RANK_STATE_WORDS = {
    "waiting": "waiting",
    "running": "running",
    "stopping": "running",
    "ended": "ended",
    "failed": "failed",
}
"""The page's words for the states that agents report."""

NODE_GLYPHS = {
    "ONLINE": "●",
    "SUSPECT": "◐",
    "LOST": "○",
    "DRAINING": "◇",
    "REVOKED": "⊘",
    "TOO_OLD": "▲",
    "no agent": "–",
}
"""The signs of nodes, by the state of their agent."""


class RankCell(msgspec.Struct, frozen=True, gc=False):
    """A rank on a node. `state` is a key of RANK_GLYPHS; `step_age_s` is the age of the step that it wrote last; `pid`
    is the process kept for it, and `attempt` that process's attempt of the launch."""

    rank: int
    state: str
    step: str | None = None
    step_age_s: float | None = None
    pid: int | None = None
    attempt: int | None = None

    @property
    def glyph(self) -> str:
        return RANK_GLYPHS.get(self.state, "?")


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node in a group. `state` is its agent's, or `no agent`; `beat_age_s` is the time since its agent was last
    heard. `gpu_use` is the mean share of the time that its GPUs work, in per cent. `run` is the id of the group's
    latest run. `spare`: the node has no ranks, and takes the place of a node that fails."""

    name: str
    group: str
    state: str
    address: str = ""
    beat_age_s: float | None = None
    gpus: str = ""
    gpu_use: float | None = None
    load: float | None = None
    version: str = ""
    ranks: tuple[RankCell, ...] = ()
    run: str = ""
    spare: bool = False

    @property
    def glyph(self) -> str:
        return NODE_GLYPHS.get(self.state, "?")

    @property
    def use(self) -> tuple[str, str, str]:
        """The number of GPUs, their use and the load, as they are shown."""
        used = "" if self.gpu_use is None else f"{self.gpu_use:.0f}"
        return "–" if self.gpus == "0" else self.gpus, used, "" if self.load is None else f"{self.load:.1f}"

    @property
    def busy(self) -> bool:
        return any(cell.state in ("running", "waiting") for cell in self.ranks)


def fleet_rows(workspace: Workspace, fleet: Fleet) -> list[NodeRow]:
    """The rows of the fleet, by group, and in each group by rank; then the agents of no group, by name. A node of two
    groups has two rows."""
    agents = {agent.name: agent for agent in fleet.nodes()}
    found: list[NodeRow] = []
    seen: set[str] = set()
    for look in workspace.all_groups():
        found += _rows_of_group(workspace, look, agents)
        seen.update(row.name for row in found)
    for name in sorted(set(agents) - seen, key=natural_sort_key):
        found.append(_node_row(name, "", agents[name]))
    return found


def _rows_of_group(workspace: Workspace, look: GroupView, agents: Mapping[str, AgentState]) -> list[NodeRow]:
    name, means = look.file.name, look.meaning
    latest = workspace.latest_run(name)
    states = rank_states(workspace, latest) if latest else {}
    nodes = (*means.nodes, *means.spares)
    given = ranks_of_run(workspace, look, latest) if latest else {}
    reported = {
        node: _reported_rank_cells(agents.get(node), latest.job, given.get(node, frozenset())) if latest else {}
        for node in nodes
    }
    planned: dict[str, dict[int, RankCell]] = {node: {} for node in nodes}
    for rank in means.ranks:
        planned[rank.node][rank.rank] = RankCell(rank.rank, states.get(rank.node, "none"))
    cells = rank_cells(planned, reported)
    run = latest.id if latest else ""
    return [_node_row(node, name, agents.get(node), cells[node], run, spare=node in means.spares) for node in nodes]


def _node_row(
    name: str,
    group: str,
    agent: AgentState | None,
    ranks: tuple[RankCell, ...] = (),
    run: str = "",
    *,
    spare: bool = False,
) -> NodeRow:
    if agent is None:
        return NodeRow(name, group, "no agent", ranks=ranks, run=run, spare=spare)
    return NodeRow(
        name,
        group,
        agent.state,
        address=agent.address,
        beat_age_s=agent.beat_age_s,
        gpus=str(len(agent.gpus)),
        gpu_use=fmean(used) if (used := [gpu.used for gpu in agent.gpus if gpu.used is not None]) else None,
        load=agent.load,
        version=agent.version,
        ranks=ranks,
        run=run,
        spare=spare,
    )


def _reported_rank_cells(agent: AgentState | None, job: str, given: Collection[int]) -> dict[int, RankCell]:
    """The ranks that a node's agent reports for this job, by rank, each in its latest attempt. Ranks that the run has
    not given to the node are ignored: an agent is not believed about them."""
    own = [one for one in (agent.jobs if agent else ()) if one.job == job and one.rank in given]
    return {
        one.rank: RankCell(
            one.rank, _RANK_STATE_WORDS.get(one.state, "unknown"), one.step, one.step_age_s, one.pid, one.attempt
        )
        for one in sorted(own, key=lambda one: one.attempt)
    }


def rank_cells(
    planned: Mapping[str, Mapping[int, RankCell]], reported: Mapping[str, Mapping[int, RankCell]]
) -> dict[str, tuple[RankCell, ...]]:
    """The ranks of each node, by its name. An agent's report replaces what the run has written, which is older. A rank
    that is reported by another node than the planned one has moved to that node, a spare."""
    moved = {rank: node for node, own in reported.items() for rank in own}
    return {
        node: tuple(cell for rank, cell in sorted({**cells, **reported[node]}.items()) if moved.get(rank, node) == node)
        for node, cells in planned.items()
    }


def ranks_of_run(workspace: Workspace, look: GroupView, run: RunRow) -> Mapping[str, frozenset[int]]:
    """The ranks that the run has given to each node by now: by the group's file as it was when the run began, and by
    the spares that took a node's place since."""
    try:
        folder, took_over = workspace.runs.path(run.id), workspace.runs.took_over(run.id)
    except NoRun:
        return {}
    text = look.file.text
    with contextlib.suppress(OSError, ValueError), open_file_below(folder, GROUP) as file:
        text = file.read(MAX_GROUP_BYTES).decode("utf-8-sig")
    return assigned_ranks(look.file.path, text, tuple(took_over.items()))


def rank_states(workspace: Workspace, run: RunRow) -> dict[str, str]:
    """The state of the ranks of each node (a key of RANK_GLYPHS), as far as the run has written it."""
    alive = workspace.processes.lives(run.id)
    try:
        verdicts = workspace.runs.found(run.id, "launch", _launch_verdicts)
    except NoRun:
        return {}
    if verdicts is None:
        return dict.fromkeys(run.nodes, "waiting" if alive else "none")
    words = {"pass": "ended", "fail": "failed", "unknown": "unknown", "skip": "none"}
    return {node: words.get(verdicts.get(node, ""), "running" if alive else "unknown") for node in run.nodes}


def _launch_verdicts(document: Mapping[str, Any]) -> dict[str, str] | None:
    """The verdict about each node that the latest launch has given so far; None before a launch has begun."""
    launches = [stage for stage in document["stages"] if stage.get("check") == "launch"]
    return {one["node"]: one["verdict"] for one in launches[-1]["outcomes"]} if launches else None


MAX_RUNS_OF_NODE = 50
MAX_STATES_OF_NODE = 50
MIN_OLD_STEP_S = 60.0
"""A step that is older than this is shown with its age."""
GZIP_LEVEL = 1
"""The level of gzip: a higher level takes several times as long and saves little."""
MAX_CACHED_ROW_PARTS = 20_000
"""How many parts of rows of the fleet are kept as HTML: a name, a state, how busy a node is, its ranks."""


def _is_matching_row(row: NodeRow, words: list[str]) -> bool:
    states = " ".join(cell.state for cell in row.ranks)
    text = f"{row.name} {row.group} {row.state} {states}{' spare' * row.spare}".lower()
    return all(word in text for word in words)


@dataclass(frozen=True, slots=True)
class Grid:
    """The part of the fleet's page that changes, as HTML and packed by gzip. It is the same for everybody and holds no
    token, so that its packed size tells nothing secret (BREACH). A whole page holds a token, and is never packed."""

    whole: Markup
    packed: bytes


async def show_fleet(request: Request) -> Response:
    """The fleet's page. A page that is open already sends `X-Live`, and gets only the part that changes."""
    query = request.query_params.get("q", "")[:200]
    app = request.app.state
    make = partial(_make_fleet_grid, app.workspace, app.fleet, query)
    grid: Grid = await run_in_threadpool(app.grids.get, query, make)
    if "x-live" not in request.headers:
        answer = await html_response(request, "fleet.html", query=query, grid=grid.whole)
    elif "gzip" in request.headers.get("accept-encoding", ""):
        answer = HTMLResponse(grid.packed, headers={"content-encoding": "gzip"})
    else:
        answer = HTMLResponse(grid.whole)
    answer.background = BackgroundTask(app.grids.renew, query, make)
    return answer


def _make_fleet_grid(workspace: Workspace, fleet: Fleet, query: str) -> Grid:
    every = fleet_rows(workspace, fleet)
    found = [row for row in every if _is_matching_row(row, query.lower().split())]
    width = max((len(row.ranks) or int(row.spare) for row in found), default=0)
    markup = (
        template_environment()
        .get_template("fleet_grid.html")
        .render(
            rows=Markup("\n".join(_row_html(row, width) for row in found)),
            total=len(every),
            query=query,
            states=Counter(row.state for row in every),
            ranks=Counter(cell.state for row in every for cell in row.ranks),
            width=width,
            glyphs=RANK_GLYPHS,
            node_glyphs=NODE_GLYPHS,
        )
    )
    # Every value in it is escaped where the template shows it.
    return Grid(Markup(markup), gzip.compress(markup.encode(), GZIP_LEVEL))


def _row_html(row: NodeRow, width: int) -> str:
    """A row of the table, as HTML."""
    return "".join(
        (
            _row_part_html("begin", row.state in ("SUSPECT", "LOST")),
            _row_part_html("node", row.name, row.group),
            _row_part_html("agent", row.state, row.glyph),
            _row_part_html("heard", ago(row.beat_age_s)),
            _row_part_html("use", *row.use),
            _row_part_html("cells", row.ranks, MIN_OLD_STEP_S),
            _row_part_html("rest", width - len(row.ranks), row.spare and not row.ranks),
        )
    )


@lru_cache(MAX_CACHED_ROW_PARTS)
def _row_part_html(name: str, *values: Hashable) -> Markup:
    """A part of a row, made by the macro `name` of fleet_row.html; parts with the same values are made once."""
    made: Markup = getattr(template_environment().get_template("fleet_row.html").module, name)(*values)
    return made


async def node_page(request: Request) -> Response:
    known = await run_in_threadpool(_known_node, request)
    agent = fleet_of(request).node(known.name)
    return await html_response(request, "node.html", node=known.name, known=known, agent=agent, node_glyphs=NODE_GLYPHS)


@dataclass(frozen=True, slots=True)
class KnownNode:
    """What is known of a node. `rows` has the node in each of its groups; `states` the latest states of its agent and
    since when, the last one first; `runs` the latest of its `count` runs, each with whether it goes on, and with its
    findings about the node."""

    name: str
    rows: tuple[NodeRow, ...]
    states: tuple[tuple[float, str], ...]
    runs: tuple[tuple[RunRow, bool, list[dict[str, Any]]], ...]
    count: int


def _known_node(request: Request) -> KnownNode:
    """What is known of the node in the request's path. Raises RequestRefused if nothing is known of it."""
    name, workspace, fleet = request.path_params["name"], workspace_of(request), fleet_of(request)
    own = tuple(row for row in fleet_rows(workspace, fleet) if row.name == name)
    runs, count = workspace.runs.search(RunFilter(host=f"{name} "), most=MAX_RUNS_OF_NODE)
    if not own and not runs:
        raise RequestRefused(404, "no group, no agent and no run has such a node")
    states = tuple(fleet.history(name)[:MAX_STATES_OF_NODE])
    shown = tuple((run, is_run_active(workspace, run), _findings_about_node(workspace, run.id, name)) for run in runs)
    return KnownNode(name, own, states, shown, count)


def _findings_about_node(workspace: Workspace, id: str, name: str) -> list[dict[str, Any]]:
    """The findings of a run about the node: stage, cause, and the sentence."""

    def found(document: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [
            {"stage": stage["name"], "cause": finding["cause"], "says": finding["says"]}
            for stage in document["stages"]
            for outcome in stage["outcomes"]
            if outcome["node"] == name and outcome["verdict"] not in ("pass", "skip")
            for finding in outcome["findings"]
        ]

    return workspace.runs.found(id, f"findings of {name}", found)


async def drain(request: Request) -> Response:
    await run_in_threadpool(_set_drained, request, request.state.form.get("drain") == "on")
    name = request.path_params["name"]
    back = "/admin#agents" if request.state.form.get("back") == "admin" else f"/nodes/{quote(name)}"
    return RedirectResponse(back, 303)


def _set_drained(request: Request, on: bool) -> None:
    request.state.about = "drain" if on else "undrain"
    fleet_of(request).drain(request.path_params["name"], on)
    workspace_of(request).changed("fleet")


async def api_show_node(request: Request) -> Response:
    known = await run_in_threadpool(_known_node, request)
    return AsciiJson(
        {
            "name": known.name,
            "groups": list(map(_node_row_json, known.rows)),
            "states": [{"at": at, "state": state} for at, state in known.states],
            "runs": [
                {"id": run.id, "verdict": run.verdict or None, "running": lives, "found": found}
                for run, lives, found in known.runs
            ],
            "count": known.count,
        }
    )


async def api_drain_node(request: Request) -> Response:
    on = (await read_json_body(request)).get("drain")
    if not isinstance(on, bool):
        raise RequestRefused(400, "`drain` is true or false")
    await run_in_threadpool(_set_drained, request, on)
    return AsciiJson({"drain": on})


async def api_list_nodes(request: Request) -> Response:
    workspace, agents = workspace_of(request), fleet_of(request)
    return await json_response(lambda: {"nodes": [_node_row_json(row) for row in fleet_rows(workspace, agents)]})


def _node_row_json(row: NodeRow) -> dict[str, Any]:
    fields = {name: getattr(row, name) for name in row.__dataclass_fields__ if name != "ranks"}
    ranks = [{name: getattr(cell, name) for name in cell.__struct_fields__} for cell in row.ranks]
    return {**fields, "group": row.group or None, "run": row.run or None, "ranks": ranks}


PAGES = [
    Page("/", ("GET",), show_fleet, "viewer", says="The fleet", nav="Fleet"),
    Page("/nodes/{name}", ("GET",), node_page, "viewer", says="A node"),
    Page("/nodes/{name}/drain", ("POST",), drain, "operator", says="Drain or undrain a node"),
    Page("/api/v1/fleet", ("GET",), api_list_nodes, "viewer", "api", "The fleet"),
    Page("/api/v1/nodes/{name}", ("GET",), api_show_node, "viewer", "api", "A node"),
    Page("/api/v1/nodes/{name}/drain", ("POST",), api_drain_node, "operator", "api", "Drain or undrain a node"),
]
