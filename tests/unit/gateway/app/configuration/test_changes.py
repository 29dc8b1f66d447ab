"""Changes of the configuration: what a change keeps, what it may not change, what a refusal leaves."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.app.configuration.assembly import Assembler
from gateway.app.configuration.plugins import OURS, Plugins
from gateway.app.gateway import Gateway
from gateway.config import reload
from gateway.config.load import load
from gateway.core.errors import ConfigError
from gateway.core.plugins import GuardrailRow
from gateway.core.specs import Spec
from gateway.core.storage import KeySettings
from gateway.core.types import ALLOW
from tests.pki import Authority
from tests.unit.gateway.app.making import config, made
from tests.waiting import reached


async def test_what_is_in_force_after_the_start(gateway: Gateway) -> None:
    snapshot = gateway.plane.current()
    assert (snapshot.version, gateway.metrics.config_version) == (1, 1)
    assert set(snapshot.models) == {"m", "n"}
    assert snapshot.models["m"] is snapshot.models["n"]
    assert [g.name for g in snapshot.models["m"].request_guardrails] == ["words"]
    assert [g.name for g in snapshot.models["m"].response_guardrails] == ["words"]
    assert snapshot.audit.accepting


async def test_names_that_nothing_has_are_told_once_for_each_file(
    gateway: Gateway, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def told() -> list[str]:
        return [record.getMessage() for record in caplog.records if "no model of this configuration" in record.getMessage()]

    file = tmp_path / "gatehouse.yaml"
    text = yaml.safe_load(file.read_text())
    text["limits"] = [{"name": "few", "per": "key", "match": {"model": "mm"}, "concurrent": 1}]
    file.write_text(yaml.safe_dump(text))
    caplog.set_level(logging.WARNING)
    reloader = gateway.changes.reloader
    await reloader.reload()
    await reached(lambda: told() != [])
    (one,) = told()
    assert one.startswith(f"{file}:") and "limits[0].match.model: no model of this configuration is called 'mm'; did you mean 'm'?" in one
    await reloader.refresh("store")
    text["limits"][0]["concurrent"] = 2
    file.write_text(yaml.safe_dump(text))
    await reloader.reload()
    await reached(lambda: len(told()) >= 2)
    assert len(told()) == 2, "not for what the store changes"


async def test_a_limit_for_a_tenant_that_neither_file_nor_store_has_is_told(
    gateway: Gateway, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def told() -> list[str]:
        return [record.getMessage() for record in caplog.records if "is of the tenant" in record.getMessage()]

    await gateway.store_link.store.create_key("stored", KeySettings(), actor="test")
    file = tmp_path / "gatehouse.yaml"
    text = yaml.safe_load(file.read_text())
    tenants = {"one": "stored", "two": "storedd", "three": "a-*"}
    text["limits"] = [{"name": name, "per": "key", "match": {"tenant": tenant}, "concurrent": 1} for name, tenant in tenants.items()]
    file.write_text(yaml.safe_dump(text))
    caplog.set_level(logging.WARNING)
    await gateway.changes.reloader.reload()
    await reached(lambda: told() != [])
    (one,) = told()
    assert "limits[1].match.tenant: no key or login of this configuration is of the tenant 'storedd'; did you mean 'stored'?" in one


async def test_a_file_that_is_refused_is_told_until_one_is_applied(gateway: Gateway, tmp_path: Path) -> None:
    def told() -> float:
        found = {metric.name: metric for gauges in gateway.metrics.gauges for metric in gauges()}
        return float(found["gatehouse_config_refused"].samples[0].value)

    reloader, file = gateway.changes.reloader, tmp_path / "gatehouse.yaml"
    right = file.read_text()
    assert told() == 0
    with pytest.raises(ConfigError):
        await reloader.apply("nonsense: 1", source="admin:somebody")
    assert told() == 0, "who sent it knows"
    file.write_text("nonsense: 1")
    with pytest.raises(ConfigError):
        await reloader.reload()
    await reloader.refresh("store")
    assert told() == 1
    file.write_text(right)
    await reloader.reload()
    assert told() == 0


async def test_what_a_login_measures_counts_while_it_is_in_force(gateway: Gateway, tmp_path: Path) -> None:
    authority, file, measured = Authority(tmp_path / "ca"), tmp_path / "gatehouse.yaml", gateway.builder.login_gauges
    with_list = yaml.safe_load(file.read_text())
    with_list["identity"]["mtls"] = {
        "principals": [{"match": {"common_name": "*"}, "tenant": "t"}],
        "authorities": [authority.cert],
        "crl": authority.crl(),
        "forwarded": {"peers": ["127.0.0.1"]},
    }
    with_list.setdefault("listen", {})["trusted_peers"] = ["127.0.0.1"]
    without = file.read_text()
    file.write_text(yaml.safe_dump(with_list))
    await gateway.changes.reloader.reload()
    ends = measured["crl"]
    assert measured["crl_refused"] == 0
    held = gateway.plane.current()  # by a request
    file.write_text(yaml.safe_dump(with_list | {"prices": []}))
    await gateway.changes.reloader.reload()
    assert measured["crl"] == ends, "what is kept still counts"
    file.write_text(without)
    await gateway.changes.reloader.reload()
    assert "crl" not in measured and "crl_refused" not in measured and held is not gateway.plane.current()


async def test_a_change_swaps_the_snapshot_and_keeps_what_did_not_change(gateway: Gateway, tmp_path: Path) -> None:
    before = gateway.plane.current()
    guardrails = [{"name": "words", "type": "denylist", "settings": {"phrases": ["red"]}}]
    text = config(tmp_path, guardrails=guardrails, limits=[{"name": "l", "concurrent": 5}])
    await gateway.changes.reloader.apply(text, source="test")
    after = gateway.plane.current()
    assert after is not before and after.version == 2
    assert after.models["m"].request_guardrails[0] is before.models["m"].request_guardrails[0]
    assert after.models["m"].meter is before.models["m"].meter
    assert gateway.metrics.reloads == {"applied": 1, "refused": 0}


async def test_a_list_in_a_file_is_compiled_again_only_once_the_file_has_changed(gateway: Gateway, tmp_path: Path) -> None:
    words, more = tmp_path / "words.txt", tmp_path / "more.txt"
    words.write_text("blue\n")
    more.write_text("green\n")
    guardrails = [
        {"name": "words", "type": "denylist", "settings": {"phrases_file": str(words)}},
        {"name": "more", "type": "denylist", "settings": {"phrases_file": str(more)}},
    ]
    reloader = gateway.changes.reloader
    (tmp_path / "gatehouse.yaml").write_text(config(tmp_path, guardrails=guardrails))

    async def reloaded() -> tuple[Any, ...]:
        await reloader.reload()
        snapshot = gateway.plane.current()
        return (*snapshot.models["m"].request_guardrails, snapshot.prefilter)

    first, second, scan = await reloaded()
    assert scan is not None and await reloaded() == (first, second, scan)
    await reloader.refresh("store")
    assert gateway.plane.current().prefilter is scan
    words.write_text("red\n")
    changed = await reloaded()
    assert changed[0] is not first and changed[1] is second and changed[2] is not scan
    assert changed[0].guardrail.check(["a red one"]).action == "block" and changed[0].guardrail.check(["a blue one"]) is ALLOW
    words.unlink()
    with pytest.raises(ConfigError, match="the guardrail 'words'"):
        await reloader.reload()
    assert gateway.plane.current().models["m"].request_guardrails[0] is changed[0]


async def test_the_collector_does_not_look_through_what_is_being_built(
    gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on: list[bool] = []
    build = Assembler.assemble

    async def assemble(*arguments: Any, **more: Any) -> Any:
        on.append(gc.isenabled())
        return await build(*arguments, **more)

    monkeypatch.setattr(Assembler, "assemble", assemble)
    await gateway.changes.reloader.apply(config(tmp_path, limits=[{"name": "l", "concurrent": 5}]), source="test")
    assert on == [False]
    await reached(gc.isenabled)  # threads that describe the policy go on for a moment
    monkeypatch.setattr(Assembler, "assemble", None)
    with pytest.raises(TypeError):
        await gateway.changes.reloader.apply(config(tmp_path, limits=[{"name": "l", "concurrent": 6}]), source="test")
    await reached(gc.isenabled)


@pytest.mark.parametrize(
    ("parts", "path"),
    [
        ({"listen": {"data": "127.0.0.1:1"}}, "listen.data"),
        ({"listen": {"admin": "127.0.0.1:1"}}, "listen.admin"),
        ({"listen": {"grpc": "127.0.0.1:1"}}, "listen.grpc"),
        ({"state_dir": "/tmp/elsewhere"}, "state_dir"),
        ({"audit": {"durability": "fsync"}}, "audit"),
        ({"identity": {}}, "identity.api_keys.static"),
        ({"guardrails": [{"name": "w", "type": "denylist", "settings": {"phrases_file": "nowhere"}}]}, "guardrails[0].settings"),
    ],
)
async def test_a_refused_change_changes_nothing(gateway: Gateway, tmp_path: Path, parts: dict[str, object], path: str) -> None:
    before = gateway.plane.current()
    with pytest.raises(ConfigError) as caught:
        await gateway.changes.reloader.apply(config(tmp_path, **parts), source="test")
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
        await gateway.changes.reloader.reload()
    assert caught.value.path == path
    assert caught.value.line is not None and path.partition(".")[0].rstrip("[0]") in "\n".join(
        file.read_text().splitlines()[caught.value.line - 2 : caught.value.line]
    )
    assert gateway.changes.reloader.status.error is not None and gateway.changes.reloader.status.error.startswith(
        f"{file}:{caught.value.line}: {path}: "
    )


# --- settings that a change must apply to what already runs


@pytest.fixture
def loggers() -> Iterator[logging.Logger]:
    """Gatehouse's logger; the root's handlers and both levels are put back."""
    root, ours = logging.getLogger(), logging.getLogger("gatehouse")
    before = root.handlers[:], root.level, ours.level
    yield ours
    root.handlers[:], root.level, ours.level = before


async def test_a_change_applies_the_log_settings(gateway: Gateway, tmp_path: Path, loggers: logging.Logger) -> None:
    handlers = logging.getLogger().handlers[:]
    await gateway.changes.reloader.apply(config(tmp_path, limits=[{"name": "l", "concurrent": 5}]), source="test")
    assert logging.getLogger().handlers == handlers, "nothing of it has changed"
    outcome = await gateway.changes.reloader.apply(config(tmp_path, telemetry={"log_level": "debug", "log_format": "json"}), source="test")
    assert set(outcome["changed"]) >= {"telemetry.log_level", "telemetry.log_format"}
    assert loggers.level == logging.DEBUG
    assert [type(handler.formatter).__name__ for handler in logging.getLogger().handlers] == ["JsonFormatter"]


async def test_a_change_starts_and_ends_the_watch_of_the_file(gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reload, "POLL_SECONDS", 0.005)
    file, reloader = tmp_path / "gatehouse.yaml", gateway.changes.reloader
    await reloader.apply(config(tmp_path, watch=True), source="test")
    file.write_text(config(tmp_path, watch=True, limits=[{"name": "watched", "concurrent": 5}]))
    await reached(lambda: [limit.name for limit in gateway.plane.current().spec.limits] == ["watched"])
    file.write_text(config(tmp_path, limits=[{"name": "last", "concurrent": 5}]))
    await reached(lambda: [limit.name for limit in gateway.plane.current().spec.limits] == ["last"])


async def test_two_watches_are_never_under_way(gateway: Gateway, tmp_path: Path) -> None:
    reloader = gateway.changes.reloader
    for _ in range(2):
        reloader.watch(True)
        watching = len(gateway._owner)
        reloader.watch(True)
        assert len(gateway._owner) == watching
        reloader.watch(False)
        reloader.watch(False)
        await reached(lambda most=watching: len(gateway._owner) < most)  # type: ignore[misc]


# --- plug-ins with a life


class Living:
    """A guardrail that must be started and closed; `name` fails to start if it says so."""

    def __init__(self, name: str, happened: list[str]) -> None:
        self.name, self._happened = name, happened

    async def start(self) -> None:
        self._happened.append(f"{self.name} started")
        if self.name == "fails":
            raise OSError("no way there")

    async def aclose(self) -> None:
        self._happened.append(f"{self.name} closed")

    def check(self, texts: object) -> Any:
        return ALLOW

    def stream(self) -> None:
        return None


def with_life(happened: list[str]) -> Plugins:
    class Settings(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
        number: int = 0

    row = GuardrailRow(name="living", settings=Settings, build=lambda settings, context: Living(context.name, happened))
    return replace(OURS, guardrails=OURS.guardrails.joined([row]))


def guarded(directory: Path, *names: str) -> str:
    return config(directory, guardrails=[{"name": name, "type": "living"} for name in names])


async def test_a_snapshot_starts_its_plug_ins_and_closes_them_after_its_last_request(tmp_path: Path) -> None:
    happened: list[str] = []
    plugins = with_life(happened)
    file = tmp_path / "gatehouse.yaml"
    file.write_text(guarded(tmp_path, "a", "b"))
    gateway = Gateway(load(file, {}, plugins.schemas()), {}, plugins)
    await gateway.start()
    apply = gateway.changes.reloader.apply
    assert happened == ["a started", "b started"]

    request = gateway.plane.current()  # a request pins it
    await apply(guarded(tmp_path, "b", "c"), source="test")
    assert happened[2:] == ["c started"]
    await gateway.changes.reloader.refresh("test")
    with pytest.raises(ConfigError, match="no way there"):
        await apply(guarded(tmp_path, "b", "d", "fails"), source="test")
    assert sorted(happened[3:]) == ["d closed", "d started", "fails closed", "fails started"]
    assert [guard.name for guard in gateway.plane.current().spec.guardrails] == ["b", "c"]

    before = len(happened)
    del request
    await reached(lambda: happened[before:] == ["a closed"])
    await gateway.aclose()
    assert sorted(happened[before + 1 :]) == ["b closed", "c closed"]


async def test_a_dry_run_starts_nothing(tmp_path: Path) -> None:
    happened: list[str] = []
    plugins = with_life(happened)
    file = tmp_path / "gatehouse.yaml"
    file.write_text(guarded(tmp_path, "a"))
    gateway = Gateway(load(file, {}, plugins.schemas()), {}, plugins)
    await gateway.start()
    await gateway.changes.reloader.apply(guarded(tmp_path, "a", "b"), source="test", dry_run=True)
    assert happened == ["a started"]
    await gateway.aclose()


@pytest.mark.parametrize("part", ["limits", "keeping", "replicas", "audit"])
async def test_a_change_of_the_store_while_a_gateway_ends_fails_nothing(
    tmp_path: Path, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = made(tmp_path)
    await gateway.start()
    close = getattr(gateway, part).aclose

    async def meanwhile(*args: Any, **settings: Any) -> Any:
        await gateway.store_link.store.create("limits", f"added-{part}", {"requests": {"rate": 5}}, actor="somebody")
        return await close(*args, **settings)

    getattr(gateway, part).aclose = meanwhile
    await gateway.aclose()
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []
