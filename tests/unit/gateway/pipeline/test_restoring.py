"""Values that pseudonyms stand for, put back into whole answers."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from gateway.core.plugins import Context, built
from gateway.core.slices import at_once
from gateway.core.types import Principal, Verdict
from gateway.pipeline.guarded import Guarded
from gateway.pipeline.restoring import PIECE, restored, restored_steps
from policies.guardrails.pii.guardrail import PiiSettings, build
from policies.guardrails.pseudonyms.layer import PseudonymLayer
from tests.steady import at_most, longest_step, once
from tests.unit.gateway.pipeline.world import ANSWER, World

SETTINGS = {"entities": {"email": "pseudonym", "odd": "pseudonym"}, "custom": {"odd": {"pattern": r'ODD"\d{3}'}}}
TEXTS = ["", "<EMAIL_1>", "nobody", "<EMAIL_2> < <EMAIL_1>, <EMAIL_9> " * 1000, '{"to": "<ODD_1>"} ' * 1000, "lorem ipsum " * 5000]


def made() -> Any:
    return built(build, PiiSettings, SETTINGS, Context(name="the-name"))


def layer() -> PseudonymLayer:
    one: PseudonymLayer = made().layer(Principal("alice", "acme", "oidc"), lambda name: name.encode().ljust(32, b"s"), 0.0)
    found = one.check(['bob@example.com, eve@example.com, ODD"123'])
    assert (found if isinstance(found, Verdict) else at_once(found)).texts == ("<EMAIL_1>, <EMAIL_2>, <ODD_1>",)
    return one


def test_long_texts_are_restored_in_steps_to_the_same() -> None:
    one, other = layer(), layer()
    steps = sum(1 for _ in restored_steps([one], TEXTS, "after"))
    assert steps >= sum(map(len, TEXTS[3:])) // PIECE
    found = restored([other], TEXTS, "after")
    assert found == [layer().whole(text) for text in TEXTS] and one.restored == other.restored == 3001
    assert restored([other], TEXTS, "before") is TEXTS and restored([other], TEXTS[2:3], "after") == TEXTS[2:3]


@pytest.mark.parametrize("text", ["<EMAIL_1>" * 20_000, "<" * 200_000, '{"a": "<ODD_1>"} ' * 20_000])
def test_no_step_is_long(text: str) -> None:
    at_most(0.02, lambda: longest_step(restored_steps([layer()], [text], "after")))


async def test_a_long_answer_is_restored_in_turns_of_the_loop() -> None:
    answer = json.loads(ANSWER)
    answer["choices"][0]["message"]["content"] = "<EMAIL_1> " * 40_000
    body = json.dumps(answer).encode()
    request = {"model": "m", "messages": [{"role": "user", "content": "write to bob@example.com"}]}

    async def read() -> list[float]:
        world = World(request=[Guarded(made(), False, lambda *event: None)])
        _, client = world.start(json.dumps(request).encode())
        call = world.call.head()
        taken = []
        began = time.thread_time()
        call.body(body)
        call.end()
        taken.append(time.thread_time() - began)
        while not world.audit.outcomes:
            began = time.thread_time()
            await asyncio.sleep(0)
            taken.append(time.thread_time() - began)
        assert len(taken) > 40_000 * 10 // PIECE // 10 and b"bob@example.com bob@example.com" in bytes(client.written[:4096])
        return taken

    await once(lambda taken: max(taken) < max(0.05, 0.2 * sum(taken)), read)
