"""The files of a run, as pages and as JSON: their list, a window of one, searches, and whole files."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from typing import Any, BinaryIO, TypeVar
from urllib.parse import quote, urlencode

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from runbook.serve import run_logs as logs
from runbook.serve.guards import RequestRefused, query_number
from runbook.serve.page import Page
from runbook.serve.pages.runs import known_run
from runbook.serve.rendering import AsciiJson, html_response
from runbook.serve.workspace import workspace_of

T = TypeVar("T")
SEARCH_TIMEOUT_S = 20.0
_RAW_PIECE_BYTES = 256 << 10
_WINDOW_PARAMETERS = {"before": "before", "after": "after", "around": "at"}
"""The places of a window, and their names in the query."""


def _open_requested_file(request: Request, id: str, file_id: str) -> tuple[logs.RunLog, BinaryIO]:
    folder = workspace_of(request).runs.path(id)
    file = logs.find_log_file(folder, file_id)
    return file, logs.open_log_file(folder, file)


def _read_window_and_search(
    request: Request, id: str, file_id: str
) -> tuple[logs.RunLog, logs.Window, logs.SearchResult | None]:
    file, stream = _open_requested_file(request, id, file_id)
    with stream:
        places = {name: query_number(request, asked) for name, asked in _WINDOW_PARAMETERS.items()}
        window = logs.read_window(stream, **places)
        text = _search_text(request)
        if not text:
            return file, window, None
        skip = query_number(request, "skip") or 0
        any_case = request.query_params.get("case", "") != "same"
        return (
            file,
            window,
            logs.search_log_file(stream, text, any_case=any_case, skip=skip, until=time.monotonic() + SEARCH_TIMEOUT_S),
        )


def _search_text(request: Request) -> str:
    """The text to search for; empty if none is asked for, or if an open page asks only for lines that came since."""
    text = request.query_params.get("q", "")[:1000]
    return text if text.strip() and "x-live" not in request.headers else ""


async def _run_search_in_turn(request: Request, look: Callable[..., T], *args: Any) -> T:
    """What `look` returns, called in a thread. Searches wait for each other, since the search of a large file takes a
    core for as long as it lasts. Raises RequestRefused if the client has gone meanwhile, without a search."""
    if not _search_text(request):
        return await run_in_threadpool(look, request, *args)
    async with request.app.state.searches:
        if await request.is_disconnected():
            raise RequestRefused(503, "the client has gone")
        return await run_in_threadpool(look, request, *args)


def _search_requested_files(request: Request, id: str, among: list[logs.RunLog]) -> logs.FoundInAll | None:
    """The matches in all these files; None if no search is asked for."""
    text = _search_text(request)
    if not text:
        return None
    any_case, until = request.query_params.get("case", "") != "same", time.monotonic() + SEARCH_TIMEOUT_S
    return logs.search_all_files(workspace_of(request).runs.path(id), among, text, any_case=any_case, until=until)


async def show_logs(request: Request) -> Response:
    workspace, id = workspace_of(request), request.path_params["id"]
    row, _, lives = await run_in_threadpool(known_run, workspace, id)
    every = await run_in_threadpool(logs.readable_files, workspace.runs.path(id))
    rank = query_number(request, "rank")
    files = [file for file in every if rank is None or file.of_rank(rank)]
    chosen = request.query_params.get("file", "") or _default_file_id(files)
    file = window = found = everywhere = None
    whole = request.query_params.get("in", "") == "all"
    if whole:
        everywhere = await _run_search_in_turn(request, _search_requested_files, id, files)
    elif chosen:
        file, window, found = await _run_search_in_turn(request, _read_window_and_search, id, chosen)
    at = query_number(request, "at")

    def link(**more: Any) -> str:
        kept = {key: request.query_params[key] for key in ("rank", "q", "case") if request.query_params.get(key)}
        query = {
            "file": "" if whole else chosen,
            **kept,
            **{key: value for key, value in more.items() if value is not None},
        }
        return f"/runs/{quote(id)}/logs?{urlencode(query)}"

    ranks = sorted({one.ranks[0] for one in every if one.ranks and one.ranks[0] == one.ranks[1]})
    return await html_response(
        request, "logs.html", row=row, lives=lives, files=files, file=file, window=window, found=found, rank=rank,
        everywhere=everywhere, whole=whole,
        ranks=ranks, query=request.query_params.get("q", ""), same=request.query_params.get("case", "") == "same",
        at=at, link=link, most=logs.MAX_HITS, skip=query_number(request, "skip") or 0,
    )  # fmt: skip


def _default_file_id(files: list[logs.RunLog]) -> str:
    """The id of the file to show first: a rank's log or output that is not empty, else any other file; empty if there
    is none."""
    written = [file for file in files if file.size]
    best = [file for file in written if file.stream in ("log", "out")] or written or files
    return best[0].id if best else ""


async def download_log_file(request: Request) -> Response:
    file, stream = await run_in_threadpool(
        _open_requested_file, request, request.path_params["id"], request.path_params["file"]
    )

    async def pieces() -> AsyncIterator[bytes]:
        with stream:
            left = file.size  # the length was announced: bytes that are written meanwhile are not sent
            while left > 0 and (piece := await run_in_threadpool(stream.read, min(left, _RAW_PIECE_BYTES))):
                left -= len(piece)
                yield piece

    name = "".join(char if char.isascii() and (char.isalnum() or char in "._-") else "_" for char in file.name)
    headers = {"content-disposition": f'attachment; filename="{name}"', "content-length": str(file.size)}
    return StreamingResponse(pieces(), media_type="application/octet-stream", headers=headers)


async def api_list_logs(request: Request) -> Response:
    """The files of a run; with `q`, also how often that text occurs in each file, and the first lines with it."""
    workspace, id = workspace_of(request), request.path_params["id"]
    await run_in_threadpool(known_run, workspace, id)
    files = await run_in_threadpool(logs.readable_files, workspace.runs.path(id))
    document: dict[str, Any] = {"files": list(map(asdict, files))}
    rank = query_number(request, "rank")
    found = await _run_search_in_turn(
        request, _search_requested_files, id, [one for one in files if rank is None or one.of_rank(rank)]
    )
    if found is not None:
        document["search"] = {
            "count": found.count,
            "exact": found.exact,
            "files": [{"id": file.id, "count": count} for file, count in found.files],
            "hits": [{"file": file.id, "at": line.at, "text": line.text} for file, line in found.hits],
        }
    return AsciiJson(document)


async def api_read_log(request: Request) -> Response:
    """A window of a file: `before`, `after` or around `at`, an offset in bytes; without these the end of the file. With
    `q`, also the matches in the whole file."""
    file, window, found = await _run_search_in_turn(
        request, _read_window_and_search, request.path_params["id"], request.path_params["file"]
    )
    document: dict[str, Any] = {
        "name": file.name,
        "size": window.size,
        "begin": window.begin,
        "end": window.end,
        "lines": [{"at": line.at, "text": line.text, "cut": line.cut} for line in window.lines],
    }
    if found is not None:
        hits = [{"at": line.at, "text": line.text} for line in found.hits]
        document["search"] = {"count": found.count, "exact": found.exact, "hits": hits}
    return AsciiJson(document)


_LOGS_PATH = "/runs/{id}/logs"
_API_LOGS_PATH = "/api/v1/runs/{id}/logs"
PAGES = [
    Page(_LOGS_PATH, ("GET",), show_logs, "viewer", says="The logs of a run"),
    Page(f"{_LOGS_PATH}/{{file}}/raw", ("GET",), download_log_file, "viewer", says="A file of a run"),
    Page(_API_LOGS_PATH, ("GET",), api_list_logs, "viewer", "api", "The files of a run"),
    Page(
        f"{_API_LOGS_PATH}/{{file}}",
        ("GET",),
        api_read_log,
        "viewer",
        "api",
        "A part of a file, and what is found in it",
    ),
]
