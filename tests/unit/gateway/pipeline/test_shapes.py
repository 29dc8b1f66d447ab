"""The form of answers: what the caller gets where the second try comes to nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from gateway.core.types import InferenceRequest, ResponseHead
from gateway.pipeline.shapes import GuardedShape
from tests.unit.gateway.pipeline.world import ANSWER, BODY, World


class Strict:
    """No answer has the form that it demands."""

    name, repair, action = "strict", True, "block"

    def concerned(self, request: InferenceRequest) -> bool:
        return True

    def faults(self, request: InferenceRequest, contents: Sequence[str]) -> list[str]:
        return ["/type"]


@pytest.mark.parametrize("status", [400, 413, 422, 429, 500, 503])
def test_an_engine_that_refuses_the_second_try_leaves_the_faults_of_the_first(status: int) -> None:
    world = World()
    world.entry.response_shapes = (GuardedShape("strict", Strict(), False, lambda *event: None),)
    _, client = world.start(BODY)
    world.call.answer(ANSWER)
    assert len(world.engine.calls) == 2
    said = {"message": "maximum context length exceeded", "code": "context_length_exceeded"}
    world.call.answer(json.dumps({"error": said}).encode(), ResponseHead(status, []))
    assert client.status == 422 and json.loads(client.body)["error"]["code"] == "strict"
