"""A BERT encoder with random weights: its graph against a plain numpy forward pass, then served and asked with the openai client."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import openai
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer

from engines.onnx.build_bert import convert, read_safetensors
from tests.integration.bert import Shape, source
from tests.integration.onnx_process import OnnxProcess

Array = NDArray[np.float32]
Weights = Mapping[str, Array]

SHAPE = Shape()
TEXTS = (
    "The cat sat on the mat.",
    "A feline rested on the rug.",
    "Stock markets fell sharply today after the central bank raised interest rates by half a percentage point.",
    "gr\u00fc\u00df Gott, \u4f60\u597d, \U0001f642",
    "a",
)


# -- the reference ---------------------------------------------------------------------------------------------------------


def linear(value: Array, weights: Weights, name: str) -> Array:
    return value @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def norm(value: Array, weights: Weights, name: str) -> Array:
    centred = value - value.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-12) * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def gelu(value: Array) -> Array:
    return value * 0.5 * (1 + np.vectorize(math.erf)(value / math.sqrt(2)))


def forward(weights: Weights, ids: list[int], heads: int, layers: int) -> Array:
    """last_hidden_state [length, hidden] of one text, without padding; written from the paper, one head after the other."""
    hidden = (
        weights["embeddings.word_embeddings.weight"][ids]
        + weights["embeddings.position_embeddings.weight"][: len(ids)]
        + weights["embeddings.token_type_embeddings.weight"][0]
    )
    hidden = norm(hidden, weights, "embeddings.LayerNorm")
    for layer in range(layers):
        name = f"encoder.layer.{layer}"
        query, key, value = (linear(hidden, weights, f"{name}.attention.self.{part}") for part in ("query", "key", "value"))
        mixed = []
        for part in np.split(np.arange(hidden.shape[1]), heads):
            scores = query[:, part] @ key[:, part].T / math.sqrt(len(part))
            shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
            mixed.append(shares / shares.sum(axis=-1, keepdims=True) @ value[:, part])
        attended = linear(np.concatenate(mixed, axis=1), weights, f"{name}.attention.output.dense")
        hidden = norm(attended + hidden, weights, f"{name}.attention.output.LayerNorm")
        inner = gelu(linear(hidden, weights, f"{name}.intermediate.dense"))
        hidden = norm(linear(inner, weights, f"{name}.output.dense") + hidden, weights, f"{name}.output.LayerNorm")
    return hidden


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder as a publisher would have it."""
    return source(tmp_path_factory.mktemp("bert") / "source", SHAPE)


@pytest.fixture(scope="module")
def folder(published: Path) -> Path:
    return convert(published, published.with_name("onnx")).parent


@pytest.fixture(scope="module")
def reference(published: Path) -> dict[str, Array]:
    """Text -> its embedding by the reference, and under the key `hidden:text` the hidden states."""
    weights = {
        name: value.astype(np.float64)
        for name, value in read_safetensors(published / "model.safetensors").items()
        if value.dtype.kind == "f"
    }
    tokenizer = Tokenizer.from_file(str(published / "tokenizer.json"))
    tokenizer.no_padding()
    config = json.loads((published / "config.json").read_bytes())
    found: dict[str, Array] = {}
    for text in TEXTS:
        hidden = forward(weights, tokenizer.encode(text).ids, config["num_attention_heads"], config["num_hidden_layers"])
        pooled = hidden.mean(axis=0)
        found[f"hidden:{text}"], found[text] = hidden, pooled / np.linalg.norm(pooled)
    return found


@pytest.fixture(scope="module")
def sidecar(folder: Path) -> Iterator[OnnxProcess]:
    with OnnxProcess(folder) as process:
        yield process


