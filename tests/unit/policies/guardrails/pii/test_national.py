"""National numbers: published examples are found, and with another check digit they are not."""

from __future__ import annotations

import pytest

from tests.unit.policies.guardrails.pii.finding import found

NUMBERS = {
    "DE": ("86095742719", "86 095 742 719"),
    "FR": ("1 84 12 76 451 089 46", "184127645108946"),
    "IT": ("RSSMRA85T10A562S", "rssmra85t10a562s"),
    "ES": ("12345678Z", "12345678-Z", "X1234567L"),
    "NL": ("BSN: 111222333", "burgerservicenummer 111222333"),
    "BE": ("85.07.30-033.28", "85073003328"),
    "PL": ("44051401359",),
    "SE": ("811218-9876", "19811218-9876", "personnummer 8112189876"),
    "FI": ("131052-308T",),
    "PT": ("NIF 123456789", "contribuinte 123 456 789"),
    "BR": ("529.982.247-25", "52998224725"),
    "CN": ("11010519491231002X", "身份证11010519491231002x"),
    "IN": ("2345 6789 0124", "Aadhaar 234567890124"),
    "GB": ("NHS number 943 476 5919",),
    "CH": ("756.9217.0769.85",),
    "NO": ("010190 00083",),
}


def test_at_least_ten_countries() -> None:
    assert len(NUMBERS) >= 10


@pytest.mark.parametrize("text", [text for texts in NUMBERS.values() for text in texts])
def test_examples_are_found(text: str) -> None:
    assert [entity for entity, _ in found(f"It is {text}, they said.")] == ["national_id"]


@pytest.mark.parametrize("text", [text for texts in NUMBERS.values() for text in texts])
def test_another_check_digit_is_not_found(text: str) -> None:
    last = text[-1]
    other = "B" if last in "Zz" else "A" if last.isalpha() else str((int(last) + 1) % 10)
    assert "national_id" not in [entity for entity, _ in found(f"It is {text[:-1]}{other}, they said.")]


@pytest.mark.parametrize("text", ["111222333", "123456789", "234567890124", "943 476 5919", "8112189876"])
def test_weak_numbers_need_their_word(text: str) -> None:
    assert "national_id" not in [entity for entity, _ in found(f"offset {text} in file")]
