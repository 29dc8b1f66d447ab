"""The guardrail for names and places, with a fake of the model."""

from __future__ import annotations

import json
from collections.abc import Awaitable
from typing import Any

import pytest

from gateway.app.configuration.plugins import OURS
from gateway.core import deadlines
from gateway.core.errors import ConfigError, EngineError
from gateway.core.plugins import no_files
from gateway.core.secret import Secret
from gateway.core.specs import GuardrailSpec
from gateway.core.types import ALLOW, Principal, Usage, Verdict
from gateway.guardrails.entities import QUESTION, Entities
from tests.fakes.asker import FakeAsker, finding
from tests.fakes.paused import Standing


def made(asker: FakeAsker | None, **settings: Any) -> Any:
    return OURS.guardrail(
        GuardrailSpec(name="g", type="entities", settings={"model": "ner", "timeout": 60.0, **settings}), no_files, asker=asker
    )


async def verdict(guardrail: Entities, *texts: str) -> Verdict:
    found = guardrail.check(texts)
    return await found if isinstance(found, Awaitable) else found


async def test_names_are_masked_where_they_stand() -> None:
    asker = FakeAsker("", finding("Zoë"))
    found = await verdict(made(asker), "hello", "👋🏽 Zoë met Zoë", "", " ")
    assert found.action == "rewrite" and found.texts == ("hello", "👋🏽 [PERSON] met [PERSON]", "", " ")
    assert [(f.text, f.start, f.end, f.entity, f.value) for f in found.findings] == [
        (1, 3, 6, "person", "Zoë"),
        (1, 11, 14, "person", "Zoë"),
    ]
    assert found.usage == Usage(10, 1) and "Zoë" not in found.reason
    assert asker.asked[0][2] == {"input": ["hello", "👋🏽 Zoë met Zoë"]}
    assert await verdict(made(asker), "nobody") is ALLOW and await verdict(made(asker), "") is ALLOW


@pytest.mark.parametrize(
    ("settings", "action", "text"),
    [
        ({"entities": {"person": "block"}}, "block", None),
        ({"entities": {"person": "annotate"}}, "annotate", "Ann is here"),
        ({"entities": {"location": "mask"}}, "allow", None),
        ({"entities": {"person": "allow"}}, "allow", None),
        ({"threshold": 0.95}, "allow", None),
        ({"allow": ["ANN"]}, "allow", None),
        ({"labels": {"PER": "employee"}, "entities": {"employee": "mask"}}, "rewrite", "[EMPLOYEE] is here"),
    ],
)
async def test_actions(settings: dict[str, Any], action: str, text: str | None) -> None:
    found = await verdict(made(FakeAsker("", finding("Ann")), **settings), "Ann is here")
    assert found.action == action and (found.texts or (None,))[0] == text


async def test_a_hash_is_keyed_and_the_same_in_any_case() -> None:
    asker = FakeAsker("", finding("Ann"))
    settings = {"entities": {"person": "hash"}, "hash_key": Secret("0123456789abcdef")}
    one = await verdict(made(asker, **settings), "Ann")
    upper = await verdict(made(FakeAsker("", finding("ANN")), **settings), "ANN")
    other = await verdict(made(asker, entities={"person": "hash"}, hash_key=Secret("another key of 16 bytes")), "Ann")
    assert one.texts == upper.texts != other.texts and one.texts[0].startswith("[PERSON:")
    for wrong in ({}, {"hash_key": Secret("short")}):
        with pytest.raises(ConfigError, match="hash_key"):
            made(asker, entities={"person": "hash"}, **wrong)


async def test_json_stays_json() -> None:
    text = json.dumps({"to": "Ann", "cc": ["Bob"]})
    found = await verdict(made(FakeAsker("", finding('Ann", "cc": ["Bob'))), text)
    assert json.loads(found.texts[0]) == {"to": "[PERSON]", "cc": ["Bob"]}


