"""The key of an answer: two requests have the same one only if the same engine would be asked the same, for the same isolation domain.

What is hashed is what would be sent, after aliases were resolved and guardrails have rewritten it: the path, the header lines about the
body, and each top-level field with the client's own bytes. Only the order of the top-level fields and space between JSON's tokens do not
count. Fields that this version does not know count like all others, and texts are not normalised: two spellings that an engine could tell
apart are two requests. The parser has refused bodies in which a key appears twice.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Final, Literal, NamedTuple

import msgspec

from gateway.caches.views import PlainMessage
from gateway.core.isolation import KEY, TENANT, domain
from gateway.core.types import InferenceRequest, Principal

KEY_BYTES: Final = 32
NESTED: Final = (b"{", b"[")
MESSAGES: Final = "messages"
TOOLS: Final = ("tools", "functions", "tool_choice", "function_call", "modalities", "audio")
_PURPOSE: Final = b"gatehouse answer"
"""Personalises the hash (RFC 7693, 2.5)."""
_ALIKE: Final = b"gatehouse alike"
_FRAME: Final = msgspec.json.Encoder()
_PARTS: Final = msgspec.msgpack.Encoder()
"""Says the length of each part, which keeps them apart."""


_MESSAGES: Final = msgspec.json.Decoder(list[PlainMessage])


class Alike(NamedTuple):
    """What a request of plain text asks last, and the rest of its messages with the facts of the question."""

    text: str
    frame: bytes


def asked_last(request: InferenceRequest) -> Alike | None:
    """The last text of the user, and all before it; None for a request of another kind: with tools, files, names, or parts of messages
    that this version does not know."""
    given = request.fields.get(MESSAGES)
    if given is None or request.raw or any([name in request.fields for name in TOOLS]):
        return None
    try:
        messages = _MESSAGES.decode(given)
    except msgspec.DecodeError:
        return None
    if not messages or messages[-1].role != "user":
        return None
    return Alike(messages[-1].content, _FRAME.encode(messages[:-1]))


def domain_of(principal: Principal, sharing: Sharing) -> bytes:
    """The isolation domain of answers: never wider than a tenant."""
    if sharing == KEY:
        return f"{domain(principal, KEY)}\0{principal.user}".encode("utf-8", "surrogatepass")
    return domain(principal, TENANT).encode("utf-8", "surrogatepass")


Sharing = Literal["key", "tenant", "global"]


def key_of(
    secret: bytes, principal: Principal, sharing: Sharing, version: bytes, request: InferenceRequest, question: Alike | None = None
) -> bytes:
    """KEY_BYTES bytes that reveal nothing without the secret, which has at most 64 bytes.

    sharing: the model's `prefix_sharing`; answers are shared within a tenant at most, also where prefixes are shared by all. version: of
    the model and of the guardrails that read the request, as whoever builds the snapshot names them. question: stands in the place of the
    messages: the key is that of all requests that differ in nothing else.
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
        request.raw,
    ]
    fields = request.fields
    for name in sorted(fields):
        value = question.frame if question is not None and name == MESSAGES else bytes(fields[name])
        if value.startswith(NESTED):
            value = bytes(msgspec.json.format(value, indent=-1))  # takes out space, and changes nothing else
        parts += (name, value)
    hashed.update(_PARTS.encode(parts))
    return hashed.digest()
