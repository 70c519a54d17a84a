"""The fleet, and one node: as pages and as JSON."""

from __future__ import annotations

from collections import Counter
from typing import Any
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from runbook.serve.fleet.view import GLYPHS, NODE_GLYPHS, NodeRow, ago, moment, rows
from runbook.serve.guards import RequestRefused
from runbook.serve.page import Page
from runbook.serve.render import html
from runbook.serve.runs.folders import RunFilter
from runbook.serve.workspace import fleet_of, workspace_of

RUNS_OF_A_NODE = 50


def _wanted(row: NodeRow, words: list[str]) -> bool:
    told = f"{row.name} {row.group} {row.state} {' '.join(cell.state for cell in row.ranks)}".lower()
    return all(word in told for word in words)


async def fleet(request: Request) -> Response:
    every = await run_in_threadpool(rows, workspace_of(request), fleet_of(request))
    query = request.query_params.get("q", "")[:200]
    found = [row for row in every if _wanted(row, query.lower().split())]
    return html(
        request,
        "fleet.html",
        rows=found,
        total=len(every),
        query=query,
        states=Counter(row.state for row in every),
        ranks=Counter(cell.state for row in every for cell in row.ranks),
        width=max((len(row.ranks) for row in found), default=0),
        glyphs=GLYPHS,
        node_glyphs=NODE_GLYPHS,
        ago=ago,
    )


async def node(request: Request) -> Response:
    """What is known of a node: where it is used, its agent, its runs and what they found."""
    name, workspace = request.path_params["name"], workspace_of(request)
    every = await run_in_threadpool(rows, workspace, fleet_of(request))
    own = [row for row in every if row.name == name]
    runs, count = await run_in_threadpool(workspace.runs.search, RunFilter(host=f"{name} "), most=RUNS_OF_A_NODE)
    if not own and not runs:
        raise RequestRefused(404, "no group, no agent and no run has such a node")
    found = [(run, await run_in_threadpool(_of_node, request, run.id, name)) for run in runs]
    agent = fleet_of(request).node(name)
    return html(request, "node.html", node=name, rows=own, runs=found, count=count, agent=agent, ago=ago, moment=moment)


def _of_node(request: Request, id: str, name: str) -> list[dict[str, Any]]:
    """What a run found on the node: stage, cause, and the sentence."""
    found = []
    for stage in workspace_of(request).runs.document(id)["stages"]:
        for outcome in stage.get("outcomes", ()):
            if outcome.get("node") == name and outcome.get("verdict") not in ("pass", "skip"):
                for finding in outcome.get("findings", ()):
                    found.append({"stage": stage["name"], "cause": finding["cause"], "says": finding["says"]})
    return found


async def drain(request: Request) -> Response:
    fleet, name = fleet_of(request), request.path_params["name"]
    if fleet.node(name) is None:
        raise RequestRefused(404, "no agent has this name")
    await run_in_threadpool(fleet.drain, name, request.state.form.get("drain") == "on")
    workspace_of(request).changed("fleet")
    back = "/admin#agents" if request.state.form.get("back") == "admin" else f"/nodes/{quote(name)}"
    return RedirectResponse(back, 303)


async def api_fleet(request: Request) -> Response:
    every = await run_in_threadpool(rows, workspace_of(request), fleet_of(request))
    return JSONResponse({"nodes": [_as_json(row) for row in every]})


def _as_json(row: NodeRow) -> dict[str, Any]:
    told = {name: getattr(row, name) for name in row.__dataclass_fields__ if name != "ranks"}
    ranks = [{name: getattr(cell, name) for name in cell.__dataclass_fields__} for cell in row.ranks]
    return {**told, "group": row.group or None, "run": row.run or None, "ranks": ranks}


PAGES = [
    Page("/", ("GET",), fleet, "viewer", says="The fleet", nav="Fleet"),
    Page("/nodes/{name}", ("GET",), node, "viewer", says="A node"),
    Page("/nodes/{name}/drain", ("POST",), drain, "operator", says="Drain or undrain a node"),
    Page("/api/v1/fleet", ("GET",), api_fleet, "viewer", "api", "The fleet"),
]
