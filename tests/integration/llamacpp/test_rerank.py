"""A cross-encoder as GGUF over the sidecar's socket: Jina's and Cohere's shape, vLLM's scores, errors that name the field."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import pytest

from engines.llamacpp.native import Batch, Context, Model, NativeLog
from engines.llamacpp.reranker import PairReader
from loadtests.llamacpp.random_bert import vocabulary, write_reranker
from tests.integration.llamacpp.process import Sidecar

QUERY, DOCUMENTS = "what colour is the sky", ["the sky is blue", "a fox jumps over the dog", "bake bread", "the sea"]


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_reranker(tmp_path_factory.mktemp("rank") / "rank.gguf")


@pytest.fixture(scope="module")
def sidecar(tmp_path_factory: pytest.TempPathFactory, model_file: Path) -> Iterator[Sidecar]:
    made = Sidecar(tmp_path_factory.mktemp("s"), model_file, context=256)
    made.wait("ready", "failed")
    yield made
    made.close()


@pytest.fixture(scope="module")
def model(model_file: Path) -> Iterator[Model]:
    made = Model(str(model_file), NativeLog(), gpu_layers=0, use_mmap=True, use_mlock=False)
    yield made
    made.close()


def alone(model: Model, document: str) -> float:
    """llama.cpp's own score of the pair, with marks as a BERT's are, written here by hand."""
    words = vocabulary()
    ids = [2, *(words.index(f"▁{word}") for word in QUERY.split()), 3, *(words.index(f"▁{word}") for word in document.split())]
    context = Context(
        model, NativeLog(), cells=256, sequences=1, batch=256, micro_batch=256, threads=1, threads_batch=1, embeddings=True
    )  # fmt: skip
    batch = Batch(256)
    last = batch.add(0, 0, ids, output_last=True)
    batch.output[: batch.count] = 1
    try:
        assert context.encode(batch) == 0
        return float(context.embedding_of(0, last)[0])
    finally:
        context.close()


def ask(sidecar: Sidecar, path: str, **body: Any) -> Any:
    return sidecar.http.post(path, json=body)


def test_documents_come_by_falling_relevance_with_llama_cpps_own_scores(sidecar: Sidecar, model: Model) -> None:
    assert sidecar.health()["task"] == "rerank"
    answer = ask(sidecar, "/v1/rerank", query=QUERY, documents=DOCUMENTS).json()
    wanted = {index: 1 / (1 + math.exp(-alone(model, text))) for index, text in enumerate(DOCUMENTS)}
    assert [item["index"] for item in answer["results"]] == sorted(wanted, key=lambda index: -wanted[index])
    for item in answer["results"]:
        assert item["relevance_score"] == pytest.approx(wanted[item["index"]], abs=1e-4)
        assert item["document"] == {"text": DOCUMENTS[item["index"]]}
    assert len({round(score, 5) for score in wanted.values()}) == 4, "the model tells the documents apart"
    assert answer["usage"]["total_tokens"] == sum(7 + len(text.split()) for text in DOCUMENTS)


def test_top_n_objects_and_raw_scores(sidecar: Sidecar, model: Model) -> None:
    documents = [{"text": text} for text in DOCUMENTS]
    answer = ask(sidecar, "/v1/rerank", query=QUERY, documents=documents, top_n=2, return_documents=False, use_activation=False).json()
    assert [set(item) for item in answer["results"]] == [{"index", "relevance_score"}] * 2
    best = answer["results"][0]
    assert best["relevance_score"] == pytest.approx(alone(model, DOCUMENTS[best["index"]]), abs=1e-3)


def test_scores_keep_the_requests_order(sidecar: Sidecar, model: Model) -> None:
    answer = ask(sidecar, "/v1/score", text_1=QUERY, text_2=DOCUMENTS, use_activation=False).json()
    assert [item["score"] for item in answer["data"]] == pytest.approx([alone(model, text) for text in DOCUMENTS], abs=1e-3)


def test_many_pairs_share_batches_and_none_is_lost(sidecar: Sidecar) -> None:
    documents = [DOCUMENTS[number % 4] for number in range(100)]
    answer = ask(sidecar, "/v1/rerank", query=QUERY, documents=documents).json()
    assert sorted(item["index"] for item in answer["results"]) == list(range(100))
    assert len({round(item["relevance_score"], 4) for item in answer["results"]}) == 4


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"documents": ["a"]}, "query", "missing_required_parameter"),
        ({"query": "q", "documents": []}, "documents", None),
        ({"query": "q", "documents": ["a"], "top_n": 0}, "top_n", None),
        ({"query": "q", "documents": [{"title": "a"}]}, "documents", None),
        ({"query": "q", "documents": ["a"], "colour": 1}, "colour", "unsupported_parameter"),
        ({"query": "q", "documents": ["the dog " * 200]}, "documents", "context_length_exceeded"),
        ({"query": "the dog " * 200, "documents": ["a"], "truncate": True}, "documents", "context_length_exceeded"),
    ],
)  # fmt: skip
def test_errors_name_the_field(sidecar: Sidecar, body: dict[str, Any], param: str, code: str | None) -> None:
    answer = ask(sidecar, "/v1/rerank", **body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param and (code is None or error["code"] == code)


def test_a_long_document_is_cut_where_the_request_allows_it(sidecar: Sidecar) -> None:
    answer = ask(sidecar, "/v1/rerank", query=QUERY, documents=["the dog " * 300, "the sky"], truncate=True)
    (cut,) = answer.json()["truncated"]
    assert cut["index"] == 0 and cut["tokens"] == 607 and int(answer.headers["x-gatehouse-truncated"]) == 607 - cut["used"]


def test_it_makes_neither_text_nor_embeddings(sidecar: Sidecar) -> None:
    for path, body in (("/v1/completions", {"prompt": "a"}), ("/v1/embeddings", {"input": "a"})):
        answer = ask(sidecar, path, **body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unsupported_operation")


def test_a_clients_text_is_never_a_control_token(model: Model) -> None:
    reader = PairReader(model)
    tokens, cut = reader.read(reader.tokens("[SEP] fox"), "[CLS] dog", 256, False, "documents[0]")
    assert (tokens.count(2), tokens.count(3), cut) == (1, 1, 0)


def test_the_files_own_template_makes_the_pair(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    words = vocabulary()
    monkeypatch.setattr(llama_cpp, "llama_model_chat_template", lambda handle, name: b"[CLS]a {document-like} {query}[SEP]{document}[SEP]")
    reader = PairReader(model)
    tokens, _cut = reader.read(reader.tokens("fox"), "[SEP] dog", 256, False, "documents[0]")
    assert tokens[0] == 2 and tokens[-1] == 3 and tokens.count(3) == 2 and words.index("▁fox") in tokens


def test_other_models_do_not_rerank(start: Callable[..., Sidecar]) -> None:
    sidecar = start("embed.gguf")
    sidecar.wait("ready")
    answer = ask(sidecar, "/v1/rerank", query="q", documents=["a"])
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unsupported_operation")
