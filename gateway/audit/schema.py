"""The JSON Schema of the log's lines: `python -m gateway.audit.schema` prints docs/audit-record.schema.json."""

from __future__ import annotations

import json
import sys
from typing import Any, Final

import msgspec

from gateway.audit.envelopes import ClearEvent, ClearIntent, ClearOutcome
from gateway.audit.record import CheckpointRecord, Envelope, SegmentRecord
from gateway.core.types import EventRecord, IntentRecord, OutcomeRecord

FORMAT: Final = 1
"""The version of the log's format, as in the header of a segment."""
_TYPES: Final[dict[str, type[msgspec.Struct]]] = {
    "intent": IntentRecord,
    "outcome": OutcomeRecord,
    "event": EventRecord,
    "segment": SegmentRecord,
    "checkpoint": CheckpointRecord,
}
_SEALED: Final[dict[str, type[msgspec.Struct]]] = {"intent": ClearIntent, "outcome": ClearOutcome, "event": ClearEvent}
"""What records that are encrypted as a whole have in the clear."""
_OPENED: Final = {
    "sealed": {"type": "string", "description": "The id of the key with which the line is encrypted in the log; this is what it holds."},
    "withheld": {"const": True, "description": "It says nothing of people, for its tenant's key could not be had when it was written."},
}
_SEQ: Final = {"type": "integer", "minimum": 1, "description": "Counts 1, 2, 3... through all segments of the writer."}
_HASH: Final = {
    "type": "string",
    "pattern": "^[0-9a-f]{64}$",
    "description": 'SHA-256 of the previous line\'s hash, followed by this line\'s bytes before `,"hash":"`.',
}
_DIGEST: Final = {
    "type": "string",
    "pattern": "^[0-9a-f]{64}$",
    "description": "SHA-256 of the 16 bytes of salt and the record's JSON that are encrypted in `sealed`.",
}
_UNOPENED: Final = {"type": "string", "description": "Of a line that was read to be opened: why it could not be. Not in the log."}


def schema() -> dict[str, Any]:
    """JSON Schema 2020-12 of one line. Later versions may add fields, so unknown ones are allowed."""
    types = [*_TYPES.items(), *_SEALED.items()]
    kinds, components = msgspec.json.schema_components([*(made for _, made in types), Envelope], ref_template="#/$defs/{name}")
    envelope = kinds[-1]
    for (kind, made), reference in zip(types, kinds[:-1], strict=True):
        record = components[reference["$ref"].rpartition("/")[2]]
        more: dict[str, Any] = _OPENED if made is _TYPES[kind] and kind in _SEALED else {}
        needed = []
        if made is not _TYPES[kind]:
            more, needed = {"digest": _DIGEST, "sealed": envelope, "unopened": _UNOPENED}, ["digest", "sealed"]
        record["properties"] = {"seq": _SEQ, "kind": {"const": kind}, **record["properties"], **more, "hash": _HASH}
        record["description"] = " ".join(record["description"].split())
        record["required"] = ["seq", "kind", *record["required"], *needed, "hash"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:gatehouse:audit-record:{FORMAT}",
        "title": "A line of Gatehouse's audit log",
        "oneOf": list(kinds[:-1]),
        "$defs": components,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(schema(), indent=2) + "\n")
