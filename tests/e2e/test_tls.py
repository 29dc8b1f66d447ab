"""TLS of both listeners over real sockets, in one process and with workers: certificates are exchanged while connections go on."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.e2e import adminapi
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, Gatehouse
from tests.pki import DAY, Authority, Issued, now, replaced
from tests.waiting import until

BODY = {"model": "m1", "messages": [{"role": "user", "content": "hi"}]}


class Site:
    """A gateway with TLS on both listeners. Their certificate is in files that a test replaces."""

    def __init__(self, folder: Path, engine: EngineThread, workers: int, **tls: Any) -> None:
        self.authority = Authority(folder / "ca")
        self.trusting = self.authority.context()
        self.cert, self.key = folder / "tls.crt", folder / "tls.key"
        self.first = self.authority.server()
        self.put(self.first)
        self.config = adminapi.config(folder / "state", engine.port)
        files = {"cert": str(self.cert), "key": str(self.key), **tls}
        self.config["listen"] |= {"tls": files, "admin_tls": dict(files)}
        arguments = ["--workers", str(workers)] if workers else []
        self.gatehouse = Gatehouse(folder, self.config, arguments=arguments)

    def put(self, issued: Issued) -> None:
        replaced(self.cert, issued.pem)
        replaced(self.key, Path(issued.key).read_bytes())

    def shown(self, url: str) -> str:
        """SHA-256 of the certificate that a new connection is shown."""
        host, _, port = url.removeprefix("https://").rpartition(":")
        with (
            socket.create_connection((host, int(port)), timeout=60) as sock,
            self.trusting.wrap_socket(sock, server_hostname=host) as tls,
        ):
            found = tls.getpeercert(binary_form=True)
        assert found is not None
        return sha256(found).hexdigest()

    def everywhere(self) -> set[str]:
        """What several new connections to both listeners are shown: each worker takes its turn."""
        return {self.shown(url) for url in [self.gatehouse.url] * 8 + [self.gatehouse.admin_url]}

    def shows(self, issued: Issued) -> None:
        until(lambda: self.everywhere() == {issued.sha256}, what="the new certificate on every new connection")

    def client(self) -> httpx.Client:
        headers = {"authorization": f"Bearer {KEY}"}
        kept = httpx.Limits(keepalive_expiry=None)  # for as long as the gateway does, and not for httpx's five seconds
        return httpx.Client(base_url=self.gatehouse.url, headers=headers, verify=self.trusting, trust_env=False, timeout=60, limits=kept)

    def admin(self) -> httpx.Client:
        headers = {"authorization": f"Bearer {adminapi.KEYS['admin']}"}
        return httpx.Client(
            base_url=f"{self.gatehouse.admin_url}/admin/v1", headers=headers, verify=self.trusting, trust_env=False, timeout=60
        )

    def metrics(self) -> dict[str, float]:
        with self.admin() as client:
            text = client.get(f"{self.gatehouse.admin_url}/metrics").text
        lines = [line.rpartition(" ") for line in text.splitlines() if line.startswith("gatehouse_tls_")]
        return {name: float(value) for name, _, value in lines}


def put(admin: httpx.Client, config: dict[str, Any]) -> httpx.Response:
    return admin.put("/config", content=yaml.safe_dump(config), headers={"content-type": "application/yaml"})


@pytest.fixture(scope="module", params=[0, 2], ids=["one process", "two workers"])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, engine: EngineThread) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("tls"), engine, request.param)
    with made.gatehouse:
        yield made


def test_certificates_are_exchanged_while_connections_go_on(site: Site) -> None:
    with site.client() as client:
        assert client.post("/v1/chat/completions", json=BODY).status_code == 200
        stream = client.extensions["network_stream"] if hasattr(client, "extensions") else None
        del stream
        second = site.authority.server(expires=now() + 20 * DAY)
        site.put(second)
        site.shows(second)
        answer = client.post("/v1/chat/completions", json=BODY)
        assert answer.status_code == 200
        tls = answer.extensions["network_stream"].get_extra_info("ssl_object")
        assert tls.getpeercert(True) != second.der, "the connection under way went on"
    found = site.metrics()
    for listener in ("data", "admin"):
        assert found[f'gatehouse_tls_certificate_expiry_seconds{{listener="{listener}"}}'] == pytest.approx(
            second.certificate.not_valid_after_utc.timestamp()
        )
    third = site.authority.server()
    site.put(third)
    assert site.gatehouse.process is not None
    os.kill(site.gatehouse.process.pid, signal.SIGHUP)
    site.shows(third)


def test_files_that_cannot_be_used_change_nothing(site: Site) -> None:
    before = site.everywhere()
    counter = 'gatehouse_tls_reloads_total{listener="data",outcome="refused"}'
    refused = site.metrics()[counter]
    replaced(site.cert, site.authority.server().pem)  # the key is still the old one's
    until(lambda: site.metrics()[counter] > refused, what="the refusal")
    with site.admin() as admin:
        applied = put(admin, site.config)
        assert applied.status_code == 200, applied.text
        (trouble, *_) = until(lambda: admin.get("/status").json()["troubles"], what="the trouble")
    assert (trouble["about"], trouble["name"]) == ("certificate", "listen.tls")
    assert trouble["reason"].startswith("new files are refused: ")
    until(lambda: site.metrics()['gatehouse_tls_refused{listener="data"}'] == 1.0, what="the gauge")
    assert site.everywhere() == before
    until(lambda: [line for line in site.gatehouse.lines if "the certificate in force stays" in line], what="the line")
    last = site.authority.server()
    site.put(last)
    site.shows(last)


def test_a_change_of_the_settings_takes_other_files(site: Site) -> None:
    other = site.authority.server()
    changed = {**site.config, "listen": {**site.config["listen"]}}
    changed["listen"]["tls"] = {"cert": other.cert, "key": other.key}
    changed["listen"]["admin_tls"] = {"cert": other.cert, "key": other.key}
    with site.admin() as admin:
        bad = {**changed, "listen": {**changed["listen"], "tls": {"cert": other.cert, "key": site.authority.server().key}}}
        refused = put(admin, bad)
        assert refused.status_code == 400 and "is not the key" in refused.json()["detail"], refused.text
        none = {**changed, "listen": {**changed["listen"], "tls": None}}
        refused = put(admin, none)
        assert refused.status_code == 400 and "switched on or off by a restart" in refused.json()["detail"], refused.text
        assert put(admin, changed).status_code == 200
        site.shows(other)
        site.put(last := site.authority.server())
        assert put(admin, site.config).status_code == 200
        site.shows(last)


def test_a_worker_that_starts_later_has_the_last_good_certificate(site: Site) -> None:
    if not site.gatehouse.arguments:
        return
    before = site.everywhere()
    good = (site.cert.read_bytes(), site.key.read_bytes())
    replaced(site.cert, b"garbage")
    with site.admin() as admin:
        workers = admin.get("/workers").json()["items"]
        os.kill(workers[0]["pid"], signal.SIGKILL)

        def replaced_by_another() -> bool:
            found = [one for one in admin.get("/workers").json()["items"] if one["state"] == "ready"]
            return len(found) == 2 and workers[0]["pid"] not in [one["pid"] for one in found]

        until(replaced_by_another, what="another worker")
    assert site.everywhere() == before
    replaced(site.cert, good[0])


def test_an_upgrade_keeps_the_certificates(site: Site) -> None:
    if not site.gatehouse.arguments:
        return
    good = site.cert.read_bytes()
    before = site.everywhere()
    with site.admin() as admin:
        replaced(site.cert, b"garbage")
        refused = admin.post("/upgrade", timeout=120)
        assert refused.status_code == 409 and "listen.tls.cert" in refused.json()["detail"], refused.text
        replaced(site.cert, good)
        assert admin.post("/upgrade", timeout=120).status_code == 202

    def done() -> bool:
        try:
            with site.admin() as admin:
                found = admin.get("/upgrade").json()
        except httpx.HTTPError:  # one program follows the other
            return False
        return bool(found["upgrades"] == 1 and found["state"] == "idle")

    until(done, what="the upgrade")
    assert site.everywhere() == before
    renewed = site.authority.server()
    site.put(renewed)
    site.shows(renewed)
