"""What conditions read of callers and requests: every fact, by itself and together with others."""

from __future__ import annotations

import pytest

from gateway.core.types import InferenceRequest, Login, Peer, Principal
from gateway.core.wire import WireApi
from policies.conditions import MAX_ITEMS, NAMES, Language
from policies.facts import Asked, Present, TooMany, of_caller

LANGUAGE = Language()
NOON = 1_790_000_000.0  # Monday, 2026-09-21 14:13:20 UTC


def test_a_list_that_is_too_long_is_not_looked_at() -> None:
    class Many(WireApi):
        def tools(self, request: InferenceRequest) -> list[str]:
            return ["t"] * int(request.model)

    for count, holds in ((MAX_ITEMS, True), (MAX_ITEMS + 1, False)):
        read = Asked(PERSON, InferenceRequest(Many("chat"), b"/", str(count), {}, None), "m", Peer("::1"), 5, str, lambda: NOON).read
        for otherwise in (True, False):
            for text in ("request.tools.size() >= 0", "has(request.tools)"):
                assert LANGUAGE.compile(text).holds(read, otherwise) is (holds or otherwise)
            assert LANGUAGE.compile("request.bytes == 5").holds(read, otherwise), "it is not asked for"
    with pytest.raises(TooMany):
        read("request.tools")


PERSON = Principal(
    "sub-1",
    "acme",
    "oidc",
    user="alice",
    groups=("staff", "ops"),
    roles=("chatter",),
    scopes=("s",),
    agent="bot",
    session="s-1",
    login=Login("mfa", issuer="https://idp", auth_time=NOON - 60.0, acr="gold", amr=("pwd", "otp"), certificate="ff"),
)
EVERY = {
    "request.operation": '"chat"',
    "request.model": '"base:german"',
    "request.adapter": '"german"',
    "request.version": '"3"',
    "request.stream": "true",
    "request.max_tokens": "7",
    "request.bytes": "99",
    "request.tools": '["search"]',
    "request.label": '"secret"',
    "principal.id": '"sub-1"',
    "principal.tenant": '"acme"',
    "principal.kind": '"oidc"',
    "principal.user": '"alice"',
    "principal.groups": '["staff", "ops"]',
    "principal.roles": '["chatter"]',
    "principal.scopes": '["s"]',
    "principal.agent": '"bot"',
    "principal.session": '"s-1"',
    "principal.key": '""',
    "principal.strength": '"mfa"',
    "principal.issuer": '"https://idp"',
    "principal.acr": '"gold"',
    "principal.amr": '["pwd", "otp"]',
    "principal.auth_time": 'timestamp("2026-09-21T14:12:20Z")',
    "source.address": '"10.1.2.3"',
    "source.country": '"DE"',
    "source.certificate": '""',
    "now": 'timestamp("2026-09-21T14:13:20Z")',
}


class Labelled(WireApi):
    def tools(self, request: InferenceRequest) -> list[str]:
        return ["search"]

    def label(self, request: InferenceRequest) -> str:
        return "secret"


def test_every_fact_is_read_of_a_request_by_itself_and_together() -> None:
    assert set(EVERY) == NAMES
    request = InferenceRequest(Labelled("chat"), b"/", "alias", {}, None, True, max_tokens=7, version="3")
    read = Asked(PERSON, request, "base:german", Peer("10.1.2.3"), 99, lambda address: "DE", lambda: NOON).read
    for name, value in EVERY.items():
        condition = LANGUAGE.compile(f"{name} == {value}")
        assert condition.reads == (name,) and condition.holds(read, False) and not LANGUAGE.compile(f"{name} != {value}").holds(read, True)
        root, _, field = name.partition(".")
        if field:  # by messages
            empty = value in ('""', "[]")
            assert LANGUAGE.compile(f"has({name}) == {'false' if empty else 'true'} && {name} == {value}").holds(read, False), name
            everything = LANGUAGE.compile(f"[{root}].exists(one, one.{field} == {value})")
            assert set(everything.reads) == NAMES and everything.holds(read, False), name


def test_on_the_admin_listener_there_is_no_request() -> None:
    read = Present(PERSON, Peer("10.1.2.3"), lambda address: "DE", lambda: NOON).read
    for name, value in EVERY.items():
        root, _, _ = name.partition(".")
        if root == "request":
            assert LANGUAGE.compile(f"!has({name})").holds(read, False), name
        else:
            assert LANGUAGE.compile(f"{name} == {value}").holds(read, False), name


def test_a_key_is_what_the_login_of_a_key_rests_on() -> None:
    """Also a key that was recorded, whose login says nothing."""
    for login in (None, Login("")):
        assert of_caller(Principal("ci", "acme", "api_key", login=login), "principal.strength") == "key"
        assert of_caller(Principal("x", "acme", "oidc", login=login), "principal.strength") == ""
    assert of_caller(Principal("ci", "acme", "api_key", login=None), "principal.issuer") == ""
