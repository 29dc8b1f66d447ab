"""Gateway tokens at a running gateway: had for tokens of a certified provider, narrowed, delegated, refused. docs/identity.md."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e import adminapi
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, Gatehouse, configuration, external
from tests.e2e.test_oidc import Provider, chat, provider  # noqa: F401 - a fixture
from tests.waiting import until

ISSUER = "https://gw.example"
EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
TYPE = "urn:ietf:params:oauth:token-type:access_token"
ROLES = {"everything": {"permissions": ["infer:*"]}}
BINDINGS = [{"role": "everything", "subjects": ["group/engineers"], "tenant": "acme"}]


def settings(directory: Any, engine: EngineThread, issuer: str, **parts: Any) -> dict[str, Any]:
    config = configuration(
        directory / "state",
        engines=[external("fake", engine.port, slots=64)],
        models=[{"name": "m1", "pool": ["fake"]}, {"name": "m2", "pool": ["fake"]}],
        roles=ROLES,
        bindings=BINDINGS,
        **parts,
    )
    config["identity"]["oidc"] = [{"name": "corp", "issuer": issuer, "audiences": ["gatehouse"], "leeway": "0s"}]
    config["identity"]["gateway_tokens"] = {"issuer": ISSUER, "ttl": "10m"}
    for id, role in (("root", "admin"), ("watch", "viewer")):
        key = f"{id}-key-0123456789abcdef0123456789abcdef"
        config["identity"]["api_keys"]["static"].append({"id": id, "key": key, "tenant": "acme", "models": [], "roles": [role]})
    return config


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, engine: EngineThread, provider: Provider) -> Iterator[Gatehouse]:  # noqa: F811
    directory = tmp_path_factory.mktemp("tokens")
    parts: dict[str, Any] = {"files": {"enabled": True}, "batches": {"enabled": True}}
    with Gatehouse(directory, settings(directory, engine, provider.url, **parts)) as gatehouse:
        yield gatehouse


def exchange(running: Gatehouse, token: str, **form: str) -> httpx.Response:
    fields = {"grant_type": EXCHANGE, "subject_token": token, "subject_token_type": TYPE, **form}
    return httpx.post(f"{running.url}/auth/token", data=fields, trust_env=False, timeout=60)


def exchanged(running: Gatehouse, token: str, **form: str) -> str:
    """A token; where the module's tests have asked for more than its caller may at once, as soon as there is one again."""
    answer = until(lambda: (found := exchange(running, token, **form)).status_code != 429 and found, what="another token")
    assert answer.status_code == 200, answer.text
    return str(answer.json()["access_token"])


def claims(token: str) -> dict[str, Any]:
    payload = token.split(".")[1]
    found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return found


def error(answer: httpx.Response, status: int, code: str) -> None:
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text


def bot(provider: Provider) -> str:  # noqa: F811
    form = {"grant_type": "client_credentials", "scope": "infer"}
    return str(provider.http.post("/token", data=form, auth=("bot", "bot-secret")).json()["access_token"])


def test_a_token_of_the_provider_becomes_a_token_of_the_gateway(running: Gatehouse, provider: Provider) -> None:  # noqa: F811
    source = provider.token()
    answer = exchange(running, source)
    assert answer.status_code == 200 and answer.headers["cache-control"] == "no-store"
    body = answer.json()
    assert (body["token_type"], body["issued_token_type"]) == ("Bearer", TYPE) and "scope" not in body
    said = claims(body["access_token"])
    assert (said["iss"], said["aud"], said["sub"], said["gh_tenant"]) == (ISSUER, ISSUER, "svc", "acme")
    assert said["exp"] <= claims(source)["exp"] and 0 < body["expires_in"] <= 600
    assert chat(running, body["access_token"]).status_code == 200
    keys = httpx.get(f"{running.url}/.well-known/jwks.json", trust_env=False, timeout=60).json()["keys"]
    assert len(keys) == 1 and keys[0]["kty"] == "OKP" and "d" not in keys[0]
    (issued,) = running.noted(event="token_issued", target=said["jti"])
    assert issued["detail"]["method"] == "exchange"
    assert body["access_token"].split(".")[2] not in json.dumps(running.audit()) + "".join(running.lines)


