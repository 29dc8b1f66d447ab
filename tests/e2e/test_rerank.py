"""Rerank, score and counted prompts through the gateway: every path under the same keys, guardrails and records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from engines.demo import rank
from tests.e2e.harness import DEMO_MODEL, NARROW_KEY, Gatehouse, configuration

QUERY = "how do I create an API key?"
DOCUMENTS = ["The circuit breaker opens.", "Run gatehouse keys create and name the tenant."]
RERANKS = ("/v1/rerank", "/rerank", "/v2/rerank")
SCORES = ("/v1/score", "/score")


@pytest.fixture(scope="module")
def gatehouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gatehouse]:
    folder = tmp_path_factory.mktemp("rerank")
    engines = [
        {"name": "ranks", "runtime": "onnx", "model": str(rank.OUT), "slots": 4},
        {"name": "chats", "runtime": "llama.cpp", "model": DEMO_MODEL, "slots": 1, "context": 512},
    ]
    models = [{"name": "m1", "pool": ["ranks"]}, {"name": "m2", "pool": ["chats"]}]
    guardrails = [{"name": "words", "type": "denylist", "on": ["request"], "settings": {"phrases": ["vermilion falcon"]}}]
    with Gatehouse(folder, configuration(folder / "state", engines=engines, models=models, guardrails=guardrails)) as made:
        yield made


def ask(gatehouse: Gatehouse, path: str, body: dict[str, Any], **options: Any) -> Any:
    with gatehouse.client(**options) as client:
        return client.post(path, json={"model": "m1", **body})


@pytest.mark.parametrize("path", RERANKS)
def test_each_path_ranks(gatehouse: Gatehouse, path: str) -> None:
    answer = ask(gatehouse, path, {"query": QUERY, "documents": DOCUMENTS, "top_n": 1})
    assert answer.status_code == 200, answer.text
    assert [item["index"] for item in answer.json()["results"]] == [1]
    assert answer.headers["x-gatehouse-endpoint"] == "ranks"


@pytest.mark.parametrize("path", SCORES)
def test_each_path_scores(gatehouse: Gatehouse, path: str) -> None:
    answer = ask(gatehouse, path, {"text_1": QUERY, "text_2": DOCUMENTS})
    assert answer.status_code == 200, answer.text
    low, high = (item["score"] for item in answer.json()["data"])
    assert low < high


def bodies(text: str) -> list[tuple[str, dict[str, Any]]]:
    return [
        *((path, {"query": query, "documents": documents}) for path in RERANKS for query, documents in ((text, ["a"]), ("q", ["a", text]))),
        *((path, {"text_1": one, "text_2": two}) for path in SCORES for one, two in ((text, "a"), ("q", ["a", text]), ([text], "a"))),
        ("/v1/chat/completions/input_tokens", {"model": "m2", "messages": [{"role": "user", "content": text}]}),
        ("/v1/classify", {"input": ["a", text]}),
        ("/classify", {"input": text}),
    ]


@pytest.mark.parametrize(("path", "body"), bodies("Vermilion  Falcon"))
def test_no_path_is_a_way_around_a_guardrail(gatehouse: Gatehouse, path: str, body: dict[str, Any]) -> None:
    answer = ask(gatehouse, path, body)
    assert answer.status_code == 400 and answer.json()["error"]["type"] == "guardrail_violation", answer.text


@pytest.mark.parametrize(("path", "body"), bodies("harmless"))
def test_no_path_is_a_way_around_access(gatehouse: Gatehouse, path: str, body: dict[str, Any]) -> None:
    assert ask(gatehouse, path, body).status_code == 200
    assert ask(gatehouse, path, body, key=None).status_code == 401
    assert ask(gatehouse, path, body, key=NARROW_KEY).status_code in (403, 404)


@pytest.mark.parametrize(
    "messages",
    [[{"role": "user", "content": "Hello!"}], [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "é " * 40}]],
)
def test_a_counted_prompt_is_what_the_engine_then_reports(gatehouse: Gatehouse, messages: list[dict[str, Any]]) -> None:
    body = {"model": "m2", "messages": messages}
    counted = ask(gatehouse, "/v1/chat/completions/input_tokens", body).json()["input_tokens"]
    usage = ask(gatehouse, "/v1/chat/completions", {**body, "max_tokens": 1}).json()["usage"]
    assert counted == usage["prompt_tokens"]


def test_a_model_of_another_kind_says_so(gatehouse: Gatehouse) -> None:
    answer = ask(gatehouse, "/rerank", {"model": "m2", "query": "q", "documents": ["a"]})
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "unsupported_operation", answer.text
