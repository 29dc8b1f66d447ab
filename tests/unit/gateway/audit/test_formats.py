"""Records in the formats of others, held against what those formats demand; the log's own schema; exports."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import jsonschema_rs
from hypothesis import given
from hypothesis import strategies as st

from gateway.audit import schema
from gateway.audit.exports import COLUMNS, HEADS, converted
from gateway.audit.formats import ecs, ocsf, records
from gateway.audit.reader import LogReader
from gateway.core.audit_questions import AuditFilter

ROOT = Path(__file__).parents[4]
WHOLE = {"type": "integer"}
TEXT = {"type": "string", "minLength": 1}


def thing(required: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {**required, **more}, "required": list(required)}


OCSF = thing(
    {
        "activity_id": {"enum": [0, 1, 2, 3, 4, 99]},
        "category_uid": {"const": 6},
        "class_uid": {"const": 6003},
        "type_uid": {"enum": [600300, 600301, 600302, 600303, 600304, 600399]},
        "severity_id": {"enum": [0, 1, 2, 3, 4, 5, 6, 99]},
        "time": WHOLE,
        "metadata": thing(
            {"version": {"const": "1.3.0"}, "product": thing({"vendor_name": TEXT}, name=TEXT)}, uid=TEXT, sequence=WHOLE, log_name=TEXT
        ),
        "actor": {"anyOf": [thing({"user": thing({"name": TEXT}, org=thing({"uid": TEXT}))})]},
        "api": thing({"operation": TEXT}, request=thing({"uid": {"type": "string"}})),
        "src_endpoint": {"anyOf": [thing({"ip": TEXT}), thing({"name": TEXT})]},
    },
    activity_name=TEXT,
    status_id={"enum": [0, 1, 2, 99]},
    status=TEXT,
    status_code=TEXT,
    duration=WHOLE,
    unmapped={"type": "object"},
)
"""What OCSF 1.3.0 requires of API Activity (6003) and the objects in it, and the types of what we add. Source: schema.ocsf.io/1.3.0."""

ECS_TYPES = ["access", "admin", "allowed", "change", "creation", "deletion", "denied", "end", "info", "start", "user"]
ECS = thing(
    {
        "@timestamp": {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$"},
        "ecs": thing({"version": TEXT}),
        "event": {
            **thing(
                {"kind": {"const": "event"}, "category": {"type": "array"}, "type": {"type": "array"}},
                outcome={"enum": ["failure", "success", "unknown"]},
                duration=WHOLE,
                sequence=WHOLE,
                id=TEXT,
                reason=TEXT,
                action=TEXT,
                module=TEXT,
                dataset=TEXT,
            ),
            "oneOf": [
                {"properties": {"category": {"const": ["api"]}, "type": {"items": {"enum": ECS_TYPES}}}},
                {
                    "properties": {
                        "category": {"const": ["configuration"]},
                        "type": {"items": {"enum": ["access", "change", "creation", "deletion", "info"]}},
                    }
                },
            ],
        },
    },
    user=thing({"name": TEXT}),
    organization=thing({"id": TEXT}),
    source=thing({"address": TEXT}),
    http=thing({}, request=thing({"id": TEXT}), response=thing({"status_code": WHOLE})),
    gatehouse={"type": "object"},
)
"""Types and allowed values of the Elastic Common Schema 8.11 of the fields that we set. Source: its generated/csv/fields.csv and the pages
on event.category and event.type."""

names = st.text(max_size=20)
lines = st.fixed_dictionaries(
    {
        "seq": st.integers(1, 1 << 40),
        "kind": st.sampled_from(["intent", "outcome", "event", "checkpoint", "segment"]),
        "time": st.floats(0, 4e9),
    },
    optional={
        **{
            name: names
            for name in ("request_id", "tenant", "principal", "user", "peer", "operation", "model", "event", "actor", "code", "rule")
        },
        "outcome": st.sampled_from(["ok", "denied", "failed", "cancelled", "timeout", "unknown"]),
        "status": st.integers(0, 599),
        "duration_ms": st.floats(0, 1e7),
        "hash": st.just("ab" * 32),
    },
)


@given(lines)
def test_events_are_as_ocsf_and_ecs_want_them(line: dict[str, Any]) -> None:
    (record,) = records("gw-1", [json.dumps(line).encode()])
    jsonschema_rs.validate(OCSF, json.loads(json.dumps(ocsf(record))))
    jsonschema_rs.validate(ECS, json.loads(json.dumps(ecs(record))))


@given(lines)
def test_an_export_has_one_line_for_each_record_whatever_is_in_it(line: dict[str, Any]) -> None:
    raw = json.dumps(line).encode()
    (row,) = list(csv.reader(io.StringIO(b"".join(converted("gw-1", [raw], "csv")).decode(), newline="")))
    assert len(row) == len(COLUMNS) and row[1] == "gw-1"
    assert not any(cell.lstrip(" ").startswith(("=", "@", "+", "-")) for cell in row)
    (cef,) = converted("gw-1", [raw], "cef")
    assert cef.count(b"\n") == 1 and cef.endswith(b"\n") and b"\r" not in cef
    head = re.split(r"(?<!\\)(?:\\\\)*\|", cef.decode())
    assert head[0] == "CEF:0" and head[6].isdigit() and len(head) >= 8
    jsonschema_rs.validate(OCSF, json.loads(b"".join(converted("gw-1", [raw], "ocsf"))))


def test_an_export_commands_no_terminal_and_ends_no_line_before_its_end() -> None:
    """Whatever the program that reads it takes for the end of a line or of a cell."""
    hostile = "a\x1b[2J\x9b31m\x00\x07\x85\u2028\u2029\u202egpj\x7f\x0b\x0c\tb\r\nc"
    record = {
        "seq": 1,
        "kind": "intent",
        "time": 1.0,
        "request_id": "r",
        "model": hostile,
        "user": " \uff1dHYPERLINK()",
        "session": "x;=cmd()",
    }
    raw = json.dumps({**record, "hash": "ab" * 32}).encode()
    for format in ("csv", "cef", "ocsf"):
        made = b"".join(converted("gw-1", [raw], format)).decode()
        assert not any(one in made for one in "\x1b\x9b\x00\x07\x85\u2028\u2029\u202e\x7f\x0b\x0c\t"), format
        assert format == "csv" or len(made.splitlines()) == 1
    table = b"".join(converted("gw-1", [raw], "csv")).decode()
    assert '"x;=cmd()"' in table and "' \uff1dHYPERLINK()" in table and ";=cmd" not in table.replace('"x;=cmd()"', "")
    assert "<U+001B>[2J" in table


def test_a_log_is_as_its_schema_says_and_the_schema_is_in_the_documentation(log_bench: Any, make: Any) -> None:
    kept = json.loads((ROOT / "docs/audit-record.schema.json").read_text())
    assert kept == json.loads(json.dumps(schema.schema())), "write it anew: python -m gateway.audit.schema > docs/audit-record.schema.json"
    log_bench.log()
    log_bench.writer(writer="1").open()
    validator = jsonschema_rs.validator_for(kept)
    for writer in ("0", "1"):
        for record in log_bench.records(writer=writer):
            validator.validate(record)
    assert not validator.is_valid({**log_bench.records()[0], "hash": "x"})


def test_an_export_in_another_format_has_a_head_and_what_matches(log_bench: Any) -> None:
    log_bench.log()
    reader = LogReader(log_bench.directory, log_bench.signer.verifier)
    table = b"".join(reader.export_as(AuditFilter(kind="intent"), "csv"))
    assert table.startswith(HEADS["csv"]) and table.count(b"\r\n") == 5
    assert len(list(reader.export_as(AuditFilter(kind="outcome"), "cef"))) == 5, "nothing, and four lines"
