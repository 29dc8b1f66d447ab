"""The official OpenAI clients, Python and Node.js, against a real model on a real sidecar."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.harness import KEY, Gatehouse, alive
from tests.waiting import until

CLIENTS = Path(__file__).parents[1] / "clients"
QUESTION = [{"role": "user", "content": "What is Gatehouse?"}]
SEED: dict[str, Any] = {"model": "demo-chat", "temperature": 0, "max_tokens": 60}


@pytest.fixture
def client(real: Gatehouse) -> Any:
    with openai.OpenAI(base_url=f"{real.url}/v1", api_key=KEY, max_retries=0, timeout=120) as client:
        yield client


def node(real: Gatehouse, scenario: str, key: str = KEY, **arguments: Any) -> dict[str, Any]:
    """One scenario of tests/clients/openai.mjs."""
    environ = {**os.environ, "OPENAI_BASE_URL": f"{real.url}/v1", "OPENAI_API_KEY": key}
    run = subprocess.run(
        ["node", "openai.mjs", scenario, json.dumps(arguments)],
        cwd=CLIENTS,
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return json.loads(run.stdout)


def test_python_chat_and_stream_say_the_same(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(messages=QUESTION, **SEED)  # type: ignore[call-overload]
    assert "gate" in whole.choices[0].message.content.lower()
    assert whole.usage.completion_tokens > 3 and whole.usage.prompt_tokens > 3
    chunks = list(client.chat.completions.create(messages=QUESTION, stream=True, **SEED))  # type: ignore[call-overload]
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason


def test_python_completion_stop_and_usage(client: openai.OpenAI) -> None:
    plain = client.completions.create(prompt="Gatehouse is", **{**SEED, "max_tokens": 12})
    assert plain.choices[0].finish_reason in ("length", "stop")
    text = plain.choices[0].text
    stop = text.strip().split()[1]
    stopped = client.completions.create(prompt="Gatehouse is", stop=[stop], **{**SEED, "max_tokens": 12})
    assert stopped.choices[0].finish_reason == "stop"
    assert stop not in stopped.choices[0].text
    chunks = list(
        client.completions.create(prompt="Gatehouse is", stream=True, stream_options={"include_usage": True}, **{**SEED, "max_tokens": 12})
    )
    assert "".join(c.choices[0].text for c in chunks if c.choices) == text
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == plain.usage.completion_tokens  # type: ignore[union-attr]


def test_counts_are_what_a_response_uses(real: Gatehouse, client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "demo-chat", "input": "What is Gatehouse?", "instructions": "Be brief."}
    asked["tools"] = [{"type": "function", "name": "search", "parameters": {"type": "object"}, "strict": False}]
    counted = client.responses.input_tokens.count(**asked)
    used = client.responses.create(**asked, max_output_tokens=1, store=False).usage
    assert used is not None and (counted.object, counted.input_tokens) == ("response.input_tokens", used.input_tokens)
    assert node(real, "count-response", params=asked)["count"] == counted.model_dump()


def test_python_errors(real: Gatehouse, client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="nothing", messages=QUESTION)  # type: ignore[arg-type]
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(model="demo-chat", messages=[{"role": "user", "content": "word " * 3000}])
    assert long.value.code == "context_length_exceeded"
    with (
        pytest.raises(openai.AuthenticationError) as wrong,
        openai.OpenAI(base_url=f"{real.url}/v1", api_key="wrong", max_retries=0) as stranger,
    ):
        stranger.models.list()
    assert wrong.value.code == "invalid_api_key"
    assert [m.id for m in client.models.list()] == ["demo-chat"]


STORY: list[Any] = [{"role": "user", "content": "Tell me a long story."}]
LONG: dict[str, Any] = {"max_tokens": 1900, "extra_body": {"ignore_eos": True}}
"""An answer of so many tokens, for clients that leave in the middle."""


def test_python_cancel_frees_the_slot_and_is_recorded(real: Gatehouse, client: openai.OpenAI) -> None:
    def left() -> dict[str, Any] | None:
        """The outcome; none where this process stood still until the engine had said all of it."""
        stream = client.chat.completions.create(model="demo-chat", messages=STORY, stream=True, temperature=0, **LONG)
        request_id = stream.response.headers["x-request-id"]
        for seen, _ in enumerate(stream, 1):
            if seen == 5:
                break
        stream.response.close()
        found = real.outcome(request_id)
        assert (found["outcome"], found["status"]) in (("cancelled", 499), ("ok", 200)), found
        return found if found["outcome"] == "cancelled" else None

    outcome: dict[str, Any] = until(left, what="a stream that ends with its client")
    until(lambda: real.metric("gatehouse_endpoint_in_flight", endpoint="chat") == 0, what="the free slot")
    assert 3 <= outcome["completion_tokens"] < 1900 and outcome["estimated"]
    until(lambda: sidecar_health(real)["in_use"] == 0, what="the sidecar's free slot")


def sidecar_health(real: Gatehouse) -> dict[str, Any]:
    """What the sidecar itself says, over its socket."""
    (socket,) = (real.state_dir / "run").glob("*/s.sock")
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(socket)), timeout=60) as client:
        return client.get("http://sidecar/health").json()


def test_node_chat_and_stream_say_the_same(real: Gatehouse) -> None:
    whole = node(real, "chat", params={**SEED, "messages": QUESTION})
    assert "gate" in whole["content"].lower() and whole["usage"]["completion_tokens"] > 3
    streamed = node(real, "stream", params={**SEED, "messages": QUESTION, "stream_options": {"include_usage": True}})
    assert streamed["content"] == whole["content"]
    assert streamed["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]


def test_node_models_errors_and_retries(real: Gatehouse) -> None:
    assert [m for m in node(real, "models")["ids"]] == ["demo-chat"]
    wrong = node(real, "chat", key="wrong", params={**SEED, "messages": QUESTION})
    assert wrong["error"]["status"] == 401 and wrong["error"]["code"] == "invalid_api_key" and wrong["attempts"] == 1
    missing = node(real, "chat", params={**SEED, "model": "nothing", "messages": QUESTION})
    assert missing["error"]["status"] == 404 and missing["attempts"] == 1


def test_node_cancel(real: Gatehouse) -> None:
    def left() -> dict[str, Any] | None:
        """The outcome; none where the client stood still until the engine had said all of it."""
        params = {"model": "demo-chat", "messages": STORY, "max_tokens": 1900, "ignore_eos": True, "temperature": 0}
        seen = node(real, "cancel", params=params, after=2)
        assert seen["cancelled"]
        found = real.outcome(seen["request_id"])
        assert found["outcome"] in ("cancelled", "ok"), found
        return found if found["outcome"] == "cancelled" else None

    outcome: dict[str, Any] = until(left, what="a stream that ends with its client")
    assert 1 <= outcome["completion_tokens"] < 1900
    until(lambda: real.metric("gatehouse_endpoint_in_flight", endpoint="chat") == 0, what="the free slot")


def test_clients_retry_what_can_be_retried(real: Gatehouse, client: openai.OpenAI) -> None:
    """A dead engine is a 502 or 503: the Node client tries again by itself and gets the answer of the new sidecar."""
    os.kill(real.engines()[0], 9)
    answered = node(real, "chat", params={**SEED, "messages": QUESTION}, client={"maxRetries": 30})
    assert "gate" in answered["content"].lower()


def test_a_killed_sidecar_is_started_again(real: Gatehouse) -> None:
    before = real.engines()
    os.kill(before[0], 9)
    until(lambda: not alive(before[0]), what="the end of the sidecar")

    def answered() -> bool:
        return real.chat("Hello!", model="demo-chat", max_tokens=5).status_code == 200

    until(answered, what="an answer of the new sidecar")
    assert real.engines() != before
