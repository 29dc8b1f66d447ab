"""Kept answers: the conversation that a request continues is put in front of it before any policy reads it, and the answer is kept before
its client gets the end of it.
"""

from __future__ import annotations

import os
from typing import Final

import msgspec
from msgspec import Raw

from gateway.core.conversations import AnswerFound, ConversationDesk, FindAnswer, KeepAnswer, Said, owner_of
from gateway.core.errors import EngineError, RequestError
from gateway.core.snapshot import Snapshot
from gateway.core.types import InferenceRequest, Peer, Principal
from gateway.core.wire import Memory, WireApi
from gateway.pipeline import inspect
from gateway.pipeline.exchange import Exchange
from gateway.pipeline.stream import AnswerRelay, StreamRelay
from gateway.wire.responses.references import by_id, response_with

PREFIX: Final = "resp_"
_ITEMS: Final = msgspec.json.Decoder(list[Raw])
_LENGTH: Final = 128
MAX_REFERRED: Final = 16
"""Kept conversations from which one request may name items: each is read from the store."""
_ITSELF: Final = "send the items themselves. Clients do so with store: false."


async def recall(x: Exchange, principal: Principal, request: InferenceRequest) -> RequestError | None:
    """Puts the conversation so far in front of a request, and notes what is to be kept. Returns a refusal if there is no such conversation;
    the refused request is charged. Raises RequestError, StoreUnavailable."""
    desk: ConversationDesk | None = x.plane.conversations if x.snapshot.spec.responses is not None else None
    memory = request.memory = request.api.remembers(request, desk is not None)
    if memory is None or desk is None:
        return None
    if memory.keeps:
        memory.identity = f"{PREFIX}{os.urandom(24).hex()}"
    if memory.referred and (refusal := await _refer(x, desk, principal, request)) is not None:
        return refusal
    if memory.keeps:
        memory.items = list(request.api.said(request))
    if memory.previous:
        found = await wanted(x.snapshot, desk, principal, x.peer, memory.previous, _asked(x, request))
        if found is None:
            return missing(memory.previous)
        if found.labels:
            inspect.labelled(x, frozenset(found.labels))
        earlier: list[Raw] = _ITEMS.decode(found.items)
        memory.items = [*earlier, *memory.items]
        request.api.recalled(request, earlier)
    return None


async def _refer(x: Exchange, desk: ConversationDesk, principal: Principal, request: InferenceRequest) -> RequestError | None:
    """Replaces references to items of earlier answers by the items. Returns a refusal if one is not kept, or if they are too long together.

    The last item is looked up first: its response is kept with the whole conversation, so it usually has all the others too."""
    settings, memory = x.snapshot.spec.responses, request.memory
    assert settings is not None and memory is not None
    names = frozenset(memory.referred)
    known: dict[str, Raw] = {}
    left, asked = settings.max_bytes, 0
    for identity in reversed(memory.referred):
        if identity not in known:
            if (asked := asked + 1) > MAX_REFERRED:
                return RequestError(f"input: its references name more than {MAX_REFERRED} conversations; {_ITSELF}", param="input")
            found = await wanted(x.snapshot, desk, principal, x.peer, response_with(identity), _asked(x, request))
            if found is not None:
                if found.labels:
                    inspect.labelled(x, frozenset(found.labels))
                known = {**by_id(found.items, names), **known}
            if identity not in known:
                return RequestError(f"There is no item {identity!r} here; {_ITSELF}", param="input", code="item_not_found", status=404)
        left -= len(bytes(known[identity]))
        if left < 0:
            limit = f"{settings.max_bytes} bytes (responses.max_bytes)"
            return RequestError(f"input: the items that it refers to have more than {limit}.", param="input")
    request.api.referred(request, [known[identity] for identity in memory.referred])
    return None


def missing(identity: str) -> RequestError:
    """The same answer whether it never existed, belongs to another tenant or has expired."""
    return RequestError(
        f"There is no response {identity[:_LENGTH]!r}.", param="previous_response_id", code="previous_response_not_found", status=404
    )


async def wanted(
    snapshot: Snapshot, desk: ConversationDesk, principal: Principal, peer: Peer, identity: str, model: str = "", erase: bool = False
) -> Said | None:
    """A kept answer that was given to the caller (or, if the configuration shares them, to anybody of the tenant) by a model with which the
    caller may chat from this address. model: the one that is asked now, for which the request itself is authorised."""
    settings = snapshot.spec.responses
    if not identity.startswith(PREFIX) or len(identity) > _LENGTH or not identity.isascii():
        return None
    found: AnswerFound = await desk.find(FindAnswer(id=identity, tenant=principal.tenant))
    if settings is None or (settings.scope == "caller" and found.owner != owner_of(principal)):
        return None
    if found.said is None or not snapshot.authorizer.may_see(principal, found.model):
        return None
    if found.model != model and not snapshot.authorizer.decide(principal, _chat(found.model), peer, 0).allow:
        return None
    if erase:
        await desk.find(FindAnswer(id=identity, tenant=principal.tenant, erase=True))
    return found.said


def _asked(x: Exchange, request: InferenceRequest) -> str:
    entry = x.snapshot.models.get(request.model)
    return "" if entry is None else entry.name


def _chat(model: str) -> InferenceRequest:
    """The request about which policy is asked before a kept answer of a model is given."""
    return InferenceRequest(WireApi("chat"), b"/v1/responses", model, {}, None)


async def keep(x: Exchange, answer: bytes) -> None:
    """Keeps a whole answer. Raises EngineError for one that cannot be read, and what the store raises."""
    desk: ConversationDesk | None = x.plane.conversations
    request, principal, entry = x.request, x.principal, x.entry
    assert desk is not None and request is not None and principal is not None and entry is not None
    memory: Memory | None = request.memory
    assert memory is not None
    try:
        output: list[Raw] = msgspec.json.decode(answer, type=_Output).output
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise EngineError("The engine's answer cannot be kept: it is not a response.") from None
    said = Said(items=msgspec.json.encode([*memory.items, *output]), answer=answer, labels=tuple(sorted(request.labels)))
    owner, began = owner_of(principal), x.started_ns * 1e-9
    await desk.keep(KeepAnswer(id=memory.identity, tenant=principal.tenant, owner=owner, model=entry.name, said=said, began=began))


async def keep_stream(x: Exchange, relay: AnswerRelay) -> None:
    """Keeps the answer of a stream, whose last event then goes to the client."""
    assert isinstance(relay, StreamRelay)
    if (result := relay.result()) is not None:
        await keep(x, msgspec.json.encode(result))
        StreamRelay.finish_stream(relay, True)


class _Output(msgspec.Struct):
    output: list[Raw]
