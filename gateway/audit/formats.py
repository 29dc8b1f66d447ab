"""Records in the formats of other systems: Splunk, Elastic (ECS), OpenTelemetry logs, OCSF. A record is a line of the log, decoded.

Sources: Elastic Common Schema 8.11; OCSF 1.3, class API Activity (6003); OpenTelemetry's protocol 1.3, logs; Splunk's HTTP Event Collector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

Record = dict[str, Any]
encode: Final = msgspec.json.encode
decode: Final = msgspec.json.Decoder(Record).decode

RESULTS: Final = {"ok": "success", "denied": "failure", "failed": "failure", "timeout": "failure"}
"""ECS `event.outcome` by our outcome; what is not here is unknown."""
OCSF_SEVERITIES: Final = {"denied": 3, "failed": 4, "timeout": 3, "unknown": 3}
OCSF_STATUSES: Final = {"ok": (1, "Success"), "denied": (2, "Failure"), "failed": (2, "Failure"), "timeout": (2, "Failure")}
OTLP_ATTRIBUTES: Final = (
    *("kind", "request_id", "tenant", "principal", "user", "agent", "operation", "model"),
    *("outcome", "code", "event", "actor", "target"),
)
OTLP_SEVERITIES: Final = {"denied": (13, "WARN"), "failed": (17, "ERROR"), "timeout": (13, "WARN"), "unknown": (13, "WARN")}


def rfc3339(seconds: float) -> str:
    """A time since the epoch, in UTC with microseconds; the epoch itself where it is out of range."""
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        moment = datetime.fromtimestamp(0, UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def records(writer: str, lines: Iterable[bytes]) -> list[Record]:
    """The lines as objects that name their writer. One that is none (somebody has changed the log) is of the kind `unreadable`, with the
    text in `line`."""
    found = []
    for line in lines:
        try:
            record = decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            record = {"kind": "unreadable", "line": line.decode("ascii", "replace")}
        record["writer"] = writer
        found.append(record)
    return found


def identity(record: Record) -> str:
    """Unique for ever: receivers remove duplicates by it. The hash tells one that was cut off after a failed write from the one that came
    instead."""
    return f"{record['writer']}-{record.get('seq', 0)}-{str(record.get('hash', ''))[:16]}"


def ecs(record: Record) -> Record:
    """https://www.elastic.co/guide/en/ecs/8.11. Our own fields are below `gatehouse`."""
    outcome, kind = record.get("outcome", ""), record.get("kind", "")
    event: Record = {
        "id": identity(record),
        "kind": "event",
        "module": "gatehouse",
        "dataset": "gatehouse.audit",
        "category": ["api"] if kind in ("intent", "outcome") or outcome == "denied" else ["configuration"],
        "type": ["denied"] if outcome == "denied" else ["access"] if kind in ("intent", "outcome") else ["info"],
        "action": record.get("event") or record.get("operation") or kind,
        "outcome": RESULTS.get(outcome, "unknown"),
        "sequence": record.get("seq", 0),
    }
    if record.get("duration_ms"):
        event["duration"] = int(record["duration_ms"] * 1_000_000)
    if record.get("code"):
        event["reason"] = record["code"]
    found: Record = {"@timestamp": rfc3339(_time(record)), "ecs": {"version": "8.11.0"}, "event": event, "gatehouse": record}
    if caller := record.get("user") or record.get("principal") or record.get("actor"):
        found["user"] = {"name": caller}
    if record.get("tenant"):
        found["organization"] = {"id": record["tenant"]}
    if record.get("peer"):
        found["source"] = {"address": record["peer"]}
    if record.get("status"):
        found["http"] = {"response": {"status_code": record["status"]}}
    if record.get("request_id"):
        found["http"] = {**found.get("http", {}), "request": {"id": record["request_id"]}}
    return found


