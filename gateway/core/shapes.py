"""The form of answers: guardrails that judge a whole answer by a schema, and may have it repaired."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from gateway.core.types import InferenceRequest, Principal


class ShapeJudge(Protocol):
    """What a guardrail row with `shapes` builds. repair: a faulty answer is sent back to the model once. action: `block` or `annotate`."""

    name: str
    repair: bool
    action: str

    def concerned(self, request: InferenceRequest) -> bool:
        """Whether the answer to a request must have a form. Raises RequestError."""
        ...

    def faults(self, request: InferenceRequest, contents: Sequence[str]) -> list[str]:
        """What is wrong with the contents of an answer: rules, never a word of it."""
        ...


class ShapeGuard(Protocol):
    """The same behind its failure boundary. enforced: faults refuse the answer."""

    name: str
    repair: bool
    enforced: bool
    concerns: Callable[[Principal], bool] | None

    def concerned(self, request: InferenceRequest) -> bool: ...

    def faults(self, request: InferenceRequest, contents: Sequence[str]) -> list[str]: ...

    def count(self, faulty: bool) -> None:
        """Counts one answer."""
        ...
