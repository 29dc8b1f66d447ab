"""Exports of the log in other formats: a table for spreadsheets, OCSF events, ArcSight's Common Event Format.

Sources: RFC 4180 (CSV); OCSF 1.3; the CEF implementation standard, version 25 (CEF:0).
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from gateway.audit.encode import printable
from gateway.audit.formats import Record, encode, identity, ocsf, records, rfc3339

COLUMNS: Final = (
    *("time", "writer", "seq", "kind", "request_id", "tenant", "principal", "user", "agent", "session", "credential", "peer", "operation"),
    *("model", "endpoint", "outcome", "status", "code", "rule", "decision", "guardrail", "prompt_tokens", "completion_tokens", "cost"),
    *("currency", "duration_ms", "event", "actor", "target", "hash"),
)
"""Of a CSV export."""
SEVERITIES: Final = {"denied": 6, "failed": 5, "timeout": 5, "unknown": 6}
"""CEF's, from 0 to 10; 3 for everything else."""
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_SEPARATORS: Final = (";", "\t", "|")
"""What some spreadsheets split a line at, by the country: a text that has one is quoted, and all others of its line."""
_BREAKS: Final = re.compile(r"[\r\n]+")
_UNPRINTABLE: Final = re.compile(r"[\x00-\x09\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_CEF: Final = (
    *(("tenant", "cs1"), ("model", "cs2"), ("rule", "cs3"), ("guardrail", "cs4"), ("session", "cs5"), ("agent", "cs6")),
    *(("request_id", "externalId"), ("peer", "src"), ("principal", "suid"), ("user", "suser"), ("actor", "duser"), ("target", "filePath")),
    *(("outcome", "outcome"), ("code", "reason"), ("operation", "requestMethod"), ("endpoint", "dhost")),
    *(("prompt_tokens", "cn1"), ("completion_tokens", "cn2"), ("status", "cn3")),
)
"""Our field and CEF's key."""
_LABELS: Final = {key: name for name, key in _CEF if key[:2] in ("cs", "cn")}


def converted(writer: str, lines: Iterable[bytes], format: str) -> Iterator[bytes]:
    """The lines of one writer in a format of EXPORTS, one line each."""
    convert = EXPORTS[format]
    for record in (one for line in lines for one in records(writer, [line])):
        yield convert(record)


def _csv(record: Record) -> bytes:
    return csv_line([_cell(record, name) for name in COLUMNS])


def csv_line(cells: Iterable[Any]) -> bytes:
    """RFC 4180, in UTF-8. A text that a spreadsheet would take for a formula gets an apostrophe before it."""
    out = io.StringIO()
    made = [_text(cell) if isinstance(cell, str) else cell for cell in cells]
    splits = any(isinstance(cell, str) and any(one in cell for one in _SEPARATORS) for cell in made)
    csv.writer(out, quoting=csv.QUOTE_NONNUMERIC if splits else csv.QUOTE_MINIMAL).writerow(made)
    return out.getvalue().encode("utf-8", "replace")


def _text(cell: str) -> str:
    return _printable(f"'{cell}" if cell.lstrip(" ").startswith(_FORMULA) else cell)


def _cell(record: Record, name: str) -> Any:
    value = record.get(name, "")
    if name == "tenant" and not value:
        return " ".join(record.get("tenants", ()))  # of an event: those that it is about
    if name == "time" and isinstance(value, int | float):
        return rfc3339(float(value))
    return value if isinstance(value, str | int | float) else encode(value).decode()


def _ocsf(record: Record) -> bytes:
    return printable(encode(ocsf(record))) + b"\n"


def _cef(record: Record) -> bytes:
    """`CEF:0|vendor|product|version|class|name|severity|extension`."""
    kind = str(record.get("kind", ""))
    what = str(record.get("event") or record.get("operation") or kind)
    severity = SEVERITIES.get(str(record.get("outcome", "")), 3)
    head = "|".join(
        _head(part) for part in ("Gatehouse", "Gatehouse", "1", f"{kind}:{what}" if what != kind else kind, what, str(severity))
    )
    moment = record.get("time", 0.0)
    pairs = [("rt", str(int(moment * 1000)) if isinstance(moment, int | float) else "0"), ("deviceExternalId", record["writer"])]
    pairs.append(("fileId", identity(record)))
    for name, key in _CEF:
        if value := record.get(name):
            pairs.append((key, str(value)))
            if key in _LABELS:
                pairs.append((f"{key}Label", name))
    return f"CEF:0|{head}|{' '.join(f'{key}={_value(value)}' for key, value in pairs)}\n".encode("utf-8", "replace")


def _head(text: str) -> str:
    return _printable(_BREAKS.sub(" ", text)).replace("\\", "\\\\").replace("|", "\\|")


def _value(text: str) -> str:
    return _printable(text.replace("\\", "\\\\").replace("=", "\\=").replace("\r", "\\r").replace("\n", "\\n"))


def _printable(text: str) -> str:
    """Without characters that end a line for some readers, command a terminal, or turn what follows around: each is written `<U+001B>`."""
    return _UNPRINTABLE.sub(lambda found: f"<U+{ord(found.group()):04X}>", text)


EXPORTS: Final[dict[str, Callable[[Record], bytes]]] = {"csv": _csv, "ocsf": _ocsf, "cef": _cef}
"""What makes a line from a record, by format. `jsonl`, the log's own lines, needs nothing."""
HEADS: Final = {"csv": csv_line(COLUMNS)}
"""What comes before the first line."""
