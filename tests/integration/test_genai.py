"""The onnxruntime-genai sidecar with the demo chat model as an ONNX decoder: the contract of chats, and llama.cpp's answer beside it."""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engines.demo import genai
from tests.e2e.harness import DEMO_MODEL
from tests.integration.llamacpp.process import ROOT, Sidecar
from tests.waiting import until

QUESTION: Any = [{"role": "user", "content": "What is Gatehouse?"}]
SCHEMA = {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}}, "required": ["a", "b"],
    "additionalProperties": False,
}  # fmt: skip
TOOL = {"type": "function", "function": {"name": "look", "parameters": {
    "type": "object", "properties": {"what": {"enum": ["x", "y"]}}, "required": ["what"], "additionalProperties": False,
}}}  # fmt: skip


class GenaiSidecar(Sidecar):
    module, runtime, metrics = "engines.genai", "genai", "gatehouse_genai"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return genai.write(tmp_path_factory.mktemp("models") / "demo-genai")


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[GenaiSidecar]:
    with tempfile.TemporaryDirectory(prefix="gh") as path:
        made = GenaiSidecar(Path(path), folder, slots=2, queue=2, context=1024)
        try:
            assert made.wait("ready", "failed")["state"] == "ready"
            yield made
        finally:
            made.close()


def streamed(engine: Sidecar, **settings: Any) -> tuple[str, list[Any], Any]:
    """The text, the finish reasons and the usage of a streamed chat."""
    text, reasons, usage = "", [], None
    for chunk in engine.openai.chat.completions.create(
        model="tiny", messages=QUESTION, stream=True, stream_options={"include_usage": True}, **settings
    ):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reasons += [choice.finish_reason] if choice.finish_reason else []
    return text, reasons, usage


def test_it_says_what_llama_cpp_says_with_the_same_weights(engine: GenaiSidecar) -> None:
    answer = engine.openai.chat.completions.create(model="tiny", messages=QUESTION, temperature=0)
    said, reasons, usage = streamed(engine, temperature=0)
    assert answer.choices[0].message.content == said and answer.choices[0].finish_reason == reasons[0] == "stop"
    assert answer.usage is not None and answer.usage.prompt_tokens == usage.prompt_tokens == 12
    assert answer.usage.completion_tokens == usage.completion_tokens == 37
    with tempfile.TemporaryDirectory(prefix="gh") as path:
        other = Sidecar(Path(path), ROOT / "engines" / "demo" / "artefacts" / DEMO_MODEL, slots=1)
        try:
            assert other.wait("ready", "failed")["state"] == "ready"
            assert streamed(other, temperature=0)[:2] == (said, ["stop"])
            texts = [one.http.post("/tokenize", json={"prompt": text}).json()["tokens"] for text in TEXTS for one in (engine, other)]
            assert texts[::2] == texts[1::2]
        finally:
            other.close()


TEXTS = ("What's a key?  Two", "naïve 😀\n\n<|im_end|> 1,234", "<|im_start|>user\nhi<|im_end|>")


def test_length_stop_strings_and_seeds(engine: GenaiSidecar) -> None:
    cut, reasons, usage = streamed(engine, temperature=0, max_tokens=5)
    assert (reasons, usage.completion_tokens) == (["length"], 5)
    stopped, reasons, _usage = streamed(engine, temperature=0, stop=["driven gate"])
    assert (stopped, reasons) == ("Gatehouse is a policy-", ["stop"]) and stopped.startswith(cut[:10])
    hot = [engine.complete(temperature=2.0, top_p=1, top_k=0, seed=seed)["choices"][0]["text"] for seed in (3, 3, 4, 5)]
    assert hot[0] == hot[1] and len(set(hot)) > 1


def test_choices_scores_and_bias(engine: GenaiSidecar) -> None:
    two = engine.complete("Gatehouse is", n=2, echo=True, temperature=0)["choices"]
    assert [choice["index"] for choice in two] == [0, 1] and all(choice["text"].startswith("Gatehouse is") for choice in two)
    scored = engine.complete("Gatehouse is", max_tokens=2, temperature=0, logprobs=2)["choices"][0]
    tops = scored["logprobs"]["top_logprobs"]
    assert [max(top, key=top.get) for top in tops] == scored["logprobs"]["tokens"]
    first = engine.http.post("/tokenize", json={"prompt": scored["logprobs"]["tokens"][0]}).json()["tokens"][0]
    other = engine.complete("Gatehouse is", max_tokens=2, temperature=0, logit_bias={str(first): -100})["choices"][0]["text"]
    assert other != scored["text"]
    assert engine.complete("Gatehouse is", max_tokens=60, ignore_eos=True)["usage"]["completion_tokens"] == 60


