"""`GET` and `DELETE /v1/responses/{id}` and `GET /v1/responses/{id}/input_items`: what is kept of a caller's tenant. Each costs a
request."""

from __future__ import annotations

from time import time
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from gateway.core.conversations import Said
from gateway.core.decided import caller_facts
from gateway.core.errors import GatehouseError, NotFound, RequestError
from gateway.core.ports import Reservation
from gateway.core.slices import in_slices
from gateway.core.types import InferenceRequest, OutcomeRecord, Peer, Principal, Usage
from gateway.core.waiting import WAITS, Signal, as_future
from gateway.core.wire import WireApi
from gateway.pipeline.conversations import wanted
from gateway.pipeline.plane import DataPlane
from gateway.pipeline.statuses import outcome_of
from gateway.server.asgi import Message
from gateway.server.files_and_batches import limit_of, query_of
from gateway.server.path_suggestions import unknown
from gateway.wire.responses.kept import input_items

PREFIX: Final = b"/v1/responses/"
_KEPT: Final = PREFIX + b"resp_"
METHODS: Final = ("GET", "HEAD", "DELETE")
_ITEMS: Final = "/input_items"
_MOST_ITEMS: Final = 100
_ITEMS_UNASKED: Final = 20
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
            raise unknown(path)
        if method == "POST" and path.endswith(b"/cancel"):
            raise RequestError(
                "Only responses with background: true can be cancelled, which is not supported. To end a request, close its connection."
            )
        desk = self._plane.conversations if snapshot.spec.responses is not None else None
        if desk is None:
            raise RequestError("This gateway keeps no responses (setting: responses).", code="not_found", status=404)
        identity = unquote(path[len(PREFIX) :].decode("latin-1"))
        lists = identity.endswith(_ITEMS)
        allowed = METHODS[:2] if lists else METHODS
        if method not in allowed:
            use = "Use GET." if lists else "Use GET or DELETE."
            raise RequestError(use, code="method_not_allowed", status=405, headers=(("allow", ", ".join(allowed)),))
        identity = identity.removesuffix(_ITEMS)
        if "/" in identity:
            raise RequestError("A response can only be read as a whole and deleted.", code="not_found", status=404)
        if b"stream=true" in scope["query_string"].split(b"&"):
            raise RequestError("stream: a kept response is read as a whole; leave it out.", param="stream", code="unsupported_parameter")
        reservation = None
        try:
            reservation = await self._charged(principal, scope["raw_path"])
            found = await wanted(snapshot, desk, principal, scope["state"]["peer"], identity, erase=method == "DELETE")
            if found is None:
                raise NotFound(f"There is no response {identity[:_MOST]!r}.", code="response_not_found")
            answer = await _input_items(scope, identity, found) if lists else found.answer
        except GatehouseError as error:
            self._record(scope, principal, method, reservation, error)
            raise
        self._record(scope, principal, method, reservation, None)
        if method == "DELETE":
            return 200, msgspec.json.encode({"id": identity, "object": "response", "deleted": True}), []
        return 200, answer, []

    async def _charged(self, principal: Principal, path: bytes) -> Reservation:
        """Takes one request from the caller's limits. Raises LimitExceeded, StoreUnavailable."""
        one = InferenceRequest(_OPERATION, path, "", {}, None)
        reservation: Any = self._plane.current().limiter.reserve(principal, one)
        if isinstance(reservation, WAITS):
            reservation = await (as_future(reservation) if isinstance(reservation, Signal) else reservation)
        reservation.settle(Usage())
        charged: Reservation = reservation
        return charged

    def _record(self, scope: Message, principal: Principal, method: str, charged: Reservation | None, error: GatehouseError | None) -> None:
        """Records an access to a stored response, with what was charged and to whom: `limits reconcile` counts by it."""
        detail: dict[str, Any] = {"api": "responses", "does": "erase" if method == "DELETE" else "read"}
        if charged is not None and charged.not_enforced:
            detail["limits_not_enforced"] = list(charged.not_enforced)
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
                operation=_OPERATION.operation,
                charged=charged is not None,
                credential=principal.kind,
                caller=caller_facts(principal),
                user=principal.user,
                agent=principal.agent,
                session=principal.session,
                detail=detail,
            )
        )


async def _input_items(scope: Message, identity: str, found: Said) -> bytes:
    """A page of what a response was made from. Raises RequestError."""
    query = query_of(scope, "limit", "after", "order")
    if (order := query.get("order", "desc")) not in ("asc", "desc"):
        raise RequestError("order is asc or desc.", param="order")
    limit = limit_of(query, _MOST_ITEMS, _ITEMS_UNASKED)
    return await in_slices(input_items(identity, found.items, found.answer, limit, query.get("after"), order == "desc"))
