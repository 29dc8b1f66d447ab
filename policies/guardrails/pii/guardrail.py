"""The guardrail `pii`: personal data in requests, answers and streams is blocked, masked or replaced by a keyed hash."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Annotated, Final

from msgspec import Meta, field

from gateway.core.errors import GuardrailViolation
from gateway.core.plugins import Context
from gateway.core.secret import Secret
from gateway.core.slices import Steps, at_once
from gateway.core.specs import Spec
from gateway.core.types import ALLOW, MOST_FINDINGS, Finding, Verdict
from policies.guardrails.folding import HIDDEN_RUN, IGNORABLE, MAX_HIDDEN, has_hidden
from policies.guardrails.pii.actions import MAX_ALLOWED, Actions
from policies.guardrails.pii.finder import Finder
from policies.guardrails.pii.normal import as_bytes, escapes, fold
from policies.guardrails.pii.recogniser import CONTEXT, Recogniser
from policies.guardrails.pii.stream import PiiStream, replaced
from policies.guardrails.pii.table import ENTITIES, RECOGNISERS

ACTIONS: Final = ("block", "mask", "hash", "allow")
_MIN_KEY: Final = 16
_AT_ONCE_ASCII: Final = 128 * 1024
_AT_ONCE: Final = 4096
"""Up to this many characters are searched at once: about a third of a millisecond."""
_FOLLOWED: Final = 1024
"""Up to this many characters in which something looks like an entity are followed at once, and in one step."""
_EACH: Final = 16
"""What a text costs beside its characters, in characters."""


class CustomEntity(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A recogniser of the configuration's own. pattern: see docs/guardrails.md. context: words of which one must stand in the 48
    characters before. longest: the most characters that a match may have; without it what the pattern says."""

    pattern: Annotated[str, Meta(min_length=1, max_length=2000)]
    context: tuple[str, ...] = ()
    longest: Annotated[int, Meta(ge=1, le=512)] | None = None