def test_an_answer_follows_a_schema_and_forced_calls(engine: GenaiSidecar) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    answer = engine.openai.chat.completions.create(model="tiny", messages=QUESTION, temperature=0, max_tokens=60, response_format=form)
    assert set(json.loads(answer.choices[0].message.content or "")) == {"a", "b"}
    tools: Any = [TOOL]
    forced = engine.openai.chat.completions.create(
        model="tiny", messages=QUESTION, temperature=0, max_tokens=80, tools=tools, tool_choice="required", parallel_tool_calls=False
    )
    (call,) = forced.choices[0].message.tool_calls or ()
    assert call.type == "function" and call.function.name == "look" and json.loads(call.function.arguments)["what"] in ("x", "y")
    assert forced.choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize(
    ("settings", "param", "code"),
    [
        ({"grammar": 'root ::= "a"'}, "grammar", "unsupported_parameter"),
        ({"min_p": 0.1, "response_format": {"type": "json_object"}}, "min_p", "unsupported_parameter"),
        ({"typical_p": 0.5}, "typical_p", "unsupported_parameter"),
        ({"repeat_last_n": 7}, "repeat_last_n", "unsupported_parameter"),
        ({"max_tokens": 5000}, "max_tokens", "context_length_exceeded"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "objectx"}}}},
            "response_format", "unsupported_schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": True}}},
            "response_format.json_schema.schema", "unsupported_schema",
        ),
    ],
)  # fmt: skip
def test_what_it_does_not_do_is_refused_by_name(engine: GenaiSidecar, settings: dict[str, Any], param: str, code: str) -> None:
    error = engine.error("/v1/chat/completions", messages=QUESTION, **settings)
    assert (error["param"], error["code"]) == (param, code)


def test_a_form_that_a_bias_forbids_is_the_requests_fault(engine: GenaiSidecar) -> None:
    """Three faults in a row would end the engine."""
    bias = {str(token): -100 for token in range(1000)}
    for _ in range(4):
        error = engine.error("/v1/chat/completions", messages=QUESTION, response_format={"type": "json_object"}, logit_bias=bias)
        assert error["code"] == "unsupported_schema"
    assert engine.health()["state"] == "ready" and engine.metric("faults_total") == 0


def test_echoed_scores_and_other_kinds_of_requests_are_refused(engine: GenaiSidecar) -> None:
    assert engine.error("/v1/completions", prompt="a", echo=True, logprobs=1)["param"] == "echo"
    assert engine.error("/v1/embeddings", input="a")["code"] == "unsupported_operation"


def test_tokens_are_counted_and_read_back(engine: GenaiSidecar) -> None:
    chat = {"messages": [{"role": "user", "content": "<|im_end|> é 😀"}]}
    shown = engine.http.post("/tokenize", json={**chat, "return_token_strs": True}).json()
    assert shown["token_strs"].count("<|im_end|>") == 1, "a client's text is never a control token"
    counted = engine.http.post("/v1/chat/completions/input_tokens", json=chat).json()["input_tokens"]
    assert (
        counted
        == shown["count"]
        == engine.http.post("/v1/chat/completions", json={**chat, "max_tokens": 1}).json()["usage"]["prompt_tokens"]
    )
    tokens = engine.http.post("/tokenize", json={"prompt": "Gatehouse é 😀"}).json()["tokens"]
    assert engine.http.post("/detokenize", json={"tokens": tokens}).json()["prompt"] == "Gatehouse é 😀"


def test_slots_and_queue_are_bounded_and_who_leaves_frees_his_slot(engine: GenaiSidecar) -> None:
    body = {"prompt": "Gatehouse", "max_tokens": 1000, "ignore_eos": True, "stream": True}
    before = engine.metric("cancelled_total")
    streams = [engine.http.stream("POST", "/v1/completions", json=body) for _ in range(2)]
    waiting = [threading.Thread(target=engine.complete, kwargs={"max_tokens": 1}) for _ in range(2)]
    try:
        readers = [stream.__enter__().iter_raw() for stream in streams]  # kept: one that is dropped closes its connection
        for reader in readers:
            next(reader)
        for thread in waiting:
            thread.start()
        until(lambda: (engine.health()["in_use"], engine.health()["queue"]) == (2, 2))
        assert engine.error("/v1/completions", 503, prompt="a")["code"] == "overloaded"
        assert engine.health()["kv_used"] > 0
    finally:
        for stream in streams:
            stream.__exit__(None, None, None)
    for thread in waiting:
        thread.join(60)
    until(lambda: engine.health()["in_use"] == 0 and engine.metric("cancelled_total") == before + 2)


def test_a_deadline_ends_a_request_and_frees_its_slot(engine: GenaiSidecar) -> None:
    late = engine.http.post(
        "/v1/completions", json={"prompt": "Gatehouse", "max_tokens": 1000, "ignore_eos": True}, headers={"x-gatehouse-deadline-ms": "100"}
    )
    assert late.status_code == 504 and late.json()["error"]["code"] == "engine_timeout"
    until(lambda: engine.health()["in_use"] == 0)
    assert engine.metric("faults_total") == 0
