"""What the path for embeddings answers when the model computes no numbers; llama.cpp itself runs in the integration tests."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy
import pytest

from engines.llamacpp.embedder import Embedder, EmbeddingHandler, normalised
from engines.llamacpp.native import Model
from engines.sidecar.shell import ApiError, Request


class Computed:
    """Stands for the embedder: one vector for each prompt."""

    limit = 8

    def __init__(self, *vectors: list[float]) -> None:
        self.vectors = [normalised(numpy.array(vector, numpy.float32)) for vector in vectors]

    async def embed(self, prompts: Sequence[list[int]], request: Request) -> list[Any]:
        return self.vectors[: len(prompts)]


def handler(*vectors: list[float]) -> EmbeddingHandler:
    model = SimpleNamespace(n_embd=3, n_vocab=100)
    return EmbeddingHandler(cast(Model, model), cast(Embedder, Computed(*vectors)), "m")


def request(**fields: Any) -> Request:
    return cast(Request, SimpleNamespace(body=msgspec.json.encode(fields)))


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
@pytest.mark.parametrize("fields", [{}, {"dimensions": 1}, {"encoding_format": "base64"}])
async def test_a_vector_that_is_not_finite_is_no_answer(wrong: float, fields: dict[str, Any]) -> None:
    """In JSON its numbers would be nulls."""
    with pytest.raises(ApiError, match="not finite") as caught:
        await handler([1.0, 0.0, 0.0], [1.0, 0.0, wrong]).embeddings(request(input=[[1], [2]], **fields))
    assert (caught.value.status, caught.value.code) == (502, "engine_failed")


async def test_vectors_are_cut_and_have_length_1_again() -> None:
    answer = await handler([3.0, 4.0, 12.0], [0.0, 0.0, 0.0]).embeddings(request(input=[[1], [2]], dimensions=2))
    found = [item["embedding"] for item in msgspec.json.decode(answer.body)["data"]]
    assert found[0] == pytest.approx([0.6, 0.8]) and found[1] == [0.0, 0.0]
