"""The data listener's paths that reach no engine, as a small ASGI application: the path table, the model list, health.

The table maps a path to its handler; what is not in it is 404 (no engine path is reachable through the gateway).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from math import ceil
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import unquote

import msgspec

from gateway.core.batches import WorkDesk
from gateway.core.errors import GatehouseError, ModelNotFound, RequestError
from gateway.core.slices import Steps, at_once, in_slices, portions
from gateway.core.snapshot import ModelEntry, Snapshot
from gateway.core.tickets import TicketDesk
from gateway.core.tokens import TokenDesk
from gateway.core.types import Headers, Principal
from gateway.pipeline.fetch import no_action
from gateway.pipeline.plane import DataPlane
from gateway.pipeline.ticketing import TicketBook
from gateway.server import responses
from gateway.server.asgi import Message, Receive, Send
from gateway.server.cors import cors_headers, preflight_headers
from gateway.server.files_and_batches import WorkEndpoint, serves
from gateway.server.health import Health
from gateway.server.login import identified, record_denial
from gateway.server.path_suggestions import unknown
from gateway.server.tickets import PATH as TICKETS
from gateway.server.tickets import TicketEndpoint
from gateway.server.tokens import NO_STORE, PATH, TokenEndpoint
from gateway.server.tokens import error_body as token_error
from gateway.server.websocket import PATH as STREAM
from gateway.wire.anthropic import models as anthropic
from gateway.wire.oip import codec
from gateway.wire.table import identity_lines, is_inference, refusal

Response = tuple[int, bytes, list[tuple[bytes, bytes]]]
Handler = Callable[[Message], Awaitable[Response]]
T = TypeVar("T")
Listed: TypeAlias = tuple[str, ModelEntry]
MODELS = b"/v1/models/"
MESSAGES = b"/v1/messages"
NO_KEYS = b'{"keys":[]}'
"""The key set (RFC 7517) of a gateway that issues no tokens."""
STREAMED: Response = (0, b"", [])
AT_ONCE: Final = 128
"""Models that are looked at in one step: for each, all that the caller may do is asked."""
LISTINGS: Final = 4
"""Callers for whom more models than that are listed at a time; others wait."""


class DataApplication:
    """The ASGI application of the data listener."""

    def __init__(
        self,
        plane: DataPlane,
        health: Health,
        desk: TokenDesk | None = None,
        work: WorkDesk | None = None,
        tickets: tuple[TicketBook, TicketDesk] | None = None,
    ) -> None:
        self._plane, self._health, self._desk = plane, health, desk
        self._work = None if work is None else WorkEndpoint(plane, work, self._identified)
        self._tokens = None if desk is None else TokenEndpoint(plane, desk, self._identified, self._proved)
        self._responses = responses.ResponsesEndpoint(plane)
        self._turns = asyncio.Semaphore(LISTINGS)
        self._tickets = None if tickets is None else TicketEndpoint(plane, *tickets, self._identified)
        self._table: dict[bytes, Handler] = {
            b"/v1/models": self._models,
            b"/v1/engines": self._engines,
            b"/livez": self._livez,
            b"/readyz": self._readyz,
            b"/health": self._readyz,
            b"/health/liveliness": self._livez,
            b"/health/readiness": self._readyz,
            b"/v2": self._v2_server,
            b"/v2/health/live": self._v2_live,
            b"/v2/health/ready": self._v2_ready,
            b"/.well-known/jwks.json": self._jwks,
            STREAM: self._stream,
        }

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        cors = self._plane.current().spec.listen.cors
        headers: Headers = scope["state"]["headers"]
        answered = await self._worked(scope, headers, receive, send) if serves(scope["raw_path"]) else None
        if answered is STREAMED:
            return
        status, body, extra = answered or await self._answer(scope, headers, receive)
        if cors.origins and status != 204:
            extra = [*extra, *_lines(cors_headers(cors, headers))]
        content = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())] if status != 204 else []
        await send({"type": "http.response.start", "status": status, "headers": [*content, *extra]})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    async def _worked(self, scope: Message, headers: Headers, receive: Receive, send: Send) -> Response | None:
        """The answer about files and batches; STREAMED where it has been sent; None where there are none here."""
        if self._work is None or scope["method"] == "OPTIONS":
            return None
        try:
            found = await self._work.answer(scope, receive, send)
        except GatehouseError as error:
            if scope["state"].get("streaming"):
                raise  # the length that was promised does not come, which the client notices
            self._plane.metrics.denied(error.status, error.code)
            status, body = refusal(error, scope["raw_path"], headers, scope["state"]["request_id"])
            return status, body, _error_lines(error)
        return STREAMED if found is None else (found[0], msgspec.json.encode(found[1]), [])

    async def _answer(self, scope: Message, headers: Headers, receive: Receive) -> Response:
        path, method = scope["raw_path"], scope["method"]
        handler = self._table.get(path)
        if handler is None and path.startswith(MODELS) and path != MODELS:
            handler = self._model
        inference = is_inference(path)
        posts = inference or path in (PATH, TICKETS)
        worked = self._work is not None and serves(path)
        known = worked or handler is not None or posts or path.startswith((codec.V2_MODELS, responses.PREFIX))
        try:
            if path.startswith(responses.PREFIX) and not inference and method != "OPTIONS":
                return await self._responses.answer(scope, await self._principal(scope))
            if method == "OPTIONS" and known and (preflight := preflight_headers(self._plane.current().spec.listen.cors, headers)):
                return 204, b"", preflight
            if not known:
                raise unknown(path)
            if path == PATH and method == "POST" and self._tokens is not None:
                return await self._tokens.answer(scope, receive)
            if path == TICKETS and method == "POST" and self._tickets is not None:
                return await self._tickets.answer(scope, receive)
            if not posts and path.startswith(codec.V2_MODELS) and path.count(b"/", len(codec.V2_MODELS)):
                await self._acted(scope)
            if handler is None or method not in ("GET", "HEAD"):
                allow, use = ("POST", "POST") if posts else ("GET, HEAD", "GET")
                raise RequestError(f"Use {use}.", code="method_not_allowed", status=405, headers=(("allow", allow),))
            return await handler(scope)
        except GatehouseError as error:
            self._plane.metrics.denied(error.status, error.code)
            if path == PATH:
                return error.status, token_error(error), [*NO_STORE, *_error_lines(error)]
            request_id: bytes = scope["state"]["request_id"]
            shown = MESSAGES if anthropic.VERSION in headers and path.startswith(b"/v1/models") else path
            status, body = refusal(error, shown, headers, request_id)
            return status, body, [*_lines(identity_lines(shown, request_id)), *_error_lines(error)]

    async def _acted(self, scope: Message) -> None:
        """Raises RequestError (404) for a POST, or another method, of an action that no model has: as for a GET."""
        refusal = no_action(self._plane.current(), await self._principal(scope), scope["raw_path"])
        if refusal is not None:
            raise refusal

    async def _principal(self, scope: Message) -> Principal:
        """Who asks."""
        return await self._identified(scope, scope["state"]["headers"])

    async def _identified(self, scope: Message, headers: Headers) -> Principal:
        """The caller whose credential these headers hold. A failed login is recorded, as on the inference paths."""
        state = scope["state"]
        # A token counts elsewhere, too: it is for whom the credential itself names.
        return await identified(self._plane, headers, state["peer"], state["request_id"], scope["raw_path"] != PATH)

    async def _proved(self, scope: Message) -> bytes:
        """The key that the sender proved to hold although no token requires it; b"" without a proof. A failure is recorded too."""
        prover = self._plane.current().prover
        if prover is None:
            return b""
        try:
            found = prover.proved(scope["state"]["headers"])
            return await found if isinstance(found, Awaitable) else found
        except GatehouseError as error:
            self._record_denial(scope, error)
            raise

    def _record_denial(self, scope: Message, error: GatehouseError) -> None:
        state = scope["state"]
        record_denial(self._plane, state["peer"], state["request_id"], error)

    async def _models(self, scope: Message) -> Response:
        listed = await self._listed(scope)
        if anthropic.VERSION in scope["state"]["headers"]:
            return 200, anthropic.page([(name, entry.spec.created) for name, entry in listed], scope["query_string"]), _identity(scope)
        return 200, await self._in_turn(written(listed, _model), len(listed)), []

    async def _listed(self, scope: Message) -> list[Listed]:
        principal = await self._principal(scope)
        snapshot = self._plane.current()
        return await self._in_turn(listed(snapshot, principal), len(snapshot.models))

    async def _in_turn(self, steps: Steps[T], size: int) -> T:
        """Looks at many models in slices, for a few callers at a time: each takes a slice of every round of the loop."""
        if size <= AT_ONCE:
            return at_once(steps)
        async with self._turns:
            return await in_slices(steps)

    async def _model(self, scope: Message) -> Response:
        principal = await self._principal(scope)
        snapshot = self._plane.current()
        name = unquote(scope["raw_path"][len(MODELS) :].decode("latin-1"))
        entry = snapshot.models.get(name)
        if entry is None or not snapshot.authorizer.may_see(principal, name):
            raise ModelNotFound(f"The model {name[:128]!r} does not exist.", param="model")
        shown = entry.name if snapshot.authorizer.may_see(principal, entry.name) else name
        if anthropic.VERSION in scope["state"]["headers"]:
            return 200, msgspec.json.encode(anthropic.model(shown, entry.spec.created)), _identity(scope)
        return 200, msgspec.json.encode(_model(entry, shown)), []

    async def _engines(self, scope: Message) -> Response:
        """The models, as OpenAI's first API lists them."""
        listed = await self._listed(scope)
        return 200, await self._in_turn(written(listed, _engine), len(listed)), []

    async def _v2_server(self, scope: Message) -> Response:
        return 200, codec.encode_server_metadata("gatehouse", version("gatehouse")), []

    async def _v2_live(self, scope: Message) -> Response:
        return 200, msgspec.json.encode({"live": True, "status": "ok"}), []

    async def _v2_ready(self, scope: Message) -> Response:
        ready, report = self._health.ready()
        return (200 if ready else 503), msgspec.json.encode({"ready": ready, **report}), []

    async def _stream(self, scope: Message) -> Response:
        raise RequestError(
            "This path is a WebSocket: ask for 'Upgrade: websocket' (RFC 6455).",
            code="upgrade_required",
            status=426,
            headers=(("upgrade", "websocket"),),
        )

    async def _jwks(self, scope: Message) -> Response:
        desk, settings = self._desk, self._plane.current().spec.identity.gateway_tokens
        keys = NO_KEYS if desk is None or not settings.enabled else desk.keys.jwks
        return 200, keys, [(b"cache-control", b"public, max-age=120")]

    async def _livez(self, scope: Message) -> Response:
        return 200, msgspec.json.encode({"status": "ok"}), []

    async def _readyz(self, scope: Message) -> Response:
        ready, report = self._health.ready()
        return (200 if ready else 503), msgspec.json.encode(report), []


