"""The one tree of errors. Each knows its HTTP status and the OpenAI error body it becomes (docs/errors.md).

GatehouseError
├── ConfigError                      start-up or reload: the configuration is wrong (path, line, nearest key)
│   └── EngineChangeFailed           502, 507: an engine of the change did not start, or was rolled back
├── RequestError                     400 and 413, 415, 408: what the client sent cannot be used
│   ├── ContextLengthExceeded        400
│   └── ModelNotFound                404
├── AuthenticationError              401
├── PermissionDenied                 403
├── ApprovalPending                  409
├── GuardrailViolation               400
├── LimitExceeded                    429
│   └── QuotaExceeded                429: a budget is spent
├── Overloaded                       503
├── EngineError                      502, 503, 507: the engine's side
│   └── EngineTimeout                504
├── AuditUnavailable                 503
├── AuditUnproven                    409: a record cannot be proven, or not yet
├── MasterUnavailable                503: the master key of the audit log's encryption cannot be used
├── Shredded                         410: the key of a text was destroyed
├── StoreUnavailable                 503: the store's database does not answer
├── NotFound                         404: no such resource or key in the store
├── AlreadyExists                    409: the name is taken
├── StorageFull                      507: there is no room for a file
├── LeaseLost                        never sent: another replica has taken over a job
├── VersionMismatch                  412: somebody else wrote first (a lost update)
├── ClientGone                       never sent: the client left
├── ClientStalled                    408, in a stream: the client does not read its answer
└── InternalError                    500
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, Final

from gateway.core.addresses import quotable, without_logins

NO_RETRY: Final = ("x-should-retry", "false")
"""The header by which SDKs know that another try makes no sense."""


def one_line(text: str) -> str:
    """The text as one line for a terminal: line breaks, control characters and other unprintable characters are escaped."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


class GatehouseError(Exception):
    """Base of all errors that reach a client or an operator.

    message: a sentence for the reader. code: the contract's machine name. param: the field that is wrong.
    retry_after: seconds after which another try makes sense. headers: further response headers.
    """

    status = 500
    type = "internal_error"
    default_code = "internal_error"
    interrupts = False
    """Whether it ends an exchange from outside (the client left, the deadline passed): code that waits lets it propagate."""

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        status: int | None = None,
        retry_after: float | None = None,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.param = param
        self.retry_after = retry_after
        self.headers = headers
        if status is not None:
            self.status = status

    def body(self) -> bytes:
        """The OpenAI error object as JSON bytes."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return json.dumps({"error": error}, separators=(",", ":")).encode()


class ConfigError(GatehouseError):
    """The configuration cannot be used. `path` is the setting's path, `line` its line in the file (1-based). Logins and secrets in
    addresses that the message quotes are masked. others: further errors of the same configuration that do not follow from this one."""

    default_code = "invalid_config"

    def __init__(self, message: str, *, path: str | None = None, line: int | None = None, file: str | None = None) -> None:
        super().__init__(without_logins(message), param=_shown(path))
        self.path, self.line, self.file = path, line, file
        self.others: tuple[ConfigError, ...] = ()

    def __str__(self) -> str:
        place = ":".join(str(p) for p in (self.file, self.line) if p is not None)
        return one_line(": ".join(p for p in (place, _shown(self.path), self.message) if p))


def _shown(path: str | None) -> str | None:
    """The path of a setting: a key in it may be an address that somebody put there."""
    return path and without_logins(quotable(path))


class EngineChangeFailed(ConfigError):
    """A change was not put into force because of one of its engines; the previous configuration remains in force.

    code: `engine_failed` (it did not start), `insufficient_memory` (507: it does not fit), `rolled_back` (its new process did not answer
    the warm-up, failed requests or ended). engine: its name, if it was one engine.
    """

    default_code = "engine_failed"

    def __init__(self, message: str, *, code: str = "engine_failed", engine: str | None = None) -> None:
        super().__init__(message)
        self.code, self.engine = code, engine
        self.status = 507 if code == "insufficient_memory" else 502


class RequestError(GatehouseError):
    status = 400
    type = "invalid_request_error"
    default_code = "invalid_value"


class ContextLengthExceeded(RequestError):
    default_code = "context_length_exceeded"


class ModelNotFound(RequestError):
    status = 404
    default_code = "model_not_found"


class AuthenticationError(GatehouseError):
    status = 401
    type = "authentication_error"
    default_code = "missing_credentials"


class PermissionDenied(GatehouseError):
    status = 403
    type = "permission_error"
    default_code = "policy_denied"


class ApprovalPending(GatehouseError):
    """`approval`: `id`, `tool`, `arguments_sha256`, `expires_at` (seconds since the epoch; shown as RFC 3339)."""

    status = 409
    type = "approval_required"
    default_code = "approval_pending"
    approval: dict[str, Any] | None = None

    def told(self) -> dict[str, Any]:
        """`approval` as every API shows it in an error; nothing where there is none."""
        if self.approval is None:
            return {}
        moment = datetime.fromtimestamp(int(self.approval["expires_at"]), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {"approval": {**self.approval, "expires_at": moment}}

    def body(self) -> bytes:
        error: dict[str, Any] = {"message": self.message, "type": self.type, "param": self.param, "code": self.code, **self.told()}
        return json.dumps({"error": error}, separators=(",", ":")).encode()


class GuardrailViolation(GatehouseError):
    status = 400
    type = "guardrail_violation"
    default_code = "guardrail"


class LimitExceeded(GatehouseError):
    """limit: the name of the one that refused, where it was a configured one."""

    status = 429
    limit = ""
    type = "rate_limit_error"
    default_code = "rate_limit_exceeded"


class QuotaExceeded(LimitExceeded):
    """A budget is spent, or a tenant has as much of something as it may have. SDKs must not try again, and are told so."""

    type = "insufficient_quota"
    default_code = "insufficient_quota"

    def __init__(self, message: str, **given: Any) -> None:
        super().__init__(message, **given)
        if NO_RETRY not in self.headers:
            self.headers = (NO_RETRY, *self.headers)


class Overloaded(GatehouseError):
    status = 503
    type = "overloaded_error"
    default_code = "overloaded"


class EngineError(GatehouseError):
    """The engine's side failed. `code` is one of no_healthy_endpoint, engine_failed, model_loading, insufficient_memory.

    `safe`: no byte of a response was received, so another endpoint may be tried. `refused`: the connection was not accepted. `lost`: the
    engine had the request when it closed the connection or stopped to work: it may have died of it. `working`: the engine was answering
    until its time was over, which says nothing about its health.
    """

    safe = False
    refused = False
    lost = False
    working = False
    status = 502
    type = "engine_error"
    default_code = "engine_failed"


class EngineTimeout(EngineError):
    status = 504
    type = "timeout_error"
    default_code = "engine_timeout"


class AuditUnavailable(GatehouseError):
    status = 503
    type = "audit_unavailable"
    default_code = "audit_unavailable"


class AuditUnproven(GatehouseError):
    """No proof can be made for a record: no checkpoint covers it yet, or the log is not as it was written."""

    status = 409
    type = "invalid_request_error"
    default_code = "audit_unproven"


class AuditSearchTooLong(GatehouseError):
    """A search of the audit log's index was ended because its time is over."""

    status = 400
    type = "invalid_request_error"
    default_code = "audit_search_too_long"


