"""The deny list: phrases that must not pass, in requests, answers and streams.

A stream's matcher holds back exactly what could still become part of a match: the text from the earliest place where a
phrase may have begun. That is at most the longest phrase, with MAX_HIDDEN invisible characters after each of its characters.
How the text was cut into pieces makes no difference to what is released.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from gateway.core.errors import GuardrailViolation
from gateway.core.plugins import Context
from gateway.core.slices import Steps, at_once
from gateway.core.specs import Spec
from gateway.core.types import ALLOW, MOST_FINDINGS, Finding, Verdict
from policies.guardrails.folding import has_nul, hidden_run
from policies.guardrails.phrase_stream import REASON, DenyListStream
from policies.guardrails.phrases import WINDOW, PhraseSet
from policies.guardrails.reading import data_of_all

_AT_ONCE: Final = 4096
_AT_ONCE_ASCII: Final = 64 * 1024
"""Up to this many characters are searched at once, fewer of ASCII where there are many phrases (`PhraseSet.portion`): at worst some
milliseconds."""


class DenyListSettings(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`phrases` here, and one in each line of `phrases_file` (empty lines and lines that begin with # do not count).

    action: `block` refuses the request or ends the answer; `mask` puts `replacement` in the phrase's place; `label` gives the request the
    guardrail's label, and the text passes.
    """

    phrases: tuple[str, ...] = ()
    phrases_file: str | None = None
    action: Literal["block", "mask", "label"] = "block"
    replacement: str = "[removed]"


class Passing:
    """The matcher of a list that only labels requests: an answer passes."""

    held = ""

    def feed(self, text: str) -> str:
        return text

    def finish(self) -> str:
        return ""


class DenyList:
    """The guardrail. Immutable; shared by all requests of a snapshot."""

    def __init__(self, name: str, phrases: PhraseSet, *, mask: bool, replacement: str = "[removed]", label: bool = False) -> None:
        self.name = name
        self._phrases, self._mask, self._replacement, self._label = phrases, mask or label, replacement, label
        self._at_once = min(_AT_ONCE_ASCII, 2 * phrases.portion)
        self._blocked = Verdict("block", name, REASON)
        self.trigger = phrases.trigger
        self.longest = phrases.longest
        """Characters that a stream may hold, without invisible ones."""

    def prepare(self) -> None:
        """Compile now what the first text with the letters of a phrase would."""
        self._phrases.prepare()

    def check(self, texts: Sequence[str]) -> Verdict | Steps[Verdict]:
        """Allows, blocks, or rewrites every text; long texts give the steps to that verdict. In most cases one scan of all
        texts together is enough."""
        if len(texts) > _AT_ONCE:
            return self._steps(texts)
        data = data_of_all(texts)
        if data is not None and len(data) <= self._at_once:
            return self._verdict(texts, len(data), self._phrases.made) if self._phrases.may_occur_in(data) else ALLOW
        text = texts[0] if len(texts) == 1 else "\x00".join(texts)
        if len(text) > (self._at_once if text.isascii() else _AT_ONCE) or has_nul(texts):
            return self._steps(texts)
        return self._verdict(texts, len(text), self._phrases.made) if self._suspect(text) else ALLOW

    def _verdict(self, texts: Sequence[str], size: int, sure: bool) -> Verdict | Steps[Verdict]:
        """The verdict on texts that may have a phrase. sure: unless it is masked, it is enough that the pattern says so."""
        if size > _AT_ONCE:
            return self._steps(texts)
        verdict = at_once(self._steps(texts))
        return self._blocked if verdict is ALLOW and sure and not self._mask else verdict

    def stream(self) -> DenyListStream | Passing:
        return Passing() if self._label else self._followed()

    def _followed(self) -> DenyListStream:
        return DenyListStream(self.name, self._phrases, self._replacement if self._mask else None)

    def _suspect(self, text: str) -> bool:
        """Whether the text may contain a phrase, or more invisible characters in a row than any writing has."""
        return hidden_run(text) or self._phrases.may_occur(text)

    def _steps(self, texts: Sequence[str]) -> Steps[Verdict]:
        """The same verdict in steps of a few milliseconds at the worst: short texts together, long ones in pieces."""
        passed: list[str] = []
        findings: list[Finding] = []
        batch: list[str] = []
        size, changed = 0, False
        data = data_of_all(texts)
        if data is not None and len(data) > self._at_once and not (yield from self._occurs_in(data)):
            return ALLOW
        try:
            for number, text in enumerate(texts):
                batch.append(text)
                size += len(text) + 1
                if size > WINDOW or number == len(texts) - 1:
                    yield
                    together = "\x00".join(batch)
                    if size > 2 * WINDOW or has_nul(batch) or self._suspect(together):
                        found = yield from self._each(batch, len(passed), findings)
                        changed = changed or found != batch
                        batch = found
                    passed += batch
                    batch, size = [], 0
        except GuardrailViolation:
            return Verdict("block", self.name, REASON, (), tuple(findings))
        if changed and self._label:
            return Verdict("annotate", self.name, REASON, (), tuple(findings), None, True)
        return Verdict("rewrite", self.name, REASON, tuple(passed), tuple(findings)) if changed else ALLOW

    def _each(self, texts: list[str], first: int, findings: list[Finding]) -> Steps[list[str]]:
        """The texts, masked. first: the number of the first one. Raises GuardrailViolation."""
        passed = []
        for number, text in enumerate(texts, first):
            if len(text) <= WINDOW:
                suspect = "\x00" in text or self._suspect(text)
            else:
                suspect = not text.isascii() or "\x00" in text or (yield from self._occurs(text))
            if suspect:
                text = yield from self._long(text, number, findings)
            passed.append(text)
        return passed

    def _occurs(self, text: str) -> Steps[bool]:
        """Whether a long text of ASCII may have a phrase: windows that overlap by the longest one."""
        overlap, portion = self._phrases.longest + 2, self._phrases.portion
        for start in range(0, len(text), portion):
            if start:
                yield
            if self._phrases.may_occur(text[max(0, start - overlap) : start + portion]):
                return True
        return False

    def _occurs_in(self, data: bytes) -> Steps[bool]:
        """The same for the bytes of all texts, without control characters."""
        overlap, portion = self._phrases.longest + 2, self._phrases.portion
        for start in range(0, len(data), portion):
            yield
            if self._phrases.may_occur_in(data[max(0, start - overlap) : start + portion]):
                return True
        return False

    def _long(self, text: str, number: int, findings: list[Finding]) -> Steps[str]:
        matcher = self._followed()
        passed = []
        piece = self._phrases.window
        try:
            for start in range(0, len(text), piece):
                passed.append(matcher.feed(text[start : start + piece]))
                yield
            passed.append(matcher.finish())
        finally:
            if len(findings) < MOST_FINDINGS:
                for finding in matcher.findings:
                    finding.text = number
                    findings.append(finding)
        return "".join(passed)


def build(settings: DenyListSettings, context: Context) -> DenyList:
    """Raises ValueError with one sentence, OSError."""
    phrases = list(settings.phrases)
    if settings.phrases_file is not None:
        lines = (line.strip() for line in context.read(settings.phrases_file).splitlines())
        phrases += [line for line in lines if line and not line.startswith("#")]
    action = settings.action
    return DenyList(context.name, PhraseSet(phrases), mask=action == "mask", replacement=settings.replacement, label=action == "label")
