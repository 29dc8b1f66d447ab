"""Which guardrails each model has."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from gateway.app.configuration.assembly import _guards
from gateway.core.slices import at_once
from gateway.core.snapshot import ModelEntry, Reach
from gateway.core.specs import GuardrailSpec, ModelSpec


class Parts:
    """Each guardrail whose name begins with `shape` judges the form of answers."""

    def shape(self, spec: GuardrailSpec, guarded: Any) -> Any:
        return SimpleNamespace(name=spec.name, concerns=None) if spec.name.startswith("shape") else None


def of(*guardrails: tuple[str, tuple[str, ...]]) -> Any:
    reading: list[Any] = []
    for name, models in guardrails:
        judge = SimpleNamespace(name=name, concerns=None) if name.startswith("tool") else None
        reading.append(
            (GuardrailSpec(name=name, type="denylist", models=models), SimpleNamespace(name=name, holds=False, concerns=None), judge)
        )
    return at_once(_guards(reading, cast(Any, Parts())))


def test_a_model_has_those_that_name_it_in_the_order_of_the_configuration() -> None:
    guards = of(
        ("a", ("demo-*", "*-chat")), ("b", ("*",)), ("shape", ("demo-chat",)), ("tool", ("demo-*",)), ("c", ("other",)), ("d", ("*", "x"))
    )
    chosen = at_once(guards.of("demo-chat"))
    assert [one.name for one in chosen.request] == ["a", "b", "d"] == [one.name for one in chosen.response]
    assert [one.name for one in chosen.shapes] == ["shape"] and [one.name for one in chosen.response_tools] == ["tool"]
    assert [one.name for one in at_once(guards.of("other")).request] == ["b", "c", "d"]
    assert [one.name for one in at_once(guards.of("x")).request] == ["b", "d"]


def test_models_that_nothing_names_share_what_they_have() -> None:
    """Thousands of models and thousands of guardrails would otherwise be millions of places."""
    guards = of(("a", ("*",)), ("shape", ("*",)), ("b", ("demo",)))
    assert at_once(guards.of("one")) is at_once(guards.of("two"))
    assert at_once(guards.of("demo")).shapes[0] is at_once(guards.of("one")).shapes[0]


def test_who_is_concerned_is_looked_at_once_for_all_models_that_share_their_guardrails() -> None:
    looked: list[str] = []

    class Counted(SimpleNamespace):
        @property
        def concerns(self) -> None:
            looked.append("")

    guards = tuple(Counted(holds=False) for _ in range(10))
    reach: Any = tuple(Reach(some) for some in (guards, (), (), (), ()))
    looked.clear()
    spec, route = ModelSpec(name="m", pool=("a",)), SimpleNamespace(counts_prompts=False)
    entry = ModelEntry(spec, cast(Any, route), cast(Any, None), cast(Any, guards), reach=reach)
    assert not entry.scoped and not looked
