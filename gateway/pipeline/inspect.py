"""Phases 6 and 10: guardrails over requests, whole answers and streams. A guardrail that fails denies, unless its fail mode is `open`.

On a stream every choice has a matcher per guardrail and per kind of text (content, reasoning, each tool call's arguments); a
matcher holds back only what could still become part of a match, so that text which only differs in how it is chunked gives
the same output.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, Final

import msgspec

from gateway.core.errors import ApprovalPending, EngineError, GatehouseError, GuardrailViolation, RequestError
from gateway.core.ports import Guardrail, StreamMatcher
from gateway.core.types import ALLOW, ResponseHead, Verdict
from gateway.core.waiting import Maybe
from gateway.pipeline.exchange import Exchange
from gateway.pipeline.stream import MAX_EVENT_BYTES, StreamRelay
from gateway.wire.openai.answers import WHOLE, Path, append_text, choice_texts
from gateway.wire.openai.passages import Passages
from gateway.wire.openai.requests import answer_texts, replace_answer_texts, with_texts
from gateway.wire.requests import json_part, parse_answer, summary, texts_of

log = logging.getLogger("gatehouse.guardrails")
HOLD_LIMIT: Final = 1024 * 1024
"""Characters that a guardrail which cannot work on streams may hold of one choice."""


class Guarded:
    """A guardrail behind its failure boundary: an exception inside becomes a violation (`closed`) or a counted pass (`open`)."""

    def __init__(self, guardrail: Guardrail, fail_open: bool, on_failure: Callable[[str, str], None]) -> None:
        self.name = guardrail.name
        self.guardrail, self._fail_open, self._on_failure = guardrail, fail_open, on_failure

    def _failed(self, error: Exception) -> None:
        log.error("guardrail %s failed: %r", self.name, error, exc_info=error)
        self._on_failure(self.name, "open" if self._fail_open else "closed")
        if not self._fail_open:
            raise GuardrailViolation("The content could not be inspected.", code=self.name) from error

    def check(self, texts: Sequence[str]) -> Maybe[Verdict]:
        try:
            verdict = self.guardrail.check(texts)
        except Exception as error:  # noqa: BLE001 - boundary: a guardrail that fails denies
            self._failed(error)
            return ALLOW
        return self._waited(verdict) if isinstance(verdict, Awaitable) else verdict

    async def _waited(self, verdict: Awaitable[Verdict]) -> Verdict:
        try:
            return await verdict
        except Exception as error:  # noqa: BLE001 - boundary: a guardrail that fails denies
            self._failed(error)
            return ALLOW

    def stream(self) -> StreamMatcher:
        try:
            matcher = self.guardrail.stream()
        except Exception as error:  # noqa: BLE001 - boundary: a guardrail that fails denies
            self._failed(error)
            return _Passing()
        return _GuardedMatcher(self, matcher) if matcher is not None else _Whole(self)


class _GuardedMatcher:
    """A stream's matcher behind the same boundary."""

    def __init__(self, owner: Guarded, matcher: StreamMatcher) -> None:
        self._owner, self._matcher = owner, matcher

    @property
    def held(self) -> str:
        return self._matcher.held

    def feed(self, text: str) -> str:
        held = self._matcher.held
        try:
            return self._matcher.feed(text)
        except GatehouseError:
            raise
        except Exception as error:  # noqa: BLE001 - boundary: a guardrail that fails denies
            self._owner._failed(error)
            self._matcher = _Passing()  # it may have lost its place
            return held + text

    def finish(self) -> str:
        held = self._matcher.held
        try:
            return self._matcher.finish()
        except GatehouseError:
            raise
        except Exception as error:  # noqa: BLE001 - boundary: a guardrail that fails denies
            self._owner._failed(error)
            self._matcher = _Passing()
            return held


class _Passing:
    """In the place of a matcher that could not be made, or has failed, when the fail mode is `open`."""

    @property
    def held(self) -> str:
        return ""

    def feed(self, text: str) -> str:
        return text

    def finish(self) -> str:
        return ""


