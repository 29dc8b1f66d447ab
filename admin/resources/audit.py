"""The local audit log: its newest records, an export, its verification, the keys to verify with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import islice
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.responses import Response, StreamingResponse

from admin.audit_scope import scope_of
from admin.moments import Moment
from admin.operation import Answer, Call, Operation, Written
from admin.resource import Tenant
from gateway.core.audit_questions import AuditFilter
from gateway.core.errors import NotFound, RequestError

NDJSON = "application/x-ndjson"
MEDIA = {"csv": "text/csv", "cef": "text/plain"}
ZIP = "application/zip"
_LINES = 512
_NAME = "[A-Za-z0-9_-]{1,40}"
_PLACE = f"({_NAME}=)?[1-9][0-9]{{0,7}}"
Text = Annotated[str, Meta(min_length=1, max_length=128)]
Writer = Annotated[str, Meta(min_length=1, max_length=40)]
Kind = Literal["intent", "outcome", "event", "checkpoint", "segment"]


class TailQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    count: Annotated[int, Meta(ge=1, le=1000)] = 20
    writer: Writer | None = None


class ExportQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Records that match all that is given. since (inclusive) and until (exclusive): when they were written. event: the name of an event,
    in which `*` stands for any characters. The outcomes of the intents that match come with them. format: the lines as they are, a table,
    OCSF events, or CEF. sealed: records that are encrypted as a whole as they are in the log, so that they can be proven."""

    since: Moment | None = None
    until: Moment | None = None
    tenant: Tenant | None = None
    principal: Text | None = None
    model: Text | None = None
    kind: Kind | None = None
    event: Text | None = None
    outcome: Text | None = None
    request_id: Text | None = None
    writer: Writer | None = None
    format: Literal["jsonl", "csv", "ocsf", "cef"] = "jsonl"
    sealed: bool = False


class VerifyQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """from_segment: the oldest segment that must be there (older ones are archived and not verified): `4` for every writer, `gw-1=4` for
    one; several are separated by commas. archived: writers whose files were moved away as a whole, separated by commas."""

    from_segment: Annotated[str, Meta(pattern=f"^$|^{_PLACE}(,{_PLACE})*$", max_length=1024)] = ""
    archived: Annotated[str, Meta(pattern=f"^$|^{_NAME}(,{_NAME})*$", max_length=1024)] = ""


class Records(msgspec.Struct):
    items: list[dict[str, Any]]
    cursor: str | None = None


class Verification(msgspec.Struct):
    """first_problem: the file, line, reason and writer of the first place that is not as it was written; line 0 means the file as a whole.
    writers: what was found of each writer's chain; `live` whether a process has it, `skipped` and `archived` what was not verified,
    `journal` what a journal holds."""

    ok: bool
    first_problem: dict[str, Any] | None
    writers: list[dict[str, Any]]


class Proof(msgspec.Struct):
    """record: as in the log; line: its text, whose hash is the leaf. path: hashes that lead from the leaf to the tree's root. tree: what
    was signed of it. checkpoint: the signed statement about the chain. opened: of a record that is encrypted as a whole, its JSON and the
    salt with which that has the digest in the line."""

    record: dict[str, Any]
    line: str
    leaf_hash: str
    leaf_index: int
    path: list[str]
    tree: dict[str, Any]
    checkpoint: dict[str, Any]
    opened: dict[str, str] | None = None


class Proofs(msgspec.Struct):
    """keys: how the keys that sign the log followed one another (docs/audit.md); empty where there was only one."""

    request_id: str
    proofs: list[Proof]
    keys: list[dict[str, Any]] = []


class ConsistencyQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Numbers of two checkpoints of a writer, the older one first; without the second, the newest."""

    writer: Writer
    first: Annotated[int, Meta(ge=1, le=1 << 53)]
    second: Annotated[int, Meta(ge=1, le=1 << 53)] | None = None


class Consistency(msgspec.Struct):
    """first, second: the signed checkpoints. first_line: the first one as it is in the checkpoints file, the leaf of the tree. consistency,
    inclusion: the hashes of RFC 9162, sections 2.1.4 and 2.1.3. keys: as of proofs."""

    writer: str
    first: dict[str, Any]
    second: dict[str, Any]
    first_line: str
    consistency: list[str]
    inclusion: list[str]
    keys: list[dict[str, Any]] = []


class AuditKey(msgspec.Struct):
    """since: when it took the place of the one before it; null for the first. endorsement: what both signed then."""

    id: str
    algorithm: str
    pem: str
    current: bool = True
    since: float | None = None
    endorsement: dict[str, Any] | None = None


class KeyDryRun(msgspec.Struct):
    """result: the key that signs now."""

    result: AuditKey
    diff: list[dict[str, Any]]
    dry_run: bool = True


class RotatedKey(msgspec.Struct):
    """The id and the raw public key (hex) of the key that signs from now on, and of the one before it, with the signatures of both."""

    time: float
    key: str
    public: str
    previous: str
    previous_public: str
    signature: str
    countersignature: str


class AuditKeys(msgspec.Struct):
    items: list[AuditKey]
    cursor: str | None = None


async def tail(call: Call) -> Answer:
    return Answer({"items": await asyncio.to_thread(call.ports.audit_reader.tail, call.query.count, call.query.writer), "cursor": None})


async def verify(call: Call) -> Answer:
    try:
        scope = scope_of(call.query.from_segment, call.query.archived)
    except ValueError as error:
        raise RequestError(str(error), param="from_segment") from None
    return Answer(await asyncio.to_thread(call.ports.audit_reader.verify, scope))


async def prove(call: Call) -> Answer:
    request_id = call.path["request_id"]
    found = await asyncio.to_thread(call.ports.audit_reader.prove, request_id)
    if not found:
        raise NotFound(f"the audit log of this replica has no record of the request {request_id!r}")
    keys = await asyncio.to_thread(call.ports.audit_reader.endorsements)
    return Answer({"request_id": request_id, "proofs": found, "keys": keys})


async def bundle(call: Call) -> Answer:
    """A ZIP file with the proofs, the policy's text and what follows from them."""
    request_id = call.path["request_id"]
    found = await asyncio.to_thread(call.ports.audit_reader.bundle, request_id)
    if found is None:
        raise NotFound(f"the audit log of this replica has no record of the request {request_id!r}")
    return Answer(response=Response(found, media_type=ZIP))


async def consistency(call: Call) -> Answer:
    reader, q = call.ports.audit_reader, call.query
    found = await asyncio.to_thread(reader.consistency, q.writer, q.first, q.second)
    return Answer({**found, "keys": await asyncio.to_thread(reader.endorsements)})


async def rotate_key(call: Call) -> Answer:
    call.target = "audit-keys"
    if call.dry_run:
        keys = await asyncio.to_thread(call.ports.audit_reader.public_keys)
        return Answer({"dry_run": True, "diff": [{"path": "key", "from": keys[-1]["id"], "to": None}], "result": keys[-1]})
    return Answer(await asyncio.to_thread(call.ports.audit_reader.rotate_key))


async def keys(call: Call) -> Answer:
    return Answer({"items": await asyncio.to_thread(call.ports.audit_reader.public_keys), "cursor": None})


async def export(call: Call) -> Answer:
    """The lines exactly as the log holds them, so that an export can still be proven (what is encrypted as a whole is opened, unless
    `sealed`); or in another format."""
    q: ExportQuery = call.query
    wanted = AuditFilter(**{name: getattr(q, name) for name in AuditFilter.__struct_fields__})
    lines = call.ports.audit_reader.export(wanted, q.format)
    return Answer(response=StreamingResponse(_parts(lines), media_type=MEDIA.get(q.format, NDJSON)))


async def _parts(lines: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Read in a thread, some lines at a time, as fast as the caller takes them."""
    while part := await asyncio.to_thread(lambda: b"".join(islice(lines, _LINES))):
        yield part


def operations() -> list[Operation]:
    return [
        Operation("GET", "audit/records", "audit:read", "Show the newest records", tail, Records, query=TailQuery),
        Operation(
            "GET",
            "audit/export",
            "audit:export",
            "Export records",
            export,
            None,
            query=ExportQuery,
            media=NDJSON,
            further_media=("text/csv", "text/plain"),
        ),
        Operation("POST", "audit/verify", "audit:verify", "Verify the log", verify, Verification, query=VerifyQuery, quiet=True),
        Operation("GET", "audit/proofs/{request_id}", "audit:read", "Prove a request's records", prove, Proofs, finds=True, refuses=(409,)),
        Operation(
            "GET",
            "audit/consistency",
            "audit:read",
            "Prove that a checkpoint goes on from an older one",
            consistency,
            Consistency,
            query=ConsistencyQuery,
            finds=True,
            refuses=(409,),
        ),
        Operation(
            "POST", "audit/keys", "audit:rotate", "Replace the key that signs the log", rotate_key, (RotatedKey, KeyDryRun), query=Written
        ),
        Operation(
            "GET",
            "audit/bundles/{request_id}",
            "audit:export",
            "Get a request's evidence bundle",
            bundle,
            None,
            media=ZIP,
            finds=True,
            refuses=(409,),
        ),
        Operation("GET", "audit/keys", "audit:read", "Show the keys that checkpoints are verified with", keys, AuditKeys),
    ]
