"""Runs, two runs side by side, and measured links between nodes over time: as pages and as JSON."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from markupsafe import Markup
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from runbook.model.errors import FilesWrong
from runbook.model.grouping import grouped
from runbook.model.units import significant
from runbook.report.html.charts import Chart, Scale, around, drawn, ticks
from runbook.report.html.render import comparison, comparison_fragment, fragment
from runbook.report.run_record import NodePair, number
from runbook.serve import group_actions as actions
from runbook.serve import run_logs as logs
from runbook.serve.agent_states import AgentState
from runbook.serve.group_files import NoGroup
from runbook.serve.guards import RequestRefused, json_body, query_number
from runbook.serve.page import Page
from runbook.serve.rendering import AsciiJson, html, json
from runbook.serve.run_folders import RunFilter, RunRow, Runs, started
from runbook.serve.workspace import Workspace, goes_on, workspace_of

RUNS_PER_PAGE = 50
MAX_LINK_PAIRS = 200
_DAY_S = 86400.0


def _wanted(request: Request) -> RunFilter:
    """The search that the query asks for. Raises RequestRefused for an invalid date."""
    ask = {name: request.query_params.get(name, "").strip()[:200] for name in RunFilter.__dataclass_fields__}
    since, until = _day(ask.pop("since")), _day(ask.pop("until"))
    return RunFilter(**ask, since=since, until=None if until is None else until + _DAY_S)


def _day(text: str) -> float | None:
    if not text:
        return None
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%d"))
    except (ValueError, OverflowError):
        raise RequestRefused(422, "a date is written as 2026-11-23") from None


def _page_number(request: Request) -> int:
    return min(query_number(request, "page") or 1, 100_000)


async def listed(request: Request) -> Response:
    workspace, wanted = workspace_of(request), _wanted(request)
    page = _page_number(request)

    def look() -> tuple[list[RunRow], int, dict[str, bool], dict[str, list[AgentState]]]:
        found, count = workspace.runs.search(wanted, most=RUNS_PER_PAGE, skip=(page - 1) * RUNS_PER_PAGE)
        lives = {row.id: goes_on(workspace, row) for row in found}
        return found, count, lives, {row.id: workspace.unheard(row) for row in found if not row.verdict}

    found, count, lives, unheard = await run_in_threadpool(look)
    asked = {key: value for key, value in request.query_params.items() if key != "page" and value}

    def link(number: int) -> str:
        return f"/runs?{urlencode({**asked, 'page': number})}"

    pages = max(1, -(-count // RUNS_PER_PAGE))
    return await html(
        request, "runs.html", found=found, count=count, page=page, pages=pages, link=link, asked=asked, lives=lives,
        unheard=unheard,
    )  # fmt: skip


def known_run(workspace: Workspace, id: str) -> tuple[RunRow, dict[str, Any], bool]:
    row = workspace.runs.row(id)
    return row, workspace.runs.document(id), goes_on(workspace, row)


async def shown(request: Request) -> Response:
    workspace, id = workspace_of(request), request.path_params["id"]
    row, document, lives = await run_in_threadpool(known_run, workspace, id)
    files = await run_in_threadpool(logs.files, workspace.runs.path(id))
    console = next((file for file in files if file.name == "console.txt"), None)
    tail = await run_in_threadpool(_tail, workspace, id, console) if console and not document["stages"] else ()
    report = await run_in_threadpool(_report, workspace.runs.path(id), lives)
    return await html(
        request, "run.html", row=row, document=document, lives=lives, files=files, tail=tail, report=report,
        started_here=bool(started(workspace.runs.path(id))), unheard=workspace.unheard(row),
        ending=workspace.ending(row),
    )  # fmt: skip


def _report(folder: Path, lives: bool) -> Markup | None:
    """The report of a run, as far as the run has written; None if there is nothing to report. The report's code escapes
    all text in it."""
    try:
        return Markup(fragment(folder, lives=lives))
    except FilesWrong:
        return None


def _tail(workspace: Workspace, id: str, file: logs.RunLog) -> tuple[logs.LogLine, ...]:
    with logs.opened(workspace.runs.path(id), file) as stream:
        return logs.window(stream).lines[-40:]


async def _end(request: Request, *, now: bool) -> Response:
    await _ended(request, now)
    return RedirectResponse(f"/runs/{quote(request.path_params['id'])}", 303)


async def _ended(request: Request, now: bool) -> str:
    end, person = workspace_of(request).processes.end, str(request.state.person.name)
    return await run_in_threadpool(end, request.path_params["id"], person, now=now)


async def restart(request: Request) -> Response:
    group = await run_in_threadpool(_restarted, request)
    return RedirectResponse(f"/groups/{quote(group)}", 303)


def _restarted(request: Request) -> str:
    """Have a run's group started again once the run is over; returns the group's name. Raises NoRun, RequestRefused."""
    workspace, id = workspace_of(request), request.path_params["id"]
    group = workspace.runs.row(id).group
    try:
        workspace.groups.read(group)
    except NoGroup:
        raise RequestRefused(409, "the group that it was started from no longer exists") from None
    workspace.restarts.ask(id, group, str(request.state.person.name), partial(actions.start, workspace))
    return group


# Two runs, and pairs of nodes over time.


async def compare(request: Request) -> Response:
    workspace = workspace_of(request)
    ids = [request.query_params.get(side, "") for side in ("a", "b")]
    recent, _ = await run_in_threadpool(workspace.runs.search, RunFilter(), most=RUNS_PER_PAGE)
    differences = await run_in_threadpool(_compared, workspace, ids) if all(ids) else None
    return await html(request, "compare.html", ids=ids, recent=recent, differences=differences)


def _compared(workspace: Workspace, ids: list[str]) -> Markup:
    return Markup(comparison_fragment(*map(workspace.runs.path, ids)))


async def links(request: Request) -> Response:
    """The page of what `check: links` measured: pairs of nodes, the slowest first, with a value for each run. `from`
    and `to` ask for one pair over time."""
    found, pairs, chosen, one = await run_in_threadpool(_measured_links, request)
    drawn = over_time(one, found) if all(one) else None
    node = request.query_params.get("pair", "")[:200]
    return await html(
        request, "links.html", pairs=chosen[:MAX_LINK_PAIRS], found=found, count=pairs, pair=node, drawn=drawn, one=one,
    )  # fmt: skip


def _measured_links(request: Request) -> tuple[dict[NodePair, list[LinkMeasurement]], int, list[NodePair], NodePair]:
    """All measurements by pair; the number of pairs; the pairs that are asked for, the slowest first; and the one pair
    of `from` and `to`, empty names if none is asked for."""
    runs, asked = workspace_of(request).runs, request.query_params
    one = asked.get("from", ""), asked.get("to", "")
    found = measured(runs, runs.search(RunFilter(), most=200)[0])
    if all(one):
        return found, len(found), [pair for pair in (one, one[::-1]) if pair in found], one
    pairs = sorted(found, key=lambda pair: min(link.gbps for link in found[pair]))
    return found, len(pairs), [pair for pair in pairs if asked.get("pair", "")[:200] in f"{pair[0]} {pair[1]}"], one


# JSON.


def _row_json(workspace: Workspace, row: RunRow) -> dict[str, Any]:
    unheard = [{"node": one.name, "state": one.state, "beat_age_s": one.beat_age_s} for one in workspace.unheard(row)]
    return {**asdict(row), "verdict": row.verdict or None, "running": goes_on(workspace, row), "unheard": unheard}


async def api_listed(request: Request) -> Response:
    workspace, page = workspace_of(request), _page_number(request)
    wanted = _wanted(request)

    def look() -> dict[str, Any]:
        found, count = workspace.runs.search(wanted, most=RUNS_PER_PAGE, skip=(page - 1) * RUNS_PER_PAGE)
        runs = [_row_json(workspace, row) for row in found]
        return {"count": count, "page": page, "per_page": RUNS_PER_PAGE, "runs": runs}

    return await json(look)


async def api_shown(request: Request) -> Response:
    workspace = workspace_of(request)
    row, document, _ = await run_in_threadpool(known_run, workspace, request.path_params["id"])
    return await json(lambda: {**_row_json(workspace, row), "result": document})


async def api_restart(request: Request) -> Response:
    await run_in_threadpool(_restarted, request)
    return AsciiJson({"says": actions.RESTART_ANSWER}, 202)


async def api_compare(request: Request) -> Response:
    folders = [workspace_of(request).runs.path(request.query_params.get(side, "")) for side in ("a", "b")]
    return await json(lambda: comparison(folders[0], folders[1]).as_json())


async def api_links(request: Request) -> Response:
    found, _, chosen, _ = await run_in_threadpool(_measured_links, request)
    pairs = [
        {
            "from": pair[0],
            "to": pair[1],
            "runs": [{"id": link.run.id, "gbps": link.gbps, "us": link.us} for link in found[pair]],
        }
        for pair in chosen[:MAX_LINK_PAIRS]
    ]
    return AsciiJson({"count": len(found), "pairs": pairs})


async def api_stop(request: Request) -> Response:
    now = (await json_body(request)).get("now") is True
    return AsciiJson({"says": await _ended(request, now)})


_RUN_PATH = "/runs/{id}"
_API_RUNS_PATH = "/api/v1/runs"
PAGES = [
    Page("/runs", ("GET",), listed, "viewer", says="Runs", nav="Runs"),
    Page("/compare", ("GET",), compare, "viewer", says="Two runs side by side", nav="Compare"),
    Page("/links", ("GET",), links, "viewer", says="Links over time", nav="Links"),
    Page(_RUN_PATH, ("GET",), shown, "viewer", says="A run"),
    Page(f"{_RUN_PATH}/stop", ("POST",), partial(_end, now=False), "operator", says="Stop a run"),
    Page(f"{_RUN_PATH}/kill", ("POST",), partial(_end, now=True), "operator", says="Kill a run"),
    Page(f"{_RUN_PATH}/restart", ("POST",), restart, "operator", says="Restart a run"),
    Page(_API_RUNS_PATH, ("GET",), api_listed, "viewer", "api", "Runs"),
    Page(f"{_API_RUNS_PATH}/{{id}}", ("GET",), api_shown, "viewer", "api", "A run"),
    Page(f"{_API_RUNS_PATH}/{{id}}/stop", ("POST",), api_stop, "operator", "api", "Stop or kill a run"),
    Page(f"{_API_RUNS_PATH}/{{id}}/restart", ("POST",), api_restart, "operator", "api", "Restart a run"),
    Page("/api/v1/compare", ("GET",), api_compare, "viewer", "api", "Two runs side by side"),
    Page("/api/v1/links", ("GET",), api_links, "viewer", "api", "Links over time"),
]


MAX_RUN_TICKS = 5


@dataclass(frozen=True, slots=True)
class LinkMeasurement:
    """What one run measured between two nodes: Gbit/s, and the microseconds there and back if they were measured."""

    run: RunRow
    gbps: float
    us: float | None


def measured(runs: Runs, rows: Sequence[RunRow]) -> dict[NodePair, list[LinkMeasurement]]:
    """The measurements of links in these runs, by pair of nodes; for each pair in the order of the runs."""
    return grouped(
        ((str(link.get("from")), str(link.get("to"))), LinkMeasurement(row, gbps, number(link.get("us"))))
        for row in rows
        for stage in (runs.document(row.id)["stages"] if row.verdict and runs.mentions(row.id, b'"links"') else ())
        for link in (stage.get("metrics") or {}).get("links", ())
        if isinstance(link, dict) and (gbps := number(link.get("gbps"))) is not None
    )


def over_time(pair: NodePair, found: dict[NodePair, list[LinkMeasurement]]) -> Chart | None:
    """The chart of a pair over time, in both directions, with the earliest run at the left; None if there is nothing to
    draw."""
    lines = []
    for (start, end), kind in ((pair, ""), (pair[::-1], "second")):
        line = sorted(found.get((start, end), ()), key=lambda one: one.run.began)
        lines.append((f"{start} to {end}", kind, [(one.run.began, one.gbps) for one in line if 0 < one.gbps < 1e9]))
    speeds = [gbps for _, _, line in lines for _, gbps in line]
    if not speeds:
        return None
    times = sorted({at for _, _, line in lines for at, _ in line})
    across = Scale(times[0], times[-1])
    step = max(1, -(-(len(times) - 1) // (MAX_RUN_TICKS - 1)))
    label = (
        f"Bandwidth between {pair[0]} and {pair[1]} in {len(times)} runs: "
        f"{significant(min(speeds))} to {significant(max(speeds))} Gbit/s; the table has every number."
    )
    marks = ticks(across, list(dict.fromkeys([*times[:-1:step], times[-1]])), _moment)
    chart = Chart(f"{pair[0]} and {pair[1]}", "Gbit/s", label, marks)
    return drawn(chart, lines, across, around(speeds), where=_moment, say=lambda gbps: f"{significant(gbps)} Gbit/s")


def _moment(at: float) -> str:
    return time.strftime("%m-%d %H:%M", time.localtime(at))
