"""The data listener's other paths: a closed table, the models that a caller may see, health, metadata."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.core.errors import AuthenticationError, EngineError, LimitExceeded, Overloaded
from gateway.core.specs import CorsSpec
from gateway.core.types import Headers, Peer, Principal, ResponseHead, Usage
from gateway.server.app import AT_ONCE, DataApplication, listed, written
from gateway.server.asgi import AsgiApplication
from gateway.server.health import Health
from gateway.telemetry.tracing import Sampler
from policies.rbac import ModelAccess
from tests.fakes.receiver import until
from tests.unit.gateway.pipeline.world import World
from tests.unit.gateway.server.wires import Wire, get


class Site:
    """A connection to the real application over a fake world."""

    def __init__(self, **world: Any) -> None:
        self.world = World(**world)
        self.wire = Wire(self.world)
        self.wire.state.application = AsgiApplication(DataApplication(self.world.plane, Health(self.world.plane)))

    async def ask(self, path: bytes, *lines: bytes, method: bytes = b"GET") -> tuple[int, dict[str, str], bytes]:
        self.wire.transport.written.clear()
        self.wire.receive(get(path, *lines).replace(b"GET", method, 1))
        await self.answered()
        head, _, body = self.wire.written.partition(b"\r\n\r\n")
        first, *rest = head.decode().split("\r\n")
        return int(first.split(" ")[1]), dict(line.split(": ", 1) for line in rest), body

    async def answered(self) -> None:
        await until(lambda: self.wire.connection.serving is None)


def code(body: bytes) -> str:
    return str(json.loads(body)["error"]["code"])


@pytest.mark.parametrize(
    "path",
    [
        b"/", b"/v1", b"/v1/models/", b"/metrics", b"/admin/v1/keys", b"/slots", b"/control/drain", b"/api/tags", b"/props",
        b"/livez/", b"/LIVEZ", b"//livez", b"/%6civez", b"/livez;x", b"/v1/chat/completions/", b"/v2/", b"/v3",
        b"/health/x", b"http://evil/x", b"/.env",
    ],
)  # fmt: skip
async def test_what_is_not_in_the_table_does_not_exist(path: bytes) -> None:
    status, _, body = await Site().ask(path)
    assert status == 404
    assert code(body) in ("not_found", "model_not_found")


@pytest.mark.parametrize(
    ("path", "setting"),
    [("/v1/files", "files.enabled"), ("/v1/files/file-1/content", "files.enabled"), ("/v1/batches", "batches.enabled"), ("/v1/filesx", "")],
)
async def test_what_is_switched_off_is_not_said_to_have_another_path(path: str, setting: str) -> None:
    for method in (b"GET", b"POST"):
        status, _, body = await Site().ask(path.encode(), method=method)
        message = json.loads(body)["error"]["message"]
        assert (status, code(body)) == (404, "not_found") and "Did you mean" not in message
        assert (f"({setting})" in message) is ("not enabled" in message) is bool(setting)


@pytest.mark.parametrize(
    ("path", "likely"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/responses", "/v1/responses"),
        ("/v1/v1/messages", "/v1/messages"),
        ("/v1/chat/completions/models", "/v1/models"),
        ("/v1/chat/completions/chat/completions", "/v1/chat/completions"),
        ("/openai/deployments/m/chat/completions", "/v1/chat/completions"),
        ("/api/tags", ""),
        ("/v1/messages/batches", ""),
        ("/" * 400 + "v1/embeddings", ""),
    ],
)
async def test_a_wrong_base_url_is_told(path: str, likely: str) -> None:
    status, _, body = await Site().ask(path.encode(), method=b"POST")
    message = json.loads(body)["error"]["message"]
    assert status == 404 and message.startswith("There is no ")
    assert ("Did you mean" in message) is bool(likely) and (not likely or f"mean {likely}?" in message)


@pytest.mark.parametrize("path", [b"/x/../livez", b"/v1/models/..", b"/v1/models/%2e%2e", b"/v2/models/m/versions/%2e%2e/infer"])
async def test_a_path_with_a_dot_segment_is_refused(path: bytes) -> None:
    status, _, body = await Site().ask(path)
    assert (status, code(body)) == (400, "invalid_request")


async def test_a_target_in_absolute_form_is_its_path() -> None:
    assert (await Site().ask(b"http://evil/livez"))[0] == 200
    status, _, body = await Site().ask(b"http://evil/v1/models/m")
    assert (status, json.loads(body)["id"]) == (200, "m")


@pytest.mark.parametrize("path", [b"/livez", b"/health/liveliness", b"/v2/health/live"])
async def test_alive(path: bytes) -> None:
    site = Site()
    site.world.identity.error = AuthenticationError("no")
    status, _, body = await site.ask(path)
    assert (status, json.loads(body)) == (200, {"status": "ok", **({"live": True} if path.startswith(b"/v2") else {})})


@pytest.mark.parametrize("path", [b"/readyz", b"/health", b"/health/readiness", b"/v2/health/ready"])
async def test_ready(path: bytes) -> None:
    site = Site()
    protocol = path.startswith(b"/v2")
    status, _, body = await site.ask(path)
    assert (status, json.loads(body)["status"], json.loads(body).get("ready")) == (200, "ready", True if protocol else None)
    site.world.route.ready = False
    status, _, body = await site.ask(path)
    assert (status, json.loads(body)["not_ready"], json.loads(body).get("ready")) == (503, ["endpoints"], False if protocol else None)


async def test_the_models_are_listed_once_without_aliases() -> None:
    status, headers, body = await Site().ask(b"/v1/models")
    assert status == 200
    assert headers["content-type"] == "application/json"
    assert json.loads(body) == {"object": "list", "data": [{"id": "m", "object": "model", "created": 0, "owned_by": "gatehouse"}]}


async def test_models_that_a_caller_may_not_see_are_not_listed() -> None:
    site = Site()
    site.world.authorizer.visible = False
    assert json.loads((await site.ask(b"/v1/models"))[2])["data"] == []


async def test_thousands_of_models_are_listed_in_slices() -> None:
    site = Site()
    models = site.world.snapshot.models
    models.update({f"alias-{number}": models["m"] for number in range(3000)})
    site.world.authorizer.hidden = {"m"}
    names = ["alias", *[f"alias-{number}" for number in range(3000)]]
    data = json.loads((await site.ask(b"/v1/models"))[2])["data"]
    assert [one["id"] for one in data] == names and data[1] == {"id": "alias-0", "object": "model", "created": 0, "owned_by": "gatehouse"}
    data = json.loads((await site.ask(b"/v1/engines"))[2])["data"]
    assert [one["id"] for one in data] == names and data[1] == {"id": "alias-0", "object": "engine", "owner": "gatehouse", "ready": True}
    site.world.authorizer.hidden = set()
    assert [one["id"] for one in json.loads((await site.ask(b"/v1/models"))[2])["data"]] == ["m"]


async def test_a_step_of_the_list_of_models_looks_at_few() -> None:
    site = Site()
    models = site.world.snapshot.models
    models.update({f"alias-{number}": models["m"] for number in range(3000)})
    asked: list[str] = []
    site.world.authorizer.may_see = lambda principal, name, version="": asked.append(name) or True  # type: ignore[method-assign,func-returns-value,assignment]
    most, before = 0, 0
    for _ in listed(site.world.snapshot, Principal("k", "acme", "api_key", ("*",))):
        most, before = max(most, len(asked) - before), len(asked)
    assert len(asked) == len(models) and most == AT_ONCE
    assert sum(1 for _ in written(list(models.items()), lambda entry, name: {})) == -(-len(models) // AT_ONCE)


async def test_the_models_as_anthropic_s_clients_ask_for_them() -> None:
    site = Site()
    models = site.world.snapshot.models
    models.update({f"alias-{number}": models["m"] for number in range(300)})
    site.world.authorizer.hidden = {"m"}

    async def page(query: bytes) -> tuple[list[str], bool]:
        status, _, body = await site.ask(b"/v1/models" + query, b"anthropic-version: 2023-06-01")
        assert status == 200
        shown = json.loads(body)
        names = [one["id"] for one in shown["data"]]
        assert (shown["first_id"], shown["last_id"]) == ((names[0], names[-1]) if names else (None, None))
        return names, bool(shown["has_more"])

    assert await page(b"?limit=2") == (["alias", "alias-0"], True)
    assert await page(b"?limit=2&after_id=alias-297") == (["alias-298", "alias-299"], False)
    assert await page(b"?limit=2&before_id=alias-1") == (["alias", "alias-0"], False)
    assert await page(b"?after_id=alias-7&before_id=alias-3") == ([], False)
    for limit in (b"0", b"1001", b"-1", b"x", b"00001" + b"9" * 5000):
        status, _, body = await site.ask(b"/v1/models?limit=" + limit, b"anthropic-version: 2023-06-01")
        assert (status, json.loads(body)["type"]) == (400, "error"), limit


@pytest.mark.parametrize(("path", "visible", "status"), [(b"m", True, 200), (b"alias", True, 200), (b"m", False, 404), (b"x", True, 404)])
async def test_one_model(path: bytes, visible: bool, status: int) -> None:
    site = Site()
    site.world.authorizer.visible = visible
    found, _, body = await site.ask(b"/v1/models/" + path)
    assert found == status
    if status == 200:
        assert json.loads(body)["id"] == "m"
    else:
        assert code(body) == "model_not_found"


async def test_a_caller_who_may_only_use_an_alias_finds_the_model_under_it() -> None:
    site = Site()
    site.world.authorizer.hidden = {"m"}
    assert [model["id"] for model in json.loads((await site.ask(b"/v1/models"))[2])["data"]] == ["alias"]
    status, _, body = await site.ask(b"/v1/models/alias")
    assert (status, json.loads(body)["id"]) == (200, "alias")
    assert (await site.ask(b"/v1/models/m"))[0] == 404


@pytest.mark.parametrize("path", [b"/v1/models", b"/v1/models/m", b"/v2/models/m"])
async def test_models_need_a_credential(path: bytes) -> None:
    site = Site()
    site.world.identity.caller = None
    status, headers, body = await site.ask(path)
    assert (status, code(body)) == (401, "missing_credentials")
    assert headers["www-authenticate"].startswith("Bearer")
    assert site.world.metrics.denials == {(401, "missing_credentials"): 1}
    site.world.identity.error = AuthenticationError("Bad.", code="invalid_api_key")
    assert (await site.ask(path))[0] == 401


async def test_a_response_cannot_be_cancelled_as_none_runs_in_the_background() -> None:
    status, _, body = await Site().ask(b"/v1/responses/resp_1/cancel", method=b"POST")
    assert status == 400 and "close its connection" in json.loads(body)["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        (b"POST", b"/v1/models", "GET, HEAD"),
        (b"DELETE", b"/livez", "GET, HEAD"),
        (b"GET", b"/v1/chat/completions", "POST"),
        (b"PUT", b"/v2/models/m/infer", "POST"),
        (b"GET", b"/v1/responses/input_tokens", "POST"),
    ],
)
async def test_methods(method: bytes, path: bytes, allow: str) -> None:
    status, headers, body = await Site().ask(path, method=method)
    assert (status, headers["allow"], code(body)) == (405, allow, "method_not_allowed")


async def test_a_head_request_has_no_body() -> None:
    status, headers, body = await Site().ask(b"/livez", method=b"HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["content-length"]) > 0


async def test_a_model_without_a_name_is_a_path_that_does_not_exist() -> None:
    status, _, body = await Site().ask(b"/v1/models/")
    assert (status, code(body)) == (404, "not_found") and "without the slash" in json.loads(body)["error"]["message"]


async def test_cors() -> None:
    site = Site(cors=CorsSpec(origins=("https://app",)))
    preflight = (b"origin: https://app", b"access-control-request-method: POST")
    for path in (b"/v1/chat/completions", b"/v1/models", b"/v2/models/m/infer"):
        status, headers, body = await site.ask(path, *preflight, method=b"OPTIONS")
        assert (status, body, headers["access-control-allow-origin"]) == (204, b"", "https://app")
        assert not {"content-length", "transfer-encoding"} & set(headers)  # RFC 9110, 8.6: a 204 has neither
    assert (await site.ask(b"/nothing", *preflight, method=b"OPTIONS"))[0] == 404
    status, headers, _ = await site.ask(b"/v1/models", b"origin: https://evil", b"access-control-request-method: GET", method=b"OPTIONS")
    assert status == 405
    assert "access-control-allow-origin" not in headers
    status, headers, _ = await site.ask(b"/v1/models", b"origin: https://app")
    assert headers["access-control-allow-origin"] == "https://app"
    site.world.identity.caller = None
    status, headers, _ = await site.ask(b"/v1/models", b"origin: https://app")
    assert (status, headers["access-control-allow-origin"]) == (401, "https://app")


async def test_a_gateway_that_issues_no_tokens_has_no_keys() -> None:
    status, headers, body = await Site().ask(b"/.well-known/jwks.json")
    assert (status, headers["content-type"], json.loads(body)) == (200, "application/json", {"keys": []})


async def test_the_server_of_the_tensor_protocol() -> None:
    status, _, body = await Site().ask(b"/v2")
    assert status == 200
    assert json.loads(body)["name"] == "gatehouse"


async def asked(site: Site, path: bytes, *lines: bytes) -> None:
    site.wire.receive(get(path, *lines))
    await until(lambda: site.world.engine.calls)


@pytest.mark.parametrize(
    ("path", "upstream"),
    [
        (b"/v2/models/m", b"/v2/models/m"),
        (b"/v2/models/alias", b"/v2/models/m"),
        (b"/v2/models/m/versions/3", b"/v2/models/m/versions/3"),
        (b"/v2/models/m/ready", b"/v2/models/m/ready"),
        (b"/v2/models/m/versions/3/ready", b"/v2/models/m/versions/3/ready"),
    ],
)
async def test_metadata_is_asked_of_an_endpoint(path: bytes, upstream: bytes) -> None:
    site = Site()
    await asked(site, path)
    call = site.world.call
    assert call.request_head.startswith(b"GET " + upstream + b" HTTP/1.1\r\n")
    assert b"authorization: Bearer engine-key\r\n" in call.request_head
    call.answer(b'{"name":"m"}')
    await site.answered()
    assert site.wire.status == 200 and site.wire.written.endswith(b'{"name":"m"}')
    assert site.world.route.attempts[0].results[0] == "success"


TRACE = b"a" * 32


@pytest.mark.parametrize(
    ("flags", "parent"), [(b"00", b"b" * 16), (b"01", None)], ids=["untraced: as it came", "traced: with a span of its own"]
)
async def test_metadata_belongs_to_the_callers_trace(flags: bytes, parent: bytes | None) -> None:
    site = Site()
    site.world.plane.sampler = Sampler(0.0, "follow")
    await asked(site, b"/v2/models/m/ready", b"traceparent: 00-%b-%b-%b" % (TRACE, b"b" * 16, flags))
    lines = site.world.call.request_head.split(b"\r\n")
    [line] = [line for line in lines if line.startswith(b"traceparent: ")]
    version, trace, span, flag = line.removeprefix(b"traceparent: ").split(b"-")
    assert (version, trace, flag) == (b"00", TRACE, flags)
    assert span == parent if parent is not None else len(span) == 16 and span != b"b" * 16


async def test_metadata_without_a_valid_trace_has_none() -> None:
    site = Site()
    await asked(site, b"/v2/models/m", b"traceparent: 00-zz")
    assert b"traceparent" not in site.world.call.request_head


@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"POST"])
@pytest.mark.parametrize(
    ("path", "own"),
    [
        (b"/v2/models/m/config", "/v2/models/m"),
        (b"/v2/models/m/stats", "/v2/models/m"),
        (b"/v2/models/m/generate", "/v2/models/m"),
        (b"/v2/models/alias/infer_schema", "/v2/models/alias"),
        (b"/v2/models/m/versions/3/config", "/v2/models/m/versions/3"),
        (b"/v2/models/m/versions", "/v2/models/m"),
    ],
)
async def test_an_action_that_no_model_has_is_told_with_those_that_it_has(method: bytes, path: bytes, own: str) -> None:
    site = Site()
    site.wire.receive(get(path).replace(b"GET", method, 1))
    await site.answered()
    body = site.wire.written.partition(b"\r\n\r\n")[2]
    assert site.wire.status == 404 and not site.world.engine.calls
    if method == b"HEAD":
        assert body == b""
        return
    told = f"There is no {path.decode()}. There are GET {own}, GET {own}/ready and POST {own}/infer."
    assert json.loads(body)["error"] == {"message": told, "type": "invalid_request_error", "param": None, "code": "not_found"}


@pytest.mark.parametrize("path", ["none/config", "m/config/stats", "m%2Fconfig", "hidden/config", "m/", "none"])
async def test_of_a_model_that_the_caller_does_not_see_nothing_is_told(path: str) -> None:
    site = Site()
    site.world.snapshot.models["hidden"] = site.world.snapshot.models["m"]
    site.world.authorizer.hidden = {"hidden"}
    status, _, body = await site.ask(f"/v2/models/{path}".encode())
    assert (status, code(body)) == (404, "model_not_found")


async def test_a_name_with_a_slash_is_a_models_first() -> None:
    site = Site()
    site.world.snapshot.models["m/config"] = site.world.snapshot.models["m"]
    await asked(site, b"/v2/models/m/config")
    assert site.world.call.request_head.startswith(b"GET /v2/models/m HTTP/1.1\r\n")
    site.world.call.answer(b"{}")
    await site.answered()
    assert site.wire.status == 200
    assert (await site.ask(b"/v2/models/m/config", method=b"POST"))[0] == 405
    site.world.authorizer.hidden = {"m/config"}
    status, _, body = await site.ask(b"/v2/models/m/config")
    assert (status, code(body)) == (404, "not_found"), "as where there is no such model"


async def test_metadata_of_an_engine_without_the_protocol() -> None:
    site = Site()
    await asked(site, b"/v2/models/m")
    site.world.call.answer(b"secret page", ResponseHead(404, []))
    await site.answered()
    assert site.wire.status == 404
    assert b"secret page" not in site.wire.written


@pytest.mark.parametrize(
    ("answered", "status", "expected"),
    [(400, 404, "model_not_found"), (501, 404, "model_not_found"), (503, 503, "no_healthy_endpoint"), (500, 502, "engine_failed")],
)
async def test_metadata_that_an_engine_does_not_give(answered: int, status: int, expected: str) -> None:
    site = Site()
    await asked(site, b"/v2/models/m")
    site.world.call.answer(b"secret page", ResponseHead(answered, []))
    await site.answered()
    head, _, body = site.wire.written.partition(b"\r\n\r\n")
    assert (site.wire.status, code(body)) == (status, expected)
    assert (b"retry-after:" in head) == (status == 503)
    assert b"secret page" not in body


async def test_metadata_of_an_engine_that_fails() -> None:
    site = Site()
    await asked(site, b"/v2/models/m")
    site.world.call.fail(Overloaded("busy", retry_after=1.5))
    await site.answered()
    assert site.wire.status == 503
    assert b"\r\nretry-after: 2\r\nretry-after-ms: 1500\r\n" in site.wire.written
    assert site.world.route.attempts[0].results[0] == "neutral", "the gateway itself could not ask"


async def test_metadata_of_an_engine_that_does_not_answer() -> None:
    site = Site()
    await asked(site, b"/v2/models/m")
    site.world.call.fail(EngineError("gone"))
    await site.answered()
    assert site.wire.status == 502
    assert site.world.route.attempts[0].results[0] == "failure"


async def test_metadata_is_limited_and_recorded_like_inference() -> None:
    site = Site()
    await asked(site, b"/v2/models/m/versions/3")
    (intent,) = site.world.audit.intents
    assert (intent.operation, intent.model, intent.principal, intent.peer) == ("metadata", "m", "k", "192.0.2.1")
    assert intent.detail == {"version": "3"}
    (reservation,) = site.world.limiter.reservations
    site.world.call.answer(b"{}")
    assert (site.world.outcome.outcome, site.world.outcome.operation, site.world.outcome.endpoint) == ("ok", "metadata", "a")
    assert reservation.settled == [Usage()]


async def test_metadata_beyond_a_limit_is_refused() -> None:
    site = Site()
    site.world.limiter.error = LimitExceeded("No.", retry_after=2.0)
    status, headers, body = await site.ask(b"/v2/models/m")
    assert (status, headers["retry-after"], code(body)) == (429, "2", "rate_limit_exceeded")
    assert site.world.engine.calls == []


async def test_metadata_of_a_model_whose_operations_the_key_may_not_call() -> None:
    site = Site()
    site.world.authorizer.allow = False
    status, _, body = await site.ask(b"/v2/models/m")
    assert (status, code(body)) == (403, "policy_denied")
    assert site.world.outcome.outcome == "denied" and site.world.engine.calls == []


@pytest.mark.parametrize("queued", [False, True])
async def test_a_client_that_leaves_before_its_metadata_frees_the_slot(queued: bool, caplog: pytest.LogCaptureFixture) -> None:
    site = Site()
    site.world.route.wait = queued
    site.wire.receive(get(b"/v2/models/m"))
    site.wire.transport.closed = True
    site.wire.connection.connection_lost(None)
    assert site.world.outcome.outcome == "cancelled"
    if queued:
        assert site.world.route.abandoned == site.world.route.queue
    else:
        assert site.world.call.cancelled and site.world.route.attempts[0].results == ["neutral"]
    assert caplog.records == []


async def test_head_of_metadata() -> None:
    site = Site()
    site.wire.receive(get(b"/v2/models/m").replace(b"GET", b"HEAD", 1))
    site.world.call.answer(b'{"name":"m"}')
    assert site.wire.status == 200 and site.wire.written.endswith(b"\r\n\r\n")
    assert b"content-length: 12\r\n" in site.wire.written


@pytest.mark.parametrize(("operations", "status"), [((), 200), (("infer",), 200), (("chat",), 403)])
async def test_metadata_needs_the_right_to_infer(operations: tuple[str, ...], status: int) -> None:
    site = Site()
    site.world.snapshot.authorizer = ModelAccess([site.world.entry.spec])
    site.world.identity.caller = Principal("k", "acme", "api_key", ("*",), operations=operations)
    site.wire.receive(get(b"/v2/models/m"))
    if status == 200:
        site.world.call.answer(b"{}")
    assert site.wire.status == status


ROUTES = [
    (b"POST", b"/v1/chat/completions"), (b"POST", b"/v1/completions"), (b"POST", b"/v1/embeddings"), (b"POST", b"/v2/models/m/infer"),
    (b"GET", b"/v1/models"), (b"GET", b"/v1/models/m"), (b"HEAD", b"/v1/models"),
    (b"GET", b"/v2/models/m"), (b"HEAD", b"/v2/models/m"), (b"GET", b"/v2/models/m/versions/1"), (b"GET", b"/v2/models/m/ready"),
]  # fmt: skip
"""Every way to a model or to the identity of a caller."""


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_a_failed_login_is_recorded_with_the_client_that_a_proxy_names(method: bytes, path: bytes) -> None:
    site = Site(trusted_peers=("192.0.2.1",))
    site.world.identity.error = AuthenticationError("Bad.", code="invalid_api_key")
    await site.ask(path, b"x-forwarded-for: 203.0.113.5", method=method)
    outcome = site.world.outcome
    assert (outcome.outcome, outcome.status, outcome.code, outcome.peer) == ("denied", 401, "invalid_api_key", "203.0.113.5")


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_the_client_that_a_proxy_names_is_the_one_that_logs_in(method: bytes, path: bytes) -> None:
    site = Site(trusted_peers=("192.0.2.1",))
    peers: list[str] = []
    authenticate = site.world.identity.authenticate

    def noted(headers: Headers, peer: Peer) -> Any:
        peers.append(peer.address)
        return authenticate(headers, peer)

    site.world.identity.authenticate = noted  # type: ignore[method-assign]
    site.wire.receive(get(path, b"x-forwarded-for: 203.0.113.5").replace(b"GET", method, 1))
    await until(lambda: peers)
    assert peers == ["203.0.113.5"]


async def test_metadata_too_large_is_an_error() -> None:
    site = Site()
    await asked(site, b"/v2/models/m")
    site.world.call.head().body(b"x" * 1024 * 1025)
    await site.answered()
    assert site.wire.status == 502
    assert site.world.call.over


async def test_metadata_waits_for_a_slot() -> None:
    site = Site()
    site.world.route.wait = True
    site.wire.receive(get(b"/v2/models/m"))
    await until(lambda: site.world.route.queue)
    site.world.route.queue[0].set(site.world.route.grant())
    await until(lambda: site.world.engine.calls)
    site.world.call.answer(b"{}")
    await site.answered()
    assert site.wire.status == 200


async def test_an_identity_that_must_be_waited_for() -> None:
    site = Site()
    caller = site.world.identity.caller

    async def wait() -> Any:
        return caller

    site.world.identity.caller = site.world.plane.tasks.wait(wait())
    assert (await site.ask(b"/v1/models"))[0] == 200
