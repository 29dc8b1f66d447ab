"""The admin listener's application: metrics and health are open, everything below /admin/v1 is not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from admin import problems
from admin.api import Api, request_id_of
from admin.context import Ports
from admin.joining import joining
from admin.openapi import document
from admin.operation import PREFIX
from admin.resources import table
from admin.webhook import WEBHOOK, webhook
from gateway.core.errors import GatehouseError, NotFound
from gateway.core.joining import JOIN

LOGIN: Final = "/.well-known/gatehouse-login"
_REQUEST_ID: Final = b"x-request-id"
Ready = Callable[[], tuple[bool, dict[str, Any]]]


Exposed = tuple[bytes, str]
"""A scrape and its media type."""


def create_app(scrape: Callable[[str], Exposed | Awaitable[Exposed]], ready: Ready, ports: Ports | None = None) -> ASGIApp:
    """scrape: the metrics in a format that the scraper accepts (the value of its `Accept`), or an awaitable of it. ready: whether traffic
    is welcome, and the report. ports: without them there is no admin API."""

    async def metrics(request: Request) -> Response:
        answer = scrape(request.headers.get("accept", ""))
        found, media_type = answer if isinstance(answer, tuple) else await answer
        return Response(found, headers={"content-type": media_type, "vary": "accept"})

    async def livez(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readyz(request: Request) -> Response:
        welcome, report = ready()
        return JSONResponse(report, status_code=200 if welcome else 503)

    async def login(request: Request) -> Response:
        return JSONResponse({"issuers": [] if ports is None else ports.logins()})

    open_to_all = [("/metrics", metrics), ("/livez", livez), ("/readyz", readyz), (LOGIN, login)]
    routes = [Route(path, answer) for path, answer in open_to_all]
    if ports is not None and ports.approvals_webhook is not None:
        routes.append(Route(WEBHOOK, webhook(ports.approvals_webhook), methods=["POST"]))
    rest = named(Starlette(routes=routes, exception_handlers={404: nowhere, 405: not_taken}))
    if ports is None:
        return rest
    return Split(create_api(ports), None if ports.joining is None else joining(ports.joining), rest)


async def nowhere(request: Request, _error: Exception) -> Response:
    """The answer for an unknown path, which is usually meant for the other listener."""
    path = request.url.path[:200]
    error = NotFound(f"There is no {path} on this listener, which is for administrators ({PREFIX}). Clients use the data listener.")
    return _refused(request, error)


async def not_taken(request: Request, error: Exception) -> Response:
    """The answer for a method that a path does not take."""
    allow = ", ".join(sorted(word.strip() for word in (getattr(error, "headers", None) or {}).get("Allow", "").split(",")))
    return _refused(request, problems.simple(405, "method_not_allowed", f"This path takes {allow}.", headers=(("allow", allow),)))


def _refused(request: Request, error: GatehouseError) -> Response:
    request_id = request_id_of(request)
    response = problems.problem(error, request_id)
    response.headers["x-request-id"] = request_id
    return response


def named(application: ASGIApp) -> ASGIApp:
    """The application, each of whose answers has the request's id."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def begin(message: Message) -> None:
            if message["type"] == "http.response.start" and not any(name == _REQUEST_ID for name, _ in message["headers"]):
                message["headers"] = [*message["headers"], (_REQUEST_ID, request_id_of(Request(scope)).encode())]
            await send(message)

        await application(scope, receive, begin if scope["type"] == "http" else send)

    return answer


class Split:
    """Sends every path under /admin/v1 to the API, which decodes paths itself, what machines say to theirs, and everything else to the
    rest. machines: None: none can join."""

    def __init__(self, api: ASGIApp, machines: ASGIApp | None, rest: ASGIApp) -> None:
        self._api, self._machines, self._rest = api, machines, rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        application = self._rest
        if scope["type"] == "http":
            if _below(PREFIX, scope["path"]):
                application = self._api
            elif self._machines is not None and _below(JOIN, scope["path"]):
                application = self._machines
        await application(scope, receive, send)


def _below(prefix: str, path: str) -> bool:
    return path == prefix or path.startswith(f"{prefix}/")


def create_api(ports: Ports) -> Api:
    """The admin API with its own description among its operations."""
    operations = table.operations()
    return Api(ports, [*operations, document(operations)])
