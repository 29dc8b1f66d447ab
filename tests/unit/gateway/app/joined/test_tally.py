"""What an answer used, from its bytes however they are cut."""

from __future__ import annotations

from hashlib import sha256

import pytest

from gateway.app.joined.tally import Tally

WHOLE = (
    b'{"choices":[{"finish_reason":"length"}],'
    b'"usage":{"prompt_tokens":7,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":2}}}'
)
EVENTS = (
    b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":null}]}\n\n'
    b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":1,"completion_tokens_details":{"reasoning_tokens":1}}}\n\n'
    b"data: [DONE]\n\n"
)


def test_a_whole_answer_says_what_it_used() -> None:
    tally = Tally(False)
    for place in range(0, len(WHOLE), 7):
        tally.feed(WHOLE[place : place + 7])
    used = tally.used(1, 100, whole=True)
    assert used == {"prompt_tokens": 7, "completion_tokens": 5, "cached_tokens": 2, "reasoning_tokens": 0, "finish": "length"}
    assert (tally.bytes, tally.sha256) == (len(WHOLE), sha256(WHOLE).hexdigest())


@pytest.mark.parametrize("step", [1, 3, 1000])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_a_stream_says_it_at_its_end(step: int, newline: bytes) -> None:
    events, tally = EVENTS.replace(b"\n", newline), Tally(True)
    for place in range(0, len(events), step):
        tally.feed(events[place : place + step])
    used = tally.used(1, 100, whole=True)
    assert used == {"prompt_tokens": 7, "completion_tokens": 1, "cached_tokens": 0, "reasoning_tokens": 1, "finish": "stop"}
    assert tally.done and tally.bytes == len(events)


def test_of_a_part_of_a_stream_chunks_count() -> None:
    tally = Tally(True)
    tally.feed(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n' * 12 + b'data: {"cho')
    assert tally.used(9, 100, whole=False) == {"prompt_tokens": 9, "completion_tokens": 12, "estimated": True, "finish": ""}
    assert tally.used(9, 10, whole=False)["completion_tokens"] == 10
    assert not tally.done


@pytest.mark.parametrize(("data", "whole", "tokens"), [(b"{}", True, 100), (b"not json", True, 100), (b"", False, 0)])
def test_a_whole_answer_that_says_nothing_counts_in_full(data: bytes, whole: bool, tokens: int) -> None:
    tally = Tally(False)
    tally.feed(data)
    used = tally.used(9, 100, whole=whole)
    assert (used["prompt_tokens"], used["completion_tokens"], used["estimated"]) == (9, tokens, True)


def test_an_event_without_an_end_is_not_kept() -> None:
    tally = Tally(True)
    tally.feed(b"data: " + b"x" * 400_000)
    assert len(tally._rest) == 0
