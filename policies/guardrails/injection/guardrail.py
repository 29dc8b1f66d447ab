"""The guardrail `injection`: scores texts by what prompt injections look like. Heuristics: they find what is known, in the languages of
policies.guardrails.injection.signs, and nothing that is only meant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, Literal

import re2
from msgspec import Meta

from gateway.core.plugins import Context
from gateway.core.slices import Steps, at_once
from gateway.core.specs import Spec
from gateway.core.types import ALLOW, MOST_FINDINGS, Finding, Verdict
from policies.guardrails.folding import flag_around, has_control, veiled
from policies.guardrails.injection.decoding import decoded
from policies.guardrails.injection.signs import FIXED, MARKERS, OVERRIDES
from policies.guardrails.recognition.normal import MARK, fold, places, unmarked

SOURCES: Final = ("system", "user", "assistant", "tool", "other")
_WINDOW: Final = 8192
_OVERLAP: Final = 512
_AT_ONCE: Final = 2048
_UNANCHORED: Final = re2._re2.RE2.Anchor.UNANCHORED


class InjectionSettings(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """threshold: the least score that counts. action: what is done from there on. sources: whose texts of a chat are read: `system` (also
    the developer's), `user`, `assistant`, `tool` (results), `other` (names, tools and all else). Other requests are read whole."""

    threshold: Annotated[float, Meta(gt=0, le=1)] = 0.8
    action: Literal["block", "annotate", "label"] = "block"
    sources: tuple[Literal["system", "user", "assistant", "tool", "other"], ...] = ("user", "tool", "other")


def _options() -> Any:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.case_sensitive = False
    options.never_capture = True
    options.log_errors = False
    options.max_mem = 64 * 1024 * 1024
    return options


def _compiled(pattern: str) -> Any:
    made = re2._re2.RE2(pattern.encode("latin-1"), _options())
    if not made.ok():
        raise ValueError(f"the patterns cannot be compiled: {made.error()}")
    return made


class Injection:
    """The guardrail. Immutable. reads: the sources of texts that it wants to see (gateway.pipeline.inspect)."""

    def __init__(self, name: str, settings: InjectionSettings) -> None:
        self.name = name
        self.reads = frozenset(settings.sources)
        self._threshold, self._action = settings.threshold, settings.action
        self._signs = [("instruction_override", _compiled(rf"\b(?:{pattern})"), score) for pattern, score in OVERRIDES]
        self._signs += [("role_marker", _compiled(pattern), score) for pattern, score in MARKERS]
        self._any = _compiled("|".join([rf"\b(?:{pattern})" for pattern, _ in OVERRIDES] + [pattern for pattern, _ in MARKERS]))

    def check(self, texts: Sequence[str]) -> Verdict | Steps[Verdict]:
        """Each text is scored by itself. Long ones are read in steps, in windows that overlap."""
        return at_once(self._steps(texts)) if sum(map(len, texts)) <= _AT_ONCE else self._steps(texts)

    def stream(self) -> None:
        """A score needs the whole text."""
        return None

    def _steps(self, texts: Sequence[str]) -> Steps[Verdict]:
        findings: list[Finding] = []
        worst, done = 0.0, 0
        for number, text in enumerate(texts):
            found: list[Finding] = []
            for start in range(0, max(1, len(text)), _WINDOW):
                done += min(len(text) - start, _WINDOW) + 64
                if done > _AT_ONCE:
                    yield
                    done = 0
                begin = flag_around(text, max(0, start - _OVERLAP))
                window = text[begin : start + _WINDOW]
                found += self._window(veiled(window) if has_control(window) else window, begin, number)
            worst = max(worst, combined(found))
            findings += found[: MOST_FINDINGS - len(findings)]
        if worst < self._threshold:
            return ALLOW
        kinds = ", ".join(sorted({finding.entity for finding in findings}))
        action: Literal["block", "annotate"] = "block" if self._action == "block" else "annotate"
        reason = f"It looks like a prompt injection ({kinds}; score {worst:.2f})."
        return Verdict(action, self.name, reason, (), tuple(findings), None, self._action == "label")

    def _window(self, text: str, begin: int, number: int) -> Iterator[Finding]:
        """What a piece of a text has, that begins at this place in it."""
        for kind, score, start, end in self._seen(text):
            yield Finding(kind, begin + start, begin + end, text[start:end], number, score)
        for hidden in decoded(text):
            inner = max([score for _, score, _, _ in self._seen(hidden.text)], default=0.0)
            if inner or hidden.alone:
                value = text[hidden.start : hidden.end] if hidden.kind != "encoded_rot13" else ""
                score = max(hidden.alone, min(0.99, round(inner + 0.05, 2)) if inner else 0.0)
                yield Finding(hidden.kind, begin + hidden.start, begin + hidden.end, value, number, score)

    def _seen(self, text: str) -> Iterator[tuple[str, float, int, int]]:
        """(kind, score, start, end) of what stands there in clear."""
        if not text.isascii():
            small = text.casefold()
            for phrase, score in FIXED:
                if (place := small.find(phrase)) >= 0:
                    yield "instruction_override", score, place, min(len(text), place + len(phrase))
        data = unmarked(text)
        if self._any.Match(_UNANCHORED, data, 0, len(data))[0][0] < 0:
            return
        where: Sequence[int] = range(len(text) + 1)
        if not text.isascii():
            where = [place for place, character in zip(places(text), fold(text) + " ", strict=True) if character != MARK]
        for kind, pattern, score in self._signs:
            start, end = pattern.Match(_UNANCHORED, data, 0, len(data))[0]
            if start >= 0:
                yield kind, score, where[start], where[end - 1] + 1 if end > start else where[start]


def combined(findings: Sequence[Finding]) -> float:
    """One score of several signs: each counts once, and every further one makes it surer."""
    doubt = 1.0
    for _, score in {(finding.entity, finding.score) for finding in findings}:
        doubt *= 1.0 - score
    return round(1.0 - doubt, 4)


def build(settings: InjectionSettings, context: Context) -> Injection:
    """Raises ValueError with one sentence."""
    if not settings.sources:
        raise ValueError("sources: it reads no text; name at least one of " + ", ".join(SOURCES))
    return Injection(context.name, settings)
