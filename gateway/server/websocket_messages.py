"""The messages of `/v1/stream`: what a client may send, and what it is sent (docs/clients.md). Pure.

client   {"type": "request", "id", "path", "body", "headers"}   {"type": "cancel", "id"}   {"type": "auth", "token", "id"}
server   {"type": "event", "id", "data"}   {"type": "response", "id", "status", "headers", "body"}   {"type": "done", "id"}
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from math import ceil
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from gateway.core.errors import GatehouseError, RequestError
from gateway.core.types import Headers
from gateway.server.answers import AnswerReader
from gateway.wire.sse import data_of
from gateway.wire.unique import colons

MAX_ID: Final = 128
Id = Annotated[str, Meta(min_length=1, max_length=MAX_ID)] | Annotated[int, Meta(ge=0, le=2**53)]
"""Names a request on its socket. The client chooses it; `1` and `"1"` are two."""
ALLOWED: Final = frozenset(
    {"x-request-id", "x-gatehouse-approval", "traceparent", "anthropic-version", "anthropic-beta", "accept-language", "idempotency-key"}
)
"""Headers that each request on a socket may bring. None of them identifies the caller."""
MAX_VALUE: Final = 1024
SHOWN: Final = ("x-", "content-type", "retry-after", "request-id", "www-authenticate", "inference-header-content-length")
"""Beginnings of the names of those headers of an answer that its message has."""
ENVELOPE: Final = 8 * 1024
"""Bytes of a message besides the body in it."""


class Request(Struct, forbid_unknown_fields=True, tag_field="type", tag="request"):
    """body: as the client wrote it. headers: only names of ALLOWED."""

    id: Id
    path: Annotated[str, Meta(max_length=2048)]
    body: Raw
    headers: dict[str, str] | UnsetType = UNSET

    def colons(self) -> int:
        """How many the message has besides those of the body: one behind each key, and those in its texts."""
        texts = [str(self.id), self.path]
        keys = 4
        if self.headers is not UNSET:
            keys += 1 + len(self.headers)
            texts += [*self.headers.keys(), *self.headers.values()]
        return keys + sum([text.count(":") for text in texts])


class Cancel(Struct, forbid_unknown_fields=True, tag_field="type", tag="cancel"):
    id: Id


class Auth(Struct, forbid_unknown_fields=True, tag_field="type", tag="auth"):
    """id: if there is one, a `done` with it says that the token is accepted."""

    token: Annotated[str, Meta(min_length=1, max_length=16 * 1024)]
    id: Id | None = None


_DECODER: Final = msgspec.json.Decoder(Request | Cancel | Auth)
_VALUE: Final = msgspec.json.Decoder(Raw)
_ENCODE: Final = msgspec.json.encode
NO_ID: Final = b"null"


def read(data: bytes | bytearray) -> Request | Cancel | Auth:
    """A client's message. Raises RequestError."""
    try:
        message: Request | Cancel | Auth = _DECODER.decode(data)
    except msgspec.ValidationError as error:
        raise RequestError(f"The message is not one of request, cancel and auth: {error}.", code="invalid_message") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"The message is not valid JSON: {error}.", code="invalid_json") from None
    if isinstance(message, Request) and colons(bytes(data)) != message.colons() + colons(bytes(message.body)):
        raise RequestError("A key appears twice in the message.", code="invalid_message")
    return message


def is_utf8(data: bytes) -> bool:
    """Whether a text message may be one (RFC 6455, 8.1)."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def own_headers(given: Mapping[str, str]) -> Headers:
    """The headers of one request. Raises RequestError for one that it may not have, or whose value no header can have."""
    found: Headers = {}
    for name, value in given.items():
        lower = name.lower()
        if lower not in ALLOWED:
            allowed = ", ".join(sorted(ALLOWED))
            raise RequestError(
                f"headers: {name[:64]!r} belongs to the socket, not to a request; a request may have {allowed}.",
                code="invalid_header",
                param="headers",
            )
        if lower.encode() in found:
            raise RequestError(f"headers: {lower} is given twice.", code="invalid_header", param="headers")
        if len(value) > MAX_VALUE or not (value.isascii() and value.isprintable()) or value != value.strip():
            raise RequestError(f"headers: the value of {lower} is not valid in a header.", code="invalid_header", param="headers")
        found[lower.encode()] = value.encode()
    return found


def written_id(id: str | int) -> bytes:
    """An id as it is written in messages; ids are equal if these bytes are."""
    return _ENCODE(id)


def done(id: bytes) -> bytes:
    return b'{"type":"done","id":%b}' % id


def refused(id: bytes, error: GatehouseError, request_id: bytes = b"", status: int | None = None, body: bytes | None = None) -> bytes:
    """The message of an error that met no exchange."""
    headers = {name: value for name, value in error.headers if _is_shown(name)}
    if request_id:
        headers["x-request-id"] = request_id.decode()
    if error.retry_after is not None:
        headers["retry-after"] = str(ceil(error.retry_after))
        headers["retry-after-ms"] = str(ceil(error.retry_after * 1000))
    return _response(id, error.status if status is None else status, headers, error.body() if body is None else body)


def _response(id: bytes, status: int, headers: Mapping[str, str], body: bytes) -> bytes:
    return b'{"type":"response","id":%b,"status":%d,"headers":%b,"body":%b}' % (id, status, _ENCODE(headers), body)


def _is_shown(name: str) -> bool:
    return name.startswith(SHOWN)


class MessageWriter:
    """Turns one answer of the pipeline into messages. A body that is not JSON becomes a string in base64."""

    __slots__ = ("_answer", "_id", "_parts")

    def __init__(self, id: bytes) -> None:
        self._id = id
        self._answer = AnswerReader()
        self._parts: list[bytes] = []

    @property
    def status(self) -> int:
        """The answer's HTTP status; 0 until it is known."""
        return self._answer.status

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that are complete with these bytes."""
        answer = self._answer
        found = answer.feed(data)
        if answer.streams:
            return [message for chunk in found for message in self._events(chunk)]
        self._parts += found
        if not answer.ended:
            return []
        body = b"".join(self._parts)
        self._parts.clear()
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in answer.headers.items()}
        shown = {name: value for name, value in headers.items() if _is_shown(name)}
        is_json = answer.headers.get(b"content-type", b"").startswith(b"application/json")
        return [_response(self._id, answer.status, shown, _json(body) if is_json else b'"%b"' % b64encode(body))]

    def _events(self, chunk: bytes) -> list[bytes]:
        """A chunk is whole events, comments among them. The end marker is no event here: `done` says so."""
        found = []
        for event in chunk.split(b"\n\n"):
            if event and (data := data_of(event + b"\n\n")) and data != b"[DONE]":
                found.append(b'{"type":"event","id":%b,"data":%b}' % (self._id, _json(data)))
        return found


def _json(data: bytes) -> bytes:
    """The data where it is one JSON value, so that what an engine sends cannot end a message early; else as a string."""
    try:
        _VALUE.decode(data)
        data.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _ENCODE(data.decode("utf-8", "replace"))
    return data
