"""A guardrail that looks for entities in whole texts and in streams, and blocks, masks or replaces them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from secrets import token_bytes
from typing import Final

from gateway.core.errors import GuardrailViolation
from gateway.core.secret import Secret
from gateway.core.slices import Steps, at_once
from gateway.core.types import ALLOW, MOST_FINDINGS, Finding, Verdict
from policies.guardrails.folding import MAX_HIDDEN, has_nul, hidden_run
from policies.guardrails.reading import data_of_all
from policies.guardrails.recognition.actions import ANNOTATE, Actions
from policies.guardrails.recognition.normal import data_of, escapes
from policies.guardrails.recognition.stream import EntityStream
from policies.guardrails.recognition.words import CONTEXT

_MIN_KEY: Final = 16
_AT_ONCE_ASCII: Final = 16 * 1024
_AT_ONCE: Final = 4096
"""Up to this many characters are searched at once: about a third of a millisecond, and some where every other one is an @."""
_FOLLOWED: Final = 2048
"""Up to this many characters in which something looks like an entity are followed at once, and in one step."""
_EACH: Final = 16
"""What a text costs beside its characters, in characters."""


class EntityGuardrail:
    """The guardrail. Immutable; shared by all requests of a snapshot."""

    def __init__(self, actions: Actions) -> None:
        self.name = actions.name
        self._actions = actions
        self.trigger = actions.finder.trigger
        self.longest = actions.finder.longest
        """Characters that a stream may hold."""

    def check(self, texts: Sequence[str]) -> Verdict | Steps[Verdict]:
        """Allows, blocks, or rewrites every text; long texts give the steps to that verdict. In most cases one scan of all texts together
        is enough."""
        data = data_of_all(texts)
        if data is not None:
            size = len(data)
            if size > _AT_ONCE_ASCII:
                return self._steps(texts)
            if not self._actions.finder.occurs(escapes(data)):
                return ALLOW
        else:
            text = texts[0] if len(texts) == 1 else "\x00".join(texts)
            size = len(text)
            if size > (_AT_ONCE_ASCII if text.isascii() else _AT_ONCE) or has_nul(texts):
                return self._steps(texts)
            if not hidden_run(text) and not self._actions.finder.occurs(escapes(data_of(text))):
                return ALLOW
        steps = self._steps(texts, len(texts) == 1)
        return at_once(steps) if size <= _FOLLOWED else steps

    def stream(self) -> EntityStream:
        return EntityStream(self._actions)

    def _steps(self, texts: Sequence[str], suspect: bool = False) -> Steps[Verdict]:
        """The same verdict in steps of a few milliseconds at the worst. suspect: something in each text looks like an entity."""
        passed: list[str] = []
        found: set[str] = set()
        findings: list[Finding] = []
        done = count = place = 0
        data = data_of_all(texts)
        try:
            for number, text in enumerate(texts):
                done += len(text) + _EACH
                if done >= _FOLLOWED:
                    yield
                    done = 0
                after = text
                if suspect or (yield from self._suspect(text, data, place)):
                    after, count = yield from self._followed(text, number, found, findings, count)
                passed.append(after)
                place += len(text) + 1
        except GuardrailViolation as error:
            return Verdict("block", self.name, error.message, (), tuple(findings))
        reason = self._actions.reason(found)
        if all(after == before for after, before in zip(passed, texts, strict=True)):
            return Verdict(ANNOTATE, self.name, reason, (), tuple(findings), None, self._actions.labels(found)) if findings else ALLOW
        return Verdict("rewrite", self.name, reason, tuple(passed), tuple(findings), None, self._actions.labels(found))

    def _suspect(self, text: str, known: bytes | None, place: int) -> Steps[bool]:
        """Whether anything in a text looks like an entity. Long texts are read in windows that overlap by all that one needs. known: the
        bytes of all texts, where they are known; this one begins at `place`."""
        window = _AT_ONCE_ASCII if text.isascii() else _AT_ONCE
        overlap = self._actions.finder.longest + CONTEXT
        before = b""  # folded, so invisible characters do not count
        for start in range(0, len(text), window):
            if start:
                yield
            if known is not None:
                data = known[max(place, place + start - overlap) : place + min(start + window, len(text))]
                if self._actions.finder.occurs(escapes(data)):
                    return True
                continue
            piece = text[start : start + window]
            if "\x00" in piece or hidden_run(text[start : start + window + MAX_HIDDEN]):
                return True
            data = before + data_of(piece)
            if self._actions.finder.occurs(escapes(data)):
                return True
            before = data[-overlap:]
        return False

    def _followed(self, text: str, number: int, found: set[str], findings: list[Finding], count: int) -> Steps[tuple[str, int]]:
        """The text after the actions, and how many entities there were up to its end; count: before it. Raises GuardrailViolation."""
        matcher = EntityStream(self._actions, count)
        pieces = []
        try:
            for start in range(0, len(text), _FOLLOWED):
                if start:
                    yield
                pieces.append(matcher.feed(text[start : start + _FOLLOWED]))
            pieces.append(matcher.finish())
        finally:
            if len(findings) < MOST_FINDINGS:
                for finding in matcher.findings:
                    finding.text = number
                    findings.append(finding)
        found |= matcher.found
        return "".join(pieces), matcher.count


def key_for(given: Secret | None, actions: Mapping[str, str]) -> bytes:
    """The key of hashes; a random one where nothing is hashed. Raises ValueError with one sentence."""
    if given is None:
        if "hash" in actions.values():
            raise ValueError("hash_key: the action hash needs one, so that every worker makes the same hashes")
        return token_bytes(32)
    key = given.reveal().encode()
    if len(key) < _MIN_KEY:
        raise ValueError(f"hash_key: {len(key)} bytes are too few; {_MIN_KEY} are the least")
    return key


def check_allowed(allow: Sequence[str]) -> None:
    """Raises ValueError for an entry of an allow list that would let everything pass."""
    for text in allow:
        if not text.strip("* "):
            raise ValueError(f"allow: {text!r} would let everything pass")
