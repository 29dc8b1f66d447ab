"""Where machines join and say that they are there: below /join/v1/machines of the admin listener. Their signatures are the credential."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from admin import problems
from admin.auth import peer_of
from gateway.core.errors import GatehouseError, RequestError
from gateway.core.joining import MAX_BODY

BODY_SECONDS: Final = 5.0
Door = Callable[[str, Mapping[str, str], bytes, str], Awaitable[tuple[int, bytes]]]
"""(path, headers, body, address) -> (status, JSON). Raises GatehouseError."""


def joining(door: Door) -> Callable[[Request], Awaitable[Response]]:
    """The handler of all its paths."""

    async def answer(request: Request) -> Response:
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await _body(request)
            status, answered = await door(request.scope["path"], request.headers, body, peer_of(request.scope).address)
            response = Response(answered, status, media_type="application/json")
        except TimeoutError:
            late = RequestError(f"The body did not arrive within {BODY_SECONDS:g} s.", code="request_timeout", status=408)
            response = problems.problem(late, _id())
        except GatehouseError as error:
            response = problems.problem(error, _id())
        except ClientDisconnect:
            return Response(status_code=400)
        response.headers["cache-control"] = "no-store"
        return response

    return answer


def _id() -> str:
    return f"adm-{uuid.uuid4().hex}"


async def _body(request: Request) -> bytes:
    """Raises RequestError: 413."""
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > MAX_BODY:
            raise RequestError(f"The body is larger than {MAX_BODY} bytes.", code="request_too_large", status=413)
    return bytes(data)
