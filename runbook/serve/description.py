"""The JSON API's description of itself: schemas/api.openapi.json, which a test holds against the route table."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from runbook.load.shipped import shipped
from runbook.serve.page import Page


async def openapi(_request: Request) -> Response:
    text = shipped("schemas", "api.openapi.json").read_bytes()
    return Response(text, media_type="application/json")


PAGES = [
    Page("/api/v1/openapi.json", ("GET",), openapi, "viewer", kind="api", says="This description"),
]
