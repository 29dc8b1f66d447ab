"""The life of an admin request, written once: authenticate, find the operation, permission, body, idempotency, audit, answer."""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable
from typing import Any, Final, cast
from urllib.parse import parse_qsl, unquote

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from admin import idempotency, problems, values
from admin.auth import Gate, LoginFailed
from admin.context import Ports
from admin.journal import Journal
from admin.operation import IN_FORCE, JSON, PREFIX, SSE, Answer, Call, Operation, Waiting
from admin.permissions import Access, denied
from admin.rechecking import CHECK_SECONDS, leaving
from gateway.core.errors import AuthenticationError, GatehouseError, InternalError, NotFound, PermissionDenied, RequestError
from gateway.core.slices import Steps, in_slices, portions

MAX_FIELDS: Final = 64
"""Query parameters of a request."""
LONG_BODY: Final = 64 * 1024
"""A body of more bytes is decoded in a thread."""
LONG_LIST: Final = 100
"""How many items of a list are encoded in one step."""
log = logging.getLogger("gatehouse.admin")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_ENTITY_TAG = re.compile(r'(?:W/)?"([^"]*)"')


class NoBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of an operation that takes none: nothing at all, or {}."""


class Api:
    """The ASGI application below /admin/v1."""

    def __init__(self, ports: Ports, operations: Iterable[Operation]) -> None:
        self._ports = ports
        self._gate = Gate(ports.authenticator, ports.roles, ports.clock, ports.step_up)
        self._journal = Journal(ports.audit, ports.feed, ports.clock)
        self._paths: dict[tuple[str, ...], dict[str, Operation]] = {}
        for operation in operations:
            methods = self._paths.setdefault(operation.segments, {})
            if operation.method in methods:
                raise ValueError(f"{operation.method} {operation.path} appears twice in the tables")
            methods[operation.method] = operation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        request_id = request_id_of(request)
        try:
            response = await self._respond(request, request_id)
        except GatehouseError as error:
            response = problems.problem(error, request_id)
        except ClientDisconnect:
            return
        except Exception:  # boundary: a failing handler is a 500 with an id that is in the log too
            log.exception("%s %s failed (%s)", request.method, scope["path"], request_id)
            response = problems.problem(
                InternalError(f"Something went wrong on our side; the log entry has the id {request_id}."), request_id
            )
        response.headers["x-request-id"] = request_id
        response.headers["cache-control"] = "no-store"
        response.headers["x-content-type-options"] = "nosniff"
        try:
            await response(scope, receive, send)
        except GatehouseError as error:  # the connection closes in the middle of the answer
            log.warning("the answer to %s %s (%s) broke off: %s", request.method, scope["path"], request_id, error.code)

    async def _respond(self, request: Request, request_id: str) -> Response:
        try:
            access = await self._gate.enter(request.scope)
        except LoginFailed as error:
            if error.first:
                self._journal.login_failed(request, request_id, error.code)
            raise
        operation, path = self._find(request)
        held = access.tenants(operation.permission)
        if held is not None and not held:
            self._journal.denied(access, operation.permission, request, request_id)
            access.require(operation.permission)
        self._require_login(access, operation, request, request_id)
        call = await self._call(request, request_id, access, operation, path)
        try:
            answer = await self._run(call)
        except GatehouseError as error:
            if error.status == 403:
                self._journal.denied(access, operation.permission, request, request_id)
            raise
        response = await _response(answer)
        if isinstance(response, StreamingResponse) and request.method == "HEAD":
            response = _headed(response)
        elif isinstance(response, StreamingResponse) and call.stands is not None:
            events = response.media_type == SSE
            response.body_iterator = leaving(cast(AsyncIterator[bytes], response.body_iterator), call.stands, events=events)
        if call.wait is not None and not call.dry_run:
            response.headers[IN_FORCE] = "true" if await self._ports.in_force(call.wait) else "false"
        return response

    def _require_login(self, access: Access, operation: Operation, request: Request, request_id: str) -> None:
        try:
            access.require_login(operation.permission)
        except GatehouseError:
            self._journal.denied(access, operation.permission, request, request_id)
            raise

    # --- finding

    def _find(self, request: Request) -> tuple[Operation, dict[str, str]]:
        """Finds the operation by the path as sent. Each segment is decoded once, so a name may hold an encoded slash."""
        raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
        sent = raw.split(b"?", 1)[0].decode("latin-1").removeprefix(PREFIX).removeprefix("/").split("/")
        for template, methods in self._paths.items():
            path = _match(template, sent)
            if path is None:
                continue
            operation = methods.get(request.method) or (methods.get("GET") if request.method == "HEAD" else None)
            if operation is None:
                allow = ", ".join(sorted({*methods, "HEAD"} if "GET" in methods else methods))
                raise problems.simple(405, "method_not_allowed", f"This path takes {allow}.", headers=(("allow", allow),))
            return operation, path
        raise NotFound("This path does not exist.")

    # --- reading

    async def _call(self, request: Request, request_id: str, access: Access, operation: Operation, path: dict[str, str]) -> Call:
        try:
            pairs = parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True, max_num_fields=MAX_FIELDS)
        except ValueError:
            raise RequestError(f"More than {MAX_FIELDS} query parameters.", param="query") from None
        given = dict(pairs)
        if len(given) != len(pairs):
            name = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
            raise RequestError("This query parameter appears twice.", param=name[:64])
        wait = values.convert({"wait": given.pop("wait")}, Waiting).wait if operation.writes and "wait" in given else None
        query = values.convert(given, operation.query)
        if operation.body is not None or operation.streams:
            _check_media(request, operation)
        raw, access = await self._read(request, request_id, access, operation)
        if operation.body_optional:
            _check_media(request, operation, raw)
            raw = raw or b"{}"
        body: Any = raw
        if operation.body is not None and operation.body is not bytes:
            # a long body takes long to read: in a thread, requests wait for five milliseconds at a time, not for all of it
            if len(raw) > LONG_BODY:
                body = await asyncio.to_thread(values.decode, raw, operation.body)
            else:
                body = values.decode(raw or b"null", operation.body)
            if not operation.masks:
                values.refuse_masks(msgspec.to_builtins(body))
        elif operation.body is None and not operation.streams and request.method == "POST" and (ignored := await _body(request, operation)):
            values.decode(ignored, NoBody)  # nothing sent is silently ignored: `force` belongs in the query
        call = Call(self._ports, access, operation, path, query, body, raw, request, request_id, _if_match(request), wait=wait)
        call.stands = lambda: self._again(request, access, operation, call.tenants)
        if operation.creates:
            idempotency.key_of(call)
        return call

    async def _read(self, request: Request, request_id: str, access: Access, operation: Operation) -> tuple[bytes, Access]:
        """The body, and the caller's rights once it is there: they may have changed since the head came."""
        if operation.body is None:
            return b"", access
        began = self._ports.clock.monotonic()
        raw = await _body(request, operation)
        if self._ports.clock.monotonic() - began < CHECK_SECONDS:
            return raw, access
        try:
            return raw, await self._again(request, access, operation, ())
        except AuthenticationError as error:
            self._journal.login_failed(request, request_id, error.code)
            raise
        except PermissionDenied:
            self._journal.denied(access, operation.permission, request, request_id)
            raise

    async def _again(self, request: Request, before: Access, operation: Operation, tenants: Collection[str]) -> Access:
        """The caller's rights as they are now. tenants: those in which the permission was needed. Raises GatehouseError if the rights no
        longer suffice."""
        access = await self._gate.again(request.scope, before)
        if access.tenants(operation.permission) == frozenset():
            raise denied(operation.permission)
        for tenant in tenants:
            access.require(operation.permission, tenant)
        return access

    # --- running

    async def _run(self, call: Call) -> Answer:
        operation = call.operation
        if not operation.writes or call.dry_run:
            return await operation.handler(call)
        if operation.creates and (key := idempotency.key_of(call)) is not None:
            return await idempotency.once(call, key, lambda: self._write(call))
        return await self._write(call)

    async def _write(self, call: Call) -> Answer:
        """Changes nothing until the intent is in the audit log; records the outcome and the difference afterwards."""
        await self._journal.begin(call)
        try:
            answer = await call.operation.handler(call)
        except GatehouseError as error:
            await self._journal.end(call, "denied" if error.status == 403 else "refused", error.code)
            raise
        except BaseException:
            await self._journal.end(call, "failed", "internal_error")
            raise
        await self._journal.end(call, "ok")
        return answer


