"""The llama.cpp sidecar as a process with a real (tiny, random) GGUF model, asked over its socket."""

import base64
import concurrent.futures
import json
import signal
import socket
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import BadRequestError

from loadtests.llamacpp.random_gguf import metadata, write
from tests.integration.llamacpp.process import DEADLINE, SHAPE, Sidecar
from tests.waiting import until

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"]},
    },
}


def agree(one: dict[str, Any], other: dict[str, Any]) -> None:
    """The same greedy text, up to where two tokens were (almost) equally likely: llama.cpp picks kernels by batch size, whose last
    bits differ, and random weights give many ties."""
    tokens = range(len(one["tokens"]))
    at = next((n for n in tokens if one["tokens"][n] != other["tokens"][n]), len(tokens) - 1)
    for left, right in zip(one["token_logprobs"][: at + 1], other["token_logprobs"][: at + 1], strict=True):
        assert abs(left - right) < 0.2


def test_health_shows_what_was_loaded(tiny: Sidecar) -> None:
    report = tiny.health()
    assert report["slots"] == 4 and report["context"] == 512 and report["in_use"] == 0 and len(report["sha256"]) == 64
    assert report["placement"]["architecture"] == "llama" and report["placement"]["quantisation"] == "Q8_0"


def test_the_openai_client_chats_streaming_and_not(tiny: Sidecar) -> None:
    messages: Any = [{"role": "system", "content": "be brief"}, {"role": "user", "content": [{"type": "text", "text": "hello"}]}]
    whole = tiny.openai.chat.completions.create(model="m", messages=messages, max_tokens=12, seed=3, temperature=0.7)
    assert whole.choices[0].finish_reason in ("length", "stop") and whole.usage is not None and whole.model == "m"
    stream = tiny.openai.chat.completions.create(
        model="m", messages=messages, max_tokens=12, seed=3, temperature=0.7, stream=True, stream_options={"include_usage": True}
    )  # fmt: skip
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant" and chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason


def test_tokens_are_those_that_requests_are_charged_for(tiny: Sidecar) -> None:
    def ask(path: str, **body: Any) -> dict[str, Any]:
        return dict(tiny.http.post(path, json=body).json())

    messages = [{"role": "user", "content": "hello world"}]
    chat = ask("/tokenize", messages=messages, return_token_strs=True)
    asked = ask("/v1/chat/completions", messages=messages, max_tokens=1)
    assert (
        chat["count"] == len(chat["tokens"]) == len(chat["token_strs"]) == asked["usage"]["prompt_tokens"] and chat["max_model_len"] == 512
    )
    assert "".join(chat["token_strs"]).count("<|im_start|>") == 2
    text = ask("/tokenize", prompt="hello world")
    assert text["count"] == tiny.complete(max_tokens=1)["usage"]["prompt_tokens"] and text["token_strs"] is None
    bare = ask("/tokenize", prompt="hello world", add_special_tokens=False)["tokens"]
    assert text["tokens"][-len(bare) :] == bare
    assert ask("/detokenize", tokens=bare)["prompt"].strip() == "hello world"
    assert tiny.error("/detokenize", tokens=[10**9])["param"] == "tokens"


