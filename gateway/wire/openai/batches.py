"""Lines of the output file and of the error file, as OpenAI's Batch API has them; and a batch and a file as its clients see them."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from gateway.core.batches import BatchRecord, FileRecord

MOMENTS: Final = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
_SPACE: Final = b" \t\r\n"
_CHECKED: Final = msgspec.json.Decoder(msgspec.Raw)
_SEPARATORS: Final = tuple((sign.encode(), b"\\u%04x" % ord(sign)) for sign in "\x85\u2028\u2029")
"""Line separators that JSON allows in a text. They are escaped, because readers of JSON Lines split at them (`str.splitlines`, httpx)."""


def result(batch: str, number: int, custom_id: str, status: int, request_id: str, body: bytes, attempt: int) -> bytes:
    """A line of either file for a request that got an answer: the body as its engine wrote it, or a text where it is not JSON
    or nested too deeply to be read. attempt: how often it was begun; told where that is more than once."""
    response = {"status_code": status, "request_id": request_id, "body": _shown(body)}
    return _line(batch, number, custom_id, attempt, {"response": response, "error": None})


def failure(batch: str, number: int, custom_id: str, code: str, message: str, attempt: int = 0) -> bytes:
    """A line of the error file for a request without an answer."""
    return _line(batch, number, custom_id, attempt, {"response": None, "error": {"code": code, "message": message}})


def _shown(body: bytes) -> Any:
    if not body or body.strip(_SPACE) == b"null":
        return None
    try:
        body.decode()
        _CHECKED.decode(body)  # no objects are made of it: an answer with vectors may have 64 MiB
        lines = b"\n" in body or b"\r" in body  # outside of texts, which have escapes for them: a result is one line
        return msgspec.Raw(msgspec.json.format(body, indent=-1) if lines else body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return body.decode("utf-8", "replace")


def _line(batch: str, number: int, custom_id: str, attempt: int, outcome: dict[str, Any]) -> bytes:
    line = {"id": f"batch_req_{batch.removeprefix('batch_')}_{number}", "custom_id": custom_id, **outcome}
    if attempt > 1:
        line["gatehouse"] = {"attempts": attempt}
    written = msgspec.json.encode(line)
    if not written.isascii():
        for separator, escape in _SEPARATORS:
            written = written.replace(separator, escape)
    return written + b"\n"


def shown_file(record: FileRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "object": "file",
        "bytes": record.size,
        "created_at": int(record.created),
        "expires_at": int(record.expires),
        "filename": record.name,
        "purpose": record.purpose,
        "status": "processed",
    }


def shown_batch(record: BatchRecord) -> dict[str, Any]:
    """A batch in OpenAI's form. Ours beyond it: `repeated`, lines that ran again after a crash, and `unknown`, lines whose outcome a crash
    lost."""
    errors = [msgspec.to_builtins(error) for error in record.errors]
    moments = {f"{name}_at": int(record.moments[name]) if name in record.moments else None for name in MOMENTS}
    return {
        "id": record.id,
        "object": "batch",
        "endpoint": record.endpoint,
        "errors": {"object": "list", "data": errors} if errors else None,
        "input_file_id": record.input,
        "completion_window": record.window,
        "status": record.state,
        "output_file_id": record.output or None,
        "error_file_id": record.error or None,
        "created_at": int(record.created),
        "expires_at": int(record.expires),
        **moments,
        "request_counts": {"total": record.total, "completed": record.completed, "failed": record.failed},
        "metadata": record.metadata,
        "gatehouse": {"repeated": record.repeated, "unknown": record.unknown},
    }
