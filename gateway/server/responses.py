"""`GET` and `DELETE /v1/responses/{id}`: what is kept of a caller's tenant. Each costs a request."""

from __future__ import annotations

from time import time
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from gateway.core.errors import GatehouseError, NotFound, RequestError
from gateway.core.types import InferenceRequest, OutcomeRecord, Peer, Principal, Usage
from gateway.core.waiting import WAITS, Signal, as_future
from gateway.core.wire import WireApi
from gateway.pipeline.conversations import wanted
from gateway.pipeline.plane import DataPlane
from gateway.pipeline.statuses import outcome_of
from gateway.server.asgi import Message

PREFIX: Final = b"/v1/responses/"
_KEPT: Final = PREFIX + b"resp_"
METHODS: Final = ("GET", "HEAD", "DELETE")
_OPERATION: Final = WireApi("chat")
_MOST: Final = 128


class ResponsesEndpoint:
    """What the data listener answers about answers that are kept."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane

    async def answer(self, scope: Message, principal: Principal) -> tuple[int, bytes, list[tuple[bytes, bytes]]]:
        """Raises NotFound, RequestError, LimitExceeded, StoreUnavailable."""
        snapshot, method = self._plane.current(), scope["method"]
        path: bytes = scope["raw_path"]
        if method == "POST" and not path.startswith(_KEPT):
            raise RequestError(f"There is no {path.decode('latin-1')[:200]}.", code="not_found", status=404)
        desk = self._plane.conversations if snapshot.spec.responses is not None else None
        if desk is None:
            raise RequestError("This gateway keeps no responses (setting: responses).", code="unsupported_parameter")
        if method not in METHODS:
            raise RequestError("Use GET or DELETE.", code="method_not_allowed", status=405, headers=(("allow", "GET, HEAD, DELETE"),))
        identity = unquote(scope["raw_path"][len(PREFIX) :].decode("latin-1"))
        if "/" in identity or scope["query_string"].find(b"stream=true") >= 0:
            raise RequestError("A response can only be read as a whole and deleted.", code="not_found", status=404)
        try:
            await self._charge(principal, scope["raw_path"])
            found = await wanted(snapshot, desk, principal, identity, method == "DELETE")
            if found is None:
                raise NotFound(f"There is no response {identity[:_MOST]!r}.", code="response_not_found")
        except GatehouseError as error:
            self._record(scope, principal, method, error)
            raise
        self._record(scope, principal, method, None)
        if method == "DELETE":
            return 200, msgspec.json.encode({"id": identity, "object": "response", "deleted": True}), []
        return 200, found.answer, []

    async def _charge(self, principal: Principal, path: bytes) -> None:
        """Takes one request from the caller's limits."""
        one = InferenceRequest(_OPERATION, path, "", {}, None)
        reservation: Any = self._plane.current().limiter.reserve(principal, one)
        if isinstance(reservation, WAITS):
            reservation = await (as_future(reservation) if isinstance(reservation, Signal) else reservation)
        if reservation is not None:
            reservation.settle(Usage())

    def _record(self, scope: Message, principal: Principal, method: str, error: GatehouseError | None) -> None:
        peer: Peer = scope["state"]["peer"]
        request_id: bytes = scope["state"]["request_id"]
        self._plane.current().audit.outcome(
            OutcomeRecord(
                time(),
                request_id.decode(),
                "ok" if error is None else outcome_of(error),
                200 if error is None else error.status,
                "" if error is None else error.code,
                tenant=principal.tenant,
                principal=principal.id,
                peer=peer.address,
                user=principal.user,
                agent=principal.agent,
                session=principal.session,
                detail={"api": "responses", "does": "erase" if method == "DELETE" else "read"},
            )
        )
