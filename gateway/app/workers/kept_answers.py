"""Answers that are kept, for approvals and for later requests, in a worker: the control process, which has the store, is asked."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from gateway.app.workers.store_feed import StoreFeed
from gateway.core.approvals import Held, Hold, Take, Taken
from gateway.core.conversations import AnswerFound, FindAnswer, KeepAnswer
from gateway.core.messages import Done
from gateway.core.tasks import TaskOwner

SECONDS: Final = 10.0
"""How long an answer may take: more than the store's own deadline."""


class FeedDesk:
    """Implements gateway.core.approvals.ApprovalDesk over the feed."""

    def __init__(self, stored: StoreFeed, owner: TaskOwner) -> None:
        self._stored, self._owner = stored, owner

    def hold(self, wanted: Hold) -> Awaitable[Held]:
        return self._owner.wait(self._stored.ask(wanted, SECONDS), name="hold")

    def take(self, wanted: Take) -> Awaitable[Taken]:
        return self._owner.wait(self._stored.ask(wanted, SECONDS), name="take")


class FeedAnswers:
    """Implements gateway.core.conversations.ConversationDesk over the feed."""

    def __init__(self, stored: StoreFeed, owner: TaskOwner) -> None:
        self._stored, self._owner = stored, owner

    def keep(self, wanted: KeepAnswer) -> Awaitable[Done]:
        return self._owner.wait(self._stored.ask(wanted, SECONDS), name="keep")

    def find(self, wanted: FindAnswer) -> Awaitable[AnswerFound]:
        return self._owner.wait(self._stored.ask(wanted, SECONDS), name="find")
