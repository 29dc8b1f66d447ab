"""Text parts of one message are read as one text and put back into the parts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import GuardrailViolation
from gateway.wire.openai.parts import joined, separated
from tests.steady import at_most, spent

PARTS = st.lists(st.text(alphabet="ab \n", max_size=6), min_size=1, max_size=5)


@given(PARTS)
def test_unchanged_texts_give_the_same_parts(parts: list[str]) -> None:
    assert separated(parts, joined(parts)) == parts


@given(PARTS)
def test_what_is_rewritten_inside_of_parts_goes_back_to_them(parts: list[str]) -> None:
    masked = [part.replace("a", "[X]") for part in parts]
    assert separated(parts, [text.replace("a", "[X]") for text in joined(parts)]) == masked


def test_a_line_break_that_is_rewritten_among_very_many_parts() -> None:
    parts = ["x" * 300] * 13_000
    parts[6_500] = "red\nfalcon"

    def rewrite() -> None:
        found = separated(parts, [text.replace("red\nfalcon", "[X]") for text in joined(parts)])
        assert [number for number, part in enumerate(found) if part != parts[number]] == [6_500] and found[6_500] == "[X]"

    at_most(1.0, lambda: spent(rewrite))  # a copy of the rest for each part takes many seconds


def test_what_is_rewritten_across_a_border_ends_in_one_part_or_is_refused() -> None:
    assert separated(["my red", "falcon x", "y"], ["my [X] x\ny", "my [X] xy"]) == ["my [X] x", "", "y"]
    with pytest.raises(GuardrailViolation):
        separated(["my fal", "con"], ["my fal\ncon", "my [X]"])
