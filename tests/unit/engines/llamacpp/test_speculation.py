"""Guesses from what a sequence holds, what they are worth, and when a step makes them."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.llamacpp.speculation import (
    FIRST_PAUSE,
    FIRST_SECONDS,
    LONGEST_PAUSE,
    MOST_DRAFTED,
    MOST_SECONDS,
    SHARE,
    Account,
    Guesser,
    Prices,
    Trust,
    choose,
    depths,
)


def fed(tokens: list[int], match: int = 3, prompt: int = 0) -> Guesser:
    guesser = Guesser(tokens[:prompt], match)
    for token in tokens[prompt:]:
        guesser.add(token)
    return guesser


def flat(small: float = 1.0, per_token: float = 0.05) -> Prices:
    """A device on which a further token costs a little of a step."""
    prices = Prices()
    for count in (1, 16):
        prices.observe(count, small + per_token * count)
    return prices


def test_a_repetition_is_continued() -> None:
    assert fed([7, 8, 9, 1, 2, 7, 8, 9], prompt=8).guess(2) == [1, 2]


def test_a_repetition_in_the_answer_counts_as_well() -> None:
    assert fed([5, 7, 8, 9, 1, 2, 7, 8, 9], prompt=1).guess(2) == [1, 2]


def test_a_guess_goes_on_in_circles_where_it_reaches_the_present() -> None:
    assert fed([4, 4, 4, 4]).guess(5) == [4] * 5
    assert fed([1, 2, 3, 1, 2, 3]).guess(7) == [1, 2, 3, 1, 2, 3, 1]


def test_nothing_is_guessed_without_a_repetition_or_after_a_wrong_one() -> None:
    assert fed(list(range(50))).guess(4) == [] and fed(list(range(50))).chances(4) == []
    guesser = fed([7, 8, 9, 1, 2, 7, 8, 9])
    guesser.add(77)
    assert guesser.guess(3) == [] and guesser.chances(3) == []


@given(st.lists(st.integers(0, 3), max_size=200), st.integers(0, 200), st.integers(2, 5), st.integers(0, 20))
def test_a_guess_is_what_followed_the_last_tokens_somewhere(tokens: list[int], prompt: int, match: int, most: int) -> None:
    guesser = fed(tokens, match, min(prompt, len(tokens)))
    chances = guesser.chances(most)
    assert len(chances) <= most and chances == sorted(chances, reverse=True) and all(0 < chance <= 1 for chance in chances)
    guess = guesser.guess(len(chances))
    assert len(guess) == len(chances)
    text = tokens + guess
    for at in range(len(tokens), len(text)):  # each is preceded by tokens that occurred before, with the same one after them
        assert any(text[at - match : at + 1] == text[end - match : end + 1] for end in range(match, at))


def test_what_guesses_are_worth_follows_what_came() -> None:
    good = fed([1, 2, 3, 4, 5, 6] * 20)
    assert good.chances(8)[-1] > 0.7
    generator = random.Random(3)
    phrase = [1, 2, 3]
    bad = fed([token for _ in range(60) for token in (*phrase, generator.randrange(10, 1000))])
    for token in phrase:
        bad.add(token)
    assert len(bad.guess(1)) == 1 and bad.chances(8)[:1] < [0.15]


def test_guesses_are_made_where_they_pay() -> None:
    assert choose(flat(), 1, [[0.9, 0.8, 0.7, 0.05]], 63) == [3]
    assert choose(flat(per_token=1.0, small=0.0), 1, [[0.9, 0.8]], 63) == [0]  # twice the tokens cost twice the time
    assert choose(flat(), 2, [[0.02], [0.9, 0.85]], 63) == [0, 2]


def test_guesses_keep_to_the_room_and_go_to_the_most_probable() -> None:
    assert choose(flat(), 2, [[0.9] * 5, [0.95] * 5], 6) == [1, 5]
    assert sum(choose(flat(per_token=0.001), 64, [[0.99] * 16] * 64, 10_000)) == MOST_DRAFTED


def test_without_measurements_no_guess_pays() -> None:
    assert choose(Prices(), 1, [[1.0, 1.0]], 8) == [0]


def test_prices_keep_their_shape_when_the_machine_slows_down() -> None:
    prices = flat()
    for _ in range(30):
        prices.observe(1, 3.15)  # three times as slow, seen at steps of one token only
    assert prices.at(16) / prices.at(1) == pytest.approx(1.8 / 1.05, rel=0.25)
    for _ in range(150):
        prices.observe(1, 3.15)
        prices.observe(16, 31.5)  # and large steps have become dear
    assert prices.at(16) / prices.at(1) > 5


def test_one_outlier_changes_little() -> None:
    prices = flat()
    prices.observe(16, 100.0)
    assert prices.at(16) / prices.at(1) < 1.25 * 1.8 / 1.05


def test_a_price_that_was_measured_too_high_is_measured_again() -> None:
    """Else guesses would never be made, and so never be seen to be cheap."""
    prices, steps = Prices(), 0
    for count, seconds in ((1, 1.05), (16, 100.0)):  # something else took the processor
        prices.observe(count, seconds)
    while choose(prices, 1, [[0.9, 0.8, 0.7]], 63) == [0] and steps < 1000:
        prices.observe(1, 1.05)
        steps += 1
    assert 0 < steps < 400
    for _ in range(20):
        prices.observe(4, 1.2)
        prices.observe(1, 1.05)
    assert choose(prices, 1, [[0.9, 0.8, 0.7]], 63) == [3]


def test_one_size_of_steps_that_is_seen_alone_for_long_leaves_the_others_prices() -> None:
    prices = flat()
    for _ in range(20):
        prices.observe(1, 1.05)
    for _ in range(500):
        prices.observe(5, 6.5)  # five times what was thought
    assert prices.stale(1) and not prices.stale(5)
    assert prices.at(5) / prices.at(1) > 4


# --- guesses of a draft model

CHEAP, DEAR = flat(0.05, 0.005), flat(1.0, 0.05)
"""Draft models that take a twentieth of the model's time, and as much."""


