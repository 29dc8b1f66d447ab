"""Rerank and score through the sidecar, with the demo reranker: its ranks, its numbers, its errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from engines.demo import embed, rank
from engines.demo.source import load
from tests.integration.onnx_process import OnnxProcess

MAX_BYTES = 2 * 1024 * 1024
QUERY = "how do I create an API key?"
DOCUMENTS = [
    "The circuit breaker opens after consecutive failures.",
    "Run gatehouse keys create and name the tenant.",
    "Solar panels turn light into electricity.",
]


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with OnnxProcess(rank.OUT) as process, process.client() as client:
        yield client


def ranked(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    answer = http.post("/v1/rerank", json={"model": "demo-rerank", "query": QUERY, "documents": DOCUMENTS, **fields})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def refused(http: httpx.Client, path: str, **fields: Any) -> dict[str, Any]:
    answer = http.post(path, json={"model": "demo-rerank", **fields})
    assert answer.status_code == 400, answer.text
    found: dict[str, Any] = answer.json()["error"]
    return found


def test_the_artefact_is_small() -> None:
    assert sum(file.stat().st_size for file in rank.OUT.iterdir()) < MAX_BYTES


def test_held_out_questions_find_their_answer(http: httpx.Client) -> None:
    source = load()
    answers = {topic.id: topic.answer for topic in source.topics}
    names, right, asked = list(answers), 0, 0
    for topic, questions in source.heldout.items():
        for question in questions if topic in answers else ():
            found = ranked(http, query=question, documents=list(answers.values()), top_n=3, return_documents=False)
            right += topic in [names[item["index"]] for item in found["results"]]
            asked += 1
    assert asked > 80 and right / asked >= 0.9, right / asked


def test_the_answer_has_the_shape_that_clients_know(http: httpx.Client) -> None:
    found = ranked(http)
    scores = [item["relevance_score"] for item in found["results"]]
    assert found["results"][0]["index"] == 1 and scores == sorted(scores, reverse=True) and all(0 < score < 1 for score in scores)
    assert found["results"][0]["document"] == {"text": DOCUMENTS[1]}
    assert found["model"] == "demo-rerank" and found["usage"]["total_tokens"] == found["usage"]["prompt_tokens"] > 20
    few = ranked(http, top_n=1, return_documents=False, documents=[{"text": text} for text in DOCUMENTS])
    assert few["results"] == [{"index": 1, "relevance_score": scores[0]}]


def test_scores_of_pairs_are_those_of_the_graph_in_any_company(http: httpx.Client) -> None:
    ranks = {item["index"]: item["relevance_score"] for item in ranked(http)["results"]}
    many = http.post("/v1/score", json={"text_1": QUERY, "text_2": DOCUMENTS}).json()
    assert [item["score"] for item in many["data"]] == pytest.approx([ranks[index] for index in range(3)], rel=1e-5)
    assert [item["object"] for item in many["data"]] == ["score"] * 3
    crossed = http.post("/v1/score", json={"text_1": [QUERY, DOCUMENTS[0]], "text_2": [DOCUMENTS[1], DOCUMENTS[0]]}).json()
    assert crossed["data"][0]["score"] == pytest.approx(ranks[1], rel=1e-5)
    assert crossed["data"][1]["score"] > 0.9, "a text is relevant to itself"
    raw = http.post("/v1/score", json={"text_1": QUERY, "text_2": DOCUMENTS[1], "use_activation": False}).json()["data"][0]["score"]
    assert 1 / (1 + np.exp(-raw)) == pytest.approx(ranks[1], rel=1e-5)


def test_the_graph_computes_what_its_script_does(http: httpx.Client) -> None:
    table = embed.Table(load())
    table.train(embed.STEPS)
    ranker = rank.Ranker(table)
    ranker.fit(table.source)
    body = {"text_1": QUERY, "text_2": DOCUMENTS, "use_activation": False}
    found = [item["score"] for item in http.post("/v1/score", json=body).json()["data"]]
    assert found == pytest.approx([ranker.score(QUERY, document) for document in DOCUMENTS], abs=0.05)


def test_a_long_document_is_cut_and_said_so_or_refused(http: httpx.Client) -> None:
    long = "key " * 2000
    answer = http.post("/v1/rerank", json={"query": QUERY, "documents": [long, "short"]})
    assert answer.status_code == 200 and int(answer.headers["x-gatehouse-truncated"]) > 1000
    assert [item["index"] for item in answer.json()["truncated"]] == [0]
    assert answer.json()["truncated"][0]["used"] == rank.MAX_LENGTH
    both = http.post("/v1/score", json={"text_1": long, "text_2": long}).json()
    assert both["truncated"][0]["used"] == rank.MAX_LENGTH
    error = refused(http, "/v1/rerank", query=QUERY, documents=["short", long], truncate=False)
    assert error["code"] == "context_length_exceeded" and error["param"] == "documents[1]"


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/rerank", {"query": "q", "documents": []}, "documents"),
        ("/v1/rerank", {"query": "q", "documents": [{"body": "x"}]}, "documents"),
        ("/v1/rerank", {"query": "q", "documents": ["a"], "top_n": 0}, "top_n"),
        ("/v1/rerank", {"query": "q", "documents": ["a"], "rank_fields": ["x"]}, "rank_fields"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1"),
        ("/v1/score", {"text_1": "a", "text_2": []}, "text_2"),
    ],
)
def test_requests_that_make_no_sense_name_the_field(http: httpx.Client, path: str, fields: dict[str, Any], param: str) -> None:
    assert refused(http, path, **fields)["param"] == param


def test_a_reranker_classifies_with_its_one_class_and_does_nothing_else(http: httpx.Client) -> None:
    found = http.post("/v1/classify", json={"input": ["a", "b"]}).json()
    assert found["labels"] == ["relevant"] and all(0 <= item["probs"][0] <= 1 for item in found["data"])
    assert http.post("/v1/embeddings", json={"input": "a"}).status_code == 400


def test_another_model_reranks_nothing() -> None:
    with OnnxProcess(embed.OUT) as process, process.client() as client:
        error = client.post("/v1/rerank", json={"query": "q", "documents": ["a"]}).json()["error"]
        assert error["code"] == "unsupported_operation" and error["param"] == "model"
