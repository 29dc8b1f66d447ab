"""An engine's answer as it comes, and those who read it: the request that asked for it and, at their own pace, others that ask the same.

A `Recording` is the answer so far; one from the cache is whole already. A `Reading` hands it to one relay and is that exchange's Call, so a
client that reads slowly pauses its own reading. A `Flight` is a Recording whose answer an engine is giving. It owns the attempt, which its
leader, the exchange that made it, sees as a `LedAttempt` (gateway.pipeline.led): the leader may leave and the call goes on while anybody
reads.
"""

from __future__ import annotations

import copy
from math import inf
from typing import Final

from gateway.core.caching import Answer, AnswerCache, Question
from gateway.core.errors import ClientStalled, EngineError
from gateway.core.ports import Attempt, AttemptResult, Call
from gateway.core.prices import SlotTime
from gateway.core.slices import Steps, at_once
from gateway.core.types import InferenceRequest, ResponseHead
from gateway.pipeline.exchange import Exchange
from gateway.pipeline.led import LedAttempt
from gateway.pipeline.stream import AnswerRelay
from gateway.wire.identifiers import cut_steps

FULL: Final = (429, 503)
"""Statuses by which an engine says that it has no room for the request now."""
READ_HEADERS: Final = frozenset({b"content-type"})
"""Of an engine's answer, those that relays read. The others are about that answer alone."""
UNFINISHED: Final = frozenset({"", "content_filter", "error"})
"""Reasons to stop generating of which no answer is kept; "": the engine gave none, so the answer may be cut."""
LARGE: Final = 256 * 1024
"""Bytes of an answer above which it is kept in slices, behind the request that caused it."""
BEHIND: Final = "The client reads an answer that it shares with others too slowly."


class Recording:
    """head, pieces: of the answer, as they came. keeps: whether all of it is here, as it is not larger than `most` bytes; else only what
    somebody has still to read. ended: nothing follows; with `error`, because it failed. withheld: only `leader` may read it."""

    __slots__ = ("_behind", "call", "ended", "error", "head", "keeps", "leader", "most", "pieces", "readings", "size", "withheld")

    def __init__(self, most: int) -> None:
        self.most = most
        self.head: ResponseHead | None = None
        self.pieces: list[bytes] = []
        self.size = self._behind = 0
        self.keeps = True
        self.ended = self.withheld = False
        self.leader: Reading | None = None
        """While the call is not over: its relay's exchange has the flight, so that only the garbage collector would free all of them."""
        self.error: Exception | None = None
        self.call: Call | None = None
        """The call to the engine, while it is under way."""
        self.readings: list[Reading] = []

    @property
    def sent(self) -> bytes:
        """The header lines of its settings that the engine was sent."""
        return b""

    def read_by(self, relay: AnswerRelay) -> Reading:
        """What has come goes to the relay with `Reading.go_on`."""
        reading = Reading(self, relay)
        self.readings.append(reading)
        return reading

    def came(self, data: bytes) -> None:
        """A piece of the answer."""
        self.pieces.append(data)
        self.size += len(data)
        if self.size > self.most:
            self.keeps = False
        self.tell()
        if not (self.keeps or self.withheld):
            self._trim()

    def tell(self) -> None:
        """Hands what is new to all who read and are not paused."""
        if len(self.readings) == 1:
            self.readings[0].go_on()
        else:
            for reading in tuple(self.readings):
                reading.go_on()

    def left(self, reading: Reading) -> None:
        """Somebody reads no further. The last one to leave takes the call along."""
        if reading in self.readings:
            self.readings.remove(reading)
        call = self.call
        if call is not None and not self.readings:
            self.call = None
            call.cancel()
            self.deserted()
        elif call is not None:
            self.paced()

    def deserted(self) -> None:
        """Nobody reads any more; the call has been given up."""

    def bound(self, exchange: Exchange) -> None:
        """Somebody who reads waits for its own deadline only: what is recorded is there, or has a leader whose time is counted."""

    def paced(self) -> None:
        """The engine's stream pauses while all who read it do."""
        call = self.call
        if call is None:
            return
        for reading in self.readings:
            if not reading.paused:
                call.resume()
                return
        call.pause()

    def at(self, position: int) -> bytes | None:
        """The piece with this number; None if it has not come yet."""
        index = position - self._behind
        return self.pieces[index] if index < len(self.pieces) else None

    def _trim(self) -> None:
        """Lets go of what all have read, and of whoever is too far behind."""
        readings = self.readings
        for reading in tuple(readings):
            if len(readings) > 1 and self.size - reading.taken > self.most:
                reading.fail(ClientStalled(BEHIND))
        first = min([reading.position for reading in readings], default=self._behind + len(self.pieces))
        if first > self._behind:
            del self.pieces[: first - self._behind]
            self._behind = first


