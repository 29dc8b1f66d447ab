"""Model files: those in the model directories; new ones arrive by uploads that can be resumed after an interruption.

An upload is begun with a POST in our own style, so that name, size and checksum are checked, audited and tried as every write is. Its
bytes then go the way of the tus protocol 1.0.0 (core, expiration, termination): HEAD tells the offset, PATCH appends there. They
reach the quarantine only, so appending is not audited; completing is, which verifies and puts the model into the registry.
"""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from email.utils import format_datetime
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from admin import problems, values
from admin.moments import Timestamp, shown
from admin.operation import OCTETS, PREFIX, Answer, Call, Header, Operation, Written
from admin.resource import Change, location
from gateway.core.errors import RequestError
from gateway.core.modelfiles import UploadSettings
from gateway.core.specs import Name

TUS: Final = "1.0.0"
_OFFSET: Final = Header("Upload-Offset", MappingProxyType({"type": "integer", "minimum": 0, "maximum": 1 << 53}), required=True)
_VERSION: Final = Header("Tus-Resumable", MappingProxyType({"type": "string", "pattern": r"^[0-9]{1,4}\.[0-9]{1,4}\.[0-9]{1,4}$"}))
_SEMVER: Final = re.compile(str(_VERSION.schema["pattern"]))
_TIMES: Final = ("modified_at", "created_at", "expires_at")
_NUMBER: Final = re.compile(r"[0-9]{1,16}")


class PartView(msgspec.Struct):
    """A file of a model. sha256: null until it was computed."""

    name: str
    size: int
    sha256: str | None = None


class PortView(msgspec.Struct):
    name: str
    type: str
    shape: list[int | str | None]


class FileView(msgspec.Struct, kw_only=True):
    """A model on disk. name: as an engine's `model` says it. source: `registry` (can be deleted), `directory`, `bundled`; `elsewhere`: it
    was deleted, and only other replicas had it (no runtime is known). problem: why it cannot be used. used_by: engines, as REPLICA/ENGINE
    those of other replicas. sha256: of the file, a split model's first part, a folder's graph. parts: when one is shown."""

    name: str
    runtime: str
    source: Literal["registry", "directory", "bundled", "elsewhere"]
    format: Literal["file", "split", "folder"]
    size: int
    files: int
    modified_at: Timestamp
    version: str
    sha256: str | None = None
    problem: str | None = None
    used_by: list[str] = []
    architecture: str | None = None
    title: str | None = None
    task: str | None = None
    parameters: int | None = None
    quantisation: str | None = None
    context: int | None = None
    layers: int | None = None
    chat_template: bool | None = None
    opsets: dict[str, int] | None = None
    inputs: list[PortView] = []
    outputs: list[PortView] = []
    parts: list[PartView] | None = None


class FileList(msgspec.Struct):
    """remarks: what was left out, and why."""

    items: list[FileView]
    remarks: list[str]
    cursor: str | None = None


class FileDryRun(msgspec.Struct):
    dry_run: bool
    diff: list[Change]
    result: FileView


class UploadView(msgspec.Struct, kw_only=True):
    """An upload that is not complete. offset: bytes that are there. format: `tar` for a model's folder."""

    id: str
    name: str
    format: Literal["file", "tar"]
    size: int
    sha256: str
    replace: bool
    signature: str | None
    offset: int
    state: Literal["receiving", "verifying"]
    created_at: Timestamp
    created_by: str
    expires_at: Timestamp


class UploadList(msgspec.Struct):
    items: list[UploadView]
    cursor: str | None = None


class UploadDryRun(msgspec.Struct):
    dry_run: bool
    diff: list[Change]
    result: UploadView


class FilesQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """prefix: of the name. runtime, source: only those."""

    prefix: Annotated[str, Meta(max_length=255)] = ""
    runtime: Name | None = None
    source: Literal["registry", "directory", "bundled"] | None = None


# --- models


async def index(call: Call) -> Answer:
    found = await call.ports.files.models()
    query: FilesQuery = call.query
    wanted = {"runtime": query.runtime, "source": query.source}
    items = [
        item
        for item in found["items"]
        if item["name"].startswith(query.prefix) and all(value is None or item[key] == value for key, value in wanted.items())
    ]
    return Answer({"items": [shown(item, *_TIMES) for item in items], "remarks": found["remarks"], "cursor": None})


async def show(call: Call) -> Answer:
    view = await call.ports.files.model(call.path["name"])
    return Answer(shown(view, *_TIMES), version=view["version"])


async def checksum(call: Call) -> Answer:
    return Answer(shown(await call.ports.files.checksum(call.path["name"]), *_TIMES))


async def delete(call: Call) -> Answer:
    name = call.path["name"]
    call.target = f"model-files/{name}"
    version = None if call.if_match == "*" else call.if_match
    view = await call.ports.files.remove(name, version=version, dry_run=call.dry_run)
    call.diff = values.diff({key: view[key] for key in ("name", "size", "sha256")}, None)
    return _written(call, view)


# --- uploads


async def uploads(call: Call) -> Answer:
    return Answer({"items": [shown(item, *_TIMES) for item in call.ports.files.uploads()], "cursor": None})