def test_a_cheap_draft_model_guesses_as_far_as_it_is_right() -> None:
    often, seldom = [0.95**ahead for ahead in range(1, 17)], [0.3**ahead for ahead in range(1, 9)]
    assert depths(flat(), CHEAP, 1, [often], 63)[0] > 5
    assert depths(flat(), CHEAP, 1, [seldom], 63)[0] <= 2
    assert depths(flat(), CHEAP, 2, [often, seldom], 63)[0] > depths(flat(), CHEAP, 2, [often, seldom], 63)[1]


def test_a_draft_model_that_costs_what_it_saves_guesses_nothing() -> None:
    assert depths(flat(), DEAR, 1, [[0.9**ahead for ahead in range(1, 17)]], 63) == [0]
    assert depths(flat(small=0.0, per_token=1.0), CHEAP, 8, [[0.9, 0.8]] * 8, 63) == [0] * 8, "the processor is busy with 8 streams"
    assert depths(flat(), CHEAP, 1, [[]], 63) == [0]
    assert sum(depths(flat(per_token=0.0001), flat(0.0, 1e-6), 32, [[0.99] * 16] * 32, 20)) <= 20


def test_trust_follows_what_came_for_each_degree_of_sureness() -> None:
    trust = Trust()
    assert trust.chance(0.99) > trust.chance(0.7) > trust.chance(0.1)
    for _ in range(60):
        trust.follow([1, 2, 3], [0.99, 0.99, 0.2])
        for token in (1, 2, 9):
            trust.add(token)
    assert trust.chance(0.99) > 0.95 and trust.chance(0.2) < 0.05
    assert 0.5 < trust.hope < 0.75


def test_what_follows_a_wrong_guess_says_nothing() -> None:
    trust, fresh = Trust(), Trust()
    trust.follow([1, 2, 3], [0.9] * 3)
    trust.add(7)
    lower = trust.chance(0.9)
    for token in (2, 3, 4):
        trust.add(token)
    assert trust.chance(0.9) == lower < fresh.chance(0.9)


def test_a_stream_whose_drafts_did_not_pay_is_tried_again_ever_later() -> None:
    trust, pauses = Trust(), []
    for _ in range(8):
        count = 0
        while not trust.due():
            trust.add(5)
            count += 1
        pauses.append(count)
        trust.follow([], [])
        trust.settle(pays=False)
    assert pauses[0] == FIRST_PAUSE and pauses == sorted(pauses) and pauses[-1] == LONGEST_PAUSE
    trust.settle(pays=True)
    for _ in range(FIRST_PAUSE):
        trust.add(5)
    assert trust.due()


def test_the_account_bounds_what_drafts_may_cost() -> None:
    account = Account()
    account.spend(FIRST_SECONDS + 1)
    for _ in range(100):
        account.step(0.5)
    assert account.seconds == pytest.approx(-1 + 50 * SHARE)
    account.drafted(1000.0)
    assert account.seconds == MOST_SECONDS
    account.drafted(-1000.0)
    assert account.seconds == -MOST_SECONDS
