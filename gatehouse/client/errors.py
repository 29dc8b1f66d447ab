"""What the client raises.

GatehouseClientError
|-- ConnectionFailed     no answer came, or it broke off
`-- AdminError           the admin API answered with an error
"""

from __future__ import annotations

from typing import Any


class GatehouseClientError(Exception):
    """The base of everything that the client raises for what went wrong outside of the caller's program."""


class ConnectionFailed(GatehouseClientError):
    """No answer came, or it broke off. A write may have been done."""


class AdminError(GatehouseClientError):
    """A problem that the admin API reported (RFC 9457).

    status: of HTTP. code: as docs/errors.md lists them; "" where something in between answered. param: the field that is wrong, if it is
    one. request_id: what the audit log knows the request by. problem: the whole answer. retry_after: seconds, where it says so.
    """

    def __init__(self, status: int, problem: dict[str, Any], reason: str = "", retry_after: float | None = None) -> None:
        detail = problem.get("detail")
        super().__init__(detail if isinstance(detail, str) and detail else f"{status} {reason}".strip())
        self.status, self.problem, self.retry_after = status, problem, retry_after
        self.code, self.request_id = str(problem.get("code", "")), str(problem.get("instance", ""))
        param = problem.get("param")
        self.param: str | None = param if isinstance(param, str) else None
