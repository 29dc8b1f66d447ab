"""Holding answers and giving them to retries: with a desk in the test's hands, so that every order of events is played."""

from __future__ import annotations

import json
from collections.abc import Awaitable
from typing import Any

import pytest

from gateway.core.approvals import Held, Hold, Take, Taken, request_hash
from gateway.core.errors import StoreUnavailable
from gateway.core.types import Principal
from gateway.core.waiting import Signal
from tests.unit.gateway.pipeline.test_inspect import arguments_of, text_of
from tests.unit.gateway.pipeline.test_tools import BODY, call, guard, piece, whole
from tests.unit.gateway.pipeline.world import DONE, JSON_HEAD, SSE_HEAD, Client, World, chunk

RULES = [{"tool": "delete_*", "action": "hold"}, {"tool": "*", "action": "allow"}]
HELD = Held("apr-1", "delete_file", "a" * 64, 1_800_000_000.0)


class Desk:
    """Answers at once with what the test says."""

    def __init__(self, *states: Taken) -> None:
        self.holds: list[Hold] = []
        self.takes: list[Take] = []
        self.states = list(states)
        self.error: Exception | None = None

    def _signal(self, value: Any) -> Awaitable[Any]:
        signal: Signal[Any] = Signal()
        if self.error is None:
            signal.set(value)
        else:
            signal.fail(self.error)
        return signal

    def hold(self, wanted: Hold) -> Awaitable[Held]:
        self.holds.append(wanted)
        return self._signal(HELD)

    def take(self, wanted: Take) -> Awaitable[Taken]:
        self.takes.append(wanted)
        return self._signal(self.states.pop(0) if self.states else Taken(state="unknown"))


def world(desk: Desk | None, **options: Any) -> World:
    made = World(**{"response_tools": [guard(*RULES)], **options})
    made.plane.approvals = desk
    return made


def asked(made: World, *, stream: bool = False, approval: str = "", **fields: Any) -> Client:
    body = {**BODY, **({"stream": True} if stream else {}), **fields}
    headers = {b"x-gatehouse-approval": approval.encode()} if approval else {}
    _, client = made.start(json.dumps(body).encode(), headers=headers)
    return client


def error(client: Client) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(client.body)["error"]
    return found


def test_a_call_is_kept_with_everything_that_binds_it() -> None:
    desk = Desk()
    made = world(desk)
    made.identity.caller = Principal("k", "acme", "api_key", ("*",), user="ann", agent="bot")
    client = asked(made)
    made.call.answer(whole(call("read_x"), call("delete_file", '{"a":1}', index=1)), JSON_HEAD)
    assert (client.status, error(client)["code"], error(client)["type"]) == (409, "approval_pending", "approval_required")
    assert error(client)["approval"] == {
        "id": "apr-1",
        "tool": "delete_file",
        "arguments_sha256": "a" * 64,
        "expires_at": "2027-01-15T08:00:00Z",
    }
    assert client.headers["x-should-retry"] == "false" and b"read_x" not in client.body
    (wanted,) = desk.holds
    assert [(use.tool, use.action) for use in wanted.uses] == [("read_x", "allow"), ("delete_file", "hold")]
    assert wanted.request == request_hash(b"/v1/chat/completions", json.dumps(BODY).encode())
    assert (wanted.form, wanted.requester.user, wanted.requester.agent, wanted.seconds) == ("whole", "ann", "bot", 600.0)
    assert json.loads(wanted.body)["choices"][0]["message"]["tool_calls"][1]["function"]["arguments"] == '{"a":1}'
    outcome = made.outcome
    assert (outcome.outcome, outcome.code, outcome.completion_tokens) == ("denied", "approval_pending", 3), (
        "charged when the engine gave it"
    )
    assert outcome.detail["approval"] == "apr-1"  # type: ignore[index]


