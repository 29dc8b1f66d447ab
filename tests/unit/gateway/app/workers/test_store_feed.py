"""What a worker is told where the process that has the store does not answer."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from gateway.app.workers.channel import AskRefused, FeedClosed, FeedTimeout
from gateway.app.workers.codec import Refusal
from gateway.app.workers.store_feed import StoreFeed
from gateway.core.batch_messages import FileRoom
from gateway.core.errors import GatehouseError, Overloaded, StoreUnavailable
from gateway.core.messages import Done

REFUSED = AskRefused(Refusal("No.", "invalid_request_error", "not_found", 404))


class Feed:
    """Answers each question alike."""

    def __init__(self, answer: GatehouseError | Done) -> None:
        self.answer = answer

    def ask(self, message: FileRoom, seconds: float) -> asyncio.Future[Done]:
        if isinstance(self.answer, Overloaded):
            raise self.answer
        answered: asyncio.Future[Done] = asyncio.get_running_loop().create_future()
        if isinstance(self.answer, Done):
            answered.set_result(self.answer)
        else:
            answered.set_exception(self.answer)
        return answered


@pytest.mark.parametrize("error", [FeedTimeout("late", retry_after=1.0), FeedClosed("gone")])
async def test_a_control_process_that_does_not_answer_is_a_store_that_cannot_be_reached(error: FeedClosed) -> None:
    with pytest.raises(StoreUnavailable) as raised:
        await StoreFeed(cast(Any, Feed(error))).ask(FileRoom("acme"), 1.0)
    assert (raised.value.status, raised.value.code, raised.value.retry_after) == (503, "store_unavailable", 1.0)


@pytest.mark.parametrize("error", [REFUSED, Overloaded("Too many questions.")])
async def test_what_it_refuses_and_too_many_questions_stay_what_they_are(error: GatehouseError) -> None:
    with pytest.raises(GatehouseError) as raised:
        await StoreFeed(cast(Any, Feed(error))).ask(FileRoom("acme"), 1.0)
    assert raised.value is error


async def test_an_answer_passes() -> None:
    assert await StoreFeed(cast(Any, Feed(Done()))).ask(FileRoom("acme"), 1.0) == Done()
