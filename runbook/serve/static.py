"""Style sheet, script and icon: a fixed table of files, so that no path leads anywhere else."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from runbook.serve.page import Page
from runbook.serve.render import static_files


async def static(request: Request) -> Response:
    known = static_files().get(request.path_params["name"])
    if known is None:
        raise HTTPException(404)
    data, version, kind = known
    asked = request.query_params.get("v") == version
    kept = "public, max-age=31536000, immutable" if asked else "no-store"
    return Response(data, headers={"content-type": f"{kind}; charset=utf-8", "cache-control": kept})


PAGES = [Page("/static/{name}", ("GET",), static, "anyone", says="Style sheet, script and icon")]
