"""Answers for models that guardrails ask: texts with a word are bad. It can be told to answer otherwise."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from gateway.core.asking import Answered
from gateway.core.types import Principal, Usage

Answer = Callable[[bytes, dict[str, Any]], dict[str, Any] | bytes]


class FakeAsker:
    """Implements gateway.core.asking.Asker. asked: every (model, path, question). answer: what is answered instead; it may raise.
    principals: on whose behalf. hold: it waits for this before it answers."""

    def __init__(self, word: str, answer: Answer | None = None) -> None:
        self.word, self.answer = word, answer
        self.asked: list[tuple[str, bytes, dict[str, Any]]] = []
        self.principals: list[Principal | None] = []
        self.hold: asyncio.Event | None = None

    async def ask(self, model: str, path: bytes, question: dict[str, Any], seconds: float, principal: Principal | None = None) -> Answered:
        json.dumps(question).encode()
        self.asked.append((model, path, question))
        self.principals.append(principal)
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
