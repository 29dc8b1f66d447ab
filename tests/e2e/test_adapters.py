"""LoRA adapters through the gateway: a model of its own each, with its own rights, whatever a request calls it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from loadtests.llamacpp.random_gguf import F32, Shape, write, write_lora
from tests.e2e.harness import KEY, NARROW_KEY, Gatehouse, configuration

SHAPE = Shape(context=256)


@pytest.fixture(scope="module")
def gatehouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gatehouse]:
    folder = tmp_path_factory.mktemp("adapters")
    write(folder / "m.gguf", SHAPE, scale=4.0, kind=F32)
    for number, name in enumerate(("german", "legal")):
        write_lora(folder / f"{name}.gguf", SHAPE, seed=number + 2)
    adapters = [{"name": name, "file": f"{name}.gguf"} for name in ("german", "legal")]
    engine = {"name": "texts", "runtime": "llama.cpp", "model": str(folder / "m.gguf"), "slots": 2, "context": 128,
              "options": {"adapters": adapters}}  # fmt: skip
    models = [
        {"name": "base", "pool": ["texts"], "aliases": ["base:plain"]},
        {"name": "base:german", "pool": ["texts"], "aliases": ["deutsch"]},
        {"name": "base:legal", "pool": ["texts"]},
    ]
    config = configuration(folder / "state", engines=[engine], models=models)
    narrow = next(key for key in config["identity"]["api_keys"]["static"] if key["id"] == "narrow")
    narrow["models"] = ["base:german"]
    with Gatehouse(folder, config) as made:
        yield made


def ask(gatehouse: Gatehouse, model: str, key: str = KEY) -> Any:
    with gatehouse.client(key=key) as client:
        body = {"model": model, "prompt": "hello world", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
        return client.post("/v1/completions", json=body)


def text(gatehouse: Gatehouse, model: str) -> str:
    answer = ask(gatehouse, model)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def test_the_model_decides_on_the_adapter_and_not_the_name_that_a_client_uses(gatehouse: Gatehouse) -> None:
    base, german, legal = (text(gatehouse, name) for name in ("base", "base:german", "base:legal"))
    assert len({base, german, legal}) == 3
    assert text(gatehouse, "deutsch") == german  # an alias of the adapter's model
    assert text(gatehouse, "base:plain") == base  # an alias of the model without one that looks like an adapter


def test_rights_are_those_of_the_adapter(gatehouse: Gatehouse) -> None:
    assert ask(gatehouse, "base:german", NARROW_KEY).status_code == 200
    for name in ("base", "base:legal", "base:plain", "base:legal ", "base:Legal"):
        assert ask(gatehouse, name, NARROW_KEY).status_code in (403, 404), name
    assert ask(gatehouse, "base:french").status_code == 404


def test_the_record_names_model_and_adapter(gatehouse: Gatehouse) -> None:
    answer = ask(gatehouse, "deutsch")
    record = gatehouse.outcome(answer.headers["x-request-id"])
    assert record["model"] == "base:german" and record["endpoint"] == "texts"
