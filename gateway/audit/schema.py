"""The JSON Schema of the log's lines: `python -m gateway.audit.schema` prints docs/audit-record.schema.json."""

from __future__ import annotations

import json
import sys
from typing import Any, Final

import msgspec

from gateway.audit.record import CheckpointRecord, SegmentRecord
from gateway.core.types import EventRecord, IntentRecord, OutcomeRecord

FORMAT: Final = 1
"""Of the log, as the header of a segment says it."""
_TYPES: Final[dict[str, type[msgspec.Struct]]] = {
    "intent": IntentRecord,
    "outcome": OutcomeRecord,
    "event": EventRecord,
    "segment": SegmentRecord,
    "checkpoint": CheckpointRecord,
}
_SEQ: Final = {"type": "integer", "minimum": 1, "description": "Counts 1, 2, 3... through all segments of the writer."}
_HASH: Final = {
    "type": "string",
    "pattern": "^[0-9a-f]{64}$",
    "description": 'SHA-256 of the previous line\'s hash, followed by this line\'s bytes before `,"hash":"`.',
}


def schema() -> dict[str, Any]:
    """JSON Schema 2020-12 of one line. Later versions may add fields, so unknown ones are allowed."""
    kinds, components = msgspec.json.schema_components(_TYPES.values(), ref_template="#/$defs/{name}")
    for kind, reference in zip(_TYPES, kinds, strict=True):
        record = components[reference["$ref"].rpartition("/")[2]]
        record["properties"] = {"seq": _SEQ, "kind": {"const": kind}, **record["properties"], "hash": _HASH}
        record["description"] = " ".join(record["description"].split())
        record["required"] = ["seq", "kind", *record["required"], "hash"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:gatehouse:audit-record:{FORMAT}",
        "title": "A line of Gatehouse's audit log",
        "oneOf": list(kinds),
        "$defs": components,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(schema(), indent=2) + "\n")
