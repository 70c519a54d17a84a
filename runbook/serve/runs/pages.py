"""Runs, their logs, and two of them side by side: as pages and as JSON."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote, urlencode

from markupsafe import Markup
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse

from runbook.model.errors import FilesWrong
from runbook.report.html.render import comparison_fragment, fragment
from runbook.serve.fleet.view import ago, moment
from runbook.serve.groups import actions
from runbook.serve.groups.files import NoGroup
from runbook.serve.guards import RequestRefused
from runbook.serve.json_body import json_body
from runbook.serve.page import Page
from runbook.serve.render import html
from runbook.serve.runs import logs
from runbook.serve.runs.folders import NoRun, RunFilter, RunRow, started
from runbook.serve.runs.links import measured, over_time
from runbook.serve.runs.start import NotRunning
from runbook.serve.workspace import Workspace, workspace_of

A_PAGE = 50
SEARCH_S = 20.0
_DAY = 86400.0
_PIECE = 256 << 10


def _wanted(request: Request) -> RunFilter:
    """What the query asks for. Raises Refused for a date that is none."""
    ask = {name: request.query_params.get(name, "").strip()[:200] for name in RunFilter.__dataclass_fields__}
    since, until = _day(ask.pop("since")), _day(ask.pop("until"))
    return RunFilter(**ask, since=since, until=None if until is None else until + _DAY)


def _day(text: str) -> float | None:
    if not text:
        return None
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%d"))
    except (ValueError, OverflowError):
        raise RequestRefused(422, "a date is written as 2026-11-23") from None


def _page_number(request: Request) -> int:
    text = request.query_params.get("page", "1")
    return min(max(1, int(text)), 100_000) if text.isdecimal() and len(text) < 9 else 1


async def listed(request: Request) -> Response:
    workspace, wanted, page = workspace_of(request), _wanted(request), _page_number(request)
    found, count = await run_in_threadpool(workspace.runs.search, wanted, most=A_PAGE, skip=(page - 1) * A_PAGE)
    lives = {row.id: workspace.processes.lives(row.id) for row in found if not row.verdict}
    unheard = {row.id: workspace.unheard(row) for row in found if not row.verdict}
    asked = {key: value for key, value in request.query_params.items() if key != "page" and value}

    def link(number: int) -> str:
        return f"/runs?{urlencode({**asked, 'page': number})}"

    pages = max(1, -(-count // A_PAGE))
    return html(
        request, "runs.html", found=found, count=count, page=page, pages=pages, link=link, asked=asked, lives=lives,
        unheard=unheard, moment=moment, ago=ago,
    )  # fmt: skip


def _run(workspace: Workspace, id: str) -> tuple[RunRow, dict[str, Any], bool]:
    try:
        row = workspace.runs.row(id)
        return row, workspace.runs.document(id), not row.verdict and workspace.processes.lives(id)
    except NoRun:
        raise RequestRefused(404, "there is no such run") from None


async def shown(request: Request) -> Response:
    workspace, id = workspace_of(request), request.path_params["id"]
    row, document, lives = await run_in_threadpool(_run, workspace, id)
    files = await run_in_threadpool(logs.files, workspace.runs.path(id))
    console = next((file for file in files if file.name == "console.txt"), None)
    tail = await run_in_threadpool(_tail, workspace, id, console) if console and not document["stages"] else ()
    report = await run_in_threadpool(_report, workspace.runs.path(id), lives)
    return html(
        request, "run.html", row=row, document=document, lives=lives, files=files, tail=tail, report=report,
        started_here=bool(started(workspace.runs.path(id))), unheard=workspace.unheard(row), moment=moment, ago=ago,
    )  # fmt: skip


def _report(folder: Path, lives: bool) -> Markup | None:
    """The report of a run as far as it is written, None where there is nothing to report. Its text is escaped where it is made."""
    try:
        return Markup(fragment(folder, lives=lives))
    except FilesWrong:
        return None


def _tail(workspace: Workspace, id: str, file: logs.RunLog) -> tuple[logs.LogLine, ...]:
    with logs.opened(workspace.runs.path(id), file) as stream:
        return logs.window(stream).lines[-40:]


async def stop(request: Request) -> Response:
    return await _end(request, now=False)


async def kill(request: Request) -> Response:
    return await _end(request, now=True)


async def _end(request: Request, *, now: bool) -> Response:
    id = request.path_params["id"]
    await run_in_threadpool(_ended, workspace_of(request), id, str(request.state.person.name), now)
    return RedirectResponse(f"/runs/{quote(id)}", 303)


def _ended(workspace: Workspace, id: str, person: str, now: bool) -> str:
    try:
        return workspace.processes.end(id, person, now=now)
    except NoRun:
        raise RequestRefused(404, "there is no such run") from None
    except NotRunning:
        raise RequestRefused(409, "nothing of it runs that was started here") from None


async def restart(request: Request) -> Response:
    workspace, id = workspace_of(request), request.path_params["id"]
    row, _, _ = await run_in_threadpool(_run, workspace, id)
    try:
        workspace.groups.read(row.group)
    except NoGroup:
        raise RequestRefused(409, "the group that it was started from is not there any more") from None
    person = str(request.state.person.name)
    await run_in_threadpool(
        workspace.processes.restart, id, person, partial(actions.start, workspace, row.group, person)
    )
    return RedirectResponse(f"/groups/{quote(row.group)}", 303)


# Logs.


def _number(request: Request, name: str) -> int | None:
    text = request.query_params.get(name, "")
    return int(text) if text.isdecimal() and len(text) < 16 else None


def _opened(request: Request, id: str, file_id: str) -> tuple[logs.RunLog, BinaryIO]:
    workspace = workspace_of(request)
    try:
        folder = workspace.runs.path(id)
        file = logs.find(folder, file_id)
        return file, logs.opened(folder, file)
    except NoRun:
        raise RequestRefused(404, "there is no such run") from None
    except logs.NoFile:
        raise RequestRefused(404, "the run has no such file") from None


def _looked(request: Request, id: str, file_id: str) -> tuple[logs.RunLog, logs.Window, logs.SearchResult | None]:
    file, stream = _opened(request, id, file_id)
    with stream:
        window = logs.window(
            stream, before=_number(request, "before"), after=_number(request, "after"), around=_number(request, "at")
        )
        text = request.query_params.get("q", "")[:1000]
        if not text.strip():
            return file, window, None
        skip = _number(request, "skip") or 0
        any_case = request.query_params.get("case", "") != "same"
        return file, window, logs.search(stream, text, any_case=any_case, skip=skip, until=time.monotonic() + SEARCH_S)


def _found_in_all(request: Request, id: str, among: list[logs.RunLog]) -> logs.FoundInAll | None:
    """What is searched for in all files, where that is asked."""
    text = request.query_params.get("q", "")[:1000]
    if not text.strip():
        return None
    any_case, until = request.query_params.get("case", "") != "same", time.monotonic() + SEARCH_S
    return logs.search_all(workspace_of(request).runs.path(id), among, text, any_case=any_case, until=until)


async def log_page(request: Request) -> Response:
    workspace, id = workspace_of(request), request.path_params["id"]
    row, _, lives = await run_in_threadpool(_run, workspace, id)
    every = await run_in_threadpool(logs.files, workspace.runs.path(id))
    rank = _number(request, "rank")
    files = [file for file in every if rank is None or file.of_rank(rank)]
    chosen = request.query_params.get("file", "") or _first(files)
    file = window = found = everywhere = None
    whole = request.query_params.get("in", "") == "all"
    if whole:
        everywhere = await run_in_threadpool(_found_in_all, request, id, files)
    elif chosen:
        file, window, found = await run_in_threadpool(_looked, request, id, chosen)
    at = _number(request, "at")

    def link(**more: Any) -> str:
        kept = {key: request.query_params[key] for key in ("rank", "q", "case") if request.query_params.get(key)}
        told = {
            "file": "" if whole else chosen,
            **kept,
            **{key: value for key, value in more.items() if value is not None},
        }
        return f"/runs/{quote(id)}/logs?{urlencode(told)}"

    ranks = sorted({one.ranks[0] for one in every if one.ranks and one.ranks[0] == one.ranks[1]})
    return html(
        request, "logs.html", row=row, lives=lives, files=files, file=file, window=window, found=found, rank=rank,
        everywhere=everywhere, whole=whole,
        ranks=ranks, query=request.query_params.get("q", ""), same=request.query_params.get("case", "") == "same",
        at=at, link=link, size=size_text, most=logs.MOST_HITS, skip=_number(request, "skip") or 0,
    )  # fmt: skip


def _first(files: list[logs.RunLog]) -> str:
    """What somebody wants to see first: what a rank writes, one that has written something."""
    written = [file for file in files if file.size]
    best = [file for file in written if file.stream in ("log", "out")] or written or files
    return best[0].id if best else ""


def size_text(size: int) -> str:
    """Bytes for people: 1.2 MB."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} B"


