"""Secrets that are planted wherever one can be, and then looked for: in the log at its most talkative, in the files of the state directory,
in what the admin API and the gateway answer, and in traces. Everything that can be refused or fail is asked for once."""

from __future__ import annotations

import base64
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.adminapi import KEYS, admin, config
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, Gatehouse
from tests.fakes.http_receiver import HttpReceiver
from tests.fakes.ports import empty_port
from tests.waiting import until


class Planted:
    """Makes secrets that nothing takes for one by their form."""

    def __init__(self) -> None:
        self.made: dict[str, str] = {"a key": KEY, "the administrator's key": KEYS["admin"]}

    def __call__(self, name: str) -> str:
        return self.made.setdefault(name, f"Zq{len(self.made):03d}PlantedXk9v7w5u3s1Yr8t6Lm4n2Bc7")

    def within(self, text: str | bytes) -> list[str]:
        data = text.encode() if isinstance(text, str) else text
        return [name for name, secret in self.made.items() if secret.encode() in data]


@pytest.fixture
def receivers() -> Iterator[list[HttpReceiver]]:
    made = [HttpReceiver() for _ in range(3)]
    yield made
    for each in made:
        each.close()


def whole(state: Path, engine: EngineThread, receivers: list[HttpReceiver], away: int, plant: Planted, style: str) -> dict[str, Any]:
    """A configuration with a secret in each place that has room for one; nothing listens at the port `away`."""
    otlp, siem, hook = receivers
    traces = {"endpoint": otlp.url, "ratio": 1, "token": plant("token of traces"), "headers": {"x-key": plant("header of traces")}}
    made = config(
        state,
        engine.port,
        telemetry={"log_level": "trace", "log_format": style, "request_log": "all", "traces": traces},
        redis={"url": f"redis://user:{plant('redis')}@127.0.0.1:{away}/0"},
        limits=[{"name": "some", "per": "tenant", "requests": {"rate": 100, "per": "1s"}}],
        alerts={"webhooks": [{"name": "hook", "url": hook.url, "secret": plant("webhook")}]},
        audit={"sinks": [{"type": "file"}, {"type": "http", "name": "siem", "settings": {"url": siem.url, "token": plant("sink")}}]},
    )
    bind = {"dn": "cn=gatehouse,dc=example", "password": plant("ldap")}
    directory = {"name": "corp", "servers": [f"ldap://127.0.0.1:{away}"], "bind": bind, "users": {"base": "dc=example"}}
    made["identity"]["ldap"] = [{**directory, "tenant": {"value": "acme"}}]
    made["engines"][0]["api_key"] = plant("engine")
    made["engines"].append({"name": "gone", "runtime": "external", "url": f"http://127.0.0.1:{away}", "api_key": plant("engine away")})
    made["models"].append({"name": "gone", "pool": ["gone"]})
    return made


def clients(gatehouse: Gatehouse, engine: EngineThread, plant: Planted) -> Iterator[httpx.Response]:
    """Requests that are refused, or that fail in each way in which an engine fails."""
    body = {"model": "m1", "messages": [{"role": "user", "content": plant("prompt")}]}
    chat = "/v1/chat/completions"
    with gatehouse.client() as client:
        for script in ("status:code=401", "status:code=500", "status:code=429", "status:code=400", "reset:at=head", "garbage"):
            engine.play(script)
            yield client.post(chat, json=body)
        yield client.post(chat, json={**body, "model": "gone"})
        yield client.post(chat, content=f'{{"messages": "{plant("prompt")}", x')
    basic = base64.b64encode(f"alice:{plant('password')}".encode()).decode()
    with gatehouse.client(None) as client:
        yield client.post(chat, json=body, headers={"authorization": f"Bearer {plant('bearer')}"})
        yield client.post(chat, json=body, headers={"x-api-key": plant("x-api-key")})
        yield client.post(chat, json=body, headers={"authorization": f"Basic {basic}"})
        yield client.post(f"{chat}?api_key={plant('query')}", json=body)


