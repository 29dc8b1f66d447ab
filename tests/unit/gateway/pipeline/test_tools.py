"""Tool calls in answers, whole and streamed: what is not allowed never leaves, not even in part; what comes before it does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.plugins import Context
from gateway.core.tools import ToolFinding, ToolUse
from gateway.core.types import ALLOW, Principal
from gateway.pipeline.guarded import Guarded
from gateway.pipeline.held import HOLD_BYTES
from gateway.pipeline.tools import GuardedTools
from policies.guardrails.tool_calls import ToolCallsSettings, build
from tests.unit.gateway.pipeline.test_inspect import MASKED, PHRASE, arguments_of, deny, text_of
from tests.unit.gateway.pipeline.world import DONE, JSON_HEAD, SSE_HEAD, STREAM_BODY, USAGE, Client, World, chunk

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
RULES = [{"tool": "read_*", "action": "allow"}, {"tool": "delete_*", "action": "block"}]
TEXTS = b'{"choices":[{"index":0,"text":"hi"}]}'


def guard(*rules: dict[str, Any], fail_open: bool = False, **settings: Any) -> GuardedTools:
    made = build(msgspec.convert({"rules": list(rules or RULES), **settings}, ToolCallsSettings), Context(name="tools"))
    return GuardedTools("tools", made, fail_open, lambda *event: None)


def call(name: str, arguments: str = "{}", index: int = 0, **more: Any) -> dict[str, Any]:
    return {"index": index, "id": f"c{index}", "type": "function", "function": {"name": name, "arguments": arguments}, **more}


def whole(*calls: dict[str, Any], **message: Any) -> bytes:
    message = {"role": "assistant", "content": None, **({"tool_calls": list(calls)} if calls else {}), **message}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
    return json.dumps({"id": "c", "choices": [choice], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}).encode()


def asked(world: World, body: dict[str, Any] | None = None, answer: bytes | None = None) -> Client:
    _, client = world.start(json.dumps(body or BODY).encode())
    if answer is not None:
        world.call.answer(answer, JSON_HEAD)
    return client


def streamed(world: World, *pieces: bytes, end: bool = True) -> Client:
    _, client = world.start(STREAM_BODY)
    engine = world.call.head(SSE_HEAD)
    for piece in pieces:
        engine.body(piece)
    if end:
        engine.end()
    return client


# --- whole answers


def test_an_allowed_call_passes_and_one_that_is_not_is_refused() -> None:
    world = World(response_tools=[guard()])
    client = asked(world, answer=whole(call("read_file", '{"path":"/x"}')))
    assert client.status == 200 and json.loads(client.body)["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "read_file"
    client = asked(world, answer=whole(call("read_file"), call("delete_file", index=1)))
    assert client.status == 400 and b"delete_file" in client.body and b"read_file" not in client.body
    assert json.loads(client.body)["error"]["code"] == "tools"
    outcome = world.audit.outcomes[-1]
    assert (outcome.outcome, outcome.code, outcome.guardrail) == ("denied", "tools", "tools")
    assert outcome.completion_tokens == 3, "what was generated is charged"
    (noted,) = outcome.detail["tools"]  # type: ignore[index]
    assert (noted["tool"], noted["action"], noted["rule"]) == ("delete_file", "block", 1) and len(noted["sha256"]) == 64


def test_answers_without_calls_pass() -> None:
    world = World(response_tools=[guard()])
    body = whole(content="I would delete_file, but I may not.")
    assert json.loads(asked(world, answer=body).body) == json.loads(body)
    _, client = world.start(b'{"model":"m","prompt":"hi"}', path=b"/v1/completions")
    world.call.answer(TEXTS, JSON_HEAD)
    assert client.body == TEXTS


@pytest.mark.parametrize("body", [b'{"choices":5}', b'{"output":[{"type":"function_call","name":"delete_x"}]}', b"[]", b'{"tool_calls'])
def test_an_answer_that_cannot_be_read_does_not_pass(body: bytes) -> None:
    assert asked(World(response_tools=[guard()]), answer=body).status == 502


def test_what_stands_beside_the_choices_does_not_pass() -> None:
    body = json.loads(whole(content="hi"))
    body["output"] = [{"type": "function_call", "name": "delete_file", "arguments": "{}"}]
    client = asked(World(response_tools=[guard()]), answer=json.dumps(body).encode())
    assert client.status == 200 and b"delete_file" not in client.body


def test_calls_are_judged_after_texts_are_rewritten() -> None:
    """A guardrail that rewrites arguments comes first: what is judged is what leaves."""
    seen: list[ToolUse] = []

    class Seeing:
        may_hold, expires, approvers = False, 1.0, ()

        def judge(self, uses: Sequence[ToolUse], caller: Principal, model: str) -> list[ToolFinding]:
            seen.extend(uses)
            return [ToolFinding(use, "allow") for use in uses]

    world = World(response=[deny(mask=True)], response_tools=[GuardedTools("t", Seeing(), False, lambda *event: None)])
    assert asked(world, answer=whole(call("read_file", json.dumps({"q": f"a {PHRASE} b"})))).status == 200
    assert MASKED in seen[0].arguments


@pytest.mark.parametrize("fail_open", [True, False])
def test_a_guardrail_that_fails_denies_unless_it_may_fail(fail_open: bool) -> None:
    class Failing:
        may_hold, expires, approvers = False, 1.0, ()

        def judge(self, uses: Sequence[ToolUse], caller: Principal, model: str) -> list[ToolFinding]:
            raise ZeroDivisionError("boom")

    failures: list[tuple[str, str]] = []
    world = World(response_tools=[GuardedTools("t", Failing(), fail_open, lambda *event: failures.append(event))])
    client = asked(world, answer=whole(call("read_file")))
    assert client.status == (200 if fail_open else 400) and failures == [("t", "open" if fail_open else "closed")]


def test_one_that_monitors_records_and_counts_and_does_nothing() -> None:
    made = build(msgspec.convert({"rules": RULES}, ToolCallsSettings), Context(name="tools"))
    watching = GuardedTools("tools", made, False, lambda *event: None, monitor=True)
    world = World(response_tools=[watching])
    assert asked(world, answer=whole(call("delete_file"))).status == 200
    assert world.outcome.detail["tools"][0]["action"] == "block"  # type: ignore[index]
    assert asked(world, answer=whole(call("read_file"))).status == 200
    assert (watching.tally.verdicts, watching.tally.allowed) == ({("block", "pass"): 1}, 1)


def test_one_that_does_not_concern_the_caller_is_not_asked() -> None:
    made = build(msgspec.convert({"rules": RULES}, ToolCallsSettings), Context(name="tools"))
    for tenant, status in (("acme", 400), ("other", 200)):
        scoped = GuardedTools("tools", made, False, lambda *event: None, concerns=lambda caller, tenant=tenant: caller.tenant == tenant)  # type: ignore[misc]
        assert asked(World(response_tools=[scoped]), answer=whole(call("delete_file"))).status == status


# --- requests


def test_what_a_request_offers_and_brings_is_judged() -> None:
    rules = [{"tool": "shell", "of": ["definition"], "action": "block"}, {"tool": "mail", "of": ["result"], "action": "block"}]
    world = World(request_tools=[guard(*rules)])
    offered = {**BODY, "tools": [{"type": "function", "function": {"name": "shell"}}]}
    client = asked(world, offered)
    assert (client.status, json.loads(client.body)["error"]["type"]) == (400, "guardrail_violation") and not world.engine.calls
    brought = [
        *BODY["messages"],
        {"role": "assistant", "tool_calls": [call("mail")]},
        {"role": "tool", "tool_call_id": "c0", "content": "x"},
    ]
    assert asked(world, {**BODY, "messages": brought}).status == 400
    assert asked(world, {**BODY, "tools": [{"type": "function", "function": {"name": "other"}}]}, whole(content="ok")).status == 200


# --- streams


def piece(*calls: dict[str, Any], finish: str | None = None) -> bytes:
    return chunk(None, finish=finish, tool_calls=list(calls))


def test_what_comes_before_a_call_flows_and_the_call_leaves_only_when_it_is_judged() -> None:
    world = World(response_tools=[guard()])
    _, client = world.start(STREAM_BODY)
    engine = world.call.head(SSE_HEAD).body(chunk("let me ") + chunk("look"))
    assert text_of(client) == "let me look"
    engine.body(piece(call("read_file", '{"pa'))).body(chunk(" now"))
    assert b"read_file" not in client.body and text_of(client) == "let me look"
    engine.body(piece({"index": 0, "function": {"arguments": 'th":"/x"}'}}) + chunk(None, finish="tool_calls") + USAGE + DONE)
    assert b"read_file" not in client.body
    engine.end()
    assert client.complete and client.body.endswith(DONE) and arguments_of(client) == '{"path":"/x"}'
    assert text_of(client) == "let me look now" and world.outcome.completion_tokens == 3


@pytest.mark.parametrize("held", [False, True])
def test_a_call_that_is_not_allowed_never_leaves_a_stream(held: bool) -> None:
    class Holding:
        name, holds = "texts", True

        def check(self, texts: Sequence[str]) -> Any:
            return ALLOW

        def stream(self) -> None:
            return None

    guardrails = [Guarded(Holding(), False, lambda *event: None)] if held else []  # type: ignore[arg-type]
    world = World(response=guardrails, response_tools=[guard()])
    client = streamed(world, chunk("well "), piece(call("delete_", '{"a":1')), piece({"index": 0, "function": {"name": "file"}}) + DONE)
    assert b"delete" not in client.body.replace(b"delete_file' in a way", b"") and client.body.endswith(DONE)
    assert b"guardrail_violation" in client.body and text_of(client) == ("" if held else "well ")
    assert (world.outcome.outcome, world.outcome.status, world.outcome.code) == ("denied", 200, "tools")
    client = streamed(world, chunk("well "), piece(call("read_file")) + DONE)
    assert text_of(client) == "well " and b"read_file" in client.body and client.complete


@given(st.data())
def test_however_a_stream_is_cut_no_part_of_a_blocked_call_leaves(data: st.DataObject) -> None:
    events = chunk("fine ") + piece(call("delete_file", '{"path":"/secret"}')) + chunk("more") + chunk(None, finish="tool_calls") + DONE
    cuts = sorted(data.draw(st.lists(st.integers(0, len(events)), max_size=6)))
    pieces = [events[a:b] for a, b in zip([0, *cuts], [*cuts, len(events)], strict=True) if a < b]
    client = streamed(World(response_tools=[guard()]), *pieces)
    assert b"secret" not in client.body and b"more" not in client.body and text_of(client) == "fine "
    assert client.body.count(b"[DONE]") == 1 and client.complete


@pytest.mark.parametrize(
    "event",
    [
        chunk(None, function_call={"name": "delete_file", "arguments": "{}"}),
        rb'data: {"choices":[{"index":0,"delta":{"tool\u005fcalls":[{"index":0,"function":{"name":"delete_file"}}]}}]}' + b"\n\n",
        chunk(None, Tool_Calls=[call("delete_file")]),
        b'data: {"choices":[{"index":0,"message":{"tool_calls":[{"function":{"name":"delete_file","arguments":"{}"}}]}}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"name":"delete_file"}}],"tool_calls":null}}]}\n\n',
        b'event: x\ndata: {"choices":[{"index":0,"delta":\ndata: {"tool_calls":[{"index":0,"function":{"name":"delete_file"}}]}}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{"content":[{"type":"tool_use","name":"delete_file","input":{}}]}}]}\n\n',
    ],
)
def test_a_call_in_any_disguise_does_not_leave(event: bytes) -> None:
    client = streamed(World(response_tools=[guard()]), chunk("ok "), event, DONE)
    assert b'"delete_file"' not in client.body and text_of(client) == "ok "


def test_a_stream_that_breaks_off_behind_a_call_lets_nothing_of_it_out() -> None:
    world = World(response_tools=[guard()])
    client = streamed(world, chunk("a"), piece(call("read_file", '{"pa')), end=False)
    world.call.fail(TimeoutError("gone"))
    assert b"read_file" not in client.body and client.complete


def test_what_is_kept_behind_a_call_is_bounded() -> None:
    world = World(response_tools=[guard()])
    client = streamed(world, piece(call("read_file")), *([chunk("x" * 3_000)] * (HOLD_BYTES // 3_000 + 1)), end=False)
    assert b"engine_failed" in client.body and b"read_file" not in client.body


def test_an_answer_of_a_fallback_passes_the_guardrails_of_both_models() -> None:
    world = World(response_tools=[guard()], fallback=True, fallback_response_tools=[guard({"tool": "*", "action": "allow"})])
    (fallback,) = world.entry.fallbacks
    assert len(fallback.response_tools) == 2 and fallback.response_tools[0] is world.entry.response_tools[0]
