"""Login by client certificate over real TLS, in one process and with workers: on both listeners, beside keys, behind a proxy."""

from __future__ import annotations

import socket
import ssl
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import yaml
from cryptography import x509
from typer.testing import CliRunner
from websockets.sync.client import connect

from gateway.app.main import app
from tests.e2e import adminapi
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, NARROW_KEY, Gatehouse
from tests.e2e.test_cli import environment
from tests.e2e.test_grpc import address, raw
from tests.e2e.test_sockets import Client
from tests.pki import DAY, SERVER, Authority, Issued, now
from tests.waiting import until

BODY = {"model": "m1", "messages": [{"role": "user", "content": "hi"}]}
WEB = "spiffe://example/ns/web/sa/api"
PRINCIPALS = [
    {"match": {"san_uri": "spiffe://example/ns/*/sa/*"}, "tenant": "mesh", "models": ["m*"]},
    {"match": {"common_name": "ops-*", "issuer": "CN=test CA"}, "tenant": "acme", "id": "{common_name}", "roles": ["admin"]},
    {"match": {"san_dns": "*.clients.example"}, "tenant": "mesh", "models": ["m*"]},
]


class Site:
    def __init__(self, folder: Path, engine: EngineThread, workers: int, **parts: Any) -> None:
        self.folder, self.engine = folder, engine
        self.authority = Authority(folder / "ca")
        server = self.authority.server(expires=now() + 9 * DAY)
        tls = {"cert": server.cert, "key": server.key, "client_ca": self.authority.cert}
        self.config = adminapi.config(folder / "state", engine.port, **parts)
        self.config["listen"] |= {"tls": tls, "admin_tls": tls}
        self.config["identity"]["mtls"] = {"principals": PRINCIPALS, "crl": self.authority.crl()}
        self.gatehouse = Gatehouse(folder, self.config, arguments=["--workers", str(workers)] if workers else [])

    def client(self, issued: Issued | None, *, admin: bool = False, key: str = "") -> httpx.Client:
        url = f"{self.gatehouse.admin_url}/admin/v1" if admin else self.gatehouse.url
        headers = {"authorization": f"Bearer {key}"} if key else {}
        context = self.authority.context(issued)
        return httpx.Client(base_url=url, headers=headers, verify=context, trust_env=False, timeout=60)

    def ask(self, issued: Issued | None, *, key: str = "", **headers: str) -> httpx.Response:
        with self.client(issued, key=key) as client:
            return client.post("/v1/chat/completions", json=BODY, headers=headers)

    def code(self, issued: Issued | None, *, key: str = "", **headers: str) -> tuple[int, str]:
        answer = self.ask(issued, key=key, **headers)
        return answer.status_code, "" if answer.status_code == 200 else answer.json()["error"]["code"]

    @contextmanager
    def socket(self, issued: Issued | None, **headers: str) -> Iterator[Client]:
        url = self.gatehouse.url.replace("https://", "wss://") + "/v1/stream"
        context = self.authority.context(issued)
        with connect(url, additional_headers=headers, ssl=context, proxy=None, compression=None, open_timeout=60) as wire:
            yield Client(wire)

    def revoke(self, issued: Issued) -> None:
        self.authority.revoke(issued)
        self.authority.crl()


@pytest.fixture(scope="module", params=[0, 2], ids=["one process", "two workers"])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, engine: EngineThread) -> Iterator[Site]:
    needs_both = 'principal.id == "test" && source.certificate == ""'
    made = Site(
        tmp_path_factory.mktemp("mtls"),
        engine,
        request.param,
        roles={"anything": {"permissions": ["infer:*"]}},
        bindings=[{"effect": "deny", "role": "anything", "subjects": ["key/test"], "when": needs_both}],
    )
    with made.gatehouse:
        yield made