def administrators(gatehouse: Gatehouse, plant: Planted) -> Iterator[httpx.Response]:
    with admin(gatehouse) as client:
        for path in ("/status", "/config", "/engines", "/webhooks", "/guardrails", "/keys"):
            yield client.get(path)
        yield client.post("/keys", json={"id": "one", "tenant": "acme", "models": ["*"], "nonsense": plant("field")})
        yield client.post("/keys", content=f'{{"id": "{plant("broken body")}", x')
        yield client.post(
            "/engines", json={"name": "e", "runtime": "external", "url": "http://127.0.0.1:1", "api_key": plant("stored"), "x": 1}
        )
        yield client.get(f"/keys?key={plant('admin query')}")
    with admin(gatehouse, key=plant("administrator's wrong key")) as client:
        yield client.get("/status")


def said(gatehouse: Gatehouse, *parts: str) -> None:
    """Waits for a line of the log with all of these."""
    until(lambda: any(all(part in line for part in parts) for line in gatehouse.lines), what=parts[-1])


def refused(gatehouse: Gatehouse, plant: Planted) -> None:
    """Configurations that cannot be read or are wrong just where a secret is."""
    good = gatehouse.file.read_text()
    engine = f"api_key: {plant('engine')}"
    assert engine in good
    wrong = (
        (good + f'\nmore: "{plant("no end")}\n', "malformed YAML"),
        (good.replace(engine, f"api_key: [{plant('engine')}]"), "is a sequence"),
        (good.replace(engine, f"api_keyy: {plant('engine')}"), "unknown key"),
        (good.replace("log_level: trace", f"log_level: {plant('level')}"), "log_level"),
    )
    for text, why in wrong:
        gatehouse.file.write_text(text)
        assert gatehouse.process is not None
        gatehouse.process.send_signal(signal.SIGHUP)
        said(gatehouse, "was not applied", why)
    gatehouse.file.write_text(good)
    plant.made.pop("level")  # it was written where no secret belongs, and a refusal quotes what is no level


@pytest.mark.parametrize(("style", "workers"), [("text", []), ("json", ["--workers", "1"])])
def test_nothing_that_is_secret_is_written_or_told(
    tmp_path: Path, engine: EngineThread, receivers: list[HttpReceiver], style: str, workers: list[str]
) -> None:
    plant = Planted()
    otlp, siem, _ = receivers
    with empty_port() as away:
        made = whole(tmp_path / "state", engine, receivers, away, plant, style)
        siem.answers = [(500, f"Invalid token: {plant('sink')}".encode())]
        otlp.answers = [(400, f"Invalid token: {plant('token of traces')}".encode())]
        with Gatehouse(tmp_path, made, {"GATEHOUSE_PEPPER": "ab" * 32}, workers) as gatehouse:
            answers = [*clients(gatehouse, engine, plant), *administrators(gatehouse, plant)]
            with admin(gatehouse) as client:
                key = client.post("/keys", json={"id": "made", "tenant": "acme", "models": ["*"]}).json()["secret"]
            plant.made["a key that was made"] = key
            said(gatehouse, "takes no records")
            said(gatehouse, "traces do not arrive")
            refused(gatehouse, plant)
    assert {answer.status_code for answer in answers} >= {200, 400, 401, 502}
    assert [(line, found) for line in gatehouse.lines if (found := plant.within(line))] == []
    assert [(str(answer.url), found) for answer in answers if (found := plant.within(answer.text + json.dumps(dict(answer.headers))))] == []
    files = [file for file in (tmp_path / "state").rglob("*") if file.is_file()]
    assert [(file.name, found) for file in files if (found := plant.within(file.read_bytes()))] == []
    assert [found for _, body in otlp.requests if (found := plant.within(body))] == []
    assert sum(len(each.requests) for each in receivers) > 2
