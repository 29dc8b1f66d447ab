"""Phases 6 and 10: guardrails over requests, whole answers and streams. A guardrail that fails denies, unless its fail mode is `open`.

On a stream every choice has a matcher per guardrail and per kind of text (content, reasoning, each tool call's arguments); a
matcher holds back only what could still become part of a match, so that text which only differs in how it is chunked gives
the same output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any, ClassVar, Final

from gateway.core.errors import ApprovalPending, AuditUnavailable, EngineError, GatehouseError, GuardrailViolation
from gateway.core.ports import StreamMatcher
from gateway.core.pseudonyms import Layer, Restores
from gateway.core.slices import Steps, at_once, portions
from gateway.core.snapshot import Inspector, ModelEntry
from gateway.core.types import ALLOW, ResponseHead, Verdict
from gateway.core.waiting import Driver, check
from gateway.core.wire import MAX_EVENT_BYTES, Path, TextFilter, WholeAnswer
from gateway.pipeline.exchange import Exchange
from gateway.pipeline.guarded import UNREADABLE, Note, all_allowed, all_triggered
from gateway.pipeline.large import known
from gateway.pipeline.nested import AT_ONCE, decoded, weight
from gateway.pipeline.nested_stream import Nested, may_say_more, reading, whole_steps
from gateway.pipeline.restoring import hiding, matchers, restored, restored_steps
from gateway.pipeline.stream import StreamRelay

LARGE_REQUEST: Final = 16 * 1024
"""Estimated tokens of a prompt above which its texts are read in turns of the loop."""
LARGE_READ: Final = 4 * 1024
"""Bytes of events in one read above which they are inspected in turns of the loop, in events of at most PIECE characters a text."""
PIECE: Final = 4096
FEW_VALUES: Final = 256
"""Values that are looked for in a short answer at once."""
MAX_BACKLOG: Final = 4 * MAX_EVENT_BYTES
HOLD_LIMIT: Final = 1024 * 1024
"""Most characters of one choice that a guardrail which cannot work on streams may hold."""
MOST_HELD: Final = max(HOLD_LIMIT, MAX_EVENT_BYTES)
"""Most characters of one text that all matchers together may hold."""


_now_ns: Final = perf_counter_ns
"""Compiled, a Final is one load, and a name that was imported a look-up."""


def raise_verdict(verdict: Verdict, name: str) -> bool:
    """Raises for error, block and hold; otherwise returns whether to replace the texts."""
    if verdict.action == "error":
        raise GuardrailViolation(UNREADABLE, code=name)
    if verdict.action == "block":
        raise GuardrailViolation(verdict.reason or "The content violates a policy.", code=verdict.guardrail or name)
    if verdict.action == "hold":
        raise ApprovalPending(verdict.reason or "The request waits for approval.", headers=(("x-should-retry", "false"),))
    return verdict.action == "rewrite"


async def checked(
    x: Exchange,
    guardrails: Sequence[Inspector],
    texts: Sequence[str],
    where: str,
    sources: Callable[[], list[str]] | None = None,
    layers: list[Layer] | None = None,
) -> Sequence[str] | None:
    """The texts after every guardrail, or None when none changed them. where: request or response. sources: who said each text. layers:
    takes those of guardrails that give pseudonyms."""
    changed = False
    prefilter = x.snapshot.prefilter
    cleared = -1  # nanoseconds of the scan that cleared the texts; -1 before it, and where it did not
    shared = texts
    for guardrail in guardrails:
        if prefilter is not None and guardrail.triggered:
            if cleared < 0:
                began = perf_counter_ns()
                if prefilter.clear(texts):
                    cleared = perf_counter_ns() - began
                else:
                    shared, prefilter = prefilter.shared(texts), None
            if cleared >= 0:
                guardrail.allowed(cleared)
                cleared = 0
                continue
        chosen: list[int] | None = None
        if guardrail.reads is not None and sources is not None and (said := sources()):
            chosen = [number for number, source in enumerate(said) if source in guardrail.reads]
        layer = None
        if layers is not None and guardrail.layered and not guardrail.monitor:
            layer = guardrail.layer(x.principal, x.snapshot.salts.secret, x.plane.now)  # type: ignore[arg-type]
        labels = x.request.labels  # type: ignore[union-attr]
        read = shared if guardrail.triggered else texts
        found = guardrail.check(read if chosen is None else [texts[number] for number in chosen], layer, labels)
        if found is ALLOW and layer is None:
            continue
        verdict = found if isinstance(found, Verdict) else await found
        if layer is not None and layers is not None and layer.active and verdict.action != "error":
            layers.append(layer)
        if verdict is ALLOW:
            continue
        if chosen is not None:
            verdict = _of_all(verdict, texts, chosen)
        if judged(x, guardrail, verdict, where) and raise_verdict(verdict, guardrail.name):
            texts = shared = verdict.texts
            changed = True
            prefilter, cleared = x.snapshot.prefilter, -1
    return texts if changed else None


def _of_all(verdict: Verdict, texts: Sequence[str], chosen: list[int]) -> Verdict:
    """A verdict on some of the texts, for all of them."""
    for finding in verdict.findings:
        finding.text = chosen[finding.text]
    passed = list(texts)
    for number, text in zip(chosen, verdict.texts, strict=False):
        passed[number] = text
    passing = tuple(passed) if verdict.texts else ()
    return Verdict(verdict.action, verdict.guardrail, verdict.reason, passing, verdict.findings, verdict.usage, verdict.label)


def judged(x: Exchange, guardrail: Inspector, verdict: Verdict, where: str) -> bool:
    """Notes a verdict for the audit record. Whether it is to be acted upon."""
    note = guardrail.note(where, x.snapshot.audit.hash_body)
    note.add(verdict.action, verdict.reason, verdict.findings)
    x.notes.append(note)
    if where == "request" and guardrail.gives(verdict):
        labelled(x, frozenset((guardrail.label,)))
    if note.action == "pass":
        return False
    if note.action != "rewrite":
        x.inspected = verdict.usage
    x.guardrail = guardrail.name
    return True


def labelled(x: Exchange, labels: frozenset[str]) -> None:
    """From now on the request has these data labels too."""
    assert x.request is not None
    x.request.labels |= labels
    x.detail = {**(x.detail or {}), "labels": sorted(x.request.labels)}


def only_guardrails(x: Exchange, entry: ModelEntry) -> bool:
    """Whether phase 6 is nothing but guardrails."""
    request = x.request
    return not (entry.request_tools or request.unsure or request.api.moderates)  # type: ignore[union-attr]


def clears(x: Exchange, entry: ModelEntry) -> bool:
    """Whether nothing is left of phase 6, because one scan says that all guardrails allow the request. Nobody need wait then."""
    request = x.request
    if not only_guardrails(x, entry) or request.api.unreadable(request) or not _cleared(x, entry.request_guardrails):  # type: ignore[union-attr,arg-type]
        return False
    x.clock.mark("inspect")
    return True


def recordable(x: Exchange) -> None:
    """Before anybody is asked about a request that is not recorded yet: guardrails may send its texts to a model or a service. Raises
    AuditUnavailable while the log takes no records."""
    if not (x.intended or x.snapshot.audit.accepting):
        raise AuditUnavailable("The audit log takes no records.", retry_after=1.0)


async def request(x: Exchange, guardrails: tuple[Inspector, ...], scanned: bool = False) -> None:
    """Phase 6: reads the request's texts and puts back those that a guardrail rewrites. The parsed request can be read in only one way, so
    the engine reads the same texts. scanned: `clears` has scanned it, and said no."""
    inference = x.request
    assert inference is not None
    api = inference.api
    if why := api.unreadable(inference):
        raise GuardrailViolation(why, code=guardrails[0].name)
    if not scanned and _cleared(x, guardrails):
        return
    if inference.prompt_tokens > LARGE_REQUEST and x.snapshot.parse_steps is not None:
        found = await x.plane.turns.run(api.texts_steps(inference))
    else:
        found = api.texts(inference)
    layers: list[Layer] = []
    replaced = await checked(x, guardrails, found.texts, "request", found.sources, layers)
    await _nested(x, guardrails, found.texts if replaced is None else replaced)
    if replaced is not None:
        found.replace(replaced)
        found.write()
    if layers:
        x.layers = (*x.layers, *layers)


async def _nested(x: Exchange, guardrails: Sequence[Inspector], texts: Sequence[str]) -> None:
    """What JSON inside of the texts says once it is decoded must be allowed, too. It cannot be rewritten: raises GuardrailViolation."""
    said = [text for text in texts if "\\" in text]
    if not said:
        return
    strings = at_once(decoded(said)) if weight(said) <= AT_ONCE else await x.plane.turns.run(decoded(said))
    reading = [guardrail for guardrail in guardrails if guardrail.patterned]
    for some in portions(strings):
        if await checked(x, reading, some, "request", None, []) is not None:
            raise GuardrailViolation(
                "A policy would rewrite JSON inside a text, in content that is written with escapes.", code=x.guardrail
            )


def _cleared(x: Exchange, guardrails: tuple[Inspector, ...]) -> bool:
    """Whether one scan of the bytes to be forwarded says that all guardrails allow them: then its texts need not be read. Never with a
    guardrail that has no trigger."""
    prefilter = x.snapshot.prefilter
    if prefilter is None or not all_triggered(guardrails):
        return False
    began = _now_ns()
    request = x.request
    values = request.api.strings(request)  # type: ignore[union-attr,arg-type]
    if values is None or not prefilter.clear_json(values):
        return False
    all_allowed(guardrails, _now_ns() - began)
    return True


def clears_answer(x: Exchange, entry: ModelEntry, head: ResponseHead, body: bytes) -> WholeAnswer | None:
    """A whole answer that all guardrails allow, as one scan says: what `answer` would do with it, without a wait. Else None. Raises
    EngineError for an answer that cannot be read."""
    prefilter, guardrails = x.snapshot.prefilter, entry.response_guardrails
    if prefilter is None or not guardrails or entry.response_tools or x.shapes or x.layers or not all_triggered(guardrails):
        return None
    found = _decoded(x, head, body, True)
    began = _now_ns()
    if not prefilter.clear(found.texts):  # what is clear has no backslash, so no JSON inside of it says more
        return None
    all_allowed(guardrails, _now_ns() - began)
    if (detail := found.detail(x.snapshot.audit.hash_body)) is not None:
        x.detail = {**(x.detail or {}), **detail}
    return found


async def answer(
    x: Exchange, guardrails: Sequence[Inspector], head: ResponseHead, body: bytes, insist: bool = False, kept: bool = False
) -> tuple[bytes, bytes | memoryview]:
    """Phase 10 for a whole answer: its bytes, with guardrails' rewrites, and the part of them that the record's body hash covers.

    An answer that guardrails cannot read is not passed on. Without guardrails it is, recorded by one hash. insist: it must be readable.
    kept: as `passed` has it.
    """
    assert x.request is not None
    try:
        found = _decoded(x, head, body, insist or bool(guardrails) or bool(x.layers))
    except EngineError:
        if insist or guardrails or x.layers:
            raise
        return body, body
    texts = await passed(x, guardrails, found.texts, kept)
    if texts is not None:
        try:
            body = found.replaced(texts)
        except GuardrailViolation as error:
            error.code = x.guardrail or error.code
            raise
        return body, body
    if (detail := found.detail(x.snapshot.audit.hash_body)) is not None:
        x.detail = {**(x.detail or {}), **detail}
    return found.body, found.evidence()


def _decoded(x: Exchange, head: ResponseHead, body: bytes, inspected: bool) -> WholeAnswer:
    """The answer for the record and for guardrails. Raises EngineError."""
    found = known(x, body, inspected)
    return x.request.api.answer(x.request, head, body, inspected) if found is None else found  # type: ignore[union-attr,arg-type]


async def passed(x: Exchange, guardrails: Sequence[Inspector], texts: Sequence[str], kept: bool = False) -> Sequence[str] | None:
    """The texts of an answer after every guardrail, with the values that pseudonyms stand for; None when they did not change. kept: they
    have been through guardrails before, so the values are in them already, and guardrails read pseudonyms in their place once more."""
    if not x.layers:
        if not guardrails:
            return None
        replaced = await checked(x, guardrails, texts, "response")
        await _nested_answer(x, guardrails, texts if replaced is None else replaced)
        return replaced
    before = await _restored(x, (await _hidden(x, texts)) if kept else texts, "before")
    after = await checked(x, guardrails, before, "response")
    await _nested_answer(x, guardrails, before if after is None else after)
    found = await _restored(x, before if after is None else after, "after")
    return None if found is texts or (kept and list(found) == list(texts)) else found


async def _hidden(x: Exchange, texts: Sequence[str]) -> Sequence[str]:
    """With pseudonyms for the values of the request; in turns of the loop where there is much to look for."""
    steps = hiding(x.layers, texts)
    if weight(texts) <= AT_ONCE and sum([layer.replaced for layer in x.layers]) <= FEW_VALUES:
        return at_once(steps)
    return await x.plane.turns.run(steps)


async def _restored(x: Exchange, texts: Sequence[str], when: Restores) -> Sequence[str]:
    """With the values that pseudonyms stand for; of a long answer they are put back in turns of the loop."""
    if weight(texts) <= AT_ONCE:
        return restored(x.layers, texts, when)
    return await x.plane.turns.run(restored_steps(x.layers, texts, when))


async def refusal(x: Exchange, guardrails: Sequence[Inspector], error: GatehouseError) -> GatehouseError:
    """An engine's refusal of the request with what may pass of its words, which may quote a text. Raises GuardrailViolation."""
    texts = await passed(x, guardrails, [error.message, error.code, error.param or ""])
    if texts is not None:
        error.message, code, param = texts
        if (code, param) != (error.code, error.param or ""):
            error.code, error.param = "invalid_value", None
    return error


