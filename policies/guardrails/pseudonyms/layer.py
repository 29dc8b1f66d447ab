"""The pseudonyms of one exchange: given to the values of its request, taken back from its answer.

What already looks like a pseudonym in a request is a text like any other: its number is not given to a value, and where a value of the
session has it, the text gets a pseudonym of its own. So a pseudonym in an answer always stands for one thing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from gateway.core.errors import GuardrailViolation
from gateway.core.pseudonyms import Reader, Restores
from gateway.core.slices import Steps, at_once
from gateway.core.types import Finding, Verdict
from gateway.core.values import UNLABELLED
from gateway.core.waiting import Maybe
from policies.guardrails.pseudonyms.nesting import Nesting, escaped, unescaped
from policies.guardrails.pseudonyms.restoring import WINDOW, Forms, Restoring
from policies.guardrails.pseudonyms.vault import Session, Vault
from policies.guardrails.recognition.actions import PSEUDONYM, Actions, canonical
from policies.guardrails.recognition.guardrail import EntityGuardrail

SPELLED: Final = frozenset({"email", "phone", "card", "iban", "ssn", "national_id", "passport", "mac"})
"""Entities that are the same in any case and with any separators."""
DEEPEST: Final = 2
"""Strings of JSON around a value that `hiding` finds."""
_WORD: Final = re.compile(r"\w")
LITERAL: Final = "\0literal"
"""Stands for the entity of a text that only looks like a pseudonym."""
RENAMED: Final = "Text in the form of a pseudonym was renamed."
MOST_RESERVED: Final = 10_000
"""Different texts in the form of a pseudonym that one request may have."""
TOO_MANY: Final = f"The request has more than {MOST_RESERVED} different texts in the form of a pseudonym."
MOST_TRIES: Final = 1000
"""Numbers of a session that are tried for one value."""
NO_NUMBER: Final = "The request has more values than a session has pseudonyms."
MOST_RESTORED: Final = 8 * 1024 * 1024
"""Characters of all values that are put back into one answer."""
TOO_LONG: Final = "The answer names pseudonyms of more text than may be put back."
AT_ONCE: Final = 2048
"""Characters that are read in one step."""
EACH: Final = 16
"""What a text costs beside its characters, in characters."""
SEARCHED: Final = 1024 * 1024
"""Characters in which one value or another is looked for in one step."""
OPENED: Final = 4096
"""What a value costs to be decrypted, in such characters."""
SEARCHES: Final = 64
"""Values that are looked for in one window of a text in one step."""


class Issued:
    """The part of a layer that gives pseudonyms and puts values back. Subclasses find the values. session: None for pseudonyms of this
    request only."""

    def __init__(self, forms: Forms, vault: Vault, session: Session | None, restores: Restores) -> None:
        self.restores = restores
        self.replaced = self.restored = self._size = 0
        self._forms, self._vault, self._seal, self._session = forms, vault, vault.seal, session
        self._labels: dict[str, bytes] = {}
        self._digests: dict[bytes, str] = {}
        self._reserved: frozenset[str] = frozenset()
        """What looks like a pseudonym in the request and is none."""
        self._numbers: dict[str, int] = {}
        self._nested = False
        """Whether a value would be written otherwise in a string of JSON."""

    # --- the request

    def _own(self, texts: Sequence[str]) -> Steps[Sequence[str]]:
        """The texts, with what looks like a pseudonym of the session renamed; the same object where there is nothing to rename. Raises
        GuardrailViolation for more of these than anybody writes: each of them makes it longer to find a number that is free."""
        reserved: set[str] = set()
        for text in texts:
            if "<" in text:
                for begin, end in self._forms.windows(text):
                    reserved.update(self._forms.pattern.findall(text, begin, end))
                    if len(reserved) > MOST_RESERVED:
                        raise GuardrailViolation(TOO_MANY)
                    yield
        self._reserved = frozenset(reserved)
        if self._session is None or self._session.labels.keys().isdisjoint(self._reserved):
            return texts
        own: list[str] = []
        for text in texts:
            parts: list[str] = []
            for begin, end in self._forms.windows(text):
                parts.append(self._forms.pattern.sub(lambda match: self._renamed(match[0]), text[begin:end]))
                yield
            own.append("".join(parts))
        return own

    def _renamed(self, literal: str) -> str:
        """What takes the place of a text that looks like a pseudonym: another one, if its own stands for something."""
        assert self._session is not None
        if literal not in self._session.labels:
            return literal
        return self._issued(literal[1:].rpartition("_")[0].lower(), LITERAL + literal, literal)

    def pseudonym(self, entity: str, folded: str, value: str, depth: int) -> str:
        """For a value of the request. depth: of the strings of JSON around it."""
        plain = unescaped(value, depth) if depth else value
        if "<" in plain:
            plain = self._forms.pattern.sub(lambda match: self._value(match[0]) or match[0], plain)
        return self._issued(entity, _identity(entity, folded) if entity in SPELLED else plain, plain)

    def _issued(self, entity: str, identity: str, value: str) -> str:
        session = self._session
        digest = self._seal.digest(entity, identity)
        label = self._digests.get(digest)
        if label is not None:
            return label
        if session is not None and (label := session.digests.get(digest)) is not None:
            sealed = session.labels[label]
        else:
            label = self._free(entity, identity)
            sealed = self._seal.sealed(value, label)
            self.replaced += 1
            if escaped(value, 1) != value:
                self._nested = True
            if session is not None:
                session.nested = session.nested or self._nested
                self._vault.grown(session, label, digest, sealed)
        self._digests[digest], self._labels[label] = label, sealed
        return label

    def _free(self, entity: str, identity: str) -> str:
        """A pseudonym that stands for nothing yet. Raises GuardrailViolation where nearly all of a session's numbers are taken."""
        session, tries = self._session, self._numbers.get(entity, 0)
        while True:
            tries += 1
            if session is not None and tries > MOST_TRIES:
                raise GuardrailViolation(NO_NUMBER)
            number = tries if session is None else session.number(entity, identity, tries)
            label = f"<{entity.upper()}_{number}>"
            if label not in self._reserved and label not in self._labels and (session is None or label not in session.labels):
                if session is None:
                    self._numbers[entity] = tries
                return label

    # --- the answer

    @property
    def active(self) -> bool:
        return self.restores != "never" and (bool(self._labels) or (self._session is not None and bool(self._session.labels)))

    def whole(self, text: str) -> str:
        if "<" not in text:
            return text
        stream = self.stream()
        return stream.feed(text) + stream.finish()

    def stream(self) -> Restoring:
        nested = self._nested or (self._session is not None and self._session.nested)
        return Restoring(self._forms, self._counted, nested, self._grown)

    def hiding(self, texts: Sequence[str]) -> Steps[list[str]]:
        """Only whole words count: part of another word is no value, and what guardrails are to read stays readable."""
        labels: dict[str, str] = {}
        size, done = sum(map(len, texts)) + EACH * len(texts), 0
        for label, sealed in tuple(self._labels.items()):
            value = self._seal.opened(sealed, label)
            for depth in range(DEEPEST + 1 if escaped(value, 1) != value else 1):
                form = escaped(value, depth)
                if any(form in text for text in texts):
                    labels.setdefault(form, label)
                done += size + OPENED
            if done > SEARCHED:
                yield
                done = 0
        if not labels:
            return list(texts)
        found: list[str] = []
        for text in texts:
            found.append((yield from _hidden(text, labels)))
        return found

    def _counted(self, label: str) -> str | None:
        value = self._value(label)
        if value is not None:
            self.restored += 1
        return value

    def _grown(self, size: int) -> None:
        """Raises GuardrailViolation for an answer that becomes too long: a value may be long, and named many times."""
        self._size += size
        if self._size > MOST_RESTORED:
            raise GuardrailViolation(TOO_LONG)

    def _value(self, label: str) -> str | None:
        sealed = self._labels.get(label)
        if sealed is None and self._session is not None and label not in self._reserved:
            sealed = self._session.labels.get(label)
        return None if sealed is None else self._seal.opened(sealed, label)


