"""Phases 8 and 9 for a model with a cache: its answer from the cache, from a call that is under way, or from an engine.

A hit has passed all that comes before an engine is asked (authorisation, limits, guardrails, the audit log's intent) and is relayed like an
engine's answer, so it passes all that comes behind.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import Final

from gateway.core.caching import Answer, AnswerCache, Question, Similar
from gateway.core.errors import EngineError
from gateway.core.slices import Steps, at_once
from gateway.core.snapshot import ModelEntry
from gateway.core.types import Headers, InferenceRequest, ResponseHead, Usage
from gateway.core.waiting import Completion, Signal, check
from gateway.pipeline import attempt
from gateway.pipeline.exchange import Exchange
from gateway.pipeline.flights import Flight, Orphaned, Recording, StoredAttempt
from gateway.pipeline.stream import AnswerRelay
from gateway.wire.sse import portions

TRIES: Final = 3
"""How often a request joins others before it asks by itself, whatever they do."""
LARGE: Final = 256 * 1024
"""Bytes of a request whose key is computed in turns of the loop."""
LINE: Final = b"x-gatehouse-cache: "


async def run(x: Exchange, entry: ModelEntry, ticket: Signal[None], relay_type: type[AnswerRelay]) -> AnswerRelay:
    """As attempt.run, for an entry with a cache. Raises what that raises."""
    cache: AnswerCache = entry.cache  # type: ignore[assignment]
    request: InferenceRequest = x.request  # type: ignore[assignment]
    if x.upload is not None or not cache.concerns(request):  # of two forms with the same texts, the files may differ
        return await attempt.run(x, entry, ticket, relay_type)
    key = await _key(x, cache)
    if request.labels:
        entry.route.cleared(request.labels)  # as where an engine is asked
    looks, keeps = wishes(x.headers)
    if not keeps:
        cache.bypassed()
        _say(x, "bypass", key)
        return await attempt.run(x, entry, ticket, relay_type)
    place = key + x.principal.priority.encode()  # type: ignore[union-attr]  # nobody waits for one who waits longer in the queue
    shares = cache.shares and request.api.dialect == ""  # in which form others get an answer is known once an engine has it
    behind = cache.backed
    marks, tries = b"", TRIES
    question: Question | None = None
    similar = cache.semantic and not x.layers  # pseudonyms stand for other values in each request
    while looks and tries:
        found = cache.find(key)
        if found is not None:
            return await _stored(x, cache, key, found, ticket, relay_type)
        joinable: Flight | None = cache.flights.get(place) if shares else None
        if joinable is not None:
            relay = await _joined(x, cache, key, joinable, ticket, relay_type)
            if relay is not None:
                return relay
            tries -= 1
        elif behind:  # and then once more here: another may have asked meanwhile
            behind = False
            answer, marks = await _looked_up(x, cache, key)
            if answer is not None:
                return await _stored(x, cache, key, answer, ticket, relay_type)
        elif similar:
            similar = False
            question = await _question(x, cache, ticket)
            if question is not None and (like := await _similar(cache, question)) is not None:
                return await _stored(x, cache, like.key, like.answer, ticket, relay_type, like)
        else:
            break
    if similar:
        question = await _question(x, cache, ticket)
    if behind:  # its answer is to take the place of the one there
        _, marks = await _looked_up(x, cache, key, take=False)
    _say(x, "miss", key)
    cache.missed()
    flight = x.flight = Flight(cache, key, place, request, marks, question)
    if shares and place not in cache.flights:
        flight.open()
    try:
        relay = await attempt.run(x, entry, ticket, relay_type, flight)
    except BaseException as error:
        x.flight = None
        flight.given_up(error)
        raise
    flight.stays()
    return relay


async def _key(x: Exchange, cache: AnswerCache) -> bytes:
    """Of a large request it is computed in turns of the loop."""
    if len(x.body or b"") <= LARGE:
        return cache.key(x.principal, x.request)  # type: ignore[arg-type]
    key: bytes = await x.plane.turns.run(cache.key_steps(x.principal, x.request))  # type: ignore[arg-type]
    return key


async def _question(x: Exchange, cache: AnswerCache, ticket: Signal[None]) -> Question | None:
    """What is compared with other requests; that of a large one is read in turns of the loop. Its text goes to the embedding model, so the
    request is recorded before."""
    if not ticket.done:
        await Completion(ticket)
    check(ticket.error)
    steps = cache.question(x.principal, x.request)  # type: ignore[arg-type]
    return await x.plane.turns.run(steps) if len(x.body or b"") > LARGE else at_once(steps)


async def _looked_up(x: Exchange, cache: AnswerCache, key: bytes, *, take: bool = True) -> tuple[Answer | None, bytes]:
    """The answer from behind the memory, and the marks with which one may be kept there; b"": none may."""
    tenant, epoch = x.principal.tenant, cache.epoch  # type: ignore[union-attr]
    found = cache.look(key, tenant)
    if found is None:
        return None, b""
    if not found.done:
        await Completion(found)
    looked = found.value
    if looked is None:
        return None, b""
    return (cache.taken(key, tenant, looked, epoch) if take else None), looked.marks


async def _similar(cache: AnswerCache, question: Question) -> Similar | None:
    """The answer to the most similar request. Without any to compare with, nobody waits for the question's vector."""
    if not cache.rivals(question):
        return None
    vector = question.vector
    assert vector is not None
    if not vector.done:
        await Completion(vector)
    return cache.nearest(question)