class Reading:
    """One relay's way through a Recording, and the Call of its exchange. position: the number of the next piece. taken: bytes so far."""

    __slots__ = ("_busy", "_headed", "_recording", "gone", "paused", "position", "relay", "taken")

    def __init__(self, recording: Recording, relay: AnswerRelay) -> None:
        self._recording, self.relay = recording, relay
        self.position = self.taken = 0
        self.paused = self.gone = self._busy = self._headed = False

    def go_on(self) -> None:
        """Hands over what has come since, until the relay wants to pause."""
        recording, relay = self._recording, self.relay
        if self._busy or self.gone or (recording.withheld and recording.leader is not self):
            return
        self._busy = True
        try:
            if not self._headed and recording.head is not None:
                self._headed = True
                relay.on_head(recording.head)
            while not (self.paused or self.gone):
                piece = recording.at(self.position)
                if piece is None:
                    break
                self.position += 1
                self.taken += len(piece)
                relay.on_body(piece)
            if recording.ended and not (self.paused or self.gone):
                self._over(recording.error)
        except Exception as error:  # noqa: BLE001 - boundary: as for the transport, a receiver that fails ends its own reading only
            self.fail(error)
        finally:
            self._busy = False

    def _over(self, error: Exception | None) -> None:
        self.gone = True
        self._recording.left(self)
        if error is None:
            self.relay.on_end()
        else:
            self.relay.on_failed(copy.copy(error))  # each exchange's own: a traceback holds the exchange

    def fail(self, error: Exception) -> None:
        """The relay gets no more than this error."""
        if not self.gone:
            self.gone = True
            self._recording.left(self)
        self.relay.on_failed(error)

    # --- Call

    def pause(self) -> None:
        if not self.paused:
            self.paused = True
            self._recording.paced()

    def resume(self) -> None:
        if self.paused:
            self.paused = False
            self.go_on()
            if not self.gone:
                self._recording.paced()

    def cancel(self) -> None:
        if not self.gone:
            self.gone = True
            self._recording.left(self)


class Orphaned(Exception):
    """Whoever was to ask the engine has not, for a reason of its own: somebody else has to."""


