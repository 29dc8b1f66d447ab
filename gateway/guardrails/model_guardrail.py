"""What guardrails that ask a model of this gateway's have in common."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from gateway.core.asking import Asker
from gateway.core.moderation import Moderated
from gateway.core.tasks import TaskOwner
from gateway.core.types import ALLOW, Principal, Verdict
from gateway.core.values import UNLABELLED
from gateway.core.waiting import Maybe
from gateway.guardrails.pieces import bounded, readable


class Settings(Protocol):
    """The settings that all of them have; ClassifierSettings says what each means."""

    @property
    def model(self) -> str: ...
    @property
    def sources(self) -> tuple[str, ...]: ...
    @property
    def window(self) -> int: ...
    @property
    def overlap(self) -> int: ...
    @property
    def max_bytes(self) -> int: ...


S = TypeVar("S", bound=Settings)


class ModelGuardrail(Generic[S]):
    """Asks about every set of texts. A stream is held until it ends, as a text means what all of it means. Raises ValueError for settings
    that contradict each other."""

    def __init__(self, name: str, settings: S, asker: Asker) -> None:
        if settings.overlap * 2 > settings.window:
            raise ValueError(f"overlap ({settings.overlap}) is more than half of window ({settings.window})")
        self.name, self.model = name, settings.model
        self.reads = frozenset(settings.sources)
        self._settings, self._asker = settings, asker
        self._tasks = TaskOwner(f"guardrail {name}")

    async def aclose(self) -> None:
        await self._tasks.aclose()

    def check(self, texts: Sequence[str]) -> Maybe[Verdict]:
        """Allow, annotate or block. Raises EngineError if the model's answer cannot be used."""
        return self.check_labelled(texts, UNLABELLED)

    def check_labelled(self, texts: Sequence[str], labels: frozenset[str]) -> Maybe[Verdict]:
        """The same for texts with data labels."""
        bounded(texts, self._settings.max_bytes)
        return self._tasks.wait(self._verdict(texts, labels), name="check") if readable(texts) else ALLOW

    def stream(self) -> None:
        return None

    @abstractmethod
    async def _verdict(self, texts: Sequence[str], labels: frozenset[str]) -> Verdict:
        """Asks the model about texts that are not empty."""


class ModeratingGuardrail(ModelGuardrail[S]):
    """One that also serves /v1/moderations."""

    def moderate(
        self, texts: Sequence[str], principal: Principal, seconds: float, labels: frozenset[str] = UNLABELLED
    ) -> asyncio.Task[Moderated]:
        """See gateway.core.moderation.Moderator."""
        return self._tasks.wait(self._moderated(texts, principal, seconds, labels), name="moderate")

    @abstractmethod
    async def _moderated(self, texts: Sequence[str], principal: Principal, seconds: float, labels: frozenset[str]) -> Moderated:
        """Judges each text by itself, for one caller."""