class _Whole:
    """For a guardrail that reads whole texts only: everything is held until the text ends."""

    def __init__(self, guardrail: Guarded) -> None:
        self._guardrail = guardrail
        self._held: list[str] = []
        self._size = 0

    @property
    def held(self) -> str:
        return "".join(self._held)

    def feed(self, text: str) -> str:
        self._size += len(text)
        if self._size > HOLD_LIMIT:
            raise GuardrailViolation("The answer is too long to be inspected.", code=self._guardrail.name)
        self._held.append(text)
        return ""

    def finish(self) -> str:
        text = "".join(self._held)
        verdict = self._guardrail.check([text])
        if isinstance(verdict, Awaitable):
            raise GuardrailViolation("This guardrail cannot inspect streams.", code=self._guardrail.name)
        if not raise_verdict(verdict, self._guardrail.name):
            return text
        if len(verdict.texts) != 1:
            raise GuardrailViolation("The content could not be inspected.", code=self._guardrail.name)
        return verdict.texts[0]


def raise_verdict(verdict: Verdict, name: str) -> bool:
    """Raises for block and hold; otherwise whether the texts are to be replaced."""
    if verdict.action == "block":
        raise GuardrailViolation(verdict.reason or "The content violates a policy.", code=verdict.guardrail or name)
    if verdict.action == "hold":
        raise ApprovalPending(verdict.reason or "The request waits for approval.", headers=(("x-should-retry", "false"),))
    return verdict.action == "rewrite"


async def _checked(x: Exchange, guardrails: Sequence[Guardrail], texts: Sequence[str]) -> Sequence[str] | None:
    """The texts after every guardrail, or None when none changed them."""
    changed = False
    for guardrail in guardrails:
        verdict = guardrail.check(texts)
        if isinstance(verdict, Awaitable):
            verdict = await verdict
        if verdict is ALLOW:
            continue
        x.guardrail = guardrail.name
        if raise_verdict(verdict, guardrail.name):
            texts, changed = verdict.texts, True
    return texts if changed else None


def _has_tokens(view: Any) -> bool:
    """Whether a prompt or an input is given as token ids, which no guardrail can read."""
    given = getattr(view, "prompt", None) or getattr(view, "input", None)
    return isinstance(given, list) and not all(isinstance(item, str) for item in given)


async def request(x: Exchange, guardrails: Sequence[Guardrail]) -> None:
    """Phase 6: reads the request's texts. What is forwarded are the texts that were read, rewritten or not."""
    inference = x.request
    assert inference is not None
    if inference.operation in ("completions", "embeddings", "classify") and _has_tokens(inference.view):
        raise GuardrailViolation("Token ids cannot be inspected; send text.", code=guardrails[0].name)
    texts = inference.view.texts()
    if inference.operation == "infer":
        if await _checked(x, guardrails, texts) is not None:
            inference.view.replace(texts)
        return
    passages = Passages(inference)
    checked = await _checked(x, guardrails, texts + passages.texts if passages.texts else texts)
    if checked is not None:
        passages.replace(checked[len(texts) :])
        inference.view.replace(list(checked[: len(texts)]))
    with_texts(inference, passages)


async def answer(x: Exchange, guardrails: Sequence[Guardrail], body: bytes) -> bytes:
    """Phase 10 for a whole answer: its bytes, rewritten where a guardrail says so. What cannot be read is not passed on."""
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise EngineError("The engine's answer is not valid JSON.") from None
    if not isinstance(document, dict):
        raise EngineError("The engine's answer is not a JSON object.")
    texts = answer_texts(document)
    replaced = await _checked(x, guardrails, texts)
    if replaced is None:
        return body
    replace_answer_texts(document, list(replaced))
    return msgspec.json.encode(document)


async def tensors(x: Exchange, guardrails: Sequence[Guardrail], head: ResponseHead, body: bytes) -> bytes | memoryview:
    """Phase 10 for an infer answer: its shapes and hashes for the record, the BYTES outputs read by the guardrails.

    Returns what the record's body hash covers. A tensor is never rewritten: what would have to be is refused, and so is, where
    there are guardrails, an answer that is not what the protocol says. Without any it is passed on as it is, recorded by one hash.
    """
    try:
        response, json_length = parse_answer(head, body)
        texts = texts_of(response.outputs) if guardrails else []
    except (EngineError, RequestError) as error:
        if not guardrails:
            return body
        raise EngineError(f"The engine's answer cannot be inspected: {error.message}") from None
    if texts and await _checked(x, guardrails, texts) is not None:
        raise GuardrailViolation("A tensor has content that a policy would rewrite.", code=x.guardrail or "guardrail")
    x.detail = {"outputs": summary(response.outputs, x.snapshot.audit.hash_body)}
    return json_part(body, json_length)