class AuditIndexing(GatehouseError):
    """The audit log's index is behind the log, or cannot be written: a search would leave records out."""

    status = 503
    type = "audit_unavailable"
    default_code = "audit_indexing"


class MasterUnavailable(GatehouseError):
    """The master key that wraps the audit log's data keys cannot be read or asked."""

    status = 503
    type = "audit_unavailable"
    default_code = "master_key_unavailable"


class Shredded(GatehouseError):
    """The data key of a text was destroyed on purpose: nobody can read it any more."""

    status = 410
    type = "invalid_request_error"
    default_code = "shredded"


class StoreUnavailable(GatehouseError):
    """The store's database does not answer. A write that was under way may or may not have happened."""

    status = 503
    type = "store_unavailable"
    default_code = "store_unavailable"


class NotFound(GatehouseError):
    status = 404
    type = "invalid_request_error"
    default_code = "not_found"


class AlreadyExists(GatehouseError):
    status = 409
    type = "invalid_request_error"
    default_code = "already_exists"


class VersionMismatch(GatehouseError):
    """The resource is not in the state that the writer expected. `current`: its present version (its ETag)."""

    status = 412
    type = "invalid_request_error"
    default_code = "version_mismatch"
    current: int | None = None


class StorageFull(GatehouseError):
    status = 507
    type = "overloaded_error"
    default_code = "storage_full"


class LeaseLost(GatehouseError):
    """Another replica has taken over what this one was doing: nothing was written."""

    default_code = "lease_lost"
    status = 409
    type = "conflict"


class ClientGone(GatehouseError):
    """The client closed its connection; nothing can be sent to it. 499 is nginx's status for the log."""

    status = 499
    default_code = "client_gone"


class ClientStalled(GatehouseError):
    """The client did not read its answer for too long; its connection is cut."""

    status = 408
    type = "invalid_request_error"
    default_code = "client_stalled"


class InternalError(GatehouseError):
    """Our fault: the client learns the request's id only, the trace goes to the log."""
