"""The key of an answer: two requests have the same one only if the same engine would be asked the same, for the same isolation domain.

What is hashed is what would be sent, after aliases were resolved and guardrails have rewritten it: the path, the header lines about the
body, and each top-level field with the client's own bytes. Only the order of the top-level fields does not count, nor does space between
JSON's tokens in fields of up to LARGE bytes. Fields that this version does not know count like all others, and texts are not normalised:
two spellings that an engine could tell apart are two requests. The parser has refused bodies in which a key appears twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b, sha256
from typing import Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Raw

from gateway.caches.views import PlainMessage
from gateway.core.isolation import KEY, TENANT, domain
from gateway.core.slices import Steps, at_once
from gateway.core.types import InferenceRequest, Principal

KEY_BYTES: Final = 32
LARGE: Final = 64 * 1024
"""Bytes of a value above which its digest stands for it."""
PIECE: Final = 256 * 1024
"""Bytes that are hashed in one step."""
NESTED: Final = (b"{", b"[")
MESSAGES: Final = "messages"
TOOLS: Final = ("tools", "functions", "tool_choice", "function_call", "modalities", "audio")
_RAW: Final = ""
"""Stands for the request's `raw` among the names of fields: a request has either."""
_PURPOSE: Final = b"gatehouse answer"
"""Personalises the hash (RFC 7693, 2.5)."""
_ALIKE: Final = b"gatehouse alike"
_FRAME: Final = msgspec.json.Encoder()
_PARTS: Final = msgspec.msgpack.Encoder()
"""Says the length of each part, which keeps them apart."""


_MESSAGES: Final = msgspec.json.Decoder(list[Raw])
_DIGEST: Final = b"\0"
"""Begins what stands for a large frame: no JSON begins so."""
_MESSAGE: Final = msgspec.json.Decoder(PlainMessage)


class Alike(NamedTuple):
    """What a request of plain text asks last, and the rest of its messages, or what stands for them, with the facts of the question."""

    text: str
    frame: bytes


def asked_last(request: InferenceRequest) -> Steps[Alike | None]:
    """The last text of the user, and all before it, in slices; None for a request of another kind: with tools, files, names, or parts of
    messages that this version does not know."""
    given = request.fields.get(MESSAGES)
    if given is None or request.raw or any([name in request.fields for name in TOOLS]):
        return None
    try:
        messages = _MESSAGES.decode(given)
        if not messages:
            return None
        last = _MESSAGE.decode(messages.pop())
        if last.role != "user":
            return None
        before: list[bytes] = []
        for message in messages:
            yield
            before.append(_FRAME.encode(_MESSAGE.decode(message)))
    except msgspec.DecodeError:
        return None
    if sum([len(part) for part in before]) > LARGE:
        return Alike(last.content, _DIGEST + (yield from _hashed(before)))
    return Alike(last.content, b"[%b]" % b",".join(before))


def domain_of(principal: Principal, sharing: Sharing) -> bytes:
    """The isolation domain of answers: never wider than a tenant."""
    if sharing == KEY:
        return f"{domain(principal, KEY)}\0{principal.user}".encode("utf-8", "surrogatepass")
    return domain(principal, TENANT).encode("utf-8", "surrogatepass")


Sharing = Literal["key", "tenant", "global"]


def key_of(
    secret: bytes,
    principal: Principal,
    sharing: Sharing,
    version: bytes,
    request: InferenceRequest,
    question: Alike | None = None,
    digests: dict[str, list[bytes]] | None = None,
) -> bytes:
    """KEY_BYTES bytes that reveal nothing without the secret, which has at most 64 bytes.

    sharing: the model's `prefix_sharing`; answers are shared within a tenant at most, also where prefixes are shared by all. version: of
    the model and of the guardrails that read the request, as whoever builds the snapshot names them. question: stands in the place of the
    messages: the key is that of all requests that differ in nothing else. digests: of large fields, where they are known.
    """
    hashed = blake2b(key=secret, digest_size=KEY_BYTES, person=_PURPOSE if question is None else _ALIKE)
    parts: list[Any] = [
        domain_of(principal, sharing),
        request.model,
        version,
        request.path,
        request.content,
        request.stream,
        sorted(request.labels),
    ]
    parts.append(digests[_RAW] if digests is not None and _RAW in digests else _part(request.raw))
    fields = request.fields
    for name in sorted(fields):
        if question is not None and name == MESSAGES:
            parts += (name, _part(question.frame))
        elif digests is not None and name in digests:
            parts += (name, digests[name])
        else:
            parts += (name, _part(bytes(fields[name])))
    hashed.update(_PARTS.encode(parts))
    return hashed.digest()


def key_steps(
    secret: bytes,
    principal: Principal,
    sharing: Sharing,
    version: bytes,
    request: InferenceRequest,
    question: Alike | None = None,
) -> Steps[bytes]:
    """The same in slices."""
    digests: dict[str, list[bytes]] = {}
    if len(request.raw) > LARGE:
        digests[_RAW] = yield from _digest(request.raw)
    for name, field in request.fields.items():
        value = bytes(field)
        if len(value) > LARGE and (question is None or name != MESSAGES):
            digests[name] = yield from _digest(value)
    return key_of(secret, principal, sharing, version, request, question, digests)


def _part(value: bytes) -> Any:
    """What is hashed of a value."""
    if len(value) > LARGE:
        return at_once(_digest(value))
    if value.startswith(NESTED):
        return bytes(msgspec.json.format(value, indent=-1))  # takes out space, and changes nothing else
    return value


def _digest(value: bytes) -> Steps[list[bytes]]:
    """What stands for a large value: in a list, which no value is. Its spaces count, as taking them out of megabytes takes long."""
    return [(yield from _hashed([value]))]


def _hashed(parts: Sequence[bytes]) -> Steps[bytes]:
    hashed = sha256()
    for part in parts:
        for start in range(0, len(part), PIECE):
            hashed.update(part[start : start + PIECE])
            yield
    return hashed.digest()
