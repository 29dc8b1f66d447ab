"""The guardrail for topics, with a fake of the embedding model. A real one: tests/e2e/test_guard_models.py."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import pytest

from gateway.app.configuration.plugins import OURS
from gateway.core.errors import ConfigError, ContextLengthExceeded, EngineError, EngineTimeout
from gateway.core.plugins import no_files
from gateway.core.specs import GuardrailSpec
from gateway.core.types import ALLOW, Verdict
from gateway.guardrails import topics
from gateway.guardrails.topics import Topics
from tests.fakes.asker import FakeAsker, embedding

WORDS = ("cats", "law", "hello")


def space(path: bytes, question: dict[str, Any]) -> dict[str, Any]:
    """A direction for each of a few words; a text has the sum of its words' directions."""
    data = []
    for index, text in enumerate(question["input"]):
        vector = [float(text.count(word)) for word in WORDS] + [0.1]
        data.append({"index": index, "embedding": vector})
    return {"data": data}


def made(asker: FakeAsker | None, **settings: Any) -> Topics:
    given = {"model": "embed", "deny": {"law": ["law", "law law hello"]}, "timeout": 60.0, **settings}
    found = OURS.guardrail(GuardrailSpec(name="g", type="topics", settings=given), no_files, asker=asker)
    assert isinstance(found, Topics)
    return found


async def verdict(guardrail: Topics, *texts: str) -> Verdict:
    found = guardrail.check(texts)
    return await found if isinstance(found, Awaitable) else found


async def test_a_denied_topic_blocks_with_its_name_and_similarity() -> None:
    guardrail = made(FakeAsker("", space), threshold=0.9)
    found = await verdict(guardrail, "cats", "the law", "")
    assert (found.action, found.guardrail) == ("block", "g") and "law" not in found.reason
    assert [(f.entity, f.text, f.start, f.end) for f in found.findings] == [("law", 1, 0, 7)] and found.findings[0].score >= 0.99
    assert await verdict(guardrail, "cats and cats") is ALLOW
    assert await verdict(guardrail, "", " ") is ALLOW


async def test_texts_must_be_about_an_allowed_topic_and_short_ones_need_not() -> None:
    guardrail = made(FakeAsker("", space), deny={}, allow={"cats": ["cats"], "greeting": ["hello"]}, threshold=0.8, shortest=10)
    assert await verdict(guardrail, "tell me of cats", "hello, how are you?", "the law") is ALLOW
    found = await verdict(guardrail, "tell me of cats", "tell me of the law")
    assert [(f.entity, f.text) for f in found.findings] == [("off_topic", 1)] and found.findings[0].score < 0.8


async def test_every_part_of_a_long_text_counts() -> None:
    guardrail = made(FakeAsker("", space), deny={}, allow={"cats": ["cats"]}, threshold=0.8, window=64, overlap=8)
    on = "all the cats of the house " * 20
    assert await verdict(guardrail, on) is ALLOW
    found = await verdict(guardrail, on + "and now for the law, " * 8)
    assert found.action == "block" and min(f.start for f in found.findings) >= len(on) - 64


async def test_examples_are_embedded_once_whatever_comes() -> None:
    asker = FakeAsker("", space)
    guardrail = made(asker, deny={"law": ["law", "law law"], "cats": ["cats cats"]})
    for _ in range(5):
        await verdict(guardrail, "hello")
    examples = [question["input"] for _, _, question in asker.asked if question["input"] != ["hello"]]
    assert examples == [["law", "law law"], ["cats cats"], ["law"]], "and one of them as the anchor"


async def test_another_model_behind_the_same_name_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    asker = FakeAsker("", space)
    guardrail = made(asker, threshold=0.9)
    await verdict(guardrail, "hello")

    def turned(path: bytes, question: dict[str, Any]) -> dict[str, Any]:
        found = space(path, question)
        for item in found["data"]:
            item["embedding"].reverse()
        return found

    monkeypatch.setattr(topics, "CHECKED_EVERY", -1.0)
    asker.answer = turned
    assert (await verdict(guardrail, "the law")).action == "block"
    assert await verdict(guardrail, "cats") is ALLOW
    asker.answer = embedding("law")  # of another size: once a failure, then known again
    with pytest.raises(EngineError, match="differ in size"):
        await verdict(guardrail, "the law")
    assert (await verdict(guardrail, "the law")).action == "block"


async def test_what_the_model_cannot_read_whole_is_asked_about_in_halves() -> None:
    def cuts(path: bytes, question: dict[str, Any]) -> dict[str, Any]:
        if max(map(len, question["input"])) > 120:
            raise ContextLengthExceeded("too long")
        found = space(path, {"input": [text[:40] for text in question["input"]]})
        return {**found, "truncated": [{"index": n} for n, text in enumerate(question["input"]) if len(text) > 40]}

    guardrail = made(FakeAsker("", cuts), window=200, overlap=10, threshold=0.9)
    assert (await verdict(guardrail, "x" * 150 + " law")).action == "block"
    assert await verdict(guardrail, "cats " * 40) is ALLOW


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"nothing", "has no embeddings"),
        (b'{"a":' + b"[" * 100_000, "has no embeddings"),
        ({"data": [{"index": 0, "embedding": "!"}]}, "has no embeddings"),
        ({"data": []}, "embedded 0 of 1"),
        ({"data": [{"index": 0, "embedding": [0.0, 0.0]}]}, "not a direction"),
        ({"data": [{"index": 0, "embedding": []}]}, "not a direction"),
    ],
)
async def test_an_answer_that_is_none_is_a_failure(answer: Any, why: str) -> None:
    guardrail = made(FakeAsker("", lambda path, question: answer), deny={"law": ["law"]})
    with pytest.raises(EngineError, match=why):
        await verdict(guardrail, "x")


async def test_a_model_that_hangs_is_a_failure_and_labels_are_told() -> None:
    asker = FakeAsker("", space)
    guardrail = made(asker)
    await verdict(guardrail, "hello")
    found = guardrail.check_labelled(["hello"], frozenset({"pii"}))
    assert isinstance(found, Awaitable) and await found is ALLOW
    assert asker.labels[-1] == {"pii"} and not any(asker.labels[:-1])

    def late(path: bytes, question: dict[str, Any]) -> dict[str, Any]:
        raise EngineTimeout("late")

    slow = made(FakeAsker("", late))
    with pytest.raises(EngineTimeout):
        await verdict(slow, "hello")
    await slow.aclose()


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"deny": {}}, "it has no topic"),
        ({"allow": {"law": ["x"]}}, "allow.law: deny has a topic of this name too"),
        ({"thresholds": {"laws": 0.5}}, "thresholds.laws: there is no such topic; known: law"),
        ({"overlap": 400}, "more than half of window"),
        ({"deny": {"law": ["x"] * 513}}, "513 examples"),
        ({"deny": {"law": []}}, "length >= 1"),
    ],
)
def test_settings_that_it_refuses(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        made(FakeAsker(""), **settings)
