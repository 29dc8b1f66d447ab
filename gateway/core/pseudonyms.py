"""Reversible pseudonyms, as the pipeline sees them: a guardrail replaces values in a request with pseudonyms, and puts the values back
where the answer contains these pseudonyms.

A guardrail that does this has a method `layer(principal, secret, now) -> Layer`. Every exchange gets a layer of its own. Several guardrails
are several layers: each reads what the one before it made of the request, so the answer passes them in the opposite order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Literal, Protocol

from msgspec import Meta

from gateway.core.ports import StreamMatcher
from gateway.core.slices import Steps
from gateway.core.specs import Spec, Timeout
from gateway.core.types import Finding, Principal, Verdict
from gateway.core.waiting import Maybe

Restores = Literal["after", "before", "never"]
"""Whether pseudonyms are put back after or before the guardrails that read the answer."""


class PseudonymSettings(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """scope: how long a value keeps its pseudonym. restore: whether values are put back after or before the guardrails that read the
    answer. ttl: a session's, since it was last used. sessions, values (of one session), bytes (of all sessions): the bounds of what is
    kept."""

    scope: Literal["request", "session"] = "request"
    restore: Restores = "after"
    ttl: Timeout = 1800.0
    sessions: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000
    values: Annotated[int, Meta(ge=1, le=100_000)] = 1000
    bytes: Annotated[int, Meta(ge=4096, le=1 << 34)] = 16 * 1024 * 1024


class Layer(Protocol):
    """What one guardrail replaced in one exchange. replaced, restored: numbers of values and of pseudonyms, for the audit record."""

    restores: Restores
    replaced: int
    restored: int

    def check(self, texts: Sequence[str], labels: frozenset[str]) -> Maybe[Verdict] | Steps[Verdict]:
        """As `Guardrail.check`, of the request's texts, which have these data labels. Called once."""
        ...

    @property
    def active(self) -> bool:
        """Whether the answer may hold a pseudonym of this layer."""
        ...

    def whole(self, text: str) -> str:
        """A whole text of the answer with the values put back."""
        ...

    def stream(self) -> StreamMatcher:
        """The same for one text of a stream."""
        ...

    def hiding(self, texts: Sequence[str]) -> Steps[list[str]]:
        """The opposite of `whole`: texts of the answer with pseudonyms in the place of the request's values, in steps."""
        ...


class Pseudonymous(Protocol):
    """The part of such a guardrail that the pipeline calls."""

    def layer(self, principal: Principal, secret: Callable[[str], bytes], now: float) -> Layer:
        """secret: a key for a name, the same in all processes that share engines. now: monotonic seconds."""
        ...


Replace = Callable[[str, Sequence[tuple[Finding, str]]], str]
"""A text with what is told in the place of what was found in it, in order; with a pseudonym where that is ""."""
Reader = Callable[[Sequence[str], Steps[Sequence[str]], frozenset[str], Replace], Maybe[Verdict]]
"""Finds values: of the texts as they came, the work that gives the texts to read (what only looked like a pseudonym is renamed in them; it
may raise GuardrailViolation), their labels, and what replaces values. Its verdict is `rewrite` also where only the two differ."""


class Pseudonyms(Protocol):
    """The pseudonyms of a guardrail that finds values by asking another service."""

    def layer(self, principal: Principal, secret: Callable[[str], bytes], now: float, read: Reader) -> Layer:
        """As `Pseudonymous.layer`."""
        ...

    def sweep(self, now: float) -> None:
        """Drops the sessions that are over."""
        ...

    def clear(self) -> None:
        """Forgets all values."""
        ...


PseudonymFactory = Callable[[Sequence[str], PseudonymSettings], Pseudonyms]
"""Of some entities."""
