"""Where machines join and say that they are there: below /join/v1/machines of the admin listener. Their signatures are the credential.

Each machine is heard several times a second, and with each ticket's receipt: no router and no middleware is on the way.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from admin import problems
from admin.auth import peer_of
from gateway.core.errors import ClientGone, GatehouseError, RequestError
from gateway.core.joining import MAX_BODY, SIGNATURE

BODY_SECONDS: Final = 5.0
Door = Callable[[str, Mapping[str, str], bytes, str], Awaitable[tuple[int, bytes]]]
"""(path, headers, body, address) -> (status, JSON). Raises GatehouseError."""
_READ: Final = {name.encode(): name for name in ("authorization", SIGNATURE)}


def joining(door: Door) -> ASGIApp:
    """The application of all its paths."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if scope["method"] != "POST":
                raise RequestError("Use POST.", code="method_not_allowed", status=405, headers=(("allow", "POST"),))
            async with asyncio.timeout(BODY_SECONDS):
                body = await _body(receive)
            status, answered = await door(scope["path"], _headers(scope), body, peer_of(scope).address)
            response = Response(answered, status, media_type="application/json")
        except TimeoutError:
            late = RequestError(f"The body did not arrive within {BODY_SECONDS:g} s.", code="request_timeout", status=408)
            response = problems.problem(late, _id())
        except ClientGone:
            return
        except GatehouseError as error:
            response = problems.problem(error, _id())
        response.headers["cache-control"] = "no-store"
        await response(scope, receive, send)

    return answer


def _id() -> str:
    return f"adm-{uuid.uuid4().hex}"


def _headers(scope: Scope) -> dict[str, str]:
    """Those that the door reads; of several of one name the first."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        if name in _READ:
            found.setdefault(_READ[name], value.decode("latin-1"))
    return found


async def _body(receive: Receive) -> bytes:
    """Raises RequestError: 413; ClientGone."""
    data = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone("The machine left.")
        data += message.get("body", b"")
        if len(data) > MAX_BODY:
            raise RequestError(f"The body is larger than {MAX_BODY} bytes.", code="request_too_large", status=413)
        if not message.get("more_body"):
            return bytes(data)
