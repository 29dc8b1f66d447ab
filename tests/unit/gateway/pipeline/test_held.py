"""Streams that are held for a guardrail which reads whole texts only, or must ask somebody."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from gateway.core.errors import ClientGone
from gateway.core.slices import Steps
from gateway.core.types import ALLOW, ResponseHead, Verdict
from gateway.core.waiting import Signal
from gateway.pipeline.guarded import Guarded
from gateway.pipeline.held import AT_ONCE, HOLD_BYTES
from tests.unit.gateway.pipeline.test_inspect import Failing, Scripted, documents, stream, text_of
from tests.unit.gateway.pipeline.world import DONE, SSE_HEAD, STREAM_BODY, World, chunk

HELLO = [chunk("hel") + chunk("lo"), chunk(None, finish="stop") + DONE]
BLOCKED = Verdict("block", "scripted", "Not this.")


def guarded(verdict: object = ALLOW, *, fail_open: bool = False) -> Guarded:
    return Guarded(Scripted(verdict), fail_open, lambda *event: None)  # type: ignore[arg-type]


def test_nothing_passes_before_the_end_and_then_everything_as_it_came() -> None:
    guardrail = Scripted()
    client, _ = stream([Guarded(guardrail, False, lambda *event: None)], HELLO[:1], end=False)
    assert text_of(client) == "" and client.status == 200
    client, world = stream([Guarded(guardrail, False, lambda *event: None)], HELLO)
    assert client.body == b"".join(HELLO)
    assert guardrail.seen == [["hello"]] and world.outcome.status == 200


def test_a_stream_without_a_type_is_held_too() -> None:
    world = World(response=[guarded(BLOCKED)])
    _, client = world.start(STREAM_BODY)
    world.call.head(ResponseHead(200, [])).body(HELLO[0][:3]).body(HELLO[0][3:]).body(HELLO[1]).end()
    assert client.status == 200 and text_of(client) == "" and b"Not this." in client.body


async def test_very_many_events_are_read_between_other_work() -> None:
    pieces = [chunk("ab")] * (3 * AT_ONCE) + HELLO[1:]
    guardrail = Scripted()
    client, world = stream([Guarded(guardrail, False, lambda *event: None)], pieces)
    assert text_of(client) == ""
    await until_ended(world)
    assert client.body == b"".join(pieces) and guardrail.seen == [["ab" * 3 * AT_ONCE]]
    client, world = stream([guarded(Verdict("rewrite", "scripted", "", ("other",)))], pieces)
    await until_ended(world)
    assert text_of(client) == "other"


async def until_ended(world: World) -> None:
    while not world.audit.outcomes:
        await asyncio.sleep(0)


def test_a_rewritten_text_stands_where_its_first_piece_was() -> None:
    client, _ = stream([guarded(Verdict("rewrite", "scripted", "", ("other",)))], HELLO)
    assert text_of(client) == "other"
    assert [document["choices"][0]["delta"].get("content") for document in documents(client)][:2] == ["other", ""]
    assert client.body.endswith(DONE)


def test_texts_of_choices_are_read_apart_and_in_their_order() -> None:
    guardrail = Scripted(Verdict("rewrite", "scripted", "", ("one", "two")))
    pieces = [chunk("a", index=0), chunk("b", index=1), chunk("c", index=0) + DONE]
    client, _ = stream([Guarded(guardrail, False, lambda *event: None)], pieces)
    assert guardrail.seen == [["ac", "b"]]
    assert (text_of(client, 0), text_of(client, 1)) == ("one", "two")


def test_a_blocked_stream_ends_with_an_error_and_without_its_texts() -> None:
    client, world = stream([guarded(BLOCKED)], HELLO)
    assert text_of(client) == "" and b"guardrail_violation" in client.body and client.body.endswith(DONE)
    assert (world.outcome.code, world.outcome.guardrail) == ("scripted", "scripted")
    assert world.outcome.completion_tokens > 0, "what was generated is charged"


async def test_a_guardrail_that_must_ask_somebody_is_waited_for_and_the_engine_is_free() -> None:
    verdict: Signal[Verdict] = Signal()
    client, world = stream([guarded(verdict)], HELLO)
    assert text_of(client) == "" and world.route.attempts[-1].results == ["success"]
    verdict.set(ALLOW)
    assert client.body == b"".join(HELLO) and world.outcome.status == 200


@pytest.mark.parametrize("fail_open", [True, False])
def test_one_that_fails_denies_unless_it_may_fail(fail_open: bool) -> None:
    verdict: Signal[Verdict] = Signal()
    client, _ = stream([guarded(verdict, fail_open=fail_open)], HELLO)
    verdict.fail(ZeroDivisionError("boom"))
    assert (text_of(client) == "hello") is fail_open
    assert (b"guardrail_violation" in client.body) is not fail_open


async def test_a_client_that_leaves_meanwhile_gets_nothing_more() -> None:
    verdict: Signal[Verdict] = Signal()
    world = World(response=[guarded(verdict)])
    exchange, client = world.start(STREAM_BODY)
    call = world.call.head(SSE_HEAD)
    for piece in HELLO:
        call.body(piece)
    call.end()
    exchange.cancel(ClientGone("left"))
    before = len(client.written)
    verdict.set(ALLOW)
    assert len(client.written) == before and world.outcome.outcome == "cancelled"


def test_a_stream_is_held_up_to_a_bound() -> None:
    piece = chunk("x" * 65536)
    client, world = stream([guarded()], [piece] * (HOLD_BYTES // 65536 + 1), end=False)
    assert world.outcome.code == "scripted" and text_of(client) == ""


async def test_the_other_guardrails_read_the_whole_text_too() -> None:
    following = Scripted(matcher=Failing("feed"))  # type: ignore[arg-type]  # it could follow a stream, but this one is held

    class Stepping:
        name = "stepping"

        def check(self, texts: Sequence[str]) -> Steps[Verdict]:
            yield
            return Verdict("rewrite", "stepping", "", tuple(text.upper() for text in texts))

        def stream(self) -> None:
            return None

    guardrails = [Guarded(following, False, lambda *event: None), guarded(), Guarded(Stepping(), False, lambda *event: None)]
    client, world = stream(guardrails, HELLO)
    while not world.audit.outcomes:
        await asyncio.sleep(0)
    assert following.seen == [["hello"]] and text_of(client) == "HELLO"


def test_a_verdict_for_another_number_of_texts_passes_nothing() -> None:
    client, _ = stream([guarded(Verdict("rewrite", "scripted", "", ("a", "b")))], HELLO)
    assert text_of(client) == "" and b"guardrail_violation" in client.body


def test_without_a_matcher_a_stream_that_is_not_held_passes_nothing() -> None:
    unaware = guarded()
    unaware.holds = False  # its entry does not know that it reads whole texts only
    client, _ = stream([unaware], HELLO)
    assert text_of(client) == "" and b"guardrail_violation" in client.body


def test_comments_go_on_while_the_stream_is_held() -> None:
    world = World(response=[guarded()], keep_alive=5.0)
    exchange, client = world.start(STREAM_BODY)
    world.call.head(SSE_HEAD).body(chunk("hel"))
    world.plane.now += 6.0
    exchange.expired(world.plane.now)
    assert b": keep-alive" in bytes(client.written)


def test_nothing_of_a_held_event_passes_unread() -> None:
    client, _ = stream([guarded()], [b": red falcon\n\nevent: red falcon\n" + HELLO[0], HELLO[1]])
    assert client.body.endswith(b"".join(HELLO)[-len(HELLO[1]) :]) and text_of(client) == "hello"
    assert b"falcon" not in client.body
