"""Idempotency-Key on creates: a repeated request gets the first answer, and nothing is created twice.

The keys are the caller's own and live for a day in the store. A secret is not kept with them: a repeated answer comes without
it (`idempotency-replayed: true`).
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from starlette.responses import Response

from admin import problems
from admin.operation import JSON, Answer, Call
from gateway.core.errors import GatehouseError, RequestError

log = logging.getLogger("gatehouse.admin")
_KEY: Final = re.compile(r"[\x21-\x7e]{1,255}")


class _Kept(msgspec.Struct):
    """The part of an answer that the store keeps."""

    value: Any
    version: str | None
    location: str | None


def key_of(call: Call) -> str | None:
    """The key of a request, if it has one. Raises RequestError."""
    key = call.request.headers.get("idempotency-key")
    if key is not None and not _KEY.fullmatch(key):
        raise RequestError("Idempotency-Key takes 1 to 255 visible ASCII characters.", code="invalid_header", param="idempotency-key")
    return key


async def once(call: Call, key: str, write: Callable[[], Awaitable[Answer]]) -> Answer:
    """The answer to the first request with this key. Raises 409 while that request is under way, 422 when it was a different one."""
    route = f"{call.operation.method} {call.request.scope['path']}"[:255]
    fingerprint = hashlib.sha256(call.request.scope["query_string"] + b"\0" + call.raw).hexdigest()
    found = await call.store.begin_idempotent(key, call.actor, route, fingerprint)
    if found is not None:
        return _repeated(found.status, found.body, found.fingerprint == fingerprint)
    try:
        answer = await write()
    except BaseException:
        await call.store.abandon_idempotent(key, call.actor, route)
        raise
    kept = _Kept(answer.value if answer.remember is None else answer.remember, answer.version, answer.location)
    try:
        await call.store.finish_idempotent(key, call.actor, route, answer.status, msgspec.json.encode(kept).decode())
    except GatehouseError as error:  # the work is done: the caller must learn that
        log.error("could not store the answer of an idempotent request: %s", error)
    return answer


def _repeated(status: int, body: str, same: bool) -> Answer:
    if not same:
        raise problems.simple(422, "idempotency_key_reused", "This Idempotency-Key was used for another request.", param="idempotency-key")
    if status == 0:
        raise GatehouseError(
            "The first request with this Idempotency-Key is still under way.", status=409, code="request_in_progress", retry_after=1.0
        )
    kept = msgspec.json.decode(body.encode(), type=_Kept)
    headers = {"idempotency-replayed": "true"}
    if kept.version is not None:
        headers["etag"] = f'"{kept.version}"'
    if kept.location is not None:
        headers["location"] = kept.location
    return Answer(response=Response(msgspec.json.encode(kept.value), status, headers, JSON))
