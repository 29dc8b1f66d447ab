"""Guardrails over requests, answers and streams: what must not pass does not, however it is cut; a failing guardrail denies."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import GuardrailViolation
from gateway.core.ports import Guardrail, StreamMatcher
from gateway.core.types import ALLOW, ResponseHead, Usage, Verdict
from gateway.core.waiting import Maybe, Signal
from gateway.pipeline.guarded import Guarded
from gateway.pipeline.inspect import raise_verdict
from gateway.wire.table import parse
from policies.guardrails.denylist import DenyList
from policies.guardrails.phrases import PhraseSet
from policies.guardrails.prefilter import Prefilter
from tests.unit.gateway.pipeline.world import BODY, DONE, SSE_HEAD, STREAM_BODY, USAGE, Client, World, chunk

PHRASE = "red falcon"
MASKED = "[removed]"


def deny(*, mask: bool, phrase: str = PHRASE, name: str = "words") -> Guarded:
    return Guarded(DenyList(name, PhraseSet([phrase]), mask=mask, replacement=MASKED), False, lambda *event: None)


class Scripted:
    """A guardrail that does what the test says. `check_with`: a verdict or an exception; `matcher`: what `stream` gives."""

    def __init__(self, verdict: Maybe[Verdict] | Exception = ALLOW, matcher: StreamMatcher | Exception | None = None) -> None:
        self.name = "scripted"
        self.verdict, self.matcher = verdict, matcher
        self.seen: list[list[str]] = []

    def check(self, texts: Sequence[str]) -> Maybe[Verdict]:
        self.seen.append(list(texts))
        if isinstance(self.verdict, Exception):
            raise self.verdict
        return self.verdict

    def stream(self) -> StreamMatcher | None:
        if isinstance(self.matcher, Exception):
            raise self.matcher
        return self.matcher


class Failing:
    """A matcher that fails in one of its methods; `later`: in its second `feed`, when it holds the first text."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.held = ""

    def feed(self, text: str) -> str:
        if self.place == "feed":
            raise ZeroDivisionError("secret text")
        if self.place == "later" and self.held:
            raise ZeroDivisionError("secret text")
        if self.place in ("later", "finish"):
            self.held += text
            return ""
        return text

    def finish(self) -> str:
        if self.place == "finish":
            raise ZeroDivisionError("secret text")
        return ""


def stream(guardrails: Sequence[Guardrail], pieces: Sequence[bytes], *, end: bool = True) -> tuple[Client, World]:
    world = World(response=guardrails)
    _, client = world.start(STREAM_BODY)
    call = world.call.head(SSE_HEAD)
    for piece in pieces:
        call.body(piece)
    if end:
        call.end()
    return client, world


def documents(client: Client) -> list[dict[str, Any]]:
    return [json.loads(event[6:]) for event in client.body.split(b"\n\n") if event.startswith(b"data: {")]


def text_of(client: Client, index: int = 0, key: str = "content") -> str:
    """What a client puts together of one choice."""
    found = ""
    for document in documents(client):
        for choice in document.get("choices", []):
            if choice["index"] == index:
                found += (choice.get("text") if key == "text" else (choice.get("delta") or {}).get(key)) or ""
    return found


def arguments_of(client: Client, call: int = 0) -> str:
    found = ""
    for document in documents(client):
        for choice in document["choices"]:
            for entry in (choice.get("delta") or {}).get("tool_calls") or ():
                if entry["index"] == call:
                    found += entry["function"].get("arguments") or ""
    return found


# --- streams


@pytest.mark.parametrize("mask", [True, False])
def test_a_phrase_split_between_events_at_every_place_never_leaves(mask: bool) -> None:
    text = f"say {PHRASE} now"
    for cut in range(len(text) + 1):
        client, world = stream([deny(mask=mask)], [chunk(text[:cut]) + chunk(text[cut:]) + chunk(None, finish="stop") + USAGE + DONE])
        seen = text_of(client)
        assert "falcon" not in seen
        assert client.complete
        if mask:
            assert seen == f"say {MASKED} now"
            assert world.outcome.outcome == "ok"
        else:
            assert seen in ("", "say ")
            assert (world.outcome.outcome, world.outcome.code) == ("denied", "words")


