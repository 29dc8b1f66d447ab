"""Text of an ONNX decoder through the gateway, with OpenAI's own client: whole and streamed, under keys and guardrails."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from engines.demo import genai
from tests.e2e.harness import KEY, Gatehouse, configuration

QUESTION: Any = [{"role": "user", "content": "What is Gatehouse?"}]


@pytest.fixture(scope="module")
def gatehouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gatehouse]:
    folder = tmp_path_factory.mktemp("genai")
    engines = [{"name": "decoder", "runtime": "genai", "model": str(genai.write(folder / "demo-genai")), "slots": 2, "context": 512}]
    guardrails = [{"name": "words", "type": "denylist", "on": ["request", "response"], "settings": {"phrases": ["vermilion falcon"]}}]
    parts = {"engines": engines, "models": [{"name": "m1", "pool": ["decoder"]}], "guardrails": guardrails}
    with Gatehouse(folder, configuration(folder / "state", **parts)) as made:
        yield made


@pytest.fixture
def client(gatehouse: Gatehouse) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gatehouse.url}/v1", api_key=KEY, max_retries=0) as made:
        yield made


def test_an_answer_whole_and_streamed(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="m1", messages=QUESTION, temperature=0)
    choice, usage = whole.choices[0], whole.usage
    assert choice.finish_reason == "stop" and (choice.message.content or "").startswith("Gatehouse is a policy-driven gateway")
    assert usage is not None and (usage.prompt_tokens, usage.completion_tokens) == (12, 37)
    text, last = "", None
    stream = client.chat.completions.create(
        model="m1", messages=QUESTION, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    for chunk in stream:
        last = chunk.usage or last
        text += "".join(one.delta.content or "" for one in chunk.choices)
    assert text == choice.message.content and last is not None and last.total_tokens == usage.total_tokens
    short = client.completions.create(model="m1", prompt="Gatehouse is", max_tokens=3, temperature=0)
    assert short.choices[0].finish_reason == "length" and short.usage is not None and short.usage.completion_tokens == 3


def test_the_policies_hold(gatehouse: Gatehouse, client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="m1", messages=[{"role": "user", "content": "Vermilion  Falcon"}])
    assert refused.value.type == "guardrail_violation"
    with gatehouse.client(key=None) as nobody:
        assert nobody.post("/v1/chat/completions", json={"model": "m1", "messages": QUESTION}).status_code == 401