def test_a_narrowed_token_does_less_and_cannot_be_widened(running: Gatehouse, provider: Provider) -> None:  # noqa: F811
    narrow = exchanged(running, provider.token(), scope="infer:chat:model/m1")
    assert chat(running, narrow, model="m1").status_code == 200
    refused = chat(running, narrow, model="m2")
    error(refused, 403, "insufficient_scope")
    assert 'error="insufficient_scope"' in refused.headers["www-authenticate"]
    models = httpx.get(f"{running.url}/v1/models", headers={"authorization": f"Bearer {narrow}"}, trust_env=False, timeout=60).json()
    assert [model["id"] for model in models["data"]] == ["m1"]
    error(exchange(running, narrow, scope="infer:*"), 400, "invalid_scope")
    error(exchange(running, narrow, scope="infer:chat"), 400, "invalid_scope")
    error(exchange(running, narrow, scope="admin:*"), 400, "invalid_scope")
    again = exchanged(running, narrow)
    assert claims(again)["scope"] == "infer:chat:model/m1" and claims(again)["exp"] <= claims(narrow)["exp"]
    assert chat(running, again, model="m2").status_code == 403
    for nonsense in ("openid", "infer:fly", "admin:", "infer:chat:model/"):
        error(exchange(running, provider.token(), scope=nonsense), 400, "invalid_scope")


@pytest.mark.parametrize(("scope", "status"), [("infer:chat:model/m1", 403), ("infer:*:model/m1", 403), ("admin:*", 403), ("infer:*", 200)])
def test_files_of_the_tenant_are_beyond_a_narrowed_token(running: Gatehouse, provider: Provider, scope: str, status: int) -> None:  # noqa: F811
    headers = {"authorization": f"Bearer {exchanged(running, provider.token(), scope=scope)}"}
    with httpx.Client(base_url=running.url, headers=headers, trust_env=False, timeout=60) as client:
        answers = [client.get("/v1/files"), client.get("/v1/batches")]
    assert [answer.status_code for answer in answers] == [status, status], answers[0].text
    if status == 403:
        error(answers[0], 403, "insufficient_scope")


def test_an_actor_acts_for_somebody_and_stays_in_the_chain(running: Gatehouse, provider: Provider) -> None:  # noqa: F811
    acting = exchanged(running, provider.token(), actor_token=bot(provider), actor_token_type=TYPE)
    assert claims(acting)["act"] == {"sub": "bot"}
    assert chat(running, acting).status_code == 200
    intents = running.noted(kind="intent", agent="bot")
    assert intents[-1]["credential"] == "gateway_token" and intents[-1]["principal"] == "svc"
    assert claims(exchanged(running, acting))["act"] == {"sub": "bot"}, "an exchange without an actor keeps the chain"
    loop = exchange(running, acting, actor_token=bot(provider), actor_token_type=TYPE)
    error(loop, 400, "invalid_request")
    error(exchange(running, provider.token(), actor_token=provider.token(), actor_token_type=TYPE), 400, "invalid_request")
    error(exchange(running, provider.token(), actor_token=acting, actor_token_type=TYPE), 400, "invalid_request")
    error(exchange(running, provider.token(), actor_token="nonsense", actor_token_type=TYPE), 401, "invalid_api_key")
    provider.control("claims", {"tenant": "acme", "groups": ["engineers"], "may_act": {"sub": "another"}})
    error(exchange(running, provider.token(), actor_token=bot(provider), actor_token_type=TYPE), 400, "invalid_request")
    here, elsewhere = provider.url, "https://elsewhere.example"
    for issuer, status in ((here, 200), (elsewhere, 400)):
        provider.control("claims", {"tenant": "acme", "groups": ["engineers"], "may_act": {"sub": "bot", "iss": issuer}})
        assert exchange(running, provider.token(), actor_token=bot(provider), actor_token_type=TYPE).status_code == status
    provider.control("claims", {"tenant": "globex", "groups": ["engineers"]})
    stranger = bot(provider)
    provider.control("claims", {"tenant": "acme", "groups": ["engineers"]})
    error(exchange(running, provider.token(), actor_token=stranger, actor_token_type=TYPE), 400, "invalid_request")