def test_a_phrase_split_by_reads_at_every_byte_never_leaves() -> None:
    data = chunk("say red f") + chunk("alcon now") + chunk(None, finish="stop") + DONE
    for cut in range(len(data) + 1):
        client, _ = stream([deny(mask=True)], [data[:cut], data[cut:]])
        assert text_of(client) == f"say {MASKED} now", cut
        assert client.body.endswith(DONE) and client.body.count(b"[DONE]") == 1


@given(st.lists(st.sampled_from(["red", " ", "falcon", "fal", "con", "r", "x", "\u00e9", "RED FALCON", "\u200b"]), max_size=12), st.data())
def test_how_a_text_is_cut_into_events_does_not_matter(words: list[str], data: st.DataObject) -> None:
    text = "".join(words)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    end = chunk(None, finish="stop") + DONE
    cut, _ = stream([deny(mask=True)], [b"".join(chunk(piece) for piece in pieces) + end])
    whole, _ = stream([deny(mask=True)], [chunk(text) + end])
    assert text_of(cut) == text_of(whole)


def test_text_that_is_clean_is_forwarded_as_it_came() -> None:
    data = chunk("hello") + chunk(" there") + chunk(None, finish="stop") + DONE
    client, _ = stream([deny(mask=True)], [data])
    assert client.body == data


@pytest.mark.parametrize(
    "choices",
    [
        b'"choices":[{"index":0,"delta":{"content":"%b","content":"sky"},"finish_reason":null}]',
        b'"choices":[{"index":0,"delta":{"c\\u006fntent":"%b","content":"sky \\u0022\\u0022\\u0022\\u0022"},"finish_reason":null}]',
        b'"choices":[{"index":0,"delta":{"content":"%b"}}],"choices":[{"index":0,"delta":{"content":"sky"},"finish_reason":null}]',
    ],
)
@pytest.mark.parametrize("times", [1, 3])
def test_of_a_key_that_is_there_twice_only_what_was_read_is_sent(choices: bytes, times: int) -> None:
    event = b'data: {"id":"c",%b}\n\n' % (choices % PHRASE.encode())
    client, _ = stream([deny(mask=True)], [chunk("a "), *[event] * times, chunk(None, finish="stop") + DONE])
    assert PHRASE.encode() not in client.body and text_of(client).count("sky") == times


def test_choices_do_not_mix() -> None:
    data = chunk("red ", 0) + chunk("blue ", 1) + chunk("falcon", 1) + chunk("sky", 0) + chunk(None, 0, "stop") + chunk(None, 1, "stop")
    client, _ = stream([deny(mask=True)], [data + DONE])
    assert text_of(client, 0) == "red sky"
    assert text_of(client, 1) == "blue falcon"


def test_each_choice_is_inspected() -> None:
    data = chunk("red ", 0) + chunk("red ", 1) + chunk("falcon", 1) + chunk("sky", 0) + chunk(None, 0, "stop") + chunk(None, 1, "stop")
    client, _ = stream([deny(mask=True)], [data + DONE])
    assert (text_of(client, 0), text_of(client, 1)) == ("red sky", MASKED)


@pytest.mark.parametrize("key", ["content", "reasoning_content", "reasoning", "refusal"])
def test_every_text_of_a_delta_is_inspected(key: str) -> None:
    data = chunk(**{key: "a red fal"}) + chunk(**{key: "con"}) + chunk(None, finish="stop") + DONE
    assert text_of(stream([deny(mask=True)], [data])[0], key=key) == f"a {MASKED}"


def test_the_rest_of_a_text_does_not_bring_back_what_was_masked_beside_it() -> None:
    world = World(response=[deny(mask=True)])
    _, client = world.start(STREAM_BODY)
    part = {"type": f"a {PHRASE} b", "text": PHRASE.split()[0]}
    engine = world.call.head(SSE_HEAD)
    engine.body(chunk(content=[part]))  # the beginning of a phrase is held until the stream ends
    engine.body(DONE).end()
    assert PHRASE.encode() not in client.body and MASKED.encode() in client.body


