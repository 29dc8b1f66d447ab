"""Routing keys: 64 bits that say which requests belong together.

`prefix`: the system prompt and the first user message, so that all turns of a conversation, and its siblings, meet the engine that
holds their KV cache. `session`: the routing header, else the request's `user`. `tenant` and `key`: the caller. `header:NAME`: that
header (the router's caller reads it and passes it as the session). Where a request has none of these, its prefix counts.
BLAKE2b, because a key must be the same in every process and after every restart, and callers must not be able to aim at an endpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from struct import Struct
from typing import Any, Final

from gateway.core.isolation import GLOBAL, domain
from gateway.core.types import InferenceRequest, Principal

PREFIX: Final = 2048
"""Characters of a text that are hashed: enough to tell conversations apart, few enough to cost microseconds."""
MESSAGES: Final = 8
"""Messages among which the first user message is looked for."""

_fresh: Final = blake2b(digest_size=8).copy
"""Copying an unused hash is cheaper than making one with parameters."""
_number: Final = Struct(">Q").unpack
"""A third of what `int.from_bytes` costs."""

KEPT: Final = 32
"""Hash states of conversation beginnings that a route keeps."""

KeyFunction = Callable[[InferenceRequest, Principal, bytes | None], int]


def digest(data: bytes) -> int:
    """64 bits of BLAKE2b, big-endian."""
    state = _fresh()
    state.update(data)
    number: int = _number(state.digest())[0]
    return number


def key_function(key: str, sharing: str = GLOBAL) -> KeyFunction:
    """The function for `RoutingSpec.key`: (request, principal, session) -> 0 <= key < 2**64.

    sharing: the model's `prefix_sharing`; requests of two isolation domains have no prefix in common.
    """
    if key == "tenant":
        return tenant_key
    if key == "key":
        return caller_key
    prefix = Prefix(sharing).key
    if key == "prefix":
        return prefix
    if key == "session":
        return partial(session_key, prefix)
    if key.startswith("header:"):
        return partial(header_key, prefix)
    raise ValueError(f"unknown routing key: {key}")


class Prefix:
    """The key `prefix`. What precedes the user's text is usually a system prompt, long and shared by many conversations: the hash's state
    after it is kept for the last KEPT of them."""

    __slots__ = ("_sharing", "_states")

    def __init__(self, sharing: str = GLOBAL) -> None:
        self._sharing = sharing
        self._states: dict[str, Any] = {}

    def key(self, request: InferenceRequest, principal: Principal, session: bytes | None) -> int:
        """Hashes roles and texts up to the first user message, or of the first MESSAGES if there is none. Of each text the first PREFIX
        characters count, so that a long system prompt does not hide the user's."""
        messages = request.api.messages(request)
        if messages is None:
            return digest(_encoded(domain(principal, self._sharing) + _text(request)))
        before, room = domain(principal, self._sharing), MESSAGES
        for message in messages:
            role: str = message.role
            content = message.content
            text: str = content if type(content) is str and len(content) <= PREFIX else _flat(content)
            if role == "user":
                state = (self._states.get(before) or self._begin(before)).copy()
                try:
                    state.update(text.encode())
                except UnicodeEncodeError:
                    state.update(_encoded(text))
                number: int = _number(state.digest())[0]
                return number
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
    if user := request.api.user(request):
        return digest(_encoded(user))
    return prefix(request, principal, session)


def header_key(prefix: KeyFunction, request: InferenceRequest, principal: Principal, session: bytes | None) -> int:
    return digest(session) if session else prefix(request, principal, session)


def tenant_key(request: InferenceRequest, principal: Principal, session: bytes | None) -> int:
    return digest(principal.tenant.encode())


def caller_key(request: InferenceRequest, principal: Principal, session: bytes | None) -> int:
    return digest(f"{principal.tenant}\0{principal.id}".encode())


def _text(request: InferenceRequest) -> str:
    """The beginning of a request that is not a conversation."""
    return _flat(request.api.opening(request)) or _bytes_of(request).decode("latin-1")


def _bytes_of(request: InferenceRequest) -> bytes:
    """The beginning of the forwarded body, for requests without text (tensors)."""
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
    """UTF-8; encodes lone surrogates too, which JSON can carry."""
    return text.encode("utf-8", "surrogatepass")
