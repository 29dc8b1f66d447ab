"""An OpenAI-compatible server somewhere else, over the running gateway: its TLS, its key, its names, its health."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import EngineThread
from tests.e2e.harness import Gatehouse, configuration, errors_of
from tests.unit.gateway.transport.conftest import Certificates
from tests.waiting import until

Launch = Callable[..., Gatehouse]
ENGINE_KEY = "engine-key-0123456789abcdef"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def config(state_dir: Path, port: int, **engine: Any) -> dict[str, Any]:
    far = {"name": "far", "runtime": "external", "url": f"https://127.0.0.1:{port}/v1", **engine}
    return configuration(state_dir, engines=[far], models=[{"name": "m1", "pool": [{"engine": "far", "model": "org/Real-Name"}]}])


def ready(gatehouse: Gatehouse) -> bool:
    with gatehouse.client(None) as client:
        return client.get("/readyz").status_code == 200


def test_an_engine_behind_tls_with_names_and_credentials_of_its_own(
    launch: Launch, engines: Callable[..., EngineThread], certificates: Certificates, tmp_path: Path
) -> None:
    engine = engines(tls=certificates.server_context(ask_client=True))
    tls = {"ca": certificates.ca, "cert": certificates.client, "key": certificates.client_key, "server_name": "engine.test"}
    settings = config(
        tmp_path / "state",
        engine.port,
        tls=tls,
        api_key="${env:ENGINE_KEY}",
        headers={"x-deployment": "blue"},
        health={"interval": 0.1},
    )
    with launch(settings, {"ENGINE_KEY": ENGINE_KEY}) as gatehouse:
        for stream in (False, True):
            answer = gatehouse.chat(stream=stream)
            assert answer.status_code == 200, answer.text
            received = engine.received[-1]
            assert received.path == "/v1/chat/completions" and received.json()["model"] == "org/Real-Name"
            assert (received.header("authorization"), received.header("x-deployment")) == (f"Bearer {ENGINE_KEY}", "blue")
            assert answer.headers["x-gatehouse-endpoint"] == "far"
            assert ENGINE_KEY not in answer.text + str(answer.headers) and str(engine.port) not in str(answer.headers)
        probe = until(lambda: next((r for r in list(engine.engine.requests) if r.method == "GET"), None), what="a probe")
        assert (probe.path, probe.header("authorization"), probe.header("x-deployment")) == ("/health", f"Bearer {ENGINE_KEY}", "blue")


@pytest.mark.parametrize("wrong", ["another CA", "another name", "no client certificate"])
def test_an_engine_whose_identity_is_in_doubt_gets_nothing(
    launch: Launch, engines: Callable[..., EngineThread], certificates: Certificates, tmp_path: Path, wrong: str
) -> None:
    engine = engines(tls=certificates.server_context(ask_client=wrong == "no client certificate"))
    tls = {"ca": certificates.ca}
    if wrong == "another CA":
        (tmp_path / "ca").mkdir()
        tls["ca"] = Certificates(tmp_path / "ca").ca
    elif wrong == "another name":
        tls["server_name"] = "elsewhere.test"
    settings = config(tmp_path / "state", engine.port, tls=tls, health={"interval": 0.1, "fall": 1})
    with launch(settings) as gatehouse:
        answer = gatehouse.chat()
        assert answer.status_code in (502, 503) and errors_of(answer)["code"] in ("engine_failed", "no_healthy_endpoint")
        until(lambda: not ready(gatehouse), what="the notice")
        assert engine.engine.requests == []


def test_its_health_is_asked_where_its_settings_say(launch: Launch, engines: Callable[..., EngineThread], tmp_path: Path) -> None:
    engine = engines()
    health = {"path": "/v1/models", "interval": 0.1, "metrics": "/engine/metrics"}
    settings = configuration(
        tmp_path / "state",
        engines=[{"name": "far", "runtime": "external", "url": f"http://127.0.0.1:{engine.port}/v1", "health": health}],
        models=[{"name": "m1", "pool": ["far"]}],
    )
    with launch(settings) as gatehouse:
        until(lambda: any(r.path == "/v1/models" for r in list(engine.engine.requests)), what="the probe")
        assert gatehouse.chat().status_code == 200
        until(lambda: any(r.path == "/engine/metrics" for r in list(engine.engine.requests)), what="the question for its load")
        assert {r.path for r in list(engine.engine.requests) if r.method == "GET"} == {"/v1/models", "/engine/metrics"}