def test_a_certificate_is_a_login(site: Site) -> None:
    assert site.code(site.authority.issue(uris=[WEB])) == (200, "")
    assert site.code(site.authority.issue(dns=["a.clients.example"])) == (200, "")
    assert site.code(site.authority.issue("ops-1")) == (404, "model_not_found"), "somebody, but without a model"
    assert site.code(None) == (401, "missing_credentials")
    assert site.code(site.authority.issue("nobody")) == (401, "missing_credentials")
    assert site.code(site.authority.issue(uris=["spiffe://example/ns/web/sa/api/more"])) == (401, "missing_credentials")
    assert site.code(site.authority.issue("nobody"), key=adminapi.KEYS["none"]) == (200, "")


def test_a_certificate_counts_beside_one_credential(site: Site) -> None:
    issued = site.authority.issue(uris=[WEB])
    assert site.code(None, key=KEY) == (403, "policy_denied"), "this key needs a certificate too"
    assert site.code(issued, key=KEY) == (200, "")
    assert site.code(issued, key=NARROW_KEY) == (404, "model_not_found"), "the key says who it is"
    assert site.code(issued, key="x" * 40) == (401, "invalid_api_key"), "a bad key is not made good"
    assert site.code(issued, key=KEY, **{"x-api-key": "y" * 40}) == (400, "ambiguous_credentials")


def test_a_certificate_is_a_login_of_a_socket(site: Site) -> None:
    issued = site.authority.issue(uris=[WEB])
    with site.socket(issued) as client:
        assert client.answer("a")["status"] == 200
        site.revoke(issued)

        def refused() -> bool:
            found = client.answer("b")
            return found["status"] == 401 and found["body"]["error"]["code"] == "invalid_credentials"

        until(refused, what="the refusal of a message")
    with site.socket(None) as client:
        assert client.answer("a")["body"]["error"]["code"] == "missing_credentials"
    with site.socket(None, authorization=f"Bearer {KEY}") as client:
        assert client.answer("a")["body"]["error"]["code"] == "policy_denied", "this key needs a certificate too"
    with site.socket(site.authority.issue(uris=[WEB]), authorization=f"Bearer {KEY}") as client:
        assert client.answer("a")["status"] == 200


