"""What a request will take is learned from what requests took."""

from __future__ import annotations

import pytest

from gateway.core.specs import ModelSpec
from gateway.core.types import InferenceRequest, Usage
from gateway.core.wire import WireApi
from gateway.limits.estimates import FIRST, Estimates, bounds_of


def request(prompt: int, completion: int = 0, model: str = "m", generates: bool = True) -> InferenceRequest:
    return InferenceRequest(WireApi("chat", generates=generates), b"/", model, {}, None, prompt_tokens=prompt, max_tokens=completion)


def test_the_first_guess() -> None:
    assert Estimates().estimate(request(100, 50)) == (100, 50)
    assert Estimates().estimate(request(100)) == (100, FIRST)
    assert Estimates().estimate(request(-1, -1, generates=False)) == (0, 0)


def test_the_ratio_of_a_model_is_learned_and_bounded() -> None:
    estimates = Estimates()
    for _ in range(200):
        estimates.learn("m", 100, Usage(150, 10))
        estimates.learn("odd", 100, Usage(100_000, 10))
        estimates.learn("m", 100, Usage(1, 10, estimated=True))
    asked = request(100, 50)
    assert estimates.estimate(asked)[0] == pytest.approx(150, abs=1)
    assert asked.prompt_tokens == estimates.estimate(request(100, 50))[0], "the record of the request says the same"
    assert estimates.estimate(request(100, 50, "odd"))[0] == 400
    assert estimates.estimate(request(100, 50, "other"))[0] == 100


def test_a_request_without_a_bound_takes_what_nearly_all_took_and_no_more_than_the_model_allows() -> None:
    estimates = Estimates()
    for number in range(2000):
        estimates.learn("m", 100, Usage(100, number % 100 * 10))
    assert 850 < estimates.estimate(request(100))[1] < 1000
    several = request(100)
    several.choices = 3
    assert estimates.estimate(several)[1] == 3 * estimates.estimate(request(100))[1] == several.expected
    estimates.bounds = bounds_of([ModelSpec(name="m", pool=(), max_tokens=64), ModelSpec(name="n", pool=())])
    assert estimates.estimate(request(100))[1] == 64


def test_what_an_engine_has_counted_is_not_guessed() -> None:
    estimates = Estimates()
    for _ in range(200):
        estimates.learn("m", 100, Usage(150, 10))
    asked = request(100, 50)
    asked.counted = 390
    assert estimates.estimate(asked) == (390, 50) and asked.prompt_tokens == 390