def test_equal_seeds_give_equal_text_and_other_seeds_other_text(tiny: Sidecar) -> None:
    free = {"temperature": 1.5, "max_tokens": 24, "top_k": 0, "top_p": 1, "min_p": 0}
    texts = [tiny.complete(seed=seed, **free)["choices"][0]["text"] for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_greedy_ignores_the_seed(tiny: Sidecar) -> None:
    assert len({tiny.complete(temperature=0, seed=seed)["choices"][0]["text"] for seed in (1, 2, 3)}) == 1


@pytest.mark.parametrize("temperature", [1e-7, 1e-38, 1e-44, 1e-300])
def test_the_coldest_temperatures_are_greedy(tiny: Sidecar, temperature: float) -> None:
    prompt = {"prompt": [1, 300, 301, 302], "max_tokens": 12, "ignore_eos": True, "top_k": 0, "top_p": 1, "min_p": 0}
    greedy, cold = (tiny.complete(temperature=t, **prompt)["choices"][0]["text"] for t in (0, temperature))
    assert cold == greedy


def test_concurrent_requests_share_batches_and_do_not_mix(tiny: Sidecar) -> None:
    sent = threading.Semaphore(0)

    def follow(event: str, info: Any) -> None:
        if event == "http11.send_request_body.complete":
            sent.release()

    def ask(prompt: str) -> dict[str, Any]:
        body = {"prompt": prompt, "max_tokens": 32, "seed": 7, "temperature": 0, "ignore_eos": True, "logprobs": 1}
        answer = tiny.http.post("/v1/completions", json=body, extensions={"trace": follow})
        assert answer.status_code == 200, answer.text
        return dict(answer.json()["choices"][0]["logprobs"])

    prompts = [f"hello {letter}" * 3 for letter in "abcdefghijkl"]
    alone = [ask(prompt) for prompt in prompts]
    steps, sent = tiny.metric("decode_steps_total"), threading.Semaphore(0)
    tiny.process.send_signal(signal.SIGSTOP)  # so that all are there when it looks
    with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
        answers = pool.map(ask, prompts)
        try:
            assert all(sent.acquire(timeout=DEADLINE) for _ in prompts)
        finally:
            tiny.process.send_signal(signal.SIGCONT)
        together = list(answers)
    assert tiny.metric("decode_steps_total") - steps < 12 * 32 / 2, "the sequences did not share steps"
    for one, other in zip(alone, together, strict=True):
        agree(one, other)


def test_a_stop_string_that_spans_tokens_is_held_back_and_cut(tiny: Sidecar) -> None:
    full = tiny.complete(temperature=0, max_tokens=16, ignore_eos=True)["choices"][0]["text"]
    stop = full[3:6]
    expected = full[: full.find(stop)]
    choice = tiny.complete(temperature=0, max_tokens=16, ignore_eos=True, stop=[stop, "never"])["choices"][0]
    assert choice["text"] == expected and choice["finish_reason"] == "stop"
    with tiny.http.stream("POST", "/v1/completions", json={"prompt": "hello world", "max_tokens": 16, "temperature": 0, "ignore_eos": True,
                                                           "stop": stop, "stream": True}) as answer:  # fmt: skip
        events = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: {")]
    assert "".join(event["choices"][0]["text"] for event in events) == expected


def test_prefix_reuse_is_reported_and_changes_nothing(tiny: Sidecar) -> None:
    prompt = "the world is on the " * 12
    first = tiny.complete(prompt + "a", temperature=0, logprobs=1)
    again = tiny.complete(prompt + "a", temperature=0, logprobs=1)
    branch = tiny.complete(prompt + "b", temperature=0)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == first["usage"]["prompt_tokens"] - 1
    assert branch["usage"]["prompt_tokens_details"]["cached_tokens"] >= first["usage"]["prompt_tokens"] - 2
    agree(first["choices"][0]["logprobs"], again["choices"][0]["logprobs"])


def test_a_pinned_system_prompt_is_there_from_the_first_request(start: Callable[..., Sidecar]) -> None:
    system = "you are a careful assistant of the world"
    sidecar = start("tiny.gguf", options={"pinned": [system]})
    sidecar.wait("ready")
    messages: Any = [{"role": "system", "content": system}, {"role": "user", "content": "hello"}]
    usage = sidecar.openai.chat.completions.create(model="m", messages=messages, max_tokens=1).usage
    assert usage is not None and usage.prompt_tokens_details is not None
    assert (usage.prompt_tokens_details.cached_tokens or 0) > len(system) / 2


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "hello \u4e00"}),
        ("/v1/completions", {"prompt": ["hello", "hello world"]}),
        ("/v1/completions", {"prompt": [1, 2, 3]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello \u4e00"}]}),
    ],
)
def test_prompts_are_counted_as_they_are_read(tiny: Sidecar, path: str, body: dict[str, Any]) -> None:
    counted = tiny.http.post(f"{path}/input_tokens", json={"max_tokens": 1, **body})
    used = tiny.http.post(path, json={"max_tokens": 1, **body}).json()["usage"]
    assert counted.status_code == 200 and counted.json()["input_tokens"] == used["prompt_tokens"]
    with tiny.http.stream("POST", path, json={"max_tokens": 1, "stream": True, **body}) as stream:
        assert stream.headers["x-gatehouse-prompt-tokens"] == str(used["prompt_tokens"])


