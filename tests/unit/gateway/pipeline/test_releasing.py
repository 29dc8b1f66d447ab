"""What happens to a kept answer when the configuration, the models or the caller's rights changed while it waited: what is in force at the
retry decides, and an answer that is refused then is not used up."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.core.approvals import Held, Taken
from gateway.core.plugins import Context, built
from gateway.core.standing import Stop
from gateway.pipeline.guarded import Guarded
from policies.guardrails.pii.guardrail import PiiSettings
from policies.guardrails.pii.guardrail import build as build_pii
from tests.unit.gateway.pipeline.test_approvals import Desk, asked, error, world
from tests.unit.gateway.pipeline.test_inspect import MASKED, PHRASE, Scripted, arguments_of, deny, text_of
from tests.unit.gateway.pipeline.test_tools import call, guard, piece, whole
from tests.unit.gateway.pipeline.world import DONE, Client, World, chunk

ARGUMENTS = '{"a":1}'
HELD = Held("apr-1", "delete_file", "a" * 64, 1_800_000_000.0)


def answer(form: str, content: str = "well", arguments: str = ARGUMENTS) -> bytes:
    if form == "whole":
        return whole(call("delete_file", arguments), content=content)
    half = len(content) // 2
    return chunk(content[:half]) + chunk(content[half:]) + piece(call("delete_file", arguments)) + chunk(finish="tool_calls") + DONE


def desk(form: str, body: bytes, model: str = "m") -> Desk:
    return Desk(*[Taken(state=state, held=HELD, form=form, body=body, model=model) for state in ("approved", "taken")])  # type: ignore[arg-type]


def taken(desk: Desk) -> int:
    """How often the approval was used."""
    return len([one for one in desk.takes if not one.look])


forms = pytest.mark.parametrize("form", ["whole", "stream"])


@forms
@pytest.mark.parametrize("stream", [False, True])
def test_a_text_guardrail_that_came_meanwhile_reads_the_answer(form: str, stream: bool) -> None:
    here = desk(form, answer(form, f"say {PHRASE}"))
    made = world(here, response=[deny(mask=False)])
    client = asked(made, stream=stream, approval="apr-1")
    assert (client.status, error(client)["code"]) == (400, "words") and b"delete_file" not in client.body
    assert taken(here) == 0 and not made.engine.calls, "what is refused is not used up"
    assert (made.outcome.outcome, made.outcome.guardrail) == ("denied", "words")


@forms
def test_no_guardrail_reads_the_retry_while_nothing_can_be_recorded(form: str) -> None:
    reader, here = Scripted(), desk(form, answer(form))
    made = world(here, request=[Guarded(reader, False, lambda *event: None)])
    made.audit.accepting = False
    client = asked(made, approval="apr-1")
    assert (client.status, error(client)["code"]) == (503, "audit_unavailable")
    assert reader.seen == [] and taken(here) == 0


@forms
def test_it_reads_the_arguments_too(form: str) -> None:
    here = desk(form, answer(form, "well", json.dumps({"a": PHRASE})))
    client = asked(world(here, response=[deny(mask=False)]), approval="apr-1")
    assert (client.status, error(client)["code"], taken(here)) == (400, "words", 0)


@forms
@pytest.mark.parametrize("stream", [False, True])
def test_a_rewrite_of_the_text_beside_the_calls_passes(form: str, stream: bool) -> None:
    here = desk(form, answer(form, f"say {PHRASE} now"))
    client = asked(world(here, response=[deny(mask=True)]), stream=stream, approval="apr-1")
    assert client.status == 200 and taken(here) == 1 and PHRASE.encode() not in client.body
    if stream:
        assert (text_of(client), arguments_of(client)) == (f"say {MASKED} now", ARGUMENTS) and client.complete
    else:
        message = json.loads(client.body)["choices"][0]["message"]
        assert (message["content"], message["tool_calls"][0]["function"]["arguments"]) == (f"say {MASKED} now", ARGUMENTS)


@forms
def test_calls_that_a_guardrail_would_rewrite_are_not_those_that_were_approved(form: str) -> None:
    here = desk(form, answer(form, "well", json.dumps({"a": PHRASE})))
    client = asked(world(here, response=[deny(mask=True)]), approval="apr-1")
    assert (client.status, error(client)["code"], taken(here)) == (400, "words", 0) and b"delete_file" not in client.body


@forms
def test_a_guardrail_that_fails_denies_and_the_approval_stays(form: str) -> None:
    here = desk(form, answer(form))
    failing = Guarded(Scripted(ZeroDivisionError("secret")), False, lambda *event: None)
    client = asked(world(here, response=[failing]), approval="apr-1")
    assert (client.status, taken(here)) == (400, 0) and b"secret" not in client.body


def test_the_request_is_read_again() -> None:
    here = desk("whole", answer("whole"))
    messages = [{"role": "user", "content": PHRASE}]
    client = asked(world(here, request=[deny(mask=False)]), approval="apr-1", messages=messages)
    assert (client.status, error(client)["code"], taken(here)) == (400, "words", 0)


def test_tools_that_may_not_be_offered_any_more_are_refused_and_results_were_approved_before() -> None:
    offered = [{"type": "function", "function": {"name": "delete_file", "parameters": {}}}]
    here = desk("whole", answer("whole"))
    blocks = guard({"tool": "delete_*", "of": ["definition"], "action": "block"}, default="allow")
    client = asked(world(here, request_tools=[blocks]), approval="apr-1", tools=offered)
    assert (client.status, taken(here)) == (400, 0)
    results = [{"role": "assistant", "tool_calls": [call("mail")]}, {"role": "tool", "tool_call_id": "c0", "content": "x"}]
    here = desk("whole", answer("whole"))
    holds = guard({"tool": "mail", "of": ["result"], "action": "hold"}, default="allow")
    client = asked(world(here, request_tools=[holds]), approval="apr-1", messages=results)
    assert (client.status, taken(here)) == (200, 1)


def test_an_answer_that_another_process_did_not_send_is_refused() -> None:
    """As a control process of the release before would do it during an upgrade."""
    here = desk("whole", b"")
    client = asked(world(here), approval="apr-1")
    assert (client.status, taken(here)) == (502, 0)


# --- answers of a fallback


def of_fallback(made: World) -> Client:
    return asked(made, approval="apr-1")


def test_the_answer_of_a_fallback_is_judged_as_its_own() -> None:
    here = desk("whole", answer("whole"), "n")
    made = world(here, fallback=True)
    assert of_fallback(made).status == 200 and made.outcome.model == "n"
    here = desk("whole", answer("whole", PHRASE), "n")
    client = of_fallback(world(here, fallback=True, fallback_response=[deny(mask=False)]))
    assert (client.status, error(client)["code"], taken(here)) == (400, "words", 0)
    here = desk("whole", answer("whole"), "n")
    client = asked(
        world(here, fallback=True, fallback_request=[deny(mask=False)]), approval="apr-1", messages=[{"role": "user", "content": PHRASE}]
    )
    assert (client.status, error(client)["code"], taken(here)) == (400, "words", 0)


def test_the_answer_of_a_model_that_may_not_answer_any_more_is_refused() -> None:
    here = desk("whole", answer("whole"), "n")
    client = of_fallback(world(here))
    assert (client.status, error(client)["code"], taken(here)) == (403, "approval_mismatch", 0), "it is no fallback any more"
    made = world(here := desk("whole", answer("whole"), "n"), fallback=True)
    made.authorizer.denied.add("n")
    assert (of_fallback(made).status, taken(here)) == (403, 0)
    made = world(here := desk("whole", answer("whole"), "n"), fallback=True)
    made.plane.standing.replace("test", [Stop("model/n")])
    assert (of_fallback(made).status, taken(here)) == (403, 0)
    client = asked(world(here := desk("whole", answer("whole"), "other"), fallback=True), model="alias", approval="apr-1")
    assert (client.status, taken(here)) == (403, 0), "the alias led to another model"


# --- pseudonyms


def pseudonyms(**settings: Any) -> Guarded:
    fields = {"entities": {"email": "pseudonym"}, "pseudonyms": settings}
    return Guarded(built(build_pii, PiiSettings, fields, Context(name="pii")), False, lambda *event: None)


@forms
@pytest.mark.parametrize("restore", ["after", "before"])
def test_values_of_the_request_that_stand_in_the_answer_stay_what_they_are(form: str, restore: str) -> None:
    one = pseudonyms(restore=restore)
    body = answer(form, "I write to ann@example.com.", json.dumps({"to": "ann@example.com"}))
    here = desk(form, body)
    made = world(here, request=[one], response=[one] if restore == "after" else [])
    client = asked(made, approval="apr-1", messages=[{"role": "user", "content": "write to ann@example.com"}])
    assert client.status == 200, client.body
    message = json.loads(client.body)["choices"][0]["message"]
    assert message["content"] == "I write to ann@example.com."
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"to": "ann@example.com"}


def test_a_value_of_nobody_is_masked_as_ever() -> None:
    one = pseudonyms()
    here = desk("whole", answer("whole", "ann@example.com and eve@example.com"))
    client = asked(world(here, request=[one], response=[one]), approval="apr-1", messages=[{"role": "user", "content": "ann@example.com"}])
    assert json.loads(client.body)["choices"][0]["message"]["content"] == "ann@example.com and [EMAIL]"
