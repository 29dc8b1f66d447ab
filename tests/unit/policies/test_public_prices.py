"""The public table: every line can be used, says where it is from, and counts only where it is asked for."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gateway.core import price_rules
from gateway.core.errors import ConfigError
from gateway.core.slices import at_once
from gateway.core.specs.prices import PriceSpec
from policies.prices import PriceTable, not_listed, of_models
from policies.public_prices import listed, table


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def error(path: str, message: str) -> ConfigError:
    return ConfigError(message, path=path)


def test_every_line_is_a_price_with_its_source() -> None:
    found = table()
    assert len(found.rows) >= 50 and "Check them" in found.notice
    every = [row for rows in found.rows.values() for row in rows]
    price_rules.check(every, error)
    assert all(found.date in row.reference and row.reference.startswith("https://") for row in every)
    assert all(row.cached is None or row.prompt is None or row.cached <= row.prompt for row in every)


def test_a_price_may_come_from_the_table() -> None:
    specs = [PriceSpec(model="*", table="public"), PriceSpec(model="ours", table="public", listed_as="openai/gpt-4o")]
    line_ups = at_once(of_models(specs, ["gpt-4o-mini", "ours", "else"]))
    now = at("2026-01-01")
    mini, ours = line_ups["gpt-4o-mini"].at(now), line_ups["ours"].at(now)
    assert mini is not None and (mini.prompt, mini.completion, mini.cached) == (150_000_000, 600_000_000, 75_000_000)
    assert ours is not None and ours.prompt == 2_500_000_000
    assert "else" not in line_ups


def test_rates_of_ones_own_count_before_the_table() -> None:
    specs = [PriceSpec(model="gpt-4o", table="public"), PriceSpec(model="gpt-4o", prompt=1.0, until="2026-01-01")]
    price_rules.check(specs, error)
    found = PriceTable(specs)
    own, public = found.at("gpt-4o", at("2025-12-31")), found.at("gpt-4o", at("2026-01-01"))
    assert own is not None and public is not None
    assert (own.prompt, public.prompt) == (1_000_000_000, 2_500_000_000)


def test_versions_of_the_table_follow_one_another_within_the_time_that_is_asked_for() -> None:
    line_up = at_once(of_models([PriceSpec(model="o3", table="public", since="2025-05-01")], ["o3"]))["o3"]
    found = [line_up.at(at(day)) for day in ("2025-04-30", "2025-06-09", "2025-06-10")]
    assert [None if price is None else price.prompt for price in found] == [None, 10_000_000_000, 2_000_000_000]


def test_a_name_that_is_not_there_is_told() -> None:
    specs = [PriceSpec(model="gpt-four", table="public"), PriceSpec(model="x*", table="public", listed_as="gpt-none")]
    assert not_listed([*specs, PriceSpec(model="*", table="public")]) == ["gpt-four", "gpt-none"]
    assert listed("vendor/o3") == listed("o3") != ()


@pytest.mark.parametrize(
    ("spec", "path", "what"),
    [
        (PriceSpec(model="a", table="public", prompt=1.0), "prices[0].prompt", "remove one"),
        (PriceSpec(model="a", prompt=1.0, listed_as="b"), "prices[0].listed_as", "set 'table"),
        (PriceSpec(model="a", table="public", currency="eur"), "prices[0].table", "in usd"),
    ],
)
def test_what_contradicts_the_table_is_refused(spec: PriceSpec, path: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what) as caught:
        price_rules.check([spec], error)
    assert caught.value.path == path
