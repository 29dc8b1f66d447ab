"""What questions to models cost."""

from __future__ import annotations

from gateway.core.asking import summed, with_spent
from gateway.core.types import Usage


def priced(prompt: int, cost: int, currency: str = "usd") -> Usage:
    usage = Usage(prompt, 1, 2, False, 3)
    usage.cost, usage.currency = cost, currency
    return usage


def test_the_cost_of_several_answers_is_their_sum_in_one_currency() -> None:
    total = summed([priced(10, 5), priced(20, 7), priced(1, 9, "eur")])
    assert total == Usage(31, 3, 6, False, 9)
    assert (total.cost, total.currency) == (12, "usd")
    assert summed([]) == Usage() and summed([Usage(1, estimated=True)]).estimated


def test_a_refusal_costs_the_request_and_the_question() -> None:
    spent = priced(10, 5)
    assert with_spent(None, spent) is spent
    own = priced(100, 50)
    own.of_media(7, 8, 9)
    assert with_spent(own, None) is own and with_spent(None, None) is None
    total = with_spent(own, spent)
    assert total is not None
    assert (total.prompt_tokens, total.image_tokens, total.audio_tokens, total.cost, total.currency) == (110, 7, 8, 55, "usd")
    assert own.prompt_tokens == 100
