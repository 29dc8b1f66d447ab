"""Approvals over two gateways on one PostgreSQL, decided by a server that their webhook tells: it checks what it is told, fetches the
arguments, and posts its decisions signed, as docs/approvals.md describes, with code of its own.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.e2e import adminapi
from tests.e2e.harness import Gatehouse
from tests.e2e.replicas import PEPPER
from tests.fakes.tools import ToolEngine
from tests.integration.postgres import (
    PostgresServer,
    postgres,  # noqa: F401 - a fixture
)
from tests.waiting import until

SECRET = "a secret of the operators' server, long enough"
DANA, GLOBEX, SECOND = (f"{name}-key-0123456789abcdef0123456789abcdef" for name in ("dana", "globex", "second"))
TEXT = 'call delete_file {"path": "/data/x", "force": true}'


class Operators:
    """The operators' server. told: what it was told, signatures checked. wrong: messages whose signature was not right."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []
        self.wrong = 0
        self._nonces: set[str] = set()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                moment, nonce = self.headers["x-gatehouse-timestamp"], self.headers["x-gatehouse-nonce"]
                expected = signature(body, moment, nonce)
                fresh = nonce not in server._nonces and abs(time.time() - int(moment)) < 300
                server._nonces.add(nonce)
                if fresh and hmac.compare_digest(expected, self.headers["x-gatehouse-signature"]):
                    server.told.append(json.loads(body))
                else:
                    server.wrong += 1
                self.send_response(204)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/approvals"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def of(self, id: str) -> list[str]:
        return [one["event"] for one in self.told if one["id"] == id]

    def asked(self, id: str) -> dict[str, Any]:
        """What it was told when this approval was asked for."""
        until(lambda: "approval.asked" in self.of(id), what="the message to the operators' server")
        return next(one for one in self.told if one["id"] == id)


def signature(body: bytes, moment: str, nonce: str) -> str:
    return "v1=" + hmac.new(SECRET.encode(), f"{moment}.{nonce}.".encode() + body, hashlib.sha256).hexdigest()


def signed(told: dict[str, Any], *, late: int = 0, **changes: Any) -> tuple[bytes, dict[str, str]]:
    """A decision and its headers."""
    decision = {
        "id": told["id"],
        "decision": "approve",
        "reason": "ticket 4711",
        "by": "olga",
        "arguments_sha256": told["arguments_sha256"],
    }
    body = json.dumps({**decision, **changes}).encode()
    moment, nonce = str(int(time.time()) - late), uuid4().hex
    return body, {"x-gatehouse-timestamp": moment, "x-gatehouse-nonce": nonce, "x-gatehouse-signature": signature(body, moment, nonce)}


@pytest.fixture(scope="module")
def engine() -> Iterator[ToolEngine]:
    running = ToolEngine()
    yield running
    running.close()


@pytest.fixture(scope="module")
def operators() -> Iterator[Operators]:
    running = Operators()
    yield running
    running.close()


@pytest.fixture(scope="module")
def replicas(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, engine: ToolEngine, operators: Operators
) -> Iterator[list[Gatehouse]]:
    server: PostgresServer = request.getfixturevalue("postgres")
    url = server.database()
    rules = [{"tool": "delete_*", "of": ["call"], "action": "hold", "reversibility": "irreversible"}, {"tool": "*", "action": "allow"}]
    parts: dict[str, Any] = {
        "guardrails": [{"name": "tools", "type": "tool_calls", "settings": {"rules": rules, "approvers": ["user/olga", "user/dana"]}}],
        "approvals": {"webhook": {"url": operators.url, "secret": SECRET, "timeout": "60s"}},  # nobody who stands still is told twice
    }
    gateways = []
    for number in range(2):
        directory = tmp_path_factory.mktemp(f"replica{number}")
        config = adminapi.config(directory / "state", engine.port, **{**parts, "store": {"url": url, "upstreams": ["127.0.0.0/8"]}})
        config["identity"]["api_keys"]["static"] += [
            {"id": "dana", "key": DANA, "tenant": "acme", "models": ["*"], "user": "dana"},
            {"id": "second", "key": SECOND, "tenant": "acme", "models": ["*"], "user": "dana"},
            {"id": "other-dana", "key": GLOBEX, "tenant": "globex", "models": ["*"], "user": "dana"},
        ]
        gateways.append(Gatehouse(directory, config, {"GATEHOUSE_PEPPER": PEPPER}))
    try:
        for gateway in gateways:
            gateway.launch()
        for gateway in gateways:
            gateway.await_start()
        yield gateways  # a test may put another process in the place of one
    finally:
        codes = [gateway.stop() for gateway in gateways if gateway.process is not None]
    assert codes == [0, 0], [line for gateway in gateways for line in gateway.lines]


def ask(gateway: Gatehouse, approval: str = "", *, key: str = DANA, text: str = TEXT, **fields: Any) -> httpx.Response:
    headers = {"x-gatehouse-approval": approval} if approval else {}
    body = {"model": "m1", "messages": [{"role": "user", "content": text}], **fields}
    with gateway.client(key) as client:
        return client.post("/v1/chat/completions", json=body, headers=headers)


def held(gateway: Gatehouse, **fields: Any) -> str:
    answer = ask(gateway, **fields)
    assert answer.status_code == 409, answer.text
    return str(answer.json()["error"]["approval"]["id"])