async def _nested_answer(x: Exchange, guardrails: Sequence[Inspector], texts: Sequence[str]) -> None:
    """As `_nested`, for the texts of an answer, which may have been cut off within their JSON."""
    if not any([may_say_more(text) for text in texts]):
        return
    notes = [guardrail.note("response", x.snapshot.audit.hash_body) for guardrail in guardrails]
    try:
        await x.plane.turns.run(whole_steps(guardrails, notes, texts))
    finally:
        x.notes += [note for note in notes if note.verdict != "allow"]


class InspectedRelay(StreamRelay):
    """A stream that guardrails read: the texts of every event pass through the matchers of their choice. An event is decoded unless it
    differs from one before only in its text.

    What comes in a large read is inspected in turns of the loop; the engine's stream waits meanwhile.
    """

    __slots__ = ("_backlog", "_ends", "_texts")
    plain: ClassVar[bool] = False

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(exchange)
        assert exchange.entry is not None
        guardrails = exchange.entry.response_guardrails
        notes = [guardrail.note("response", exchange.snapshot.audit.hash_body) for guardrail in guardrails]
        exchange.notes += notes
        self._texts = StreamTexts(guardrails, notes, exchange.layers)
        self._backlog: list[bytes] | None = None
        """What has come and is inspected in turns, or waits for it; None while nothing is."""
        self._ends = False

    def on_body(self, data: bytes) -> None:
        if not self._carry and not self._after_cr and self._backlog is None and len(data) <= PIECE:
            passed = self._reader.spoken(data, self._texts)
            if passed:
                if not self._events:
                    self._begun()
                self._events += 1
                self.emit(passed)
                return
        super().on_body(data)

    def _forward(self, data: bytes) -> None:
        if self._backlog is not None:
            self.exchange.pause()  # a client that reads again has let the engine go on
            self._backlog.append(data)
            if sum(map(len, self._backlog)) > MAX_BACKLOG:
                raise EngineError("The engine sends faster than its answer can be inspected.")
            return
        if len(data) > LARGE_READ:
            self._backlog = [data]
            self.exchange.pause()
            Driver(self._in_turns(), self._inspected).start()
            return
        reader, texts = self._reader, self._texts
        if ready := b"".join([reader.inspected(event, texts) for event in data.split(b"\n\n")[:-1]]):
            super()._forward(ready)

    async def _in_turns(self) -> None:
        backlog = self._backlog
        assert backlog is not None
        while backlog and not self.done.done:
            await self.exchange.plane.turns.run(self._steps(backlog.pop(0)))

    def _steps(self, data: bytes) -> Steps[None]:
        reader, texts, exchange = self._reader, self._texts, self.exchange
        for event in data.split(b"\n\n")[:-1]:
            for one in reader.smaller(event, PIECE) if len(event) > PIECE else (event,):
                if exchange.settled or self.done.done:
                    return
                if ready := reader.inspected(one, texts):
                    StreamRelay._forward(self, ready)
                yield

    def _inspected(self, error: BaseException | None) -> None:
        """All that has come is inspected, or cannot be."""
        self._backlog = None
        exchange = self.exchange
        if exchange.settled or self.done.done:
            return
        try:
            check(error)
            if self._ends:
                self.on_end()
            elif not exchange.client.paused:
                exchange.resume()
        except Exception as failure:  # noqa: BLE001 - boundary: as the transport does for a receiver that fails
            if exchange.call is not None:
                exchange.call.cancel()
            self.on_failed(failure)

    def on_end(self) -> None:
        if self._backlog is None:
            self.mark_end()  # the end of a long answer is inspected in turns, too
        if self._backlog is None:
            super().on_end()
        else:
            self._ends = True

    def close_stream(self) -> None:
        if not self._reader.ended and (rest := self._reader.rest(self._texts)):
            super()._forward(rest)
        super().close_stream()


