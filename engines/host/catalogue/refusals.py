"""What the library of model files refuses, as errors with their status and code."""

from __future__ import annotations

from typing import Any

from engines.host.catalogue.quarantine import Upload
from gateway.core.errors import GatehouseError, RequestError


def conflict(code: str, message: str, **more: Any) -> GatehouseError:
    return GatehouseError(message, status=409, code=code, **more)


def refuse_used(name: str, users: list[str]) -> None:
    if users:
        engines = f"engine{'s' if len(users) > 1 else ''} {', '.join(users)}"
        raise conflict("in_use", f"The model {name!r} is in use by the {engines}.")


def too_large(upload: Upload) -> RequestError:
    return RequestError(f"The upload lacks {upload.missing} bytes; more were sent.", code="request_too_large", status=413)


def full(message: str) -> GatehouseError:
    return GatehouseError(message, status=507, code="insufficient_storage")


def stopping() -> GatehouseError:
    return GatehouseError("The gateway is shutting down.", status=503, code="overloaded", retry_after=1.0)