def test_a_stream_without_a_type_is_inspected() -> None:
    data = chunk("a red fal") + chunk("con") + chunk(None, finish="stop") + DONE
    for cut in range(1, len(data), 5):
        world = World(response=[deny(mask=True)])
        _, client = world.start(STREAM_BODY)
        world.call.head(ResponseHead(200, [])).body(data[:cut]).body(data[cut:]).end()
        assert client.status == 200 and text_of(client) == f"a {MASKED}", cut


def test_completions_are_inspected() -> None:
    def piece(text: str, finish: str | None = None) -> bytes:
        return b"data: %b\n\n" % json.dumps({"choices": [{"index": 0, "text": text, "finish_reason": finish}]}).encode()

    client, _ = stream([deny(mask=True)], [piece("a red ") + piece("falcon") + piece(" b", "stop") + DONE])
    assert text_of(client, key="text") == f"a {MASKED} b"


def call_piece(arguments: str, index: int = 0, **more: Any) -> bytes:
    return chunk(tool_calls=[{"index": index, "function": {"arguments": arguments}}], **more)


@pytest.mark.parametrize("last", [{}, {"tool_calls": None}, {"tool_calls": []}, {"refusal": None}])
def test_arguments_of_tool_calls_are_inspected_and_what_was_held_comes_at_the_end(last: dict[str, Any]) -> None:
    data = call_piece('{"q":"red ') + call_piece("falcon", 1) + call_piece("falcon") + call_piece(" red", 1)
    client, _ = stream([deny(mask=True)], [data + chunk(None, finish="tool_calls", **last) + DONE])
    assert arguments_of(client, 0) == '{"q":"' + MASKED
    assert arguments_of(client, 1) == "falcon red"


def test_held_text_goes_out_when_the_last_delta_is_null() -> None:
    last = b'data: {"choices":[{"index":0,"delta":null,"finish_reason":"stop"}]}\n\n'
    assert text_of(stream([deny(mask=True)], [chunk("a red") + last + DONE])[0]) == "a red"


def test_held_arguments_go_into_a_call_without_a_function() -> None:
    last = chunk(None, finish="tool_calls", tool_calls=[{"index": 0}])
    assert arguments_of(stream([deny(mask=True)], [call_piece("a red") + last + DONE])[0]) == "a red"


@pytest.mark.parametrize("ending", [DONE, b""])
def test_held_text_goes_out_at_the_end_of_a_stream_without_a_finish_reason(ending: bytes) -> None:
    client, world = stream([deny(mask=True)], [chunk("a red") + ending])
    assert text_of(client) == "a red"
    assert client.complete and client.body.endswith(DONE) and client.body.count(b"[DONE]") == 1
    *_, held, last = documents(client) if not ending else [*documents(client), {}]
    assert held["id"] == "c" and ("error" in last) == (world.outcome.outcome == "failed") == (not ending)


def test_log_probabilities_do_not_carry_what_is_held() -> None:
    choice = {"index": 0, "delta": {"content": "red"}, "logprobs": {"content": [{"token": "red"}]}}
    event = b"data: %b\n\n" % json.dumps({"choices": [choice]}).encode()
    client, _ = stream([deny(mask=True)], [event], end=False)
    assert b"red" not in client.body


def test_matchers_stand_one_behind_the_other() -> None:
    first, second = deny(mask=True, phrase="grey owl"), deny(mask=True)
    data = chunk("grey o") + chunk("wl red fal") + chunk("con") + chunk(None, finish="stop") + DONE
    assert text_of(stream([first, second], [data])[0]) == f"{MASKED} {MASKED}"


def test_what_one_matcher_releases_at_the_end_the_next_one_reads() -> None:
    first = deny(mask=True, phrase="red falcon nest")
    assert text_of(stream([first, deny(mask=True)], [chunk("red falcon") + chunk(None, finish="stop") + DONE])[0]) == MASKED


