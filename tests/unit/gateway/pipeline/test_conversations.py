"""Answers that are kept: a request goes on with what its tenant has kept, and with nothing else."""

from __future__ import annotations

import json
from collections.abc import Awaitable
from typing import Any

import msgspec
import pytest

from gateway.core.conversations import AnswerFound, FindAnswer, KeepAnswer, owner_of
from gateway.core.errors import Overloaded, StoreUnavailable
from gateway.core.messages import Done
from gateway.core.specs.responses import ResponsesSpec
from gateway.core.types import Principal
from gateway.core.waiting import Signal
from gateway.pipeline.conversations import MAX_REFERRED
from tests.unit.gateway.pipeline.test_guardrail_table import MAKES, guarded, leaks
from tests.unit.gateway.pipeline.world import DONE, JSON_HEAD, SSE_HEAD, USAGE, Client, World, chunk
from tests.unit.gateway.wire.responses.test_api import chat, response, said, stream

PATH = b"/v1/responses"


class Desk:
    """Keeps in memory, each answer for its tenant."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], KeepAnswer] = {}
        self.error: Exception | None = None

    def keep(self, wanted: KeepAnswer) -> Awaitable[Done]:
        if self.error is None:
            self.kept[(wanted.tenant, wanted.id)] = wanted
        return _done(Done(), self.error)

    def find(self, wanted: FindAnswer) -> Awaitable[AnswerFound]:
        found = self.kept.get((wanted.tenant, wanted.id))
        return _done(AnswerFound() if found is None else AnswerFound(model=found.model, owner=found.owner, said=found.said), self.error)


def _done(value: Any, error: Exception | None) -> Any:
    signal: Signal[Any] = Signal()
    if error is None:
        signal.set(value)
    else:
        signal.fail(error)
    return signal


def made(native: bool, desk: Desk, tenant: str = "acme", caller: str = "k", scope: Any = "caller", **parts: Any) -> World:
    world = World(**parts)
    world.snapshot.spec = msgspec.structs.replace(world.snapshot.spec, responses=ResponsesSpec(scope=scope))
    world.route.apis = ("responses",) if native else ()
    world.plane.conversations = desk
    world.identity.caller = Principal(caller, tenant, "api_key", ("*",))
    return world


def ask(world: World, text: str, **more: Any) -> Client:
    return world.start(json.dumps({"model": "m", "input": text, **more}).encode(), path=PATH)[1]


def first(native: bool, desk: Desk, streamed: bool = False, end: bytes = DONE, **parts: Any) -> str:
    """Asks for something, and returns the identifier of the answer. end: of a stream that is translated."""
    world = made(native, desk, **parts)
    client = ask(world, "my name is bob", **({"stream": True} if streamed else {}))
    if streamed:
        engine = world.call.head(SSE_HEAD)
        if native:
            engine.body(stream("hello", " bob"))
        else:
            for data in (chunk("hello"), chunk(" bob"), chunk(finish="stop"), USAGE, end):
                engine.body(data)
        engine.end()
        found = [json.loads(one.partition(b"data: ")[2]) for one in client.body.split(b"\n\n")[:-1]]
        assert {one["response"]["id"] for one in found if "response" in one} == {found[0]["response"]["id"]}
        assert found[-1]["type"] == "response.completed" and found[-1]["response"]["store"] is True and client.complete
        assert [one["sequence_number"] for one in found] == list(range(len(found)))
        return str(found[0]["response"]["id"])
    world.call.answer(json.dumps(response(said("hello bob"))).encode() if native else chat("hello bob"), JSON_HEAD)
    answer = json.loads(client.body)
    assert answer["store"] is True
    return str(answer["id"])


@pytest.mark.parametrize("reads", [True, False])
def test_an_answer_is_kept_whose_engine_has_left_out_the_end_marker(reads: bool) -> None:
    desk = Desk()
    identity = first(False, desk, True, b"", response=[guarded("denylist")] if reads else [])
    kept = json.loads(desk.kept[("acme", identity)].said.answer)
    assert kept["status"] == "completed" and kept["output"][0]["content"][0]["text"] == "hello bob"


FORMS = [(native, streamed) for native in (True, False) for streamed in (True, False)]


@pytest.mark.parametrize(("native", "streamed"), FORMS)
@pytest.mark.parametrize("reads", [True, False])
def test_a_request_goes_on_with_an_answer_that_was_kept(native: bool, streamed: bool, reads: bool) -> None:
    desk = Desk()
    identity = first(native, desk, streamed, response=[guarded("denylist")] if reads else [])
    assert identity.startswith("resp_") and len(identity) > 40
    kept = desk.kept[("acme", identity)]
    assert json.loads(kept.said.answer)["id"] == identity
    world = made(native, desk)
    client = ask(world, "what is my name?", previous_response_id=identity, store=False)
    sent = json.loads(world.call.request_body)
    turns = sent["input"] if native else sent["messages"]
    assert [turn["role"] for turn in turns] == ["user", "assistant", "user"] and "previous_response_id" not in sent
    assert (
        turns[0]["content"] == "my name is bob" and "hello bob" in json.dumps(turns[1]) and sent.get("store") is (False if native else None)
    )
    world.call.answer(json.dumps(response(said("bob"))).encode() if native else chat("bob"), JSON_HEAD)
    answer = json.loads(client.body)
    assert (answer["previous_response_id"], answer["store"]) == (identity, False) and len(desk.kept) == 1
    assert world.audit.intents[0].detail == {"api": "responses", "previous_response": identity, "kept_as": ""}


@pytest.mark.parametrize("native", [True, False])
def test_a_count_goes_on_with_an_answer_that_was_kept_and_is_kept_itself_by_nobody(native: bool) -> None:
    desk = Desk()
    identity = first(native, desk)
    world = made(native, desk)
    body = {"model": "m", "input": "what is my name?", "previous_response_id": identity}
    _, client = world.start(json.dumps(body).encode(), path=PATH + b"/input_tokens")
    sent = json.loads(world.call.request_body)
    assert len(sent["input"] if native else sent["messages"]) == 3 and not {"previous_response_id", "store"} & set(sent)
    world.call.answer(b'{"input_tokens":31}', JSON_HEAD)
    assert json.loads(client.body) == {"object": "response.input_tokens", "input_tokens": 31} and len(desk.kept) == 1
    assert world.audit.intents[0].detail == {"api": "input_tokens", "previous_response": identity}
    assert [tokens for tokens, *_ in world.limiter.reserved] == [0]


def test_another_tenants_answer_is_as_unknown_as_none() -> None:
    desk = Desk()
    identity = first(True, desk)
    answers = []
    for named in (identity, "resp_" + "0" * 48, "resp_../x", "x"):
        world = made(True, desk, "other")
        client = ask(world, "go on", previous_response_id=named)
        error = json.loads(client.body)["error"]
        assert client.status == 404 and error["code"] == "previous_response_not_found" and not world.engine.calls
        assert len(world.limiter.reservations) == 1, "looking is not free"
        answers.append(error["message"].replace(named, ""))
    assert len(set(answers)) == 1


@pytest.mark.parametrize(("caller", "scope", "status"), [("k", "caller", 200), ("other", "caller", 404), ("other", "tenant", 200)])
def test_another_keys_answer_is_unknown_unless_the_tenant_shares_them(caller: str, scope: str, status: int) -> None:
    desk = Desk()
    identity = first(True, desk)
    world = made(True, desk, caller=caller, scope=scope)
    client = ask(world, "go on", previous_response_id=identity)
    if status == 200:
        world.call.answer(json.dumps(response(said())).encode(), JSON_HEAD)
    assert client.status == status


def test_a_person_goes_on_with_any_of_their_credentials() -> None:
    key, token = (Principal(name, "acme", kind, user="bob") for name, kind in (("k1", "api_key"), ("bob@x", "oidc")))
    assert owner_of(key) == owner_of(token) != owner_of(Principal("bob", "acme", "api_key"))


def test_guardrails_read_the_whole_conversation() -> None:
    desk = Desk()
    value = MAKES["pii"][1]
    world = made(True, desk)
    client = ask(world, f"mail {value}")
    world.call.answer(json.dumps(response(said(value))).encode(), JSON_HEAD)
    identity = json.loads(client.body)["id"]
    world = made(True, desk, request=[guarded("pii")])
    ask(world, "go on", previous_response_id=identity)
    assert not leaks(world.call.request_body.decode(), value) and world.call.request_body.count(b"[EMAIL]") == 2


def test_labels_of_a_conversation_stay_with_it() -> None:
    desk = Desk()
    identity = first(True, desk)
    kept = desk.kept[("acme", identity)]
    desk.kept[("acme", identity)] = msgspec.structs.replace(kept, said=msgspec.structs.replace(kept.said, labels=("secret",)))
    world = made(True, desk)
    exchange, _ = world.start(json.dumps({"model": "m", "input": "x", "previous_response_id": identity}).encode(), path=PATH)
    assert exchange.request is not None and exchange.request.labels == {"secret"}


def test_an_answer_that_cannot_be_kept_is_not_given() -> None:
    desk = Desk()
    desk.error = StoreUnavailable("no store")
    world = made(True, desk)
    client = ask(world, "hi")
    world.call.answer(json.dumps(response(said())).encode(), JSON_HEAD)
    assert client.status == 503 and b"hello" not in client.body
    world = made(True, desk)
    client = ask(world, "hi", stream=True)
    desk.error = Overloaded("full")
    world.call.head(SSE_HEAD).body(stream("hello")).end()
    assert b"response.failed" in client.body and b"response.completed" not in client.body


def test_a_refused_answer_is_not_kept() -> None:
    desk = Desk()
    world = made(True, desk, response=[guarded("denylist")])
    client = ask(world, "hi", stream=True)
    world.call.head(SSE_HEAD).body(stream("fine", again="other")).end()
    assert b"response.failed" in client.body and not desk.kept


def refer(world: World, *identities: str, **more: Any) -> Client:
    """Asks with items of earlier answers by their identifiers, as Vercel's AI SDK does."""
    items: list[dict[str, Any]] = [{"role": "user", "content": "my name is bob", "id": None}]
    items += [{"type": "item_reference", "id": identity} for identity in identities]
    body = {"model": "m", "input": [*items, {"role": "user", "content": "what is my name?"}], **more}
    return world.start(json.dumps(body).encode(), path=PATH)[1]


