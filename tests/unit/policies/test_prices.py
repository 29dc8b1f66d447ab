"""Prices: exact sums, the most specific pattern, validity in time, what is refused."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import ROUND_CEILING, Decimal
from random import Random

import pytest

from gateway.core import price_rules
from gateway.core.errors import ConfigError
from gateway.core.prices import MAX_COST, written
from gateway.core.slices import at_once
from gateway.core.specs.prices import PriceSpec
from gateway.core.types import Usage
from policies.prices import PriceTable, of_models, price_of, unmatched

NOW = datetime(2026, 6, 1, tzinfo=UTC).timestamp()


def spec(model: str = "*", **settings: object) -> PriceSpec:
    return PriceSpec(model=model, **settings)  # type: ignore[arg-type]


def test_a_cost_is_exact_to_the_nano_unit() -> None:
    price = price_of(spec(prompt=0.1, completion=0.4, cached=0.02))
    assert price.cost(Usage(1_000_000, 0)) == 100_000_000
    assert price.cost(Usage(1_000_000, 1_000_000, 250_000)) == 75_000_000 + 5_000_000 + 400_000_000
    assert price.cost(Usage(3, 7, 1)) == 2 * 100 + 20 + 7 * 400


def test_sums_of_random_requests_are_those_of_exact_arithmetic() -> None:
    random = Random(7)
    for _ in range(2000):
        prompt, completion, cached, reasoning = (random.randrange(0, 10_000) / 10_000 for _ in range(4))
        price = price_of(spec(prompt=prompt, completion=completion, cached=cached, reasoning=reasoning, request=0.000_001))
        asked, answered = random.randrange(0, 5000), random.randrange(0, 5000)
        held, thought = random.randrange(0, asked + 1), random.randrange(0, answered + 1)
        parts = ((asked - held, prompt), (held, cached), (answered - thought, completion), (thought, reasoning))
        exact = sum((count * Decimal(str(rate)) * 1000 for count, rate in parts), Decimal(0))
        assert price.cost(Usage(asked, answered, held, False, thought)) == 1000 + int(exact.to_integral_value(ROUND_CEILING))
        assert price.cost(Usage(asked, answered, held, False, thought)) <= price.bound(asked, answered)


def test_rates_below_a_nano_unit_are_kept_and_never_free() -> None:
    price = price_of(spec(prompt=0.0375))  # 37.5 nano-units a token
    assert [price.cost(Usage(tokens)) for tokens in (1, 2, 1000)] == [38, 75, 37_500]
    assert sum(price.cost(Usage(1)) for _ in range(1000)) == 38_000  # each request is rounded up, once


def test_parts_that_engines_claim_beyond_the_whole_do_not_count_twice() -> None:
    price = price_of(spec(prompt=1.0, completion=2.0, cached=0.0, reasoning=4.0))
    assert price.cost(Usage(10, 10, 99, False, 99)) == 10 * 4_000
    assert price.cost(Usage(10**8, 10**8)) == 3 * 10**11
    assert price_of(spec(prompt=1.0, per="1")).cost(Usage(10**8, 10**8)) == MAX_COST


def test_image_and_audio_tokens_have_prices_of_their_own() -> None:
    price = price_of(spec(prompt=1.0, completion=2.0, cached=0.5, image=3.0, audio=10.0, audio_completion=20.0))
    usage = Usage(100, 50, 10)
    usage.of_media(20, 30, 40)
    assert price.cost(usage) == 10 * 500 + 20 * 3_000 + 30 * 10_000 + 40 * 1_000 + 40 * 20_000 + 10 * 2_000
    usage.of_media(1000, 1000, 1000)  # more than there is
    assert price.cost(usage) == 10 * 500 + 90 * 3_000 + 50 * 20_000


def test_a_price_of_zero_is_a_price_and_no_price_is_none() -> None:
    table = PriceTable([spec("free", prompt=0.0)])
    free = table.at("free", NOW)
    assert free is not None and free.cost(Usage(5, 5)) == 0
    assert table.at("other", NOW) is None


def test_the_most_specific_pattern_counts() -> None:
    prices = [spec("*", prompt=1.0), spec("demo-*", prompt=2.0), spec("demo-chat", prompt=3.0), spec("demo-c*", prompt=4.0)]
    table = PriceTable(prices)
    found = [table.at(model, NOW) for model in ("demo-chat", "demo-code", "demo-x", "y")]
    assert [price.prompt if price else None for price in found] == [3 * 10**9, 4 * 10**9, 2 * 10**9, 10**9]


def test_a_price_without_an_end_is_valid_until_the_next_one() -> None:
    prices = [spec("a", prompt=1.0), spec("a", prompt=2.0, **{"since": "2026-03-01"}), spec("*", prompt=9.0, since="2026-01-01T12:00:00Z")]
    line_up = at_once(of_models(prices, ["a", "b"]))
    days = [datetime(2026, 2, 28, 23, 59, 59, tzinfo=UTC), datetime(2026, 3, 1, tzinfo=UTC)]
    first, second = (line_up["a"].at(day.timestamp()) for day in days)
    assert first is not None and second is not None
    assert (first.prompt, second.prompt) == (10**9, 2 * 10**9)
    assert first.version != second.version
    assert line_up["b"].at(datetime(2026, 1, 1, 11, tzinfo=UTC).timestamp()) is None
    assert line_up["b"].at(datetime(2026, 1, 1, 12, tzinfo=UTC).timestamp()) is not None


def test_outside_its_validity_a_price_gives_way_to_the_general_one() -> None:
    line_up = at_once(of_models([spec("a", prompt=1.0, since="2026-03-01", until="2026-04-01"), spec("*", prompt=5.0)], ["a"]))["a"]
    times = [datetime(2026, month, 15, tzinfo=UTC).timestamp() for month in (2, 3, 4, 3, 2)]  # also when the clock is set back
    assert [price.prompt // 10**9 for time in times if (price := line_up.at(time))] == [5, 1, 5, 1, 5]


def test_a_version_names_what_the_price_says() -> None:
    assert price_of(spec(prompt=1.0)).version == price_of(spec(prompt=1.0, reference="elsewhere", completion=0.0)).version
    assert price_of(spec(prompt=1.0)).version != price_of(spec(prompt=1.0, currency="eur")).version


def test_a_pattern_without_a_model_is_told() -> None:
    assert unmatched([spec("demo-*", prompt=1.0), spec("dmeo-chat", prompt=1.0)], ["demo-chat"]) == ["dmeo-chat"]


@pytest.mark.parametrize(
    ("prices", "path", "what"),
    [
        ([spec("a")], "prices[0]", "no price"),
        ([spec("a", prompt=1.0, since="2026-02-30")], "prices[0].from", "does not exist"),
        ([spec("a", prompt=1.0, since="2026-03-01", until="2026-03-01")], "prices[0].until", "not after"),
        ([spec("a", prompt=1.0), spec("b", prompt=1.0), spec("a", prompt=2.0)], "prices[2]", "overlaps"),
        ([spec("a", prompt=1.0, until="2026-03-02"), spec("a", prompt=2.0, since="2026-03-01")], "prices[1]", "overlaps"),
        ([spec("a", prompt=1.0), spec("a", prompt=2.0, since="2026-03-01", currency="eur")], "prices[1].currency", "use one"),
    ],
)
def test_contradictions_are_refused(prices: list[PriceSpec], path: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what) as caught:
        price_rules.check(prices, lambda path, message: ConfigError(message, path=path))
    assert caught.value.path == path


def test_prices_one_after_the_other_are_fine() -> None:
    prices = [spec("a", prompt=1.0, until="2026-03-01"), spec("a", prompt=2.0, since="2026-03-01"), spec("*", prompt=1.0)]
    price_rules.check(prices, lambda path, message: ConfigError(message, path=path))


@pytest.mark.parametrize(("nano", "text"), [(0, b"0"), (1250, b"0.00000125"), (10**9, b"1"), (12_500_000_000, b"12.5")])
def test_costs_as_text(nano: int, text: bytes) -> None:
    assert written(nano) == text


class Compared(str):
    """A pattern that counts how often it was compared or looked into."""

    looked = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Compared.looked += 1
        return str.__eq__(self, other)

    def split(self, *arguments: object, **further: object) -> list[str]:
        Compared.looked += 1
        return str.split(self, *arguments, **further)  # type: ignore[arg-type]


def test_thousands_of_prices_are_not_compared_with_one_another_nor_with_every_model(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 500
    prices = [spec(Compared(f"m{number}{'' if number % 2 else '-*'}"), prompt=1.0) for number in range(count)]
    names = [f"m{number}" for number in range(1, count, 2)]
    monkeypatch.setattr(Compared, "looked", 0)
    price_rules.check(prices, lambda path, message: ConfigError(message, path=path))
    assert list(at_once(of_models(prices, names))) == names
    assert unmatched(prices, names) == [f"m{number}-*" for number in range(0, count, 2)]
    assert Compared.looked < 20 * count


def test_prices_are_made_in_steps() -> None:
    prices = [spec(f"m{number}", prompt=1.0) for number in range(1000)]
    assert len(list(of_models(prices, [price.model for price in prices]))) > 20
    assert len(list(price_rules.checking(prices, lambda path, message: ConfigError(message, path=path)))) > 10


def test_a_price_without_an_end_lasts_until_the_next_one_of_its_kind_begins() -> None:
    begins = [None, "2026-05-01", "2026-02-01", "2026-02-01", "2026-03-01"]
    prices = [spec("a", prompt=1.0, since=since) for since in begins] + [spec("b", prompt=1.0, since="2026-04-01")]
    ends = [None if end == float("inf") else datetime.fromtimestamp(end, UTC).strftime("%m") for _, end in price_rules.spans(prices)]
    assert ends == ["02", None, "03", "03", "05", None]