async def raw(request: Request) -> Response:
    file, stream = await run_in_threadpool(_opened, request, request.path_params["id"], request.path_params["file"])

    async def pieces() -> AsyncIterator[bytes]:
        with stream:
            left = file.size  # what is written meanwhile is for another time
            while left > 0 and (piece := await run_in_threadpool(stream.read, min(left, _PIECE))):
                left -= len(piece)
                yield piece

    name = "".join(char if char.isascii() and (char.isalnum() or char in "._-") else "_" for char in file.name)
    headers = {"content-disposition": f'attachment; filename="{name}"', "content-length": str(file.size)}
    return StreamingResponse(pieces(), media_type="application/octet-stream", headers=headers)


# Two runs, and pairs of nodes over time.


async def compare(request: Request) -> Response:
    workspace = workspace_of(request)
    ids = [request.query_params.get(side, "") for side in ("a", "b")]
    recent, _ = await run_in_threadpool(workspace.runs.search, RunFilter(), most=A_PAGE)
    told = await run_in_threadpool(_compared, workspace, ids) if all(ids) else None
    return html(request, "compare.html", ids=ids, recent=recent, told=told, moment=moment)


def _compared(workspace: Workspace, ids: list[str]) -> Markup:
    try:
        return Markup(comparison_fragment(*map(workspace.runs.path, ids)))
    except NoRun:
        raise RequestRefused(404, "there is no such run") from None


