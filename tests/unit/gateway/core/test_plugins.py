"""Rows, tables, and the life of what a row builds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.core.errors import ConfigError
from gateway.core.plugins import Context, GuardrailRow, Lives, Table, built
from gateway.core.secret import Secret
from gateway.core.specs import Spec


class Settings(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    count: int = 1
    token: Secret | None = None


def row(name: str) -> GuardrailRow:
    return GuardrailRow(name=name, settings=Settings, build=lambda settings, context: (context.name, settings))  # type: ignore[arg-type,return-value]


class Living:
    """Notes what happens to it."""

    def __init__(self, name: str, log: list[str], failing: Exception | None = None) -> None:
        self.name, self.log, self.failing = name, log, failing

    async def start(self) -> None:
        self.log.append(f"start {self.name}")
        if self.failing is not None:
            raise self.failing

    async def aclose(self) -> None:
        self.log.append(f"close {self.name}")


def test_a_table_finds_its_rows_in_their_order() -> None:
    table = Table(GuardrailRow, [row("b"), row("a")])
    assert [one.name for one in table] == ["b", "a"] and len(table) == 2 and "a" in table and "c" not in table
    assert table["a"].name == "a"
    assert table.schemas() == {"a": Settings, "b": Settings}
    assert [one.name for one in table.joined([row("c")])] == ["b", "a", "c"] and len(table) == 2


def test_an_unknown_name_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(ConfigError) as caught:
        Table(GuardrailRow, [row("b"), row("a")])["c"]
    assert str(caught.value) == "there is no guardrail 'c'; known: a, b"


def test_two_rows_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="the guardrail 'a' appears twice"):
        Table(GuardrailRow, [row("a"), row("a")])


def test_settings_are_converted_before_the_build_sees_them() -> None:
    made: Any = built(row("a").build, Settings, {"count": 3, "token": "t"}, Context(name="mine"))
    assert made == ("mine", Settings(count=3, token=Secret("t")))
    assert built(row("a").build, Settings, Settings(count=4), Context(name="mine")) == ("mine", Settings(count=4))


@pytest.mark.parametrize(
    ("settings", "raised", "message"),
    [
        ({"cuont": 3}, None, "Object contains unknown field `cuont`; known settings: count, token"),
        ({}, ValueError("too few"), "too few"),
        ({}, FileNotFoundError(2, "No such file", "list.txt"), "cannot read list.txt: No such file"),
        ({}, KeyError("x"), "it could not be built: KeyError: 'x'"),
    ],
)
def test_whatever_goes_wrong_in_a_build_is_a_refused_configuration(
    settings: dict[str, Any], raised: Exception | None, message: str
) -> None:
    def build(settings: Any, context: Any) -> None:
        assert raised is not None
        raise raised

    with pytest.raises(ConfigError) as caught:
        built(build, Settings, settings, Context(name="mine"))
    assert caught.value.message == message


async def test_each_starts_once_and_closes_when_the_last_holder_lets_go() -> None:
    log: list[str] = []
    one, other, plain = Living("one", log), Living("other", log), object()
    lives = Lives()
    first = await lives.hold([("a", one), ("b", plain), ("c", one)])
    second = await lives.hold([("a", one), ("c", other)])
    assert log == ["start one", "start other"]
    await first.release()
    await first.release()
    assert log == ["start one", "start other"]
    await second.release()
    assert log[2:] == ["close other", "close one"] and len(lives) == 0


async def test_one_that_does_not_start_undoes_those_started_with_it_and_no_others() -> None:
    log: list[str] = []
    kept = Living("kept", log)
    lives = Lives()
    await lives.hold([("a", kept)])
    with pytest.raises(ConfigError) as caught:
        await lives.hold([("a", kept), ("b", Living("new", log)), ("c", Living("bad", log, OSError("no route")))])
    assert str(caught.value) == "c: it did not start: OSError: no route"
    assert log == ["start kept", "start new", "start bad", "close bad", "close new"]
    assert len(lives) == 1


async def test_one_that_never_starts_is_given_up() -> None:
    class Stuck:
        async def start(self) -> None:
            await asyncio.Event().wait()

    with pytest.raises(ConfigError, match="did not start within"):
        await Lives(seconds=0.01).hold([("a", Stuck())])


async def test_one_that_cannot_be_closed_does_not_keep_the_others_open(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        async def aclose(self) -> None:
            raise RuntimeError("stuck")

    log: list[str] = []
    hold = await Lives().hold([("a", Living("one", log)), ("b", Broken())])
    await hold.release()
    assert log == ["start one", "close one"] and "Broken could not be closed" in caplog.text
