"""What a client sees: credentials, models, errors, headers; and what the engine and the audit log see of it."""

from __future__ import annotations

import json
import socket
import uuid

import httpx
import pytest

from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, NARROW_KEY, OTHER_KEY, Gatehouse, errors_of


def test_a_chat_is_answered_relayed_and_recorded(gatehouse: Gatehouse, engine: EngineThread) -> None:
    response = gatehouse.chat("Hello", user="u1", metadata={"a": "1"})
    assert response.status_code == 200
    assert response.json()["choices"][0]["message"]["role"] == "assistant"
    assert response.headers["x-gatehouse-model"] == "m1"
    assert response.headers["x-gatehouse-endpoint"] == "fake"
    assert int(response.headers["x-gatehouse-overhead-us"]) > 0
    request_id = response.headers["x-request-id"]
    seen = engine.received[-1]
    assert seen.json()["metadata"] == {"a": "1"}
    assert seen.header("authorization") is None
    assert seen.header("x-request-id") == request_id
    outcome = gatehouse.outcome(request_id)
    assert outcome["outcome"] == "ok" and outcome["status"] == 200 and outcome["endpoint"] == "fake"
    intent = next(r for r in gatehouse.audit() if r["kind"] == "intent" and r["request_id"] == request_id)
    assert (intent["tenant"], intent["principal"], intent["model"]) == ("acme", "test", "m1")


def test_the_values_of_the_client_are_forwarded_as_they_came(gatehouse: Gatehouse, engine: EngineThread) -> None:
    messages = b'[{"role" : "user","content":"h\\u4e16llo \xc3\xa9"}]'
    body = b'{ "messages":' + messages + b',\n "model" : "m1", "top_k":1e2 , "stop_token_ids": [1,  2] }'
    with gatehouse.client() as client:
        assert client.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"}).status_code == 200
    assert engine.received[-1].body == b'{"messages":' + messages + b',"model":"m1","top_k":1e2,"stop_token_ids":[1,  2]}'


def test_names_of_upstreams_never_reach_an_engine(gatehouse: Gatehouse, engine: EngineThread) -> None:
    messages = b'"messages":[{"role":"user","content":"y"}]'
    with gatehouse.client() as client:
        dropped = b'{"mod\\u0065l":"m1","api_base":"http://evil",' + messages + b',"base_url":"http://evil"}'
        assert client.post("/v1/chat/completions", content=dropped).status_code == 200
        assert engine.received[-1].body == b'{"model":"m1",' + messages + b"}"
        before = len(engine.received)
        for wrong in (
            b'"model":"secret"',
            b'"Model":"secret"',
            b'"fallbacks":[{"api_base":"http://evil"}]',
            b'"extra_body":{}',
            b'"odd":1',
        ):
            refused = client.post("/v1/chat/completions", content=b'{"model":"m1",' + messages + b"," + wrong + b"}")
            assert refused.status_code == 400 and refused.json()["error"]["param"] in wrong.decode()
    assert len(engine.received) == before


def test_an_alias_is_the_model(gatehouse: Gatehouse, engine: EngineThread) -> None:
    response = gatehouse.chat(model="m1-latest")
    assert response.headers["x-gatehouse-model"] == "m1"
    assert engine.received[-1].json()["model"] == "m1"


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({}, 401, "missing_credentials"),
        ({"authorization": "Bearer wrong"}, 401, "invalid_api_key"),
        ({"authorization": "Bearer " + "x" * 5000}, 401, "invalid_api_key"),
        ({"x-api-key": KEY}, 200, None),
        ({"api-key": KEY}, 200, None),
        ({"authorization": f"bearer {KEY}"}, 200, None),
        ({"authorization": f"Bearer {KEY}", "x-api-key": OTHER_KEY}, 400, "ambiguous_credentials"),
        ({"authorization": f"Bearer {KEY}", "x-api-key": KEY}, 200, None),
        ({"authorization": "Bearer", "x-api-key": KEY}, 200, None),
        ({"authorization": f"Bearer {KEY}", "x-api-key": "", "api-key": ""}, 200, None),
        ({"authorization": "Bearer", "x-api-key": ""}, 401, "invalid_api_key"),
    ],
)
def test_credentials(gatehouse: Gatehouse, headers: dict[str, str], status: int, code: str | None) -> None:
    body = {"model": "m1", "messages": [{"role": "user", "content": "x"}]}
    response = httpx.post(f"{gatehouse.url}/v1/chat/completions", json=body, headers=headers, trust_env=False, timeout=60)
    assert response.status_code == status
    if code is not None:
        assert errors_of(response)["code"] == code
    if status == 401:
        assert "www-authenticate" in response.headers


