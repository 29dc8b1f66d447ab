"""The official OpenAI clients, Python and Node.js, and responses: the same direct and through the gateway; conversations that it keeps."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e import adminapi
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, NARROW_KEY, OTHER_KEY, Gatehouse, configuration, external
from tests.e2e.replicas import replica
from tests.fakes.responses import ANSWER_ID, ResponsesEngine, responses_engine
from tests.integration.postgres import PostgresServer, postgres  # noqa: F401 - a fixture
from tests.waiting import until

CLIENTS = Path(__file__).parents[1] / "clients"
KEPT = {"retention": "1h", "max_bytes": "64KiB", "max_total_bytes": "256KiB"}
FIRST, SECOND = "my name is bob", "what is my name?"
MAIL = "bob@example.com"


@pytest.fixture(scope="module")
def speaking() -> Iterator[ResponsesEngine]:
    with responses_engine() as engine:
        yield engine


@pytest.fixture(scope="module")
def keeping(tmp_path_factory: pytest.TempPathFactory, engine: EngineThread, speaking: ResponsesEngine) -> Iterator[Gatehouse]:
    """m1: passed to an engine that speaks the API; m2: translated; m3: as m1, with a guardrail; workers, which have no store."""
    directory = tmp_path_factory.mktemp("keeping")
    pii = {"name": "pii", "type": "pii", "on": ["request", "response"], "models": ["m3"], "settings": {"entities": {"email": "mask"}}}
    config = configuration(
        directory / "state",
        engines=[external("speaks", speaking.port, slots=64, apis=["responses"]), external("chats", engine.port, slots=64)],
        models=[{"name": "m1", "pool": ["speaks"]}, {"name": "m2", "pool": ["chats"]}, {"name": "m3", "pool": ["speaks"]}],
        guardrails=[pii],
        responses=KEPT,
        limits=[{"name": "few", "match": {"key": "guesser"}, "requests": {"rate": 3, "per": "1h"}}],
    )
    static = config["identity"]["api_keys"]["static"]
    static.append({"id": "guesser", "key": "guesser" + KEY, "tenant": "acme", "models": ["*"]})
    static.append({"id": "second", "key": "second" + KEY, "tenant": "acme", "models": ["*"]})
    with Gatehouse(directory, config, arguments=["--workers", "2"]) as running:
        yield running


def python(url: str, key: str = KEY) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=60)


def node(url: str, scenario: str, key: str = KEY, **arguments: Any) -> dict[str, Any]:
    environ = {**os.environ, "OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": key}
    run = subprocess.run(
        ["node", "openai.mjs", scenario, json.dumps(arguments)],
        cwd=CLIENTS,
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    found: dict[str, Any] = json.loads(run.stdout)
    return {key: value for key, value in found.items() if key not in ("seconds", "headers")}


def streamed(client: openai.OpenAI, **params: Any) -> tuple[list[Any], Any]:
    """The events, and the response that they end with."""
    found = list(client.responses.create(stream=True, **params))
    return [event.model_dump(exclude={"response"}) for event in found], found[-1].response  # type: ignore[union-attr]


@pytest.mark.parametrize("model", ["m1", "m3"])
def test_outcomes_are_the_same_direct_and_through(keeping: Gatehouse, speaking: ResponsesEngine, model: str) -> None:
    direct = f"http://127.0.0.1:{speaking.port}"
    params: dict[str, Any] = {"model": model, "input": FIRST, "instructions": "be brief", "store": False}
    with python(direct) as one, python(keeping.url) as other:
        whole, through = one.responses.create(**params), other.responses.create(**params)
        assert (through.output, through.usage, through.status, through.id) == (whole.output, whole.usage, whole.status, ANSWER_ID)
        assert through.output_text == FIRST.upper() and through.store is False
        (events, last), (same, end) = streamed(one, **params), streamed(other, **params)
        assert end.output == last.output and end.usage == last.usage
        assert "".join(event.get("delta", "") for event in same) == "".join(event.get("delta", "") for event in events)
        if model == "m1":
            assert same == events
        assert [event["sequence_number"] for event in same] == list(range(len(same)))
    for scenario in ("response", "stream-response"):
        of_direct, of_gateway = node(direct, scenario, params=params), node(keeping.url, scenario, params=params)
        if model == "m3":
            of_direct.pop("types", None), of_gateway.pop("types", None)
        assert of_direct == of_gateway


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", ["m1", "m2", "m3"])
def test_a_conversation_goes_on_in_python(
    keeping: Gatehouse, engine: EngineThread, speaking: ResponsesEngine, model: str, stream: bool
) -> None:
    def asked(**params: Any) -> Any:
        return streamed(client, **params)[1] if stream else client.responses.create(**params)

    with python(keeping.url) as client:
        first = asked(model=model, input=FIRST)
        assert first.id.startswith("resp_") and first.store is True and first.id != ANSWER_ID
        second = asked(model=model, input=SECOND, previous_response_id=first.id)
        assert second.previous_response_id == first.id and second.id != first.id
        sent = engine.received[-1].json()["messages"] if model == "m2" else speaking.received[-1]["input"]
        assert [turn["role"] for turn in sent] == ["user", "assistant", "user"]
        assert FIRST in json.dumps(sent[0]) and SECOND in json.dumps(sent[2])
        assert first.output_text.strip() in json.dumps(sent[1])
        if model == "m2":
            turns = [{"role": "user", "content": text} for text in (FIRST, SECOND)]
            asked(model=model, input=[turns[0], {"type": "item_reference", "id": first.output[0].id}, turns[1]])
            assert engine.received[-1].json()["messages"] == sent
        items: list[Any] = list(client.responses.input_items.list(second.id, limit=1, order="asc"))
        assert [(one.role, one.content[0].text) for one in items] == [
            ("user", FIRST),
            ("assistant", first.output_text),
            ("user", SECOND),
        ]
        assert items[1].id == first.output[0].id and client.responses.input_items.list(second.id).data == items[::-1]
        third = asked(model=model, input="so?", previous_response_id=second.id, store=False)
        assert third.store is False
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(third.id)
        assert client.responses.retrieve(second.id).output == second.output
        client.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError) as gone:
            client.responses.retrieve(first.id)
        assert gone.value.code == "response_not_found"
        with pytest.raises(openai.NotFoundError) as missing:
            asked(model=model, input="x", previous_response_id=first.id)
        assert missing.value.code == "previous_response_not_found"
        assert asked(model=model, input="and?", previous_response_id=second.id).id


def test_a_conversation_goes_on_in_node(keeping: Gatehouse, speaking: ResponsesEngine) -> None:
    first = node(keeping.url, "stream-response", params={"model": "m1", "input": FIRST})
    assert first["text"] == first["deltas"] == FIRST.upper() and first["types"][-1] == "response.completed"
    second = node(keeping.url, "response", params={"model": "m1", "input": SECOND, "previous_response_id": first["id"]})
    assert second["text"] == f"{FIRST} {FIRST} {SECOND}".upper() and second["previous_response_id"] == first["id"]
    assert node(keeping.url, "kept-response", id=second["id"])["output"] == second["output"]
    assert "error" not in node(keeping.url, "erase-response", id=second["id"])
    assert node(keeping.url, "kept-response", id=second["id"])["error"]["status"] == 404


def test_an_answer_is_its_callers_alone(keeping: Gatehouse) -> None:
    with python(keeping.url) as client:
        mine = client.responses.create(model="m1", input=FIRST).id
        for key in (OTHER_KEY, "second" + KEY, NARROW_KEY):
            with python(keeping.url, key) as stranger:
                answers = stranger.responses
                acts: list[tuple[Callable[..., Any], dict[str, Any]]] = [
                    (answers.retrieve, {"response_id": mine}),
                    (answers.input_items.list, {"response_id": mine}),
                    (answers.delete, {"response_id": mine}),
                    (answers.create, {"model": "m1", "input": "x", "previous_response_id": mine}),
                ]
                for act, params in acts:
                    with pytest.raises(openai.NotFoundError) as refused:
                        act(**params)
                    assert FIRST.upper() not in str(refused.value) and FIRST not in str(refused.value)
        assert client.responses.retrieve(mine).output_text == FIRST.upper()
        assert len(client.responses.input_items.list(mine).data) == 1

    def erasures() -> set[tuple[int, str | None]]:
        return {
            (one["status"], one.get("code")) for one in keeping.audit() if one.get("detail", {}).get("does") == "erase" and "status" in one
        }

    until(lambda: (404, "response_not_found") in erasures(), what="the record of a refusal")


def test_items_are_only_listed(keeping: Gatehouse) -> None:
    with keeping.client() as client:
        mine = client.post("/v1/responses", json={"model": "m1", "input": FIRST}).json()["id"]
        path = f"/v1/responses/{mine}/input_items"
        head = client.head(path)
        assert head.status_code == 200 and head.content == b"" and int(head.headers["content-length"]) > 100
        for method in ("DELETE", "POST"):
            refused = client.request(method, path)
            assert refused.status_code == 405 and refused.headers["allow"] == "GET, HEAD"
        for query in ("limit=0", "limit=101", "limit=x", "order=up", "after=x"):
            refused = client.get(f"{path}?{query}")
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, query.partition("=")[0])
        assert client.get(f"{path}/x").status_code == client.get(f"{path}{path}").status_code == 404
        assert client.get(f"/v1/responses/{mine}").json()["id"] == mine
        refused = client.get(f"/v1/responses/{mine}?stream=true")
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "stream")


def test_what_else_openai_has_does_not_exist(keeping: Gatehouse) -> None:
    with python(keeping.url) as client:
        asks: list[Callable[[], Any]] = [
            lambda: client.responses.compact(model="m1", input="x"),
            lambda: client.images.edit(model="m1", prompt="x", image=("a.png", b"PNG", "image/png")),
            lambda: client.conversations.create(),
        ]
        for act in asks:
            with pytest.raises(openai.NotFoundError) as refused:
                act()
            assert refused.value.code == "not_found" and "There is no /v1/" in refused.value.message


def test_guessing_is_limited(keeping: Gatehouse) -> None:
    with keeping.client("guesser" + KEY) as client:
        found = [client.get(f"/v1/responses/resp_{number:048x}").status_code for number in range(5)]
        asked = client.post("/v1/responses", json={"model": "m1", "input": "x", "previous_response_id": "resp_1"})
    assert found == [404, 404, 404, 429, 429] and asked.status_code == 429


@pytest.mark.parametrize("asks", ["role/chats", "role/tools"])
def test_what_is_kept_is_given_where_its_model_may_be_asked(tmp_path: Path, speaking: ResponsesEngine, asks: str) -> None:
    """Conditions of policies hold for reading, erasing and going on, also by way of another model."""
    inside = 'cidr("10.0.0.0/8").containsIP(source.address)'
    only_from = {"role": "chats", "subjects": ["key/test"], "when": inside if asks == "role/chats" else f"{inside} && !has(request.tools)"}
    config = configuration(
        tmp_path / "state",
        listen={"trusted_peers": ["127.0.0.1"]},
        engines=[external("speaks", speaking.port, slots=64, apis=["responses"])],
        models=[{"name": "m1", "pool": ["speaks"]}, {"name": "m2", "pool": ["speaks"]}],
        responses=KEPT,
        roles={
            "chats": {"permissions": ["infer:chat:model/m1"]},
            "others": {"permissions": ["infer:*:model/m2", "infer:embeddings:model/m1"]},
        },
        bindings=[only_from, {"role": "others", "subjects": ["key/test"]}],
    )
    at_home, away = ({"x-forwarded-for": address} for address in ("10.1.2.3", "192.0.2.1"))
    with Gatehouse(tmp_path, config) as running, running.client(KEY) as client:
        identity = client.post("/v1/responses", json={"model": "m1", "input": FIRST}, headers=at_home).json()["id"]
        path, on = f"/v1/responses/{identity}", {"input": "x", "previous_response_id": identity}
        assert client.post("/v1/responses", json={"model": "m1", **on}, headers=away).status_code == 403
        refused = [client.get(path, headers=away), client.get(f"{path}/input_items", headers=away), client.delete(path, headers=away)]
        refused.append(client.post("/v1/responses", json={"model": "m2", **on}, headers=away))
        assert [answer.status_code for answer in refused] == [404] * 4 and FIRST not in "".join(answer.text for answer in refused)
        assert client.post("/v1/responses", json={"model": "m2", **on}, headers=at_home).status_code == 200
        assert client.get(path, headers=at_home).status_code == client.delete(path, headers=at_home).status_code == 200


def test_guardrails_read_what_was_kept(keeping: Gatehouse, speaking: ResponsesEngine) -> None:
    """What was said without a guardrail is read by the one of the model that goes on."""
    with python(keeping.url) as client:
        first = client.responses.create(model="m1", input=f"write to {MAIL}")
        assert MAIL.upper() in first.output_text
        second = client.responses.create(model="m3", input="whom?", previous_response_id=first.id)
        assert MAIL not in json.dumps(speaking.received[-1]).lower() and json.dumps(speaking.received[-1]).count("[EMAIL]") == 2
        assert MAIL.upper() not in second.output_text


def test_what_is_too_long_is_refused_and_not_kept(keeping: Gatehouse) -> None:
    with python(keeping.url) as client:
        with pytest.raises(openai.BadRequestError) as long:
            client.responses.create(model="m1", input="word " * 10_000)
        assert long.value.code == "response_too_large"
        _, failed = streamed(client, model="m1", input="word " * 10_000)
        assert failed.status == "failed" and failed.error.code == "response_too_large" and not failed.output
        assert client.responses.create(model="m1", input="word " * 10_000, store=False).status == "completed"


def test_where_nothing_is_kept_it_says_so(gatehouse: Gatehouse) -> None:
    with python(gatehouse.url) as client:
        for params in ({"store": True}, {"previous_response_id": "resp_1"}):
            with pytest.raises(openai.BadRequestError) as refused:
                client.responses.create(model="m1", input="x", **params)  # type: ignore[call-overload]
            assert refused.value.code == "unsupported_parameter" and "setting: responses" in refused.value.message
        for call in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list):
            with pytest.raises(openai.NotFoundError) as missing:
                call("resp_1")  # type: ignore[operator]
            assert missing.value.code == "not_found" and "setting: responses" in missing.value.message


def test_replicas_share_them_they_expire_and_shredding_erases_them(
    tmp_path_factory: pytest.TempPathFactory,
    speaking: ResponsesEngine,
    postgres: PostgresServer,  # noqa: F811
) -> None:
    url = postgres.database()
    engines = [external("speaks", speaking.port, slots=64, apis=["responses"])]
    encryption = {"scope": "text", "master": {"file": "master.key"}}
    more: dict[str, Any] = {
        "engines": engines,
        "models": [{"name": "m1", "pool": ["speaks"]}],
        "responses": {**KEPT, "retention": "3s"},
        "audit": {"encryption": encryption, "text": {"record": "both", "when": [{}]}},
    }
    shared = tmp_path_factory.mktemp("master") / "master.key"
    shared.write_text("5" * 64)
    shared.chmod(0o600)
    encryption["master"] = {"file": str(shared)}
    one, other = (replica(tmp_path_factory.mktemp("kept"), speaking.port, url, **more) for _ in range(2))
    with one, other, python(one.url) as here, python(other.url) as there:

        def gone_on() -> str | None:
            """An answer with which the other replica went on; None where the machine stood still until one had ended."""
            begun, first = time.monotonic(), here.responses.create(model="m1", input=FIRST).id
            try:
                second = there.responses.create(model="m1", input=SECOND, previous_response_id=first)
                assert FIRST.upper() in second.output_text and here.responses.retrieve(second.id).output == second.output
            except openai.NotFoundError:
                assert time.monotonic() - begun > 2.5, "it ended before its time"
                return None
            return first

        first: str = until(gone_on, what="a conversation over both")

        def expired() -> bool:
            try:
                here.responses.retrieve(first)
            except openai.NotFoundError:
                return True
            return False

        until(expired, what="the end of an answer's time")
        with pytest.raises(openai.NotFoundError):
            there.responses.create(model="m1", input="x", previous_response_id=first)
        third = here.responses.create(model="m1", input=FIRST).id
        with adminapi.admin(other) as admin:
            plan = admin.get("/audit/data-keys/shred", params={"tenant": "acme"}).json()
            done = admin.post("/audit/data-keys/shred", json={"tenant": "acme", "reason": "gone", "confirm": plan["digest"]})
            assert done.status_code == 200, done.text
        with pytest.raises(openai.NotFoundError):
            here.responses.retrieve(third)
