"""Routing keys: 64 bits that say which requests belong together.

`prefix`: the system prompt and the first user message, so that all turns of a conversation, and its siblings, meet the engine that
holds their KV cache. `session`: the routing header, else the request's `user`. `tenant` and `key`: the caller. `header:NAME`: that
header (the router's caller reads it and passes it as the session). What is absent falls back to the prefix.
BLAKE2b, because the key must be the same in every process, after every restart, and hard to aim at an endpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from typing import Any, Final

from gateway.core.types import InferenceRequest, Principal

PREFIX: Final = 2048
"""How many characters of a text are hashed: enough to tell conversations apart, little enough to cost a few microseconds at most."""
MESSAGES: Final = 8
"""How many messages are looked at for the first of a user."""

_fresh = blake2b(digest_size=8).copy
"""A copy of one that was never fed is cheaper than a new one with its parameters."""
_number = int.from_bytes

KEPT: Final = 32
"""How many beginnings of conversations a route keeps the hash's state of."""

KeyFunction = Callable[[InferenceRequest, Principal, bytes | None], int]


def digest(data: bytes) -> int:
    """64 bits of BLAKE2b, big-endian."""
    state = _fresh()
    state.update(data)
    return _number(state.digest())


def key_function(key: str) -> KeyFunction:
    """The function for `RoutingSpec.key`: (request, principal, session) -> 0 <= key < 2**64."""
    if key == "tenant":
        return tenant_key
    if key == "key":
        return caller_key
    prefix = Prefix().key
    if key == "prefix":
        return prefix
    if key == "session":
        return partial(session_key, prefix)
    if key.startswith("header:"):
        return partial(header_key, prefix)
    raise ValueError(f"unknown routing key: {key}")


class Prefix:
    """The key `prefix`. What precedes the user's text is a system prompt, long and the same for many conversations: the hash's state
    behind it is kept for the last KEPT of them."""

    __slots__ = ("_states",)

    def __init__(self) -> None:
        self._states: dict[str, Any] = {}

    def key(self, request: InferenceRequest, principal: Principal, session: bytes | None) -> int:
        """From roles and texts up to the first user message, of each text the first PREFIX characters (a long system prompt must not hide
        who talks). When there is none, from the first MESSAGES."""
        if request.operation != "chat":
            return digest(_encoded(_text(request)))
        before, room = "", MESSAGES
        for message in request.view.messages:
            role, text = message.role, message.content
            if text.__class__ is not str or len(text) > PREFIX:
                text = _flat(text)
            if role == "user":
                state = (self._states.get(before) or self._begin(before)).copy()
                try:
                    state.update(text.encode())
                except UnicodeEncodeError:
                    state.update(_encoded(text))
                return _number(state.digest())
            before = f"{before}{role}\0{text}\0"
            room -= 1
            if not room:
                break
        return digest(_encoded(before[:-1]))

    def _begin(self, before: str) -> Any:
        states = self._states
        if len(states) >= KEPT:
            del states[next(iter(states))]
        state = states[before] = _fresh()
        state.update(_encoded(f"{before}user\0"))
        return state


def session_key(prefix: KeyFunction, request: InferenceRequest, principal: Principal, session: bytes | None) -> int:
    if session:
        return digest(session)
    user = getattr(request.view, "user", None)
    if isinstance(user, str) and user:
        return digest(_encoded(user))
    return prefix(request, principal, session)


def header_key(prefix: KeyFunction, request: InferenceRequest, principal: Principal, session: bytes | None) -> int:
    return digest(session) if session else prefix(request, principal, session)


def tenant_key(request: InferenceRequest, principal: Principal, session: bytes | None) -> int:
    return digest(principal.tenant.encode())


def caller_key(request: InferenceRequest, principal: Principal, session: bytes | None) -> int:
    return digest(f"{principal.tenant}\0{principal.id}".encode())


def _text(request: InferenceRequest) -> str:
    """The beginning of what is no conversation."""
    view = request.view
    text = _flat(getattr(view, "prompt", None)) or _flat(getattr(view, "input", None)) or _flat(getattr(view, "query", None))
    return text or _bytes_of(request).decode("latin-1")


def _bytes_of(request: InferenceRequest) -> bytes:
    """Where nothing is text (tensors): the beginning of what is forwarded."""
    if request.raw:
        return request.raw[:PREFIX]
    return b"\0".join(bytes(value)[:PREFIX] for value in request.fields.values())[:PREFIX]


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


def _encoded(text: str) -> bytes:
    """UTF-8, also of half a surrogate pair, which JSON can carry."""
    return text.encode("utf-8", "surrogatepass")
