"""The official Anthropic clients, Python and Node.js: against a real sidecar, where every message is translated, and against a gateway that
passes messages to that first one as to any engine that speaks them. The outcomes are the same.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.e2e.conftest import EngineThread, configuration
from tests.e2e.harness import KEY, Gatehouse, external
from tests.e2e.test_openai_clients import CLIENTS

SAYS: dict[str, Any] = {"model": "demo-chat", "max_tokens": 30, "thinking": {"type": "disabled"}}
SAME: dict[str, Any] = {"temperature": 0}  # which the newest client no longer names, and engines understand
ASK: dict[str, Any] = {**SAYS, "messages": [{"role": "user", "content": "What is Gatehouse?"}]}
TOOL = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}}, "required": ["city"]},
}
CALLS: dict[str, Any] = {
    **ASK,
    "max_tokens": 500,
    "tools": [TOOL],
    "tool_choice": {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True},
}
TURN: dict[str, Any] = {
    **SAYS,
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "The weather?"}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Oslo"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "Rain."}]},
    ],
    "tools": [TOOL],
}


@pytest.fixture(scope="module")
def passing(real: Gatehouse, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gatehouse]:
    """A gateway that passes messages on."""
    directory = tmp_path_factory.mktemp("passing")
    engine = {"name": "next", "runtime": "external", "url": real.url, "api_key": KEY, "apis": ["messages"], "slots": 8}
    config = configuration(directory / "state", engines=[engine], models=[{"name": "demo-chat", "pool": ["next"]}])
    with Gatehouse(directory, config) as running:
        yield running


@pytest.fixture(params=["translated", "passed"])
def gateway(request: pytest.FixtureRequest, real: Gatehouse) -> Gatehouse:
    return real if request.param == "translated" else request.getfixturevalue("passing")


@pytest.fixture
def client(gateway: Gatehouse) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0, timeout=120) as client:
        yield client


def node(gateway: Gatehouse, scenario: str, key: str = KEY, **arguments: Any) -> dict[str, Any]:
    """One scenario of tests/clients/anthropic.mjs."""
    environ = {**os.environ, "ANTHROPIC_BASE_URL": gateway.url, "ANTHROPIC_API_KEY": key}
    command = ["node", "anthropic.mjs", scenario, json.dumps(arguments)]
    run = subprocess.run(command, cwd=CLIENTS, env=environ, capture_output=True, text=True, timeout=300, check=True)
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def said(message: Any) -> list[tuple[str, Any]]:
    """What a message says, without identifiers."""
    dumped = message if isinstance(message, dict) else message.to_dict()
    blocks = [(block["type"], block.get("text") or block.get("input")) for block in dumped["content"]]
    return [*blocks, ("stop", dumped["stop_reason"])]


def prompt_of(usage: Any) -> int:
    dumped = usage if isinstance(usage, dict) else usage.to_dict()
    return int(dumped["input_tokens"]) + int(dumped.get("cache_read_input_tokens") or 0)


@pytest.mark.parametrize("params", [ASK, CALLS, TURN], ids=["text", "call", "result"])
def test_whole_stream_and_count_agree(client: anthropic.Anthropic, real: Gatehouse, params: dict[str, Any]) -> None:
    whole = client.messages.create(**params, extra_body=SAME)
    with client.messages.stream(**params, extra_body=SAME) as stream:
        kinds = [event.type for event in stream]
        streamed = stream.get_final_message()
    assert said(streamed) == said(whole)
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop"
    asked = {name: value for name, value in params.items() if name != "max_tokens"}
    count = client.messages.count_tokens(**asked)
    assert count.input_tokens == prompt_of(whole.usage) == prompt_of(streamed.usage), "the count is the engine's own"
    assert whole.usage.output_tokens == streamed.usage.output_tokens > 0
    seen = node(real, "stream", params={**params, **SAME})
    assert said(seen["data"]) == said(whole) and seen["kinds"][-1] == "message_stop"
    if params is CALLS:
        (call,) = [block for block in whole.content if block.type == "tool_use"]
        assert call.name == "get_weather" and call.input["city"] in ("Oslo", "Rome") and whole.stop_reason == "tool_use"


def test_stop_reasons(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(**{**ASK, "max_tokens": 3})
    assert whole.stop_reason == "max_tokens" and whole.usage.output_tokens == 3
    text = client.messages.create(**ASK, extra_body=SAME).content[0].text  # type: ignore[union-attr]
    stop = text.split()[2]
    stopped = client.messages.create(**ASK, stop_sequences=[stop], extra_body=SAME)
    assert stop not in stopped.content[0].text  # type: ignore[union-attr]


def test_errors_are_the_clients_own(client: anthropic.Anthropic, gateway: Gatehouse) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.messages.create(**{**ASK, "model": "nothing"})
    assert missing.value.body["error"]["type"] == "not_found_error" and missing.value.request_id  # type: ignore[index]
    with pytest.raises(anthropic.BadRequestError) as long:
        client.messages.create(**{**ASK, "messages": [{"role": "user", "content": "word " * 3000}]})
    assert "context" in str(long.value)
    with (
        pytest.raises(anthropic.AuthenticationError) as wrong,
        anthropic.Anthropic(base_url=gateway.url, api_key="wrong", max_retries=0) as stranger,
    ):
        stranger.models.list()
    assert wrong.value.body["error"]["type"] == "authentication_error"  # type: ignore[index]
    refused = node(gateway, "message", params={**ASK, "max_tokens": 0})
    assert refused["error"]["status"] == 400 and refused["error"]["type"] == "invalid_request_error"


def test_a_conversation_that_is_not_held_is_sent_whole(client: anthropic.Anthropic) -> None:
    """As the client's `tool_runner` does by default."""
    thread = client.beta.messages.thread(**SAYS, unsupported_request_behavior="continue_unthreaded")
    for text in ("What is Gatehouse?", "And?"):
        assert thread.send({"role": "user", "content": text}).content
    assert [message["role"] for message in thread.messages] == ["user", "assistant"] * 2 and not thread.previous_message_id
    with pytest.raises(anthropic.BadRequestError) as refused:
        client.beta.messages.create(**{**ASK, "thread": {"type": "create"}})
    assert refused.value.error_code == "thread_unsupported_request"


