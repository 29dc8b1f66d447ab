"""The demo embedding model: the committed artefact is good enough, and its script makes one that loads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import openai
import pytest

from engines.demo import embed
from engines.demo.source import load
from tests.integration.onnx_process import OnnxProcess

MAX_BYTES = 2 * 1024 * 1024


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with OnnxProcess(embed.OUT) as process, openai.OpenAI(base_url=f"http://{process.address}/v1", api_key="unused") as made:
        yield made


def vectors(client: openai.OpenAI, texts: list[str]) -> np.ndarray:
    found = []
    for start in range(0, len(texts), 2048):
        found += client.embeddings.create(model="demo-embed", input=texts[start : start + 2048], encoding_format="float").data
    return np.array([item.embedding for item in found])


def test_the_artefact_is_small() -> None:
    assert sum(file.stat().st_size for file in embed.OUT.iterdir()) < MAX_BYTES


def test_held_out_questions_find_their_topic(client: openai.OpenAI) -> None:
    source = load()
    texts = embed.passages(source)
    known = vectors(client, [passage.text for passage in texts])
    questions = [(topic, question) for topic, asked in source.heldout.items() for question in asked]
    nearest = (vectors(client, [question for _, question in questions]) @ known.T).argmax(axis=1)
    right = sum(texts[place].topic == topic for place, (topic, _) in zip(nearest, questions, strict=True))
    assert right / len(questions) > 0.75


def test_near_and_far(client: openai.OpenAI) -> None:
    rotate, replace, breaker = vectors(
        client, ["How do I rotate an API key?", "replace my key with a new one", "what is a circuit breaker"]
    )
    assert rotate @ replace > 0.4
    assert rotate @ breaker < 0.25
    np.testing.assert_allclose(np.linalg.norm(vectors(client, ["\u732b", "\U0001f642", "..."]), axis=1), 1, atol=1e-5)


def test_the_script_makes_a_model_that_loads(tmp_path: Path) -> None:
    table = embed.Table(load())
    table.train(3)
    embed.write(table, tmp_path / "made")
    with OnnxProcess(tmp_path / "made") as process, process.client() as http:
        answer = http.post("/v1/embeddings", json={"input": "what is a sidecar"}).json()
        np.testing.assert_allclose(answer["data"][0]["embedding"], table.embed("what is a sidecar"), atol=2e-3)
