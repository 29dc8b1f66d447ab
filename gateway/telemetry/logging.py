"""The process's log: one line a record on standard error or in a file, as text or JSON. Control characters never reach it raw (log
injection), and what looks like a credential is masked: a `Secret` masks itself, this is for what libraries put into their messages."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Mapping
from typing import Final, TextIO

from gateway.core.addresses import without_logins
from gateway.telemetry.log_file import LogFile

TRACE: Final = 5
"""The level below debug: each message between processes, each probe, each request."""
logging.addLevelName(TRACE, "TRACE")
ROOT: Final = "gatehouse"
"""The logger above all of ours."""
_ESCAPES = {c: f"\\x{c:02x}" for c in (*range(0x20), *range(0x7F, 0xA0))} | {
    0x0A: "\\n",
    0x0D: "\\r",
    0x09: "\\t",
    0x2028: "\\u2028",
    0x2029: "\\u2029",
}
_CREDENTIALS: Final = re.compile(
    r"(?P<key>\bgh_[A-Za-z0-9_-]{8,})"
    r"|(?P<jwt>\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*){1,3})"
    r"|(?P<scheme>\b(?:bearer|basic|dpop)\s+)(?P<token>[A-Za-z0-9._~+/=-]{12,})",
    re.IGNORECASE,
)
MASK: Final = "***"


def clean(text: str) -> str:
    """The text with every control character and line separator escaped."""
    return text.translate(_ESCAPES)


def masked(text: str) -> str:
    """The text without what looks like a credential: API keys of ours, JWTs, what follows `Bearer`, `Basic` and `DPoP`, logins and
    secrets in addresses."""
    return without_logins(_CREDENTIALS.sub(_mask, text), MASK)


def _mask(found: re.Match[str]) -> str:
    if (scheme := found["scheme"]) is not None:
        return f"{scheme}{MASK}"
    return f"gh_{MASK}" if found["key"] is not None else MASK


class TextFormatter(logging.Formatter):
    """`2026-01-31T12:00:00Z INFO gatehouse.server: message`; a traceback follows on indented lines. worker: stands before the logger's
    name, where several processes write one log."""

    def __init__(self, worker: str = "") -> None:
        super().__init__()
        self._worker = f"{worker} " if worker else ""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
        line = f"{stamp} {record.levelname} {self._worker}{record.name}: {clean(masked(record.getMessage()))}"
        if record.exc_info:
            line += "".join(f"\n    {clean(part)}" for part in masked(self.formatException(record.exc_info)).splitlines())
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object a line, with `worker` where several processes write one log, and the facts of a request in a line about one."""

    def __init__(self, worker: str = "") -> None:
        super().__init__()
        self._worker = {"worker": worker} if worker else {}

    def format(self, record: logging.LogRecord) -> str:
        entry = {"time": round(record.created, 3), "level": record.levelname.lower(), **self._worker}
        entry |= {"logger": record.name, "message": masked(record.getMessage())}
        entry |= getattr(record, "request", {})
        if record.exc_info:
            entry["exception"] = masked(self.formatException(record.exc_info))
        return json.dumps(entry)


def setup(level: str, style: str, stream: TextIO | None = None, worker: str = "", file: LogFile | None = None) -> None:
    """Points all loggers at one handler. level: trace, debug, info, warning or error. style: text or json. worker: named in each line.
    file: where lines go instead of to the stream."""
    handler = file or logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(worker) if style == "json" else TextFormatter(worker))
    root = logging.getLogger()
    before, root.handlers[:] = list(root.handlers), [handler]
    for one in before:
        if one is not handler and isinstance(one, LogFile):
            one.close()
    root.setLevel(logging.WARNING)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    put_levels(level, {})


def put_levels(level: str, loggers: Mapping[str, str]) -> None:
    """From now on ours log from this level on, and those below with a level of their own from theirs. loggers: by name, such as
    `gatehouse.engines`; those that are not named follow."""
    logging.getLogger(ROOT).setLevel(level.upper())
    for name, one in list(logging.root.manager.loggerDict.items()):
        if name.startswith(f"{ROOT}.") and name not in loggers and isinstance(one, logging.Logger):
            one.setLevel(logging.NOTSET)
    for name, own in loggers.items():
        logging.getLogger(name).setLevel(own.upper())