def test_of_a_stream_all_is_kept_and_only_what_came_before_the_call_is_sent() -> None:
    desk = Desk()
    made = world(desk)
    client = asked(made, stream=True)
    engine = made.call.head(SSE_HEAD).body(chunk("well "))
    assert text_of(client) == "well "
    engine.body(piece(call("delete_file", '{"a":1}')) + chunk(None, finish="tool_calls") + DONE).end()
    assert text_of(client) == "well " and client.complete and client.body.endswith(DONE) and client.body.count(b"[DONE]") == 1
    last = json.loads(client.body.split(b"\n\n")[-3][6:])
    assert last["error"]["approval"]["id"] == "apr-1" and b'"arguments"' not in client.body
    (wanted,) = desk.holds
    assert wanted.form == "stream" and b"well " in wanted.body and b"delete_file" in wanted.body and wanted.body.endswith(DONE)


def test_a_stream_without_an_end_is_kept_with_one() -> None:
    desk = Desk()
    made = world(desk)
    client = asked(made, stream=True)
    made.call.head(SSE_HEAD).body(piece(call("delete_file", "{}")) + chunk(finish="tool_calls")).end()
    assert desk.holds[0].body.endswith(DONE) and client.complete


@pytest.mark.parametrize(
    ("state", "status", "code"),
    [
        ("pending", 409, "approval_pending"),
        ("denied", 403, "approval_denied"),
        ("expired", 403, "approval_expired"),
        ("used", 403, "approval_used"),
        ("other", 403, "approval_mismatch"),
        ("unknown", 403, "approval_unknown"),
    ],
)
def test_a_retry_that_gets_nothing_costs_a_request_and_asks_no_engine(state: str, status: int, code: str) -> None:
    desk = Desk(Taken(state=state, held=HELD))
    made = world(desk)
    client = asked(made, approval="apr-1")
    assert (client.status, error(client)["code"]) == (status, code) and not made.engine.calls
    (reservation,) = made.limiter.reservations
    assert [usage is not None and usage.prompt_tokens == 0 for usage in reservation.settled] == [True], "probing is not free"
    assert desk.takes[0].look


def test_a_retry_whose_body_is_not_all_json_is_refused_as_any_other() -> None:
    """Tensors in binary form follow the JSON of their request."""
    head = json.dumps({"inputs": [{"name": "x", "datatype": "UINT8", "shape": [2], "parameters": {"binary_data_size": 2}}]}).encode()
    desk = Desk(Taken(state="other"))
    made = world(desk)
    headers = {b"x-gatehouse-approval": b"apr-1", b"inference-header-content-length": b"%d" % len(head)}
    _, client = made.start(head + b"\x00\xff", path=b"/v2/models/m/infer", headers=headers)
    assert (client.status, error(client)["code"]) == (403, "approval_mismatch") and not made.engine.calls


