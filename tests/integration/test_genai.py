"""The onnxruntime-genai sidecar with the demo chat model as an ONNX decoder: the contract of chats, and llama.cpp's answer beside it."""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engines.chat.formats.base import Choice, Tool
from engines.chat.formats.table import BY_NAME
from engines.chat.gbnf import refusal
from engines.chat.output import Dialect, OutputParser
from engines.chat.sampling import SamplingParams
from engines.demo import genai
from engines.genai.constraints import Guidance
from engines.genai.folder import read_folder
from engines.genai.native import GenaiModel
from engines.genai.vocabulary import GenaiVocabulary
from engines.sidecar.shell import ApiError
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


FREE = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


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


@pytest.fixture(scope="module")
def model(folder: Path) -> GenaiModel:
    return GenaiModel(read_folder(str(folder)), "cpu", 1)


@pytest.fixture(scope="module")
def words(folder: Path) -> GenaiVocabulary:
    return GenaiVocabulary(folder / "tokenizer.json", read_folder(str(folder)).vocabulary)


@pytest.fixture(scope="module")
def other() -> Iterator[Sidecar]:
    """The same weights in llama.cpp."""
    with tempfile.TemporaryDirectory(prefix="gh") as path:
        made = Sidecar(Path(path), ROOT / "engines" / "demo" / "artefacts" / DEMO_MODEL, slots=2, queue=2, context=1024)
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


def test_it_says_what_llama_cpp_says_with_the_same_weights(engine: GenaiSidecar, other: Sidecar) -> None:
    answer = engine.openai.chat.completions.create(model="tiny", messages=QUESTION, temperature=0)
    said, reasons, usage = streamed(engine, temperature=0)
    assert answer.choices[0].message.content == said and answer.choices[0].finish_reason == reasons[0] == "stop"
    assert answer.usage is not None and answer.usage.prompt_tokens == usage.prompt_tokens == 12
    assert answer.usage.completion_tokens == usage.completion_tokens == 37
    assert streamed(other, temperature=0)[:2] == (said, ["stop"])
    texts = [one.http.post("/tokenize", json={"prompt": text}).json()["tokens"] for text in TEXTS for one in (engine, other)]
    assert texts[::2] == texts[1::2]


TEXTS = ("What's a key?  Two", "naïve 😀\n\n<|im_end|> 1,234", "<|im_start|>user\nhi<|im_end|>")


CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
CONTRACT: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {}),
    (CHAT, {"max_tokens": 5}),
    (CHAT, {"max_completion_tokens": 5, "n": 2}),
    (CHAT, {"stop": "driven gate"}),
    (CHAT, {"logprobs": True, "top_logprobs": 2, "max_tokens": 4}),
    (CHAT, {"logprobs": True, "max_tokens": 4}),
    (CHAT, {"logit_bias": {"300": -100, "301": 5}, "max_tokens": 8}),
    (CHAT, {"presence_penalty": 1.5, "frequency_penalty": 0.5, "max_tokens": 20}),
    (CHAT, {"ignore_eos": True, "max_tokens": 36}),
    (CHAT, {"user": "u", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "max_tokens": 3}),
    (CHAT, {"tools": [FREE], "tool_choice": "none", "max_tokens": 10}),
    (CHAT, {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "look"}}, "parallel_tool_calls": False}),
    (CHAT, {"response_format": {"type": "text"}, "max_tokens": 6}),
    (CHAT, {"response_format": FORM, "max_tokens": 80}),
    (CHAT, {"grammar": 'root ::= ("yes" | "no") [.!]{2}', "max_tokens": 9}),
    (CHAT, {"grammar": 'root ::= item+\nitem ::= [^"\\\\a-z] "\\"\\\\/" [x-z]', "max_tokens": 16}),
    (TEXT, {"prompt": "Gatehouse is", "max_tokens": 6}),
    (TEXT, {"prompt": ["Gatehouse is", "A policy"], "max_tokens": 4, "n": 2, "echo": True}),
    (TEXT, {"prompt": [5, 6, 7], "max_tokens": 3, "logprobs": 1}),
    (TEXT, {"prompt": "a", "max_tokens": 0}),
    (CHAT, {"nonsense": 1}),
    (CHAT, {"temperature": -1}),
    (CHAT, {"n": 17}),
    (CHAT, {"n": 9}),
    (CHAT, {"top_logprobs": 2}),
    (CHAT, {"logprobs": True, "top_logprobs": 21}),
    (CHAT, {"logit_bias": {"99999": 1}}),
    (CHAT, {"logit_bias": {"x": 1}}),
    (CHAT, {"stop": [""]}),
    (CHAT, {"store": True}),
    (CHAT, {"stream_options": {"include_usage": True}}),
    (CHAT, {"max_tokens": 3, "max_completion_tokens": 4}),
    (CHAT, {"max_tokens": 5000}),
    (CHAT, {"tool_choice": "required"}),
    (CHAT, {"tools": [FREE], "tool_choice": "other"}),
    (CHAT, {"tools": [FREE], "response_format": FORM}),
    (CHAT, {"tools": [{"type": "web"}]}),
    (CHAT, {"response_format": {"type": "xml"}}),
    (CHAT, {"response_format": {"type": "json_schema"}}),
    (CHAT, {"grammar": "root ::="}),
    (CHAT, {"grammar": "nothing"}),
    (CHAT, {"grammar": 'root ::= "a"', "response_format": FORM}),
    (CHAT, {"reasoning_effort": "low"}),
    (CHAT, {"messages": [{"role": "robot", "content": "a"}]}),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]}),
    (TEXT, {"prompt": "a", "suffix": "b"}),
    (TEXT, {"prompt": ""}),
    (TEXT, {"prompt": [99999]}),
    ("/v1/embeddings", {"input": "a"}),
]