class PiiSettings(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """entities: the action for each entity; without any, all are masked. custom: more entities by name, which `entities` must give an
    action. allow: texts that pass. hash_key: of the action `hash`, which needs one."""

    entities: dict[str, str] = field(default_factory=dict)
    custom: dict[str, CustomEntity] = field(default_factory=dict)
    allow: Annotated[tuple[str, ...], Meta(max_length=MAX_ALLOWED)] = ()
    hash_key: Secret | None = None


class Pii:
    """The guardrail. Immutable; shared by all requests of a snapshot."""

    def __init__(self, actions: Actions) -> None:
        self.name = actions.name
        self._actions = actions

    def check(self, texts: Sequence[str]) -> Verdict | Steps[Verdict]:
        """Allows, blocks, or rewrites every text; long texts give the steps to that verdict. In most cases one scan of all texts together
        is enough."""
        text = texts[0] if len(texts) == 1 else "\x00".join(texts)
        if len(text) > (_AT_ONCE_ASCII if text.isascii() else _AT_ONCE):
            return self._steps(texts)
        if (text.isascii() or not HIDDEN_RUN.search(text)) and not self._actions.finder.occurs(escapes(as_bytes(fold(text)))):
            return ALLOW
        return at_once(self._steps(texts)) if len(text) <= _FOLLOWED else self._steps(texts)

    def stream(self) -> PiiStream:
        return PiiStream(self._actions)

    def _steps(self, texts: Sequence[str]) -> Steps[Verdict]:
        """The same verdict in steps of a few milliseconds at the worst."""
        passed: list[str] = []
        found: set[str] = set()
        findings: list[Finding] = []
        done = 0
        try:
            for number, text in enumerate(texts):
                done += len(text) + _EACH
                if done >= _FOLLOWED:
                    yield
                    done = 0
                suspect = yield from self._suspect(text)
                passed.append((yield from self._followed(text, number, found, findings)) if suspect else text)
        except GuardrailViolation as error:
            return Verdict("block", self.name, error.message, (), tuple(findings))
        if all(after == before for after, before in zip(passed, texts, strict=True)):
            return ALLOW
        return Verdict("rewrite", self.name, replaced(found), tuple(passed), tuple(findings))

    def _suspect(self, text: str) -> Steps[bool]:
        """Whether anything in a text looks like an entity. Long texts are read in windows that overlap by all that one needs."""
        window = _AT_ONCE_ASCII if text.isascii() else _AT_ONCE
        overlap = self._actions.finder.longest + CONTEXT
        for start in range(0, len(text), window):
            if start:
                yield
            piece = text[max(0, start - overlap) : start + window]
            if not piece.isascii():
                if HIDDEN_RUN.search(text, start, start + window + MAX_HIDDEN):
                    return True
                if has_hidden(piece):
                    piece = IGNORABLE.sub("", text[max(0, start - (MAX_HIDDEN + 1) * overlap) : start + window])
            if self._actions.finder.occurs(escapes(as_bytes(fold(piece)))):
                return True
        return False

    def _followed(self, text: str, number: int, found: set[str], findings: list[Finding]) -> Steps[str]:
        """The text after the actions. Raises GuardrailViolation."""
        matcher = self.stream()
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
        return "".join(pieces)


def build(settings: PiiSettings, context: Context) -> Pii:
    """Raises ValueError with one sentence."""
    recognisers = (*(_custom(name, custom) for name, custom in settings.custom.items()), *RECOGNISERS)
    known = tuple(dict.fromkeys(one.entity for one in recognisers))
    actions = dict(settings.entities) or dict.fromkeys(known, "mask")
    for entity, action in actions.items():
        if entity in ("person", "location"):
            raise ValueError(f"entities.{entity}: names and places have no pattern; a classifier that finds them does not exist here yet")
        if entity not in known:
            raise ValueError(f"entities.{entity}: there is no such entity; known: {', '.join(known)}")
        if action == "pseudonym":
            raise ValueError(f"entities.{entity}: pseudonyms do not exist yet; use one of {', '.join(ACTIONS)}")
        if action not in ACTIONS:
            raise ValueError(f"entities.{entity}: there is no action {action!r}; use one of {', '.join(ACTIONS)}")
    for name in settings.custom:
        if name not in actions:
            raise ValueError(f"custom.{name}: entities gives it no action")
    for text in settings.allow:
        if not text.strip("* "):
            raise ValueError(f"allow: {text!r} would let everything pass")
    acting = {entity: action for entity, action in actions.items() if action != "allow"}
    finder = Finder([one for one in recognisers if one.entity in acting])
    return Pii(Actions(context.name, finder, acting, _key(settings), settings.allow))


def _key(settings: PiiSettings) -> bytes:
    if settings.hash_key is None:
        if "hash" in settings.entities.values():
            raise ValueError("hash_key: the action hash needs one, so that every worker makes the same hashes")
        return secrets.token_bytes(32)
    key = settings.hash_key.reveal().encode()
    if len(key) < _MIN_KEY:
        raise ValueError(f"hash_key: {len(key)} bytes are too few; {_MIN_KEY} are the least")
    return key


def _custom(name: str, custom: CustomEntity) -> Recogniser:
    """Raises ValueError that names the entity."""
    if name in ENTITIES:
        raise ValueError(f"custom.{name}: there is a built-in entity of this name")
    if not (name.isascii() and name.replace("_", "a").isalnum() and name == name.lower() and len(name) <= 40):
        raise ValueError(f"custom.{name}: a name has up to 40 small letters, digits and underscores")
    made = Recogniser(name, custom.pattern, words=custom.context)
    try:
        longest = made.bounded.longest
    except ValueError as error:
        raise ValueError(f"custom.{name}: {error}") from None
    if any(not word.strip() for word in custom.context):
        raise ValueError(f"custom.{name}: an empty context word")
    if custom.longest is not None and longest > custom.longest:
        raise ValueError(f"custom.{name}: the pattern matches up to {longest} characters, more than longest: {custom.longest}")
    return made
