"""What both paths refuse and answer, whatever the model; tests of the runtimes show real tokenizers."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from engines.sidecar.shell import ApiError, Request
from engines.sidecar.tokens import MAX_TOKENS, PORTION, TokenHandler, Tokenizer


class Letters(Tokenizer):
    longest, vocabulary = 99, 128

    def text(self, text: str, special: bool) -> list[int]:
        return [1] * special + list(text.encode("ascii"))

    def joined(self, tokens: Sequence[int]) -> str:
        return bytes(tokens).decode("ascii")

    def piece(self, token: int) -> str:
        return chr(token)


def request(body: Any) -> Request:
    made = Request.__new__(Request)
    made.body = body if isinstance(body, bytes) else json.dumps(body).encode()
    return made


async def test_tokens_of_a_text_and_back() -> None:
    handler = TokenHandler(Letters())
    found = json.loads((await handler.tokenize(request({"model": "m", "prompt": "ab"}))).body)
    assert found == {"count": 3, "max_model_len": 99, "tokens": [1, 97, 98], "token_strs": None}
    found = json.loads((await handler.tokenize(request({"prompt": "", "add_special_tokens": False}))).body)
    assert found["tokens"] == [] and found["count"] == 0
    found = json.loads((await handler.tokenize(request({"prompt": "a", "return_token_strs": True}))).body)
    assert found["token_strs"] == ["\x01", "a"]
    assert json.loads((await handler.detokenize(request({"tokens": [97, 98]}))).body) == {"prompt": "ab"}
    assert json.loads((await handler.detokenize(request({"tokens": []}))).body) == {"prompt": ""}


@pytest.mark.parametrize("count", [PORTION, PORTION + 1, 3 * PORTION + 7])
async def test_many_tokens_are_told_in_portions(count: int) -> None:
    given = [number % 128 for number in range(count)]

    class Many(Letters):
        def text(self, text: str, special: bool) -> list[int]:
            return given.copy()

    found = json.loads((await TokenHandler(Many()).tokenize(request({"prompt": "a"}))).body)
    assert found == {"count": count, "max_model_len": 99, "tokens": given, "token_strs": None}


async def test_the_texts_of_tokens_are_made_beside_the_event_loop_and_only_of_so_many() -> None:
    class Named(Letters):
        def piece(self, token: int) -> str:
            return threading.current_thread().name

    found = json.loads((await TokenHandler(Named()).tokenize(request({"prompt": "a", "return_token_strs": True}))).body)
    assert threading.current_thread().name not in found["token_strs"]
    with pytest.raises(ApiError, match=f"at most {MAX_TOKENS} tokens"):
        await TokenHandler(Letters()).tokenize(request({"prompt": "a" * MAX_TOKENS, "return_token_strs": True}))


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("tokenize", {}, "prompt"),
        ("tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "prompt"),
        ("tokenize", {"messages": []}, "messages"),
        ("tokenize", {"messages": [{}]}, "messages"),
        ("tokenize", {"messages": [{}], "add_generation_prompt": False}, "add_generation_prompt"),
        ("tokenize", {"messages": [{}], "add_special_tokens": True}, "add_special_tokens"),
        ("tokenize", {"prompt": 7}, "prompt"),
        ("tokenize", {"prompt": "a", "unknown": 1}, None),
        ("tokenize", b"[1]", None),
        ("tokenize", b"{", None),
        ("detokenize", {"tokens": [128]}, "tokens"),
        ("detokenize", {"tokens": [-1]}, "tokens"),
        ("detokenize", {"tokens": ["a"]}, "tokens"),
        ("detokenize", {"tokens": [1] * (MAX_TOKENS + 1)}, "tokens"),
        ("detokenize", {}, None),
    ],
)
async def test_what_is_refused(path: str, body: Any, param: str | None) -> None:
    with pytest.raises(ApiError) as caught:
        await getattr(TokenHandler(Letters()), path)(request(body))
    assert (caught.value.status, caught.value.param) == (400, param)