def wishes(headers: Headers) -> tuple[bool, bool]:
    """(whether the client takes a stored answer, whether its own may be stored), by `cache-control` (RFC 9111, 5.2.1)."""
    given = headers.get(b"cache-control")
    if given is None:
        return True, True
    words = [word.strip() for word in given.lower().split(b",")]
    if b"no-store" in words:
        return False, False
    return b"no-cache" not in words and b"max-age=0" not in words, True


async def _stored(
    x: Exchange,
    cache: AnswerCache,
    key: bytes,
    found: Answer | Steps[Answer],
    ticket: Signal[None],
    relay_type: type[AnswerRelay],
    similar: Similar | None = None,
) -> AnswerRelay:
    """The relay of an answer from the cache. similar: whose it is, where it was given to another request than this one."""
    answer: Answer = found if isinstance(found, Answer) else await x.plane.turns.run(found)
    if similar is None:
        _say(x, "hit", key)
    else:
        _say(x, "semantic", key)
        x.detail = {**(x.detail or {}), "cache_source": similar.source, "cache_similarity": round(similar.similarity, 4)}
    if not cache.charge:
        _uncharged(x)
    request: InferenceRequest = x.request  # type: ignore[assignment]
    if not ticket.done:
        await Completion(ticket)
    check(ticket.error)
    recording = Recording(0)
    recording.head = ResponseHead(200, list(answer.headers))
    body = answer.body(x.plane.next_id().replace(b"-", b""))
    recording.pieces = portions(body) if request.stream else [body]  # a client that reads slowly can pause between them
    recording.ended = True
    request.foreign = answer.foreign
    relay = await _read(x, recording, relay_type)
    x.sent_ns = 0  # no engine was asked
    return relay


async def _joined(
    x: Exchange, cache: AnswerCache, key: bytes, flight: Flight, ticket: Signal[None], relay_type: type[AnswerRelay]
) -> AnswerRelay | None:
    """The relay of an answer that somebody else has asked for; None where that has not come to anything."""
    if not ticket.done:
        await Completion(ticket)
    check(ticket.error)
    if (flight.ended and not flight.withheld) or not flight.keeps:
        return None
    price = x.request.price  # type: ignore[union-attr]
    _say(x, "joined", key)
    cache.joined()
    if not cache.charge:
        _uncharged(x)
    x.request.foreign = False  # type: ignore[union-attr]
    error: EngineError | Orphaned | None = None
    try:
        relay = await _read(x, flight, relay_type)
    except (EngineError, Orphaned) as failed:
        error = failed
    if error is None:
        x.flight = flight
        return relay
    x.attempt, x.usage, x.request.price = None, None, price  # type: ignore[union-attr]
    late = x.plane.now >= x.until  # the engine would do all of it again
    if isinstance(error, Orphaned) or (flight.orphan and flight.head is None and not error.interrupts and not late):
        error = None
        return None
    try:
        raise error
    finally:
        error = None


async def _read(x: Exchange, recording: Recording, relay_type: type[AnswerRelay]) -> AnswerRelay:
    """Relays a recorded answer to its end. Raises its error."""
    x.attempt = StoredAttempt(recording.sent)  # type: ignore[assignment]  # what is asked of an attempt once it is there
    x.sent_ns = perf_counter_ns()
    x.until = x.wake_at = x.deadline
    recording.bound(x)
    relay = x.relay = relay_type(x)
    reading = recording.read_by(relay)
    x.call = reading
    if x.client.paused:
        reading.pause()
    reading.go_on()
    if not relay.done.done:
        await Completion(relay.done)
    x.call = None
    x.clock.mark("engine")
    if relay.done.error is not None and not relay.started:
        x.relay = None
    check(relay.done.error)
    return relay


def _uncharged(x: Exchange) -> None:
    x.usage, x.request.price = Usage(), None  # type: ignore[union-attr]


def _say(x: Exchange, word: str, key: bytes) -> None:
    """Tells the client and the record. A later word, of another try or a fallback, takes the place of one before."""
    if (at := x.cors.find(LINE)) >= 0:
        x.cors = x.cors[:at]
    x.cors += b"%b%b\r\n" % (LINE, word.encode())
    x.detail = {**(x.detail or {}), "cache": word, "cache_key": key.hex()}
