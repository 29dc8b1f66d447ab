"""The guardrail that a classification model decides, with a fake of the model."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from gateway.app.configuration.plugins import OURS
from gateway.core import deadlines
from gateway.core.errors import ConfigError, ContextLengthExceeded, EngineError
from gateway.core.plugins import no_files
from gateway.core.specs import GuardrailSpec
from gateway.core.types import ALLOW, Principal, Usage, Verdict
from gateway.guardrails.classifier import Classifier
from tests.fakes.asker import FakeAsker
from tests.fakes.paused import Standing

CALLER = Principal("key", "acme", "api_key")


def made(asker: FakeAsker | None, **settings: Any) -> Any:
    given = {"model": "guard", "labels": {"bad": 0.9}, "timeout": 60.0, **settings}
    return OURS.guardrail(GuardrailSpec(name="g", type="classifier", settings=given), no_files, asker=asker)


async def verdict(guardrail: Classifier, *texts: str) -> Verdict:
    found = guardrail.check(texts)
    return await found if isinstance(found, Awaitable) else found


async def test_a_label_that_is_sure_enough_blocks_and_says_where_and_what_it_cost() -> None:
    asker = FakeAsker("attack")
    guardrail = made(asker)
    found = await verdict(guardrail, "hello", "", "  ", "an attack")
    assert (found.action, found.guardrail) == ("block", "g") and "attack" not in found.reason
    assert [(f.text, f.start, f.end, f.entity, f.score) for f in found.findings] == [(3, 0, 9, "bad", 0.95)]
    assert found.usage == Usage(10, 1)
    assert asker.asked == [("guard", b"/v1/classify", {"input": ["hello", "an attack"]})]
    assert await verdict(guardrail, "hello") is ALLOW
    assert await verdict(guardrail, "", "\n") is ALLOW and len(asker.asked) == 2
    assert (await verdict(made(FakeAsker("attack"), action="annotate"), "attack")).action == "annotate"
    assert await verdict(made(FakeAsker("attack"), labels={"bad": 0.96}), "attack") is ALLOW


async def test_long_texts_are_read_in_windows_that_overlap() -> None:
    asker = FakeAsker("the attack")
    guardrail = made(asker, window=100, overlap=20, batch=3)
    for place in range(0, 400, 7):
        text = "x" * place + "the attack" + "y" * (390 - place)
        found = await verdict(guardrail, text)
        assert found.action == "block"
        assert all(f.start <= place and place + 10 <= f.end for f in found.findings)
    assert all(len(question["input"]) <= 3 and max(map(len, question["input"])) <= 100 for _, _, question in asker.asked)


async def test_a_pause_during_one_of_several_questions_costs_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Standing()
    monkeypatch.setattr(deadlines, "time", clock)

    def paused(path: bytes, question: dict[str, Any]) -> Any:
        if len(asker.asked) == 1:
            clock.pause(12.0)
        return usual(path, question)

    asker = FakeAsker("attack", paused)
    usual = asker.usual
    found = await verdict(made(asker, batch=1, timeout=5.0), "one", "two", "attack")
    assert found.action == "block" and len(asker.asked) == 3


async def test_what_the_engine_cut_is_asked_about_again_in_halves() -> None:
    def cuts(path: bytes, question: dict[str, Any]) -> dict[str, Any]:
        short = [text[:40] for text in question["input"]]
        cut = [{"index": n, "tokens": 9, "used": 4} for n, text in enumerate(question["input"]) if len(text) > 40]
        return {**asker.usual(path, {"input": short}), "truncated": cut}

    def refuses(path: bytes, question: dict[str, Any]) -> dict[str, Any]:
        if max(map(len, question["input"])) > 40:
            raise ContextLengthExceeded("too long")
        return asker.usual(path, question)

    for answer in (cuts, refuses):
        asker = FakeAsker("attack", answer)
        guardrail = made(asker, window=300, overlap=20)
        for place in (0, 30, 140, 200, 290):
            found = await verdict(guardrail, "." * place + "attack" + "." * (300 - place))
            assert found.action == "block" and all(f.start <= place <= f.end for f in found.findings), place
        assert await verdict(guardrail, "." * 300) is ALLOW


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"no", "not a classification"),
        (b'{"a":' + b"[" * 100_000, "not a classification"),
        ({"labels": ["fine"], "data": []}, "classified 0 of 1"),
        ({"labels": ["fine", "evil"], "data": [{"index": 0, "probs": [1, 0]}]}, "no label 'bad'; it has fine, evil"),
        ({"data": [{"index": 0, "probs": [1, 0], "label": "fine"}]}, "does not name its labels"),
        ({"labels": ["fine", "bad"], "data": [{"index": 0, "probs": [1]}]}, "1 probabilities for 2"),
        ({"labels": ["fine", "bad"], "data": [{"index": 7, "probs": [1, 0]}]}, "classified 1 of 1"),
    ],
)
async def test_what_is_no_classification_is_a_failure(answer: Any, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        await verdict(made(FakeAsker("x", lambda path, question: answer)), "hello")


async def test_texts_that_cannot_be_asked_about_are_a_failure() -> None:
    with pytest.raises(EngineError, match="max_bytes"):
        await verdict(made(FakeAsker("x"), max_bytes=10), "hello world")

    def never(path: bytes, question: dict[str, Any]) -> dict[str, Any]:
        raise ContextLengthExceeded("too long")

    with pytest.raises(EngineError, match="cannot read"):
        await verdict(made(FakeAsker("x", never)), "hello world, this is long")


async def test_an_engine_that_does_not_name_its_labels_has_them_from_the_settings() -> None:
    asker = FakeAsker("x", lambda path, question: {"data": [{"index": 0, "probs": [0.05, 0.95], "label": "bad"}]})
    assert (await verdict(made(asker, classes=["fine", "bad"]), "hello")).action == "block"


async def test_moderation_says_of_each_text_how_bad_it_is() -> None:
    asker = FakeAsker("attack")
    found = await made(asker, window=100, overlap=10).moderate(["fine", "", "." * 150 + "attack"], CALLER, 5.0)
    assert [(r.flagged, r.categories, r.scores) for r in found.results] == [
        (False, {"bad": False}, {"bad": 0.1}),
        (False, {"bad": False}, {"bad": 0.0}),
        (True, {"bad": True}, {"bad": 0.95}),
    ]
    assert found.usage == Usage(10, 1) and asker.principals == [CALLER]


async def test_it_ends_its_questions_when_it_is_closed() -> None:
    asker = FakeAsker("x")
    asker.hold = asyncio.Event()
    guardrail = made(asker)
    waiting = guardrail.check(["hello"])
    await asyncio.sleep(0)
    await guardrail.aclose()
    with pytest.raises(asyncio.CancelledError):
        await waiting


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"labels": {}}, "labels"),
        ({"overlap": 600}, "more than half"),
        ({"classes": ["good"]}, "'bad', which is not among the classes"),
        ({"labels": {"bad": 0}}, "labels"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made(FakeAsker("x"), **settings)
    with pytest.raises(ConfigError, match="no gateway here"):
        made(None)