def test_an_actor_whose_token_is_revoked_or_who_is_suspended_acts_no_more(running: Gatehouse, provider: Provider) -> None:  # noqa: F811
    token = bot(provider)
    acting = exchanged(running, exchanged(running, provider.token(), actor_token=token, actor_token_type=TYPE))
    other = exchanged(running, provider.token(), actor_token=exchanged(running, bot(provider)), actor_token_type=TYPE)
    assert chat(running, acting).status_code == chat(running, other).status_code == 200
    with adminapi.admin(running, key="root-key-0123456789abcdef0123456789abcdef") as admin:
        revoked = {"type": "token", "issuer": provider.url, "value": claims(token)["jti"]}
        assert admin.post("/revocations", json=revoked).status_code == 201
        until(lambda: chat(running, acting).status_code == 401, what="the refusal")
        assert chat(running, other).status_code == 200, "by a token that counts"
        assert admin.post("/users/bot@acme/suspend", json={"reason": "test"}).status_code == 200
        try:
            until(lambda: chat(running, other).status_code == 403, what="the refusal of the suspended actor")
            error(chat(running, other), 403, "suspended")
        finally:
            assert admin.post("/users/bot@acme/resume").status_code == 200
        until(lambda: chat(running, other).status_code == 200, what="the actor's return")


def test_what_is_no_exchange_is_refused(running: Gatehouse, provider: Provider) -> None:  # noqa: F811
    token = provider.token()
    error(exchange(running, token, audience="https://elsewhere.example"), 400, "invalid_target")
    error(exchange(running, token, resource="https://elsewhere.example"), 400, "invalid_target")
    error(exchange(running, token, subject_token_type="urn:ietf:params:oauth:token-type:id_token"), 400, "invalid_request")
    error(exchange(running, token, requested_token_type="urn:ietf:params:oauth:token-type:refresh_token"), 400, "invalid_request")
    error(exchange(running, token, grant_type="password"), 400, "unsupported_grant_type")
    error(exchange(running, KEY), 400, "invalid_request")
    url = f"{running.url}/auth/token"
    twice = f"grant_type={EXCHANGE}&subject_token_type={TYPE}&subject_token={token}&subject_token={token}"
    form = {"content-type": "application/x-www-form-urlencoded"}
    error(httpx.post(url, content=twice, headers=form, trust_env=False, timeout=60), 400, "invalid_request")
    error(httpx.post(url, content="%%%", headers=form, trust_env=False, timeout=60), 400, "invalid_request")
    error(httpx.post(url, content="a=" + "x" * 70_000, headers=form, trust_env=False, timeout=60), 413, "request_too_large")
    error(httpx.post(url, json={"grant_type": EXCHANGE}, trust_env=False, timeout=60), 415, "unsupported_media_type")
    error(httpx.post(url, content=iter([b"a=b"]), headers=form, trust_env=False, timeout=60), 411, "invalid_header")
    error(httpx.post(url, trust_env=False, timeout=60), 401, "missing_credentials")
    error(httpx.get(url, trust_env=False, timeout=60), 405, "method_not_allowed")
    both = {"authorization": f"Bearer {KEY}"}
    fields = {"grant_type": EXCHANGE, "subject_token": token, "subject_token_type": TYPE}
    error(httpx.post(url, data=fields, headers=both, trust_env=False, timeout=60), 400, "ambiguous_credentials")
    answer = httpx.post(url, headers=both, trust_env=False, timeout=60)
    error(answer, 400, "invalid_request")
    assert answer.json()["error_description"] == answer.json()["error"]["message"]


def test_an_id_token_is_nothing(running: Gatehouse, provider: Provider) -> None:  # noqa: F811
    token = provider.control("id_token")["id_token"]
    assert claims(token)["aud"] == "gatehouse"
    assert chat(running, token).status_code == 401
    error(exchange(running, token), 401, "invalid_credentials")


def test_a_token_ends_when_its_source_does(running: Gatehouse, provider: Provider) -> None:  # noqa: F811
    def good() -> str | None:  # a machine that stands still until the source has ended gets another one
        answer = exchange(running, short := provider.token())
        if answer.status_code != 200:
            return None
        token = str(answer.json()["access_token"])
        assert claims(token)["exp"] <= claims(short)["exp"]
        return token if chat(running, token).status_code == 200 else None

    provider.control("ttl", 3)
    token: str = until(good, what="a token that is good")
    provider.control("ttl", 600)
    until(lambda: chat(running, token).status_code == 401, what="the end of the token")
    error(chat(running, token), 401, "expired_token")