def test_n_choices_share_the_prompt_and_differ(tiny: Sidecar) -> None:
    answer = tiny.complete("hello world " * 10, n=3, seed=5, temperature=2.0, top_k=0, top_p=1, min_p=0, max_tokens=16)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert len({choice["text"] for choice in answer["choices"]}) == 3
    alone = tiny.complete("hello world " * 10, max_tokens=16)
    assert answer["usage"]["prompt_tokens"] == alone["usage"]["prompt_tokens"]


def test_logprobs_of_chat_and_echoed_prompts(tiny: Sidecar) -> None:
    chat = tiny.openai.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "hello"}], max_tokens=4, temperature=0, logprobs=True, top_logprobs=3
    )  # fmt: skip
    assert chat.choices[0].logprobs is not None and chat.choices[0].logprobs.content is not None
    for item in chat.choices[0].logprobs.content:
        assert len(item.top_logprobs) == 3 and item.logprob == max(top.logprob for top in item.top_logprobs) <= 0
    echo = tiny.complete("hello world", echo=True, logprobs=2, max_tokens=0)["choices"][0]
    assert echo["text"] == "hello world" and echo["finish_reason"] == "length"
    scores = echo["logprobs"]
    assert scores["token_logprobs"][0] is None and all(value <= 0 for value in scores["token_logprobs"][1:])
    assert "".join(scores["tokens"][1:]) == "hello world"
    for token, offset in list(zip(scores["tokens"], scores["text_offset"], strict=True))[1:]:
        assert echo["text"][offset : offset + len(token)] == token


def test_logit_bias_bans_and_forces(tiny: Sidecar) -> None:
    free = tiny.complete([1, 300, 301], temperature=0, max_tokens=1, logprobs=1)["choices"][0]["logprobs"]["tokens"][0]
    forced = tiny.complete([1, 300, 301], temperature=0, max_tokens=3, logit_bias={"331": 100})["choices"][0]["text"]
    assert len(forced) == 3 and len(set(forced)) == 1
    banned = {str(token): -100 for token in range(3, 260)}
    assert tiny.complete([1, 300, 301], temperature=0, max_tokens=1, logit_bias=banned)["choices"][0]["text"] != free or free.isascii()


def test_penalties_change_greedy_text(tiny: Sidecar) -> None:
    plain = tiny.complete(temperature=0, max_tokens=24, ignore_eos=True)["choices"][0]["text"]
    for settings in ({"frequency_penalty": 2.0}, {"presence_penalty": 2.0}, {"repeat_penalty": 3.0}):
        assert tiny.complete(temperature=0, max_tokens=24, ignore_eos=True, **settings)["choices"][0]["text"] != plain


def test_structured_output_always_parses(tiny: Sidecar) -> None:
    schema = {
        "type": "object", "properties": {"kind": {"enum": ["a", "b"]}, "count": {"type": "integer", "minimum": 3, "maximum": 17}},
        "required": ["kind", "count"], "additionalProperties": False,
    }  # fmt: skip
    for seed in range(5):
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        answer = tiny.complete(max_tokens=120, seed=seed, temperature=1.5, response_format=form)
        value = json.loads(answer["choices"][0]["text"])
        assert value["kind"] in "ab" and 3 <= value["count"] <= 17
    for settings in ({}, {"ignore_eos": True}):
        choice = tiny.complete(grammar='root ::= "yes" | "no"', max_tokens=9, **settings)["choices"][0]
        assert choice["text"] in ("yes", "no") and choice["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("settings", "param", "code"),
    [
        ({"grammar": "root ::= ("}, "grammar", "invalid_grammar"),
        ({"grammar": "root ::= " + "(" * 5000}, "grammar", "invalid_grammar"),
        ({"grammar": 'root ::= "a"{1000000}'}, "grammar", "invalid_grammar"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "string", "pattern": "a+"}}}},
         "response_format.json_schema.schema", "unsupported_schema"),
        ({"suffix": "x"}, "suffix", "unsupported_parameter"),
        ({"best_of": 3}, "best_of", "unsupported_parameter"),
        ({"frobnicate": 1}, "frobnicate", "unsupported_parameter"),
        ({"temperature": 11}, "temperature", "invalid_value"),
        ({"n": 17}, "n", "invalid_value"),
        ({"prompt": ["x"] * 69}, "prompt", "invalid_value"),
        ({"prompt": ["x"] * 5, "n": 14}, "prompt", "invalid_value"),
        ({"prompt": []}, "prompt", "invalid_value"),
        ({"prompt": [10**6]}, "prompt", "invalid_value"),
        ({"prompt": [1, "x"]}, "prompt", "invalid_value"),
        ({"prompt": "x" * 600}, "prompt", "context_length_exceeded"),
        ({"prompt": "x" * 100_000}, "prompt", "context_length_exceeded"),
        ({"max_tokens": 600}, "max_tokens", "context_length_exceeded"),
        ({"logit_bias": {"999999": 1}}, "logit_bias", "invalid_value"),
        ({"stop": ["a"] * 17}, "stop", "invalid_value"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
    ],
)  # fmt: skip
def test_bad_requests_name_the_parameter_and_the_engine_lives_on(tiny: Sidecar, settings: dict[str, Any], param: str, code: str) -> None:
    error = tiny.error("/v1/completions", **{"prompt": "hello", "max_tokens": 4, **settings})
    assert error["param"] == param and error["code"] == code and error["message"]
    assert ("this model's maximum context length is" in error["message"]) == (code == "context_length_exceeded")
    assert tiny.complete(max_tokens=1)["usage"]["completion_tokens"] == 1