@pytest.mark.parametrize("path, body", CONTRACT)
def test_each_field_means_what_it_means_to_llama_cpp(engine: GenaiSidecar, other: Sidecar, path: str, body: dict[str, Any]) -> None:
    sent = {"temperature": 0, **({"messages": QUESTION} if path == CHAT else {}), **body}
    if path == "/v1/embeddings":
        del sent["temperature"]
    ours, theirs = (one.http.post(path, json=sent) for one in (engine, other))
    assert ours.status_code == theirs.status_code, (ours.text, theirs.text)
    loose = "response_format" in body or "parallel_tool_calls" in body  # where blanks are free they are not written alike
    assert comparable(ours.json(), loose) == comparable(theirs.json(), loose)
    if ours.status_code == 200:
        streams = [one.http.post(path, json={**sent, "stream": True}).text for one in (engine, other)]
        assert [said(stream) for stream in streams] == [said(ours.json()), said(theirs.json())]


def comparable(value: Any, loose: bool, key: str = "") -> Any:
    """An answer without what differs by chance: ids, times, the reuse of prompts, the last digits of scores, an error's sentence; loose:
    texts and lengths as well."""
    if isinstance(value, dict):
        return {name: comparable(item, loose, name) for name, item in value.items()}
    if isinstance(value, list):
        return [comparable(item, loose, key) for item in value]
    if isinstance(value, float):
        return pytest.approx(value, abs=0.05)
    drop = key in ("id", "created", "cached_tokens", "bytes") or (key == "message" and isinstance(value, str))
    return type(value).__name__ if drop or (loose and key in ("content", "arguments", "completion_tokens", "total_tokens")) else value


