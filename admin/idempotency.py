"""Idempotency-Key on creates: a repeated request gets the first answer, and nothing is created twice.

The keys are the caller's own and live for a day in the store. A secret is not kept with them: a repeated answer comes without
it (`idempotency-replayed: true`). While a request is under way its hold of the key is renewed, however long it takes; that of a process
which died ends after HOLD_SECONDS.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final
from uuid import uuid4

import msgspec
from starlette.responses import Response

from admin import problems
from admin.operation import JSON, Answer, Call
from gateway.core.errors import GatehouseError, RequestError
from gateway.core.idempotency import HOLD_SECONDS
from gateway.core.storage import ControlStore
from gateway.core.tasks import TaskOwner

log = logging.getLogger("gatehouse.admin")
RENEW_SECONDS: Final = HOLD_SECONDS / 4
AGAIN_SECONDS: Final = 1.0
"""Between two tries to renew while the store does not answer: once it does, a repeated request would begin as soon."""
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
    holder = uuid4().hex
    found = await call.store.begin_idempotent(key, call.actor, route, fingerprint, holder=holder)
    if found is not None:
        return _repeated(found.status, found.body, found.fingerprint == fingerprint)
    renewing = TaskOwner("idempotency key").spawn(_keep(call.store, key, call.actor, route, holder), name="renew")
    try:
        try:
            answer = await write()
        finally:
            renewing.cancel()
    except BaseException:
        await call.store.abandon_idempotent(key, call.actor, route, holder=holder)
        raise
    await _finish(call, key, route, holder, answer)
    return answer


async def _keep(store: ControlStore, key: str, actor: str, route: str, holder: str) -> None:
    """Renews the hold until it is cancelled, or the key is lost."""
    pause = RENEW_SECONDS
    while True:
        await asyncio.sleep(pause)
        try:
            if not await store.renew_idempotent(key, actor, route, holder):
                log.warning("%s: the hold of its idempotency key ended, so the request may be done a second time", route)
                return
            pause = RENEW_SECONDS
        except GatehouseError as error:
            log.debug("the hold of an idempotency key could not be renewed: %s", error.message)
            pause = AGAIN_SECONDS


async def _finish(call: Call, key: str, route: str, holder: str, answer: Answer) -> None:
    kept = _Kept(answer.value if answer.remember is None else answer.remember, answer.version, answer.location)
    body = msgspec.json.encode(kept).decode()
    try:
        if not await call.store.finish_idempotent(key, call.actor, route, answer.status, body, holder=holder):
            log.warning("%s: the answer is not kept for its idempotency key, as the hold of it has ended", route)
    except GatehouseError as error:  # the work is done: the caller must learn that
        log.error("could not store the answer of an idempotent request: %s", error)


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
