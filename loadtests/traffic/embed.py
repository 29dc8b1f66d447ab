"""Embeddings, one text and several at once."""

import random
from typing import Any

from locust import between, task

from loadtests.traffic.asking import GatewayUser
from loadtests.traffic.settings import QUESTIONS, SETTINGS


class EmbedUser(GatewayUser):
    """A retrieval application: questions one by one, documents in batches."""

    wait_time = between(0.1, 0.5)

    @task(3)
    def question(self) -> None:
        self.embed("embed", [random.choice(QUESTIONS)])

    @task(1)
    def documents(self) -> None:
        self.embed("embed x16", [random.choice(QUESTIONS) for _ in range(16)])

    def embed(self, name: str, texts: list[str]) -> None:
        def complete(answer: dict[str, Any]) -> str | None:
            return None if len(answer["data"]) == len(texts) else f"{len(answer['data'])} vectors for {len(texts)} texts"

        self.ask(name, "/v1/embeddings", {"model": SETTINGS.embed_model, "input": texts}, read=complete)
