"""What the audit log keeps of the facts on which a request was allowed or denied, so that the decision can be made again later
(policies.replay): of the caller, and of the request. Neither holds text of the request but names and labels; both are bounded.
"""

from __future__ import annotations

from json import dumps
from typing import Any, Final

from msgspec import Raw

from gateway.core.errors import GatehouseError
from gateway.core.types import DecisionFacts, InferenceRequest, Peer, Principal

MAX_CALLER: Final = 4096
"""Bytes of what is kept of a caller. Of one with more, the longest facts are left out by name."""
MAX_TOOLS: Final = 64
MAX_TOOLS_BYTES: Final = 16 * 1024
"""A longer list, or definitions of more bytes, are not read for the record."""
MAX_TEXT: Final = 128
LATEST: Final = 253402300799.0
"""Seconds since the epoch: the end of the year 9999, the last moment that a timestamp can tell."""
_TOOLS: Final = ("tools", "functions")
"""The fields in which requests of all formats offer tools. Labels are in `metadata`."""
_TEMPLATE: Final = "chat_template_kwargs"
"""May hold tools, too, and so may messages, which the request notes in `unknown` (`messages[0].tools`)."""
UNTOLD: Final = DecisionFacts(
    unrecorded=(
        *[f"request.{name}" for name in ("model", "version", "max_tokens", "tools", "label", "stream", "bytes")],
        "source.certificate",
    )
)
"""Of a request whose facts cannot be told."""
_LISTS: Final = ("models", "operations", "groups", "roles", "scopes", "limits")
_OF_LOGIN: Final = ("strength", "issuer", "acr")
_Facts: Final = DecisionFacts
"""Compiled, a Final is one load, and a name that was imported a look-up."""


def caller_facts(principal: Principal) -> Any:
    """What decisions read of a caller besides the record's own fields, as JSON in ASCII; made once for each Principal."""
    known = principal.recorded
    if known is None:
        known = principal.recorded = Raw(_bounded(told(principal)))
    return known


def told(principal: Principal) -> dict[str, Any]:
    """The same as a mapping. What is empty is left out."""
    found: dict[str, Any] = {}
    for name in _LISTS:
        values = getattr(principal, name)
        if values:
            found[name] = _clean(values)
    if principal.reach is not None:
        found["reach"] = _clean(principal.reach)
    if principal.bounds:
        found["bounds"] = [[[_clean(scope.models), _clean(scope.operations)] for scope in scopes] for scopes in principal.bounds]
    if principal.personal:
        found["personal"] = True
    login = principal.login
    if login is not None:
        for name in _OF_LOGIN:
            if text := getattr(login, name):
                found[name] = _clean((text,))[0]
        if login.amr:
            found["amr"] = _clean(login.amr)
        if login.auth_time is not None and 0.0 <= login.auth_time <= LATEST:
            found["auth_time"] = login.auth_time
    return found


def _bounded(found: dict[str, Any]) -> bytes:
    encoded = _encoded(found)
    left_out: list[str] = []
    while len(encoded) > MAX_CALLER:
        sizes = {name: len(_encoded(value)) for name, value in found.items() if name != "unrecorded"}
        longest = max(sizes, key=lambda name: sizes[name])
        del found[longest]
        left_out.append(longest)
        found["unrecorded"] = left_out
        encoded = _encoded(found)
    return encoded


def _encoded(value: Any) -> bytes:
    return dumps(value, separators=(",", ":")).encode()


def _clean(values: tuple[str, ...]) -> list[str]:
    """Half a pair of UTF-16 becomes a question mark: readers of JSON refuse it."""
    return [text if text.isascii() else text.encode("utf-8", "replace").decode() for text in values]


def request_facts(request: InferenceRequest, model: str, peer: Peer, size: int = -1) -> DecisionFacts | None:
    """What decisions read of a request besides the record's own fields; None where that is nothing. model: the record's. size: of the body,
    where the record does not have it."""
    fields, asked = request.fields, request.asked or request.model
    plain = "tools" not in fields and "functions" not in fields and "metadata" not in fields
    if plain and (_TEMPLATE in fields or (request.unknown and any([place.endswith("].tools") for place in request.unknown]))):
        plain = False
    if plain and size < 0 and asked == model and not request.version and not peer.thumbprint:  # most requests
        return _Facts(max_tokens=request.max_tokens) if request.max_tokens > 0 else None
    unrecorded: list[str] = []
    label, tools = _label(request, unrecorded), _tools(request, unrecorded)
    if len(asked) > MAX_TEXT:
        asked = ""
        unrecorded.append("request.model")
    version = request.version
    if len(version) > MAX_TEXT:
        version = ""
        unrecorded.append("request.version")
    if asked == model:
        asked = ""
    bound = max(request.max_tokens, 0)
    if size < 0 and not (asked or bound or version or label or tools or unrecorded or peer.thumbprint):
        return None
    return DecisionFacts(
        model=asked,
        version=version,
        max_tokens=bound,
        tools=tools,
        label=label,
        certificate=peer.thumbprint,
        stream=size >= 0 and request.stream,
        bytes=max(size, 0),
        unrecorded=tuple(unrecorded),
    )


def _label(request: InferenceRequest, unrecorded: list[str]) -> str:
    try:
        found = request.api.label(request)
    except GatehouseError:
        found = ""
        unrecorded.append("request.label")
    if len(found) <= MAX_TEXT:
        return found
    unrecorded.append("request.label")
    return ""


def _tools(request: InferenceRequest, unrecorded: list[str]) -> tuple[str, ...]:
    size = 0
    for name in (*_TOOLS, _TEMPLATE):
        given = request.fields.get(name)
        if given is not None:
            size += len(given)
    if size <= MAX_TOOLS_BYTES:
        try:
            found = request.api.tools(request)
        except GatehouseError:
            found = [""] * (MAX_TOOLS + 1)
        if len(found) <= MAX_TOOLS and all(len(name) <= MAX_TEXT for name in found):
            return tuple(found)
    unrecorded.append("request.tools")
    return ()