@pytest.fixture(scope="module")
def client(sidecar: OnnxProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://{sidecar.address}/v1", api_key="unused", max_retries=0) as made:
        yield made


# -- tests -----------------------------------------------------------------------------------------------------------------


def test_the_graph_is_the_model(folder: Path, reference: dict[str, Array]) -> None:
    session = ort.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    for text in TEXTS:
        ids = np.array([tokenizer.encode(text).ids])
        feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        (hidden,) = session.run(["last_hidden_state"], feeds)
        np.testing.assert_allclose(hidden[0], reference[f"hidden:{text}"], atol=1e-4)


def test_what_the_sidecar_says_of_it(sidecar: OnnxProcess) -> None:
    with sidecar.client() as http:
        found = http.get("/health").json()
    assert (found["state"], found["task"], found["batching"], found["max_length"]) == ("ready", "embeddings", "padded", 256)


@pytest.mark.parametrize("encoding", ["float", "base64", None])
def test_embeddings_with_the_openai_client(client: openai.OpenAI, reference: dict[str, Array], encoding: Any) -> None:
    more = {} if encoding is None else {"encoding_format": encoding}
    answer = client.embeddings.create(model="bert", input=list(TEXTS), **more)
    assert [item.index for item in answer.data] == list(range(len(TEXTS)))
    for text, item in zip(TEXTS, answer.data, strict=True):
        raw: Any = item.embedding
        vector = np.frombuffer(base64.b64decode(raw), "<f4") if isinstance(raw, str) else np.array(raw)
        np.testing.assert_allclose(vector, reference[text], atol=1e-4)


def test_usage_is_what_the_tokenizer_counts(client: openai.OpenAI, folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    expected = sum(len(tokenizer.encode(text).ids) for text in TEXTS)
    usage = client.embeddings.create(model="m", input=list(TEXTS)).usage
    assert usage.prompt_tokens == usage.total_tokens == expected
    counted = client.post("/embeddings/input_tokens", body={"model": "m", "input": list(TEXTS)}, cast_to=dict[str, Any])
    assert counted["input_tokens"] == expected


def test_token_arrays(client: openai.OpenAI, folder: Path, reference: dict[str, Array]) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokens = [tokenizer.encode(text).ids for text in TEXTS[:2]]
    for given, expected in ((tokens, TEXTS[:2]), (tokens[0], TEXTS[:1])):
        answer = client.embeddings.create(model="m", input=given, encoding_format="float")  # type: ignore[arg-type]
        for text, item in zip(expected, answer.data, strict=True):
            np.testing.assert_allclose(item.embedding, reference[text], atol=1e-4)


def test_sixteen_clients_get_what_one_gets(client: openai.OpenAI, sidecar: OnnxProcess) -> None:
    texts = [f"{TEXTS[index % 3]} {'and so on ' * (index % 7)}{index}" for index in range(48)]
    alone = {text: np.array(client.embeddings.create(model="m", input=text, encoding_format="float").data[0].embedding) for text in texts}
    for _ in range(10):  # clients that are held up may come one after the other
        with sidecar.client() as http:
            before = batches(http.get("/metrics").text)
            with ThreadPoolExecutor(16) as pool:
                together = list(pool.map(lambda text: client.embeddings.create(model="m", input=text, encoding_format="float"), texts))
            after = batches(http.get("/metrics").text)
        for text, answer in zip(texts, together, strict=True):
            np.testing.assert_allclose(answer.data[0].embedding, alone[text], atol=1e-5)
        if after - before < len(texts):
            return
    raise AssertionError("none shared a batch")


def batches(metrics: str) -> int:
    return int(next(line for line in metrics.splitlines() if line.startswith("gatehouse_onnx_batches_total")).split()[1])


def test_a_long_text_is_cut_and_that_is_said(client: openai.OpenAI) -> None:
    long = "gateway " * 400
    raw = client.embeddings.with_raw_response.create(model="m", input=[long, "short"])
    assert raw.headers["x-gatehouse-truncated"] == str(402 - 256)
    parsed = raw.parse()
    assert parsed.usage.prompt_tokens == 256 + 3
    assert (parsed.model_extra or {})["truncated"] == [{"index": 0, "tokens": 402, "used": 256}]
    with pytest.raises(openai.BadRequestError, match="expected at most 254 tokens, received 400"):
        client.embeddings.create(model="m", input=long, extra_body={"truncate": False})


def test_refusals_reach_the_openai_client(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="dimensions: expected 48, received 100"):
        client.embeddings.create(model="m", input="a", dimensions=100)
    with pytest.raises(openai.BadRequestError, match="input"):
        client.embeddings.create(model="m", input=[])
    assert len(client.embeddings.create(model="m", input="a", dimensions=48).data[0].embedding) == 48
