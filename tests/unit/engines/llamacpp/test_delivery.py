"""Events reach their readers in order and when they are due."""

import asyncio
import time
from typing import Any, cast

from engines.chat.events import Event, Mailbox
from engines.llamacpp.delivery import Delivery
from engines.llamacpp.jobs import SequenceJob
from engines.sidecar.shell import ApiError

LATER = 3600.0


def job() -> SequenceJob:
    return SequenceJob(
        priority=1, arrival=0, prompt=1, tokens=[1], sampler=cast(Any, None), max_tokens=9, mailbox=Mailbox[SequenceJob]()
    )  # fmt: skip


async def came(one: SequenceJob) -> list[int | None]:
    """The tokens that lie in the mailbox."""
    return [event.token for _job, event in await asyncio.wait_for(one.mailbox.get(), 60)]


async def test_what_is_due_comes_at_once_and_brings_what_its_job_has_waited_for() -> None:
    delivery, one, other, now = Delivery(), job(), job(), time.monotonic()
    delivery.deliver([(one, Event(1), 0.0), (one, Event(2), now + LATER), (other, Event(7), now)])
    assert await came(one) == [1] and await came(other) == [7]
    delivery.deliver([(one, Event(3), now + LATER)])
    delivery.deliver([(one, Event(4), now)])
    assert await came(one) == [2, 3, 4]


async def test_what_ends_a_job_is_never_held() -> None:
    delivery, now = Delivery(), time.monotonic()
    for end in (Event(2, finish="length"), Event(None, error=ApiError(500, "failed"))):
        one = job()
        delivery.deliver([(one, Event(1), now + LATER)])
        delivery.deliver([(one, end, now + LATER)])
        assert await came(one) == [1, end.token]


async def test_each_event_comes_when_it_is_due_and_not_before() -> None:
    delivery, one, other, now = Delivery(), job(), job(), time.monotonic()
    delivery.deliver(
        [(one, Event(1), now + 0.06), (one, Event(2), now + 0.12), (other, Event(7), now + 0.03), (one, Event(3), now + LATER)]
    )
    for mailbox_of, token, due in ((other, 7, 0.03), (one, 1, 0.06), (one, 2, 0.12)):
        found = await came(mailbox_of)
        assert found[0] == token and time.monotonic() - now >= due - 0.005
        if len(found) > 1:  # a busy machine: two at once
            assert found == [1, 2]
            break
    delivery.drop(one)


async def test_a_job_that_nobody_reads_any_more_gets_nothing_and_holds_up_nobody() -> None:
    delivery, one, other, now = Delivery(), job(), job(), time.monotonic()
    delivery.deliver([(one, Event(1), now + 0.02), (other, Event(7), now + 0.04)])
    delivery.drop(one)
    assert await came(other) == [7]
    delivery.deliver([(one, Event(2), now + LATER), (other, Event(8), now + LATER)])
    delivery.drop(one)
    delivery.deliver([(one, Event(3), 0.0)])
    assert await came(one) == [3]
    delivery.drop(other)