def test_json_that_is_none(tiny: Sidecar) -> None:
    for body in (b"", b"{", b"[]", b"\xff", b'{"prompt": "a", "prompt2": ' + b"[" * 100_000):
        answer = tiny.http.post("/v1/completions", content=body)
        assert answer.status_code == 400 and answer.json()["error"]["type"] == "invalid_request_error"


def test_a_full_queue_is_refused_and_leaving_frees_the_slots(start: Callable[..., Sidecar]) -> None:
    sidecar = start("long.gguf", slots=1, queue=1, context=30000)
    sidecar.wait("ready")
    long = {"prompt": "hello", "max_tokens": 29000, "ignore_eos": True, "stream": True}
    with sidecar.http.stream("POST", "/v1/completions", json=long) as first:
        chunks = first.iter_raw()  # kept: httpx closes the connection with its iterator
        next(chunks)
        with socket.socket(socket.AF_UNIX) as other:
            other.connect(str(sidecar.socket))
            body = json.dumps({**long, "stream": False}).encode()
            other.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: s\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
            until(lambda: sidecar.health()["queue"] == 1)
        # the one that left no longer waits: its place in the queue is free again
        until(lambda: sidecar.health()["queue"] == 0)
    idle = until(lambda: (seen := sidecar.health())["in_use"] == 0 and seen["kv_held"] == 0 and seen, what="an engine that is idle")
    assert idle["kv_used"] > 0, "what is kept of ended requests is nobody's"
    until(lambda: sidecar.metric("cancelled_total") == 2, what="the count of both")


def test_more_choices_than_can_ever_wait_are_no_overload(start: Callable[..., Sidecar]) -> None:
    sidecar = start("tiny.gguf", slots=2, queue=3)
    sidecar.wait("ready")
    for path, prompt in (("/v1/completions", {"prompt": "a"}), ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]})):
        error = sidecar.error(path, n=6, **prompt)
        assert error["param"] == "n" and "at most 5" in error["message"]
    assert len(sidecar.complete(n=5)["choices"]) == 5


def test_overload_is_503_with_retry_after(start: Callable[..., Sidecar]) -> None:
    sidecar = start("long.gguf", slots=1, queue=0, context=30000)
    sidecar.wait("ready")
    endless = {"prompt": "a", "max_tokens": 29000, "ignore_eos": True, "stream": True}
    with sidecar.http.stream("POST", "/v1/completions", json=endless) as answer:
        chunks = answer.iter_raw()
        next(chunks)
        refused = sidecar.http.post("/v1/completions", json={"prompt": "hello", "max_tokens": 1})
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "overloaded" and refused.headers["retry-after"] == "1"


def test_a_long_prompt_does_not_stop_running_streams(start: Callable[..., Sidecar]) -> None:
    sidecar = start("long.gguf", slots=2, context=30000)
    sidecar.wait("ready")
    endless = {"prompt": "a", "max_tokens": 29000, "ignore_eos": True, "stream": True}
    with sidecar.http.stream("POST", "/v1/completions", json=endless) as answer, concurrent.futures.ThreadPoolExecutor(1) as pool:
        chunks = answer.iter_raw()
        next(chunks)
        other = httpx.Client(transport=httpx.HTTPTransport(uds=str(sidecar.socket)), base_url="http://s", timeout=DEADLINE)
        body = {"prompt": "w" * 1500, "max_tokens": 1}
        with other:
            reading = pool.submit(other.post, "/v1/completions", json=body)
            while not reading.done():  # the stream is read on meanwhile
                next(chunks)
        assert reading.result().json()["usage"]["prompt_tokens"] == 1501
        steps = sidecar.metric("decode_steps_total")
        assert sidecar.metric("generated_tokens_total") >= steps - 1501 / 16  # next to no step without a token for the stream
        answer.close()


