"""From settings to routes: names, aliases, fallbacks, and mistakes that name their place."""

from __future__ import annotations

import pytest

from gateway.core.errors import ConfigError
from gateway.core.specs import EngineSpec, ModelSpec, RoutingSpec
from gateway.routing.build import build_router
from gateway.routing.router import PoolRoute
from tests.unit.gateway.routing.fleet import Fleet


def test_aliases_and_fallbacks():
    fleet = Fleet(2)
    models = (ModelSpec(name="m", pool=("a",), aliases=("gpt-4o",), fallbacks=("small",)), ModelSpec(name="small", pool=("b",)))
    router = fleet.load(models=models)
    assert router.route("gpt-4o") is router.route("m") is fleet.route
    assert fleet.route.fallbacks == ("small",)
    assert fleet.route.model == "m"
    assert router.route("unknown") is None


@pytest.mark.parametrize(
    ("models", "path"),
    [
        ((ModelSpec(name="m", pool=("a", "nope")),), "models[0].pool[1]"),
        ((ModelSpec(name="m", pool=()),), "models[0].pool"),
        ((ModelSpec(name="m", pool=("a", "a")),), "models[0].pool[1]"),
        ((ModelSpec(name="m", pool=("a",)), ModelSpec(name="m", pool=("b",))), "models[1].name"),
        ((ModelSpec(name="m", pool=("a",)), ModelSpec(name="n", pool=("b",), aliases=("x", "m"))), "models[1].aliases[1]"),
        ((ModelSpec(name="m", pool=("a",), fallbacks=("n",)),), "models[0].fallbacks[0]"),
        ((ModelSpec(name="m", pool=("a",), fallbacks=("m",)),), "models[0].fallbacks[0]"),
    ],
)
def test_a_wrong_pool_names_its_place_and_changes_nothing(models: tuple[ModelSpec, ...], path: str):
    fleet = Fleet(2)
    route = fleet.route
    with pytest.raises(ConfigError) as caught:
        fleet.load(models=models)
    assert caught.value.path == path
    assert fleet.route is route
    fleet.attempt()


ADAPTERS = {"adapters": [{"name": "german", "file": "g.gguf"}]}
ADAPTED = EngineSpec(name="a", runtime="llama.cpp", model="m.gguf", options=ADAPTERS)


def told(*models: ModelSpec) -> dict[str, str | None]:
    """What the engine with adapters is told, by the name that a client uses."""
    router = build_router(models, (ADAPTED,), Fleet(1).registry)
    names = [name for model in models for name in (model.name, *model.aliases)]
    routes = {name: router.route(name) for name in names}
    return {name: route.members[0].upstream_model for name, route in routes.items() if isinstance(route, PoolRoute)}


def test_an_engine_with_adapters_is_told_the_model_by_its_own_name():
    """Not by an alias, nor by the model that fell back to it: the name decides on the adapter."""
    models = ModelSpec(name="m", pool=("a",)), ModelSpec(name="m:german", pool=("a",), aliases=("de",))
    assert told(*models) == {"m": "m", "m:german": "m:german", "de": "m:german"}


def test_a_model_of_an_adapter_that_the_engine_lacks_is_an_error():
    with pytest.raises(ConfigError, match="a has no adapter 'french'") as caught:
        told(ModelSpec(name="m:french", pool=("a",)))
    assert caught.value.path == "models[0].pool[0]"
    assert told(ModelSpec(name="m:8b", pool=("a",), upstream_model="m")) == {"m:8b": "m"}  # a tag, said to be no adapter


@pytest.mark.parametrize(
    ("engines", "path"),
    [
        ((EngineSpec(name="a", runtime="external"),), "engines[0].url"),
        ((EngineSpec(name="a", runtime="external", url="http://a"), EngineSpec(name="a", runtime="onnx")), "engines[1].name"),
        ((EngineSpec(name="a", runtime="external", url="http://a", headers={"x": "1\r\ny: 2"}),), "models[0].pool[0]"),
        ((EngineSpec(name="a", runtime="external", url="http://a", headers={"x y": "1"}),), "models[0].pool[0]"),
    ],
)
def test_a_wrong_engine_names_its_place(engines: tuple[EngineSpec, ...], path: str):
    with pytest.raises(ConfigError) as caught:
        Fleet(1).load(engines=engines)
    assert caught.value.path == path


async def test_a_ring_is_made_again_only_when_its_members_or_their_weights_change():
    def ring(fleet: Fleet):
        assert isinstance(fleet.route, PoolRoute)
        return fleet.route.ring

    def model(**routing: object) -> tuple[ModelSpec, ...]:
        return (ModelSpec(name="m", pool=("a", "b", "c"), routing=RoutingSpec(policy="consistent_hash", **routing)),)  # type: ignore[arg-type]

    fleet = Fleet(3)
    fleet.load(models=model())
    first, route = ring(fleet), fleet.route
    assert first is not None
    fleet.load(models=model())
    assert fleet.route is route
    fleet.load(models=model(bound=2.0))
    assert fleet.route is not route and ring(fleet) is first
    fleet.load(models=(ModelSpec(name="m", pool=("a", "c"), routing=RoutingSpec(policy="consistent_hash")),))
    assert ring(fleet) is not first and ring(fleet).size == 2
    assert {fleet.attempt().endpoint_name for _ in range(2)} <= {"a", "c"}