def kept_items(desk: Desk, identity: str) -> list[dict[str, Any]]:
    return list(json.loads(desk.kept[("acme", identity)].said.items))


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("store", [True, False])
def test_an_item_of_a_kept_answer_may_be_named(streamed: bool, store: bool) -> None:
    desk = Desk()
    identity = first(False, desk, streamed)
    item = kept_items(desk, identity)[-1]
    assert identity.removeprefix("resp_") in item["id"]
    world = made(False, desk)
    client = refer(world, item["id"], store=store)
    turns = json.loads(world.call.request_body)["messages"]
    assert [turn["role"] for turn in turns] == ["user", "assistant", "user"] and "hello bob" in json.dumps(turns[1])
    world.call.answer(chat("bob"), JSON_HEAD)
    answer = json.loads(client.body)
    assert answer["store"] is store and answer["previous_response_id"] is None
    if not store:
        return
    assert kept_items(desk, answer["id"])[1] == item  # itself, not its name
    world, asked = made(False, desk), []
    find = desk.find
    desk.find = lambda wanted: asked.append(wanted.id) or find(wanted)  # type: ignore[assignment, func-returns-value, method-assign]
    refer(world, item["id"], item["id"], answer["output"][0]["id"])
    assert len(json.loads(world.call.request_body)["messages"]) == 5 and asked == [answer["id"]]