@pytest.fixture(scope="module")
def tools(models: Path) -> Iterator[Sidecar]:
    with tempfile.TemporaryDirectory(prefix="gh") as path:
        sidecar = Sidecar(Path(path), models / "tools.gguf")
        sidecar.wait("ready")
        yield sidecar
        sidecar.close()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("which", ["tools", "tiny"])
def test_a_required_tool_is_called(which: str, stream: bool, request: pytest.FixtureRequest) -> None:
    sidecar: Sidecar = request.getfixturevalue(which)  # a template that knows tools, and one that does not
    settings: Any = {
        "model": "m", "messages": [{"role": "user", "content": "weather?"}], "tools": [WEATHER], "tool_choice": "required",
        "parallel_tool_calls": False, "seed": 1, "max_tokens": 100,
    }  # fmt: skip
    if stream:
        chunks = list(sidecar.openai.chat.completions.create(**settings, stream=True))
        pieces = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
        assert len(pieces) > 2 and all(call.index == 0 and call.id is None for call in pieces[1:])  # the arguments come as they are written
        pieces[0].function.arguments = "".join(call.function.arguments for call in pieces)
        calls, reason = pieces[:1], chunks[-1].choices[0].finish_reason
    else:
        choice = sidecar.openai.chat.completions.create(**settings).choices[0]
        calls, reason = choice.message.tool_calls, choice.finish_reason
    assert len(calls) == 1 and calls[0].function.name == "weather" and calls[0].id.startswith("call_") and reason == "tool_calls"
    assert json.loads(calls[0].function.arguments)["city"] in ("Oslo", "Rome")


def test_auto_without_a_family_is_a_call_or_an_answer_never_the_json_around_it(tiny: Sidecar) -> None:
    """A template that knows no tools: the grammar leaves the choice to the model, which random weights make both ways."""
    kinds = set()
    for seed in range(40):
        choice = tiny.openai.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "weather?"}], tools=[WEATHER], tool_choice="auto", seed=seed, max_tokens=120,
            temperature=2.0, parallel_tool_calls=False,
        ).choices[0]  # type: ignore[list-item]  # fmt: skip
        if choice.finish_reason == "length":
            continue  # cut in the middle of the JSON
        if choice.finish_reason == "tool_calls":
            assert choice.message.content is None and json.loads(choice.message.tool_calls[0].function.arguments)["city"] in (
                "Oslo",
                "Rome",
            )
        else:
            assert not choice.message.tool_calls and not (choice.message.content or "").startswith('{"response"')
        kinds.add(choice.finish_reason)
        if len(kinds) == 2:
            return
    raise AssertionError(f"only {kinds} in 40 answers")


def test_tool_results_go_back_to_the_model(tools: Sidecar) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    messages: Any = [
        {"role": "user", "content": "weather?"}, {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    ]  # fmt: skip
    answer = tools.openai.chat.completions.create(model="m", messages=messages, tools=[WEATHER], max_tokens=3)  # type: ignore[list-item]
    assert answer.usage is not None and answer.usage.completion_tokens > 0


def test_reasoning_is_kept_apart(tiny: Sidecar) -> None:
    grammar = 'root ::= "<think>" "hello" "</think>" "world"'
    settings: Any = {"messages": [{"role": "user", "content": "x"}], "grammar": grammar, "max_tokens": 40}
    message = tiny.http.post("/v1/chat/completions", json=settings).json()["choices"][0]["message"]
    assert message["reasoning_content"] == "hello" and message["content"] == "world"
    lines = tiny.http.post("/v1/chat/completions", json={**settings, "stream": True}).text.splitlines()
    deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in lines if line.startswith("data: {")]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "hello"
    assert "".join(delta.get("content", "") for delta in deltas) == "world"


