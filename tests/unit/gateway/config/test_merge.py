"""The store's engines and models behind the file's: the file wins, what does not fit is left out alone, with the reason."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.load import parse
from gateway.config.merge import Addition, Merged, merge
from gateway.config.validate import check
from gateway.core.errors import ConfigError
from gateway.core.slices import at_once
from gateway.core.specs import ConfigSpec, EngineSpec, ModelSpec
from gateway.core.specs.rollouts import ShadowSpec

FILE = """
version: 1
insecure: true
engines: [{name: a, runtime: external, url: "http://10.0.0.1"}]
models: [{name: m, pool: [a], aliases: [n]}]
"""


def file() -> ConfigSpec:
    return parse(FILE, file=None, environ={})


def external(name: str, **settings: Any) -> EngineSpec:
    return EngineSpec(name=name, runtime="external", **{"url": "http://10.0.0.2", **settings})


def model(name: str, *pool: str, **settings: Any) -> ModelSpec:
    return ModelSpec(name=name, pool=pool or ("a",), **settings)


def merged(*parts: EngineSpec | ModelSpec) -> Merged:
    engines = {part.name: Addition(1, 0.0, part) for part in parts if isinstance(part, EngineSpec)}
    models = {part.name: Addition(1, 0.0, part) for part in parts if isinstance(part, ModelSpec)}
    return at_once(merge(file(), {"limits": {}, "guardrails": {}, "engines": engines, "models": models}))


def left_out(found: Merged) -> dict[str, str]:
    return {"/".join(which): f"{error.path}: {error.message}" for which, error in found.left_out.items()}


def test_what_fits_is_taken_behind_the_files() -> None:
    found = merged(external("b"), model("x", "b", "a", aliases=("y",), fallbacks=("m",)))
    assert [engine.name for engine in found.spec.engines] == ["a", "b"]
    assert [each.name for each in found.spec.models] == ["m", "x"]
    assert not found.left_out


def test_the_file_wins_over_the_same_name() -> None:
    found = merged(external("a", url="http://10.9.9.9"), model("m", "nothing"))
    assert [engine.url for engine in found.spec.engines] == ["http://10.0.0.1"]
    assert [each.pool for each in found.spec.models] == [("a",)]
    assert not found.left_out, "it is shadowed, not wrong"


@pytest.mark.parametrize(
    ("part", "which", "words"),
    [
        (EngineSpec(name="b", runtime="external"), "engines/b", "'url' is missing"),
        (external("b", url="ftp://x"), "engines/b", "url: must begin with http://"),
        (model("x", "b"), "models/x", "pool[0]: there is no engine 'b'"),
        (model("x", "a", "a"), "models/x", "pool[1]: the engine 'a' appears twice"),
        (model("n"), "models/n", "name: 'n' is an alias of the model 'm'"),
        (model("x", aliases=("m",)), "models/x", "aliases[0]: 'm' is already the name of something else (m)"),
        (model("x", aliases=("n",)), "models/x", "aliases[0]: 'n' is already the name of something else (m)"),
        (model("x", aliases=("y", "y")), "models/x", "aliases[1]: 'y' is already"),
        (model("x", shadow=ShadowSpec(model="z")), "models/x", "shadow.model: there is no model 'z'"),
        (model("x", fallbacks=("z",)), "models/x", "fallbacks[0]: there is no model 'z'"),
        (model("x", fallbacks=("x",)), "models/x", "fallbacks: the fallbacks go round in a circle: x -> x"),
    ],
)
def test_what_does_not_fit_takes_nothing_else_with_it(part: EngineSpec | ModelSpec, which: str, words: str) -> None:
    found = merged(part, external("good"), model("fine", "good"))
    assert list(left_out(found)) == [which] and words in left_out(found)[which]
    assert [each.name for each in found.spec.models] == ["m", "fine"]


def test_what_leans_on_something_left_out_is_left_out_too() -> None:
    found = left_out(merged(model("x", "gone"), model("y", fallbacks=("x",)), model("z", fallbacks=("y",)), model("ok", fallbacks=("m",))))
    assert set(found) == {"models/x", "models/y", "models/z"}
    assert found["models/y"] == "fallbacks[0]: there is no model 'x'; known: m, ok, y, z"
    assert found["models/z"] == "fallbacks: the fallback 'y' cannot be used itself"


def test_circles_are_left_out_and_named() -> None:
    circle = left_out(merged(model("x", fallbacks=("y",)), model("y", fallbacks=("z",)), model("z", fallbacks=("x",)), model("w")))
    assert circle["models/x"] == "fallbacks: the fallbacks go round in a circle: x -> y -> z -> x"
    assert set(circle) == {"models/x", "models/y", "models/z"}


NAMES = st.sampled_from(["m", "n", "p", "q", "r"])
ENGINES = st.sampled_from(["a", "b", "c"])
MODELS = st.lists(
    st.builds(
        lambda name, pool, aliases, fallbacks: model(name, *pool, aliases=tuple(aliases), fallbacks=tuple(fallbacks)),
        NAMES,
        st.lists(ENGINES, min_size=1, max_size=2),
        st.lists(NAMES, max_size=2),
        st.lists(NAMES, max_size=2),
    ),
    max_size=5,
    unique_by=lambda each: each.name,
)


@given(st.lists(ENGINES, unique=True), MODELS)
def test_whatever_the_store_holds_the_rest_is_a_configuration_that_a_file_could_have(engines: list[str], models: list[ModelSpec]) -> None:
    found = merged(*map(external, engines), *models)
    whole = ConfigSpec(version=1, insecure=True, engines=found.spec.engines, models=found.spec.models)
    check(whole, lambda path, message: ConfigError(message, path=path))
    known = {each.name for each in found.spec.models} | {name for kind, name in found.left_out if kind == "models"}
    assert known == {"m", *(each.name for each in models)}
