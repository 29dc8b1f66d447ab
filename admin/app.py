"""The admin listener's application: metrics and health are open, everything below /admin/v1 is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from admin.api import Api
from admin.context import Ports
from admin.openapi import document
from admin.operation import PREFIX
from admin.resources import table

Ready = Callable[[], tuple[bool, dict[str, Any]]]


def create_app(scrape: Callable[[], bytes], ready: Ready, ports: Ports | None = None) -> Starlette:
    """scrape: the Prometheus text. ready: whether traffic is welcome, and the report. ports: without them there is no admin API."""

    async def metrics(request: Request) -> Response:
        return Response(scrape(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def livez(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readyz(request: Request) -> Response:
        welcome, report = ready()
        return JSONResponse(report, status_code=200 if welcome else 503)

    routes: list[BaseRoute] = [Route("/metrics", metrics), Route("/livez", livez), Route("/readyz", readyz)]
    if ports is not None:
        routes.append(Mount(PREFIX, app=create_api(ports)))
    return Starlette(routes=routes)


def create_api(ports: Ports) -> Api:
    """The admin API with its own description among its operations."""
    operations = table.operations()
    return Api(ports, [*operations, document(operations)])