class Flight(Recording):
    """An engine call of which others may read the answer, and whose answer may be kept. Receiver of the call.

    key: of the answer. place: of the flight among those under way. marks: of the purges before, of what stands behind the memory.
    question: by which similar requests may find the answer.

    Its leader pays for it. Where others would get it for nothing, and the leader leaves or is behind at its end, one of them pays instead:
    else an answer would cost no more than to ask twice and hang up once.
    """

    __slots__ = (
        "_attempt",
        "_cache",
        "_epoch",
        "_kept",
        "_key",
        "_marks",
        "_orphan",
        "_payer",
        "_place",
        "_question",
        "_request",
        "_result",
        "_until",
    )

    def __init__(
        self,
        cache: AnswerCache,
        key: bytes,
        place: bytes,
        request: InferenceRequest,
        marks: bytes = b"",
        question: Question | None = None,
    ) -> None:
        super().__init__(cache.largest)
        self._question = question
        self._cache, self._key, self._place, self._request = cache, key, place, request
        self._epoch, self._marks = cache.epoch, marks
        self._attempt: Attempt | None = None
        self._orphan = self._kept = False
        self._result = AttemptResult.NEUTRAL
        self._payer: Reading | None = None
        self._until = inf

    @property
    def orphan(self) -> bool:
        """Whether its leader has left."""
        return self._orphan

    @property
    def sent(self) -> bytes:
        return b"" if self._attempt is None else self._attempt.request_headers

    def open(self) -> None:
        """From now on others may join, until it lands."""
        self._cache.flights[self._place] = self

    def land(self) -> None:
        """Nobody may join any more."""
        flights = self._cache.flights
        if flights.get(self._place) is self:
            del flights[self._place]

    # --- the leader's side

    def led(self, exchange: Exchange, attempt: Attempt) -> Attempt:
        """The attempt as the leader is to use it. A second try goes on without the others if they have something of the first."""
        if self.withheld:
            self._forget()
        if self.head is not None or self.ended or self.call is not None:
            self.land()
            exchange.flight = None
            return attempt
        self._attempt = attempt
        return LedAttempt(self, attempt)

    def send(self, head: bytes, body: bytes, relay: AnswerRelay, first_byte_timeout: float, idle_timeout: float) -> Call:
        """Sends the leader's request; the Call is the leader's alone."""
        assert self._attempt is not None
        reading = self.leader = self.read_by(relay)
        self._until = relay.exchange.until
        call = self._attempt.client.send(head, body, self, first_byte_timeout, idle_timeout)
        if not (reading.gone or self.ended):
            self.call = call
        return reading

    def closed(self, attempt: Attempt, result: AttemptResult) -> None:
        """The leader has no more use for its attempt."""
        if attempt is self._attempt and self.call is not None:
            if not self._orphan:
                self._orphan, self._result = True, result
                for reading in self.readings:
                    self.bound(reading.relay.exchange)
                self._bill()
        else:
            attempt.close(result)

    def left(self, reading: Reading) -> None:
        Recording.left(self, reading)
        if reading is self._payer:  # it is charged for what it has read
            self._payer = None
            if self.call is not None:
                self._bill()

    def _bill(self, but: Reading | None = None) -> None:
        """Has the next of those who read the answer, but for this one, pay for it."""
        if self._cache.charge:
            return  # they all do
        for reading in self.readings:
            exchange = reading.relay.exchange
            request, entry = exchange.request, exchange.entry
            if reading is not but and request is not None and entry is not None:
                self._payer = reading
                exchange.usage = None
                request.price = exchange.price_of(entry)
                return

    def bound(self, exchange: Exchange) -> None:
        """The engine's time for the whole answer is that of all who read, also without the leader."""
        if self._orphan:
            exchange.until = min(exchange.until, self._until)
            exchange.wake_at = min(exchange.wake_at, self._until)

    def given_up(self, error: BaseException) -> None:
        """The leader has failed. What was its own reason is not that of others."""
        if self.call is not None:
            return
        if self.withheld:
            self._forget()
        if self.ended:
            return
        self.land()
        self.leader = None
        self.ended = True
        self.error = error if isinstance(error, EngineError) else Orphaned()
        self.tell()

    def stays(self) -> None:
        """The leader asks no other engine: an answer that was withheld is the one for all."""
        if self.withheld:
            self.withheld, self.leader = False, None
            self.land()
            self.tell()

    def _forget(self) -> None:
        """Another answer is to take the place of the one that was withheld."""
        self.head, self.size, self._behind = None, 0, 0
        self.pieces.clear()
        self.keeps, self.ended, self.withheld = True, False, False

    def deserted(self) -> None:
        self.land()
        self.leader = None
        if self._orphan and self._attempt is not None:
            self._attempt.close(self._result)

    # --- Receiver

    def on_head(self, head: ResponseHead) -> None:
        """Where the engine has no room, the leader may ask another one, with those who wait still waiting."""
        self.head = head
        self.withheld = head.status in FULL
        self.tell()

    def on_body(self, data: bytes) -> None:
        self.came(data)
        if not self.keeps:
            self.land()

    def on_end(self) -> None:
        head, attempt, leader = self.head, self._attempt, self.leader
        self.call, self.ended = None, True
        if self.withheld and leader is not None and not leader.gone:
            leader.go_on()
            return
        if self.withheld:
            self._forget()
            self.ended, self.error = True, Orphaned()
        self.leader = None
        self.land()
        if attempt is not None and head is not None and (self._orphan or head.status < 400):
            attempt.close(AttemptResult.SUCCESS if head.status < 400 else AttemptResult.NEUTRAL)
        if leader is not None and leader.paused and not leader.gone:
            self._bill(leader)
        self.tell()

    def on_failed(self, error: Exception) -> None:
        self.call = None
        leader = self.leader
        if (self.head is None or self.withheld) and leader is not None and not leader.gone:
            leader.fail(error)  # it may try again, with those who wait still waiting
            return
        if self.withheld:
            self._forget()
        self.land()
        self.leader = None
        self.ended, self.error = True, error
        if self._orphan and self._attempt is not None:
            refused = isinstance(error, EngineError) and error.refused
            self._attempt.close(AttemptResult.REFUSED if refused else AttemptResult.FAILURE)
        self.tell()

    def stranded(self) -> bool:
        leader = self.leader
        return leader is not None and not leader.gone and leader.relay.stranded()

    # --- the cache

    def keep(self, exchange: Exchange) -> None:
        """Keeps the answer, which has passed all that judged it, where it is whole and ended as answers do."""
        head = self.head
        if self._kept or not self.keeps or not self.ended or self.error is not None or head is None or head.status != 200:
            return
        request, relay, principal = exchange.request, exchange.relay, exchange.principal
        assert request is not None and principal is not None
        if exchange.spent is not None or (request.api.generates and (relay is None or relay.finish() in UNFINISHED)):
            return
        self._kept = True
        steps = self._keeping(head, request.stream, principal.tenant, exchange.request_id.decode())
        if self.size > LARGE:
            self._cache.later(steps, self.size)
        else:
            at_once(steps)

    def _keeping(self, head: ResponseHead, stream: bool, tenant: str, source: str) -> Steps[None]:
        """source: the identifier of the request."""
        body = b"".join(self.pieces)
        if len(body) > LARGE:
            yield
        parts, prefix = yield from cut_steps(body, stream)
        headers = [(name.lower(), value) for name, value in head.headers if name.lower() in READ_HEADERS]
        answer = Answer(headers, self._request.foreign, parts, prefix)
        yield from self._cache.store_steps(self._key, answer, tenant, self._epoch, self._marks)
        if self._question is not None:
            self._cache.learn(self._question, self._key, source, self._epoch)


class StoredAttempt:
    """Stands for the attempt at an engine where there is none: the answer is in the cache."""

    __slots__ = ("device", "endpoint_header", "endpoint_name", "request_headers")

    def __init__(self, request_headers: bytes) -> None:
        self.endpoint_name, self.endpoint_header, self.request_headers = "", b"", request_headers
        self.device: SlotTime | None = None

    def answering(self) -> None:
        """Nobody waits to know."""

    def close(self, result: AttemptResult) -> None:
        """It holds no slot."""
