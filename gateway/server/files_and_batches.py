"""Files and batches on the data listener: `/v1/files` and `/v1/batches`, as OpenAI's clients call them. Each caller has its own, or its
tenant's (`files.scope`)."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, quote

import msgspec

from gateway.core import utf8
from gateway.core.batches import BatchDesk, FileRecord, Upload, WorkDesk
from gateway.core.errors import ClientGone, PermissionDenied, RequestError
from gateway.core.types import Headers, Principal
from gateway.core.values import UNLABELLED
from gateway.pipeline.pipeline import INSUFFICIENT
from gateway.pipeline.plane import DataPlane
from gateway.server.asgi import Message, Receive, Send
from gateway.server.login import record_denial
from gateway.server.multipart import MultipartReader, Part, boundary_of
from gateway.wire.openai.batches import shown_batch, shown_file
from policies.scopes import scope_allows

FILES: Final = "/v1/files"
BATCHES: Final = "/v1/batches"
MOST_FIELD: Final = 1024
MOST_PAGE: Final = 10_000
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
Identify = Callable[[Message, Headers], Awaitable[Principal]]
Answer = tuple[int, Any]


def serves(path: bytes) -> bool:
    return any(path == root or path.startswith(root + b"/") for root in (FILES.encode(), BATCHES.encode()))


class WorkEndpoint:
    """identify: whose credential the headers hold; raises AuthenticationError and the like."""

    def __init__(self, plane: DataPlane, desk: WorkDesk, identify: Identify) -> None:
        self._plane, self._desk, self._identify = plane, desk, identify

    async def answer(self, scope: Message, receive: Receive, send: Send) -> Answer | None:
        """Status and body, or None where the answer was streamed. Raises GatehouseError."""
        principal = await self._identify(scope, scope["state"]["headers"])
        root, *rest = scope["raw_path"].decode("latin-1").removeprefix("/v1/").split("/")
        method = scope["method"]
        if len(rest) > 2 or (rest and not _ID.fullmatch(rest[0])):
            raise _unknown(scope)
        if root == "files":
            may(principal, "files")
            return await self._files(scope, receive, send, principal, method, rest)
        may(principal, "batches")
        if self._desk.batches is None:
            raise RequestError("Batches are not enabled here (batches.enabled).", code="not_found", status=404)
        return await self._batches(scope, receive, principal, method, rest, self._desk.batches)

    async def _files(
        self, scope: Message, receive: Receive, send: Send, principal: Principal, method: str, rest: list[str]
    ) -> Answer | None:
        files = self._desk.files
        if not rest and method == "POST":
            return 200, shown_file(await self._upload(scope, receive, principal))
        if not rest and method in ("GET", "HEAD"):
            query = query_of(scope, "limit", "after", "order", "purpose")
            if (order := query.get("order", "desc")) not in ("asc", "desc"):
                raise RequestError("order is asc or desc.", param="order")
            limit = limit_of(query, MOST_PAGE)
            after, purpose = query.get("after"), query.get("purpose")
            found, more = await files.files(principal, limit=limit, after=after, newest=order == "desc", purpose=purpose)
            return 200, page([shown_file(one) for one in found], more)
        if len(rest) == 1 and method in ("GET", "HEAD"):
            return 200, shown_file(await files.file(principal, rest[0]))
        if len(rest) == 1 and method == "DELETE":
            await files.delete(principal, rest[0])
            return 200, {"id": rest[0], "object": "file", "deleted": True}
        if len(rest) == 2 and rest[1] == "content" and method in ("GET", "HEAD"):
            record, content = await files.content(principal, rest[0])
            scope["state"]["streaming"] = True
            await send({"type": "http.response.start", "status": 200, "headers": _content_headers(record)})
            if method == "GET":
                async for block in content:
                    self._check(scope, principal)
                    await send({"type": "http.response.body", "body": block, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
            return None
        raise _unknown(scope) if len(rest) == 2 and rest[1] != "content" else _method(rest)

    async def _upload(self, scope: Message, receive: Receive, principal: Principal) -> FileRecord:
        headers: Headers = scope["state"]["headers"]
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise RequestError("The body may not be compressed.", code="unsupported_media_type", status=415)
        reader, known = MultipartReader(boundary_of(headers.get(b"content-type", b""))), self._plane.current().labels
        labels = UNLABELLED if known is None else known.of_peer(headers, scope["state"]["peer"])
        upload = self._desk.files.begin(principal, labels)
        try:
            form = Form(upload)
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone("The client left.")
                self._check(scope, principal)
                await form.take(reader, message["body"])
                if not message.get("more_body"):
                    break
            reader.finish()
            return await form.finish()
        finally:
            await upload.abandon()

    def _check(self, scope: Message, principal: Principal) -> None:
        """Between two parts of a body: whoever was halted or suspended meanwhile goes no further. Raises PermissionDenied."""
        if self._plane.standing.active:
            try:
                self._plane.standing.admit(principal)
            except PermissionDenied as error:
                record_denial(self._plane, scope["state"]["peer"], scope["state"]["request_id"], error)
                raise

    async def _batches(
        self, scope: Message, receive: Receive, principal: Principal, method: str, rest: list[str], batches: BatchDesk
    ) -> Answer:
        began = time.perf_counter()
        if not rest and method == "POST":
            wanted, peer, known = await _json(receive), scope["state"]["peer"], self._plane.current().labels
            self._check(scope, principal)
            labels = UNLABELLED if known is None else known.of_peer(scope["state"]["headers"], peer) | known.of_metadata(wanted)
            return 200, shown_batch(await batches.create(principal, peer, wanted, began, labels))
        if not rest and method in ("GET", "HEAD"):
            query = query_of(scope, "limit", "after")
            found, more = await batches.batches(principal, limit=limit_of(query, 100, 20), after=query.get("after"))
            return 200, page([shown_batch(one) for one in found], more)
        if len(rest) == 1 and method in ("GET", "HEAD"):
            return 200, shown_batch(await batches.batch(principal, rest[0]))
        if len(rest) == 2 and rest[1] == "cancel" and method == "POST":
            return 200, shown_batch(await batches.cancel(principal, rest[0]))
        raise _unknown(scope) if len(rest) == 2 and rest[1] != "cancel" else _method(rest)


class Form:
    """The fields of an upload; the file's content goes where it is kept as it comes, whatever field comes first."""

    def __init__(self, upload: Upload) -> None:
        self._upload = upload
        self._fields: dict[str, bytearray] = {}
        self._filename: str | None = None
        self._current: bytearray | None = None

    async def take(self, reader: MultipartReader, data: bytes) -> None:
        for event in reader.feed(data):
            if isinstance(event, Part):
                self._begin(event)
            elif self._current is None:
                await self._upload.write(event.data)
            else:
                self._current += event.data
                if len(self._current) > MOST_FIELD:
                    raise RequestError("A field is too long.", code="invalid_multipart")

    def _begin(self, part: Part) -> None:
        if part.name == "file":
            if self._filename is not None or part.filename is None:
                raise RequestError("file: send one, as a file.", param="file")
            self._filename, self._current = part.filename, None
            return
        if part.name in self._fields:
            raise RequestError(f"The field {part.name[:64]} is given twice.", code="invalid_multipart")
        self._current = self._fields[part.name] = bytearray()

    async def finish(self) -> FileRecord:
        known = {"purpose", "expires_after[anchor]", "expires_after[seconds]"}
        if unknown := sorted(self._fields.keys() - known):
            raise RequestError(f"There is no field {unknown[0][:64]!r}; known are file, {', '.join(sorted(known))}.", param=unknown[0][:64])
        if self._filename is None:
            raise RequestError("file is missing.", param="file")
        fields = {name: bytes(value).decode("utf-8", "replace") for name, value in self._fields.items()}
        seconds = fields.get("expires_after[seconds]")
        if seconds is not None and (fields.get("expires_after[anchor]", "created_at") != "created_at" or not is_count(seconds)):
            raise RequestError("expires_after has the anchor created_at and a whole number of seconds.", param="expires_after[seconds]")
        return await self._upload.finish(self._filename, fields.get("purpose", ""), None if seconds is None else float(seconds))