def ocsf(record: Record) -> Record:
    """OCSF 1.3.0, class 6003 (API Activity); every field that the class requires."""
    outcome = record.get("outcome", "")
    status, said = OCSF_STATUSES.get(outcome, (0, "Unknown"))
    operation = record.get("event") or record.get("operation") or record.get("kind", "")
    found: Record = {
        "category_uid": 6,
        "category_name": "Application Activity",
        "class_uid": 6003,
        "class_name": "API Activity",
        "activity_id": 99,
        "activity_name": record.get("kind", ""),
        "type_uid": 600399,
        "severity_id": OCSF_SEVERITIES.get(outcome, 1),
        "time": int(_time(record) * 1000),
        "status_id": status,
        "status": said,
        "metadata": {
            "version": "1.3.0",
            "uid": identity(record),
            "sequence": record.get("seq", 0),
            "product": {"name": "Gatehouse", "vendor_name": "Gatehouse"},
            "log_name": record["writer"],
        },
        "actor": {"user": {"name": record.get("user") or record.get("principal") or record.get("actor") or "unknown"}},
        "api": {"operation": str(operation), "request": {"uid": record.get("request_id", "")}},
        "src_endpoint": {"ip": record["peer"]} if record.get("peer") else {"name": "unknown"},
        "unmapped": record,
    }
    if record.get("tenant"):
        found["actor"]["user"]["org"] = {"uid": record["tenant"]}
    if record.get("code"):
        found["status_code"] = record["code"]
    if record.get("duration_ms"):
        found["duration"] = int(record["duration_ms"])
    return found


def _otlp(record: Record) -> Record:
    number, text = OTLP_SEVERITIES.get(record.get("outcome", ""), (9, "INFO"))
    values = {"gatehouse.writer": record["writer"], "gatehouse.seq": record.get("seq", 0), "log.record.uid": identity(record)}
    values |= {f"gatehouse.{name}": record[name] for name in OTLP_ATTRIBUTES if record.get(name)}
    return {
        "timeUnixNano": str(int(_time(record) * 1_000_000_000)),
        "severityNumber": number,
        "severityText": text,
        "body": {"stringValue": encode(record).decode()},
        "attributes": [_attribute(name, value) for name, value in values.items()],
    }


def _attribute(name: str, value: Any) -> Record:
    return {"key": name, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": str(value)}}


def _time(record: Record) -> float:
    found = record.get("time", 0.0)
    return float(found) if isinstance(found, (int, float)) else 0.0


# --- bodies


def ndjson(found: list[Record], index: str, host: str) -> bytes:
    return b"".join(encode(record) + b"\n" for record in found)


def splunk_hec(found: list[Record], index: str, host: str) -> bytes:
    """Events one behind the other, as the collector's `/services/collector` takes them."""
    common = {"host": host, "source": "gatehouse", "sourcetype": "gatehouse:audit", **({"index": index} if index else {})}
    return b"\n".join(encode({"time": _time(one), **common, "event": one}) for one in found)


def elastic_bulk(found: list[Record], index: str, host: str) -> bytes:
    """`create` with an id: a record that is there already is refused with 409, so nothing is there twice."""
    name = index or "logs-gatehouse.audit-default"
    return b"".join(encode({"create": {"_index": name, "_id": identity(one)}}) + b"\n" + encode(ecs(one)) + b"\n" for one in found)


def otlp(found: list[Record], index: str, host: str) -> bytes:
    resource = {"attributes": [_attribute("service.name", "gatehouse"), _attribute("host.name", host)]}
    logs = [{"scope": {"name": "gatehouse.audit"}, "logRecords": [_otlp(one) for one in found]}]
    return encode({"resourceLogs": [{"resource": resource, "scopeLogs": logs}]})


def ocsf_events(found: list[Record], index: str, host: str) -> bytes:
    return encode([ocsf(one) for one in found])


BODIES: Final[dict[str, tuple[str, Callable[[list[Record], str, str], bytes]]]] = {
    "ndjson": ("application/x-ndjson", ndjson),
    "splunk_hec": ("application/json", splunk_hec),
    "elastic_bulk": ("application/x-ndjson", elastic_bulk),
    "otlp": ("application/json", otlp),
    "ocsf": ("application/json", ocsf_events),
}
"""The content type, and what makes the body, by format."""

KAFKA_VALUES: Final[dict[str, Callable[[bytes, Record], bytes]]] = {
    "jsonl": lambda line, record: line,
    "ecs": lambda line, record: encode(ecs(record)),
    "ocsf": lambda line, record: encode(ocsf(record)),
}
"""What makes a message's value from a line and the record in it, by format."""
