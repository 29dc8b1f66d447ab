"""What `check-config` finds without starting anything."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from typer.testing import CliRunner

from gateway.app.configuration.plugins import OURS
from gateway.app.main import app
from gateway.app.offline import check
from gateway.config.load import describe, load
from tests.unit.gateway.app.making import KEY, config

IDENTITY = json.dumps({"api_keys": {"static": [{"id": "k", "key": KEY, "tenant": "t", "models": ["*"]}]}})


@pytest.mark.parametrize("command", [["check-config"], ["serve", "--config"]])
@pytest.mark.parametrize(("runtime", "option", "right"), [("llama.cpp", "stal", "stall"), ("onnx", "poling", "pooling")])
def test_an_option_that_a_runtime_does_not_have_is_named_before_anything_is_started(
    tmp_path: Path, command: list[str], runtime: str, option: str, right: str
) -> None:
    engines = [{"name": "a", "runtime": runtime, "model": "x", "options": {option: 1}}]
    file = tmp_path / "gatehouse.yaml"
    file.write_text(config(tmp_path, engines=engines))
    line = next(number for number, text in enumerate(file.read_text().splitlines(), 1) if option in text)
    done = CliRunner().invoke(app, [*command, str(file)])
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == f"error: {file}:{line}: engines[0].options.{option}: unknown key '{option}'; did you mean '{right}'?\n"
    assert not (tmp_path / "state").exists()


def test_all_errors_are_told_in_one_run(tmp_path: Path) -> None:
    file = tmp_path / "gatehouse.yaml"
    limits = [{"name": "a", "per": "nobody", "concurrent": 1}, {"name": "b", "per": "key", "concurrent": "few"}]
    file.write_text(config(tmp_path, limits=limits, colour="blue"))
    done = CliRunner().invoke(app, ["check-config", str(file)])
    lines = done.stderr.splitlines()
    assert done.exit_code == 1 and len(lines) == 3
    assert all(re.match(rf"error: {re.escape(str(file))}:[0-9]+: ", line) for line in lines)
    places = [re.sub(r"^error: \S+:[0-9]+: ", "", line).partition(":")[0] for line in lines]
    assert sorted(places) == ["colour", "limits[0].per", "limits[1].concurrent"]


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"listen": {"grpc": "127.0.0.1:0"}}, "listen.grpc: needs a port with workers, which all listen on it"),
        (
            {"files": {"enabled": True}, "batches": {"enabled": True, "max_line_bytes": "64MiB"}},
            "batches.max_line_bytes: is at most 16777216 with --workers: lines go from process to process",
        ),
    ],
)
def test_what_workers_cannot_do_is_found_for_them_only(tmp_path: Path, parts: dict[str, object], said: str) -> None:
    file = tmp_path / "gatehouse.yaml"
    file.write_text(config(tmp_path, **parts))
    assert CliRunner().invoke(app, ["check-config", str(file)]).exit_code == 0
    done = CliRunner().invoke(app, ["check-config", "--workers", "2", str(file)])
    assert (done.exit_code, re.sub(r"^error: \S+:[0-9]+: ", "", done.stderr)) == (1, f"{said}\n")


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (
            {"engines": [{"name": "a", "runtime": "onnx", "model": "nowhere"}]},
            "engines[0].model: engine 'a': there is no model file 'nowhere'",
        ),
        ({"batches": {"enabled": True}}, "batches.enabled: needs files: set files.enabled too"),
        ({"model_dirs": ["nowhere"]}, "model_dirs[0]: there is no directory "),
        ({"audit": {"sinks": [{"type": "file"}, {"type": "file"}]}}, "audit.sinks: exactly one sink of type 'file' is needed"),
        ({"redis": {"url": "postgresql://u:p@h"}}, "redis.url: is redis://[USER:PASSWORD@]HOST[:PORT][/DB], rediss://..."),
        ({"redis": {"sentinels": ["u:p@h:1"], "master": "m"}}, "redis.sentinels[0]: 'u:********@h:1' is not HOST or HOST:PORT"),
        (
            {"audit": {"retention": {"archive": {"bucket": "bucket", "endpoint": "https://u:p@h"}}}},
            "audit.retention.archive.endpoint: must not hold a user or password; use access_key and secret_key",
        ),
        (
            {"model_sharing": {"store": {"bucket": "bucket", "endpoint": "s3.example:9000"}}},
            "model_sharing.store.endpoint: must begin with http:// or https:// and name a host",
        ),
        ({"store": {"url": "mysql://h"}}, "store.url: a store is 'sqlite' or postgresql://..."),
        ({"listen": {"tls": {"cert": "/nowhere", "key": "/nowhere"}}}, "listen.tls.cert: /nowhere cannot be read"),
        (
            {"engines": [{"name": "a", "runtime": "external", "url": "https://h", "tls": {"ca": "/nowhere"}}]},
            "engines[0].tls: the CA file '/nowhere' cannot be used",
        ),
        (
            {"guardrails": [{"name": "w", "type": "denylist", "settings": {}}]},
            "guardrails[0].settings: the guardrail 'w': no phrase is given",
        ),
    ],
)
def test_a_check_finds_with_its_line_what_a_start_would_refuse(tmp_path: Path, parts: dict[str, object], said: str) -> None:
    file = tmp_path / "gatehouse.yaml"
    file.write_text(config(tmp_path, **parts))
    done = CliRunner().invoke(app, ["check-config", str(file)])
    assert (done.exit_code, done.stdout) == (1, "")
    found = re.match(rf"error: {re.escape(str(file))}:[0-9]+: (.*)\n$", done.stderr)
    assert found is not None and found[1].startswith(said), done.stderr
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    "parts", [{"listen": {"tls": {"cert": "${file:tls.key}", "key": "/nowhere"}}}, {"model_dirs": ["${file:tls.key}"]}]
)
def test_a_key_in_place_of_its_path_is_not_printed(tmp_path: Path, parts: dict[str, object]) -> None:
    (tmp_path / "tls.key").write_text("-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIA\n-----END PRIVATE KEY-----\n")
    file = tmp_path / "gatehouse.yaml"
    file.write_text(config(tmp_path, **parts))
    done = CliRunner().invoke(app, ["check-config", str(file)])
    assert (done.exit_code, done.stdout) == (1, "")
    assert next(iter(parts)) in done.stderr and "KEY-----" not in done.stderr and "MC4CAQ" not in done.stderr


WITH_AN_ADDRESS: tuple[dict[str, object], ...] = (
    {"listen": {"data": "URL"}},
    {"state_dir": "URL/"},
    {"store": {"url": "URL"}},
    {"redis": {"url": "URL"}},
    {"redis": {"sentinels": ["URL"], "master": "m"}},
    {"engines": [{"name": "a", "runtime": "external", "url": "URL"}]},
    {"engines": [{"name": "a", "runtime": "external", "url": "http://h", "dns": {"servers": ["URL"]}}]},
    {"engines": [{"name": "a", "runtime": "URL", "model": "m"}]},
    {"identity": {"gateway_tokens": {"issuer": "URL"}}},
    {"identity": {"oidc": [{"name": "o", "issuer": "URL", "audiences": ["a"], "jwks_url": "URL"}]}},
    {"identity": {"ldap": [{"name": "l", "servers": ["URL"], "users": {"dn": "uid={username},dc=x"}, "tenant": {"value": "t"}}]}},
    {"identity": {"dpop": {"urls": ["URL"]}}},
    {"guardrails": [{"name": "w", "type": "http", "on": ["request"], "settings": {"url": "URL"}}]},
    {"guardrails": [{"name": "w", "type": "URL", "on": ["request"], "settings": {}}]},
    {"alerts": {"webhooks": [{"name": "w", "url": "URL", "secret": KEY}]}},
    {"approvals": {"webhook": {"url": "URL", "secret": KEY}}},
    {"audit": {"sinks": [{"type": "file"}, {"type": "http", "settings": {"url": "URL"}}]}},
    {"audit": {"sinks": [{"type": "file"}, {"type": "syslog", "settings": {"address": "URL"}}]}},
    {"audit": {"sinks": [{"type": "file"}, {"type": "kafka", "settings": {"brokers": ["URL"], "topic": "t"}}]}},
    {"audit": {"checkpoint": {"copies": [{"url": "URL"}]}}},
    {"audit": {"retention": {"archive": {"bucket": "bucket", "endpoint": "URL"}}}},
    {"audit": {"encryption": {"master": {"transit": {"url": "URL", "key": "k", "token": "t"}}}}},
    {"telemetry": {"traces": {"endpoint": "URL"}}},
    {"model_sharing": {"store": {"bucket": "bucket", "endpoint": "URL"}}},
    {"model_sharing": {"listen": "URL"}},
    {"URL": 1},
)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://gate:hunter2@db/gate",
        "redis://:hunter2@cache",
        "https://hunter2@hooks.example/x",
        "https://gate:hun/hunter2@h",
        "https://h:99999/?token=hunter2",
        "gate:hunter2@h:1",
    ],
)
def test_a_password_in_an_address_is_never_printed(tmp_path: Path, url: str) -> None:
    """Wherever an address stands, also one of a kind that does not belong there: neither by an error nor by a description."""
    refused = 0
    for parts in WITH_AN_ADDRESS:
        file = tmp_path / "gatehouse.yaml"
        written = json.loads(json.dumps(parts).replace("URL", url))
        file.write_text(config(tmp_path, **{"identity": json.loads(IDENTITY) | written.pop("identity", {}), **written}))
        code, line = check(file, {})
        refused += code
        shown = line if code else json.dumps(describe(load(file, {}, OURS.schemas()).spec))
        assert "hunter2" not in shown or ("://" not in url and not code), line
    assert refused > len(WITH_AN_ADDRESS) / 2


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("classifier", {"model": "m", "labels": {"injection": 0.9}}),
        ("judge", {"model": "m", "template": "llama_guard"}),
        ("topics", {"model": "m", "deny": {"shares": ["Which shares?"]}}),
        ("entities", {"model": "m", "labels": {"PER": "person"}, "entities": {"person": "mask"}}),
    ],
)
def test_a_guardrail_that_asks_a_model_is_checked_without_a_gateway_around_it(
    tmp_path: Path, kind: str, settings: dict[str, object]
) -> None:
    file = tmp_path / "gatehouse.yaml"
    file.write_text(config(tmp_path, guardrails=[{"name": "w", "type": kind, "on": ["request"], "models": ["n"], "settings": settings}]))
    done = CliRunner().invoke(app, ["check-config", str(file)])
    assert (done.exit_code, done.stderr) == (0, "")


def test_a_directory_without_an_audit_log_is_not_in_order(tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key.write_bytes(Ed25519PrivateKey.generate().public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    (tmp_path / "log").mkdir()
    done = CliRunner().invoke(app, ["audit", "verify", "--dir", str(tmp_path / "log"), "--public-key", str(key)])
    assert (done.exit_code, "there is no audit log here" in done.stderr) == (1, True)