def listed(snapshot: Snapshot, principal: Principal) -> Steps[list[Listed]]:
    """The models that a caller may see, by the names under which they are shown. An alias is listed only for a caller who may not use the
    model under its own name."""
    may_see = snapshot.authorizer.may_see
    seen: dict[str, ModelEntry] = {}
    for some in portions(tuple(snapshot.models.items()), AT_ONCE):
        seen.update([(name, entry) for name, entry in some if may_see(principal, name)])
        yield
    found: list[Listed] = []
    for some in portions(tuple(seen.items()), AT_ONCE):
        found += [(name, entry) for name, entry in some if name == entry.name or entry.name not in seen]
        yield
    return found


def written(models: list[Listed], show: Callable[[ModelEntry, str], dict[str, Any]]) -> Steps[bytes]:
    """The list of models as JSON. show: an item of it."""
    parts: list[bytes] = []
    for some in portions(models, AT_ONCE):
        parts.append(msgspec.json.encode([show(entry, name) for name, entry in some])[1:-1])
        yield
    return b'{"object":"list","data":[%b]}' % b",".join(parts)


def _model(entry: ModelEntry, name: str) -> dict[str, Any]:
    """OpenAI's model object, under the name that the caller may use."""
    return {"id": name, "object": "model", "created": entry.spec.created, "owned_by": entry.spec.owned_by}


def _engine(entry: ModelEntry, name: str) -> dict[str, Any]:
    return {"id": name, "object": "engine", "owner": entry.spec.owned_by, "ready": True}


def _identity(scope: Message) -> list[tuple[bytes, bytes]]:
    return _lines(identity_lines(MESSAGES, scope["state"]["request_id"]))


def _error_lines(error: GatehouseError) -> list[tuple[bytes, bytes]]:
    lines = [(name.encode(), value.encode()) for name, value in error.headers]
    if error.retry_after is not None:
        lines += [(b"retry-after", b"%d" % ceil(error.retry_after)), (b"retry-after-ms", b"%d" % ceil(error.retry_after * 1000))]
    return lines


def _lines(block: bytes) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, _, value in (line.partition(b": ") for line in block.split(b"\r\n") if line)]