def test_a_model_that_does_not_exist_and_one_that_is_not_allowed_look_alike(gatehouse: Gatehouse) -> None:
    unknown, hidden = gatehouse.chat(model="nothing"), gatehouse.chat(key=NARROW_KEY)
    assert unknown.status_code == hidden.status_code == 404
    assert errors_of(unknown)["code"] == errors_of(hidden)["code"] == "model_not_found"
    assert errors_of(unknown)["message"].replace("nothing", "m1") == errors_of(hidden)["message"]


def test_a_denial_is_recorded_too(gatehouse: Gatehouse) -> None:
    response = gatehouse.chat(key=NARROW_KEY)
    outcome = gatehouse.outcome(response.headers["x-request-id"])
    assert (outcome["outcome"], outcome["status"], outcome["code"], outcome["principal"]) == ("denied", 404, "model_not_found", "narrow")


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (b"{", "invalid_json", None),
        (b"", "invalid_json", None),
        (b"[]", "invalid_value", None),
        (b'{"model":"m1"}', "missing_required_parameter", "messages"),
        (b'{"model":1,"messages":[]}', "invalid_value", "model"),
        (b'{"model":"m1","messages":[]}', "invalid_value", "messages"),
        (b'{"model":"m1","messages":[{"role":"user","content":"x"}],"n":129}', "invalid_value", "n"),
        (b'{"model":"m1","messages":[{"role":"user","content":"x"}],"max_tokens":0}', "invalid_value", "max_tokens"),
        (b'{"model":"m1","messages":[{"role":"user","content":"x"}],"top_logprobs":21}', "invalid_value", "top_logprobs"),
        (b'{"model":"m1","messages":[{"role":"user","content":"x"}],"temperature":"hot"}', "invalid_value", "temperature"),
        (b'{"model":"m1","messages":' + b"[" * 100 + b"]" * 100 + b"}", "invalid_json", None),
        (b'{"model":"m1","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://10.0.0.1/x"}}]}]}',
         "invalid_value", "messages[0].content[0].image_url"),
        (b'{"model":"m1","messages":[{"role":"user","content":"\xff"}]}', "invalid_json", None),
    ],
)  # fmt: skip
def test_a_bad_body_names_the_field(gatehouse: Gatehouse, body: bytes, code: str, param: str | None) -> None:
    with gatehouse.client() as client:
        response = client.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    error = errors_of(response)
    assert (error["code"], error["param"]) == (code, param)
    assert gatehouse.chat().status_code == 200


def test_the_wrong_method_path_or_media_type(gatehouse: Gatehouse) -> None:
    with gatehouse.client() as client:
        assert client.get("/v1/chat/completions").status_code == 405
        assert client.post("/v1/models", json={}).status_code == 405
        assert client.get("/v1/nothing").status_code == 404
        assert client.post("/v1/chat/completions", content=b"<a/>", headers={"content-type": "text/xml"}).status_code == 415
        assert client.post("/v1/chat/completions", content=b"x", headers={"content-encoding": "gzip"}).status_code == 415


@pytest.mark.parametrize(
    "path",
    ["/v1/chat/../chat/completions", "/v1//chat/completions", "/v1/chat%2fcompletions", "/v1/chat/completions/", "/V1/chat/completions",
     "/v1/chat/completions;a=b", "/slots", "/api/pull", "/control/drain", "/health/../v1/models", "/v1/models/../../admin/v1/keys"],
)  # fmt: skip
def test_only_the_plain_spelling_of_a_path_is_known(gatehouse: Gatehouse, engine: EngineThread, path: str) -> None:
    before = len(engine.received)
    body = b'{"model":"m1","messages":[{"role":"user","content":"x"}]}'
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    answer = gatehouse.raw(head.encode() + body)
    assert answer.split(b" ")[1] in ((b"400",) if ".." in path else (b"404", b"405"))
    assert len(engine.received) == before


def test_models_are_listed_for_those_who_may_use_them(gatehouse: Gatehouse) -> None:
    with gatehouse.client() as client:
        listed = client.get("/v1/models").json()
        assert [m["id"] for m in listed["data"]] == ["m1"]
        assert client.get("/v1/models/m1").json()["object"] == "model"
        assert client.get("/v1/models/nothing").status_code == 404
    with gatehouse.client(NARROW_KEY) as client:
        assert client.get("/v1/models").json()["data"] == []
        assert client.get("/v1/models/m1").status_code == 404
    with gatehouse.client(None) as client:
        assert client.get("/v1/models").status_code == 401


def test_health(gatehouse: Gatehouse) -> None:
    with gatehouse.client(None) as client:
        for path in ("/livez", "/readyz", "/health", "/health/liveliness", "/health/readiness"):
            assert client.get(path).status_code == 200, path
        assert client.get("/readyz").json()["models"] == {"m1": "ready"}
    assert httpx.get(f"{gatehouse.admin_url}/readyz", trust_env=False, timeout=60).status_code == 200
    assert httpx.get(f"{gatehouse.admin_url}/livez", trust_env=False, timeout=60).status_code == 200