@pytest.mark.parametrize("event", [b"data: {not json\n\n", b"data: [1]\n\n", b'data: "text"\n\n', b'data: {"choices":"\xff"}\n\n'])
def test_what_cannot_be_read_is_not_passed_on(event: bytes) -> None:
    client, world = stream([deny(mask=True)], [chunk("a") + event + chunk("b")])
    assert event not in client.body
    assert text_of(client) == "a" or text_of(client) == ""
    assert world.outcome.outcome == "failed"
    assert world.call.over


def test_data_in_several_lines_is_read_as_one() -> None:
    event = b'data: {"choices":[{"index":0,\ndata: "delta":{"content":"red falcon"}}]}\n\n'
    client, _ = stream([deny(mask=True)], [event + chunk(None, finish="stop") + DONE])
    assert text_of(client) == MASKED


def test_a_block_ends_the_engines_work() -> None:
    client, world = stream([deny(mask=False)], [chunk("say " + PHRASE + "!")], end=False)
    assert world.call.over
    assert json.loads(client.body.split(b"\n\n")[-3][6:])["error"]["type"] == "guardrail_violation"
    assert world.route.attempts[0].results == ["neutral"]


# --- the failure boundary


@pytest.mark.parametrize("place", ["make", "feed", "finish"])
def test_a_matcher_that_fails_denies(place: str, caplog: pytest.LogCaptureFixture) -> None:
    events: list[tuple[str, str]] = []
    matcher: Any = ZeroDivisionError("boom") if place == "make" else Failing(place)
    guarded = Guarded(Scripted(matcher=matcher), False, lambda *event: events.append(event))
    client, world = stream([guarded], [chunk("hello") + chunk(None, finish="stop") + DONE])
    assert (world.outcome.outcome, world.outcome.code) == ("denied", "scripted")
    assert client.complete
    assert b"secret" not in client.body and b"boom" not in client.body
    assert events == [("scripted", "closed")]
    if place != "finish":
        assert text_of(client) == ""


@pytest.mark.parametrize("place", ["make", "feed", "later", "finish"])
def test_a_matcher_that_fails_open_passes_and_is_counted(place: str) -> None:
    events: list[tuple[str, str]] = []
    matcher: Any = ZeroDivisionError("boom") if place == "make" else Failing(place)
    guarded = Guarded(Scripted(matcher=matcher), True, lambda *event: events.append(event))
    client, world = stream([guarded], [chunk("hel") + chunk("lo ") + chunk("you") + chunk(None, finish="stop") + DONE])
    assert text_of(client) == "hello you", "nothing is lost, nothing comes twice"
    assert world.outcome.outcome == "ok"
    assert events == [("scripted", "open")]


def test_a_guardrail_that_fails_denies_requests() -> None:
    events: list[tuple[str, str]] = []
    world = World(request=[Guarded(Scripted(ZeroDivisionError("boom")), False, lambda *event: events.append(event))])
    _, client = world.start()
    assert client.status == 400
    assert json.loads(client.body)["error"]["code"] == "scripted"
    assert world.engine.calls == []
    assert events == [("scripted", "closed")]


def test_a_guardrail_that_fails_open_passes_requests() -> None:
    world = World(request=[Guarded(Scripted(ZeroDivisionError("boom")), True, lambda *event: None)])
    world.start()
    assert len(world.engine.calls) == 1


@pytest.mark.parametrize("fail_open", [True, False])
async def test_a_guardrail_that_fails_after_waiting(fail_open: bool) -> None:
    verdict: Signal[Verdict] = Signal()
    world = World(request=[Guarded(Scripted(verdict), fail_open, lambda *event: None)])
    _, client = world.start()
    assert world.engine.calls == [] and not client.written
    verdict.fail(ZeroDivisionError("boom"))
    assert len(world.engine.calls) == (1 if fail_open else 0)