def test_a_guardrail_reads_the_items_that_are_named() -> None:
    desk = Desk()
    world = made(False, desk)
    client = ask(world, "hello")
    world.call.answer(chat("write to bob@example.com"), JSON_HEAD)
    world = made(False, desk, request=[guarded("pii")])
    refer(world, json.loads(client.body)["output"][0]["id"])
    assert b"write to" in world.call.request_body and b"bob@example.com" not in world.call.request_body


@pytest.mark.parametrize("who", [{"caller": "other"}, {"tenant": "globex"}])
def test_an_item_is_its_callers_alone(who: dict[str, Any]) -> None:
    desk = Desk()
    item = kept_items(desk, first(False, desk))[-1]
    client = refer(made(False, desk, **who), item["id"])
    error = json.loads(client.body)["error"]
    assert (client.status, error["code"], error["param"]) == (404, "item_not_found", "input") and "store: false" in error["message"]


@pytest.mark.parametrize("name", ["msg_1", "msg_" + "0" * 48 + "_0", "rs_" + "g" * 48, "resp_" + "0" * 48])
def test_an_item_that_is_not_kept_is_not_found(name: str) -> None:
    client = refer(made(False, Desk()), name)
    assert (client.status, json.loads(client.body)["error"]["code"]) == (404, "item_not_found")


def test_the_items_that_are_named_are_bounded() -> None:
    desk = Desk()
    item = kept_items(desk, first(False, desk))[-1]
    world = made(False, desk)
    world.snapshot.spec = msgspec.structs.replace(world.snapshot.spec, responses=ResponsesSpec(max_bytes=1024))
    client = refer(world, *[item["id"]] * 20)
    assert client.status == 400 and "responses.max_bytes" in json.loads(client.body)["error"]["message"]
    others = [kept_items(desk, first(False, desk))[-1]["id"] for _ in range(MAX_REFERRED + 1)]
    client = refer(made(False, desk), *others)
    assert client.status == 400 and f"more than {MAX_REFERRED}" in json.loads(client.body)["error"]["message"]
