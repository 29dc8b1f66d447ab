"""A held call over every API that has calls (chats, Messages, Responses, each also over a socket), whole and streamed: replay, a changed
argument, another API's retry, self-approval, expiry, and a restart between decision and retry are refused, or lose nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadtests.guardrails.bypass import says
from tests.e2e.harness import Gatehouse, configuration, external
from tests.e2e.test_approvals import BOSS, DEV, OPS, code, decide, reloaded
from tests.e2e.test_sockets import opened
from tests.fakes.tools import ToolEngine
from tests.waiting import until

PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}
TRANSPORTS = ("HTTP", "socket")
ID = re.compile(r"apr-[A-Za-z0-9_-]+")
SECRET = "do-not-show-4711"


@pytest.fixture(scope="module")
def engine() -> Iterator[ToolEngine]:
    running = ToolEngine()
    yield running
    running.close()


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory, engine: ToolEngine) -> tuple[Path, dict[str, Any]]:
    directory = tmp_path_factory.mktemp("approval-apis")
    hold = [{"tool": "delete_*", "of": ["call"], "action": "hold"}, {"tool": "*", "action": "allow"}]

    def guard(name: str, expires: str) -> dict[str, Any]:
        return {"name": name, "type": "tool_calls", "models": [name], "on": ["response"], "settings": {"rules": hold, "expires": expires}}

    config = configuration(
        directory / "state",
        engines=[external("tools", engine.port, slots=16)],
        models=[{"name": name, "pool": ["tools"]} for name in ("m1", "quick")],
        roles={"approver": {"permissions": ["admin:approvals:*"]}},
        guardrails=[guard("m1", "30m"), guard("quick", "1ms")],
    )
    config["identity"]["api_keys"]["static"] += [
        {"id": "dev", "key": DEV, "tenant": "acme", "models": ["*"], "roles": ["approver"], "user": "dana"},
        {"id": "boss", "key": BOSS, "tenant": "acme", "models": [], "roles": ["approver"], "user": "boris"},
        {"id": "ops", "key": OPS, "tenant": "ops", "models": [], "roles": ["admin"]},
    ]
    return directory, config


@pytest.fixture(scope="module")
def running(settings: tuple[Path, dict[str, Any]]) -> Iterator[list[Gatehouse]]:
    there = [Gatehouse(*settings).start()]
    yield there
    there[0].stop()


def body(api: str, text: str, stream: bool, model: str) -> dict[str, Any]:
    made: dict[str, Any] = {"model": model, "stream": stream}
    if api == "responses":
        return {**made, "input": text, "store": False}
    more = {"max_tokens": 99} if api == "messages" else {}
    return {**made, **more, "messages": [{"role": "user", "content": text}]}


def ask(gatehouse: Gatehouse, transport: str, api: str, stream: bool, text: str, approval: str = "", model: str = "m1") -> tuple[int, str]:
    """The status, and everything that came."""
    headers = {"x-gatehouse-approval": approval} if approval else {}
    question = body(api, text, stream, model)
    if transport == "HTTP":
        with gatehouse.client(DEV) as client:
            answer = client.post(PATHS[api], json=question, headers=headers)
            return answer.status_code, answer.text
    with opened(gatehouse, DEV) as socket:
        socket.send(type="request", id=1, path=PATHS[api], body=question, headers=headers)
        found = socket.until_done(1)
    return found[0].get("status", 200), json.dumps([one.get("data", one.get("body")) for one in found])


def shows(said: str, transport: str) -> bool:
    """Whether the call is there with its arguments, whole or in pieces."""
    if transport == "socket":
        return says(json.loads(said), SECRET)
    events = [line[5:].strip() for line in said.splitlines() if line.startswith("data:")]
    return says([json.loads(one) for one in events if one != "[DONE]"] or [json.loads(said)], SECRET)


def held(gatehouse: Gatehouse, transport: str, api: str, stream: bool, text: str, model: str = "m1") -> str:
    status, said = ask(gatehouse, transport, api, stream, text, model=model)
    assert status == (200 if stream else 409) and "approval_pending" in said, said
    assert SECRET not in said, "no part of a held call leaves"
    found = ID.search(said)
    assert found is not None, f"the client is not told which approval it waits for: {said}"
    return found[0]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("api", PATHS)
def test_attacks_are_refused(running: list[Gatehouse], engine: ToolEngine, api: str, transport: str, stream: bool) -> None:
    gatehouse = running[0]
    text = f'call delete_file {{"path": "{SECRET}", "of": "{api}{transport}{stream}"}}'
    id = held(gatehouse, transport, api, stream, text)
    asked = len(engine.asked)

    def refused(why: str, *, text: str = text, api: str = api, id: str = id) -> None:
        status, said = ask(gatehouse, transport, api, stream, text, id)
        assert status == (409 if why == "approval_pending" else 403) and why in said and SECRET not in said, said

    refused("approval_pending")
    assert code(decide(gatehouse, id, key=DEV)) == (403, "self_approval")
    assert code(decide(gatehouse, id, arguments_sha256="0" * 64)) == (403, "approval_mismatch")
    assert decide(gatehouse, id).status_code == 200
    refused("approval_mismatch", text=text.replace(SECRET, SECRET + "9"))
    for other in PATHS:
        if other != api:
            refused("approval_mismatch", api=other)
    refused("approval_unknown", id="apr-nothing")
    status, said = ask(gatehouse, transport, api, stream, text, id)
    assert status == 200 and shows(said, transport) and "delete_file" in said, said
    refused("approval_used")
    assert len(engine.asked) == asked, "no engine was asked again"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("api", PATHS)
def test_the_other_form_gives_the_same_call(running: list[Gatehouse], api: str, stream: bool) -> None:
    text = f'call delete_all {{"path": "{SECRET}", "n": {int(stream)}}}'
    id = held(running[0], "HTTP", api, stream, text)
    assert decide(running[0], id).status_code == 200
    status, said = ask(running[0], "HTTP", api, not stream, text, id)
    assert status == 200 and shows(said, "HTTP") and "delete_all" in said, said


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("api", PATHS)
def test_what_has_expired_gives_nothing(running: list[Gatehouse], api: str, stream: bool) -> None:
    text = f'call delete_old {{"path": "{SECRET}"}}'
    id = held(running[0], "HTTP", api, stream, text, "quick")

    def expired() -> bool:
        status, said = ask(running[0], "HTTP", api, stream, text, id, "quick")
        assert SECRET not in said
        return status == 403 and "approval_expired" in said

    until(expired, what="the expiry")
    assert code(decide(running[0], id)) == (409, "approval_expired")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("api", PATHS)
def test_guardrails_that_a_reload_brings_read_what_waits(
    running: list[Gatehouse], settings: tuple[Path, dict[str, Any]], engine: ToolEngine, api: str, stream: bool
) -> None:
    gatehouse, config = running[0], settings[1]
    text = f'call delete_new {{"path": "{SECRET}", "n": {int(stream)}}}'
    ids = {again: held(gatehouse, "HTTP", api, stream, text) for again in (False, True)}
    asked = len(engine.asked)
    for id in ids.values():
        assert decide(gatehouse, id).status_code == 200

    def with_words(*phrases: str, **settings: Any) -> None:
        words = {"name": "words", "type": "denylist", "on": ["response"], "settings": {"phrases": list(phrases), **settings}}
        reloaded(gatehouse, {**config, "guardrails": [*config["guardrails"], words]})

    try:
        with_words(SECRET, action="block")
        for again, id in ids.items():
            status, said = ask(gatehouse, "HTTP", api, again, text, id)
            assert status == 400 and SECRET not in said, said
        with_words(SECRET, action="mask")
        for again, id in ids.items():
            status, said = ask(gatehouse, "HTTP", api, again, text, id)
            assert status == 400 and SECRET not in said and "removed" not in said, "these arguments were not approved"
        with_words("I will", action="mask")
        for again, id in ids.items():
            status, said = ask(gatehouse, "HTTP", api, again, text, id)
            assert status == 200 and shows(said, "HTTP") and "delete_new" in said and "[removed]" in said and "I will" not in said, said
    finally:
        reloaded(gatehouse, config)
    assert len(engine.asked) == asked


def test_a_restart_between_decision_and_retry_loses_nothing_and_frees_nothing(
    running: list[Gatehouse], settings: tuple[Path, dict[str, Any]], engine: ToolEngine
) -> None:
    text = f'call delete_late {{"path": "{SECRET}"}}'
    kinds = [(api, stream) for api in PATHS for stream in (False, True)]
    approved = {kind: held(running[0], "HTTP", *kind, text) for kind in kinds}
    waiting = {kind: held(running[0], "HTTP", *kind, text) for kind in kinds}
    for id in approved.values():
        assert decide(running[0], id).status_code == 200
    asked = len(engine.asked)
    assert running[0].stop() == 0
    running[0] = Gatehouse(*settings).start()
    for kind in kinds:
        status, said = ask(running[0], "HTTP", *kind, text, waiting[kind])
        assert status == 409 and SECRET not in said, said
        status, said = ask(running[0], "HTTP", *kind, text, approved[kind])
        assert status == 200 and shows(said, "HTTP"), said
        assert ask(running[0], "HTTP", *kind, text, approved[kind])[0] == 403
    assert len(engine.asked) == asked