async def links(request: Request) -> Response:
    """What `check: links` measured, the pairs of nodes by run, the slowest first; `from` and `to`: one pair over time."""
    workspace = workspace_of(request)
    node = request.query_params.get("pair", "")[:200]
    one = (request.query_params.get("from", ""), request.query_params.get("to", ""))
    recent, _ = await run_in_threadpool(workspace.runs.search, RunFilter(), most=200)
    found = await run_in_threadpool(measured, workspace.runs, recent)
    pairs = sorted(found, key=lambda pair: min(link.gbps for link in found[pair]))
    chosen = [pair for pair in pairs if node in f"{pair[0]} {pair[1]}"][:200]
    if all(one):
        chosen = [pair for pair in (one, one[::-1]) if pair in found]
    drawn = over_time(one, found) if all(one) else None
    return html(
        request, "links.html", pairs=chosen, found=found, count=len(pairs), pair=node, drawn=drawn, one=one,
        moment=moment,
    )  # fmt: skip


# JSON.


def _row_json(workspace: Workspace, row: RunRow) -> dict[str, Any]:
    told = {name: getattr(row, name) for name in row.__dataclass_fields__}
    unheard = [{"node": one.name, "state": one.state, "beat_age_s": one.beat_age_s} for one in workspace.unheard(row)]
    lives = not row.verdict and workspace.processes.lives(row.id)
    return {**told, "verdict": row.verdict or None, "running": lives, "unheard": unheard}


