"""Names and places by our own sidecar, with the demo model and with an export of a BERT for named entities: requests, answers, streams,
masks, and pseudonyms that come back in the answer and in the arguments of tools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from engines.demo import names
from tests.e2e.harness import Gatehouse, configuration, external
from tests.e2e.test_pseudonyms import TOOLS, joined, streamed
from tests.fakes.echo import EchoEngine, echo_engine
from tests.unit.engines.onnx.models import bert_ner_folder

TEXT = "Please write to Anna Kowalski in Krakow about the invoice."
MASKED = "Please write to [PERSON] in [LOCATION] about the invoice."
GIVEN = "Please write to <PERSON_1> in <LOCATION_1> about the invoice."


@pytest.fixture(scope="module")
def engine() -> Iterator[EchoEngine]:
    with echo_engine() as running:
        yield running


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, engine: EchoEngine) -> Iterator[Gatehouse]:
    root = tmp_path_factory.mktemp("entities")
    pseudonyms = {"entities": {"person": "pseudonym", "location": "pseudonym"}}
    session = {**pseudonyms, "pseudonyms": {"scope": "session"}}

    def guard(name: str, on: list[str], **settings: Any) -> dict[str, Any]:
        return {"name": name, "type": "entities", "models": [name], "on": on, "settings": {"model": "ner", "timeout": "30s", **settings}}

    config = configuration(
        root / "state",
        engines=[
            external("echo", engine.port, slots=16),
            {"name": "demo", "runtime": "onnx", "model": str(names.OUT), "slots": 16},
            {"name": "bert", "runtime": "onnx", "model": str(bert_ner_folder(root / "bert")), "slots": 16},
        ],
        models=[
            *({"name": name, "pool": ["echo"]} for name in ("asks", "answers", "given", "session", "both", "by-bert")),
            {"name": "ner", "pool": ["demo"]},
            {"name": "ner-bert", "pool": ["bert"]},
        ],
        listen={"trusted_peers": ["127.0.0.1"]},
        guardrails=[
            guard("asks", ["request"]),
            guard("answers", ["response"]),
            guard("given", ["request"], **pseudonyms),
            guard("session", ["request"], **session),
            guard("both", ["request", "response"], **pseudonyms),
            guard("by-bert", ["request"], **pseudonyms, model="ner-bert"),
        ],
    )
    with Gatehouse(root, config) as running:
        yield running


def sent(engine: EchoEngine) -> str:
    content: str = engine.received[-1]["messages"][-1]["content"]
    return content


def said(response: httpx.Response) -> Any:
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["message"]


def test_names_of_a_request_are_masked(guarded: Gatehouse, engine: EchoEngine) -> None:
    assert said(guarded.chat(TEXT, model="asks"))["content"] == MASKED
    assert sent(engine) == MASKED


def test_names_of_a_whole_answer_are_masked_also_in_arguments(guarded: Gatehouse) -> None:
    assert said(guarded.chat(TEXT, model="answers"))["content"] == MASKED
    message = said(guarded.chat(TEXT, model="answers", tools=TOOLS))
    arguments = json.loads(message["tool_calls"][0]["function"]["arguments"])
    assert "Kowalski" not in json.dumps(message) and arguments["to"] == MASKED and json.loads(arguments["inner"]) == {"deep": MASKED}


@pytest.mark.parametrize("size", [1, 4, 50])
def test_names_of_a_stream_are_masked_however_it_is_cut(guarded: Gatehouse, size: int) -> None:
    assert joined(streamed(guarded, TEXT, "answers", size), "content") == MASKED
    found = streamed(guarded, TEXT, "answers", size, tools=TOOLS)
    assert json.loads(joined(found, "tool_calls", "function", "arguments"))["to"] == MASKED


@pytest.mark.parametrize("model", ["given", "both"])
def test_pseudonyms_of_names_come_back_whole_and_in_arguments(guarded: Gatehouse, engine: EchoEngine, model: str) -> None:
    response = guarded.chat(f"{TEXT} Anna Kowalski", model=model)
    assert sent(engine) == f"{GIVEN} <PERSON_1>"
    assert said(response)["content"] == f"{TEXT} Anna Kowalski"
    outcome = guarded.outcome(response.headers["x-request-id"])
    assert outcome["detail"]["pseudonyms"] == {"replaced": 2, "restored": 3} and "Kowalski" not in json.dumps(outcome)
    arguments = json.loads(said(guarded.chat(TEXT, model=model, tools=TOOLS))["tool_calls"][0]["function"]["arguments"])
    assert sent(engine) == GIVEN and arguments["to"] == TEXT and json.loads(arguments["inner"]) == {"deep": TEXT}


@pytest.mark.parametrize("size", [1, 3, 7, 50])
@pytest.mark.parametrize("model", ["given", "both"])
def test_pseudonyms_of_names_come_back_in_streams(guarded: Gatehouse, engine: EchoEngine, model: str, size: int) -> None:
    assert joined(streamed(guarded, TEXT, model, size), "content") == TEXT and sent(engine) == GIVEN
    found = streamed(guarded, TEXT, model, size, tools=TOOLS)
    assert json.loads(joined(found, "tool_calls", "function", "arguments"))["to"] == TEXT


def test_arguments_of_a_request_get_pseudonyms_and_stay_json(guarded: Gatehouse, engine: EchoEngine) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": json.dumps({"to": "Anna Kowalski", "n": 1})}}
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "written to Anna Kowalski"},
    ]
    with guarded.client() as client:
        answer = client.post("/v1/chat/completions", json={"model": "given", "messages": messages})
    received = engine.received[-1]["messages"]
    assert json.loads(received[1]["tool_calls"][0]["function"]["arguments"]) == {"to": "<PERSON_1>", "n": 1}
    assert received[2]["content"] == "written to <PERSON_1>" and said(answer)["content"] == "written to Anna Kowalski"


def test_a_session_keeps_a_name_and_nobody_elses_text_reads_it(guarded: Gatehouse, engine: EchoEngine) -> None:
    def ask(text: str, session: str) -> str:
        with guarded.client() as client:
            headers = {"x-gatehouse-session": session}
            body = {"model": "session", "messages": [{"role": "user", "content": text}]}
            content: str = said(client.post("/v1/chat/completions", json=body, headers=headers))["content"]
        return content

    assert ask("send to Anna Kowalski", "s1") == "send to Anna Kowalski"
    first = sent(engine).removeprefix("send to ")
    assert first.startswith("<PERSON_") and ask("Hello, I am Anna Kowalski.", "s1") == "Hello, I am Anna Kowalski."
    assert sent(engine) == f"Hello, I am {first}."
    assert ask(f"what is {first}", "s1") == f"what is {first}", "a text in the form of a pseudonym is no way to read the session"
    assert first not in sent(engine)
    assert ask(f"what is {first}", "s2") == f"what is {first}"


def test_an_export_of_a_bert_with_word_pieces_and_three_inputs(guarded: Gatehouse, engine: EchoEngine) -> None:
    with guarded.client() as client:
        asked = client.post("/v1/classify", json={"model": "ner-bert", "input": ["Anna Kowalski lives in Krakow.", "not in"]}).json()
    found = [[(one["entity"], one["start"], one["end"]) for one in item["entities"]] for item in asked["data"]]
    assert found == [[("PER", 0, 13), ("LOC", 23, 29)], []]
    text = "say to Anna Kowalski in Krakow. " * 5
    response = guarded.chat(text, model="by-bert")
    assert sent(engine) == "say to <PERSON_1> in <LOCATION_1>. " * 5 and said(response)["content"] == text
