"""Where signed decisions about approvals come in: `POST /webhooks/approvals` of the admin listener. The signature is the credential."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from admin import problems
from gateway.core.approvals import ApprovalRecord
from gateway.core.errors import GatehouseError, RequestError

WEBHOOK: Final = "/webhooks/approvals"
MAX_BODY: Final = 16 * 1024


def webhook(decide: Callable[[Mapping[str, str], bytes], Awaitable[ApprovalRecord]]) -> Callable[[Request], Awaitable[Response]]:
    """The handler. decide: (headers, body); raises GatehouseError."""

    async def answer(request: Request) -> Response:
        request_id = f"adm-{uuid.uuid4().hex}"
        try:
            decided = await decide(request.headers, await _body(request))
            response: Response = JSONResponse({"id": decided.id, "state": decided.state})
        except GatehouseError as error:
            response = problems.problem(error, request_id)
        except ClientDisconnect:
            return Response(status_code=400)
        response.headers["x-request-id"] = request_id
        response.headers["cache-control"] = "no-store"
        return response

    return answer


async def _body(request: Request) -> bytes:
    """Raises RequestError: 413."""
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > MAX_BODY:
            raise RequestError(f"The body is larger than {MAX_BODY} bytes.", code="request_too_large", status=413)
    return bytes(data)
