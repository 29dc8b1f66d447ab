"""Lines of the output file and of the error file, as OpenAI's Batch API has them; and a batch and a file as its clients see them."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from gateway.core.batches import BatchRecord, FileRecord

MOMENTS: Final = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")


def result(batch: str, number: int, custom_id: str, status: int, request_id: str, body: bytes, attempt: int) -> bytes:
    """A line of either file for a request that got an answer. attempt: how often it was begun; told where that is more than once."""
    try:
        shown: Any = None
        if body and msgspec.json.decode(body) is not None:
            lines = b"\n" in body or b"\r" in body  # outside of texts, which have escapes for them: a result is one line
            shown = msgspec.Raw(msgspec.json.format(body, indent=-1) if lines else body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        shown = body.decode("utf-8", "replace")
    line = {
        "id": f"batch_req_{batch.removeprefix('batch_')}_{number}",
        "custom_id": custom_id,
        "response": {"status_code": status, "request_id": request_id, "body": shown},
        "error": None,
    }
    if attempt > 1:
        line["gatehouse"] = {"attempts": attempt}
    return msgspec.json.encode(line) + b"\n"


def failure(batch: str, number: int, custom_id: str, code: str, message: str, attempt: int = 0) -> bytes:
    """A line of the error file for a request without an answer."""
    line: dict[str, Any] = {
        "id": f"batch_req_{batch.removeprefix('batch_')}_{number}",
        "custom_id": custom_id,
        "response": None,
        "error": {"code": code, "message": message},
    }
    if attempt > 1:
        line["gatehouse"] = {"attempts": attempt}
    return msgspec.json.encode(line) + b"\n"


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
    """repeated and unknown are ours: lines that ran again after a crash, and lines whose outcome it took."""
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