@pytest.mark.parametrize("fail_open", [True, False])
async def test_a_client_that_leaves_while_a_guardrail_waits_is_no_failure_of_the_guardrail(fail_open: bool) -> None:
    """With `fail_mode: open` the request went on to the engine."""
    verdict: Signal[Verdict] = Signal()
    failures: list[tuple[str, str]] = []
    world = World(request=[Guarded(Scripted(verdict), fail_open, lambda *event: failures.append(event))])
    exchange, _ = world.start()
    exchange.client_gone()
    assert failures == [] and world.engine.calls == []
    assert (world.outcome.outcome, world.outcome.code) == ("cancelled", "client_gone")


async def test_a_guardrail_that_must_wait_is_waited_for() -> None:
    verdict: Signal[Verdict] = Signal()
    world = World(request=[Guarded(Scripted(verdict), False, lambda *event: None)])
    world.start()
    verdict.set(ALLOW)
    assert len(world.engine.calls) == 1


# --- requests and whole answers


def test_a_request_is_forwarded_as_it_was_rewritten() -> None:
    world = World(request=[deny(mask=True)])
    world.start(BODY.replace(b"hi", b"a red falcon"))
    assert json.loads(world.call.request_body)["messages"] == [{"role": "user", "content": f"a {MASKED}"}]


def test_a_blocked_request_reaches_no_engine_and_no_audit_intent() -> None:
    world = World(request=[deny(mask=False)])
    _, client = world.start(BODY.replace(b"hi", b"a red falcon"))
    assert client.status == 400
    assert json.loads(client.body)["error"] | {"message": ""} == {
        "message": "", "type": "guardrail_violation", "param": None, "code": "words",
    }  # fmt: skip
    assert world.engine.calls == [] and world.audit.intents == []
    assert world.outcome.guardrail == "words"
    assert world.limiter.reservations[0].settled == [Usage()], "probing costs a request"


def test_no_guardrail_reads_a_request_while_nothing_can_be_recorded() -> None:
    """It may send the texts to a model or a service."""
    reader = Scripted()
    world = World(request=[Guarded(reader, False, lambda *event: None)])
    world.audit.accepting = False
    _, client = world.start()
    assert (client.status, json.loads(client.body)["error"]["code"]) == (503, "audit_unavailable")
    assert client.headers["retry-after"] == "1" and reader.seen == [] and world.engine.calls == []
    assert world.limiter.reservations[0].settled == [None], "it is not charged"
    world.audit.accepting = True
    world.start()
    assert reader.seen != [] and len(world.engine.calls) == 1


PLACES: dict[str, dict[str, Any]] = {
    "a name": {"messages": [{"role": "user", "content": "hi", "name": PHRASE}]},
    "an earlier reasoning": {"messages": [{"role": "assistant", "content": "hi", "reasoning_content": PHRASE}]},
    "an earlier call's function": {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": PHRASE, "arguments": "{}"}}]}]},
    "an old function call": {"messages": [{"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": PHRASE}}]},
    "a field of a part": {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi", "thinking": PHRASE}]}]},
    "a tool's description": {"tools": [{"type": "function", "function": {"name": "f", "description": PHRASE}}]},
    "a parameter's description": {"tools": [{"function": {"parameters": {"properties": {"a": {"description": PHRASE}}}}}]},
    "a value of an enumeration": {"response_format": {"json_schema": {"schema": {"enum": ["a", PHRASE]}}}},
    "a prediction": {"prediction": {"type": "content", "content": PHRASE}},
    "a prediction in parts": {"prediction": {"type": "content", "content": [{"type": "text", "text": PHRASE}]}},
    "a template's argument": {"chat_template_kwargs": {"documents": [PHRASE]}},
    "a split over parts": {"messages": [{"role": "u", "content": [{"type": "text", "text": "hi"}, {"type": "text", "text": PHRASE}]}]},
    "a key named data": {"chat_template_kwargs": {"data": PHRASE}},
}


@pytest.mark.parametrize("place", PLACES)
def test_every_text_that_can_reach_a_model_is_inspected(place: str) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **PLACES[place]}
    world = World(request=[deny(mask=False)])
    _, client = world.start(json.dumps(body).encode())
    assert client.status == 400 and json.loads(client.body)["error"]["code"] == "words"
    assert world.engine.calls == []
    world = World(request=[deny(mask=True)])
    world.start(json.dumps(body).encode())
    (call,) = world.engine.calls
    assert json.loads(call.request_body) == json.loads(json.dumps(body).replace(PHRASE, MASKED))


