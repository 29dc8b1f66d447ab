"""Whether those who asked may still get what they asked for."""

from __future__ import annotations

import pytest

from gateway.app.clients.approvals import Requesters
from gateway.core.approvals import Requester
from gateway.core.clock import FakeClock
from gateway.core.errors import NotFound, PermissionDenied
from gateway.core.standing import Standing, Stop
from gateway.core.storage import KeyRecord

ASKED = 1000.0


@pytest.mark.parametrize(
    ("key", "stop", "refused"),
    [
        ({"created": ASKED - 1.0}, "", False),
        ({"created": ASKED + 0.5}, "", True),
        ({"created": ASKED - 1.0, "revoked": ASKED + 1.0}, "", True),
        ({"created": ASKED - 1.0}, "key/app", True),
        (None, "", True),
    ],
)
async def test_who_may_still_have_it(key: dict[str, float] | None, stop: str, refused: bool) -> None:
    async def found(id: str) -> KeyRecord:
        if key is None:
            raise NotFound("There is none.")
        return KeyRecord(id=id, tenant="acme", prefix="gh_", version=1, updated=0.0, actor="x", **key)

    standing, clock = Standing(), FakeClock()
    clock.advance(max(0.0, ASKED + 10.0 - clock.wall()))
    standing.replace("suspensions", [Stop(stop, "suspended")] if stop else [])
    check = Requesters(standing, found, lambda: {"fixed"}, clock).check
    await check(Requester(tenant="acme", id="fixed", kind="api_key"), ASKED)
    asked = check(Requester(tenant="acme", id="app", kind="api_key"), ASKED)
    if refused:
        with pytest.raises(PermissionDenied) as caught:
            await asked
        assert caught.value.code == "requester_stopped"
    else:
        await asked
