"""Tensors by the Open Inference Protocol v2, in JSON."""

import random
from typing import Any

from locust import between, task

from loadtests.traffic.asking import GatewayUser
from loadtests.traffic.settings import QUESTIONS, SETTINGS


def _complete(answer: dict[str, Any]) -> str | None:
    return None if answer["outputs"] else "no outputs"


class TensorUser(GatewayUser):
    """Sends texts as a BYTES tensor, as a Triton client does."""

    wait_time = between(0.1, 0.5)

    @task
    def infer(self) -> None:
        texts = [random.choice(QUESTIONS) for _ in range(4)]
        body = {"inputs": [{"name": "text", "shape": [len(texts)], "datatype": "BYTES", "data": texts}]}
        self.ask("infer", f"/v2/models/{SETTINGS.tensor_model}/infer", body, read=_complete)
