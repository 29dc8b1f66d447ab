"""The process's log: one line a record on standard error, as text or JSON. Control characters never reach it raw (log injection)."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import TextIO

_ESCAPES = {c: f"\\x{c:02x}" for c in (*range(0x20), *range(0x7F, 0xA0))} | {
    0x0A: "\\n",
    0x0D: "\\r",
    0x09: "\\t",
    0x2028: "\\u2028",
    0x2029: "\\u2029",
}


def clean(text: str) -> str:
    """The text with every control character and line separator escaped."""
    return text.translate(_ESCAPES)


class TextFormatter(logging.Formatter):
    """`2026-01-31T12:00:00Z INFO gatehouse.server: message`; a traceback follows on indented lines. worker: stands before the logger's
    name, where several processes write one log."""

    def __init__(self, worker: str = "") -> None:
        super().__init__()
        self._worker = f"{worker} " if worker else ""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
        line = f"{stamp} {record.levelname} {self._worker}{record.name}: {clean(record.getMessage())}"
        if record.exc_info:
            line += "".join(f"\n    {clean(part)}" for part in self.formatException(record.exc_info).splitlines())
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object a line, with `worker` where several processes write one log, and the facts of a request in a line about one."""

    def __init__(self, worker: str = "") -> None:
        super().__init__()
        self._worker = {"worker": worker} if worker else {}

    def format(self, record: logging.LogRecord) -> str:
        entry = {"time": round(record.created, 3), "level": record.levelname.lower(), **self._worker}
        entry |= {"logger": record.name, "message": record.getMessage()}
        entry |= getattr(record, "request", {})
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def setup(level: str, style: str, stream: TextIO | None = None, worker: str = "") -> None:
    """Points all loggers at one handler. level: debug, info, warning or error. style: text or json. worker: named in each line."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(worker) if style == "json" else TextFormatter(worker))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("gatehouse").setLevel(level.upper())
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
