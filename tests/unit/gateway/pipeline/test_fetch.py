"""A model's metadata and readiness: refused, charged and recorded as inference is (tests/unit/gateway/server/test_app.py has the rest)."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core.standing import halt
from gateway.core.types import NARROWED, InferenceRequest, Principal, Usage
from tests.unit.gateway.server.test_app import Site, asked, code


def limited_as(site: Site) -> list[tuple[str, str]]:
    """The operation and the model of each request that the limiter is asked about from now on."""
    noted: list[tuple[str, str]] = []
    reserve = site.world.limiter.reserve

    def noting(principal: Principal, request: InferenceRequest) -> Any:
        noted.append((request.operation, request.model))
        return reserve(principal, request)

    site.world.limiter.reserve = noting  # type: ignore[method-assign]
    return noted


@pytest.mark.parametrize(
    ("allow", "visible", "path", "status"),
    [
        (False, True, b"m", 403),
        (False, True, b"m/ready", 403),
        (False, False, b"m", 404),
        (True, True, b"x", 404),
        (True, True, b"%ff", 404),
    ],
)
async def test_a_refusal_is_charged_like_one_of_inference(allow: bool, visible: bool, path: bytes, status: int) -> None:
    site = Site()
    site.world.authorizer.allow, site.world.authorizer.visible = allow, visible
    limited = limited_as(site)
    assert (await site.ask(b"/v2/models/" + path))[0] == status
    assert limited == [("infer", "m" if status == 403 else "")]
    assert [one.settled for one in site.world.limiter.reservations] == [[Usage()]], "probing costs a request"
    outcome = site.world.outcome
    assert (outcome.outcome, outcome.operation, outcome.charged) == ("denied", "metadata", True)
    assert site.world.engine.calls == [] and site.world.audit.intents == []


async def test_a_halted_model_is_charged_too() -> None:
    site = Site()
    site.world.plane.standing.replace("halts", [halt("model/m")])
    status, _, body = await site.ask(b"/v2/models/m")
    assert (status, code(body)) == (403, "halted")
    assert [one.settled for one in site.world.limiter.reservations] == [[Usage()]] and site.world.engine.calls == []


async def test_an_unknown_action_of_a_model_that_is_seen_costs_nothing() -> None:
    site = Site()
    status, _, body = await site.ask(b"/v2/models/m/stats")
    assert (status, code(body)) == (404, "not_found") and site.world.limiter.reservations == []


async def test_a_narrowed_token_is_told_so_as_for_inference() -> None:
    site = Site()
    site.world.authorizer.decide = lambda *_: NARROWED  # type: ignore[method-assign]
    site.world.authorizer.visible = False
    status, headers, body = await site.ask(b"/v2/models/m")
    assert (status, code(body)) == (403, "insufficient_scope") and "insufficient_scope" in headers["www-authenticate"]


async def test_limits_of_the_operation_infer_count_it() -> None:
    site = Site()
    limited = limited_as(site)
    await asked(site, b"/v2/models/alias")
    assert limited == [("infer", "m")]
    site.world.call.answer(b"{}")
    assert site.world.outcome.operation == "metadata"
