"""What is done with a found entity: which text takes its place, or that nothing may pass."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from typing import Final

from gateway.core.errors import GuardrailViolation
from policies.guardrails.pseudonyms.nesting import Nesting
from policies.guardrails.recognition.finder import Finder
from policies.guardrails.recognition.normal import MARK, fold

MAX_ALLOWED: Final = 10_000
ANNOTATE: Final = "annotate"
"""The action that lets an entity pass and records it."""
LABEL: Final = "label"
"""The action that lets an entity pass and gives the request the guardrail's label."""
PSEUDONYM: Final = "pseudonym"
"""The action that a value is put back into the answer after; in an answer it is `mask`."""
UNBOUNDED: Final = 1 << 62
_HASH_DIGITS: Final = 16


class Actions:
    """By entity. key: for the keyed hashes. allowed: texts that are never acted on; one that begins with * stands for all that end with the
    rest of it. what: what entities are, for people. most: entities in the texts of one request, or in one text of a stream; what has more
    is refused."""

    def __init__(
        self,
        name: str,
        finder: Finder,
        actions: Mapping[str, str],
        key: bytes,
        allowed: Iterable[str] = (),
        what: str = "personal data",
        most: int = UNBOUNDED,
    ) -> None:
        self.most = most
        self.name, self.finder, self._what = name, finder, what
        self._actions, self._key = dict(actions), key
        self._masks = {entity: f"[{entity.upper()}]" for entity in actions}
        entries = [canonical(one) for one in allowed]
        self._allowed = frozenset(one for one in entries if not one.startswith("*"))
        self._endings = tuple(one[1:] for one in entries if one.startswith("*"))

    def wanted(self, text: str) -> bool:
        """Whether a folded text is not on the allow list."""
        if not self._allowed and not self._endings:
            return True
        compared = canonical(text)
        return compared not in self._allowed and not (self._endings and compared.endswith(self._endings))

    def reason(self, found: Iterable[str]) -> str:
        """Why a text is not what it was, for the audit record."""
        names = ", ".join(sorted(found))
        return f"{self._what.capitalize()} found: {names}." if names else "Invisible characters were removed."

    def with_action(self, wanted: str) -> list[str]:
        """The entities with this action."""
        return [entity for entity, action in self._actions.items() if action == wanted]

    def labels(self, found: Iterable[str]) -> bool:
        """Whether one of these entities gives the request the guardrail's label."""
        return any(self._actions[entity] == LABEL for entity in found)

    def too_many(self) -> GuardrailViolation:
        """What refuses a text with more than `most` entities."""
        return GuardrailViolation(f"The text contains more {self._what} than may pass at once: {self.most} are the most.", code=self.name)

    def nesting(self) -> Nesting | None:
        """What follows the JSON in a text, where a replacement depends on it."""
        return None

    def keeps(self, entity: str) -> bool:
        """Whether `replacement` wants the whole text of an entity without a greatest length."""
        return False

    def replacement(self, entity: str, text: str, value: str | None = None, depth: int = 0) -> str | None:
        """What takes the place of a folded text; None: it stays. value: the text itself; None where it is not at hand. depth: of the
        strings of JSON around it, where `nesting` is followed. Raises GuardrailViolation."""
        action = self._actions[entity]
        if action == "mask" or action == PSEUDONYM:
            return self._masks[entity]
        if action == "hash":
            return f"[{entity.upper()}:{self._hashed(entity, text)}]"
        if action in (ANNOTATE, LABEL):
            return None
        raise GuardrailViolation(f"The text contains {self._what} that must not pass here: {entity}.", code=self.name)

    def _hashed(self, entity: str, text: str) -> str:
        """Keyed, because there are few enough card and telephone numbers to try them all. The way of writing does not count."""
        letters = "".join([character for character in canonical(text) if character.isalnum() or character in "@.:"])
        if entity not in ("email", "ip", "mac"):
            letters = letters.replace(".", "").replace(":", "")
        return hmac.digest(self._key, f"{entity}\x00{letters}".encode("utf-8", "replace"), "sha256").hex()[:_HASH_DIGITS]


def canonical(text: str) -> str:
    """Texts that differ only in case and in compatibility forms are the same."""
    return fold(text).replace(MARK, "").lower()
