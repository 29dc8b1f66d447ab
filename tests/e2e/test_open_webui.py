"""Open WebUI's users decide about roles and limits, from a trusted peer and with its own key; from others its headers change
nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, Gatehouse, configuration, external

WEBUI_KEY = "open-webui-key-0123456789abcdef0123456789"
ANN = {
    "x-openwebui-user-email": "ann@example.org",
    "x-openwebui-user-id": "u-1",
    "x-openwebui-user-role": "admin",
    "x-openwebui-chat-id": "c-1",
}


def settings(directory: Any, engine: EngineThread, **listen: Any) -> dict[str, Any]:
    """`staff` may be asked by ann alone, by binding; everybody may ask m1."""
    config = configuration(
        directory / "state",
        engines=[external("fake", engine.port, slots=8)],
        models=[{"name": name, "pool": ["fake"]} for name in ("m1", "staff")],
        roles={name: {"permissions": [f"infer:chat:model/{name}"]} for name in ("m1", "staff")},
        bindings=[
            {"role": "m1", "subjects": ["key/open-webui", "key/another"]},
            {"role": "staff", "subjects": ["user/ann@example.org"]},
        ],
        limits=[{"name": "ann", "match": {"user": "bob@example.org"}, "requests": {"rate": 1, "per": "1h"}}],
        listen=listen,
    )
    keys = config["identity"]["api_keys"]["static"]
    keys.append({"id": "open-webui", "key": WEBUI_KEY, "tenant": "acme", "models": ["*"]})
    keys.append({"id": "another", "key": f"another-{KEY}", "tenant": "acme", "models": ["*"]})
    config["identity"]["gateway_tokens"] = {"issuer": "http://127.0.0.1"}
    config["identity"]["open_webui"] = {"keys": ["open-webui"]}
    return config


@pytest.fixture(scope="module", params=[["127.0.0.1"], []], ids=["trusted", "untrusted"])
def webui(request: Any, tmp_path_factory: pytest.TempPathFactory, engine: EngineThread) -> Iterator[tuple[Gatehouse, bool]]:
    directory = tmp_path_factory.mktemp("webui")
    with Gatehouse(directory, settings(directory, engine, trusted_peers=request.param)) as running:
        yield running, bool(request.param)


def ask(gatehouse: Gatehouse, key: str, model: str, headers: dict[str, str]) -> httpx.Response:
    with gatehouse.client(key) as client:
        return client.post("/v1/chat/completions", json={"model": model, "messages": [{"role": "user", "content": "hi"}]}, headers=headers)


def test_roles_and_records_follow_the_user(webui: tuple[Gatehouse, bool]) -> None:
    gatehouse, trusted = webui
    plain = ask(gatehouse, WEBUI_KEY, "m1", {})
    assert plain.status_code == 200 and gatehouse.outcome(plain.headers["x-request-id"]).get("user", "") == ""
    named = ask(gatehouse, WEBUI_KEY, "m1", ANN)
    record = gatehouse.outcome(named.headers["x-request-id"])
    assert named.status_code == 200 and record.get("user", "") == ("ann@example.org" if trusted else "")
    assert record.get("session", "") == ("c-1" if trusted else "")
    assert ask(gatehouse, WEBUI_KEY, "staff", ANN).status_code == (200 if trusted else 404)
    assert ask(gatehouse, WEBUI_KEY, "staff", {}).status_code == 404
    assert ask(gatehouse, WEBUI_KEY, "staff", {"x-openwebui-user-email": "eve@example.org"}).status_code == 404
    assert ask(gatehouse, f"another-{KEY}", "staff", ANN).status_code == 404, "another key's headers change nothing"
    twice = ask(gatehouse, WEBUI_KEY, "staff", {**ANN, "x-openwebui-user-email": "ann@example.org, eve@example.org"})
    assert twice.status_code == (400 if trusted else 404)


def test_no_token_is_issued_to_a_user_of_a_header(webui: tuple[Gatehouse, bool]) -> None:
    """It would count on the admin listener, too, where nobody vouches for the header."""
    gatehouse, _ = webui
    with gatehouse.client(WEBUI_KEY) as client:
        assert client.get("/v1/models", headers=ANN).status_code == 200
        given = client.post("/auth/token", data={"grant_type": "client_credentials"}, headers=ANN)
    assert given.status_code == 400 and "token" not in given.json(), given.text


def test_limits_follow_the_user(webui: tuple[Gatehouse, bool]) -> None:
    gatehouse, trusted = webui
    bob = {"x-openwebui-user-email": "bob@example.org"}
    answers = [ask(gatehouse, WEBUI_KEY, "m1", bob).status_code for _ in range(3)]
    assert answers == ([200, 429, 429] if trusted else [200, 200, 200])
    assert ask(gatehouse, WEBUI_KEY, "m1", {"x-openwebui-user-email": "carol@example.org"}).status_code == 200
