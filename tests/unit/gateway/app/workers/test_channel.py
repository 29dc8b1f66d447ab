"""Two ends of a real socket pair: order, questions with deadlines, changes that are acknowledged, bounds, and how a channel ends."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.app.workers.channel import Applied, AskRefused, Channel, FeedClosed, FeedTimeout, Handlers
from gateway.app.workers.codec import HEAD, TELL, Codec, FeedError
from gateway.core.errors import Overloaded, StoreUnavailable
from gateway.core.messages import Ask, Done, Message
from gateway.core.tasks import TaskOwner
from tests.waiting import reached


class Note(Message, frozen=True):
    text: str


class Stranger(Message, frozen=True):
    """Of a kind that the other end does not know."""


class Double(Ask["Doubled"], frozen=True):
    number: int


class Doubled(Message, frozen=True):
    number: int


class Set(Message, frozen=True):
    value: int


KINDS = (Note, Double, Doubled, Set, Done)


class Pair:
    """a asks and tells, b answers."""

    def __init__(self) -> None:
        self.tasks = TaskOwner("test")
        self.handlers = Handlers()
        self.heard: list[str] = []
        self.ends: list[tuple[str, str]] = []
        self.acks: list[int] = []
        self.gate = asyncio.Event()
        self.handlers.on(Note, lambda peer, message: self.heard.append(f"{peer}: {message.text}"))

    async def open(self, **bounds: int) -> Pair:
        left, self.right = socket.socketpair()
        self.a = Channel(
            "b",
            Codec([*KINDS, Stranger]),
            Handlers(),
            self.tasks,
            on_end=lambda reason: self.ends.append(("a", reason)),
            on_ack=self.acks.append,
            **bounds,  # type: ignore[arg-type]
        )
        self.b = Channel("a", Codec(KINDS), self.handlers, self.tasks, on_end=lambda reason: self.ends.append(("b", reason)))
        await self.a.open(left)
        await self.b.open(self.right)
        return self

    async def close(self) -> None:
        await self.a.aclose()
        await self.b.aclose()
        await self.tasks.aclose()


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    made = Pair()
    yield made
    await made.close()


async def test_messages_arrive_in_order(pair: Pair) -> None:
    await pair.open()
    for number in range(500):
        pair.a.tell(Note(str(number)))
    await reached(lambda: len(pair.heard) == 500)
    assert pair.heard == [f"a: {number}" for number in range(500)]


async def test_a_large_message_arrives_whole(pair: Pair) -> None:
    await pair.open()
    pair.a.tell(Note("x" * 3_000_000))
    await reached(lambda: pair.heard)
    assert len(pair.heard[0]) == 3_000_003


async def test_an_unknown_kind_is_left_alone_and_the_feed_goes_on(pair: Pair) -> None:
    await pair.open()
    pair.a.tell(Stranger())
    pair.a.tell(Note("next"))
    await reached(lambda: pair.heard == ["a: next"])


async def test_a_handler_that_fails_does_not_end_the_feed(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    def fail(peer: str, message: Set) -> None:
        raise RuntimeError("a defect")

    pair.handlers.on(Set, fail)
    await pair.open()
    pair.a.tell(Set(1))
    pair.a.tell(Note("next"))
    await reached(lambda: pair.heard == ["a: next"])
    assert "a defect" in caplog.text


# --- questions


async def test_a_question_is_answered_at_once_or_later(pair: Pair) -> None:
    async def later(peer: str, ask: Double) -> Doubled:
        await pair.gate.wait()
        return Doubled(ask.number * 2)

    pair.handlers.answer(Double, lambda peer, ask: Doubled(ask.number * 2) if ask.number < 10 else later(peer, ask))
    await pair.open()
    slow = pair.a.ask(Double(10), 30.0)
    assert (await pair.a.ask(Double(4), 30.0)).number == 8
    assert not slow.done()
    pair.gate.set()
    assert (await slow).number == 20


async def test_an_error_is_raised_again_where_it_was_asked(pair: Pair) -> None:
    async def refuse(peer: str, ask: Double) -> Doubled:
        raise StoreUnavailable("The store does not answer.", retry_after=2.0, headers=(("x-should-retry", "false"),))

    pair.handlers.answer(Double, refuse)
    await pair.open()
    with pytest.raises(AskRefused) as raised:
        await pair.a.ask(Double(1), 30.0)
    error, like = raised.value, StoreUnavailable("")
    assert (error.message, error.retry_after, error.headers) == ("The store does not answer.", 2.0, (("x-should-retry", "false"),))
    assert (error.status, error.type, error.code) == (like.status, like.type, like.code)


async def test_a_defect_is_told_without_its_text(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    def fail(peer: str, ask: Double) -> Doubled:
        raise RuntimeError("with a secret")

    pair.handlers.answer(Double, fail)
    await pair.open()
    with pytest.raises(AskRefused) as raised:
        await pair.a.ask(Double(1), 30.0)
    assert "secret" not in raised.value.message
    assert "with a secret" in caplog.text


async def test_a_question_that_nobody_answers_is_refused(pair: Pair) -> None:
    await pair.open()
    with pytest.raises(AskRefused, match="no question"):
        await pair.a.ask(Double(1), 30.0)


async def test_a_question_has_a_deadline_and_a_late_answer_is_dropped(pair: Pair) -> None:
    async def late(peer: str, ask: Double) -> Doubled:
        await pair.gate.wait()
        return Doubled(0)

    pair.handlers.answer(Double, late)
    await pair.open()
    with pytest.raises(FeedTimeout):
        await pair.a.ask(Double(1), 0.01)
    pair.gate.set()
    pair.a.tell(Note("still there"))
    await reached(lambda: pair.heard)
    assert pair.ends == []


async def test_a_pause_of_this_process_costs_an_answer_none_of_its_time(pair: Pair) -> None:
    async def waits(peer: str, ask: Double) -> Doubled:
        await pair.gate.wait()
        return Doubled(2 * ask.number)

    pair.handlers.answer(Double, waits)
    await pair.open()
    answer = pair.a.ask(Double(1), 120.0)
    (number,) = pair.a._asks
    before = pair.a._asks[number][1]
    pair.a._late(number, 120.0, time.monotonic() - 60.0)  # a minute after its time
    assert not answer.done() and pair.a._asks[number][1] is not before
    before.cancel()
    pair.gate.set()
    assert (await answer).number == 2 and not pair.a._asks
    late = pair.a.ask(Double(1), 120.0)
    pair.a._late(number + 1, 120.0, time.monotonic())
    with pytest.raises(FeedTimeout):
        await late


async def test_the_answers_of_a_peer_that_is_replaced_are_waited_for(pair: Pair) -> None:
    pair.handlers.answer(Double, lambda peer, ask: _waits(pair.gate))
    await pair.open()
    pair.a.wait_longer(3600.0)
    answer = pair.a.ask(Double(1), 120.0)
    (number,) = pair.a._asks
    before = pair.a._asks[number][1]
    pair.a._late(number, 120.0, time.monotonic())
    assert not answer.done() and pair.a._asks[number][1] is not before
    before.cancel()
    pair.a.wait_longer(0.0)
    pair.a._late(number, 120.0, time.monotonic())
    with pytest.raises(FeedTimeout):
        await answer
    pair.gate.set()


async def test_questions_are_bounded_and_a_cancelled_one_makes_room(pair: Pair) -> None:
    pair.handlers.answer(Double, lambda peer, ask: _waits(pair.gate))
    await pair.open(max_asks=2)
    first, second = pair.a.ask(Double(1), 30.0), pair.a.ask(Double(2), 30.0)
    with pytest.raises(Overloaded):
        pair.a.ask(Double(3), 30.0)
    first.cancel()
    await asyncio.sleep(0)
    third = pair.a.ask(Double(3), 30.0)
    pair.gate.set()
    assert (await second, await third) == (Doubled(7), Doubled(7))


async def _waits(gate: asyncio.Event) -> Doubled:
    await gate.wait()
    return Doubled(7)


# --- changes


async def test_a_change_is_acknowledged_once_it_is_in_force(pair: Pair) -> None:
    values: list[int] = []

    async def slow(value: int) -> None:
        await pair.gate.wait()
        values.append(value)

    pair.handlers.change(Set, lambda peer, change: slow(change.value) if change.value == 2 else values.append(change.value))
    await pair.open()
    for number in (1, 2, 3):
        pair.a.change(number, Set(number))
    await reached(lambda: values == [1, 3])
    assert pair.acks in ([], [1])
    pair.gate.set()
    await reached(lambda: pair.acks == [1, 3])


async def test_a_gap_in_the_numbers_ends_the_feed(pair: Pair) -> None:
    pair.handlers.change(Set, lambda peer, change: None)
    await pair.open()
    pair.a.change(1, Set(1))
    pair.a.change(3, Set(3))
    await reached(lambda: len(pair.ends) == 2)
    assert ("b", "change 3 came over the feed after change 1") in pair.ends


@pytest.mark.parametrize("later", [False, True])
async def test_a_change_that_cannot_be_put_into_force_ends_the_feed(pair: Pair, later: bool) -> None:
    async def fail_later() -> None:
        raise ValueError("no good")

    def fail(peer: str, change: Set) -> object:
        if later:
            return fail_later()
        raise ValueError("no good")

    pair.handlers.change(Set, fail)  # type: ignore[arg-type]
    await pair.open()
    pair.a.change(1, Set(1))
    await reached(lambda: len(pair.ends) == 2)
    assert ("b", "the change Set could not be put into force: ValueError: no good") in pair.ends
    assert pair.acks == []


@given(st.permutations(list(range(1, 9))))
def test_all_changes_up_to_the_acknowledged_one_are_in_force(order: list[int]) -> None:
    applied = Applied()
    for number in range(1, 9):
        applied.begin(number)
    finished: set[int] = set()
    for number in order:
        before = applied.number
        finished.add(number)
        assert applied.done(number) == (applied.number > before)
        assert set(range(1, applied.number + 1)) <= finished
        assert applied.number + 1 not in finished
    assert applied.number == 8


def test_numbers_go_on_after_those_of_the_state() -> None:
    applied = Applied(41)
    applied.begin(42)
    assert applied.done(42)
    assert applied.number == 42
    with pytest.raises(FeedError, match="change 44"):
        applied.begin(44)


# --- the end


async def test_the_end_is_heard_once_and_open_questions_fail(pair: Pair) -> None:
    pair.handlers.answer(Double, lambda peer, ask: _waits(pair.gate))
    await pair.open()
    asked = pair.a.ask(Double(1), 30.0)
    await pair.b.aclose()
    with pytest.raises(FeedClosed):
        await asked
    await reached(lambda: pair.a.ended)
    pair.a.end("again")
    pair.a.tell(Note("nobody hears"))
    with pytest.raises(FeedClosed):
        await pair.a.ask(Double(1), 30.0)
    assert sorted(pair.ends) == [("a", "it closed the feed"), ("b", "it was closed here")]


async def test_garbage_ends_the_feed(pair: Pair) -> None:
    left, right = socket.socketpair()
    ends: list[str] = []
    channel = Channel("b", Codec(KINDS), Handlers(), pair.tasks, on_end=ends.append)
    await channel.open(left)
    await pair.open()
    right.sendall((3).to_bytes(HEAD, "big") + b"abc")
    await reached(lambda: ends)
    assert "no frame" in ends[0]
    right.close()


async def test_a_peer_that_does_not_read_is_given_up(pair: Pair) -> None:
    left, right = socket.socketpair()
    ends: list[str] = []
    channel = Channel("b", Codec(KINDS), Handlers(), pair.tasks, on_end=ends.append, max_backlog=1_000_000)
    await channel.open(left)
    await pair.open()
    for _ in range(30):
        channel.tell(Note("x" * 100_000))
    assert "does not read" in ends[0]
    assert channel.backlog == 0
    right.close()


async def test_a_whole_may_be_larger_than_what_may_wait_but_no_two_of_them(pair: Pair) -> None:
    left, right = socket.socketpair()
    ends: list[str] = []
    codec = Codec(KINDS)
    channel = Channel("b", codec, Handlers(), pair.tasks, on_end=ends.append, max_backlog=1_000_000)
    await channel.open(left)
    await pair.open()
    whole = [codec.encode(TELL, 0, Note("x" * 100_000)) for _ in range(30)]
    channel.send_whole(whole)
    for _ in range(5):
        channel.tell(Note("x" * 100_000))
    assert not ends
    channel.send_whole(whole)
    assert "does not read" in ends[0]
    right.close()


async def test_what_waits_is_sent_before_a_close(pair: Pair) -> None:
    await pair.open()
    for number in range(100):
        pair.a.tell(Note("x" * 10_000 + str(number)))
    await pair.a.aclose(30.0)
    await reached(lambda: len(pair.heard) == 100)


def test_a_kind_has_one_handler() -> None:
    handlers = Handlers()
    handlers.on(Note, lambda peer, message: None)
    with pytest.raises(ValueError, match="Note"):
        handlers.change(Note, lambda peer, message: None)
    assert handlers.kinds() == {Note}


# --- from one program to the next


async def resumed(pair: Pair, handlers: Handlers, left: tuple[int, bytes, int] | None) -> Channel:
    """What the next program makes of what a channel has let go."""
    assert left is not None
    descriptor, unread, asked = left
    channel = Channel(
        "b", Codec(KINDS), handlers, pair.tasks, on_end=lambda reason: pair.ends.append(("next", reason)), on_ack=pair.acks.append
    )
    await channel.resume(socket.socket(fileno=descriptor), unread, asked)
    return channel


async def test_another_program_goes_on_with_a_channel(pair: Pair) -> None:
    """a is replaced while b tells, asks and acknowledges; b notices nothing."""
    pair.handlers.change(Set, lambda _, message: None)
    await pair.open()
    heard: list[str] = []
    handlers = Handlers()
    handlers.on(Note, lambda _, message: heard.append(message.text))
    handlers.answer(Double, lambda _, message: Doubled(2 * message.number))
    pair.a.change(1, Set(1))
    await reached(lambda: pair.acks == [1])
    pair.a.hold()
    pair.b.tell(Note("while nobody reads"))
    answer = pair.b.ask(Double(21), 60.0)
    await pair.a.settled(60.0)
    left = pair.a.let_go()
    pair.b.tell(Note("while nobody is there"))
    after = await resumed(pair, handlers, left)
    assert (await answer).number == 42
    assert heard == ["while nobody reads", "while nobody is there"]
    after.tell(Note("hello"))
    after.change(2, Set(2))
    await reached(lambda: pair.heard == ["a: hello"] and pair.acks == [1, 2])
    assert pair.ends == [], "nobody hears of an end"
    await after.aclose()


async def test_what_was_asked_is_answered_before_the_channel_is_let_go(pair: Pair) -> None:
    handlers = pair.handlers
    gate = asyncio.Event()

    async def late(peer: str, message: Double) -> Doubled:
        await gate.wait()
        return Doubled(2 * message.number)

    handlers.answer(Double, late)
    await pair.open()
    answer = pair.a.ask(Double(1), 60.0)
    await reached(lambda: pair.b._serving == 1)
    pair.b.hold()
    settling = asyncio.ensure_future(pair.b.settled(60.0))
    await asyncio.sleep(0)
    assert not settling.done()
    gate.set()
    await settling
    assert (await answer).number == 2
    left = pair.b.let_go()
    assert left is not None and pair.b.let_go() is None
    os.close(left[0])


async def test_an_answer_to_the_program_before_is_nobodys(pair: Pair) -> None:
    """Its number is not used again, so it cannot be taken for another question's."""
    gate = asyncio.Event()

    async def late(peer: str, message: Double) -> Doubled:
        if message.number == 1:
            await gate.wait()
        return Doubled(2 * message.number)

    pair.handlers.answer(Double, late)
    await pair.open()
    before = pair.a.ask(Double(1), 60.0)
    await reached(lambda: pair.b._serving == 1)
    pair.a.hold()
    after = await resumed(pair, Handlers(), pair.a.let_go())
    gate.set()
    assert (await after.ask(Double(5), 60.0)).number == 10
    assert before.cancelled()
    await after.aclose()


@given(st.integers(1, 40))
async def test_a_frame_that_has_come_in_part_is_handed_over(cut: int) -> None:
    pair = await Pair().open()
    heard: list[str] = []
    handlers = Handlers()
    handlers.on(Note, lambda _, message: heard.append(message.text))
    frame = Codec(KINDS).encode(TELL, 0, Note("in two parts, one before and one after"))
    pair.a._handlers.on(Note, lambda _, message: heard.append("too early"))
    pair.b.send(frame[:cut])
    await reached(lambda: pair.a._reader.pending == cut)
    after = await resumed(pair, handlers, pair.a.let_go())
    pair.b.send(frame[cut:])
    await reached(lambda: heard == ["in two parts, one before and one after"])
    await after.aclose()
    await pair.close()