def test_bad_certificates_are_not_let_in(site: Site, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other")
    alone = Authority(tmp_path / "alone", "alone")
    constrained = Authority(tmp_path / "constrained", "constrained", parent=site.authority, permitted=[x509.DNSName("good.example")])
    bad = {
        "expired": site.authority.issue(uris=[WEB], expires=now() - DAY / 2),
        "of the future": site.authority.issue(uris=[WEB], begins=now() + DAY / 2),
        "another authority's": other.issue(uris=[WEB]),
        "self-signed": alone.issue(uris=[WEB], usage=None),
        "a server's": site.authority.issue(uris=[WEB], usage=[SERVER]),
        "with an unknown critical extension": site.authority.issue(uris=[WEB], critical=True),
        "beyond its authority's names": constrained.issue(dns=["a.clients.example"]),
    }
    for what, issued in bad.items():
        if what == "beyond its authority's names":
            Path(issued.cert).write_bytes(issued.pem + constrained.pem)
        with pytest.raises((httpx.HTTPError, ssl.SSLError)):
            site.ask(issued, key=KEY)
    for issued in (site.authority.issue(uris=[WEB], usage=None), site.authority.issue(uris=[WEB, "https://x"])):
        assert site.code(issued) == site.code(issued, key=KEY) == (401, "invalid_credentials")


def test_a_revoked_certificate_ends_open_connections(site: Site) -> None:
    issued, other = site.authority.issue(uris=[WEB]), site.authority.issue(uris=[WEB])
    with site.client(issued) as client, site.client(issued, key=adminapi.KEYS["none"]) as with_key, site.client(other) as untouched:
        for one in (client, with_key, untouched):
            assert one.post("/v1/chat/completions", json=BODY).status_code == 200
        site.revoke(issued)

        def refused() -> bool:
            # The code is judged in the same answer: a refusal closes the connection, and the next one may reach a worker that has not
            # read the list yet.
            answers = [one.post("/v1/chat/completions", json=BODY) for one in (client, with_key)]
            return all(one.status_code == 401 and one.json()["error"]["code"] == "invalid_credentials" for one in answers)

        until(refused, what="the refusal on the open connections")
        assert untouched.post("/v1/chat/completions", json=BODY).status_code == 200
    until(lambda: all(site.code(issued) == (401, "invalid_credentials") for _ in range(4)), what="the refusal of new connections")


def test_a_damaged_list_changes_nothing(site: Site) -> None:
    file = Path(site.config["identity"]["mtls"]["crl"])
    whole = file.read_bytes()

    def complaints() -> int:
        return sum("identity.mtls.crl: " in line and "the list that was read before counts" in line for line in site.gatehouse.lines)

    before = complaints()
    file.write_bytes(whole[: len(whole) // 2])
    until(lambda: complaints() > before, what="the complaint")
    assert site.code(site.authority.issue(uris=[WEB])) == (200, "")
    with site.client(None, admin=True, key=adminapi.KEYS["admin"]) as admin:
        text = {"content-type": "application/yaml"}
        assert admin.put("/config", content=yaml.safe_dump(site.config), headers=text).status_code == 200
        assert "gatehouse_crl_expiry_seconds" in admin.get(f"{site.gatehouse.admin_url}/metrics").text
    file.write_bytes(whole)


def test_the_admin_listener_takes_certificates(site: Site) -> None:
    ops, mesh = site.authority.issue("ops-1"), site.authority.issue(uris=[WEB])
    with site.client(ops, admin=True) as client:
        found = client.get("/whoami")
        assert found.status_code == 200, found.text
        assert (found.json()["id"], found.json()["tenant"]) == ("ops-1", "acme")
        assert client.get("/keys").status_code == 200
    with site.client(mesh, admin=True) as client:
        assert client.get("/keys").status_code == 403
    with site.client(None, admin=True) as client:
        assert client.get("/keys").status_code == 401
    site.revoke(ops)
    with site.client(ops, admin=True) as client:
        until(lambda: client.get("/keys").status_code == 401, what="the refusal")


def test_the_command_line_logs_in_with_a_certificate(site: Site, tmp_path: Path) -> None:
    ops = site.authority.issue("ops-2")
    home = {**environment(tmp_path), "GATEHOUSE_URL": site.gatehouse.admin_url}
    tls = ["--ca", site.authority.cert, "--cert", ops.cert, "--cert-key", ops.key]
    found = CliRunner().invoke(app, ["keys", "list", "--output", "json", *tls], env=home)
    assert found.exit_code == 0, found.stderr
    logged_in = CliRunner().invoke(app, ["login", "--url", site.gatehouse.admin_url, *tls], env=environment(tmp_path))
    assert logged_in.exit_code == 0 and "acme/ops-2 (admin) saved" in logged_in.stdout, logged_in.stderr
    assert CliRunner().invoke(app, ["status"], env=environment(tmp_path)).exit_code == 0
    unknown = CliRunner().invoke(app, ["status", "--ca", site.authority.cert, "--cert", ops.cert, "--cert-key", ops.cert], env=home)
    assert unknown.exit_code == 1 and f"the certificate in {ops.cert} cannot be used" in unknown.stderr


@pytest.mark.parametrize("site", [0], indirect=True, ids=["one process"], scope="module")
def test_calls_of_grpc_log_in_with_the_certificate_that_is_insisted_on(site: Site, tmp_path: Path) -> None:
    """grpcio can only insist, so a gateway of its own; one process, as what is tried is the listener."""
    authority = site.authority
    config = {**site.config, "state_dir": str(tmp_path / "state")}
    config["listen"] = {**config["listen"], "grpc": "127.0.0.1:0", "tls": {**config["listen"]["tls"], "require_client": True}}
    config["listen"].pop("admin_tls")

    def asked(channel: grpc.Channel, *metadata: tuple[str, str]) -> str:
        found = raw(channel, "ModelReady", b"\n\x02m1", metadata)
        if not isinstance(found, grpc.RpcError):
            return "OK"
        return dict(found.trailing_metadata() or ()).get("x-gatehouse-code") or found.code().name  # type: ignore[attr-defined]

    def channel_of(issued: Issued | None) -> grpc.Channel:
        root = Path(authority.cert).read_bytes()
        own = () if issued is None else (Path(issued.key).read_bytes(), Path(issued.cert).read_bytes())
        return grpc.secure_channel(address(gatehouse), grpc.ssl_channel_credentials(root, *own))

    key, narrow = ("authorization", f"Bearer {KEY}"), ("authorization", f"Bearer {NARROW_KEY}")
    issued, stranger = authority.issue(uris=[WEB]), Authority(tmp_path / "stranger").issue(uris=[WEB])
    with Gatehouse(tmp_path, config) as gatehouse:
        with channel_of(issued) as channel, channel_of(authority.issue("nobody")) as nobody, channel_of(authority.issue("ops-1")) as ops:
            assert [asked(channel), asked(channel, key), asked(channel, narrow)] == ["OK", "OK", "model_not_found"]
            assert asked(channel, ("authorization", f"Bearer {'x' * 40}")) == "invalid_api_key", "a bad key is not made good"
            assert asked(channel, key, ("x-api-key", "y" * 40)) == "ambiguous_credentials"
            assert [asked(nobody), asked(nobody, key), asked(ops)] == ["missing_credentials", "OK", "model_not_found"]
            site.revoke(issued)
            until(lambda: asked(channel) == asked(channel, key) == "invalid_credentials", what="the refusal on the open channel")
        for bad in (None, stranger, authority.issue(uris=[WEB], expires=now() - DAY / 2), authority.issue(uris=[WEB], usage=[SERVER])):
            with channel_of(bad) as channel:
                assert asked(channel, key) == "UNAVAILABLE", "there is no connection"


def test_an_authority_that_only_clients_send_can_be_revoked(engine: EngineThread, tmp_path: Path) -> None:
    """Where nothing else would tell: no list covers it, and that counts as good. Over HTTP, resumed sessions, the admin listener, gRPC."""
    site = Site(tmp_path, engine, 0)
    site.config["identity"]["mtls"]["on_crl_failure"] = "open"
    insisting = {**site.config["listen"]["tls"], "require_client": True}
    site.config["listen"] |= {"grpc": "127.0.0.1:0", "tls": insisting}
    site.gatehouse = gatehouse = Gatehouse(tmp_path, site.config)
    between = Authority(tmp_path / "between", "between", parent=site.authority)
    issued, direct, root = between.issue(uris=[WEB]), site.authority.issue(uris=[WEB]), Path(site.authority.cert).read_bytes()
    Path(issued.cert).write_bytes(issued.pem + between.pem)
    context = site.authority.context(issued)
    host, port = "127.0.0.1", -1

    def resumed(session: ssl.SSLSession | None) -> tuple[str, ssl.SSLSession | None]:
        with (
            socket.create_connection((host, port), timeout=60) as plain,
            context.wrap_socket(plain, server_hostname=host, session=session) as tls,
        ):
            tls.sendall(b"GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            status = tls.recv(12).decode()[9:]
            assert tls.session_reused is (session is not None)
            return status, tls.session

    def called() -> str:
        credentials = grpc.ssl_channel_credentials(root, Path(issued.key).read_bytes(), Path(issued.cert).read_bytes())
        with grpc.secure_channel(address(gatehouse), credentials) as channel:
            found = raw(channel, "ModelReady", b"\n\x02m1", ())
        return dict(found.trailing_metadata() or ()).get("x-gatehouse-code", "?") if isinstance(found, grpc.RpcError) else "OK"  # type: ignore[attr-defined]

    with gatehouse:
        port = int(gatehouse.url.rpartition(":")[2])
        first, session = resumed(None)
        assert [first, resumed(session)[0], called(), site.code(direct)] == ["200", "200", "OK", (200, "")]
        with site.client(issued, admin=True) as admin:
            assert admin.get("/keys").status_code == 403, "somebody"
            site.authority.revoked.append(between.certificate.serial_number)
            site.authority.crl()
            until(lambda: resumed(session)[0] == "401", what="the refusal of a resumed session")
            assert [called(), site.code(issued), site.code(direct)] == ["invalid_credentials", (401, "invalid_credentials"), (200, "")]
            until(lambda: admin.get("/keys").status_code == 401, what="the refusal on the open connection")


class Proxied:
    """A gateway without TLS behind a proxy, which is this test."""

    def __init__(self, folder: Path, engine: EngineThread) -> None:
        self.authority, self.engine = Authority(folder / "ca"), engine
        self.config = adminapi.config(folder / "state", engine.port)
        self.config["listen"] |= {"trusted_peers": ["127.0.0.1"]}
        self.config["identity"]["mtls"] = {
            "principals": PRINCIPALS,
            "authorities": [self.authority.cert],
            "crl": self.authority.crl(),
            "forwarded": {"peers": ["127.0.0.1"]},
        }
        self.gatehouse = Gatehouse(folder, self.config)

    def ask(self, *values: bytes, chain: bytes | None = None, source: str = "127.0.0.1") -> tuple[int, str]:
        headers = [(b"client-cert", value) for value in values]
        if chain is not None:
            headers.append((b"client-cert-chain", chain))
        transport = httpx.HTTPTransport(local_address=source)
        with httpx.Client(transport=transport, timeout=60) as client:
            answer = client.post(f"{self.gatehouse.url}/v1/chat/completions", json=BODY, headers=headers)
        return answer.status_code, "" if answer.status_code == 200 else answer.json()["error"]["code"]


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory, engine: EngineThread) -> Iterator[Proxied]:
    made = Proxied(tmp_path_factory.mktemp("proxied"), engine)
    with made.gatehouse:
        yield made


def header(*certificates: Issued) -> bytes:
    return b", ".join(b":" + b64encode(one.der) + b":" for one in certificates)


def test_a_trusted_proxy_forwards_certificates(proxied: Proxied, tmp_path: Path) -> None:
    before = len(proxied.engine.received)
    assert proxied.ask(header(proxied.authority.issue(uris=[WEB]))) == (200, "")
    between = Authority(tmp_path / "between", "between", parent=proxied.authority)
    below = between.issue(uris=[WEB])
    chain = b":" + b64encode(between.der) + b":"
    assert proxied.ask(header(below)) == (401, "invalid_credentials")
    assert proxied.ask(header(below), chain=chain) == (503, "revocation_unavailable"), "no list of that issuer"
    assert proxied.ask() == (401, "missing_credentials")
    (request,) = proxied.engine.received[before:]
    assert not [name for name, _ in request.headers if name.lower().startswith("client-cert")], "engines get none of it"


def test_nobody_else_does(proxied: Proxied) -> None:
    value = header(proxied.authority.issue(uris=[WEB]))
    assert proxied.ask(value, source="127.0.0.2") == (401, "missing_credentials")
    assert proxied.ask(b"junk", source="127.0.0.2") == (401, "missing_credentials"), "it is not even read"


def test_hostile_headers_are_refused(proxied: Proxied, tmp_path: Path) -> None:
    good = header(proxied.authority.issue(uris=[WEB]))
    stranger = Authority(tmp_path / "stranger")
    for values in (
        (good[: len(good) // 2],),
        (good[: len(good) // 2] + b":",),
        (b"",),
        (b":" + b"A" * 12000 + b":",),
        (b":not base64 at all:",),
        (good.replace(b"A", b"%", 1),),
        (good, good),
        (good + b", " + good,),
        (header(stranger.issue(uris=[WEB])),),
        (header(proxied.authority.issue(uris=[WEB], expires=now() - DAY / 2)),),
        (header(proxied.authority.issue(uris=[WEB], usage=[SERVER])),),
        (b":" + b64encode(proxied.authority.der) + b":",),
    ):
        assert proxied.ask(*values) == (401, "invalid_credentials"), values
    assert proxied.ask(good, chain=b"junk") == (401, "invalid_credentials")
    assert proxied.ask(b":" + b"A" * 20000 + b":")[0] == 431
    assert proxied.ask(good) == (200, "")
