"""Answers that later requests go on with, in the process that has the store."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from gateway.core.conversations import AnswerFound, FindAnswer, KeepAnswer
from gateway.core.errors import GatehouseError, RequestError
from gateway.core.messages import Done
from gateway.core.specs.responses import ResponsesSpec
from gateway.core.tasks import TaskOwner
from gateway.store.kept_answers import KeptAnswers, Sizes

log = logging.getLogger("gatehouse.store")
SWEEP_SECONDS: Final = 60.0


class AnswerBook:
    """Implements gateway.core.conversations.ConversationDesk. Life: `start` once the store has been started. settings: those in force."""

    def __init__(self, kept: KeptAnswers, settings: Callable[[], ResponsesSpec | None], owner: TaskOwner) -> None:
        self._kept, self._settings, self._owner = kept, settings, owner
        self._sizes = Sizes(0, 0)

    def start(self) -> None:
        self._owner.every(SWEEP_SECONDS, self.sweep, name="kept answers")

    def keep(self, wanted: KeepAnswer) -> Awaitable[Done]:
        return self._owner.wait(self.kept(wanted), name="keep")

    def find(self, wanted: FindAnswer) -> Awaitable[AnswerFound]:
        return self._owner.wait(self.found(wanted), name="find")

    async def kept(self, wanted: KeepAnswer) -> Done:
        """Raises RequestError, Overloaded, StoreUnavailable."""
        settings = self._settings()
        if settings is None:
            raise RequestError(
                "store: no responses are kept here any more; send store: false.", param="store", code="unsupported_parameter"
            )
        await self._kept.keep(wanted, settings)
        return Done()

    async def found(self, wanted: FindAnswer) -> AnswerFound:
        """Raises StoreUnavailable."""
        found = await self._kept.find(wanted.id, wanted.tenant)
        if wanted.erase and found.said is not None:
            await self._kept.erase(wanted.id, wanted.tenant)
        return found

    async def shred(self, tenant: str) -> int:
        """Erases everything of a tenant. Raises StoreUnavailable."""
        return await self._kept.erase_all(tenant)

    async def sweep(self) -> None:
        """Forgets what has expired. A store that does not answer is left to the next time."""
        try:
            self._sizes = await self._kept.sweep()
        except GatehouseError as error:
            log.debug("kept responses could not be swept: %s", error.message)

    def collect(self) -> Iterable[Metric]:
        """For a scrape; at most SWEEP_SECONDS old."""
        yield GaugeMetricFamily("gatehouse_kept_responses", "Responses that are kept in the store", value=float(self._sizes.answers))
        yield GaugeMetricFamily("gatehouse_kept_responses_bytes", "Bytes of the responses that are kept", value=float(self._sizes.size))
