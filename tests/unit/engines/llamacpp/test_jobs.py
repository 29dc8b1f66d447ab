"""What a job's reader gets, and the rate that health reports."""

import asyncio
from typing import Any, cast

import pytest

from engines.chat.events import Event, Mailbox
from engines.llamacpp.jobs import SequenceJob, Stats


def job(mailbox: Mailbox) -> SequenceJob:
    """One that nobody samples for."""
    return SequenceJob(priority=0, arrival=0, prompt=1, tokens=[1], sampler=cast(Any, None), max_tokens=1, mailbox=mailbox)


async def test_a_mailbox_gives_all_events_in_order_and_waits_for_the_first() -> None:
    mailbox = Mailbox()
    item = job(mailbox)
    waiting = asyncio.ensure_future(mailbox.get())
    await asyncio.sleep(0)
    assert not waiting.done()
    mailbox.put(item, Event(7))
    assert [event.token for _job, event in await asyncio.wait_for(waiting, 30)] == [7]
    for token in (8, 9):
        mailbox.put(item, Event(token))
    assert [event.token for _job, event in await mailbox.get()] == [8, 9]
    assert item.consumed == 3, "what was read is no backlog"


def test_the_rate_is_that_of_the_last_two_seconds() -> None:
    stats = Stats()
    for step in range(100):
        stats.produced(8, step * 0.1)
    assert stats.generated_tokens == 800
    assert stats.rate_at(9.9) == pytest.approx(80, rel=0.06)
    assert stats.rate_at(12.0) == 0.0
    assert ("generated_tokens_total", "counter", 800) in stats.metrics()
