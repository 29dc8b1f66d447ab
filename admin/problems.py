"""Errors of the admin API: problem details (RFC 9457), `application/problem+json`."""

from __future__ import annotations

import math
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.responses import Response

from gateway.core.errors import ConfigError, EngineChangeFailed, GatehouseError

MEDIA_TYPE = "application/problem+json"


class Problem(msgspec.Struct, omit_defaults=True):
    """type: urn:gatehouse:error:CODE. instance: the request's id. param: the field or setting that is wrong."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    instance: str
    param: str | None = None


def problem(error: GatehouseError, request_id: str) -> Response:
    """The response for an error. A wrong configuration is the caller's fault (400); a failing engine in it is not."""
    status = 400 if isinstance(error, ConfigError) and not isinstance(error, EngineChangeFailed) else error.status
    detail = str(error) if isinstance(error, ConfigError) else error.message
    body = Problem(f"urn:gatehouse:error:{error.code}", phrase(status), status, detail, error.code, request_id, error.param)
    headers: dict[str, str] = dict(error.headers)
    if error.retry_after is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after)))
        headers["retry-after-ms"] = str(max(1, math.ceil(error.retry_after * 1000)))
    return Response(msgspec.json.encode(body), status, headers, MEDIA_TYPE)


def phrase(status: int) -> str:
    """The status in words."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"


def simple(status: int, code: str, message: str, **more: Any) -> GatehouseError:
    """An error without a class of its own."""
    return GatehouseError(message, status=status, code=code, **more)
