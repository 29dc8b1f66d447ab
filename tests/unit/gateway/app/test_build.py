"""From a configuration to what is in force: models' files, what a change keeps, what it may not change, what a refusal leaves."""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from gateway.app import build
from gateway.app.assembly import key_of, reads_files
from gateway.app.build import DEMO_MODELS, Gateway, resolve_models
from gateway.app.main import app
from gateway.app.plugins import OURS
from gateway.config.load import load
from gateway.core.errors import ConfigError
from gateway.core.specs import ConfigSpec, EngineSpec, GuardrailSpec, IdentitySpec
from tests.waiting import reached

KEY = "k" * 40


def config(directory: Path, **parts: object) -> str:
    return yaml.safe_dump(
        {
            "version": 1,
            "state_dir": str(directory / "state"),
            "engines": [{"name": "a", "runtime": "external", "url": "http://127.0.0.1:9/v1"}],
            "models": [{"name": "m", "aliases": ["n"], "pool": ["a"]}],
            "identity": {"api_keys": {"static": [{"id": "k", "key": KEY, "tenant": "t", "models": ["*"]}]}},
            "audit": {"durability": "async"},
            **parts,
        }
    )


def made(directory: Path, **parts: object) -> Gateway:
    file = directory / "gatehouse.yaml"
    file.write_text(config(directory, **parts))
    return Gateway(load(file, {}, OURS.schemas()), {})


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    found = made(tmp_path, guardrails=[{"name": "words", "type": "denylist", "settings": {"phrases": ["red"]}}])
    await found.start()
    yield found
    await found.aclose()


async def test_what_libraries_leave_in_cycles_is_collected_soon(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    class Circle:
        pass

    before = gc.get_threshold()
    monkeypatch.setattr(gc, "freeze", lambda: None)
    monkeypatch.setattr(build, "COLLECT_SECONDS", 0.01)
    try:
        await gateway.start_engines()
        circle = Circle()
        circle.itself, left = circle, weakref.ref(circle)  # type: ignore[attr-defined]
        del circle
        await reached(lambda: left() is None)
        assert gc.get_threshold() == build.GC_THRESHOLDS
    finally:
        gc.set_threshold(*before)


# --- the files of models


def spec_with(tmp_path: Path, model: str | None, runtime: str = "llama.cpp") -> ConfigSpec:
    engine = msgspec.convert({"name": "e", "runtime": runtime, "model": model}, EngineSpec)
    return ConfigSpec(version=1, state_dir=str(tmp_path / "state"), engines=(engine,))


def test_a_models_file_is_looked_for_beside_the_configuration_first(tmp_path: Path) -> None:
    (tmp_path / "state" / "models").mkdir(parents=True)
    (tmp_path / "state" / "models" / "x.gguf").touch()
    assert resolve_models(spec_with(tmp_path, "x.gguf"), tmp_path).engines[0].model == str(tmp_path / "state" / "models" / "x.gguf")
    (tmp_path / "x.gguf").touch()
    assert resolve_models(spec_with(tmp_path, "x.gguf"), tmp_path).engines[0].model == str(tmp_path / "x.gguf")


def test_demo_models_are_found(tmp_path: Path) -> None:
    name = next(DEMO_MODELS.iterdir()).name
    assert resolve_models(spec_with(tmp_path, name), tmp_path).engines[0].model == str((DEMO_MODELS / name).resolve())


def test_configured_directories_come_after_the_registry_and_before_the_demo_models(tmp_path: Path) -> None:
    demo = next(DEMO_MODELS.iterdir()).name
    for folder, name in (("state/models", "x.gguf"), ("shared", "x.gguf"), ("shared", "y.gguf"), ("shared", demo)):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / name).touch()
    for name, folder in (("x.gguf", "state/models"), ("y.gguf", "shared"), (demo, "shared")):
        spec = msgspec.structs.replace(spec_with(tmp_path, name), model_dirs=("shared",))
        assert resolve_models(spec, tmp_path).engines[0].model == str(tmp_path / folder / name)


def test_a_directory_of_models_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_models(ConfigSpec(version=1, model_dirs=("nowhere",)), tmp_path)
    assert caught.value.path == "model_dirs[0]" and "nowhere" in caught.value.message


