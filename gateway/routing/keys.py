"""Routing keys: 64 bits that say which requests belong together.

`prefix`: the system prompt and the first user message, so that all turns of a conversation, and its siblings, meet the engine that
holds their KV cache. `session`: the routing header, else the request's `user`. `tenant` and `key`: the caller. `header:NAME`: that
header (the router's caller reads it and passes it as the session). What is absent falls back to the prefix.
BLAKE2b, because the key must be the same in every process, after every restart, and hard to aim at an endpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from struct import Struct
from typing import Any

from gateway.core.types import InferenceRequest, Principal

PREFIX = 2048
"""How many characters of a text are hashed: enough to tell conversations apart, little enough to cost a few microseconds at most."""
MESSAGES = 8
"""How many messages are looked at for the first of a user."""

_FRESH = blake2b(digest_size=8)
"""Copied, never fed: cheaper than making one with its parameters."""
_unpack = Struct(">Q").unpack

KeyFunction = Callable[[InferenceRequest, Principal, bytes | None], int]


def digest(data: bytes) -> int:
    """64 bits of BLAKE2b, big-endian."""
    state = _FRESH.copy()
    state.update(data)
    number: int = _unpack(state.digest())[0]
    return number


def key_function(key: str) -> KeyFunction:
    """The function for `RoutingSpec.key`: (request, principal, session) -> 0 <= key < 2**64."""
    if key == "prefix":
        return prefix_key
    if key == "session":
        return session_key
    if key == "tenant":
        return tenant_key
    if key == "key":
        return caller_key
    if key.startswith("header:"):
        return header_key
    raise ValueError(f"unknown routing key: {key}")


def prefix_key(request: InferenceRequest, principal: Principal, session: bytes | None) -> int:
    text = prefix_of(request)
    try:
        return digest(text.encode())
    except UnicodeEncodeError:  # JSON can carry half of a surrogate pair
        return digest(text.encode("utf-8", "surrogatepass"))


def session_key(request: InferenceRequest, principal: Principal, session: bytes | None) -> int:
    if session:
        return digest(session)
    user = getattr(request.view, "user", None)
    if isinstance(user, str) and user:
        return digest(user.encode("utf-8", "surrogatepass"))
    return prefix_key(request, principal, session)


def tenant_key(request: InferenceRequest, principal: Principal, session: bytes | None) -> int:
    return digest(principal.tenant.encode())


def caller_key(request: InferenceRequest, principal: Principal, session: bytes | None) -> int:
    return digest(f"{principal.tenant}\0{principal.id}".encode())


def header_key(request: InferenceRequest, principal: Principal, session: bytes | None) -> int:
    return digest(session) if session else prefix_key(request, principal, session)


def prefix_of(request: InferenceRequest) -> str:
    """What a conversation's turns have in common, everything up to the first user message, of each text the first PREFIX characters."""
    view = request.view
    messages = getattr(view, "messages", None)
    if messages:
        return _conversation(messages)
    text = _flat(getattr(view, "prompt", None)) or _flat(getattr(view, "input", None)) or _flat(getattr(view, "query", None))
    return text or _bytes_of(request).decode("latin-1")


def _bytes_of(request: InferenceRequest) -> bytes:
    """Where nothing is text (tensors): the beginning of what is forwarded."""
    if request.raw:
        return request.raw[:PREFIX]
    return b"\0".join(bytes(value)[:PREFIX] for value in request.fields.values())[:PREFIX]


def _conversation(messages: Any) -> str:
    """Roles and texts up to the first user message, each cut: a long system prompt must not hide who talks. All when there is none."""
    parts: list[str] = []
    for message in messages[:MESSAGES]:
        role, text = message.role, message.content
        if not isinstance(text, str):
            text = _flat(text)
        parts.append(role)
        parts.append(text if len(text) <= PREFIX else text[:PREFIX])
        if role == "user":
            break
    return "\0".join(parts)


def _flat(content: Any) -> str:
    """The text of a content: a string, a list of strings, of token ids, or of parts with a `text`; "" for anything else."""
    if isinstance(content, str):
        return content[:PREFIX]
    if not isinstance(content, list | tuple):
        return ""
    texts: list[str] = []
    room = PREFIX
    for part in content:
        if isinstance(part, str):
            text = part
        elif isinstance(part, int):
            text = str(part)
        elif isinstance(part, list | tuple):
            text = str(part[:PREFIX])
        else:
            found = getattr(part, "text", None)
            text = found if isinstance(found, str) else ""
        texts.append(text[:room])
        room -= len(text)
        if room <= 0:
            break
    return "\0".join(texts)
