"""What guardrails that ask a model of this gateway's have in common."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Iterable, Sequence

from gateway.core.asking import Asker
from gateway.core.moderation import Moderated
from gateway.core.tasks import TaskOwner
from gateway.core.types import ALLOW, Principal, Verdict
from gateway.core.values import UNLABELLED
from gateway.core.waiting import Maybe
from gateway.guardrails.pieces import bounded, readable


class ModelGuardrail:
    """Asks about every set of texts. A stream is held until it ends, as a text means what all of it means.

    model: its public name. sources: whose texts of a chat are read. window, overlap: characters of one question, and of a long text by
    which two overlap. max_bytes: characters of all texts together; more cannot be inspected. Raises ValueError for too large an overlap.
    """

    def __init__(self, name: str, asker: Asker, *, model: str, sources: Iterable[str], window: int, overlap: int, max_bytes: int) -> None:
        if overlap * 2 > window:
            raise ValueError(f"overlap ({overlap}) is more than half of window ({window})")
        self.name, self.model = name, model
        self.reads = frozenset(sources)
        self._asker, self._max_bytes = asker, max_bytes
        self._tasks = TaskOwner(f"guardrail {name}")

    async def aclose(self) -> None:
        await self._tasks.aclose()

    def check(self, texts: Sequence[str]) -> Maybe[Verdict]:
        """Allow, annotate or block. Raises EngineError if the model's answer cannot be used."""
        return self.check_labelled(texts, UNLABELLED)

    def check_labelled(self, texts: Sequence[str], labels: frozenset[str]) -> Maybe[Verdict]:
        """The same for texts with data labels."""
        bounded(texts, self._max_bytes)
        return self._tasks.wait(self._verdict(texts, labels), name="check") if readable(texts) else ALLOW

    def stream(self) -> None:
        return None

    @abstractmethod
    async def _verdict(self, texts: Sequence[str], labels: frozenset[str]) -> Verdict:
        """Asks the model about texts that are not empty."""


class ModeratingGuardrail(ModelGuardrail):
    """One that also serves /v1/moderations."""

    def moderate(
        self, texts: Sequence[str], principal: Principal, seconds: float, labels: frozenset[str] = UNLABELLED
    ) -> asyncio.Task[Moderated]:
        """See gateway.core.moderation.Moderator."""
        return self._tasks.wait(self._moderated(texts, principal, seconds, labels), name="moderate")

    @abstractmethod
    async def _moderated(self, texts: Sequence[str], principal: Principal, seconds: float, labels: frozenset[str]) -> Moderated:
        """Judges each text by itself, for one caller."""
