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
from runbook.model.grouping import values_by_key
from runbook.model.units import significant_digits_text
from runbook.report.html.charts import Chart, Scale, axis_ticks, draw_chart, scale_around
from runbook.report.html.render import compare_run_folders, render_comparison_fragment, render_fragment
from runbook.report.run_record import NodePair, finite_number
from runbook.serve import group_actions as actions
from runbook.serve import run_logs as logs
from runbook.serve.agent_states import AgentState
from runbook.serve.group_files import NoGroup
from runbook.serve.guards import RequestRefused, query_number, read_json_body
from runbook.serve.page import Page
from runbook.serve.rendering import AsciiJson, html_response, json_response
from runbook.serve.run_folders import RunFilter, RunRow, Runs, read_started_file
from runbook.serve.workspace import Workspace, is_run_active, workspace_of

RUNS_PER_PAGE = 50
MAX_LINK_PAIRS = 200


def _run_filter(request: Request) -> RunFilter:
    """The search that the query asks for. Raises RequestRefused for an invalid date."""
    ask = {name: request.query_params.get(name, "").strip()[:200] for name in RunFilter.__dataclass_fields__}
    since, until = _parse_day(ask.pop("since")), _parse_day(ask.pop("until"))
    return RunFilter(**ask, since=since, until=None if until is None else _next_day(until))


def _parse_day(text: str) -> float | None:
    if not text:
        return None
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%d"))
    except (ValueError, OverflowError):
        raise RequestRefused(422, "a date is written as 2026-11-23") from None


def _next_day(begins: float) -> float:
    """When the next day of this machine's calendar begins: a day with a change of clocks has 23 or 25 hours."""
    day = time.localtime(begins)
    return time.mktime((day.tm_year, day.tm_mon, day.tm_mday + 1, 0, 0, 0, 0, 0, -1))


def _page_number(request: Request) -> int:
    return min(query_number(request, "page") or 1, 100_000)