@pytest.mark.parametrize("given", ["", "x" * 65, "a/b", "\u00e9", "apr 1"])
def test_an_id_that_cannot_be_one_is_not_looked_for(given: str) -> None:
    desk = Desk()
    made = world(desk)
    body = json.dumps(BODY).encode()
    _, client = made.start(body, headers={b"x-gatehouse-approval": given.encode("latin-1", "replace")})
    assert client.status == 403 and not desk.takes


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("form", ["whole", "stream"])
def test_an_approved_answer_is_given_in_the_form_that_is_asked_for_and_not_charged(form: Any, stream: bool) -> None:
    kept = whole(call("delete_file", '{"a":1}')) if form == "whole" else chunk("well ") + piece(call("delete_file", '{"a":1}')) + DONE
    desk = Desk(Taken(state="approved", held=HELD, form=form, body=kept), Taken(state="taken", held=HELD, form=form, body=kept))
    made = world(desk)
    client = asked(made, stream=stream, approval="apr-1")
    assert client.status == 200 and not made.engine.calls and [one.look for one in desk.takes] == [True, False]
    if stream:
        assert arguments_of(client) == '{"a":1}' and client.complete and client.body.endswith(DONE)
        assert form == "whole" or client.body == kept
    else:
        assert json.loads(client.body)["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == '{"a":1}'
        assert form == "stream" or client.body == kept, "exactly the held answer"
    assert made.limiter.reservations[0].settled == [None], "nothing is charged a second time"
    outcome = made.outcome
    assert (outcome.outcome, outcome.prompt_tokens, outcome.detail["approval"]) == ("ok", 0, "apr-1")  # type: ignore[index]
    assert len(made.audit.intents) == 1


def test_the_record_is_durable_before_an_answer_is_taken() -> None:
    kept = whole(call("delete_file"))
    desk = Desk(Taken(state="approved", form="whole", body=kept), Taken(state="taken", form="whole", body=kept))
    made = world(desk)
    made.audit.durable = False
    client = asked(made, approval="apr-1")
    assert not client.written and len(desk.takes) == 1
    made.audit.tickets[0].set(None)
    assert client.status == 200 and len(desk.takes) == 2


def test_rules_that_have_become_stricter_count() -> None:
    desk = Desk(Taken(state="approved", form="whole", body=whole(call("delete_file"))))
    made = world(desk, response_tools=[guard({"tool": "*", "action": "block"})])
    client = asked(made, approval="apr-1")
    assert client.status == 400 and b'"arguments"' not in client.body
    assert [one.look for one in desk.takes] == [True], "the approval stays"


def test_who_is_refused_by_policy_meanwhile_does_not_get_to_the_desk() -> None:
    desk = Desk(Taken(state="approved", form="whole"))
    made = world(desk)
    made.authorizer.allow = False
    assert asked(made, approval="apr-1").status in (403, 404) and not desk.takes


def test_another_takes_it_between_the_look_and_the_taking() -> None:
    made = world(Desk(Taken(state="approved", form="whole", body=whole(call("delete_file"))), Taken(state="used", held=HELD)))
    client = asked(made, approval="apr-1")
    assert (client.status, error(client)["code"]) == (403, "approval_used")


def test_without_a_store_nothing_is_kept_and_nothing_leaves() -> None:
    made = world(None)
    client = asked(made)
    made.call.answer(whole(call("delete_file")), JSON_HEAD)
    assert client.status == 400 and b"arguments" not in client.body
    assert asked(made, approval="apr-1").status == 403
    desk = Desk()
    desk.error = StoreUnavailable("gone")
    made = world(desk)
    client = asked(made)
    made.call.answer(whole(call("delete_file")), JSON_HEAD)
    assert client.status == 503 and b"delete_file" not in client.body


# --- requests that wait


def results(content: str) -> list[dict[str, Any]]:
    return [{"role": "assistant", "tool_calls": [call("mail")]}, {"role": "tool", "tool_call_id": "c0", "content": content}]


def test_a_request_with_results_waits_and_passes_once_it_is_approved() -> None:
    rules = [{"tool": "mail", "of": ["result"], "action": "hold"}]
    desk = Desk()
    made = world(desk, response_tools=(), request_tools=[guard(*rules, default="allow")])
    client = asked(made, messages=results("x"))
    assert client.status == 409 and not made.engine.calls
    hashes = tuple(use.sha256 for use in desk.holds[0].uses)
    assert desk.holds[0].form == "" and desk.holds[0].uses[0].arguments == "x"
    desk.states = [Taken(state="approved", hashes=hashes), Taken(state="taken", hashes=hashes)]
    client = asked(made, messages=results("x"), approval="apr-1")
    made.call.answer(whole(content="ok"), JSON_HEAD)
    assert client.status == 200 and len(made.audit.intents) == 1
    assert [len(one.settled) for one in made.limiter.reservations] == [1, 1, 1]
    desk.states = [Taken(state="approved", hashes=hashes), Taken(state="taken", hashes=("0" * 64,))]
    assert asked(made, messages=results("x"), approval="apr-1").status == 403
