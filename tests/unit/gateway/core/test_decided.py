"""What the audit log keeps of a decision's facts."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from gateway.audit.encode import encode
from gateway.core.decided import MAX_CALLER, MAX_TEXT, MAX_TOOLS, caller_facts, request_facts
from gateway.core.errors import RequestError
from gateway.core.types import DecisionFacts, InferenceRequest, IntentRecord, Login, Peer, Principal, Scope
from gateway.core.wire import WireApi
from gateway.wire.table import APIS, parse

PEER = Peer("192.0.2.1")


def told(principal: Principal) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(bytes(caller_facts(principal)))
    return found


def test_what_is_empty_is_left_out_and_made_once() -> None:
    key = Principal("ci", "acme", "api_key", ("demo-*",))
    assert told(key) == {"models": ["demo-*"]} and caller_facts(key) is caller_facts(key)
    assert told(Principal("x", "acme", "oidc", user="x")) == {}


def test_everything_that_decisions_read() -> None:
    login = Login("mfa", issuer="https://idp", auth_time=5.0, acr="gold", amr=("otp",), certificate="ff", token_id="secret-jti")
    who = Principal(
        "k",
        "acme",
        "api_key",
        ("m",),
        roles=("r",),
        operations=("chat",),
        user="u",
        groups=("g", "ü"),
        scopes=("s",),
        login=login,
        bounds=((Scope(("a*",), ("chat",)), Scope(("b",))),),
        personal=True,
        reach=(),
    )
    assert told(who) == {
        "models": ["m"],
        "operations": ["chat"],
        "groups": ["g", "ü"],
        "roles": ["r"],
        "scopes": ["s"],
        "reach": [],
        "bounds": [[[["a*"], ["chat"]], [["b"], []]]],
        "personal": True,
        "strength": "mfa",
        "issuer": "https://idp",
        "acr": "gold",
        "amr": ["otp"],
        "auth_time": 5.0,
    }


@given(st.lists(st.text(alphabet=st.characters(codec=None), max_size=300), max_size=60), st.floats())
def test_it_is_bounded_and_any_reader_of_json_can_read_it(groups: list[str], time: float) -> None:
    who = Principal("k", "t", "oidc", groups=tuple(groups), roles=("r",) * 100, login=Login(auth_time=time))
    raw = bytes(caller_facts(who))
    assert raw.isascii() and len(raw) <= MAX_CALLER + 64
    record = IntentRecord(1.0, "r", "t", "k", "oidc", "::1", "chat", "m", False, 1, caller=caller_facts(who))
    found = msgspec.json.decode(encode(record))["caller"]
    assert found == msgspec.json.decode(raw)
    assert "groups" in found or not groups or "groups" in found["unrecorded"]


def test_a_record_that_is_shortened_keeps_it() -> None:
    record = IntentRecord(
        1.0, "r", "t", "k", "oidc", "::1", "chat", "m" * 100_000, False, 1, caller=caller_facts(Principal("k", "t", "oidc"))
    )
    assert msgspec.json.decode(encode(record))["caller"] == {}


class Api(WireApi):
    def __init__(self, tools: list[str], label: str | None) -> None:
        super().__init__("chat")
        self.names, self.said = tools, label

    def tools(self, request: InferenceRequest) -> list[str]:
        return self.names

    def label(self, request: InferenceRequest) -> str:
        if self.said is None:
            raise RequestError("unreadable")
        return self.said


def asked(tools: tuple[str, ...] = (), label: str | None = "", **more: Any) -> InferenceRequest:
    alias = more.pop("alias", "")
    fields = {"tools": Raw(b"[]"), "metadata": Raw(b"{}")} if tools or label != "" else {}
    made = InferenceRequest(Api(list(tools), label), b"/", more.pop("model", "m"), fields, None, **more)
    made.asked = alias
    return made


@pytest.mark.parametrize(
    ("request_", "facts"),
    [
        (partial(asked), None),
        (partial(asked, max_tokens=7), DecisionFacts(max_tokens=7)),
        (partial(asked, max_tokens=-1), None),
        (partial(asked, ("a", "b"), "secret", version="3"), DecisionFacts(tools=("a", "b"), label="secret", version="3")),
        (partial(asked, alias="other"), DecisionFacts(model="other")),
        (partial(asked, ("a",) * (MAX_TOOLS + 1)), DecisionFacts(unrecorded=("request.tools",))),
        (partial(asked, ("a" * (MAX_TEXT + 1),)), DecisionFacts(unrecorded=("request.tools",))),
        (partial(asked, label=None), DecisionFacts(unrecorded=("request.label",))),
        (partial(asked, label="x" * (MAX_TEXT + 1)), DecisionFacts(unrecorded=("request.label",))),
        (partial(asked, version="x" * (MAX_TEXT + 1)), DecisionFacts(unrecorded=("request.version",))),
        (partial(asked, alias="x" * (MAX_TEXT + 1)), DecisionFacts(unrecorded=("request.model",))),
    ],
)
def test_what_is_kept_of_a_request(request_: Callable[[], InferenceRequest], facts: DecisionFacts | None) -> None:
    assert request_facts(request_(), "m", PEER) == facts


def test_tools_in_a_message_or_a_templates_arguments_are_kept() -> None:
    message = {"role": "user", "content": "x", "tools": [{"type": "function", "function": {"name": "a"}}]}
    for body in ({"messages": [message]}, {"messages": [{"role": "user"}], "chat_template_kwargs": {"tools": [{"name": "a"}]}}):
        request = parse(b"/v1/chat/completions", json.dumps({"model": "m", **body}).encode(), {})
        assert request_facts(request, "m", PEER) == DecisionFacts(tools=("a",))


def test_definitions_of_tools_that_are_too_large_are_not_read() -> None:
    request = asked(("a",))
    request.fields["tools"] = Raw(b"[" + b" " * 20_000 + b"]")
    assert request_facts(request, "m", PEER) == DecisionFacts(unrecorded=("request.tools",))


@pytest.mark.parametrize("api", APIS, ids=repr)
def test_tools_and_labels_of_every_format_are_where_they_are_looked_for(api: WireApi) -> None:
    request = InferenceRequest(api, b"/", "m", {"messages": Raw(b"[]"), "tool_choice": Raw(b'"x"')}, None)
    assert api.tools(request) == [] and api.label(request) == ""


def test_one_without_an_intent_says_its_size_and_its_model() -> None:
    found = request_facts(asked(stream=True, model="hidden"), "", Peer("::1", certificate=b"der"), 99)
    assert found is not None and (found.model, found.stream, found.bytes, len(found.certificate)) == ("hidden", True, 99, 64)
    assert request_facts(asked(), "m", PEER, 0) == DecisionFacts()