def test_a_model_that_is_nowhere(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_models(spec_with(tmp_path, "none.gguf"), tmp_path)
    assert caught.value.path == "engines[0].model"
    assert "none.gguf" in caught.value.message


def test_external_engines_have_no_file(tmp_path: Path) -> None:
    spec = spec_with(tmp_path, None, "external")
    assert resolve_models(spec, tmp_path).engines == spec.engines


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


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (
            {"engines": [{"name": "a", "runtime": "onnx", "model": "nowhere"}]},
            "engines[0].model: engine 'a': there is no model file 'nowhere'",
        ),
        ({"model_dirs": ["nowhere"]}, "model_dirs[0]: there is no directory "),
        ({"audit": {"sinks": [{"type": "file"}, {"type": "file"}]}}, "audit.sinks: exactly one sink of type 'file' is needed"),
        ({"store": {"url": "mysql://h"}}, "store.url: a store is 'sqlite' or postgresql://..."),
        ({"listen": {"tls": {"cert": "/nowhere", "key": "/nowhere"}}}, "listen.tls: the TLS files cannot be used"),
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


# --- guardrails that are kept


def test_two_guardrails_are_the_same_only_with_all_their_settings() -> None:
    one = GuardrailSpec(name="g", type="denylist", settings={"a": 1, "b": 2})
    assert key_of(one) == key_of(GuardrailSpec(name="g", type="denylist", settings={"b": 2, "a": 1}))
    for other in ({"name": "h"}, {"settings": {"a": 1}}, {"fail_mode": "open"}, {"on": ("request",)}, {"models": ("x",)}):
        assert key_of(one) != key_of(msgspec.structs.replace(one, **other))


def test_which_settings_name_files() -> None:
    assert reads_files({"phrases_file": "x"})
    assert not reads_files({"phrases": ["x_file"]})


# --- in force


async def test_what_is_in_force_after_the_start(gateway: Gateway) -> None:
    snapshot = gateway.plane.current()
    assert (snapshot.version, gateway.metrics.config_version) == (1, 1)
    assert set(snapshot.models) == {"m", "n"}
    assert snapshot.models["m"] is snapshot.models["n"]
    assert [g.name for g in snapshot.models["m"].request_guardrails] == ["words"]
    assert [g.name for g in snapshot.models["m"].response_guardrails] == ["words"]
    assert snapshot.audit.accepting


async def test_the_scrape_of_a_whole_gateway_parses(gateway: Gateway) -> None:
    names = {family.name for family in text_string_to_metric_families(gateway.metrics.scrape().decode())}
    assert {"gatehouse_endpoint_up", "gatehouse_breaker_open", "gatehouse_audit_records", "gatehouse_guardrail_failures"} <= names
    gateway.registry.force("a", "open")
    shown = {
        (s.name, *s.labels.values()): s.value for f in text_string_to_metric_families(gateway.metrics.scrape().decode()) for s in f.samples
    }
    states = {state: shown["gatehouse_breaker_state", "a", state] for state in ("closed", "half_open", "open")}
    assert states == {"closed": 0.0, "half_open": 0.0, "open": 1.0}
    assert (shown["gatehouse_breaker_open", "a"], shown["gatehouse_queued", "m"]) == (1.0, 0.0)


async def test_a_change_swaps_the_snapshot_and_keeps_what_did_not_change(gateway: Gateway, tmp_path: Path) -> None:
    before = gateway.plane.current()
    guardrails = [{"name": "words", "type": "denylist", "settings": {"phrases": ["red"]}}]
    text = config(tmp_path, guardrails=guardrails, limits=[{"name": "l", "concurrent": 5}])
    await gateway.reloader.apply(text, source="test")
    after = gateway.plane.current()
    assert after is not before and after.version == 2
    assert after.models["m"].request_guardrails[0] is before.models["m"].request_guardrails[0]
    assert after.models["m"].meter is before.models["m"].meter
    assert gateway.metrics.reloads == {"applied": 1, "refused": 0}


@pytest.mark.parametrize(
    ("parts", "path"),
    [
        ({"listen": {"data": "127.0.0.1:1"}}, "listen.data"),
        ({"listen": {"admin": "127.0.0.1:1"}}, "listen.admin"),
        ({"state_dir": "/tmp/elsewhere"}, "state_dir"),
        ({"audit": {"durability": "fsync"}}, "audit"),
        ({"identity": {}}, "identity.api_keys.static"),
        ({"guardrails": [{"name": "w", "type": "denylist", "settings": {"phrases_file": "nowhere"}}]}, "guardrails[0].settings"),
    ],
)
async def test_a_refused_change_changes_nothing(gateway: Gateway, tmp_path: Path, parts: dict[str, object], path: str) -> None:
    before = gateway.plane.current()
    with pytest.raises(ConfigError) as caught:
        await gateway.reloader.apply(config(tmp_path, **parts), source="test")
    assert caught.value.path == path
    assert gateway.plane.current() is before
    assert gateway.metrics.reloads == {"applied": 0, "refused": 1}


@pytest.mark.parametrize(
    ("parts", "path"),
    [({"listen": {"data": "127.0.0.1:1"}}, "listen.data"), ({"model_dirs": ["nowhere"]}, "model_dirs[0]"), ({"limit": []}, "limit")],
)
async def test_a_file_that_is_refused_later_is_refused_with_its_line(
    gateway: Gateway, tmp_path: Path, parts: dict[str, object], path: str
) -> None:
    file = tmp_path / "gatehouse.yaml"
    file.write_text(config(tmp_path, **parts))
    with pytest.raises(ConfigError) as caught:
        await gateway.reloader.reload()
    assert caught.value.path == path
    assert caught.value.line is not None and path.partition(".")[0].rstrip("[0]") in "\n".join(
        file.read_text().splitlines()[caught.value.line - 2 : caught.value.line]
    )
    assert gateway.reloader.status.error is not None and gateway.reloader.status.error.startswith(f"{file}:{caught.value.line}: {path}: ")


async def test_nobody_can_log_in_without_a_key_unless_that_is_said(tmp_path: Path) -> None:
    gateway = made(tmp_path)
    without = msgspec.structs.replace(gateway.spec, identity=IdentitySpec())
    with pytest.raises(ConfigError, match="no way to log in"):
        gateway.snapshot(without)
    assert gateway.snapshot(msgspec.structs.replace(without, insecure=True)).snapshot.spec.insecure
    assert gateway.plane.snapshot is None
    await gateway.aclose()
