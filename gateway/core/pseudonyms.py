"""Reversible pseudonyms, as the pipeline sees them: a guardrail replaces values in a request, and what stands for them in the answer is put
back.

A guardrail that does this has a method `layer(principal, secret, now) -> Layer`. Every exchange gets a layer of its own. Several guardrails
are several layers: each reads what the one before it made of the request, so the answer passes them in the opposite order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from gateway.core.ports import StreamMatcher
from gateway.core.slices import Steps
from gateway.core.types import Principal, Verdict

Restores = Literal["after", "before", "never"]
"""Whether pseudonyms are put back after or before the guardrails that read the answer."""


class Layer(Protocol):
    """What one guardrail replaced in one exchange. replaced, restored: how many values and how many pseudonyms, for the audit record."""

    restores: Restores
    replaced: int
    restored: int

    def check(self, texts: Sequence[str]) -> Verdict | Steps[Verdict]:
        """As `Guardrail.check`, of the request's texts. Called once."""
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


class Pseudonymous(Protocol):
    """The part of such a guardrail that the pipeline calls."""

    def layer(self, principal: Principal, secret: Callable[[str], bytes], now: float) -> Layer:
        """secret: a key for a name, the same in all processes that share engines. now: monotonic seconds."""
        ...
