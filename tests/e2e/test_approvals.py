"""Tool calls that wait for a person: a gateway with two workers and an engine that calls tools. Each attack of the list in
docs/approvals.md is here: replay, a changed argument, self-approval, expiry, a restart in between, two who use one approval at once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import yaml
from typer.testing import CliRunner, Result

from gateway.app.main import app
from gateway.core.canonical import digest, parsed
from tests.e2e import adminapi
from tests.e2e.harness import OTHER_KEY, Gatehouse, configuration, external
from tests.e2e.test_cli import environment
from tests.fakes.tools import ToolEngine
from tests.waiting import until

NAMES = ("dev", "boss", "ops", "clerk", "bot", "robot")
DEV, BOSS, OPS, CLERK, BOT, ROBOT = (f"{name}-key-0123456789abcdef0123456789abcdef" for name in NAMES)
RULES = [
    {"tool": "delete_*", "of": ["call"], "action": "hold", "reversibility": "irreversible"},
    {"tool": "mail_*", "of": ["result"], "action": "hold"},
    {"tool": "*", "action": "allow"},
]
INNER = [{"tool": "burn", "of": ["call"], "action": "hold"}, {"tool": "*", "action": "allow"}]
ARGUMENTS = '{"path": "/data/x", "force": true, "n": 1.0}'


@pytest.fixture(scope="module")
def engine() -> Iterator[ToolEngine]:
    running = ToolEngine()
    yield running
    running.close()


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory, engine: ToolEngine) -> tuple[Path, dict[str, Any]]:
    directory = tmp_path_factory.mktemp("approvals")
    short = [{"tool": "wipe", "of": ["call"], "action": "hold"}, {"tool": "*", "action": "allow"}]
    config = configuration(
        directory / "state",
        engines=[external("tools", engine.port)],
        models=[
            {"name": "m1", "pool": ["tools"]},
            {"name": "steps", "pipeline": {"steps": [{"name": "answer", "generate": {"model": "m1"}}]}},
        ],
        roles={"approver": {"permissions": ["admin:approvals:*"]}, "reader": {"permissions": ["admin:approvals:read"]}},
        guardrails=[
            {"name": "tools", "type": "tool_calls", "settings": {"rules": RULES, "approvers": ["role/approver"], "expires": "10m"}},
            {"name": "inner", "type": "tool_calls", "on": ["response"], "models": ["m1"], "settings": {"rules": INNER}},
            {"name": "quick", "type": "tool_calls", "on": ["response"], "settings": {"rules": short, "expires": "1ms"}},
        ],
    )
    config["identity"]["api_keys"]["static"] += [
        {"id": "dev", "key": DEV, "tenant": "acme", "models": ["*"], "roles": ["approver"], "user": "dana"},
        {"id": "boss", "key": BOSS, "tenant": "acme", "models": [], "roles": ["approver"], "user": "boris"},
        {"id": "bot", "key": BOT, "tenant": "acme", "models": ["*"]},
        {"id": "robot", "key": ROBOT, "tenant": "acme", "models": [], "roles": ["approver"]},
        {"id": "clerk", "key": CLERK, "tenant": "acme", "models": [], "roles": ["reader"]},
        {"id": "ops", "key": OPS, "tenant": "ops", "models": [], "roles": ["admin"]},
    ]
    return directory, config


@pytest.fixture(scope="module")
def running(settings: tuple[Path, dict[str, Any]]) -> Iterator[list[Gatehouse]]:
    """The gateway, in a list, so that a test can put another one in its place."""
    directory, config = settings
    there = [Gatehouse(directory, config, arguments=["--workers", "2"]).start()]
    yield there
    there[0].stop()


def ask(gatehouse: Gatehouse, text: str, approval: str = "", key: str = DEV, **fields: Any) -> httpx.Response:
    headers = {"x-gatehouse-approval": approval} if approval else {}
    body = {"model": "m1", "messages": [{"role": "user", "content": text}], **fields}
    with gatehouse.client(key) as client:
        return client.post("/v1/chat/completions", json=body, headers=headers)


def held(gatehouse: Gatehouse, text: str, key: str = DEV, **fields: Any) -> dict[str, Any]:
    response = ask(gatehouse, text, key=key, **fields)
    assert response.status_code == 409 and response.headers["x-should-retry"] == "false", response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code", "approval"}
    assert (error["type"], error["code"]) == ("approval_required", "approval_pending")
    found: dict[str, Any] = error["approval"]
    return found


def decide(gatehouse: Gatehouse, id: str, verb: str = "approve", key: str = BOSS, **body: Any) -> httpx.Response:
    with adminapi.admin(gatehouse, key=key) as client:
        return client.post(f"/approvals/{id}/{verb}", json={"reason": "a test", **body})


def command(tmp_path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env=environment(tmp_path))


def code(response: httpx.Response) -> tuple[int, str]:
    found: dict[str, Any] = response.json()
    return response.status_code, found["code"] if "code" in found else found["error"]["code"]


def test_a_call_is_kept_seen_whole_approved_by_another_and_returned_once(running: list[Gatehouse], engine: ToolEngine) -> None:
    gatehouse, text = running[0], f"call delete_file {ARGUMENTS}"
    before = len(engine.asked)
    approval = held(gatehouse, text)
    id = approval["id"]
    assert approval["tool"] == "delete_file" and approval["arguments_sha256"] == digest(parsed(ARGUMENTS))
    assert approval["expires_at"].endswith("Z")
    assert code(ask(gatehouse, text, id)) == (409, "approval_pending")
    with adminapi.admin(gatehouse, key=CLERK) as client:
        (listed,) = [one for one in client.get("/approvals?state=pending").json()["items"] if one["id"] == id]
        assert listed["requester"]["id"] == "dev" and listed["tools"][0]["reversibility"] == "irreversible"
        assert "/data/x" not in json.dumps(listed) and "calls" not in listed
        shown = client.get(f"/approvals/{id}").json()
        assert shown["calls"][0]["arguments"] == {"path": "/data/x", "force": True, "n": 1.0}
    assert code(decide(gatehouse, id, key=CLERK)) == (403, "policy_denied"), "reading is not deciding"
    assert code(decide(gatehouse, id, key=DEV)) == (403, "self_approval")
    assert code(decide(gatehouse, id, key=OPS)) == (403, "not_an_approver")
    assert code(decide(gatehouse, id, arguments_sha256="0" * 64)) == (403, "approval_mismatch")
    assert code(ask(gatehouse, text, id)) == (409, "approval_pending"), "nothing of that has decided anything"
    approved = decide(gatehouse, id, arguments_sha256=approval["arguments_sha256"])
    assert approved.status_code == 200 and approved.json()["state"] == "approved" and approved.json()["decided_by"] == "acme/boss"
    assert code(decide(gatehouse, id, "deny")) == (409, "already_decided")
    assert code(ask(gatehouse, text, id, key=OTHER_KEY)) == (403, "approval_unknown")
    assert code(ask(gatehouse, text.replace("/data/x", "/data/y"), id)) == (403, "approval_mismatch")
    assert code(ask(gatehouse, text, id, temperature=0.5)) == (403, "approval_mismatch")
    assert code(ask(gatehouse, text, "apr-nothing")) == (403, "approval_unknown")
    answer = ask(gatehouse, text, id)
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["tool_calls"][0]["function"] == {"name": "delete_file", "arguments": ARGUMENTS}
    assert len(engine.asked) == before + 1, "one call of the engine"
    record = gatehouse.outcome(answer.headers["x-request-id"])
    assert record.get("prompt_tokens", 0) == 0 and record["detail"]["approval"] == id, "not charged a second time"
    assert code(ask(gatehouse, text, id)) == (403, "approval_used")
    with adminapi.admin(gatehouse, key=OPS) as client:
        assert client.get(f"/approvals/{id}").json()["calls"] is None, "erased"
    told = {(f"approval_{what}", "ok") for what in ("asked", "seen", "decided", "returned")}

    def recorded() -> list[tuple[str, str]]:
        mine = [one for one in gatehouse.audit() if one.get("target", "").endswith(id)]
        events = [(one["event"], one.get("outcome", "ok")) for one in mine]
        return events if told <= set(events) else []

    events = until(recorded, what="the records")
    for wanted in told:
        assert events.count(wanted) == 1, (wanted, events)
    assert ("approval_decided", "denied") in events and ("admin.approvals.decide", "ok") in events
    assert "/data/x" not in json.dumps(gatehouse.audit()), "the log has hashes, never arguments"


def test_of_many_that_use_one_approval_at_once_one_gets_the_answer(running: list[Gatehouse], engine: ToolEngine) -> None:
    gatehouse, text = running[0], 'call delete_all {"at": "once"}'
    id = held(gatehouse, text)["id"]
    assert decide(gatehouse, id).status_code == 200
    with ThreadPoolExecutor(8) as threads:
        found = [code(one) if one.status_code != 200 else (200, "") for one in threads.map(lambda _: ask(gatehouse, text, id), range(8))]
    assert sorted(found) == [(200, "")] + [(403, "approval_used")] * 7


def test_a_stream_shows_what_comes_before_the_call_and_the_retry_streams_the_rest(running: list[Gatehouse], engine: ToolEngine) -> None:
    gatehouse, messages = running[0], [{"role": "user", "content": f"call delete_file {ARGUMENTS}"}]
    client = openai.OpenAI(base_url=f"{gatehouse.url}/v1", api_key=DEV, max_retries=2)
    seen = ""
    before = len(engine.asked)
    with pytest.raises(openai.APIError) as refused:
        for event in client.chat.completions.create(model="m1", messages=messages, stream=True):  # type: ignore[call-overload]
            assert not event.choices[0].delta.tool_calls
            seen += event.choices[0].delta.content or ""
    assert seen == "I will."
    approval: Any = refused.value.body["approval"]  # type: ignore[index,call-overload]
    with pytest.raises(openai.ConflictError):
        client.chat.completions.create(model="m1", messages=messages, extra_headers={"x-gatehouse-approval": approval["id"]})  # type: ignore[call-overload]
    assert len(engine.asked) == before + 1, "an official client does not try again by itself"
    assert decide(gatehouse, approval["id"]).status_code == 200
    arguments = text = ""
    retry = client.chat.completions.create(  # type: ignore[call-overload]
        model="m1", messages=messages, stream=True, extra_headers={"x-gatehouse-approval": approval["id"]}
    )
    for event in retry:
        for choice in event.choices:
            text += choice.delta.content or ""
            for call in choice.delta.tool_calls or ():
                arguments += call.function.arguments or ""
    assert (text, arguments, len(engine.asked)) == ("I will.", ARGUMENTS, before + 1)
    raw = ask(gatehouse, messages[0]["content"], stream=True).text
    assert "delete_file" not in raw.replace('"tool":"delete_file"', "").replace("tool 'delete_file'", "") and raw.endswith(
        "data: [DONE]\n\n"
    )
    id = json.loads(raw.split("data: ")[-2])["error"]["approval"]["id"]
    assert decide(gatehouse, id).status_code == 200
    whole = ask(gatehouse, messages[0]["content"], id).json()["choices"][0]
    assert whole["message"]["tool_calls"][0]["function"]["arguments"] == ARGUMENTS and whole["finish_reason"] == "tool_calls"


ASKED: list[dict[str, Any]] = [{}, {"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}]


@pytest.mark.parametrize("first", ASKED)
@pytest.mark.parametrize("retry", ASKED)
def test_the_retry_is_told_the_usage_as_it_asks_for_it(running: list[Gatehouse], first: dict[str, Any], retry: dict[str, Any]) -> None:
    text = "call delete_file " + json.dumps({"asked": [first, retry]})
    id = re.search("apr-[0-9a-f]+", ask(running[0], text, **first).text)
    assert id is not None and decide(running[0], id[0]).status_code == 200
    again = ask(running[0], text, id[0], **retry)
    events = [json.loads(line[6:]) for line in again.text.splitlines() if line.startswith("data: {")] or [again.json()]
    told = [bool(event.get("usage")) for event in events]
    assert (any(told), told[-1]) == ((True, True) if retry != {"stream": True} else (False, False))
    assert again.text.endswith("data: [DONE]\n\n") == bool(retry)


@pytest.mark.parametrize("stream", [False, True])
def test_a_pipeline_waits_for_what_its_own_guardrail_holds_in_the_last_step(
    running: list[Gatehouse], engine: ToolEngine, stream: bool
) -> None:
    text, before = f'call delete_file {{"path": "/data/x", "stream": {json.dumps(stream)}}}', len(engine.asked)
    first = ask(running[0], text, model="steps", stream=stream)
    id = re.search("apr-[0-9a-f]+", first.text)
    assert id is not None and "approval_pending" in first.text and "/data/x" not in first.text
    assert decide(running[0], id[0]).status_code == 200
    again = ask(running[0], text, id[0], model="steps", stream=stream)
    assert again.status_code == 200 and "delete_file" in again.text and len(engine.asked) == before + 1
    assert code(ask(running[0], text, id[0], model="steps")) == (403, "approval_used")


def test_a_pipeline_cannot_wait_for_what_only_the_model_of_a_step_holds(running: list[Gatehouse]) -> None:
    assert held(running[0], "call burn {}")["tool"] == "burn"
    refused = ask(running[0], "call burn {}", model="steps")
    assert code(refused) == (400, "inner") and "which a step of a pipeline cannot wait for" in refused.text


def test_what_is_denied_or_expired_is_refused_and_erased(running: list[Gatehouse]) -> None:
    gatehouse, text = running[0], 'call delete_file {"a": 1}'
    id = held(gatehouse, text)["id"]
    assert decide(gatehouse, id, "deny").json()["state"] == "denied"
    assert code(ask(gatehouse, text, id)) == (403, "approval_denied")
    late = held(gatehouse, "call wipe {}")["id"]
    until(lambda: code(ask(gatehouse, "call wipe {}", late)) == (403, "approval_expired"), what="the expiry")
    assert code(decide(gatehouse, late, key=OPS)) == (409, "approval_expired")
    until(lambda: gatehouse.metric("gatehouse_approval_events_total", event="expired") >= 1, what="the sweep", seconds=30)
    with adminapi.admin(gatehouse, key=OPS) as client:
        assert {client.get(f"/approvals/{one}").json()["calls"] is None for one in (id, late)} == {True}
        assert client.get("/approvals?tenant=globex").json()["items"] == []


def test_a_halt_between_the_approval_and_the_retry_counts(running: list[Gatehouse]) -> None:
    gatehouse, text = running[0], 'call delete_file {"b": 1}'
    id = held(gatehouse, text)["id"]
    assert decide(gatehouse, id).status_code == 200
    with adminapi.admin(gatehouse, key=OPS) as client:
        assert client.post("/halts?wait=60", json={"target": "key/dev", "reason": "a test"}).status_code == 201
        assert code(ask(gatehouse, text, id)) == (403, "halted")
        assert client.delete("/halts/key/dev?wait=60").status_code == 200
    until(lambda: ask(gatehouse, "hello").status_code == 200, what="the end of the halt")
    assert ask(gatehouse, text, id).status_code == 200


def test_a_key_without_a_user_decides_for_no_other_of_its_tenant(running: list[Gatehouse]) -> None:
    gatehouse, text = running[0], 'call delete_file {"c": 1}'
    persons = held(gatehouse, text)["id"]
    assert code(decide(gatehouse, persons, key=ROBOT)) == (403, "self_approval"), "Dana may hold it"
    id = held(gatehouse, text, key=BOT)["id"]
    assert code(decide(gatehouse, id, key=ROBOT)) == (403, "self_approval")
    assert decide(gatehouse, id).status_code == 200 and ask(gatehouse, text, id, key=BOT).status_code == 200


def test_what_somebody_asked_who_is_stopped_is_not_approved(running: list[Gatehouse]) -> None:
    gatehouse, text = running[0], 'call delete_file {"d": 1}'
    id = held(gatehouse, text)["id"]
    with adminapi.admin(gatehouse, key=OPS) as client:
        assert client.post("/keys/dev/suspend?wait=60", json={"reason": "a test"}).is_success
        assert code(decide(gatehouse, id)) == (403, "requester_stopped")
        assert code(ask(gatehouse, text, id)) == (403, "suspended")
        assert client.post("/keys/dev/resume?wait=60").is_success
    until(lambda: decide(gatehouse, id).status_code == 200, what="the end of the suspension")
    assert ask(gatehouse, text, id).status_code == 200


def test_what_a_revoked_key_asked_is_not_approved(running: list[Gatehouse]) -> None:
    gatehouse, text = running[0], 'call delete_file {"e": 1}'
    with adminapi.admin(gatehouse, key=OPS) as client:
        made = client.post("/keys?wait=60", json={"tenant": "acme", "models": ["*"]}).json()
        id = held(gatehouse, text, key=made["secret"])["id"]
        assert client.post(f"/keys/{made['id']}/revoke?wait=60").is_success
    assert code(decide(gatehouse, id)) == (403, "requester_stopped")
    assert decide(gatehouse, id, "deny").json()["state"] == "denied"


@pytest.mark.parametrize("model", ["m1", "steps"])
def test_results_that_a_request_brings_wait_before_an_engine_sees_them(running: list[Gatehouse], engine: ToolEngine, model: str) -> None:
    gatehouse = running[0]
    call = {"id": "c1", "type": "function", "function": {"name": "mail_read", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "read"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "forward everything"},
    ]
    before = len(engine.asked)
    approval = held(gatehouse, "", messages=messages, model=model)
    assert approval["tool"] == "mail_read" and len(engine.asked) == before
    with adminapi.admin(gatehouse, key=BOSS) as client:
        shown = client.get(f"/approvals/{approval['id']}").json()
    assert shown["kind"] == "request" and shown["calls"][0]["arguments"] == "forward everything"
    assert decide(gatehouse, approval["id"]).status_code == 200
    answer = ask(gatehouse, "", approval["id"], messages=messages, model=model)
    assert answer.json()["choices"][0]["message"]["content"] == "Done."
    assert len(engine.asked) == before + 1
    assert code(ask(gatehouse, "", approval["id"], messages=messages, model=model)) == (403, "approval_used")


def reloaded(gatehouse: Gatehouse, config: dict[str, Any]) -> None:
    """Puts another configuration in force in every worker."""
    gatehouse.file.write_text(yaml.safe_dump(config))
    with adminapi.admin(gatehouse, key=OPS) as client:
        done = client.post("/config/reload")
        assert done.is_success, done.text
        until(lambda: all(one["lag"] == 0 for one in client.get("/workers").json()["items"]), what="the workers")


@pytest.mark.parametrize("stream", [False, True])
def test_guardrails_that_a_reload_brings_read_what_waits(
    running: list[Gatehouse], settings: tuple[Path, dict[str, Any]], engine: ToolEngine, stream: bool
) -> None:
    gatehouse, config = running[0], settings[1]
    text = f'call delete_file {{"reload": {json.dumps(stream)}}}'
    first = ask(gatehouse, text, stream=stream)
    found = re.search("apr-[0-9a-f]+", first.text)
    assert found is not None, first.text
    id, before = found[0], len(engine.asked)
    words = {"name": "words", "type": "denylist", "on": ["response"], "settings": {"phrases": ["I will"], "action": "block"}}
    reads = {"name": "asks", "type": "denylist", "on": ["request"], "settings": {"phrases": ["delete_file"], "action": "block"}}
    try:
        reloaded(gatehouse, {**config, "guardrails": [*config["guardrails"], words]})
        assert decide(gatehouse, id).status_code == 200
        for again in (False, True):
            refused = ask(gatehouse, text, id, stream=again)
            assert code(refused) == (400, "words") and "I will" not in refused.text
        reloaded(gatehouse, {**config, "guardrails": [*config["guardrails"], reads]})
        assert code(ask(gatehouse, text, id)) == (400, "asks")
        masks = {**words, "settings": {"phrases": ["will"], "action": "mask", "replacement": "may"}}
        reloaded(gatehouse, {**config, "guardrails": [*config["guardrails"], masks]})
        passed = ask(gatehouse, text, id)
        message = passed.json()["choices"][0]["message"]
        assert message["content"] == "I may." and message["tool_calls"][0]["function"]["name"] == "delete_file"
    finally:
        reloaded(gatehouse, config)
    assert code(ask(gatehouse, text, id)) == (403, "approval_used") and len(engine.asked) == before


def test_approvers_are_those_that_a_reload_names(running: list[Gatehouse], settings: tuple[Path, dict[str, Any]]) -> None:
    gatehouse, config = running[0], settings[1]
    first, second, third = (held(gatehouse, f'call delete_file {{"approvers": {number}}}')["id"] for number in range(3))
    tools, *others = config["guardrails"]
    try:
        reloaded(gatehouse, {**config, "guardrails": [{**tools, "settings": {**tools["settings"], "approvers": ["role/admin"]}}, *others]})
        with adminapi.admin(gatehouse, key=OPS) as client:
            assert client.get(f"/approvals/{first}").json()["approvers"] == ["role/admin"]
            assert {one["id"]: one["approvers"] for one in client.get("/approvals").json()["items"]}[first] == ["role/admin"]
        for verb in ("approve", "deny"):
            assert code(decide(gatehouse, first, verb)) == (403, "not_an_approver"), "was one when it was kept"
        assert decide(gatehouse, first, key=OPS).status_code == 200
        reloaded(gatehouse, {**config, "guardrails": others})
        for key in (OPS, BOSS):
            assert code(decide(gatehouse, second, key=key)) == (403, "not_an_approver")
        assert decide(gatehouse, second, "deny").json()["state"] == "denied"
    finally:
        reloaded(gatehouse, config)
    assert ask(gatehouse, 'call delete_file {"approvers": 0}', first).status_code == 200, "what was decided stays so"
    assert decide(gatehouse, third).status_code == 200


def test_a_model_that_was_removed_meanwhile_answers_nobody(running: list[Gatehouse], settings: tuple[Path, dict[str, Any]]) -> None:
    gatehouse, config, text = running[0], settings[1], 'call delete_file {"f": 1}'
    id = held(gatehouse, text)["id"]
    assert decide(gatehouse, id).status_code == 200
    others = [{**config["models"][0], "name": "m2"}]
    try:
        reloaded(gatehouse, {**config, "models": others, "guardrails": [{**one, "models": ["*"]} for one in config["guardrails"]]})
        assert code(ask(gatehouse, text, id)) == (404, "model_not_found")
        reloaded(gatehouse, {**config, "models": [{**others[0], "aliases": ["m1"]}], "guardrails": config["guardrails"][:1]})
        assert code(ask(gatehouse, text, id)) == (403, "approval_mismatch"), "the name leads to another model now"
    finally:
        reloaded(gatehouse, config)
    assert ask(gatehouse, text, id).status_code == 200


def test_of_two_who_decide_at_once_one_does(running: list[Gatehouse]) -> None:
    gatehouse, text = running[0], 'call delete_file {"g": 1}'
    id = held(gatehouse, text)["id"]
    with ThreadPoolExecutor(8) as threads:
        found = [one.status_code for one in threads.map(lambda number: decide(gatehouse, id, ("approve", "deny")[number % 2]), range(8))]
    assert sorted(found) == [200] + [409] * 7
    assert code(decide(gatehouse, id)) == (409, "already_decided")


def test_operators_work_on_the_command_line_and_a_restart_loses_nothing(
    running: list[Gatehouse], settings: tuple[Path, dict[str, Any]], engine: ToolEngine, tmp_path: Path
) -> None:
    gatehouse, text = running[0], f"call delete_file {ARGUMENTS}"
    id = held(gatehouse, text)["id"]
    before = len(engine.asked)
    access = ["--url", gatehouse.admin_url, "--key", BOSS]
    listed = command(tmp_path, "approvals", "list", *access)
    assert listed.exit_code == 0 and id[:20] in listed.stdout, listed.stderr
    shown = command(tmp_path, "approvals", "show", id, *access, "--output", "json")
    assert json.loads(shown.stdout)["calls"][0]["arguments"]["path"] == "/data/x"
    read = "".join(command(tmp_path, "approvals", "show", id, *access).stdout.split())
    assert "".join(f"arguments={json.dumps(json.loads(ARGUMENTS))} ".split()) in read, "as JSON: no argument passes for another field"
    approved = command(tmp_path, "approvals", "approve", id, "--why", "it is right", *access)
    assert approved.exit_code == 0 and "/data/x" in approved.stderr, approved.stderr
    assert gatehouse.stop() == 0
    directory, config = settings
    running[0] = gatehouse = Gatehouse(directory, config, arguments=["--workers", "2"]).start()
    assert ask(gatehouse, text, id).json()["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == ARGUMENTS
    assert len(engine.asked) == before
    assert code(ask(gatehouse, text, id)) == (403, "approval_used")
