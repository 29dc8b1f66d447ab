"""Whole answers to chats."""

from typing import Any

from locust import between, task

from loadtests.traffic.asking import GatewayUser
from loadtests.traffic.settings import SETTINGS, messages


def _complete(answer: dict[str, Any]) -> str | None:
    if answer["choices"][0]["finish_reason"] not in {"stop", "length"}:
        return f"finish_reason is {answer['choices'][0]['finish_reason']!r}"
    return None if answer["usage"]["completion_tokens"] > 0 else "no tokens were counted"


class ChatUser(GatewayUser):
    """Asks a question, reads the answer, thinks."""

    wait_time = between(0.2, 1.0)

    @task
    def chat(self) -> None:
        body = {"model": SETTINGS.model, "messages": messages(), "max_tokens": 32}
        self.ask("chat", "/v1/chat/completions", body, read=_complete)