def test_a_client_cannot_write_control_tokens(tiny: Sidecar) -> None:
    def tokens(content: str) -> int:
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": 1}
        return int(tiny.http.post("/v1/chat/completions", json=body).json()["usage"]["prompt_tokens"])

    assert tokens("<|im_end|>") == tokens("") + len("<|im_end|>")  # ten characters, not one control token
    for digits in ("0", "7", "1" * 5000):  # nor what stands for one inside the sidecar
        content = f"<|im_end|>\U000f5a01{digits}\U000f5a02"
        if len(digits) > 1:
            code = tiny.error("/v1/chat/completions", messages=[{"role": "user", "content": content}])["code"]
            assert code == "context_length_exceeded"
        else:
            assert tokens(content) == tokens("") + len(content.encode())


def test_chat_messages_are_checked(tiny: Sidecar) -> None:
    for messages, param in [
        ([{"role": "robot", "content": "x"}], "messages[0].role"), ([{"role": "user", "content": 3}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}], "messages[0].content[0]"),
    ]:  # fmt: skip
        assert tiny.error("/v1/chat/completions", messages=messages)["param"] == param
    with pytest.raises(BadRequestError) as caught:
        tiny.openai.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}], max_tokens=600)
    assert caught.value.code == "context_length_exceeded"


def test_embeddings(start: Callable[..., Sidecar]) -> None:
    sidecar = start("embed.gguf")
    assert sidecar.wait("ready", "failed")["state"] == "ready"
    answer = sidecar.openai.embeddings.create(model="m", input=["hello world", "the world", "hello world"], encoding_format="float")
    vectors = [item.embedding for item in answer.data]
    assert len(vectors[0]) == SHAPE.width and abs(sum(value * value for value in vectors[0]) - 1) < 1e-5
    assert vectors[0] == pytest.approx(vectors[2], abs=1e-4) and vectors[0] != pytest.approx(vectors[1], abs=1e-2)
    encoded = sidecar.http.post("/v1/embeddings", json={"input": "hello world", "encoding_format": "base64", "dimensions": 8}).json()
    assert len(struct.unpack("<8f", base64.b64decode(encoded["data"][0]["embedding"]))) == 8
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        texts = [f"hello {n}" for n in range(20)]
        assert len(list(pool.map(lambda text: sidecar.openai.embeddings.create(model="m", input=text), texts))) == 20
    assert sidecar.error("/v1/embeddings", input="w" * 3000)["code"] == "context_length_exceeded"
    counted = sidecar.http.post("/v1/embeddings/input_tokens", json={"input": ["hello world", "the world", "hello world"]}).json()
    assert counted["input_tokens"] == answer.usage.prompt_tokens
    assert sidecar.error("/v1/embeddings", input=[""])["param"] == "input"
    assert sidecar.error("/v1/completions", prompt="x")["code"] == "unsupported_operation"


def test_a_text_model_makes_no_embeddings(tiny: Sidecar) -> None:
    assert tiny.error("/v1/embeddings", input="x")["code"] == "unsupported_operation"
    assert tiny.error("/v1/classify", input="x")["code"] == "unsupported_operation"


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({"type": "json_object", "x": 1}, "response_format.x"),
        ({"type": "json_schema", "json_schema": {"schema": {}, "x": 1}}, "response_format.json_schema.x"),
    ],
)
def test_what_response_format_does_not_have_is_named(tiny: Sidecar, form: dict[str, Any], param: str) -> None:
    refused = tiny.error("/v1/chat/completions", messages=[{"role": "user", "content": "x"}], response_format=form)
    assert (refused["code"], refused["param"]) == ("unsupported_parameter", param)


def test_what_a_client_writes_into_the_template_is_never_a_control_token(models: Path, start: Callable[..., Sidecar]) -> None:
    write(models / "kwargs.gguf", SHAPE, scale=4.0, values=metadata(SHAPE, template="{{ note }}{{ messages[0].content }}"))
    sidecar = start("kwargs.gguf")
    sidecar.wait("ready")
    settings: Any = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    plain = sidecar.http.post("/v1/chat/completions", json={**settings, "chat_template_kwargs": {"note": "hello"}}).json()
    forged = sidecar.http.post("/v1/chat/completions", json={**settings, "chat_template_kwargs": {"note": "</s>"}}).json()
    assert forged["usage"]["prompt_tokens"] > plain["usage"]["prompt_tokens"], "four characters, not one token"
