"""What browsers and programs fetch besides the pages: the event stream of a tab, static files, health, metrics, and the
description of the API."""

from __future__ import annotations

import asyncio

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

import runbook
from runbook.files.shipped_files import shipped_path
from runbook.serve.change_stream import Changed, Subscriber, event_stream_chunks
from runbook.serve.guards import RequestRefused
from runbook.serve.page import Page
from runbook.serve.rendering import static_files

PING_INTERVAL_S = 15.0
"""How often something is sent on an event stream, at least."""
MAX_STREAM_TOPICS = 20
"""The most topics of one event stream."""
MAX_EVENT_STREAMS = 2000
"""The most event streams at the same time."""


async def stream_events(request: Request) -> Response:
    """An event stream of changes. `topic=` may be given several times, and not at all for every topic; `since=` is the
    `data-seen` of a page. A client that was cut off sends `Last-Event-ID`, as browsers do."""
    changed: Changed = request.app.state.changed
    topics = request.query_params.getlist("topic")
    if len(topics) > MAX_STREAM_TOPICS:
        raise RequestRefused(400, f"at most {MAX_STREAM_TOPICS} topics")
    if changed.closed or len(changed) >= MAX_EVENT_STREAMS:
        raise RequestRefused(503, "there is no room for one more event stream", headers={"retry-after": "10"})
    return EventStream(request, topics)


class EventStream(Response):
    """An event stream. It ends when the client goes, the server stops, the person's login ends or changes, or the same
    person opens too many other streams."""

    media_type = "text/event-stream"

    def __init__(self, request: Request, topics: list[str]) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._request = request
        self._topics = topics

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        state = self._request.state
        changed: Changed = self._request.app.state.changed
        last = self._request.headers.get("last-event-id") or self._request.query_params.get("since", "")
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        with changed.subscribed(self._topics, last, owner=state.person.name) as subscriber:
            watch = asyncio.create_task(_close_on_disconnect(receive, subscriber))
            try:
                async for message in event_stream_chunks(changed, subscriber, PING_INTERVAL_S):
                    if state.still() != state.person:
                        break
                    await send({"type": "http.response.body", "body": message, "more_body": True})
            finally:
                watch.cancel()
        if not subscriber.gone:
            await send({"type": "http.response.body", "body": b""})


async def _close_on_disconnect(receive: Receive, subscriber: Subscriber) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    subscriber.gone = True
    subscriber.close()


async def serve_static_file(request: Request) -> Response:
    """A static file; browsers may keep it for ever if the query names its present version."""
    known = static_files().get(request.path_params["name"])
    if known is None:
        raise HTTPException(404)
    data, version, kind = known
    asked = request.query_params.get("v") == version
    kept = "public, max-age=31536000, immutable" if asked else "no-store"
    return Response(data, headers={"content-type": f"{kind}; charset=utf-8", "cache-control": kept})


async def report_health(request: Request) -> Response:
    request.app.state.store.read("SELECT 1")
    return JSONResponse({"status": "ok", "version": runbook.__version__})


async def serve_metrics(request: Request) -> Response:
    text = request.app.state.metrics.text()
    return Response(text, headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"})


async def serve_openapi_schema(_request: Request) -> Response:
    text = shipped_path("schemas", "api.openapi.json").read_bytes()
    return Response(text, media_type="application/json")


PAGES = [
    Page("/events", ("GET",), stream_events, "viewer", kind="events", says="Changes, as they happen"),
    Page("/static/{name}", ("GET",), serve_static_file, "anyone", says="Style sheet, script and icon"),
    Page("/healthz", ("GET",), report_health, "anyone", says="Whether the server lives"),
    Page("/metrics", ("GET",), serve_metrics, "viewer", says="Counts for Prometheus"),
    Page("/api/v1/openapi.json", ("GET",), serve_openapi_schema, "viewer", kind="api", says="This description"),
]
