"""Agents and sessions in headers: believed of trusted peers alone, and never above what a token says."""

import pytest

from gateway.core.errors import RequestError
from gateway.core.specs.identity import OpenWebUiSpec
from gateway.core.types import Peer, Principal
from gateway.pipeline import named
from gateway.pipeline.named import NamedCallers
from tests.unit.gateway.pipeline.world import World

CI = Principal("ci", "acme", "api_key", ("*",), user="ann", groups=("g",))
BOT = Principal("ann", "acme", "oidc", agent="bot", session="s1")


def test_what_the_credential_does_not_say_is_filled_in() -> None:
    callers = NamedCallers()
    found = callers.of(CI, {b"x-gatehouse-agent": b"planner", b"x-gatehouse-session": b"2026/run-7"})
    assert (found.agent, found.session) == ("planner", "2026/run-7")
    assert (found.id, found.tenant, found.models, found.user, found.groups) == ("ci", "acme", ("*",), "ann", ("g",))
    assert callers.of(CI, {b"x-gatehouse-agent": b"planner", b"x-gatehouse-session": b"2026/run-7"}) is found
    assert callers.of(CI, {b"x-other": b"1"}) is CI


def test_what_a_token_says_stays() -> None:
    found = NamedCallers().of(BOT, {b"x-gatehouse-agent": b"other", b"x-gatehouse-session": b"s2"})
    assert (found.agent, found.session) == ("bot", "s1")


@pytest.mark.parametrize("value", [b"a b", b"a\nb", b"\xff", b"-a", b"x" * 129, b"a,b", b"a, b"])
@pytest.mark.parametrize("header", [named.AGENT, named.SESSION])
def test_what_is_no_name(header: bytes, value: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        NamedCallers().of(CI, {header: value})
    assert caught.value.param == header.decode()


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named, "REMEMBERED", 3)
    callers = NamedCallers()
    for number in range(9):
        callers.of(CI, {named.SESSION: b"s%d" % number})
    assert len(callers._known) == 3


@pytest.mark.parametrize("trusted", [True, False])
async def test_only_a_trusted_peer_is_believed(trusted: bool) -> None:
    world = World()
    exchange, _ = world.start(headers={b"x-gatehouse-agent": b"planner"}, peer=Peer("192.0.2.1", trusted))
    world.call.answer()
    assert exchange.principal is not None and exchange.principal.agent == ("planner" if trusted else "")
    assert world.audit.intents[0].agent == ("planner" if trusted else "")


WEBUI = OpenWebUiSpec(keys=("open-webui",))
HEADERS = {b"x-openwebui-user-email": b"ann@example.org", b"x-openwebui-user-id": b"u-1", b"x-openwebui-chat-id": b"c-1"}


def test_users_of_open_webui() -> None:
    key, callers = Principal("open-webui", "acme", "api_key", ("*",)), NamedCallers()
    found = callers.of(key, HEADERS, WEBUI)
    assert (found.user, found.session, found.id, found.tenant) == ("ann@example.org", "c-1", "open-webui", "acme")
    assert callers.of(key, HEADERS, WEBUI) is found and key.user == ""
    assert callers.of(key, HEADERS, OpenWebUiSpec(keys=("open-webui",), user="id")).user == "u-1"
    assert callers.of(key, {**HEADERS, b"x-gatehouse-session": b"s"}, WEBUI).session == "s"
    other = Principal("other", "acme", "api_key", ("*",))
    token = Principal("open-webui", "acme", "oidc", ("*",))
    for principal, spec in ((key, None), (other, WEBUI), (token, WEBUI)):
        assert callers.of(principal, HEADERS, spec) is principal, "neither configured, nor its key, nor a key"
    owned = Principal("open-webui", "acme", "api_key", ("*",), user="bob")
    assert callers.of(owned, HEADERS, WEBUI).user == "bob"
    with pytest.raises(RequestError):
        callers.of(key, {b"x-openwebui-user-email": b"ann@example.org, root@example.org"}, WEBUI)
