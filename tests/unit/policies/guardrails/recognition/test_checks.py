"""Check digits against published examples, and that each finds every single wrong digit."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from policies.guardrails.recognition.checks import is_date, is_short_date, luhn, mod_11_10, verhoeff, weighted

RIGHT = [(luhn, "79927398713"), (luhn, "4111111111111111"), (verhoeff, "2363"), (verhoeff, "758722"), (mod_11_10, "86095742719")]


@pytest.mark.parametrize(("check", "digits"), RIGHT)
def test_every_single_wrong_digit_is_found(check: Callable[[str], bool], digits: str) -> None:
    assert check(digits)
    for place, digit in enumerate(digits):
        for other in set("0123456789") - {digit}:
            assert not check(digits[:place] + other + digits[place + 1 :])


def test_verhoeff_finds_every_transposition() -> None:
    digits = "2363"
    for place in range(len(digits) - 1):
        swapped = digits[:place] + digits[place + 1] + digits[place] + digits[place + 2 :]
        assert swapped == digits or not verhoeff(swapped)


def test_a_weighted_sum() -> None:
    assert weighted("123", (1, 10, 100)) == 321


def test_dates() -> None:
    assert is_date(2024, 2, 29) and is_date(2000, 2, 29) and not is_date(1900, 2, 29) and not is_date(2023, 2, 29)
    assert not is_date(2024, 0, 1) and not is_date(2024, 13, 1) and not is_date(2024, 4, 31) and not is_date(2024, 4, 0)
    assert is_short_date("000229") and not is_short_date("010229")
