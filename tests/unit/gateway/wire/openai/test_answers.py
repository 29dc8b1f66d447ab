"""The texts of whole answers: found, replaced, and what cannot be read."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.errors import EngineError, GuardrailViolation
from gateway.core.types import Usage
from gateway.wire.openai.answers import OpenAiAnswer, answer_texts, is_json, plain_answer, replace_answer_texts, trim
from gateway.wire.openai.usage import finish_in, usage_of


def answer() -> dict[str, Any]:
    return {
        "choices": [
            {"message": {"content": "a", "reasoning_content": "b", "reasoning": "c", "refusal": "d"}, "logprobs": {"content": []}},
            {"message": {"content": None, "tool_calls": [{"function": {"name": "n", "arguments": "e"}}, {"custom": 1}, "odd"]}},
            {"text": "f"},
            "odd",
            {"message": None},
        ]
    }


def test_texts_of_an_answer() -> None:
    document = answer()
    assert answer_texts(document) == ["a", "b", "c", "d", "n", "e", "odd", "f"]
    replace_answer_texts(document, list("ABCDNEOF"))
    assert answer_texts(document) == list("ABCDNEOF")
    assert document["choices"][0]["logprobs"] is None


def test_numbers_that_stand_for_the_text_are_removed_where_guardrails_read_it() -> None:
    call = {"function": {"name": "n", "arguments": {"list": [1, 2]}}}
    message = {"content": "a", "token_ids": [5], "tool_calls": [call], "annotations": [{"start": 1}], "states": [[0.5]], "none": []}
    choices = [{"index": 0, "message": message, "token_ids": [1, 2], "prompt_token_ids": [3]}, {"index": 1, "text": "b", "token_ids": [4]}]
    body = json.dumps({"choices": choices}).encode()
    found = json.loads(OpenAiAnswer(body, True).body)["choices"]
    kept = {"content": "a", "tool_calls": [call], "annotations": [{"start": 1}], "none": []}
    assert found == [{"index": 0, "message": kept}, {"index": 1, "text": "b"}]
    assert json.loads(OpenAiAnswer(body, True, inspected=False).body)["choices"] == choices


@pytest.mark.parametrize(
    ("message", "left"),
    [
        ({"audio": {"id": "a", "transcript": "t", "data": "AAAA"}}, {"audio": {"id": "a", "transcript": "t", "data": None}}),
        ({"audio": {"transcript": "t", "token_ids": [1]}}, {"audio": {"transcript": "t"}}),
        ({"tool_calls": [{"index": 0, "token_ids": [1, 2]}]}, {"tool_calls": [{"index": 0}]}),
        ({"content": [{"type": "text", "text": "t", "codes": [[0.5]]}]}, {"content": [{"type": "text", "text": "t"}]}),
        ({"reasoning_details": [[{"text": "t", "ids": [1]}]]}, {"reasoning_details": [[{"text": "t"}]]}),
    ],
)
@pytest.mark.parametrize("holder", ["message", "delta"])
def test_codes_are_removed_wherever_they_stand(message: dict[str, Any], left: dict[str, Any], holder: str) -> None:
    body = json.dumps({"choices": [{"index": 0, holder: message}]}).encode()
    assert json.loads(OpenAiAnswer(body, True).body)["choices"] == [{"index": 0, holder: left}]
    assert json.loads(OpenAiAnswer(body, True, inspected=False).body)["choices"] == [{"index": 0, holder: message}]


def test_numbers_that_a_model_writes_are_texts() -> None:
    arguments = {"card": 4111111111111111, "deep": [{"card": 4111111111111111.0}, [5.5]], "yes": True, "none": None}
    call = {"index": 0, "function": {"name": "pay", "arguments": arguments}}
    message = {"content": "x", "tool_calls": [call], "parsed": 48213}
    answer = OpenAiAnswer(json.dumps({"choices": [{"index": 0, "message": message}]}).encode(), True)
    card = "4111111111111111"
    assert answer.texts == ["x", "pay", "card", card, "deep", "card", card, "5.5", "yes", "none", "48213"]
    found = json.loads(answer.replaced(["[CARD]" if text == card else text for text in answer.texts]))["choices"][0]["message"]
    assert found["tool_calls"][0]["function"]["arguments"] == {**arguments, "card": "[CARD]", "deep": [{"card": "[CARD]"}, [5.5]]}
    assert found["parsed"] == 48213


@pytest.mark.parametrize(
    ("choice", "texts"),
    [
        ({"message": {"hidden": 1}}, ["hidden"]),
        ({"hidden": 1}, ["hidden"]),
        ({"delta": {"hidden": None}}, ["hidden"]),
        ({"delta": {"content": "x", "tool_calls": [{"index": 0, "function": {"arguments": "y", "hidden": {}}}]}}, ["x", "y", "hidden"]),
        ({"input": {"id": "a@b.co", "name": 1}}, ["id", "a@b.co", "name", "1"]),
        ({"message": {"tool_calls": [{"function": {"arguments": {"id": "a@b.co"}}}]}}, ["id", "a@b.co"]),
    ],
)
def test_names_of_fields_that_no_engine_has_are_texts(choice: dict[str, Any], texts: list[str]) -> None:
    document = {"choices": [choice]}
    assert answer_texts(document) == texts
    for number, text in enumerate(texts):
        if text in ("hidden", "id", "name"):
            with pytest.raises(GuardrailViolation):
                replace_answer_texts(document, [*texts[:number], "changed", *texts[number + 1 :]])


@pytest.mark.parametrize("document", [{}, {"choices": None}, {"choices": 5}, {"choices": []}, {"data": [{"embedding": [1.0]}]}])
def test_an_answer_without_texts(document: dict[str, Any]) -> None:
    assert answer_texts(document) == []


@pytest.mark.parametrize("body", [b"no json", b"[1]", b'"text"', b"{", b"\xff"])
def test_an_answer_that_cannot_be_read_is_the_engines_failure(body: bytes) -> None:
    with pytest.raises(EngineError):
        OpenAiAnswer(body, False)


@pytest.mark.parametrize("choices", [{"0": {"text": "a"}}, ["a"], [{"text": "a"}, "b"], "a", 5, [[]]])
@pytest.mark.parametrize("generates", [True, False])
def test_choices_that_hide_their_texts_are_refused(choices: Any, generates: bool) -> None:
    with pytest.raises(EngineError):
        OpenAiAnswer(json.dumps({"choices": choices}).encode(), generates)


def test_only_generated_text_needs_choices() -> None:
    assert OpenAiAnswer(b'{"data":[]}', False).texts == []
    with pytest.raises(EngineError):
        OpenAiAnswer(b'{"text":"hidden"}', True)


READABLE = {"choices": [{"message": {"content": "a"}}, {"text": "f"}]}


def test_an_answer_is_written_anew_with_other_texts() -> None:
    found = OpenAiAnswer(json.dumps(READABLE).encode(), True)
    assert json.loads(found.replaced(["A", "F"]))["choices"] == [{"message": {"content": "A"}}, {"text": "F"}]
    assert found.evidence() == found.body and found.detail(lambda data: "h") is None


@pytest.mark.parametrize("body", [b"{}", b'{"a":[1]}', b" \n[1]", b'{"a":1}\r\n', b"[{}]\n"])
def test_what_looks_like_json(body: bytes) -> None:
    assert is_json(body)


@pytest.mark.parametrize("body", [b"", b" ", b"oops", b"<html>", b"{", b"}", b'{"a":1', b'{"a":[1]', b'[{"a":1}', b'\n{"a":1,'])
def test_what_is_no_json_or_was_cut(body: bytes) -> None:
    assert not is_json(body)


def test_answers_without_choices_are_read_too() -> None:
    ranks = {
        "id": "r",
        "results": [{"index": 0, "relevance_score": 0.5, "document": {"text": "a b"}}, {"index": 1, "label": "c d"}],
        "note": "e",
    }
    found = OpenAiAnswer(json.dumps(ranks).encode(), False)
    assert found.texts == ["a b", "c d"] and b"note" not in found.body
    assert json.loads(found.replaced(["A", "C"]))["results"] == [
        {"index": 0, "relevance_score": 0.5, "document": {"text": "A"}},
        {"index": 1, "label": "C"},
    ]


@pytest.mark.parametrize(
    ("data", "texts"),
    [
        ([{"object": "embedding", "embedding": [0.5, -1e-3], "index": 0}], []),
        ([{"embedding": "AACAPwAAgD8="}], []),
        ([{"embedding": "a phrase, not a vector"}], ["a phrase, not a vector"]),
        ([{"embedding": [0.5, "hidden"]}], ["hidden"]),
        ([["hidden"], "too"], ["hidden", "too"]),
        ("hidden", ["hidden"]),
        ({"document": "hidden"}, ["hidden"]),
    ],
)
def test_vectors_hold_no_texts(data: Any, texts: list[str]) -> None:
    found = OpenAiAnswer(json.dumps({"object": "list", "data": data}).encode(), False)
    assert found.texts == texts
    assert json.loads(found.replaced([text.upper() for text in texts]))["object"] == "list"


# --- answers of the plain form


def read_field_by_field(body: bytes) -> tuple[list[str], bool] | None:
    """The texts and whether something is to be removed, as they are found without the plain form; None for what cannot be read."""
    try:
        document = msgspec.json.decode(body)
        removed = trim(document, lists=False)
        return answer_texts(document), removed
    except (msgspec.DecodeError, UnicodeDecodeError, EngineError, AttributeError):
        return None


NAMES = ("stop", "length", "assistant", "user", "chat.completion", "a name", "x" * 130, "", "m1", "text with spaces")
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 2**70), st.floats(allow_nan=False), st.sampled_from(NAMES), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.sampled_from(NAMES), inner, max_size=2)),
    max_leaves=4,
)
MESSAGE = ("content", "role", "refusal", "reasoning_content", "tool_calls", "reasoning", "index")
CHOICE = ("message", "index", "logprobs", "finish_reason", "text", "delta")
AROUND = ("choices", "id", "object", "created", "model", "system_fingerprint", "service_tier", "usage", "error", "prompt_logprobs")
USAGE = ("prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details", "cost", "completion_tokens_details")
USUAL: dict[str, st.SearchStrategy[Any]] = {
    "content": st.text(max_size=12),
    "role": st.just("assistant"),
    "refusal": st.none(),
    "tool_calls": st.just([]),
    "finish_reason": st.sampled_from(("stop", "length", None)),
    "logprobs": st.none(),
    "created": st.integers(0, 2**40),
    "prompt_tokens": st.integers(0, 99),
    "prompt_tokens_details": st.dictionaries(st.sampled_from(("cached_tokens", "audio_tokens", "note")), st.integers(0, 9)),
    "object": st.just("chat.completion"),
    "id": st.sampled_from(("chatcmpl-1", "a name", "x" * 130)),
}


@st.composite
def objects(draw: st.DrawFn, names: tuple[str, ...], own: dict[str, st.SearchStrategy[str]]) -> str:
    """An object of JSON, in which a name may stand twice. own: of some names what is usual there, written already."""
    parts = []
    for name in draw(st.lists(st.sampled_from(names), max_size=5)) + [name for name in own if draw(st.integers(0, 9))]:
        if name in own and draw(st.integers(0, 9)):
            value = draw(own[name])
        else:
            value = json.dumps(draw(USUAL[name] if name in USUAL and draw(st.integers(0, 4)) else VALUES), ensure_ascii=draw(st.booleans()))
        parts.append(f"{json.dumps(name)}: {value}")
    return "{" + ", ".join(parts) + "}"


CONTENT = st.text(max_size=12).map(json.dumps)
MESSAGES = objects(MESSAGE[:5], {"content": CONTENT}) | objects(MESSAGE, {"content": CONTENT})
CHOICES = objects(CHOICE[:4], {"message": MESSAGES}) | objects(CHOICE, {"message": MESSAGES})
LISTS_OF_CHOICES = st.lists(CHOICES, max_size=2).map(lambda found: f"[{', '.join(found)}]")
ANSWERS = objects(AROUND[:7], {"choices": LISTS_OF_CHOICES, "usage": objects(USAGE, {})}) | objects(
    AROUND, {"choices": LISTS_OF_CHOICES, "usage": objects(USAGE, {})}
)


@given(ANSWERS)
@settings(max_examples=400)
def test_the_plain_form_has_the_texts_that_are_found_field_by_field_and_nothing_to_remove(document: str) -> None:
    body = document.encode("utf-8", "surrogatepass")
    if plain_answer(body) is not None:
        read = OpenAiAnswer(body, True)
        assert read_field_by_field(body) == (read.texts, False)
        assert (read.usage, read.finish) == (usage_of(body), finish_in(body))
        assert json.loads(read.body) == json.loads(document)


PLAIN: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1677652288,
    "model": "m1",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "Hello.", "refusal": None}, "logprobs": None, "finish_reason": "stop"}
    ],
    "usage": {"prompt_tokens": 9, "completion_tokens": 12, "total_tokens": 21, "prompt_tokens_details": {"cached_tokens": 3}},
}


def test_an_answer_of_the_plain_form_keeps_its_fields_and_can_be_rewritten() -> None:
    body = json.dumps(PLAIN).encode()
    assert plain_answer(body) is not None
    assert OpenAiAnswer(body, True, inspected=False).body == body
    found = OpenAiAnswer(body, True)
    assert (found.texts, found.body) == (["Hello."], json.dumps(PLAIN, separators=(",", ":")).encode())
    assert (found.usage, found.finish) == (Usage(9, 12, 3), "stop")
    assert json.loads(found.replaced(["Bye."]))["choices"][0]["message"]["content"] == "Bye."


@pytest.mark.parametrize(
    "change",
    [
        {"note": "hidden"},
        {"id": "a text with spaces"},
        {"model": "x" * 129},
        {"object": "a text"},
        {"created": "hidden"},
        {"usage": {"note": "hidden"}},
        {"usage": {"prompt_tokens": "hidden"}},
        {"usage": {"prompt_tokens_details": {"note": "hidden"}}},
        {"choices": [{"message": {"content": "a", "reasoning": "hidden"}}]},
        {"choices": [{"message": {"content": "a", "refusal": "hidden"}}]},
        {"choices": [{"message": {"content": "a", "role": "hidden text"}}]},
        {"choices": [{"message": {"content": "a", "tool_calls": [{}]}}]},
        {"choices": [{"message": {"content": "a"}, "text": "hidden"}]},
        {"choices": [{"message": {"content": "a"}, "logprobs": {"content": [{"token": "hidden"}]}}]},
        {"choices": [{"message": {"content": "a"}, "finish_reason": "hidden text"}]},
    ],
)
def test_an_answer_with_anything_more_is_read_field_by_field(change: dict[str, Any]) -> None:
    assert plain_answer(json.dumps({**PLAIN, **change}).encode()) is None


TWICE = [
    b'{"id":"c","choices":[{"message":{"content":"falcon","content":"sky"},"finish_reason":"stop"}]}',
    b'{"id":"c","choices":[{"message":{"content":"falcon"},"message":{"content":"sky"},"finish_reason":"stop"}]}',
    b'{"id":"c","choices":[{"message":{"content":"falcon"}}],"choices":[{"message":{"content":"sky"},"finish_reason":"stop"}]}',
    b'{"id":"c","choices":[{"message":{"c\\u006fntent":"falcon","content":"sky"},"finish_reason":"stop"}]}',
    b'{"id":"falcon","id":"c","choices":[{"message":{"content":"sky"},"finish_reason":"stop"}]}',
    b'{"id":"c","choices":[{"message":{"tool_calls":[],"reasoning":"falcon","reasoning":"","content":"sky"},"finish_reason":"stop"}]}',
]
"""Bodies in which the last of two equal keys counts, as for most parsers; some take the first."""


@pytest.mark.parametrize("body", TWICE)
def test_of_a_key_that_is_there_twice_only_what_was_read_is_sent(body: bytes) -> None:
    found = OpenAiAnswer(body, True)
    assert "sky" in found.texts and not [text for text in found.texts if "falcon" in text]
    assert b"falcon" not in found.body and json.loads(found.body) == json.loads(body)