def may(principal: Principal, operation: str) -> None:
    """A credential that names its operations must name this one, and a token that was narrowed must still cover every operation on every
    model. Raises PermissionDenied."""
    if principal.operations and operation not in principal.operations:
        raise PermissionDenied(f"This key may not use {operation}.")
    if principal.reach is not None and not scope_allows(principal.reach, operation, ("",), ""):
        raise PermissionDenied(f"The scope of this token does not cover {operation}.", code="insufficient_scope", headers=INSUFFICIENT)


def is_count(text: str) -> bool:
    """Whether a client's text is a whole number below a billion in ASCII digits: `int` also takes signs, spaces, `_` and other digits."""
    return text.isascii() and text.isdecimal() and len(text) <= 9


def query_of(scope: Message, *known: str) -> dict[str, str]:
    return {name: value for name, value in parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True) if name in known}


def limit_of(query: Mapping[str, str], most: int, default: int | None = None) -> int:
    text = query.get("limit", str(default or most))
    if not is_count(text) or not 1 <= int(text) <= most:
        raise RequestError(f"limit is a number from 1 to {most}.", param="limit")
    return int(text)


def page(items: list[dict[str, Any]], more: bool) -> dict[str, Any]:
    ends = {"first_id": items[0]["id"], "last_id": items[-1]["id"]} if items else {"first_id": None, "last_id": None}
    return {"object": "list", "data": items, **ends, "has_more": more}


async def _json(receive: Receive) -> Mapping[str, Any]:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGone("The client left.")
    try:
        found = msgspec.json.decode(message["body"], type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"The body is not a JSON object: {utf8.fault(message['body']) or str(error)[:200]}.") from None
    return found


def _content_headers(record: FileRecord) -> list[tuple[bytes, bytes]]:
    name = quote(record.name, safe="").encode()
    return [
        (b"content-type", b"application/octet-stream"),
        (b"content-length", str(record.size).encode()),
        (b"content-disposition", b"attachment; filename*=UTF-8''" + name),
        (b"x-content-type-options", b"nosniff"),
        (b"cache-control", b"private, no-store"),
    ]


def _unknown(scope: Message) -> RequestError:
    return RequestError(f"There is no {scope['raw_path'].decode('latin-1')[:200]}.", code="not_found", status=404)


def _method(rest: list[str]) -> RequestError:
    allow = ("GET, HEAD, POST", "GET, HEAD, DELETE", "GET, HEAD, POST")[len(rest)]
    return RequestError(f"Use {allow}.", code="method_not_allowed", status=405, headers=(("allow", allow),))