def code(answer: httpx.Response) -> tuple[int, str]:
    found = answer.json()
    return answer.status_code, found["code"] if "code" in found else found["error"]["code"]


def post(gateway: Gatehouse, body: bytes, headers: dict[str, str]) -> httpx.Response:
    """As any server would, without a credential."""
    return httpx.post(f"{gateway.admin_url}/webhooks/approvals", content=body, headers=headers, trust_env=False, timeout=60)


def test_a_server_of_the_operators_decides_at_one_replica_what_another_holds(
    replicas: list[Gatehouse], operators: Operators, engine: ToolEngine
) -> None:
    first, second = replicas
    before = len(engine.asked)
    id = held(first)
    told = operators.asked(id)
    assert told["tools"][0]["reversibility"] == "irreversible" and "/data/x" not in json.dumps(operators.told)
    with adminapi.admin(second, "auditor") as client:
        shown = client.get(f"/approvals/{id}").json()
    assert shown["calls"][0]["arguments"] == {"path": "/data/x", "force": True}
    assert shown["arguments_sha256"] == told["arguments_sha256"]
    decision = signed(told)
    assert post(second, *decision).status_code == 200
    for gateway in replicas:
        assert code(post(gateway, *decision)) == (409, "replayed"), "one message counts once, wherever it comes"
    until(lambda: operators.of(id) == ["approval.asked", "approval.decided"], what="the message about the decision")
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda number: ask(replicas[number % 2], id), range(8)))
    assert sorted(answer.status_code for answer in answers) == [200] + [403] * 7, [answer.text for answer in answers]
    assert {code(answer) for answer in answers if answer.status_code != 200} == {(403, "approval_used")}
    (given,) = [answer for answer in answers if answer.status_code == 200]
    assert given.json()["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "delete_file"
    assert len(engine.asked) == before + 1 and operators.wrong == 0
    wanted = {"approval_asked", "approval_seen", "approval_decided", "approval_returned"}

    def recorded() -> set[str]:
        return {one["event"] for gateway in replicas for one in gateway.audit() if one.get("target", "").endswith(id)}

    until(lambda: wanted <= recorded(), what="the records of both")


def test_decisions_that_are_not_what_the_server_signed_change_nothing(replicas: list[Gatehouse], operators: Operators) -> None:
    first, second = replicas
    id = held(first, text=TEXT.replace("/data/x", "/data/y"))
    told = operators.asked(id)
    body, headers = signed(told)
    refused = [
        (post(second, body.replace(b'"olga"', b'"oleg"'), headers), (401, "invalid_signature")),
        (post(second, body, {**headers, "x-gatehouse-nonce": uuid4().hex}), (401, "invalid_signature")),
        (post(second, *signed(told, late=400)), (401, "invalid_signature")),
        (post(second, *signed(told, late=-400)), (401, "invalid_signature")),
        (post(second, body, {}), (401, "invalid_signature")),
        (post(second, *signed(told, by="dana")), (403, "self_approval")),
        (post(second, *signed(told, by="boris")), (403, "not_an_approver")),
        (post(second, *signed(told, arguments_sha256="0" * 64)), (403, "approval_mismatch")),
        (post(second, *signed(told, id="apr-none")), (404, "not_found")),
        (post(second, *signed(told, decision="Approve")), (400, "invalid_value")),
        (post(second, *signed(told, until="2099")), (400, "invalid_value")),
    ]
    for answer, wanted in refused:
        assert code(answer) == wanted, answer.text
    for gateway in replicas:
        assert code(ask(gateway, id, text=TEXT.replace("/data/x", "/data/y"))) == (409, "approval_pending")
    assert post(first, *signed(told, decision="deny")).status_code == 200
    assert code(ask(second, id, text=TEXT.replace("/data/x", "/data/y"))) == (403, "approval_denied")
    assert code(post(first, *signed(told))) == (409, "already_decided")


def test_an_approval_is_the_requests_own_through_a_restart(replicas: list[Gatehouse], operators: Operators, engine: ToolEngine) -> None:
    first, second = replicas
    text = TEXT.replace("/data/x", "/data/z")
    id = held(first, text=text)
    told = operators.asked(id)
    assert first.stop() == 0
    body, headers = signed(told)
    assert post(second, body, headers).status_code == 200
    replicas[0] = first = Gatehouse(first.directory, first.config, first.environ).start()
    assert code(post(first, body, headers)) == (409, "replayed"), "the number is remembered through the restart"
    before = len(engine.asked)
    for gateway in replicas:
        assert code(ask(gateway, id, key=SECOND, text=text)) == (403, "approval_unknown"), "another key of the same person"
        assert code(ask(gateway, id, key=GLOBEX, text=text)) == (403, "approval_unknown"), "the same name in another tenant"
        assert code(ask(gateway, id, text=text.replace("true", "false"))) == (403, "approval_mismatch")
        assert code(ask(gateway, id, text=text, user="someone")) == (403, "approval_mismatch")
    assert len(engine.asked) == before
    streamed = ask(first, id, text=text, stream=True)
    assert streamed.status_code == 200 and streamed.text.endswith("data: [DONE]\n\n") and "delete_file" in streamed.text
    assert len(engine.asked) == before
    assert code(ask(second, id, text=text)) == (403, "approval_used")
