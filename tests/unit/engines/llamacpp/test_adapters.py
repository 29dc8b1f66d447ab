"""Whose turn it is, and which adapter a request names."""

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.chat.engine import adapter_of
from engines.llamacpp.adapters import TURN, Turns, check_adapters
from engines.llamacpp.options import Adapter
from engines.sidecar.loading import LoadError
from engines.sidecar.shell import ApiError
from loadtests.llamacpp.random_gguf import Shape, write_lora


def jobs(*adapters: str, paused: tuple[str, ...] = ()) -> list[Any]:
    return [SimpleNamespace(adapter=adapter, paused=adapter in paused) for adapter in adapters]


def test_a_step_serves_one_adapter_and_each_gets_as_many_steps() -> None:
    running, turns = jobs("a", "b", "b", "b", "", "c"), Turns()
    served = []
    for _ in range(TURN * 40):
        chosen = turns.of(running)
        assert {job.adapter for job in chosen} == {turns.adapter}
        assert list(chosen) == [job for job in running if job.adapter == turns.adapter]
        served.append(turns.adapter)
    assert {name: served.count(name) for name in set(served)} == dict.fromkeys(["a", "b", "", "c"], TURN * 10)
    assert max(len(list(group)) for _name, group in itertools.groupby(served)) == TURN


def test_who_has_no_work_is_passed_over() -> None:
    turns = Turns()
    assert {turns.of(jobs("a", "b", paused=("a",)))[0].adapter for _ in range(20)} == {"b"}


def test_one_adapter_alone_gets_everything() -> None:
    running, turns = jobs("a", "a"), Turns()
    assert turns.of(running) is running and turns.adapter == "a"


@given(st.lists(st.sets(st.sampled_from(["", "a", "b", "c"]), min_size=1), max_size=60))
def test_nobody_with_work_waits_longer_than_the_turns_of_the_others(steps: list[set[str]]) -> None:
    turns, waited = Turns(), dict.fromkeys(["", "a", "b", "c"], 0)
    for present in steps:
        turns.of(jobs(*sorted(present)))
        for name in waited:
            waited[name] = waited[name] + 1 if name in present and name != turns.adapter else 0
        assert max(waited.values()) <= 4 * TURN


@pytest.mark.parametrize(("model", "name"), [("m:a", "a"), ("m", ""), ("", ""), ("m:", ""), ("m:b.c", "b.c")])
def test_the_adapter_follows_the_first_colon(model: str, name: str) -> None:
    assert adapter_of(model, ("a", "b.c")) == name
    assert adapter_of(model, ()) == ""


def test_an_unknown_one_is_refused() -> None:
    with pytest.raises(ApiError) as caught:
        adapter_of("m:x", ("a",))
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")


@pytest.mark.parametrize("alpha", [32, "32", True])
def test_a_factor_of_another_type_is_refused_by_its_key(tmp_path: Path, alpha: object) -> None:
    """llama.cpp ends its process for one."""
    shape = Shape(layers=1)
    files = [Adapter(name="a", file="a.gguf")]
    write_lora(tmp_path / "a.gguf", shape)
    assert check_adapters(files, tmp_path / "m.gguf", "llama") == [tmp_path / "a.gguf"]
    write_lora(tmp_path / "a.gguf", shape, alpha=alpha)  # type: ignore[arg-type]
    with pytest.raises(LoadError, match=r"a\.gguf: adapter\.lora\.alpha is not a number of 32 bits"):
        check_adapters(files, tmp_path / "m.gguf", "llama")
