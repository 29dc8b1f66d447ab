"""Client certificates behind a real haproxy: one that terminates TLS and forwards them (RFC 9440), and one that passes TLS through with the
PROXY protocol ahead of it."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e import adminapi
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import Gatehouse
from tests.e2e.test_mtls import BODY, PRINCIPALS, WEB
from tests.e2e.test_proxies import CLIENT, PROXY, Site, haproxy
from tests.pki import Authority, Issued
from tests.waiting import until

TERMINATES = """
listen terminates
    mode http
    bind 127.0.0.1:{port} ssl crt {pem} ca-file {ca} verify optional
    http-request del-header client-cert
    http-request set-header client-cert ":%[ssl_c_der,base64]:" if {{ ssl_c_used }}
    option forwardfor
    server gatehouse {target} source {source}
"""
PASSES = """
listen passes
    mode tcp
    bind 127.0.0.1:{port}
    server gatehouse {target} source {source} send-proxy-v2
"""


class Way(Site):
    """One way through haproxy, with TLS towards the client."""

    def __init__(self, template: str, target: str, authority: Authority, pem: Path) -> None:
        super().__init__("way", target, "http", "")
        self.template, self.authority, self.pem = template, authority, pem

    def text(self) -> str:
        return self.template.format(port=self.port, target=self.target, source=PROXY, pem=self.pem, ca=self.authority.cert)

    def ask(self, issued: Issued | None, **headers: str) -> httpx.Response:
        transport = httpx.HTTPTransport(local_address=CLIENT, verify=self.authority.context(issued))
        with httpx.Client(transport=transport, timeout=60, trust_env=False) as client:
            return client.post(f"https://127.0.0.1:{self.port}/v1/chat/completions", json=BODY, headers=headers)


@pytest.fixture(params=["terminates", "passes"])
def way(request: pytest.FixtureRequest, tmp_path: Path, engine: EngineThread) -> Iterator[tuple[Way, Gatehouse]]:
    authority = Authority(tmp_path / "ca")
    server = authority.server()
    pem = tmp_path / "both.pem"
    pem.write_bytes(server.pem + Path(server.key).read_bytes())
    config = adminapi.config(tmp_path / "state", engine.port)
    mtls: dict[str, Any] = {"principals": PRINCIPALS, "crl": authority.crl()}
    config["listen"] |= {"trusted_peers": [PROXY]}
    if request.param == "terminates":
        mtls |= {"authorities": [authority.cert], "forwarded": {"peers": [PROXY]}}
    else:
        config["listen"] |= {"proxy_protocol": "required", "tls": {"cert": server.cert, "key": server.key, "client_ca": authority.cert}}
    config["identity"]["mtls"] = mtls
    with Gatehouse(tmp_path, config) as gatehouse:
        made = Way(TERMINATES if request.param == "terminates" else PASSES, gatehouse.url, authority, pem)
        with haproxy(tmp_path, made):
            yield made, gatehouse


def test_a_certificate_is_a_login_behind_a_proxy(way: tuple[Way, Gatehouse]) -> None:
    through, gatehouse = way
    authority = through.authority
    issued = authority.issue(uris=[WEB])
    answer = through.ask(issued)
    assert answer.status_code == 200, answer.text
    gatehouse.outcome(answer.headers["x-request-id"])  # the intent is before it: in the log itself it may come a moment after the answer
    record = next(r for r in gatehouse.audit() if r.get("kind") == "intent" and r.get("request_id") == answer.headers["x-request-id"])
    assert (record["principal"], record["credential"], record["peer"]) == (WEB, "mtls", CLIENT)
    assert through.ask(None).json()["error"]["code"] == "missing_credentials"
    forged = {"client-cert": ":" + b64encode(issued.der).decode() + ":"}
    assert through.ask(None, **forged).json()["error"]["code"] == "missing_credentials", "a client cannot send the header itself"
    assert through.ask(authority.issue("nobody"), **forged).json()["error"]["code"] == "missing_credentials"
    authority.revoke(issued)
    authority.crl()
    until(lambda: through.ask(issued).status_code == 401, what="the refusal of the revoked certificate")