class InspectedRelay(StreamRelay):
    """A stream that guardrails read: every event is decoded, and its texts pass through the matchers of their choice."""

    __slots__ = ("_channels", "_frame", "_tail")
    plain: ClassVar[bool] = False

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(exchange)
        self._channels: dict[tuple[int, Path], _Channel] = {}
        self._frame: dict[str, Any] = {}
        self._tail = b""

    def _forward(self, data: bytes) -> None:
        kept = []
        for event in data.split(b"\n\n")[:-1]:
            kept.append(self._inspected(event))
        ready = b"".join(kept)
        if ready:
            super()._forward(ready)

    def _inspected(self, event: bytes) -> bytes:
        payload = b"\n".join(line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:"))
        if not payload:
            return b""
        if payload == b"[DONE]":
            return self._finish_all() + b"data: [DONE]\n\n"
        try:
            document = msgspec.json.decode(payload)
            choices = document.get("choices") or []
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, AttributeError):
            raise EngineError("The engine sent an event that is not valid JSON.") from None
        self._frame = {key: value for key, value in document.items() if key not in ("choices", "usage")}
        changed = False
        for choice in choices:
            if choice.__class__ is not dict:
                raise EngineError("The engine sent an event that is not a chunk of an answer.")
            changed |= self._choice(choice)
        if not changed:
            return event + b"\n\n"
        return b"data: %b\n\n" % msgspec.json.encode(document)

    def _choice(self, choice: dict[str, Any]) -> bool:
        """Feeds the texts of one choice's delta; says whether the event must be written anew."""
        index, changed = choice.get("index", 0), False
        if choice.get("logprobs") is not None:  # the same text again, token by token, ahead of what the matchers hold
            choice["logprobs"] = None
            changed = True
        for path, holder, key in choice_texts(choice):
            text = holder[key]
            if key == WHOLE:
                channel = _Channel(self._matchers())
                released = channel.feed(text) + channel.finish()
            else:
                known = self._channels.get((index, path))
                channel = known or self._channels.setdefault((index, path), _Channel(self._matchers()))
                released = channel.feed(text)
            if released != text:
                holder[key] = released
                changed = True
        if choice.get("finish_reason"):
            for (number, path), channel in self._channels.items():
                if number == index and (rest := channel.finish()):
                    append_text(choice, path, rest)
                    changed = True
        return changed

    def _matchers(self) -> list[StreamMatcher]:
        entry = self.exchange.entry
        assert entry is not None
        return [m for m in (guardrail.stream() for guardrail in entry.response_guardrails) if m is not None]

    def _finish_all(self) -> bytes:
        """What is still held when the stream ends without a finish reason."""
        choices: list[dict[str, Any]] = []
        for (index, path), channel in self._channels.items():
            if rest := channel.finish():
                choice: dict[str, Any] = {"index": index}
                append_text(choice, path, rest)
                choices.append(choice)
        return b"data: %b\n\n" % msgspec.json.encode({**self._frame, "choices": choices}) if choices else b""

    def close_stream(self) -> None:
        if not self._ended and (rest := self._finish_all()):
            super()._forward(rest)
        super().close_stream()


class _Channel:
    """One text of one choice and the matchers it passes, one behind the other."""

    __slots__ = ("_finished", "_held", "_matchers")

    def __init__(self, matchers: list[StreamMatcher]) -> None:
        self._matchers = matchers
        self._finished = False
        self._held = 0

    def feed(self, text: str) -> str:
        self._held += len(text)
        for matcher in self._matchers:
            text = matcher.feed(text)
        self._held -= len(text)
        if self._held > max(HOLD_LIMIT, MAX_EVENT_BYTES):
            raise GuardrailViolation("The answer is too long to be inspected.", code="guardrail")
        return text

    def finish(self) -> str:
        if self._finished:
            return ""
        self._finished = True
        rest = ""
        for matcher in self._matchers:
            rest = (matcher.feed(rest) if rest else "") + matcher.finish()
        return rest
