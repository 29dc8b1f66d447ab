"""What steps of pipelines read and make."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from gateway.app.pipelines.data import chat_of, labelled, nearest, prompt_of, ranked, said, with_documents
from gateway.app.pipelines.steps import chosen
from gateway.core.specs.pipelines import CaseSpec, ChooseStep, RankStep

DOCUMENTS = ["one", "two", "three"]


def fields(*messages: tuple[str, Any]) -> dict[str, Raw]:
    return chat_of(json.dumps({"messages": [{"role": role, "content": content} for role, content in messages]}).encode())


def rank(**settings: Any) -> RankStep:
    return RankStep(model="m", **settings)


def vectors(*found: list[float], first: int = 0) -> bytes:
    return json.dumps({"data": [{"index": first + n, "embedding": one} for n, one in enumerate(found)]}).encode()


@pytest.mark.parametrize(
    ("messages", "prompt"),
    [
        ([("user", "a"), ("assistant", "b"), ("user", "c"), ("tool", "d")], "c"),
        ([("user", [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}, {"type": "text", "text": "b"}])], "a\nb"),
        ([("user", None)], ""),
        ([("system", "a")], ""),
    ],
)
def test_the_prompt(messages: list[tuple[str, Any]], prompt: str) -> None:
    assert prompt_of(fields(*messages)) == prompt


def test_documents_are_a_message_of_the_user_before_the_last() -> None:
    given = fields(("system", "s"), ("user", "a"), ("assistant", "b"), ("user", "c"), ("tool", "d"))
    made = json.loads(bytes(with_documents(given, None, ["x", "y"], "first")))
    assert [message["role"] for message in made] == ["system", "system", "user", "assistant", "user", "user", "tool"]
    assert made[4]["content"] == "Documents:\n\n[1] x\n\n[2] y"
    assert bytes(with_documents(given, None, [], None)) == bytes(given["messages"]), "as the client wrote it"
    assert [message["content"] for message in json.loads(bytes(with_documents(given, "text", ["x"], None)))] == [
        "Documents:\n\n[1] x",
        "text",
    ]


def test_the_nearest_documents() -> None:
    body = vectors([1.0, 0.0], [0.0, 5.0], [9.0, 1.0], [0.5, 0.5])
    assert asyncio.run(nearest(body, DOCUMENTS, rank(top=2))) == ["two", "three"]
    assert asyncio.run(nearest(body, DOCUMENTS, rank(min_score=0.9))) == ["two"]
    assert asyncio.run(nearest(vectors([1.0], [0.0], [0.0], [0.0]), DOCUMENTS, rank(top=1))) == ["one"], "a vector without a direction"


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b"[]",
        b"",
        vectors([1.0], [1.0]),
        vectors([1.0], [1.0], [1.0], [1.0], first=1),
        vectors([1.0], [1.0], [1.0, 2.0], [1.0]),
        b'{"data":[{"index":0,"embedding":"AAAA"}]}',
    ],
)
def test_what_an_embedder_should_not_answer(body: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        asyncio.run(nearest(body, DOCUMENTS, rank()))


def ranks(*found: tuple[int, float]) -> bytes:
    return json.dumps({"results": [{"index": index, "relevance_score": score} for index, score in found]}).encode()


def test_the_best_documents() -> None:
    assert ranked(ranks((2, 0.1), (0, 0.9), (1, 0.5)), DOCUMENTS, rank(top=2)) == ["one", "two"]
    assert ranked(ranks((2, 0.1)), DOCUMENTS, rank(min_score=0.2)) == []


@pytest.mark.parametrize("body", [ranks((3, 0.1)), ranks((-1, 0.1)), ranks((0, 0.1), (0, 0.2)), b'{"results":[{"index":"0"}]}', b"null"])
def test_what_a_reranker_should_not_answer(body: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        ranked(body, DOCUMENTS, rank())


@pytest.mark.parametrize("body", [b'{"data":[]}', b'{"data":[{"label":null,"probs":[]}]}', b'{"data":[{"label":"a"}]}', b"7"])
def test_what_a_classifier_should_not_answer(body: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        labelled(body)


def test_what_models_say() -> None:
    assert labelled(b'{"data":[{"label":"a","probs":[0.2,0.8]}]}') == ("a", 0.8)
    assert said(b'{"choices":[{"message":{"content":"x"}}]}') == "x"
    with pytest.raises(msgspec.MsgspecError):
        said(b'{"choices":[{"message":{"content":null,"tool_calls":[]}}]}')


@pytest.mark.parametrize(
    ("label", "score", "model"), [("a", 0.9, "m1"), ("a", 0.5, "m2"), ("b", 0.1, "m2"), ("c", 1.0, "m3"), ("", 0, "m3")]
)
def test_the_first_case_that_fits_is_chosen(label: str, score: float, model: str) -> None:
    cases = (CaseSpec(labels=("a",), min_score=0.6, model="m1"), CaseSpec(labels=("a", "b"), model="m2"))
    assert chosen(ChooseStep(by="x", cases=cases, default="m3"), label, score) == model