def test_a_name_of_a_field_is_inspected_and_never_rewritten() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {PHRASE: {"type": "string"}}}}}]
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": tools}).encode()
    for mask in (True, False):
        world = World(request=[deny(mask=mask)])
        _, client = world.start(body)
        assert client.status == 400 and world.engine.calls == []


@pytest.mark.parametrize(
    "more",
    [
        {"messages": [{"role": PHRASE, "content": "hi"}]},
        {"messages": [{"role": "user", "content": [{"type": PHRASE, "text": "hi"}]}]},
        {PHRASE: 1},
    ],
    ids=["role", "kind of a part", "field"],
)
def test_names_that_templates_and_engines_read_are_inspected(more: dict[str, Any]) -> None:
    world = World(request=[deny(mask=False)])
    world.snapshot.models["m"].spec = msgspec.structs.replace(world.snapshot.models["m"].spec, unknown_fields="forward")
    _, client = world.start(json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], **more}).encode())
    assert client.status == 400 and json.loads(client.body)["error"]["code"] == "words" and world.engine.calls == []


def test_a_request_that_is_held_says_so() -> None:
    world = World(request=[Guarded(Scripted(Verdict("hold", "scripted", "ask-7")), False, lambda *event: None)])
    _, client = world.start()
    assert client.status == 409
    assert client.headers["x-should-retry"] == "false"


def whole(answer: dict[str, Any], *guardrails: Guardrail) -> tuple[Client, World]:
    world = World(response=guardrails)
    _, client = world.start()
    world.call.answer(json.dumps(answer).encode())
    return client, world


def test_a_whole_answer_is_rewritten() -> None:
    answer = {
        "id": "c",
        "choices": [
            {
                "index": 0,
                "message": {
                    "content": "a red falcon",
                    "reasoning": "red falcon?",
                    "tool_calls": [{"function": {"name": "f", "arguments": '{"q":"red falcon"}'}}],
                },
                "logprobs": {"content": [{"token": "falcon"}]},
            }
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2},
    }
    client, world = whole(answer, deny(mask=True))
    assert b"falcon" not in client.body
    assert client.headers["content-length"] == str(len(client.body))
    choice = json.loads(client.body)["choices"][0]
    assert choice["message"]["content"] == f"a {MASKED}"
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": json.dumps({"q": MASKED}, separators=(",", ":"))}
    assert world.outcome.guardrail == "words"
    assert world.outcome.completion_tokens == 2


def test_a_whole_answer_that_is_clean_is_forwarded_with_all_its_fields() -> None:
    world = World(response=[deny(mask=True)])
    _, client = world.start()
    world.call.answer(b'{ "choices" : [ {"message": {"content": "fine"}} ], "model":null }')
    assert client.body == b'{"model":null,"choices":[{"message":{"content":"fine"}}]}'
    _, client = world.start()
    body = b'{ "choices" : [ {"message": {"content": "fine"}} ], "usage": {"cost": 1} }'
    world.call.answer(body)
    assert client.body == body


def test_a_blocked_answer_is_charged() -> None:
    answer = {"choices": [{"message": {"content": PHRASE}}], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}
    client, world = whole(answer, deny(mask=False))
    assert client.status == 400
    assert b"falcon" not in client.written
    usage = world.limiter.reservations[0].settled[0]
    assert usage is not None and usage.completion_tokens == 2


@pytest.mark.parametrize("body", [b"red falcon", b'["red falcon"]', b"\xff", b'{"choices":"\xff"}', b'{"a":-1e999}'])
def test_an_answer_that_cannot_be_read_is_not_passed_on(body: bytes) -> None:
    world = World(response=[deny(mask=True)])
    _, client = world.start()
    world.call.answer(body)
    assert client.status == 502
    assert b"falcon" not in client.written