def said(answer: Any) -> dict[int, tuple[str, str, str]]:
    """By choice: text, arguments of calls, finish reason; of a whole answer or of a stream."""
    lines = [line.removeprefix("data: ") for line in answer.splitlines() if line.startswith("data: {")] if isinstance(answer, str) else []
    found: dict[int, tuple[str, str, str]] = {}
    for part in [json.loads(line) for line in lines] or [answer]:
        for choice in part["choices"]:
            text, arguments, reason = found.get(choice["index"], ("", "", ""))
            news = choice.get("message") or choice.get("delta") or {}
            text += choice.get("text") or news.get("content") or ""
            arguments += "".join(call["function"].get("arguments", "") for call in news.get("tool_calls") or ())
            found[choice["index"]] = text, arguments, reason + (choice["finish_reason"] or "")
    return found


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_a_forced_call_is_written_in_every_format_and_read(name: str, model: GenaiModel, words: GenaiVocabulary) -> None:
    form, schema = (
        BY_NAME[name],
        {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"], "additionalProperties": False},
    )
    if name.startswith("deepseek"):  # its tags hold characters that this small vocabulary writes in parts
        with pytest.raises(ApiError, match="tool_choice is not supported: the text holds"):
            Guidance(words).calls(form, Choice((Tool("look", "", schema),), True), parallel=False, check=refusal)
        return
    grammar = Guidance(words).calls(form, Choice((Tool("look", "", schema),), True), parallel=False, check=refusal)
    text, written = model.sequence(SamplingParams(temperature=0, grammar=grammar), 300), b""
    text.read(words.tokenize("Look!", add_special=True, parse_special=False))
    while len(written) < 300 and not text.done and (token := text.next()[0]) not in model.eos:
        written += words.piece(token)
    parser = OutputParser(Dialect(form, {"look": schema}))
    parts = parser.feed(written.decode()) + parser.finish()
    assert [part.name for part in parts if part.kind == "call"] == ["look"], written
    assert isinstance(json.loads("".join(part.text for part in parts if part.kind == "arguments"))["on"], bool)
    assert not "".join(part.text for part in parts if part.kind == "content").strip()


@pytest.mark.parametrize("generated", [0, 1, 2, 5])
def test_a_sequence_goes_back_to_all_that_it_says_it_can(model: GenaiModel, generated: int) -> None:
    settings, prompt = SamplingParams(temperature=0), [7 * n % 1000 + 5 for n in range(60)]
    text = model.sequence(settings, 300)
    text.read(prompt)
    for _ in range(generated):
        text.next()
    for kept in (text.reusable, 30):
        beginning, rest = text.tokens[:kept], [11 * n % 1000 + 5 for n in range(40)]
        text.again(settings, kept)
        text.read(rest)
        fresh = model.sequence(settings, 300)
        fresh.read(beginning + rest)
        assert [text.next()[0] for _ in range(8)] == [fresh.next()[0] for _ in range(8)]


def test_what_prompts_have_in_common_is_read_once(engine: GenaiSidecar) -> None:
    def ask(question: str, salt: str, **settings: Any) -> tuple[str, int]:
        messages = [{"role": "system", "content": "You know this gateway well. " * 8}, {"role": "user", "content": question}]
        body = {"messages": messages, "max_tokens": 12, **settings}
        answer = engine.http.post(CHAT, json=body, headers={"x-gatehouse-cache-salt": salt}).json()
        return answer["choices"][0]["message"]["content"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    first, none = ask("What is a key?", "aa", temperature=0)
    assert none == 0
    again, most = ask("What is a key?", "aa", temperature=0)
    assert again == first and most > 60
    assert ask("What is a key?", "bb", temperature=0) == (first, 0), "another domain"
    other, shared = ask("Where is a policy?", "aa", temperature=0)
    assert 40 < shared < most
    assert ask("Where is a policy?", "cc", temperature=0) == (other, 0)
    drawn = [ask("What is a key?", salt, temperature=1.5, seed=5) for salt in ("aa", "aa", "dd")]
    assert drawn[0] == drawn[1] == drawn[2] and drawn[0][1] == 0, "a seed's draws do not depend on what others asked"
    assert engine.metric("cached_prompt_tokens_total") >= most + shared
    assert 0 < engine.metric("kept_sequences") <= 2


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
        ({"grammar": 'root ::= "a" nothing'}, "grammar", "invalid_grammar"),
        ({"grammar": "root ::= ([a]*)*"}, "grammar", "invalid_grammar"),
        ({"grammar": 'root ::= "｜"'}, "grammar", "unsupported_parameter"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"items": [{"enum": [{"a": "｜"}]}]}}}},
            "response_format.json_schema.schema", "unsupported_parameter",
        ),
        ({"tools": [FREE], "tool_choice": "required", "min_p": 0.1}, "min_p", "unsupported_parameter"),
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
    """A machine that stands still may let a stream end before the others are there: then it is tried again."""
    assert any(slots_were_bounded(engine) for _ in range(10))


def slots_were_bounded(engine: GenaiSidecar) -> bool:
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
        until(lambda: (engine.health()["in_use"], engine.health()["queue"]) == (2, 2) or not all(one.is_alive() for one in waiting))
        refused, used = engine.http.post("/v1/completions", json={"prompt": "a"}), engine.health()["kv_used"]
        full = refused.status_code != 200
        assert not full or ((refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded") and used > 0)
    finally:
        for stream in streams:
            stream.__exit__(None, None, None)
    for thread in waiting:
        thread.join(150)
    until(lambda: engine.health()["in_use"] == 0)
    return full and engine.metric("cancelled_total") == before + 2


def test_a_deadline_ends_a_request_and_frees_its_slot(engine: GenaiSidecar) -> None:
    late = engine.http.post(
        "/v1/completions", json={"prompt": "Gatehouse", "max_tokens": 1000, "ignore_eos": True}, headers={"x-gatehouse-deadline-ms": "100"}
    )
    assert late.status_code == 504 and late.json()["error"]["code"] == "engine_timeout"
    until(lambda: engine.health()["in_use"] == 0)
    assert engine.metric("faults_total") == 0
