"""Streamed answers: time to the first token, time per token after it, and the longest gap, as figures of their own."""

import json
import time
from typing import Any

from locust import between, task

from loadtests.traffic.asking import Broken, GatewayUser
from loadtests.traffic.kinds import GAP, TPOT, TTFT
from loadtests.traffic.settings import SETTINGS, messages

AFTER_FIRST_BYTE = {"engine_failed", "engine_timeout"}


class StreamReader:
    """Reads the events of one stream and the times at which they brought text."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.texts: list[float] = []
        self.finished = self.done = False
        self.error = ""

    def read(self, answer: Any) -> str | None:
        """Returns what is wrong with the stream, None for a whole one."""
        while line := answer.stream.readline(b"\n"):
            wrong = self.line(bytes(line).rstrip(b"\r\n"))
            if wrong:
                return wrong
            if self.done:
                break
        if not self.done:
            return "the stream ended without [DONE]"
        if self.error:
            return Broken(self.error) if self.error in AFTER_FIRST_BYTE else f"an error event: {self.error}"
        return None if self.finished else "no finish_reason came"

    def line(self, line: bytes) -> str | None:
        if not line.startswith(b"data: "):
            return None
        if line == b"data: [DONE]":
            self.done = True
            return None
        event = json.loads(line[6:])
        if "error" in event:
            self.error = str(event["error"].get("code"))
            return None
        for choice in event.get("choices", ()):
            if choice["delta"].get("content"):
                self.texts.append(time.perf_counter())
            self.finished = self.finished or bool(choice.get("finish_reason"))
        return None

    def figures(self) -> dict[str, float]:
        """Milliseconds: to the first text, per text after it, and the longest wait between two."""
        if not self.texts:
            return {}
        found = {TTFT: (self.texts[0] - self.began) * 1000}
        if len(self.texts) > 1:
            found[TPOT] = (self.texts[-1] - self.texts[0]) * 1000 / (len(self.texts) - 1)
            found[GAP] = max(b - a for a, b in zip(self.texts, self.texts[1:], strict=False)) * 1000
        return found


class StreamUser(GatewayUser):
    """Reads an answer as it is generated."""

    wait_time = between(0.2, 1.0)

    @task
    def stream(self) -> None:
        reader = StreamReader()
        body = {"model": SETTINGS.model, "messages": messages(), "max_tokens": 32, "stream": True}
        self.ask("stream", "/v1/chat/completions", body, read=reader.read)
        for kind, milliseconds in reader.figures().items():
            self.count(kind, "stream", milliseconds)