@pytest.mark.parametrize(
    ("verdict", "expected"), [(ALLOW, False), (Verdict("allow", "x"), False), (Verdict("rewrite", "x", "", ("t",)), True)]
)
def test_verdicts_that_pass(verdict: Verdict, expected: bool) -> None:
    assert raise_verdict(verdict, "n") is expected


def test_a_block_names_its_guardrail() -> None:
    with pytest.raises(GuardrailViolation) as caught:
        raise_verdict(Verdict("block"), "named")
    assert caught.value.code == "named"


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        (b'{"model":"m","prompt":[1,2]}', True),
        (b'{"model":"m","prompt":[[1],[2]]}', True),
        (b'{"model":"m","prompt":["a",[2]]}', True),
        (b'{"model":"m","prompt":["a","b"]}', False),
        (b'{"model":"m","prompt":"a"}', False),
    ],
)
def test_token_ids_are_recognised_so_that_they_can_be_refused(body: bytes, tokens: bool) -> None:
    found = parse(b"/v1/completions", body, {})
    assert bool(found.api.unreadable(found)) is tokens


# --- what engines may not slip past the guardrails of a stream


def test_a_phrase_is_found_though_every_chunk_has_a_finish_reason() -> None:
    data = chunk("a red ", finish="stop") + chunk("fal", finish="stop") + chunk("con b", finish="stop") + DONE
    client, _ = stream([deny(mask=True)], [data])
    assert text_of(client) == f"a {MASKED} b"
    reasons = [e["choices"][0]["finish_reason"] for e in documents(client) if e["choices"][0].get("finish_reason")]
    assert reasons and set(reasons) == {"stop"}


def test_what_is_held_after_a_first_finish_is_not_lost() -> None:
    client, _ = stream([deny(mask=True)], [chunk("a", finish="stop") + chunk(" red") + DONE])
    assert text_of(client) == "a red"


def test_a_finish_reason_follows_the_text_that_was_held() -> None:
    client, _ = stream([deny(mask=True)], [chunk("a red") + chunk(None, finish="stop") + USAGE + DONE])
    assert text_of(client) == "a red"
    last = documents(client)[-1]["choices"][0]
    assert last["finish_reason"] == "stop" and last["delta"]["content"] == "red"


def test_choices_finish_by_themselves() -> None:
    both = {"choices": [{"index": n, "delta": {"content": "x red"}, "finish_reason": "stop" if n else None} for n in (0, 1)]}
    client, _ = stream([deny(mask=True)], [b"data: %b\n\n" % json.dumps(both).encode() + chunk(" falcon", finish="stop") + DONE])
    found: dict[int, str] = {0: "", 1: ""}
    for event in documents(client):
        for choice in event["choices"]:
            found[choice["index"]] += choice["delta"].get("content", "")
    assert found == {0: f"x {MASKED}", 1: "x red"}


@pytest.mark.parametrize("line", [b": red falcon", b"event: red falcon", b"id: red falcon", b"retry: 5", b"red falcon"])
def test_nothing_of_an_event_passes_unread(line: bytes) -> None:
    client, _ = stream([deny(mask=True)], [line + b"\n" + chunk("hello") + line + b"\n\n" + chunk(None, finish="stop") + DONE])
    assert text_of(client) == "hello"
    assert b"falcon" not in client.body and b"retry" not in client.body


def test_a_byte_order_mark_drops_no_event() -> None:
    client, _ = stream([deny(mask=True)], [b"\xef\xbb\xbf" + chunk("a red falcon") + chunk(None, finish="stop") + DONE])
    assert text_of(client) == f"a {MASKED}"


@pytest.mark.parametrize("choices", ['{"a":1}', '"red"', "5", '["red"]', "true"])
def test_choices_that_cannot_be_read_end_the_stream(choices: str) -> None:
    client, _ = stream([deny(mask=True)], [b'data: {"choices":%b}\n\n' % choices.encode()])
    assert b'"engine_failed"' in client.body


