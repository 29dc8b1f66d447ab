"""Behind a real haproxy: the client's address reaches the audit log by the PROXY protocol and by forwarding headers, on both listeners."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.adminapi import KEYS, config
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, Gatehouse
from tests.fakes.ports import empty_port
from tests.unit.gateway.server.test_proxy_protocol import FOUR
from tests.waiting import until

PROXY, CLIENT = "127.0.0.2", "127.0.0.5"
TRUSTING = {
    "trusted_peers": [PROXY],
    "admin_trusted_peers": [PROXY],
    "proxy_protocol": "required",
    "admin_proxy_protocol": "required",
}
SITES = """
global
    no strict-limits
    no insecure-fork-wanted
defaults
    timeout connect 5s
    timeout client 60s
    timeout server 60s
"""
SITE = """
listen {name}
    mode {mode}
    bind 127.0.0.1:{port}
    {extra}
    server gatehouse {target} source {source} {how}
"""


class Site:
    """One way through haproxy. Its port is kept until haproxy has ended."""

    def __init__(self, name: str, target: str, mode: str, how: str, extra: str = "") -> None:
        self.name, self.target, self.mode, self.how, self.extra = name, target.rpartition("/")[2], mode, how, extra
        self.kept = ExitStack()
        self.port = self.kept.enter_context(empty_port())

    def text(self) -> str:
        return SITE.format(name=self.name, mode=self.mode, port=self.port, extra=self.extra, target=self.target, source=PROXY, how=self.how)

    def client(self, key: str) -> httpx.Client:
        transport = httpx.HTTPTransport(local_address=CLIENT)
        headers = {"authorization": f"Bearer {key}", "x-forwarded-for": "6.6.6.6"}
        return httpx.Client(base_url=f"http://127.0.0.1:{self.port}", headers=headers, transport=transport, timeout=60, trust_env=False)


def installed() -> str:
    program = shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    assert program is not None, "the tests need haproxy (Debian: apt-get install haproxy)"
    return program


@contextmanager
def haproxy(directory: Path, *sites: Site) -> Iterator[None]:
    program = installed()
    file = directory / "haproxy.cfg"
    file.write_text(SITES + "".join(site.text() for site in sites))
    process = subprocess.Popen([program, "-db", "-f", str(file)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def listens() -> bool:
        assert process.poll() is None, "haproxy has ended"
        for site in sites:
            with closing(socket.socket()) as sock:
                if sock.connect_ex(("127.0.0.1", site.port)):
                    return False
        return True

    try:
        until(listens, 30, "haproxy")
        yield
    finally:
        process.terminate()
        process.wait(60)
        for site in sites:
            site.kept.close()


def test_haproxy_finds_nothing_to_warn_of_in_the_example() -> None:
    example = Path(__file__).parents[2] / "deploy" / "haproxy" / "haproxy.cfg"
    done = subprocess.run([installed(), "-dW", "-c", "-f", str(example)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def models(client: httpx.Client) -> httpx.Response:
    body = {"model": "m1", "messages": [{"role": "user", "content": "x"}]}
    return client.post("/v1/chat/completions", json=body)


def peer_of_chat(gatehouse: Gatehouse, client: httpx.Client) -> str:
    answer = models(client)
    assert answer.status_code == 200, answer.text
    found: str = gatehouse.outcome(answer.headers["x-request-id"]).get("peer") or intent(gatehouse, answer.headers["x-request-id"])["peer"]
    return found


def intent(gatehouse: Gatehouse, request_id: str) -> dict[str, Any]:
    return next(r for r in gatehouse.audit() if r.get("kind") == "intent" and r.get("request_id") == request_id)


def peer_of_write(gatehouse: Gatehouse, client: httpx.Client) -> str:
    """As the audit log has who made a key."""
    answer = client.post("/admin/v1/keys", json={"tenant": "acme", "models": ["*"]})
    assert answer.status_code == 201, answer.text
    made = [r for r in gatehouse.audit() if r.get("event") == "admin.keys.create"]
    return str(made[-1]["detail"]["peer"])


@pytest.fixture
def start(tmp_path: Path, engines: Callable[..., EngineThread]) -> Iterator[Callable[..., Gatehouse]]:
    made: list[Gatehouse] = []

    def make(*arguments: str, **listen: Any) -> Gatehouse:
        settings = config(tmp_path / "state", engines().port, listen={**TRUSTING, **listen})
        made.append(Gatehouse(tmp_path, settings, arguments=arguments))
        return made[-1].start()

    yield make
    for gatehouse in made:
        assert gatehouse.stop() == 0, "\n".join(gatehouse.lines)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_proxy_protocol_names_the_client_on_both_listeners(tmp_path: Path, start: Callable[..., Gatehouse], workers: int) -> None:
    gatehouse = start(*(["--workers", str(workers)] if workers else []))
    sites = [
        Site("one", gatehouse.url, "tcp", "send-proxy check inter 50ms"),
        Site("two", gatehouse.url, "tcp", "send-proxy-v2 proxy-v2-options crc32c,unique-id check inter 50ms", "unique-id-format %ci-%ts"),
        Site("http", gatehouse.url, "http", "send-proxy-v2", "option forwardfor"),
        Site("admin-one", gatehouse.admin_url, "tcp", "send-proxy"),
        Site("admin-two", gatehouse.admin_url, "tcp", "send-proxy-v2"),
    ]
    with haproxy(tmp_path, *sites):
        for site in sites[:3]:
            with site.client(KEY) as client:
                assert peer_of_chat(gatehouse, client) == CLIENT, site.name
        for site in sites[3:]:
            with site.client(KEYS["admin"]) as client:
                assert peer_of_write(gatehouse, client) == CLIENT, site.name
    with gatehouse.client() as direct:  # from another address than the proxy's
        assert peer_of_chat(gatehouse, direct) == "127.0.0.1"
    assert b"400 Bad Request" in gatehouse.raw(FOUR + b"GET /v1/models HTTP/1.1\r\nhost: a\r\n\r\n")


def test_forwarding_headers_name_the_client_on_both_listeners(tmp_path: Path, start: Callable[..., Gatehouse]) -> None:
    gatehouse = start(proxy_protocol="off", admin_proxy_protocol="off")
    data = Site("data", gatehouse.url, "http", "", "option forwardfor")
    admin = Site("admin", gatehouse.admin_url, "http", "", "option forwardfor")
    with haproxy(tmp_path, data, admin):
        with data.client(KEY) as client:
            assert peer_of_chat(gatehouse, client) == CLIENT
        with admin.client(KEYS["admin"]) as client:
            assert peer_of_write(gatehouse, client) == CLIENT
    headers = {"x-forwarded-for": "6.6.6.6"}
    with gatehouse.client() as direct:
        direct.headers.update(headers)
        assert peer_of_chat(gatehouse, direct) == "127.0.0.1"
    headers["authorization"] = f"Bearer {KEYS['admin']}"
    with httpx.Client(base_url=gatehouse.admin_url, headers=headers, trust_env=False, timeout=60) as direct:
        assert peer_of_write(gatehouse, direct) == "127.0.0.1"


def test_an_upgrade_goes_on_with_it(tmp_path: Path, start: Callable[..., Gatehouse]) -> None:
    gatehouse = start("--workers", "2")
    assert gatehouse.process is not None
    data, admin = (Site(name, url, "tcp", "send-proxy-v2") for name, url in (("data", gatehouse.url), ("admin", gatehouse.admin_url)))
    with haproxy(tmp_path, data, admin), admin.client(KEYS["operator"]) as operator:
        gatehouse.process.send_signal(signal.SIGUSR2)

        def upgraded() -> bool:
            try:
                return bool(operator.get("/admin/v1/upgrade").json()["upgrades"] == 1)
            except (httpx.HTTPError, KeyError):
                return False

        until(upgraded, 60, "the upgrade")
        with data.client(KEY) as client:
            assert peer_of_chat(gatehouse, client) == CLIENT


def test_where_a_header_is_required_of_the_proxy_nothing_else_is_answered(start: Callable[..., Gatehouse]) -> None:
    gatehouse = start(header_timeout="2s")
    for url in (gatehouse.url, gatehouse.admin_url):
        host, _, port = url.removeprefix("http://").partition(":")
        for data in (b"GET / HTTP/1.1\r\nhost: a\r\n\r\n", b"PROXY TCP4 1.2.3.4\r\n", b"PROXY UNKNOWN" + b"x" * 108, b"P"):
            with socket.create_connection((host, int(port)), timeout=60, source_address=(PROXY, 0)) as sock:
                sock.sendall(data)
                try:
                    assert sock.recv(100) == b""
                except ConnectionResetError:
                    pass
