"""What a batch that was not written leaves to the next one."""

from typing import Any

import msgspec

from gateway.audit.batch import TRIAL, Gathering, Writing
from gateway.core.waiting import Signal


def test_what_was_forwarded_is_kept_in_order_before_what_gathers(make: Any) -> None:
    gathering = Gathering(queue=10)
    gathering.entries = [make.outcome("later")]
    lost = gathering.put_back([make.intent("waits"), b"journaled", make.event(), make.outcome("sooner")])
    assert lost == 0 and gathering.entries == [b"journaled", make.outcome("sooner"), make.outcome("later")]


def test_where_nobody_waits_everything_is_kept_but_the_event_that_tried_the_log(make: Any) -> None:
    gathering = Gathering(queue=10, unawaited=True)
    batch = [make.intent("forwarded"), make.event(), b"journaled", make.outcome("sooner")]
    assert gathering.put_back([msgspec.structs.replace(make.event(), event=TRIAL), *batch]) == 0
    assert gathering.entries == batch


def test_what_finds_no_room_is_counted(make: Any) -> None:
    gathering = Gathering(queue=2)
    gathering.entries = [make.outcome("c"), make.outcome("d")]
    assert gathering.put_back([make.outcome("a"), make.outcome("b")]) == 2
    assert gathering.entries == [make.outcome("a"), make.outcome("b")]


def test_the_queue_is_shared_with_the_batch_that_is_being_written() -> None:
    gathering = Gathering(queue=10)
    gathering.resize(writing=7, accepting=True)
    assert (gathering.room, gathering.outcome_room) == (3, 3)
    gathering.resize(writing=0, accepting=False)
    assert (gathering.room, gathering.outcome_room) == (0, 10)


def test_a_batch_that_was_taken_leaves_an_empty_one(make: Any) -> None:
    gathering, signal = Gathering(queue=10), Signal[None]()
    gathering.entries.append(make.intent())
    gathering.signal = signal
    assert gathering.take() == ([make.intent()], signal)
    assert gathering.take() == ([], None)


def test_a_writer_that_does_something_else_is_busy_without_a_batch() -> None:
    writing = Writing()
    assert writing.batch is None
    writing.begin([], None, 1.0)
    assert writing.batch == []
    assert writing.end() == ([], None) and writing.batch is None
