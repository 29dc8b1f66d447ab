"""Telephone numbers as people write them."""

from __future__ import annotations

import pytest

from tests.unit.policies.guardrails.pii.finding import found


@pytest.mark.parametrize(
    "text",
    [
        *("+14155552671", "+1 415 555 2671", "+1 (415) 555-2671", "(415) 555-2671", "415-555-2671", "415.555.2671"),
        *("+442079460958", "+44 (0)20 7946 0958", "020 7946 0958", "07700 900123", "+49 30 901820", "030/1234567", "0171 1234567"),
        *("06 12 34 56 78", "+33 6 12 34 56 78", "01.23.45.67.89", "612 345 678", "+34 612 34 56 78", "347 123 4567", "+39 06 6982"),
        *("06-12345678", "0470/12.34.56", "070-123 45 67", "044 668 18 00", "0412 345 678", "(02) 9374 4000", "98765 43210"),
        *("(11) 91234-5678", "090-1234-5678", "138 0013 8000", "0048 22 123 45 67", "+972 50-123-4567", "+358 40 1234567"),
        *("phone 4155552671", "Tel: 0612345678", "电话 13800138000"),
    ],
)
def test_it_is_found_whole(text: str) -> None:
    entities = found(f"So {text}, please.")
    assert [entity for entity, _ in entities] == ["phone"]
    assert text.endswith(entities[0][1]) and len(entities[0][1]) >= 8


@pytest.mark.parametrize(
    "text",
    [
        *("1700000000", "20240131", "2024-01-31", "12:34:56", "1.2.3", "+12", "+1 000 000 0000", "100-200-3000", "(111) 555-2671"),
        *("550e8400-e29b-41d4-a716-446655440000", "0x1234567890", "3.14159265", "1,234,567,890", "12 34 56 78", "ffff0612345678"),
    ],
)
def test_other_numbers_are_not(text: str) -> None:
    assert found(f"value {text} here") == []


def test_what_follows_a_number_is_not_part_of_it() -> None:
    assert found("+1 415 555 2671 12 people") == [("phone", "+1 415 555 2671")]