class PseudonymLayer(Issued):
    """The layer of a guardrail of patterns. Implements gateway.core.pseudonyms.Layer."""

    def __init__(self, actions: Actions, forms: Forms, vault: Vault, session: Session | None, restores: Restores) -> None:
        super().__init__(forms, vault, session, restores)
        self._guardrail = EntityGuardrail(_Replacing.of(actions, self))

    def check(self, texts: Sequence[str], labels: frozenset[str] = UNLABELLED) -> Verdict | Steps[Verdict]:
        if not any("<" in text for text in texts):
            return self._guardrail.check(texts)
        steps = self._checked(texts)
        return at_once(steps) if sum(map(len, texts)) + EACH * len(texts) <= AT_ONCE else steps

    def _checked(self, texts: Sequence[str]) -> Steps[Verdict]:
        try:
            own = yield from self._own(texts)
        except GuardrailViolation as error:
            return Verdict("block", self._guardrail.name, error.message)
        found = self._guardrail.check(own)
        verdict = found if isinstance(found, Verdict) else (yield from found)
        if own is texts or verdict.action in ("block", "rewrite"):
            return verdict
        return Verdict("rewrite", self._guardrail.name, verdict.reason or RENAMED, tuple(own), verdict.findings, None, verdict.label)


class AskedLayer(Issued):
    """The layer of a guardrail that asks another service where the values are. Implements gateway.core.pseudonyms.Layer."""

    def __init__(self, read: Reader, forms: Forms, vault: Vault, session: Session | None, restores: Restores) -> None:
        super().__init__(forms, vault, session, restores)
        self._read = read

    def check(self, texts: Sequence[str], labels: frozenset[str] = UNLABELLED) -> Maybe[Verdict]:
        return self._read(texts, self._own(texts), labels, self._replace)

    def _replace(self, text: str, found: Sequence[tuple[Finding, str]]) -> str:
        nesting, pieces, done = Nesting(), list[str](), 0
        for finding, mark in found:
            before, value = text[done : finding.start], text[finding.start : finding.end]
            nesting.feed(before)
            pieces += (before, mark or self.pseudonym(finding.entity, value, value, nesting.depth))
            nesting.feed(value)
            done = finding.end
        return "".join([*pieces, text[done:]])