class StreamTexts(TextFilter):
    """The texts of one stream, each with a matcher of every guardrail."""

    def __init__(self, guardrails: Sequence[Inspector], notes: Sequence[Note], layers: Sequence[Layer] = ()) -> None:
        self._guardrails, self._notes, self._layers = guardrails, notes, layers
        self._opened = 0
        self._channels: dict[tuple[Any, Path], _Channel] = {}
        self._last: _Channel | None = None
        self._last_choice: Any = None
        self._last_path: Path = ()

    def feed(self, choice: Any, path: Path, text: str) -> str:
        if choice is self._last_choice and path is self._last_path and self._last is not None:  # as most events of a stream
            return self._last.feed(text)
        key = (choice, path)
        channel = self._channels.get(key)
        if channel is None:
            channel = self._channels[key] = self._channel(self._layers)
        self._last, self._last_choice, self._last_path = channel, choice, path
        return channel.feed(text)

    def whole(self, text: str) -> str:
        channel = self._channel(())
        return channel.feed(text) + channel.finish()

    def holds(self, choice: Any) -> bool:
        return any([number == choice and channel.holds for (number, _), channel in self._channels.items()])

    def finish(self, choice: Any) -> list[tuple[Path, str]]:
        return [(path, rest) for (number, path), channel in self._channels.items() if number == choice and (rest := channel.finish())]

    def finish_all(self) -> list[tuple[Any, Path, str]]:
        return [(number, path, rest) for (number, path), channel in self._channels.items() if (rest := channel.finish())]

    def _channel(self, layers: Sequence[Layer]) -> _Channel:
        found = matchers(layers, "before")
        number, self._opened = self._opened, self._opened + 1
        for guardrail, note in zip(self._guardrails, self._notes, strict=True):
            matcher = guardrail.stream(note, number)
            if matcher is None:  # such a stream is held (gateway.pipeline.held)
                raise GuardrailViolation("The content could not be inspected.", code=guardrail.name)
            found.append(matcher)
        strings = reading(self._guardrails, self._notes, number)
        if strings is not None:
            found.append(Nested(strings))
        return _Channel(found + matchers(layers, "after"))


class _Channel:
    """One text of one choice and the matchers it passes in sequence."""

    __slots__ = ("_feeds", "_finished", "_held", "_matchers")

    def __init__(self, matchers: list[StreamMatcher]) -> None:
        self._matchers = matchers
        self._feeds: list[Callable[[str], str]] = [matcher.feed for matcher in matchers]
        self._finished = False
        self._held = 0

    def feed(self, text: str) -> str:
        self._held += len(text)
        for feed in self._feeds:
            text = feed(text)
        self._held -= len(text)
        if self._held > MOST_HELD:
            raise GuardrailViolation("The answer is too long to be inspected.", code="guardrail")
        return text

    @property
    def holds(self) -> bool:
        return self._held != 0 or any([bool(matcher.held) for matcher in self._matchers])

    def finish(self) -> str:
        """Returns the text that the matchers hold. If the text continues afterwards, it is inspected from its first character again."""
        if self._finished and not self.holds:
            return ""
        self._finished = True
        self._held = 0
        rest = ""
        for matcher in self._matchers:
            rest = (matcher.feed(rest) if rest else "") + matcher.finish()
        return rest