@pytest.mark.parametrize(
    "answer",
    [
        b"no",
        b'{"a":' + b"[" * 100_000,
        {"data": []},
        {"data": [{"index": 0, "entities": [{"entity": "PER", "start": 3, "end": 99, "score": 1}]}]},
        {"data": [{"index": 0, "entities": [{"entity": "PER", "start": -1, "end": 2, "score": 1}]}]},
        {"data": [{"index": 0, "entities": [{"entity": "A", "start": a, "end": b, "score": 1} for a, b in ((0, 3), (2, 4))]}]},
        {"data": [{"index": 0, "label": "bad", "probs": [1]}]},
    ],
)  # fmt: skip
async def test_what_says_nothing_about_the_texts_is_a_failure(answer: Any) -> None:
    with pytest.raises(EngineError):
        await verdict(made(FakeAsker("", lambda path, question: answer)), "hello")


async def test_many_texts_are_asked_about_in_batches() -> None:
    asker = FakeAsker("", finding("Ann"))
    found = await verdict(made(asker, batch=2), "Ann", "x", "Ann", "y", "Ann")
    assert found.texts == ("[PERSON]", "x", "[PERSON]", "y", "[PERSON]") and len(asker.asked) == 3


async def test_large_texts_are_asked_about_in_questions_that_the_sidecar_reads() -> None:
    asker = FakeAsker("", finding("Ann"))
    texts = ["é" * (QUESTION // 5), "x" * (QUESTION // 2), "y", "z" * (QUESTION + 1), "Ann"]
    found = await verdict(made(asker), *texts)
    assert found.texts == (*texts[:-1], "[PERSON]")
    assert [[texts.index(text) for text in question["input"]] for _, _, question in asker.asked] == [[0, 1, 2], [3], [4]]


async def test_a_pause_during_one_of_several_questions_costs_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Standing()
    monkeypatch.setattr(deadlines, "time", clock)

    def paused(path: bytes, question: dict[str, Any]) -> Any:
        if len(asker.asked) == 1:
            clock.pause(12.0)
        return usual(path, question)

    asker = FakeAsker("", paused)
    usual = finding("Ann")
    found = await verdict(made(asker, batch=1, timeout=5.0), "Ann", "x", "Ann")
    assert found.texts == ("[PERSON]", "x", "[PERSON]") and len(asker.asked) == 3


def layered(asker: FakeAsker, **settings: Any) -> Any:
    guardrail = made(asker, entities={"person": "pseudonym", "location": "mask"}, **settings)
    caller = Principal("key", "k", "acme", session="s")
    return guardrail, guardrail.layer(caller, lambda name: b"secret" * 6, 0.0)


async def test_a_pseudonym_comes_back_and_an_answer_of_its_own_is_masked() -> None:
    guardrail, layer = layered(FakeAsker("", finding("Ann")))
    text = json.dumps({"to": "Ann", "inner": json.dumps({"a": "Ann"})})
    found = await layer.check(["Ann and Ann", text, "x"], frozenset())
    assert found.texts[0] == "<PERSON_1> and <PERSON_1>" and json.loads(found.texts[1])["to"] == "<PERSON_1>" and found.texts[2] == "x"
    assert layer.active and layer.whole("to <PERSON_1>, <PERSON_2>") == "to Ann, <PERSON_2>"
    stream = layer.stream()
    assert "".join([*map(stream.feed, "<PERSON_1>!"), stream.finish()]) == "Ann!"
    assert (await verdict(guardrail, "Ann")).texts == ("[PERSON]",)
    await guardrail.aclose()


async def test_text_in_the_form_of_a_sessions_pseudonym_is_renamed_also_where_nothing_is_found() -> None:
    guardrail, layer = layered(FakeAsker("", finding("Ann")), pseudonyms={"scope": "session"})
    given = (await layer.check(["Ann"], frozenset())).texts[0]
    second = guardrail.layer(Principal("key", "k", "acme", session="s"), lambda name: b"secret" * 6, 1.0)
    found = await second.check([f"what is {given}"], frozenset())
    assert found.action == "rewrite" and given not in found.texts[0] and second.whole(found.texts[0]) == f"what is {given}"


async def test_labels_are_told_to_who_is_asked() -> None:
    asker = FakeAsker("", finding("Ann"))
    _, layer = layered(asker)
    await layer.check(["Ann"], frozenset({"secret"}))
    assert asker.labels == [frozenset({"secret"})]


def test_a_name_that_no_pseudonym_can_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="small letters"):
        made(FakeAsker(""), labels={"X": "A b"}, entities={"A b": "pseudonym"})