# --- one scan for several guardrails


class Counting(Scripted):
    """A guardrail with a trigger."""

    def __init__(self, trigger: str, verdict: Verdict = ALLOW) -> None:
        super().__init__(verdict)
        self.trigger = trigger


def filtered(*guardrails: Scripted, text: str) -> tuple[Client, World, list[Guarded]]:
    """A request through guardrails whose triggers are searched for in one scan."""
    made = [Guarded(one, False, lambda *event: None) for one in guardrails]
    world = World(request=made)
    world.snapshot.prefilter = Prefilter([one.trigger for one in made if one.triggered])
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()
    _, client = world.start(body)
    return client, world, made


def test_a_text_without_triggers_is_counted_as_allowed_by_each_and_read_by_none() -> None:
    one, two = Counting("falcon"), Counting("badger")
    _, world, made = filtered(one, two, text="a plain text")
    assert one.seen == two.seen == []
    assert [guarded.tally.allowed for guarded in made] == [1, 1]
    assert made[0].tally.ns > 0 and made[1].tally.ns == 0
    assert world.engine.calls


def test_a_text_with_one_trigger_is_read_by_all() -> None:
    one, two = Counting("falcon"), Counting("badger")
    _, _, made = filtered(one, two, text="a badger")
    assert one.seen == two.seen == [["a badger"]]
    assert [guarded.tally.allowed for guarded in made] == [1, 1]


def test_a_guardrail_without_a_trigger_reads_everything() -> None:
    one, plain, two = Counting("falcon"), Scripted(), Counting("badger")
    filtered(one, plain, two, text="a plain text")
    assert (one.seen, plain.seen, two.seen) == ([], [["a plain text"]], [])


def test_what_a_guardrail_wrote_is_scanned_again() -> None:
    one, writer, two = Counting("falcon"), Scripted(Verdict("rewrite", "scripted", "", ("a badger",))), Counting("badger")
    filtered(one, writer, two, text="a plain text")
    assert (one.seen, two.seen) == ([], [["a badger"]])


@pytest.mark.parametrize("name", ["layer", "reads", "check_labelled"])
def test_a_guardrail_that_does_more_than_read_all_texts_has_no_trigger(name: str) -> None:
    guardrail = Counting("falcon")
    setattr(guardrail, name, frozenset(("user",)) if name == "reads" else lambda *given: None)
    assert not Guarded(guardrail, False, lambda *event: None).triggered


# --- what comes whole


def named(name: str, index: int | None = 0, **more: Any) -> bytes:
    return chunk(tool_calls=[{**({} if index is None else {"index": index}), "function": {"name": name, "arguments": ""}, **more}])


def test_names_of_one_index_are_read_together_too() -> None:
    """Each is read by itself, and clients may put them together."""
    pieces = [named(letter) for letter in PHRASE.replace(" ", "")]
    client, world = stream([deny(mask=True, phrase="redfalcon")], [b"".join(pieces) + chunk(None, finish="tool_calls") + DONE])
    names = [call["function"]["name"] for d in documents(client) for c in d.get("choices", ()) for call in c["delta"]["tool_calls"]]
    assert "".join(names) in "redfalco"
    assert world.outcome.outcome == "failed" and b"must come whole" in client.body


def test_a_name_may_be_said_again_and_engines_may_send_all_calls_under_one_index() -> None:
    data = named("find") + named("find") + named("") + named("open", id="c2") + named("read", None) + named("write", None)
    client, world = stream([deny(mask=True)], [data + chunk(None, finish="tool_calls") + DONE])
    assert world.outcome.outcome == "ok" and client.body.count(b'"name"') == 6


def test_names_in_a_stream_have_a_bound() -> None:
    client, world = stream([deny(mask=True)], [*[named("f", number) for number in range(1100)], DONE])
    assert world.outcome.outcome == "failed" and b"more than 1024 names" in client.body
