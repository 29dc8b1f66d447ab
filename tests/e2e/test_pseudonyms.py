"""Pseudonyms in a running gateway: what the engine gets, and what comes back to the caller, whole and in streams cut anywhere."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, ClassVar

import pytest

from tests.e2e.harness import KEY, Gatehouse, configuration, external
from tests.e2e.test_streams import events
from tests.fakes.echo import EchoEngine, echo_engine

WHO = "bob@example.com"
TOOLS = [{"type": "function", "function": {"name": "send", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def engine() -> Iterator[EchoEngine]:
    with echo_engine() as running:
        yield running


class Broken(BaseHTTPRequestHandler):
    """An engine that hangs up on every request, and keeps what it got."""

    received: ClassVar[list[Any]] = []

    def do_POST(self) -> None:
        self.received.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        self.close_connection = True

    def do_GET(self) -> None:
        """It is there."""
        body = b'{"object": "list", "data": []}'
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture(scope="module")
def broken() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Broken)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, engine: EchoEngine, broken: ThreadingHTTPServer) -> Iterator[Gatehouse]:
    directory = tmp_path_factory.mktemp("pseudonyms")
    entities = {"email": "pseudonym", "card": "pseudonym", "odd": "pseudonym"}
    custom = {"odd": {"pattern": r'ODD["\\]{1,20}\d{3}'}}

    def guard(name: str, model: str, on: list[str], **pseudonyms: Any) -> dict[str, Any]:
        settings = {"entities": entities, "custom": custom, "pseudonyms": pseudonyms}
        return {"name": name, "type": "pii", "models": [model], "on": on, "settings": settings}

    masking = {"name": "mask", "type": "pii", "models": ["m1", "before"], "on": ["response"], "settings": {"entities": {"email": "mask"}}}
    names = ["m1", "plain", "session", "one-way", "both", "before"]
    config = configuration(
        directory / "state",
        engines=[external("echo", engine.port), external("broken", broken.server_address[1])],
        models=[
            *({"name": name, "pool": ["echo"]} for name in names),
            {"name": "retried", "pool": ["broken", "echo"], "routing": {"policy": "round_robin"}},
        ],
        listen={"trusted_peers": ["127.0.0.1"]},
        guardrails=[
            guard("p1", "m1", ["request"]),
            guard("p2", "plain", ["request"]),
            guard("p7", "retried", ["request"]),
            guard("p3", "session", ["request"], scope="session"),
            guard("p4", "one-way", ["request"], restore="never"),
            guard("p5", "both", ["request", "response"]),
            guard("p6", "before", ["request"], restore="before"),
            masking,
        ],
    )
    with Gatehouse(directory, config) as running:
        yield running


def sent(engine: EchoEngine) -> str:
    content: str = engine.received[-1]["messages"][-1]["content"]
    return content


def text_of(response: Any) -> str:
    content: str = response.json()["choices"][0]["message"]["content"]
    return content


def streamed(guarded: Gatehouse, text: str, model: str, size: int, **fields: Any) -> list[Any]:
    found = events(guarded.chat(text, model=model, stream=True, max_tokens=size, **fields).text)
    assert found[-1] == "[DONE]"
    return found


def joined(found: list[Any], *path: str) -> str:
    out = ""
    for event in found[:-1]:
        for choice in event.get("choices", []):
            value: Any = choice["delta"]
            for key in path:
                value = (value[0] if isinstance(value, list) else value).get(key) or {}
            out += value or ""
    return out


@pytest.mark.parametrize("model", ["m1", "plain", "both"])
def test_the_engine_gets_pseudonyms_and_the_caller_the_values(guarded: Gatehouse, engine: EchoEngine, model: str) -> None:
    text = f"mail {WHO} and eve@example.com, card 4111 1111 1111 1111; {WHO}"
    response = guarded.chat(text, model=model)
    assert sent(engine) == "mail <EMAIL_1> and <EMAIL_2>, card <CARD_1>; <EMAIL_1>"
    assert text_of(response) == text
    outcome = guarded.outcome(response.headers["x-request-id"])
    assert outcome["detail"]["pseudonyms"] == {"replaced": 3, "restored": 4}
    assert WHO not in json.dumps(outcome) and "4111" not in json.dumps(outcome)


def test_the_engine_of_a_second_try_gets_the_same_pseudonyms(guarded: Gatehouse, engine: EchoEngine) -> None:
    text = f"card 4111 1111 1111 1111, {WHO} and eve@example.com"
    for _ in range(20):
        response = guarded.chat(text, model="retried")
        assert text_of(response) == text
        assert sent(engine) == "card <CARD_1>, <EMAIL_1> and <EMAIL_2>"
        if Broken.received:
            break
    assert [one["messages"][-1]["content"] for one in Broken.received] == [sent(engine)]
    outcome = guarded.outcome(response.headers["x-request-id"])
    assert outcome["detail"]["pseudonyms"] == {"replaced": 3, "restored": 3}


@pytest.mark.parametrize("size", [1, 2, 3, 5, 9, 50])
@pytest.mark.parametrize("model", ["m1", "plain"])
def test_streams_are_restored_however_they_are_cut(guarded: Gatehouse, engine: EchoEngine, model: str, size: int) -> None:
    text = f"x < y, <b>mail {WHO}</b> <EMAIL_7> <{WHO}> {WHO}"
    found = streamed(guarded, text, model, size)
    assert WHO not in sent(engine)
    assert joined(found, "content") == text


def test_tool_calls_and_reasoning_are_restored(guarded: Gatehouse, engine: EchoEngine) -> None:
    text = f'{WHO} ODD"\\123'
    message = guarded.chat(text, model="m1", tools=TOOLS).json()["choices"][0]["message"]
    assert sent(engine) == "<EMAIL_1> <ODD_1>"
    arguments = json.loads(message["tool_calls"][0]["function"]["arguments"])
    assert message["reasoning_content"] == arguments["to"] == json.loads(arguments["inner"])["deep"] == text
    for size in (1, 3, 7):
        found = streamed(guarded, text, "m1", size, tools=TOOLS)
        assert joined(found, "reasoning_content") == text
        arguments = json.loads(joined(found, "tool_calls", "function", "arguments"))
        assert arguments["to"] == json.loads(arguments["inner"])["deep"] == text


def test_an_output_guardrail_reads_pseudonyms_unless_it_is_to_read_the_values(guarded: Gatehouse, engine: EchoEngine) -> None:
    engine.answers.append("<EMAIL_1> or other@example.net")
    assert text_of(guarded.chat(WHO, model="m1")) == f"{WHO} or [EMAIL]"
    assert text_of(guarded.chat(WHO, model="before")) == "[EMAIL]"
    assert joined(streamed(guarded, f"to {WHO} now", "before", 3), "content") == "to [EMAIL] now"


def test_what_is_not_restored(guarded: Gatehouse, engine: EchoEngine) -> None:
    assert text_of(guarded.chat(WHO, model="one-way")) == "<EMAIL_1>"
    engine.answers.append("<email_1> EMAIL_1 <EMAIL_2>")
    assert text_of(guarded.chat(WHO, model="m1")) == "<email_1> EMAIL_1 <EMAIL_2>"


def session(guarded: Gatehouse, text: str, name: str, key: str = KEY) -> Any:
    with guarded.client(key) as client:
        body = {"model": "session", "messages": [{"role": "user", "content": text}]}
        return client.post("/v1/chat/completions", json=body, headers={"x-gatehouse-session": name})


def test_a_session_keeps_its_pseudonyms_to_itself(guarded: Gatehouse, engine: EchoEngine) -> None:
    assert text_of(session(guarded, f"I am {WHO}", "s1")) == f"I am {WHO}"
    pseudonym = sent(engine).removeprefix("I am ")
    assert re.fullmatch(r"<EMAIL_\d+>", pseudonym)
    session(guarded, f"I was {WHO}", "s1")
    assert sent(engine) == f"I was {pseudonym}"
    engine.answers.append(f"You are {pseudonym}")
    assert text_of(session(guarded, "who am I?", "s1")) == f"You are {WHO}"
    engine.answers.append(f"You are {pseudonym}")
    assert text_of(session(guarded, "who am I?", "s2")) == f"You are {pseudonym}"
    assert text_of(session(guarded, f"say {pseudonym}", "s1")) == f"say {pseudonym}"
    assert pseudonym not in sent(engine)


def test_values_are_in_no_log(guarded: Gatehouse) -> None:
    guarded.outcome(guarded.chat("planted@secret.example", model="m1").headers["x-request-id"])
    for file in (guarded.directory / "state").rglob("*"):
        if file.is_file():
            with suppress(FileNotFoundError):  # one that was there for a moment only
                assert b"planted@secret" not in file.read_bytes(), file
    assert "planted@secret" not in guarded.metrics()