def test_models_and_identifiers(client: anthropic.Anthropic, gateway: Gatehouse) -> None:
    page = client.models.list()
    assert [(one.id, one.type) for one in page.data] == [("demo-chat", "model")] and not page.has_more
    assert client.models.retrieve("demo-chat").id == "demo-chat"
    assert [one["id"] for one in node(gateway, "models")["data"]] == ["demo-chat"]
    raw = client.messages.with_raw_response.create(**{**ASK, "max_tokens": 2})
    outcome = gateway.outcome(raw.headers["request-id"])
    assert outcome["outcome"] == "ok" and outcome["completion_tokens"] == 2 and not outcome.get("estimated")


def test_an_engine_that_cannot_count_is_told_once(tmp_path: Path, engine: EngineThread) -> None:
    """The clients try again, twice, after a status from 500 on."""
    config = configuration(tmp_path / "state", engines=[external("chats", engine.port)], models=[{"name": "m", "pool": ["chats"]}])
    with Gatehouse(tmp_path, config) as running:
        engine.play("status:code=404*2")
        with (
            anthropic.Anthropic(base_url=running.url, api_key=KEY, timeout=60) as client,
            pytest.raises(anthropic.BadRequestError, match="The engine of this model cannot count tokens") as caught,
        ):
            client.messages.count_tokens(model="m", messages=[{"role": "user", "content": "hi"}])
        assert caught.value.response.json()["error"]["type"] == "invalid_request_error"
        with (
            openai.OpenAI(base_url=f"{running.url}/v1", api_key=KEY, timeout=60) as other,
            pytest.raises(openai.BadRequestError, match="The engine of this model cannot count tokens") as refused,
        ):
            other.responses.input_tokens.count(model="m", input="hi")
        assert refused.value.code == "unsupported_operation"
    asked = [record for record in running.audit() if record["kind"] == "intent"]  # all are there once it has ended
    assert len(asked) == 2