def _match(template: tuple[str, ...], sent: list[str]) -> dict[str, str] | None:
    if len(template) != len(sent):
        return None
    found = {}
    for wanted, part in zip(template, sent, strict=True):
        if wanted.startswith("{"):
            if not part:
                return None
            found[wanted[1:-1]] = unquote(part, errors="replace")
        elif wanted != part:
            return None
    return found


def _check_media(request: Request, operation: Operation, raw: bytes = b"") -> None:
    """A body that may be absent needs no type where it is. raw: what has come of it. Raises RequestError: 415 for another type."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    absent = not (media or raw) and operation.body_optional
    if media not in operation.accepts and not absent:
        raise RequestError(f"Send {' or '.join(operation.accepts)}.", code="unsupported_media_type", status=415)
    if request.headers.get("content-encoding", "identity") != "identity":
        raise RequestError("An encoded body is not accepted.", code="unsupported_media_type", status=415)


async def _body(request: Request, operation: Operation) -> bytes:
    """Raises RequestError: 413 for a body larger than the operation takes."""
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > operation.max_body:
            raise RequestError(f"The body is larger than {operation.max_body} bytes.", code="request_too_large", status=413)
    return bytes(data)


def _if_match(request: Request) -> str | None:
    given = request.headers.get("if-match")
    if given is None or given.strip() == "*":
        return given and "*"
    found = _ENTITY_TAG.fullmatch(given.strip())
    if found is None:
        raise RequestError('If-Match takes one entity tag, as in If-Match: "3".', code="invalid_header", param="if-match")
    return found[1]


def request_id_of(request: Request) -> str:
    """The caller's id of a request if it is a usable one, else a new one."""
    given = request.headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else f"adm-{uuid.uuid4().hex}"


