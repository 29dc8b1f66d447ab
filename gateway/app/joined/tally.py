"""What an answer of an engine used, as the machine that passes it on sees it: for the receipt of a ticket."""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Final

import msgspec

MAX_EVENT: Final = 256 * 1024
"""Bytes of an event that are looked into."""
MAX_WHOLE: Final = 64 * 1024 * 1024
_TELLING: Final = (b'"usage":{', b'"usage": {', b'"finish_reason":"', b'"finish_reason": "')


class _Prompt(msgspec.Struct):
    cached_tokens: int | None = None


class _Completion(msgspec.Struct):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Prompt | None = None
    completion_tokens_details: _Completion | None = None


class _Choice(msgspec.Struct):
    finish_reason: str | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None


_answer = msgspec.json.Decoder(_Answer)


class Tally:
    """stream: server-sent events come; else one JSON object. `chunks`: events with a part of the answer, the usage's own among them."""

    def __init__(self, stream: bool) -> None:
        self._stream = stream
        self._rest = b""
        self._hash = sha256()
        self.bytes = self.chunks = 0
        self.finish = ""
        self.done = False
        """The stream has ended as it should."""
        self._usage: _Usage | None = None

    def feed(self, data: bytes) -> None:
        self.bytes += len(data)
        self._hash.update(data)
        if not self._stream:
            if self.bytes <= MAX_WHOLE:
                self._rest += data
            return
        *events, self._rest = (self._rest + data).replace(b"\r\n", b"\n").split(b"\n\n")
        if len(self._rest) > MAX_EVENT:
            self._rest = b""
        for event in events:
            self._event(event)

    def _event(self, event: bytes) -> None:
        if not event.startswith(b"data:"):
            return
        data = event[5:].strip()
        if data == b"[DONE]":
            self.done = True
            return
        self.chunks += 1
        if any(word in data for word in _TELLING):
            self._look(data)

    def _look(self, data: bytes) -> None:
        try:
            found = _answer.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return
        if found.usage is not None:
            self._usage = found.usage
        for choice in found.choices:
            self.finish = (choice.finish_reason or self.finish)[:64]

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    def used(self, prompt_tokens: int, max_tokens: int, *, whole: bool) -> dict[str, Any]:
        """Fields of a receipt. prompt_tokens, max_tokens: what was reserved, for what the engine did not count. whole: the answer is all
        there; of a part of a stream each chunk counts as a token, of nothing at all the prompt counts."""
        if not self._stream and whole:
            self._look(self._rest)
        usage = self._usage
        if usage is None or usage.prompt_tokens is None:
            guess = min(self.chunks, max_tokens) if self._stream else max_tokens if whole else 0
            return {"prompt_tokens": prompt_tokens, "completion_tokens": guess, "estimated": True, "finish": self.finish}
        prompt, completion = usage.prompt_tokens_details, usage.completion_tokens_details
        return {
            "prompt_tokens": max(usage.prompt_tokens, 0),
            "completion_tokens": max(usage.completion_tokens or 0, 0),
            "cached_tokens": max((prompt and prompt.cached_tokens) or 0, 0),
            "reasoning_tokens": max((completion and completion.reasoning_tokens) or 0, 0),
            "finish": self.finish,
        }
