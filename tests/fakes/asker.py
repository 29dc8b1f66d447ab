"""Answers for models that guardrails ask: texts with a word are bad. It can be told to answer otherwise."""

from __future__ import annotations

import asyncio
import json
from array import array
from base64 import b64encode
from collections.abc import Callable
from typing import Any

from gateway.core.asking import GUARDRAIL, Answered
from gateway.core.types import Principal, Usage
from gateway.core.values import UNLABELLED

Answer = Callable[[bytes, dict[str, Any]], dict[str, Any] | bytes]


class FakeAsker:
    """Implements gateway.core.asking.Asker. asked: every (model, path, question). answer: what is answered instead; it may raise.
    principals: on whose behalf. labels: of the texts. hold: it waits for this before it answers."""

    def __init__(self, word: str, answer: Answer | None = None) -> None:
        self.word, self.answer = word, answer
        self.asked: list[tuple[str, bytes, dict[str, Any]]] = []
        self.principals: list[Principal | None] = []
        self.labels: list[frozenset[str]] = []
        self.hold: asyncio.Event | None = None

    async def ask(
        self,
        model: str,
        path: bytes,
        question: dict[str, Any],
        seconds: float,
        principal: Principal | None = None,
        labels: frozenset[str] = UNLABELLED,
        operation: str = GUARDRAIL,
    ) -> Answered:
        json.dumps(question).encode()
        self.asked.append((model, path, question))
        self.principals.append(principal)
        self.labels.append(labels)
        if self.hold is not None:
            await self.hold.wait()
        found = (self.answer or self.usual)(path, question)
        return Answered(found if isinstance(found, bytes) else json.dumps(found).encode(), Usage(10, 1))

    def usual(self, path: bytes, question: dict[str, Any]) -> dict[str, Any]:
        """Labels `fine` and `bad`."""
        bad = [self.word in text for text in question["input"]]
        data = [
            {"index": n, "label": "bad" if found else "fine", "probs": [0.05, 0.95] if found else [0.9, 0.1]} for n, found in enumerate(bad)
        ]
        return {"labels": ["fine", "bad"], "data": data}


def finding(word: str, label: str = "PER") -> Answer:
    """A model for which the word is an entity."""

    def answer(path: bytes, question: dict[str, Any]) -> dict[str, Any]:
        data = []
        for index, text in enumerate(question["input"]):
            places = [place for place in range(len(text)) if text.startswith(word, place)]
            spans = [{"entity": label, "start": place, "end": place + len(word), "score": 0.9} for place in places]
            data.append({"index": index, "entities": spans})
        return {"labels": [label], "data": data}

    return answer


def judging(word: str, content: Callable[[bool], str] | None = None) -> Answer:
    """A chat model that finds the word; content: what it says then, or if there is none."""

    def usual(bad: bool) -> str:
        return json.dumps({"violation": bad, "categories": ["S1"] if bad else []})

    def answer(path: bytes, question: dict[str, Any]) -> dict[str, Any]:
        assert path == b"/v1/chat/completions" and question["temperature"] == 0
        bad = word in question["messages"][-1]["content"]
        return {"choices": [{"index": 0, "message": {"role": "assistant", "content": (content or usual)(bad)}, "finish_reason": "stop"}]}

    return answer


def embedding(word: str) -> Answer:
    """An embedding model for which texts with the word have one direction, and all others another."""

    def answer(path: bytes, question: dict[str, Any]) -> dict[str, Any]:
        assert path == b"/v1/embeddings" and question["encoding_format"] == "base64"
        near, far = [b64encode(array("f", vector).tobytes()).decode() for vector in ((0.0, 2.0, 0.0), (1.0, 0.0, 0.0))]
        return {"data": [{"index": n, "embedding": near if word in text else far} for n, text in enumerate(question["input"])]}

    return answer