async def begin(call: Call) -> Answer:
    settings: UploadSettings = call.body
    call.target = f"model-files/{settings.name}"
    body = dict(call.body_builtins())
    if settings.signature is not None:
        body["signature"] = f"sha256:{hashlib.sha256(settings.signature.encode()).hexdigest()}"
    call.diff = values.diff(None, body)
    view = await call.ports.files.begin(settings, actor=call.actor, dry_run=call.dry_run)
    return _written(call, view, status=201, where=f"{PREFIX}/model-uploads/{view['id']}")


async def upload(call: Call) -> Answer:
    return Answer(shown(call.ports.files.upload(call.path["id"]), *_TIMES))


async def offset(call: Call) -> Answer:
    _check_version(call)
    view = call.ports.files.upload(call.path["id"])
    return Answer(headers={**_progress(view), "upload-length": str(view["size"])}, bare=True)


async def append(call: Call) -> Answer:
    at = _number(call, "upload-offset")
    if at is None:
        raise RequestError("Give the position of the bytes in Upload-Offset.", code="invalid_header", param="upload-offset")
    _check_version(call)
    view = await call.ports.files.append(call.path["id"], at, _number(call, "content-length"), call.parts())
    return Answer(status=204, headers=_progress(view))


async def complete(call: Call) -> Answer:
    promised = call.ports.files.upload(call.path["id"])
    call.target = f"model-files/{promised['name']}"
    call.diff = values.diff(None, {key: promised[key] for key in ("name", "size", "sha256")})
    view = await call.ports.files.complete(call.path["id"], dry_run=call.dry_run)
    return _written(call, view, status=201, where=location("model-files", view["name"]))


async def abandon(call: Call) -> Answer:
    promised = call.ports.files.upload(call.path["id"])
    call.target = f"model-files/{promised['name']}"
    call.diff = values.diff({key: promised[key] for key in ("name", "size", "sha256", "offset")}, None)
    view = await call.ports.files.abandon(call.path["id"], dry_run=call.dry_run)
    return _written(call, view) if call.dry_run else Answer(status=204, headers={"tus-resumable": TUS})


def _written(call: Call, view: dict[str, Any], *, status: int = 200, where: str | None = None) -> Answer:
    if call.dry_run:
        return Answer({"dry_run": True, "diff": call.diff, "result": shown(view, *_TIMES)})
    return Answer(shown(view, *_TIMES), status, location=where)


def _check_version(call: Call) -> None:
    given = call.request.headers.get("tus-resumable", TUS)
    if not _SEMVER.fullmatch(given):
        raise RequestError("Tus-Resumable takes a version, as in 1.0.0.", code="invalid_header", param="tus-resumable")
    if given != TUS:
        raise problems.simple(
            412, "tus_version", f"This server speaks Tus-Resumable {TUS}.", param="tus-resumable", headers=(("tus-version", TUS),)
        )


def _progress(view: dict[str, Any]) -> dict[str, str]:
    expires = format_datetime(datetime.fromtimestamp(view["expires_at"], UTC), usegmt=True)
    return {"tus-resumable": TUS, "upload-offset": str(view["offset"]), "upload-expires": expires}


def _number(call: Call, name: str) -> int | None:
    given = call.request.headers.get(name)
    if given is None:
        return None
    if not _NUMBER.fullmatch(given):
        raise RequestError(f"{name} takes a number of bytes.", code="invalid_header", param=name)
    return int(given)


def operations() -> list[Operation]:
    one, single = "model-files/{name}", "model-uploads/{id}"
    read, write = "files:read", "files:write"
    tus, change = (_VERSION,), (UploadView, UploadDryRun)
    return [
        Operation("GET", "model-files", read, "List model files", index, FileList, query=FilesQuery, disk=True),
        Operation("GET", one, read, "Show a model file", show, FileView, conditional=True, disk=True),
        Operation("DELETE", one, write, "Delete a model file", delete, (FileView, FileDryRun), Written, conditional=True, disk=True),
        Operation("POST", f"{one}/checksum", write, "Compute a model file's checksums", checksum, FileView, quiet=True, disk=True),
        Operation("GET", "model-uploads", read, "List uploads", uploads, UploadList),
        Operation("POST", "model-uploads", write, "Begin an upload", begin, change, Written, UploadSettings, 201, creates=True, disk=True),
        Operation("GET", single, read, "Show an upload", upload, UploadView),
        Operation("HEAD", single, read, "Ask for an upload's offset", offset, takes=tus, refuses=(412,)),
        Operation(
            "PATCH",
            single,
            write,
            "Append to an upload",
            append,
            status=204,
            accepts=(OCTETS,),
            streams=True,
            quiet=True,
            takes=(_OFFSET, *tus),
            disk=True,
            refuses=(408, 412),
        ),
        Operation("DELETE", single, write, "Give up an upload", abandon, change, Written, status=204),
        Operation(
            "POST",
            f"{single}/complete",
            write,
            "Verify an upload and add the model",
            complete,
            (FileView, UploadDryRun),
            Written,
            status=201,
            disk=True,
            refuses=(422,),
        ),
    ]
