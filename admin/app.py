"""The admin listener's application: metrics and health here, one file for each resource under admin/resources."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

Ready = Callable[[], tuple[bool, dict[str, Any]]]


def create_app(scrape: Callable[[], bytes], ready: Ready, routes: list[BaseRoute] | None = None) -> Starlette:
    """scrape: the Prometheus text. ready: whether traffic is welcome, and the report. routes: those of the admin API."""

    async def metrics(request: Request) -> Response:
        return Response(scrape(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def livez(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readyz(request: Request) -> Response:
        welcome, report = ready()
        return JSONResponse(report, status_code=200 if welcome else 503)

    return Starlette(routes=[Route("/metrics", metrics), Route("/livez", livez), Route("/readyz", readyz), *(routes or [])])