async def api_listed(request: Request) -> Response:
    workspace, page = workspace_of(request), _page_number(request)
    found, count = await run_in_threadpool(
        workspace.runs.search, _wanted(request), most=A_PAGE, skip=(page - 1) * A_PAGE
    )
    runs = [_row_json(workspace, row) for row in found]
    return JSONResponse({"count": count, "page": page, "per_page": A_PAGE, "runs": runs})


async def api_shown(request: Request) -> Response:
    workspace = workspace_of(request)
    row, document, _ = await run_in_threadpool(_run, workspace, request.path_params["id"])
    return JSONResponse({**_row_json(workspace, row), "result": document})


async def api_stop(request: Request) -> Response:
    now = (await json_body(request)).get("now") is True
    person = str(request.state.person.name)
    told = await run_in_threadpool(_ended, workspace_of(request), request.path_params["id"], person, now)
    return JSONResponse({"says": told})


async def api_logs(request: Request) -> Response:
    """`q`: also how often it stands in each file, and the first lines with it."""
    workspace, id = workspace_of(request), request.path_params["id"]
    await run_in_threadpool(_run, workspace, id)
    files = await run_in_threadpool(logs.files, workspace.runs.path(id))
    told: dict[str, Any] = {"files": [{name: getattr(one, name) for name in one.__dataclass_fields__} for one in files]}
    rank = _number(request, "rank")
    found = await run_in_threadpool(
        _found_in_all, request, id, [one for one in files if rank is None or one.of_rank(rank)]
    )
    if found is not None:
        told["search"] = {
            "count": found.count,
            "exact": found.exact,
            "files": [{"id": file.id, "count": count} for file, count in found.files],
            "hits": [{"file": file.id, "at": line.at, "text": line.text} for file, line in found.hits],
        }
    return JSONResponse(told)


async def api_log(request: Request) -> Response:
    """`before`, `after` or `at`: a place in bytes; none: the end. `q`: also the matches in the whole file."""
    file, window, found = await run_in_threadpool(
        _looked, request, request.path_params["id"], request.path_params["file"]
    )
    told: dict[str, Any] = {
        "name": file.name,
        "size": window.size,
        "begin": window.begin,
        "end": window.end,
        "lines": [{"at": line.at, "text": line.text, "cut": line.cut} for line in window.lines],
    }
    if found is not None:
        hits = [{"at": line.at, "text": line.text} for line in found.hits]
        told["search"] = {"count": found.count, "exact": found.exact, "hits": hits}
    return JSONResponse(told)


_ONE = "/runs/{id}"
_API = "/api/v1/runs"
PAGES = [
    Page("/runs", ("GET",), listed, "viewer", says="Runs", nav="Runs"),
    Page("/compare", ("GET",), compare, "viewer", says="Two runs side by side", nav="Compare"),
    Page("/links", ("GET",), links, "viewer", says="Links over time", nav="Links"),
    Page(_ONE, ("GET",), shown, "viewer", says="A run"),
    Page(f"{_ONE}/stop", ("POST",), stop, "operator", says="Stop a run"),
    Page(f"{_ONE}/kill", ("POST",), kill, "operator", says="Kill a run"),
    Page(f"{_ONE}/restart", ("POST",), restart, "operator", says="Restart a run"),
    Page(f"{_ONE}/logs", ("GET",), log_page, "viewer", says="The logs of a run"),
    Page(f"{_ONE}/logs/{{file}}/raw", ("GET",), raw, "viewer", says="A file of a run"),
    Page(_API, ("GET",), api_listed, "viewer", "api", "Runs"),
    Page(f"{_API}/{{id}}", ("GET",), api_shown, "viewer", "api", "A run"),
    Page(f"{_API}/{{id}}/stop", ("POST",), api_stop, "operator", "api", "Stop or kill a run"),
    Page(f"{_API}/{{id}}/logs", ("GET",), api_logs, "viewer", "api", "The files of a run"),
    Page(
        f"{_API}/{{id}}/logs/{{file}}", ("GET",), api_log, "viewer", "api", "A part of a file, and what is found in it"
    ),
]
