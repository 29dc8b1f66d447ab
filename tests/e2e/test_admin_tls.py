"""The admin listener with TLS: what reaches it, who may, and what is said without it."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from gateway.app.main import app
from tests.e2e import adminapi
from tests.e2e.adminapi import KEYS
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import Gatehouse
from tests.e2e.test_cli import environment
from tests.unit.gateway.transport.conftest import Certificates
from tests.waiting import until

Launch = Callable[..., Gatehouse]


@pytest.mark.parametrize("client_certificate", [False, True])
def test_the_admin_listener_speaks_tls(tmp_path: Path, engine: EngineThread, launch: Launch, client_certificate: bool) -> None:
    made = Certificates(tmp_path)
    tls: dict[str, object] = {"cert": made.server, "key": made.server_key}
    if client_certificate:
        tls |= {"client_ca": made.ca, "require_client": True}
    config = adminapi.config(tmp_path / "state", engine.port)
    config["listen"] |= {"admin_tls": tls}
    gatehouse = launch(config).start()
    assert gatehouse.admin_url.startswith("https://") and gatehouse.url.startswith("http://")
    trusted = ssl.create_default_context(cafile=made.ca)
    if client_certificate:
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"{gatehouse.admin_url}/livez", verify=trusted, trust_env=False, timeout=60)
        trusted.load_cert_chain(made.client, made.client_key)
    assert httpx.get(f"{gatehouse.admin_url}/livez", verify=trusted, trust_env=False, timeout=60).status_code == 200
    with pytest.raises(httpx.HTTPError):
        httpx.get(gatehouse.admin_url.replace("https:", "http:") + "/livez", trust_env=False, timeout=60)
    if not client_certificate:
        asked = {**environment(tmp_path / "home"), "GATEHOUSE_URL": gatehouse.admin_url, "GATEHOUSE_KEY": KEYS["admin"]}
        known = CliRunner().invoke(app, ["status"], env={**asked, "SSL_CERT_FILE": made.ca})
        assert known.exit_code == 0, known.stderr
        unknown = CliRunner().invoke(app, ["status"], env={**asked, "SSL_CERT_FILE": made.client})
        assert unknown.exit_code == 1 and "CERTIFICATE_VERIFY_FAILED" in unknown.stderr


def test_an_admin_listener_for_other_machines_needs_tls(tmp_path: Path, engine: EngineThread, launch: Launch) -> None:
    config = adminapi.config(tmp_path / "state", engine.port)
    assert not [line for line in launch(config).start().lines if "without TLS" in line]
    config["listen"] |= {"admin": "0.0.0.0:0", "data": "0.0.0.0:0"}
    config["state_dir"] = str(tmp_path / "other")
    refused = launch(config).launch()
    assert refused.ended() == 1
    why = re.compile(r"gatehouse\.yaml:\d+: listen\.admin: '0\.0\.0\.0:0' takes administrators' credentials .* set listen\.admin_tls")
    until(lambda: any(why.search(line) for line in refused.lines), what="the line and the reason")
    config["insecure"] = True
    lines = launch(config).start().lines
    for what in ("the data listener", "the admin listener"):
        assert [line for line in lines if what in line and "without TLS from other machines" in line], lines


def test_a_data_listener_behind_a_proxy_is_not_warned_about(tmp_path: Path, engine: EngineThread, launch: Launch) -> None:
    config = adminapi.config(tmp_path / "state", engine.port)
    config["listen"] |= {"data": "0.0.0.0:0", "trusted_peers": ["127.0.0.0/8"]}
    assert not [line for line in launch(config).start().lines if "without TLS" in line]


def test_a_key_that_has_expired_already_is_refused(tmp_path: Path, engine: EngineThread, launch: Launch) -> None:
    with adminapi.admin(launch(adminapi.config(tmp_path / "state", engine.port)).start()) as client:
        refused = client.post("/keys", json={"tenant": "acme", "expires": 1000.0})
        assert (refused.status_code, refused.json()["param"]) == (400, "expires")
