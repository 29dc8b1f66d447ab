"""Which line a prompt takes and what it reuses."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.llamacpp.prefix import MIN_REUSE, Lines, common

SYSTEM = list(range(100, 140))


def run(lines: Lines, prompt: list[int], answer: list[int], domain: bytes = b"") -> tuple[int, int]:
    """Place, generate, release; (line, reused)."""
    placed = lines.place(prompt, domain)
    placed.line.tokens.extend([*prompt[placed.reuse :], *answer])
    lines.release(placed.line)
    return placed.line.seq, placed.reuse


@given(st.lists(st.integers(0, 2), max_size=30), st.lists(st.integers(0, 2), max_size=30))
def test_common_is_the_length_of_the_common_beginning(left: list[int], right: list[int]) -> None:
    expected = next((n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
    assert common(array("i", left), array("i", right)) == expected


def test_the_next_turn_takes_its_line_over() -> None:
    lines = Lines(4, 1000)
    seq, reused = run(lines, [*SYSTEM, 1], [2, 3])
    assert reused == 0
    assert run(lines, [*SYSTEM, 1, 2, 3, 4], [5]) == (seq, len(SYSTEM) + 3)


def test_an_equal_prompt_computes_its_last_token_again() -> None:
    lines = Lines(4, 1000)
    run(lines, SYSTEM, [])
    assert run(lines, SYSTEM, [])[1] == len(SYSTEM) - 1


def test_a_branch_copies_the_beginning_into_another_line() -> None:
    lines = Lines(4, 1000)
    seq, _ = run(lines, [*SYSTEM, 1], [2])
    placed = lines.place([*SYSTEM, 7])
    assert placed.source is not None and placed.source.seq == seq != placed.line.seq and placed.reuse == len(SYSTEM)
    assert list(placed.source.tokens) == [*SYSTEM, 1, 2] and list(placed.line.tokens) == SYSTEM


def test_a_running_request_can_be_copied_from_but_not_taken() -> None:
    lines = Lines(2, 1000)
    running = lines.place(SYSTEM)
    running.line.tokens.extend(SYSTEM)
    second = lines.place([*SYSTEM, 1])
    assert second.source is running.line and second.reuse == len(SYSTEM)
    with pytest.raises(LookupError):
        lines.place([1])


def test_the_only_idle_line_is_cut_where_it_differs() -> None:
    lines = Lines(1, 1000)
    run(lines, [*SYSTEM, 1], [2])
    placed = lines.place([*SYSTEM, 9])
    assert placed.source is None and placed.reuse == len(SYSTEM) and list(placed.line.tokens) == SYSTEM


def test_the_least_recently_used_line_makes_room_and_empty_ones_first() -> None:
    lines = Lines(3, 1000)
    first, _ = run(lines, [1] * 20, [])
    second, _ = run(lines, [2] * 20, [])
    third, _ = run(lines, [3] * 20, [])
    assert len({first, second, third}) == 3
    run(lines, [1] * 20, [])
    assert run(lines, [4] * 20, [])[0] == second


def test_short_common_beginnings_are_not_worth_it() -> None:
    lines = Lines(2, 1000)
    run(lines, SYSTEM, [])
    assert lines.place([*SYSTEM[: MIN_REUSE - 1], 1, 2]).reuse == 0


def test_room_forgets_the_oldest_and_never_what_runs_or_is_pinned() -> None:
    lines = Lines(4, 100)
    pinned = lines.place([9] * 30)
    pinned.line.tokens.extend([9] * 30)
    lines.pin(pinned.line)
    old, _ = run(lines, [1] * 30, [])
    run(lines, [2] * 20, [])
    busy = lines.place([3] * 15)
    busy.line.tokens.extend([3] * 15)
    assert lines.room(0) == [] and (lines.used(), lines.held()) == (95, 45)
    assert [line.seq for line in lines.room(30)] == [old]
    lines.room(1000)
    assert lines.used() == lines.held() == 45 and len(pinned.line.tokens) == 30 and len(busy.line.tokens) == 15


def test_recurrent_memory_is_only_continued() -> None:
    lines = Lines(3, 1000, partial=False)
    run(lines, SYSTEM, [])
    assert run(lines, [*SYSTEM, 5], [])[1] == len(SYSTEM)
    assert run(lines, [*SYSTEM, 6], [])[1] == 0


@given(st.lists(st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=40), st.booleans()), max_size=40), st.booleans())
def test_reuse_is_always_a_true_beginning(requests: list[tuple[list[int], bool]], partial: bool) -> None:
    lines = Lines(3, 60, partial=partial)
    running: list[tuple[object, object]] = []
    for prompt, keep in requests:
        if len(running) == 2:
            lines.release(running.pop(0)[0])  # type: ignore[arg-type]
        before = {id(line): list(line.tokens) for line in lines._lines}
        placed = lines.place(prompt)
        source = before[id(placed.source or placed.line)]
        assert source[: placed.reuse] == prompt[: placed.reuse] and placed.reuse < len(prompt)
        assert len({id(line) for line, _ in running} | {id(placed.line)}) == len(running) + 1
        placed.line.tokens.extend(prompt[placed.reuse :])
        if keep:
            running.append((placed.line, None))
        else:
            lines.release(placed.line)
        lines.room(0)


def test_a_prompt_is_reused_within_its_domain_only() -> None:
    lines = Lines(4, 1000)
    seq, _ = run(lines, SYSTEM, [1], b"aa")
    assert run(lines, SYSTEM, [1], b"bb") != (seq, 0) and run(lines, SYSTEM, [1])[1] == 0
    assert run(lines, [*SYSTEM, 1, 2], [], b"aa") == (seq, len(SYSTEM) + 1)


def test_a_running_prompt_of_another_domain_is_not_copied() -> None:
    lines = Lines(3, 1000)
    running = lines.place(SYSTEM, b"aa")
    running.line.tokens.extend(SYSTEM)
    assert lines.place([*SYSTEM, 1], b"bb").source is None
    assert lines.place([*SYSTEM, 1], b"aa").source is running.line


def test_a_line_that_another_domain_takes_is_no_longer_the_first_ones() -> None:
    lines = Lines(1, 1000)
    run(lines, SYSTEM, [1], b"aa")
    assert run(lines, SYSTEM, [1], b"bb")[1] == 0
    assert run(lines, SYSTEM, [1], b"aa")[1] == 0


def test_pinned_prompts_are_everybodys() -> None:
    lines = Lines(3, 1000)
    pinned = lines.place(SYSTEM)
    pinned.line.tokens.extend(SYSTEM)
    lines.pin(pinned.line)
    assert run(lines, [*SYSTEM, 1], [], b"aa")[1] == run(lines, [*SYSTEM, 1], [], b"bb")[1] == len(SYSTEM)


DOMAINS = st.sampled_from([b"", b"aa", b"bb"])
REQUESTS = st.lists(st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=40), DOMAINS), max_size=30)


@given(REQUESTS, st.booleans())
def test_what_is_reused_was_computed_for_the_same_domain(requests: list[tuple[list[int], bytes]], partial: bool) -> None:
    lines = Lines(4, 120, partial=partial)
    for prompt, domain in requests:
        before = {id(line): line.domain for line in lines._lines}
        placed = lines.place(prompt, domain)
        assert placed.reuse == 0 or before[id(placed.source or placed.line)] == domain
        placed.line.tokens.extend(prompt[placed.reuse :])
        lines.release(placed.line)
        lines.room(0)
