"""Phase 10 for a stream with a guardrail that reads only whole texts, or that must ask another service: it is held until it ends.

The engine's slot is free by then. The client gets the head and comments at once, the events when they have been judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from gateway.core.errors import GuardrailViolation
from gateway.core.slices import Steps, at_once
from gateway.core.wire import EventReader, Path, TextFilter
from gateway.pipeline.exchange import Exchange, chunked
from gateway.pipeline.inspect import passed
from gateway.pipeline.stream import AnswerRelay, StreamRelay

HOLD_BYTES: Final = 4 * 1024 * 1024
"""Most bytes of one stream's events."""
AT_ONCE: Final = 64
"""Events that are read in one step."""


class HeldRelay(StreamRelay):
    """Gathers the events; `release` inspects them and sends what may pass."""

    __slots__ = ("_passing",)
    plain: ClassVar[bool] = False
    held: ClassVar[bool] = True

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(exchange)
        self._passing: bytes | None = None

    def _forward(self, data: bytes) -> None:
        if events := self._reader.forwarded(data):
            if not self._events:
                self._begun()
            self._events += events
        AnswerRelay.on_body(self, data)
        if self._size > HOLD_BYTES:
            raise GuardrailViolation("The answer is too long to be inspected.", code=self._guardrail())

    def finish_stream(self, kept: bool = False) -> None:
        """Does nothing yet: `release` ends the client's body."""

    async def release(self) -> None:
        """Raises GuardrailViolation, or any error of the guardrails, before any of the answer has passed."""
        self.send(await self.passed())

    async def passed(self) -> bytes:
        """The events that may pass, inspected once. Raises GuardrailViolation, or any error of the guardrails."""
        if self._passing is None:
            self._passing = await self._inspected()
        return self._passing

    async def _inspected(self) -> bytes:
        data = self.body()
        self._parts.clear()
        return await inspected(self.exchange, self._reader, data)

    def send(self, data: bytes) -> None:
        """Sends the events and ends the client's body."""
        x = self.exchange
        if data:
            x.answer_bytes += len(data)
            x.client.send(chunked(data))
        StreamRelay.finish_stream(self)

    def _guardrail(self) -> str:
        return _first(self.exchange)


def _first(x: Exchange) -> str:
    """The guardrail that is named where all of them are meant."""
    return "guardrail" if x.entry is None or not x.entry.response_guardrails else x.entry.response_guardrails[0].name


async def inspected(x: Exchange, reader: EventReader, data: bytes, kept: bool = False) -> bytes:
    """What may pass of a whole stream. reader: has read it. kept: as `passed` has it. Raises GuardrailViolation, EngineError, or any error
    of the guardrails."""
    assert x.entry is not None
    events = data.split(b"\n\n")[:-1]
    found = Gathering()
    data = await _through(x, reader, events, found)
    replaced = await passed(x, x.entry.response_guardrails, found.texts(), kept)
    if replaced is not None:
        if len(replaced) != len(found.places):
            raise GuardrailViolation("The content could not be inspected.", code=_first(x))
        data = await _through(x, reader, events, Replacing(found.places, replaced))
    return data


async def _through(x: Exchange, reader: EventReader, events: list[bytes], texts: TextFilter) -> bytes:
    """The events behind a filter. Many are read in turns of the loop: an answer of a reasoning model has tens of thousands."""
    steps = _passed_on(reader, events, texts)
    return at_once(steps) if len(events) <= AT_ONCE else await x.plane.turns.run(steps)


def _passed_on(reader: EventReader, events: list[bytes], texts: TextFilter) -> Steps[bytes]:
    passed: list[bytes] = []
    for event in events:
        passed.append(reader.inspected(event, texts))
        yield
    return b"".join(passed)


class Gathering(TextFilter):
    """Collects the whole texts of a stream, in the order in which they begin. places: (choice, path) of each; None: it came at once."""

    def __init__(self) -> None:
        self.places: list[tuple[Any, Path] | None] = []
        self._parts: list[list[str]] = []
        self._known: dict[tuple[Any, Path], list[str]] = {}

    def texts(self) -> list[str]:
        return ["".join(parts) for parts in self._parts]

    def feed(self, choice: Any, path: Path, text: str) -> str:
        place = (choice, path)
        parts = self._known.get(place)
        if parts is None:
            parts = self._known[place] = []
            self.places.append(place)
            self._parts.append(parts)
        parts.append(text)
        return text

    def whole(self, text: str) -> str:
        self.places.append(None)
        self._parts.append([text])
        return text

    def finish(self, choice: Any) -> list[tuple[Path, str]]:
        return []

    def finish_all(self) -> list[tuple[Any, Path, str]]:
        return []


class Replacing(TextFilter):
    """Puts each whole text where its first piece was and empties the others."""

    def __init__(self, places: Sequence[tuple[Any, Path] | None], texts: Sequence[str]) -> None:
        self._waiting: dict[tuple[Any, Path], str] = {place: text for place, text in zip(places, texts, strict=True) if place is not None}
        self._wholes = [text for place, text in zip(places, texts, strict=True) if place is None]
        self._wholes.reverse()

    def feed(self, choice: Any, path: Path, text: str) -> str:
        return self._waiting.pop((choice, path), "")

    def whole(self, text: str) -> str:
        return self._wholes.pop()

    def finish(self, choice: Any) -> list[tuple[Path, str]]:
        return []

    def finish_all(self) -> list[tuple[Any, Path, str]]:
        return []
