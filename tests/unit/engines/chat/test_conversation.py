"""What of a chat request is bounded before a template sees it; tests/integration shows the rest with real models."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import reduce
from typing import Any

import pytest

from engines.chat.conversation import MAX_NESTING, Converser, Gbnf
from engines.chat.params import ChatRequest, parse
from engines.chat.template import ChatTemplate
from engines.sidecar.shell import ApiError


class Bytes:
    """A vocabulary of bytes and one control token."""

    n_vocab = 257

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        return list(text.encode("utf-8", "replace"))

    def detokenize(self, tokens: Sequence[int]) -> str:
        return bytes(tokens).decode("utf-8", "replace")

    def piece(self, token: int) -> bytes:
        return bytes([token])

    def special_piece(self, token: int) -> bytes:
        return bytes([token])

    def control_texts(self) -> list[str]:
        return ["<|end|>"]


@pytest.fixture(scope="module")
def converser() -> Converser:
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{{ m.tool_calls | default([]) | tojson }}{% endfor %}", bos="", eos="")
    return Converser(Bytes(), template, "", None, Gbnf())


def nested(depth: int) -> Any:
    return reduce(lambda inner, _: [inner], range(depth), "x")


def ask(**fields: Any) -> ChatRequest:
    return parse(json.dumps({"messages": [{"role": "user", "content": "hello"}], **fields}).encode(), ChatRequest)


def called(arguments: Any) -> list[dict[str, Any]]:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": json.dumps(arguments)}}
    return [{"role": "assistant", "content": None, "tool_calls": [call]}]


@pytest.mark.parametrize(
    "fields",
    [
        {"chat_template_kwargs": {"a": nested(900)}},
        {"messages": called(nested(900))},
        {"messages": [{"role": "user", "content": "hello", "name": nested(900)}]},
    ],
)
def test_what_is_nested_too_deeply_is_refused(converser: Converser, fields: dict[str, Any]) -> None:
    with pytest.raises(ApiError, match=f"deeper than {MAX_NESTING}") as caught:
        converser.prepare(ask(**fields), lambda text: None)
    assert caught.value.status == 400


def test_what_is_nested_as_calls_and_schemas_are_is_not(converser: Converser) -> None:
    assert converser.prepare(ask(chat_template_kwargs={"a": nested(100)}, messages=called(nested(100))), lambda text: None).tokens


def test_a_prompt_with_too_many_characters_is_not_read(converser: Converser) -> None:
    def fits(characters: int, param: str) -> None:
        raise ApiError(400, str(characters), param=param)

    with pytest.raises(ApiError, match="7") as caught:
        converser.prepare(ask(), lambda text: None, fits)
    assert caught.value.param == "messages"


def test_half_a_character_in_the_arguments_of_a_call_is_no_error(converser: Converser) -> None:
    found = converser.prepare(ask(messages=called("\ud800")), lambda text: None)
    assert b"?" in bytes(found.tokens)