async def show_runs(request: Request) -> Response:
    workspace, wanted = workspace_of(request), _run_filter(request)
    page = _page_number(request)

    def look() -> tuple[list[RunRow], int, dict[str, bool], dict[str, list[AgentState]]]:
        found, count = workspace.runs.search(wanted, most=RUNS_PER_PAGE, skip=(page - 1) * RUNS_PER_PAGE)
        lives = {row.id: is_run_active(workspace, row) for row in found}
        return found, count, lives, {row.id: workspace.unheard(row) for row in found if not row.verdict}

    found, count, lives, unheard = await run_in_threadpool(look)
    asked = {key: value for key, value in request.query_params.items() if key != "page" and value}

    def link(number: int) -> str:
        return f"/runs?{urlencode({**asked, 'page': number})}"

    pages = max(1, -(-count // RUNS_PER_PAGE))
    return await html_response(
        request, "runs.html", found=found, count=count, page=page, pages=pages, link=link, asked=asked, lives=lives,
        unheard=unheard,
    )  # fmt: skip


def known_run(workspace: Workspace, id: str) -> tuple[RunRow, dict[str, Any], bool]:
    row = workspace.runs.row(id)
    return row, workspace.runs.document(id), is_run_active(workspace, row)


async def show_run(request: Request) -> Response:
    workspace, id = workspace_of(request), request.path_params["id"]
    row, document, lives = await run_in_threadpool(known_run, workspace, id)
    files = await run_in_threadpool(logs.readable_files, workspace.runs.path(id))
    console = next((file for file in files if file.name == "console.txt"), None)
    tail = (
        await run_in_threadpool(_last_log_lines, workspace, id, console) if console and not document["stages"] else ()
    )
    report = await run_in_threadpool(_report_html, workspace.runs.path(id), lives)
    return await html_response(
        request, "run.html", row=row, document=document, lives=lives, files=files, tail=tail, report=report,
        started_here=bool(read_started_file(workspace.runs.path(id))), unheard=workspace.unheard(row),
        ending=workspace.ending(row),
    )  # fmt: skip


def _report_html(folder: Path, lives: bool) -> Markup | None:
    """The report of a run, as far as the run has written; None if there is nothing to report. The report's code escapes
    all text in it."""
    try:
        return Markup(render_fragment(folder, lives=lives))
    except FilesWrong:
        return None


def _last_log_lines(workspace: Workspace, id: str, file: logs.RunLog) -> tuple[logs.LogLine, ...]:
    with logs.open_log_file(workspace.runs.path(id), file) as stream:
        return logs.read_window(stream).lines[-40:]


async def _ended_response(request: Request, *, now: bool) -> Response:
    await _end_run(request, now)
    return RedirectResponse(f"/runs/{quote(request.path_params['id'])}", 303)


async def _end_run(request: Request, now: bool) -> str:
    end, person = workspace_of(request).processes.end, str(request.state.person.name)
    return await run_in_threadpool(end, request.path_params["id"], person, now=now)


async def submit_run_restart(request: Request) -> Response:
    group = await run_in_threadpool(_ask_restart, request)
    return RedirectResponse(f"/groups/{quote(group)}", 303)


def _ask_restart(request: Request) -> str:
    """Have a run's group started again once the run is over; returns the group's name. Raises NoRun, RequestRefused."""
    workspace, id = workspace_of(request), request.path_params["id"]
    group = workspace.runs.row(id).group
    try:
        workspace.groups.read(group)
    except NoGroup:
        raise RequestRefused(409, "the group that it was started from no longer exists") from None
    workspace.restarts.ask(id, group, str(request.state.person.name), partial(actions.start_group, workspace))
    return group


# Two runs, and pairs of nodes over time.


async def show_comparison(request: Request) -> Response:
    workspace = workspace_of(request)
    ids = [request.query_params.get(side, "") for side in ("a", "b")]
    recent, _ = await run_in_threadpool(workspace.runs.search, RunFilter(), most=RUNS_PER_PAGE)
    differences = await run_in_threadpool(_comparison_html, workspace, ids) if all(ids) else None
    return await html_response(request, "compare.html", ids=ids, recent=recent, differences=differences)


def _comparison_html(workspace: Workspace, ids: list[str]) -> Markup:
    return Markup(render_comparison_fragment(*map(workspace.runs.path, ids)))


async def links_page(request: Request) -> Response:
    """The page of what `check: links` measured: pairs of nodes, the slowest first, with a value for each run. `from`
    and `to` ask for one pair over time."""
    found, pairs, chosen, one = await run_in_threadpool(_requested_link_measurements, request)
    drawn = link_speed_chart(one, found) if all(one) else None
    node = request.query_params.get("pair", "")[:200]
    return await html_response(
        request, "links.html", pairs=chosen[:MAX_LINK_PAIRS], found=found, count=pairs, pair=node, drawn=drawn, one=one,
    )  # fmt: skip


def _requested_link_measurements(
    request: Request,
) -> tuple[dict[NodePair, list[LinkMeasurement]], int, list[NodePair], NodePair]:
    """All measurements by pair; the number of pairs; the pairs that are asked for, the slowest first; and the one pair
    of `from` and `to`, empty names if none is asked for."""
    runs, asked = workspace_of(request).runs, request.query_params
    one = asked.get("from", ""), asked.get("to", "")
    found = link_measurements(runs, runs.search(RunFilter(), most=200)[0])
    if all(one):
        return found, len(found), [pair for pair in (one, one[::-1]) if pair in found], one
    pairs = sorted(found, key=lambda pair: min(link.gbps for link in found[pair]))
    return found, len(pairs), [pair for pair in pairs if asked.get("pair", "")[:200] in f"{pair[0]} {pair[1]}"], one


# JSON.


def _run_row_json(workspace: Workspace, row: RunRow) -> dict[str, Any]:
    unheard = [{"node": one.name, "state": one.state, "beat_age_s": one.beat_age_s} for one in workspace.unheard(row)]
    return {**asdict(row), "verdict": row.verdict or None, "running": is_run_active(workspace, row), "unheard": unheard}


async def api_list_runs(request: Request) -> Response:
    workspace, page = workspace_of(request), _page_number(request)
    wanted = _run_filter(request)

    def look() -> dict[str, Any]:
        found, count = workspace.runs.search(wanted, most=RUNS_PER_PAGE, skip=(page - 1) * RUNS_PER_PAGE)
        runs = [_run_row_json(workspace, row) for row in found]
        return {"count": count, "page": page, "per_page": RUNS_PER_PAGE, "runs": runs}

    return await json_response(look)


async def api_show_run(request: Request) -> Response:
    workspace = workspace_of(request)
    row, document, _ = await run_in_threadpool(known_run, workspace, request.path_params["id"])
    return await json_response(lambda: {**_run_row_json(workspace, row), "result": document})


async def api_restart_run(request: Request) -> Response:
    await run_in_threadpool(_ask_restart, request)
    return AsciiJson({"says": actions.RESTART_ANSWER}, 202)


async def api_compare_runs(request: Request) -> Response:
    folders = [workspace_of(request).runs.path(request.query_params.get(side, "")) for side in ("a", "b")]
    return await json_response(lambda: compare_run_folders(folders[0], folders[1]).as_json())


async def api_list_links(request: Request) -> Response:
    found, _, chosen, _ = await run_in_threadpool(_requested_link_measurements, request)
    pairs = [
        {
            "from": pair[0],
            "to": pair[1],
            "runs": [{"id": link.run.id, "gbps": link.gbps, "us": link.us} for link in found[pair]],
        }
        for pair in chosen[:MAX_LINK_PAIRS]
    ]
    return AsciiJson({"count": len(found), "pairs": pairs})


async def api_stop_run(request: Request) -> Response:
    now = (await read_json_body(request)).get("now") is True
    return AsciiJson({"says": await _end_run(request, now)})


_RUN_PATH = "/runs/{id}"
_API_RUNS_PATH = "/api/v1/runs"
PAGES = [
    Page("/runs", ("GET",), show_runs, "viewer", says="Runs", nav="Runs"),
    Page("/compare", ("GET",), show_comparison, "viewer", says="Two runs side by side", nav="Compare"),
    Page("/links", ("GET",), links_page, "viewer", says="Links over time", nav="Links"),
    Page(_RUN_PATH, ("GET",), show_run, "viewer", says="A run"),
    Page(f"{_RUN_PATH}/stop", ("POST",), partial(_ended_response, now=False), "operator", says="Stop a run"),
    Page(f"{_RUN_PATH}/kill", ("POST",), partial(_ended_response, now=True), "operator", says="Kill a run"),
    Page(f"{_RUN_PATH}/restart", ("POST",), submit_run_restart, "operator", says="Restart a run"),
    Page(_API_RUNS_PATH, ("GET",), api_list_runs, "viewer", "api", "Runs"),
    Page(f"{_API_RUNS_PATH}/{{id}}", ("GET",), api_show_run, "viewer", "api", "A run"),
    Page(f"{_API_RUNS_PATH}/{{id}}/stop", ("POST",), api_stop_run, "operator", "api", "Stop or kill a run"),
    Page(f"{_API_RUNS_PATH}/{{id}}/restart", ("POST",), api_restart_run, "operator", "api", "Restart a run"),
    Page("/api/v1/compare", ("GET",), api_compare_runs, "viewer", "api", "Two runs side by side"),
    Page("/api/v1/links", ("GET",), api_list_links, "viewer", "api", "Links over time"),
]


MAX_RUN_TICKS = 5


@dataclass(frozen=True, slots=True)
class LinkMeasurement:
    """What one run measured between two nodes: Gbit/s, and the microseconds there and back if they were measured."""

    run: RunRow
    gbps: float
    us: float | None


def link_measurements(runs: Runs, rows: Sequence[RunRow]) -> dict[NodePair, list[LinkMeasurement]]:
    """The measurements of links in these runs, by pair of nodes; for each pair in the order of the runs."""
    return values_by_key(
        ((str(link.get("from")), str(link.get("to"))), LinkMeasurement(row, gbps, finite_number(link.get("us"))))
        for row in rows
        for stage in (runs.document(row.id)["stages"] if row.verdict and runs.mentions(row.id, b'"links"') else ())
        for link in (stage.get("metrics") or {}).get("links", ())
        if isinstance(link, dict) and (gbps := finite_number(link.get("gbps"))) is not None
    )


def link_speed_chart(pair: NodePair, found: dict[NodePair, list[LinkMeasurement]]) -> Chart | None:
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
        f"{significant_digits_text(min(speeds))} to "
        f"{significant_digits_text(max(speeds))} Gbit/s; the table has every number."
    )
    marks = axis_ticks(across, list(dict.fromkeys([*times[:-1:step], times[-1]])), _chart_time_text)
    chart = Chart(f"{pair[0]} and {pair[1]}", "Gbit/s", label, marks)
    return draw_chart(
        chart,
        lines,
        across,
        scale_around(speeds),
        where=_chart_time_text,
        say=lambda gbps: f"{significant_digits_text(gbps)} Gbit/s",
    )


def _chart_time_text(at: float) -> str:
    return time.strftime("%m-%d %H:%M", time.localtime(at))
