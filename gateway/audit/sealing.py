"""Texts on their way into the log: gathered by the loop, made up and encrypted in the writer's thread, so that the loop does neither.

A text belongs to its record: the record's kind, time and request id, and the tenant, are authenticated with it. Moved to another record or
another tenant's, it does not open.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import force_setattr

from gateway.audit.keyring import DataKey
from gateway.audit.record import Envelope, Text
from gateway.core.errors import Shredded
from gateway.core.specs.audit import RAW_FACTOR
from gateway.core.types import IntentRecord, OutcomeRecord

_CONTEXT: Final = "gatehouse audit text 1"
_BODY: Final = b"\x81\xa4body\xda"
"""Begins a Text with nothing but a body of up to _SHORT bytes: a map of one, its name, a text whose length has two bytes."""
_SHORT: Final = 0xFFFF
_encode: Final = msgspec.json.Encoder().encode
log = logging.getLogger("gatehouse.audit")
UNREADABLE: Final = msgspec.Raw(b'{"lost":"the text could not be read"}')
LOST: Final = msgspec.Raw(b'{"lost":"the key was destroyed"}')


class Pending:
    """A text that is not encrypted yet; stands in a record's field `text` until the writer's thread takes it. parts: bytes of a body, or of
    a whole answer with its head as it was sent. answer: it is one."""

    __slots__ = ("_answer", "_key", "_most", "_parts", "_tenant")

    def __init__(self, key: DataKey, tenant: str, parts: Sequence[bytes], most: int, *, answer: bool = False) -> None:
        self._key, self._tenant, self._parts, self._most, self._answer = key, tenant, parts, most, answer

    def __repr__(self) -> str:
        return "<a text that is not encrypted yet>"

    def sealed(self, kind: str, time: float, request_id: str) -> msgspec.Raw:
        """The envelope. Never fails: a text whose key was destroyed meanwhile is lost."""
        key, parts = self._key, self._parts
        try:
            data = parts[0] if len(parts) == 1 else b"".join(parts)
            packed = _packed_answer(data, self._most) if self._answer else _packed(data, self._most)
            return msgspec.Raw(key.seal(packed, _encode((_CONTEXT, kind, time, request_id, self._tenant, key.id))))
        except Shredded:
            return LOST
        except Exception:  # boundary: an answer that defeats our reading must not stop the log
            log.exception("the text of a record could not be made up")
            return UNREADABLE


def bound(kind: str, time: float, request_id: str, tenant: str, key: str) -> bytes:
    """What a text is authenticated with."""
    return _encode((_CONTEXT, kind, time, request_id, tenant, key))


def seal_all(records: Sequence[Any]) -> None:
    """Encrypts every text in the entries of a batch, in its place. Runs in the writer's thread."""
    for record in records:
        made = record.__class__
        if made is OutcomeRecord or made is IntentRecord:
            text = record.text
            if text.__class__ is Pending:
                kind = "intent" if made is IntentRecord else "outcome"
                force_setattr(record, "text", text.sealed(kind, record.time, record.request_id))


def opened(key: DataKey, envelope: Envelope, kind: str, time: float, request_id: str) -> Text:
    """Raises ValueError for what was not sealed for this record with this key."""
    data = key.open(envelope, bound(kind, time, request_id, key.tenant, key.id))
    return msgspec.msgpack.decode(data, type=Text)


# --- answers as they were sent


def text_of_answer(sent: bytes, most: int) -> Text:
    """The text of a response (RFC 9112): of a stream of events the texts in them, otherwise the body."""
    body, events = _body_of(sent)
    if not events:
        return _cut(body, most)
    found = _of_events(body, most)
    return found if len(sent) < RAW_FACTOR * most else msgspec.structs.replace(found, cut=True)


def _body_of(sent: bytes) -> tuple[bytes, bool]:
    """The body of a response, and whether it is a stream of events."""
    head, _, body = sent.partition(b"\r\n\r\n")
    head = head.lower() + b"\r\n"
    if b"\r\ntransfer-encoding: chunked\r\n" in head:
        body = unchunked(body)
    return body, b"\r\ncontent-type: text/event-stream" in head


def _packed_answer(sent: bytes, most: int) -> bytes:
    """`text_of_answer` in MessagePack."""
    body, events = _body_of(sent)
    return msgspec.msgpack.encode(text_of_answer(sent, most)) if events else _packed(body, most)


def _packed(body: bytes, most: int) -> bytes:
    """The text of a body in MessagePack."""
    size = len(body)
    if size > most or size > _SHORT or not body.isascii():
        return msgspec.msgpack.encode(_cut(body, most))
    return _BODY + size.to_bytes(2, "big") + body  # most bodies: written without a copy as text


def unchunked(data: bytes) -> bytes:
    """A body in chunked transfer coding, as far as it is there."""
    found, position = [], 0
    while (end := data.find(b"\r\n", position)) >= 0:
        try:
            size = int(data[position:end], 16)
        except ValueError:
            break
        if size <= 0:
            break
        found.append(data[end + 2 : end + 2 + size])
        position = end + 4 + size
    return b"".join(found)


def _of_events(body: bytes, most: int) -> Text:
    """The texts of each event, joined by their places: `choices.0.delta.content`. Events that are no JSON objects stand as they are."""
    texts: dict[str, list[str]] = {}
    size = 0
    for line in body.split(b"\n"):
        data = line[5:].strip() if line.startswith(b"data:") else b""
        if not data or data == b"[DONE]":
            continue
        for place, text in _leaves(data):
            if place not in texts:
                size += len(place)
            room, encoded = max(most - size, 0), text.encode(errors="replace")
            texts.setdefault(place, []).append(encoded[:room].decode(errors="ignore"))
            if len(encoded) > room:
                return Text(texts={name: "".join(parts) for name, parts in texts.items()}, cut=True)
            size += len(encoded)
    return Text(texts={name: "".join(parts) for name, parts in texts.items()})


def _leaves(data: bytes) -> list[tuple[str, str]]:
    try:
        event = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return [("", data.decode(errors="replace"))]
    if not isinstance(event, dict):
        return [("", data.decode(errors="replace"))]
    found: list[tuple[str, str]] = []
    for name in ("choices", "delta", "error"):
        if name in event:
            _gather(event[name], name, found)
    return found


def _gather(value: Any, place: str, found: list[tuple[str, str]]) -> None:
    """Texts below a value. A member of a list is named by its `index`, if it says so."""
    if isinstance(value, str):
        found.append((place, value))
    elif isinstance(value, dict):
        for name, part in value.items():
            if name not in ("finish_reason", "logprobs"):
                _gather(part, f"{place}.{name}", found)
    elif isinstance(value, list):
        for number, part in enumerate(value):
            index = part.get("index", number) if isinstance(part, dict) else number
            _gather(part, f"{place}.{index}", found)


def _cut(body: bytes, most: int) -> Text:
    if len(body) <= most:
        try:
            return Text(body=body.decode())
        except UnicodeDecodeError:
            pass
    text, cut = body[:most].decode(errors="ignore" if len(body) > most else "replace"), len(body) > most
    encoded = text.encode()
    if len(encoded) > most:  # what is no text has become longer
        text, cut = encoded[:most].decode(errors="ignore"), True
    return Text(body=text, cut=cut)
