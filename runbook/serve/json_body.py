"""The body of a request that speaks JSON."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from runbook.serve.guards import RequestRefused


async def json_body(request: Request) -> dict[str, Any]:
    """The object in it, an empty one where there is no body. Raises Refused."""
    try:
        body = await request.json() if await request.body() else {}
    except (ValueError, RecursionError):
        raise RequestRefused(400, "the body is no JSON") from None
    if not isinstance(body, dict):
        raise RequestRefused(400, "the body is not an object")
    return body