async def _response(answer: Answer) -> Response:
    if answer.response is not None:
        return answer.response
    headers = {}
    if answer.version is not None:
        headers["etag"] = f'"{answer.version}"'
    if answer.location is not None:
        headers["location"] = answer.location
    headers.update(answer.headers)
    if answer.value is None and (answer.status == 204 or answer.bare):
        return Response(status_code=answer.status, headers=headers)
    return Response(await _encoded(answer.value), answer.status, headers, JSON)


def _headed(response: StreamingResponse) -> Response:
    """The same without what would be streamed, which may have no end (RFC 9110, 9.3.2). It has not begun, so there is nothing to close."""
    headed = Response(status_code=response.status_code)
    headed.raw_headers = response.raw_headers
    return headed


async def _encoded(value: Any) -> bytes:
    """As JSON. Long lists of a mapping, which a dump has, are encoded in slices: the encoder does not let go of the interpreter."""
    if isinstance(value, dict) and any(isinstance(one, list) and len(one) > LONG_LIST for one in value.values()):
        return await in_slices(_encoding(value))
    return msgspec.json.encode(value)


def _encoding(value: dict[str, Any]) -> Steps[bytes]:
    members: list[bytes] = []
    for name, one in value.items():
        found: list[bytes] = []
        for some in portions(one, LONG_LIST) if isinstance(one, list) else ():
            found.append(msgspec.json.encode(some)[1:-1])
            yield
        encoded = b"[" + b",".join(found) + b"]" if isinstance(one, list) else msgspec.json.encode(one)
        members.append(msgspec.json.encode(name) + b":" + encoded)
    return b"{" + b",".join(members) + b"}"
