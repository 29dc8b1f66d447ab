"""Why a request's record or text cannot be encrypted."""

from __future__ import annotations

import asyncio

import pytest

from gateway.app.workers.channel import FeedClosed
from gateway.core.errors import AuditUnavailable, GatehouseError
from gateway.pipeline.capture import RecordKeys


class NoKeys:
    """Has no key to give, for the reason that it is told."""

    def __init__(self, reason: GatehouseError) -> None:
        self.reason = reason

    async def current(self, tenant: str) -> object:
        raise self.reason


@pytest.mark.parametrize(
    ("reason", "says"),
    [
        (FeedClosed("The control process has ended."), "the data keys cannot be reached at present"),
        (GatehouseError("The tenant's keys were destroyed.", code="keys_destroyed", status=503), "keys_destroyed"),
    ],
)
def test_a_request_that_cannot_be_recorded_is_refused_with_the_reason(reason: GatehouseError, says: str) -> None:
    keys = RecordKeys(NoKeys(reason))
    with pytest.raises(AuditUnavailable) as refused:
        asyncio.run(keys.at_hand("a"))
    assert refused.value.message == f"The record of this request cannot be encrypted: {says}."
    assert refused.value.status == 503
    asyncio.run(keys.at_hand(""))
