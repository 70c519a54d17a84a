"""For programs that watch the server: whether it lives, and its counts."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

import runbook
from runbook.serve.page import Page


async def healthz(request: Request) -> Response:
    request.app.state.store.read("SELECT 1")
    return JSONResponse({"status": "ok", "version": runbook.__version__})


async def metrics(request: Request) -> Response:
    text = request.app.state.metrics.text()
    return Response(text, headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"})


PAGES = [
    Page("/healthz", ("GET",), healthz, "anyone", says="Whether the server lives"),
    Page("/metrics", ("GET",), metrics, "viewer", says="Counts for Prometheus"),
]