def test_the_request_id_is_the_callers_when_it_is_well_formed(gatehouse: Gatehouse) -> None:
    with gatehouse.client() as client:
        body = {"model": "m1", "messages": [{"role": "user", "content": "x"}]}
        assert client.post("/v1/chat/completions", json=body, headers={"x-request-id": "my-id.1_2"}).headers["x-request-id"] == "my-id.1_2"
        for bad in ("a b", "x" * 129, "é".encode(), "a\tb"):
            given = client.post("/v1/chat/completions", json=body, headers={"x-request-id": bad}).headers["x-request-id"]
            assert uuid.UUID(given).version == 4


def test_only_a_valid_traceparent_and_no_other_header_goes_on(gatehouse: Gatehouse, engine: EngineThread) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    sent = {
        "traceparent": trace,
        "x-forwarded-for": "1.2.3.4",
        "x-tenant": "evil",
        "cookie": "a=b",
        "x_under_score": "1",
        "x-gatehouse-priority": "interactive",
    }
    body = {"model": "m1", "messages": [{"role": "user", "content": "x"}]}
    with gatehouse.client() as client:
        client.post("/v1/chat/completions", json=body, headers=sent)
        seen = dict(engine.received[-1].headers)
        assert seen["traceparent"] == trace
        assert seen["x-gatehouse-priority"] == "standard"
        allowed = {
            "host",
            "content-type",
            "content-length",
            "x-request-id",
            "x-gatehouse-priority",
            "x-gatehouse-deadline-ms",
            "traceparent",
        }
        assert set(seen) <= allowed
        client.post("/v1/chat/completions", json=body, headers={"traceparent": "00-zz"})
        assert engine.received[-1].header("traceparent") is None
    content = json.dumps(body).encode()
    line = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Length: {len(content)}\r\n"
    for before, behind, expected in (("", "", trace), (" \t", "", trace), (" ", " \t ", trace), (" ", " x", None)):
        with socket.create_connection(("127.0.0.1", int(gatehouse.url.rpartition(":")[2])), timeout=60) as sock:
            sock.sendall(f"{line}Traceparent:{before}{trace}{behind}\r\n\r\n".encode() + content)
            assert sock.recv(65536).startswith(b"HTTP/1.1 200 ")
        assert engine.received[-1].header("traceparent") == expected, (before, behind)


@pytest.mark.parametrize(
    ("step", "status", "type_", "code"),
    [
        ("status:code=500", 502, "engine_error", "engine_failed"),
        ("status:code=429,retry_after=3", 503, "overloaded_error", "overloaded"),
        ("status:code=401", 502, "engine_error", "engine_failed"),
        ("status:code=400", 400, "invalid_request_error", "invalid_value"),
        ("garbage:at=before", 502, "engine_error", "engine_failed"),
        ("long_length", 502, "engine_error", "engine_failed"),
        ("endless_header", 502, "engine_error", "engine_failed"),
    ],
)
def test_an_engines_failure_is_the_contracts_error(
    gatehouse: Gatehouse, engine: EngineThread, step: str, status: int, type_: str, code: str
) -> None:
    engine.engine.script.clear()
    engine.play(step)
    response = gatehouse.chat()
    assert response.status_code == status
    error = errors_of(response)
    assert error["type"] == type_
    if status != 400:
        assert error["code"] == code
    if status == 503:
        assert response.headers["retry-after"] == "3"
    assert gatehouse.outcome(response.headers["x-request-id"])["status"] == status
    engine.engine.script.clear()
    assert gatehouse.chat().status_code == 200  # so that the failures of these cases do not follow one another and open the breaker


def test_metrics_count_what_happened(gatehouse: Gatehouse) -> None:
    before = gatehouse.metric("gatehouse_requests_total", model="m1", status="200")
    gatehouse.chat()
    assert gatehouse.metric("gatehouse_requests_total", model="m1", status="200") == before + 1
    assert gatehouse.metric("gatehouse_overhead_seconds_count", model="m1") > 0
    assert gatehouse.metric("gatehouse_in_flight") == 0
    assert "test-key" not in gatehouse.metrics()


def test_the_audit_log_holds_no_text_and_no_key(gatehouse: Gatehouse) -> None:
    response = gatehouse.chat("a very private sentence")
    gatehouse.outcome(response.headers["x-request-id"])
    text = json.dumps(gatehouse.audit()) + "\n".join(gatehouse.lines)
    assert "private sentence" not in text
    assert KEY not in text