class _Replacing(Actions):
    """The actions of a guardrail, with the pseudonyms of one exchange."""

    _layer: PseudonymLayer

    @classmethod
    def of(cls, actions: Actions, layer: PseudonymLayer) -> _Replacing:
        made = cls.__new__(cls)
        made.__dict__.update(actions.__dict__)
        made._layer = layer
        return made

    def nesting(self) -> Nesting:
        return Nesting()

    def keeps(self, entity: str) -> bool:
        return self._actions[entity] == PSEUDONYM

    def replacement(self, entity: str, text: str, value: str | None = None, depth: int = 0) -> str | None:
        if value is None or self._actions[entity] != PSEUDONYM:
            return super().replacement(entity, text, value, depth)
        return self._layer.pseudonym(entity, text, value, depth)


def _hidden(text: str, labels: dict[str, str]) -> Steps[str]:
    """A text with labels in the place of values: of the leftmost, and then of the longest of those that begin at one place."""
    pieces: list[str] = []
    done = searches = 0
    for begin in range(0, len(text), WINDOW):
        places: list[tuple[int, int, str]] = []
        for form, label in labels.items():
            end = begin + WINDOW + len(form) - 1
            start = text.find(form, begin, end)
            while start >= 0:
                if _alone(text, start, start + len(form)):
                    places.append((start, -len(form), label))
                start = text.find(form, start + 1, end)
            searches += 1
            if searches % SEARCHES == 0:
                yield
        for start, size, label in sorted(places):
            if start >= done:
                pieces += (text[done:start], label)
                done = start - size
        yield
    return "".join([*pieces, text[done:]])


def _alone(text: str, start: int, end: int) -> bool:
    """Whether no character of a word stands next to a part of a text."""
    return not ((start > 0 and _WORD.match(text, start - 1)) or _WORD.match(text, end))


def _identity(entity: str, folded: str) -> str:
    text = canonical(folded)
    return text if entity == "email" else "".join([character for character in text if character.isalnum() or character == "+"])
