"""Answers in the form that they must have, in a running gateway: whole and streamed, with and without a second try."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.harness import Gatehouse, configuration, errors_of, external
from tests.e2e.test_streams import events
from tests.fakes.echo import EchoEngine, echo_engine

SCHEMA = {
    "type": "object",
    "properties": {"mail": {"type": "string", "pattern": "^[a-z]+@"}, "age": {"type": "integer"}},
    "required": ["mail"],
    "additionalProperties": False,
}
GOOD = '{"mail": "bob@example.com", "age": 3}'
BAD = '{"mail": "bob@example.com", "age": "three"}'


@pytest.fixture(scope="module")
def engine() -> Iterator[EchoEngine]:
    with echo_engine() as running:
        yield running


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, engine: EchoEngine) -> Iterator[Gatehouse]:
    directory = tmp_path_factory.mktemp("json_schema")

    def guard(name: str, models: list[str], **settings: Any) -> dict[str, Any]:
        return {"name": name, "type": "json_schema", "models": models, "on": ["response"], "settings": settings}

    pii = {"name": "pii", "type": "pii", "models": ["hidden"], "on": ["request"], "settings": {"entities": {"email": "pseudonym"}}}
    names = ["strict", "repaired", "own", "noted", "hidden", "plain"]
    config = configuration(
        directory / "state",
        engines=[external("echo", engine.port)],
        models=[
            *({"name": name, "pool": ["echo"]} for name in names),
            {"name": "piped", "pipeline": {"steps": [{"name": "answer", "generate": {"model": "plain"}}]}},
        ],
        prices=[{"model": "*", "prompt": 1000000, "completion": 1000000, "per": "1M", "currency": "usd", "from": "2026-01-01"}],
        usage={"cost_header": True},
        guardrails=[
            guard("form", ["strict"], schema=SCHEMA),
            guard("mended", ["repaired", "hidden", "piped"], schema=SCHEMA, repair=True),
            guard("own", ["own"], from_request=True, repair=True),
            guard("noted", ["noted"], schema=SCHEMA, action="annotate", repair=True),
            pii,
        ],
    )
    with Gatehouse(directory, config) as running:
        yield running


def text_of(response: Any) -> str:
    assert response.status_code == 200, response.text
    content: str = response.json()["choices"][0]["message"]["content"]
    return content


def streamed(response: Any) -> tuple[str, dict[str, Any] | None]:
    found = events(response.text)
    assert found[-1] == "[DONE]"
    error = next((event["error"] for event in found[:-1] if "error" in event), None)
    return "".join(c["delta"].get("content") or "" for e in found[:-1] for c in e.get("choices", [])), error


def test_what_follows_the_schema_passes(guarded: Gatehouse, engine: EchoEngine) -> None:
    assert text_of(guarded.chat(GOOD, model="strict")) == GOOD
    assert streamed(guarded.chat(GOOD, model="strict", stream=True)) == (GOOD, None)


def test_what_does_not_is_refused(guarded: Gatehouse, engine: EchoEngine) -> None:
    response = guarded.chat(BAD, model="strict")
    error = errors_of(response)
    assert (response.status_code, error["type"], error["code"]) == (422, "guardrail_violation", "form")
    assert "/properties/age/type" in error["message"] and "three" not in response.text
    outcome = guarded.outcome(response.headers["x-request-id"])
    assert outcome["detail"]["json_schema"] == [{"guardrail": "form", "faults": 1}]
    assert (outcome["prompt_tokens"], outcome["completion_tokens"]) == (10, 5)
    content, error = streamed(guarded.chat(BAD, model="strict", stream=True))
    assert content == "" and error is not None and error["code"] == "form"


def test_a_call_of_a_tool_has_a_form_of_its_own(guarded: Gatehouse) -> None:
    tools = [{"type": "function", "function": {"name": "send", "parameters": {"type": "object"}}}]
    assert guarded.chat("x", model="strict", tools=tools).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_second_try_is_given_and_paid_for(guarded: Gatehouse, engine: EchoEngine, stream: bool) -> None:
    engine.answers.extend([BAD, GOOD])
    before = len(engine.received)
    response = guarded.chat("who?", model="repaired", stream=stream)
    assert (streamed(response)[0] if stream else text_of(response)) == GOOD
    first, second = engine.received[before:]
    assert second["messages"][:-2] == first["messages"] and second["messages"][-2] == {"role": "assistant", "content": BAD}
    assert "/properties/age/type" in second["messages"][-1]["content"]
    outcome = guarded.outcome(response.headers["x-request-id"])
    assert (outcome["prompt_tokens"], outcome["completion_tokens"], outcome["attempts"]) == (20, 10, 2)
    assert outcome["cost"] == 30 * 10**9 and outcome["status"] == 200
    assert outcome["detail"]["json_schema"] == [{"guardrail": "mended", "faults": 1}, {"guardrail": "mended", "faults": 0}]
    if not stream:
        assert response.headers["x-gatehouse-cost"].split() == ["30", "usd"]


def test_a_second_run_of_a_pipeline_is_told_and_paid_for_beside_the_first(guarded: Gatehouse, engine: EchoEngine) -> None:
    engine.answers.extend([BAD, GOOD])
    response = guarded.chat("who?", model="piped")
    assert text_of(response) == GOOD and response.headers["x-gatehouse-cost"] == "30 usd"
    steps = guarded.outcome(response.headers["x-request-id"])["detail"]["pipeline"]["steps"]
    assert [(step["step"], step["status"]) for step in steps] == [("answer", 200)] * 2
    assert sum(guarded.outcome(step["request"])["cost"] for step in steps) == 30 * 10**9


@pytest.mark.parametrize("stream", [False, True])
def test_there_is_one_second_try(guarded: Gatehouse, engine: EchoEngine, stream: bool) -> None:
    engine.answers.extend([BAD, "{}", GOOD])
    before = len(engine.received)
    response = guarded.chat("who?", model="repaired", stream=stream)
    assert len(engine.received) == before + 2
    engine.answers.clear()
    error = streamed(response)[1] if stream else errors_of(response)
    assert error is not None and error["code"] == "mended" and "required" in error["message"]


def test_a_second_try_shows_the_engine_no_value_behind_a_pseudonym(guarded: Gatehouse, engine: EchoEngine) -> None:
    engine.answers.extend(['{"mail": "<EMAIL_1>", "age": "<EMAIL_1>"}', '{"mail": "<EMAIL_1>", "age": 4}'])
    before = len(engine.received)
    assert json.loads(text_of(guarded.chat("bob@example.com", model="hidden"))) == {"mail": "bob@example.com", "age": 4}
    assert "bob@" not in json.dumps(engine.received[before:])


def test_the_requests_own_schema(guarded: Gatehouse, engine: EchoEngine) -> None:
    own = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "array"}}}
    assert text_of(guarded.chat("anything", model="own")) == "anything"
    assert text_of(guarded.chat("[1]", model="own", response_format=own)) == "[1]"
    engine.answers.extend(["{}", "{}"])
    assert guarded.chat("x", model="own", response_format=own).status_code == 422
    before = len(engine.received)
    own["json_schema"] = {"name": "n", "schema": {"$ref": "http://127.0.0.1:1/"}}
    refused = guarded.chat("x", model="own", response_format=own)
    assert refused.status_code == 400 and errors_of(refused)["param"] == "response_format" and len(engine.received) == before


def test_annotate_lets_pass_and_records(guarded: Gatehouse, engine: EchoEngine) -> None:
    before = len(engine.received)
    response = guarded.chat(BAD, model="noted")
    assert text_of(response) == BAD and len(engine.received) == before + 1
    assert guarded.outcome(response.headers["x-request-id"])["detail"]["json_schema"] == [{"guardrail": "noted", "faults": 1}]
    assert guarded.metric("gatehouse_guardrail_verdicts_total", guardrail="noted", verdict="annotate") >= 1
