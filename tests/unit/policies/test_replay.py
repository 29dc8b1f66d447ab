"""Decisions of the past, made again from records of the audit log."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.audit.encode import encode
from gateway.core.decided import caller_facts, request_facts
from gateway.core.specs import ModelSpec
from gateway.core.types import InferenceRequest, IntentRecord, Login, OutcomeRecord, Peer, Principal, Scope
from gateway.core.wire import WireApi
from policies.conditions import NAMES, Language
from policies.facts import UNBOUNDED, Asked
from policies.rbac import ModelAccess
from policies.replay import OLDER, Past, Records, Unrecorded, again

MODELS = (ModelSpec(name="base:german", pool=("a",), aliases=("gpt",)), ModelSpec(name="m", pool=("a",)))
LANGUAGE = Language()
WHO = Principal(
    "sub",
    "acme",
    "oidc",
    ("m", "base*"),
    roles=("r",),
    operations=("chat",),
    user="alice",
    groups=("staff",),
    scopes=("s",),
    agent="bot",
    session="s-1",
    login=Login("mfa", issuer="i", auth_time=5.0, acr="gold", amr=("otp",)),
    bounds=((Scope(("*",), ("chat",)),),),
    reach=("infer:chat",),
)
PEER = Peer("10.1.2.3", certificate=b"der")


class Api(WireApi):
    def __init__(self, operation: str = "chat") -> None:
        super().__init__(operation, generates=True)

    def tools(self, request: InferenceRequest) -> list[str]:
        return ["search"]

    def label(self, request: InferenceRequest) -> str:
        return "secret"


def asked(**more: Any) -> InferenceRequest:
    made = InferenceRequest(Api(), b"/", "base:german", {}, None, True, version="3", max_tokens=more.pop("max_tokens", 7))
    made.asked = "gpt"
    return made


def intent(who: Principal = WHO, request: InferenceRequest | None = None, **more: Any) -> dict[str, Any]:
    request = request or asked()
    facts = {"caller": caller_facts(who), "facts": request_facts(request, request.model, PEER), **more}
    named = {
        "tenant": who.tenant,
        "principal": who.id,
        "credential": who.kind,
        "user": who.user,
        "agent": who.agent,
        "session": who.session,
    }
    record = IntentRecord(1000.0, "r-1", peer=PEER.address, operation="chat", model=request.model, stream=True, bytes=99, **named, **facts)
    return {"kind": "intent", **msgspec.json.decode(encode(record))}


def denied(**more: Any) -> dict[str, Any]:
    request = asked()
    more = {"decision": "deny", "rule": "operations", "caller": caller_facts(WHO), "facts": request_facts(request, "", PEER, 99), **more}
    record = OutcomeRecord(
        1000.0, "r-1", "denied", 403, "policy_denied", "acme", "sub", PEER.address, "chat", credential="oidc", user="alice", **more
    )
    return {"kind": "outcome", **msgspec.json.decode(encode(record))}


def past(record: dict[str, Any]) -> Past:
    found = Records(MODELS, ("chat",)).past(record)
    assert found is not None
    return found


def test_a_record_gives_every_fact_that_the_request_gave() -> None:
    then = Asked(WHO, asked(), "base:german", PEER, 99, lambda address: "DE", lambda: 1000.0).read
    one = past(intent())
    now = one.reading("base:german", lambda address: "DE")
    for name in sorted(NAMES):
        assert now(name) == then(name), name
    assert (one.model, one.operation, one.version, one.allowed) == ("gpt", "chat", "3", True)
    who = one.principal
    assert (who.models, who.operations, who.reach, who.personal) == (WHO.models, WHO.operations, WHO.reach, False)
    assert [[(s.models, s.operations) for s in scopes] for scopes in who.bounds] == [[(("*",), ("chat",))]]


def test_one_without_an_intent_gives_the_same() -> None:
    one = past(denied())
    now = one.reading("base:german", lambda address: "DE")
    assert (one.model, one.allowed, one.rule, now("request.bytes"), now("request.stream")) == ("gpt", False, "operations", 99, True)
    assert past(denied(decision="allow")).allowed, "something else refused it"


def test_a_request_without_a_bound_stays_unbounded() -> None:
    assert past(intent(request=asked(max_tokens=0))).facts["request.max_tokens"] == UNBOUNDED


def test_the_same_caller_is_one_object() -> None:
    records = Records(MODELS, ())
    first, second, other = (records.past(intent(who)) for who in (WHO, WHO, WHO.entitled((), (), (), ())))
    assert first is not None and second is not None and other is not None
    assert first.principal is second.principal and other.principal is not first.principal


def test_it_is_decided_by_the_name_that_was_asked_for() -> None:
    access = ModelAccess(MODELS)
    narrow = Principal("k", "acme", "api_key", ("gpt",))
    one = past(intent(narrow))
    assert again(one, access.judge, "base:german", str).rule == "models:gpt"
    gone = ModelAccess(MODELS[1:])
    assert again(one, gone.judge, "base:german", str).rule == "unknown-model"


@pytest.mark.parametrize(
    ("text", "unrecorded", "missing"),
    [
        ('"search" in request.tools', ("request.tools",), "request.tools"),
        ("request.max_tokens == 7", ("request.tools",), ""),
        ('request.label == "x"', ("request.label",), "request.label"),
        ("[request].all(r, r.bytes == 99)", ("request.tools",), "request.tools"),
    ],
)
def test_what_was_not_recorded_is_not_guessed(text: str, unrecorded: tuple[str, ...], missing: str) -> None:
    record = intent()
    record["facts"]["unrecorded"] = list(unrecorded)
    read = past(record).reading("m", str)
    if not missing:
        assert LANGUAGE.compile(text).holds(read, False)
        return
    for otherwise in (True, False):
        with pytest.raises(Unrecorded) as caught:
            LANGUAGE.compile(text).holds(read, otherwise)
        assert caught.value.name == missing


@pytest.mark.parametrize("name", ["groups", "bounds", "models", "reach"])
def test_what_every_decision_needs_is_insisted_upon(name: str) -> None:
    record = intent()
    del record["caller"][name]
    record["caller"]["unrecorded"] = [name]
    with pytest.raises(Unrecorded, match=name):
        again(past(record), ModelAccess(MODELS).judge, "m", str)


def test_records_of_earlier_versions_say_nothing_of_the_caller() -> None:
    record = intent(caller=None, facts=None)
    assert "caller" not in record
    with pytest.raises(Unrecorded, match=OLDER):
        again(past(record), ModelAccess(MODELS).judge, "m", str)
    with pytest.raises(Unrecorded, match=OLDER):
        past(denied(caller=None, facts=None, decision="", rule="")).insist()


@pytest.mark.parametrize(
    "record",
    [
        {"kind": "event", "time": 1.0, "event": "start"},
        {"kind": "outcome", "time": 1.0, "request_id": "r", "outcome": "ok", "status": 200, "tenant": "acme", "principal": "k"},
        {"kind": "outcome", "time": 1.0, "request_id": "r", "outcome": "denied", "status": 401, "code": "invalid_api_key"},
        {"kind": "segment", "time": 1.0},
    ],
)
def test_what_is_no_decision_is_left_out(record: dict[str, Any]) -> None:
    assert Records(MODELS, ()).past(record) is None


def test_metadata_is_decided_as_inference() -> None:
    assert past({**intent(), "operation": "metadata"}).operation == "infer"
