"""The reloader, with builds and swaps that the test decides."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.config.load import load, parse
from gateway.config.reload import Reloader, Steps, changes
from gateway.core.clock import FakeClock
from gateway.core.errors import ConfigError
from gateway.core.specs import ConfigSpec
from gateway.core.tasks import TaskOwner

KEY = "k" * 40
TEXT = f"""\
version: 1
identity: {{api_keys: {{static: [{{id: ci, key: {KEY}, tenant: ci, models: ["*"]}}]}}}}
engines: [{{name: a, runtime: external, url: "http://h"}}]
"""


class World:
    """What a composition root would hand in, with a log of what was done."""

    def __init__(self, file: Path) -> None:
        self.file = file
        file.write_text(TEXT)
        self.owner = TaskOwner("test")
        self.clock = FakeClock()
        self.log: list[str] = []
        self.gate: asyncio.Event | None = None
        self.building = asyncio.Event()
        self.refuse: str | None = None
        self.in_force = "first"
        steps = Steps(lambda: load(file, {}), self.parse, self.check, self.build, self.swap, self.drain)
        self.reloader = Reloader(load(file, {}), "first", steps, self.owner, self.clock)

    def parse(self, text: str) -> ConfigSpec:
        return parse(text, file=None, environ={})

    async def check(self, spec: ConfigSpec) -> None:
        if self.refuse is not None:
            raise ConfigError(self.refuse)

    async def build(self, spec: ConfigSpec) -> str:
        self.log.append("build")
        self.building.set()
        if self.gate is not None:
            await self.gate.wait()
        if self.refuse is not None:
            raise ConfigError(self.refuse)
        return spec.state_dir

    def swap(self, built: str) -> None:
        self.log.append(f"swap {built}")
        self.in_force = built

    async def drain(self, old: str) -> None:
        self.log.append(f"drain {old}")

    def write(self, state_dir: str) -> None:
        self.file.write_text(TEXT + f"state_dir: {state_dir}\n")
        stamp = self.file.stat().st_mtime_ns + 1_000_000
        os.utime(self.file, ns=(stamp, stamp))


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path / "gate.yaml")
    yield world
    await world.owner.aclose()


async def settled(world: World) -> None:
    async with asyncio.timeout(60):
        while len(world.owner):
            await asyncio.sleep(0)


async def test_a_change_is_built_swapped_and_the_old_drained(world: World) -> None:
    world.write("second")
    world.clock.advance(5)
    outcome = await world.reloader.reload()
    await settled(world)
    assert outcome == {"version": 2, "changed": ["state_dir"], "applied": True, "until_restart": False}
    assert world.log == ["build", "swap second", "drain first"]
    status = world.reloader.status
    assert (status.state, status.version, status.error, status.applied_at) == ("idle", 2, None, world.clock.wall())
    assert world.reloader.spec.state_dir == "second"
    assert world.reloader.current()["state_dir"] == "second"
    assert KEY not in str(world.reloader.current())


async def test_the_same_settings_are_built_again(world: World) -> None:
    """Files that settings name may have changed."""
    assert await world.reloader.reload() == {"version": 2, "changed": [], "applied": True, "until_restart": False}
    assert world.log[:2] == ["build", "swap ./var"]


async def test_a_file_that_cannot_be_parsed_changes_nothing(world: World) -> None:
    world.file.write_text("version: [")
    with pytest.raises(ConfigError, match="malformed YAML"):
        await world.reloader.reload()
    status = world.reloader.status
    assert (world.log, world.in_force, status.version, status.state) == ([], "first", 1, "idle")
    assert status.error is not None and "malformed YAML" in status.error
    assert (status.failed_at, status.failed_source) == (world.clock.wall(), str(world.file))


async def test_a_build_that_fails_changes_nothing_and_a_later_one_clears_the_error(world: World) -> None:
    world.refuse = "no such device"
    world.write("second")
    with pytest.raises(ConfigError, match="no such device"):
        await world.reloader.reload()
    assert (world.in_force, world.reloader.version, world.reloader.spec.state_dir) == ("first", 1, "./var")
    world.refuse = None
    await world.reloader.reload()
    assert (world.in_force, world.reloader.version, world.reloader.status.error) == ("second", 2, None)


async def test_what_the_store_adds_tells_nothing_about_a_file_that_was_refused(world: World) -> None:
    world.file.write_text("version: [")
    with pytest.raises(ConfigError):
        await world.reloader.reload()
    await world.reloader.refresh("store")
    assert "malformed YAML" in (world.reloader.status.error or "")
    world.refuse = "a limit that cannot be"
    with pytest.raises(ConfigError):
        await world.reloader.refresh("store")
    world.refuse = None
    await world.reloader.refresh("store")
    assert world.reloader.status.error is None


async def test_an_unexpected_failure_leaves_the_reloader_usable(world: World) -> None:
    async def broken(spec: ConfigSpec) -> str:
        raise RuntimeError("bug")

    steps = Steps(lambda: load(world.file, {}), world.parse, world.check, broken, world.swap, world.drain)
    reloader = Reloader(load(world.file, {}), "first", steps, world.owner, world.clock)
    world.write("second")
    with pytest.raises(RuntimeError):
        await reloader.reload()
    assert reloader.status.state == "idle"
    assert reloader.version == 1


async def test_one_change_at_a_time(world: World) -> None:
    """A text that comes while a reload builds waits for its end, and is compared with what that one put into force."""
    world.gate = asyncio.Event()
    world.write("second")
    first = asyncio.ensure_future(world.reloader.reload())
    await world.building.wait()
    assert world.reloader.status.state == "building"
    second = asyncio.ensure_future(world.reloader.apply(TEXT + "state_dir: third\n", source="admin"))
    await asyncio.sleep(0)
    assert world.log == ["build"]
    world.gate.set()
    assert (await first)["version"] == 2
    assert await second == {"version": 3, "changed": ["state_dir"], "applied": True, "until_restart": True}
    assert world.reloader.status.source == "admin"
    await settled(world)
    assert [entry for entry in world.log if not entry.startswith("drain")] == ["build", "swap second", "build", "swap third"]


async def test_reloads_that_wait_together_are_one(world: World) -> None:
    world.gate = asyncio.Event()
    world.write("second")
    running = asyncio.ensure_future(world.reloader.reload())
    await world.building.wait()
    world.write("third")
    waiting = [asyncio.ensure_future(world.reloader.reload()) for _ in range(10)]
    await asyncio.sleep(0)
    world.gate.set()
    await running
    outcomes = await asyncio.gather(*waiting)
    assert [outcome["version"] for outcome in outcomes] == [3] * 10
    assert world.log.count("build") == 2


async def test_a_caller_that_goes_away_does_not_stop_a_change(world: World) -> None:
    world.gate = asyncio.Event()
    caller = asyncio.ensure_future(world.reloader.apply(TEXT + "state_dir: second\n", source="admin"))
    await world.building.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    world.gate.set()
    await settled(world)
    assert world.in_force == "second"


async def test_a_dry_run_says_what_would_change(world: World) -> None:
    outcome = await world.reloader.apply(TEXT + "watch: true\n", source="admin", dry_run=True)
    assert outcome.pop("would") == {**world.reloader.current(), "watch": True}
    assert outcome == {"version": 1, "changed": ["watch"], "applied": False, "until_restart": True}
    with pytest.raises(ConfigError, match="unknown key"):
        await world.reloader.apply(TEXT + "wach: true\n", source="admin", dry_run=True)
    assert world.log == []
    assert world.reloader.status.error is None


async def test_a_dry_run_is_refused_for_what_the_build_would_refuse(world: World) -> None:
    world.refuse = "there is no model file"
    with pytest.raises(ConfigError, match="no model file"):
        await world.reloader.apply(TEXT + "watch: true\n", source="admin", dry_run=True)
    assert (world.log, world.reloader.status.error) == ([], None)


async def test_a_changed_file_is_read_when_it_has_come_to_rest(world: World) -> None:
    await world.reloader.poll()
    world.write("second")
    await world.reloader.poll()
    assert world.log == []
    world.write("third")
    await world.reloader.poll()
    assert world.log == []
    await world.reloader.poll()
    assert world.in_force == "third"
    await world.reloader.poll()
    assert world.log.count("build") == 1


async def test_a_file_that_is_gone_or_wrong_is_reported_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.file.unlink()
    for _ in range(3):
        await world.reloader.poll()
    assert world.log == []
    world.file.write_text("nonsense")
    for _ in range(4):
        await world.reloader.poll()
    assert len([r for r in caplog.records if "was not applied, the old one stays in force" in r.message]) == 1
    assert world.in_force == "first"


async def test_a_signal_asks_for_a_reload_in_the_background(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.write("second")
    world.reloader.request_reload()
    await settled(world)
    assert world.in_force == "second"
    world.file.write_text("nonsense")
    world.reloader.request_reload()
    await settled(world)
    assert "was not applied" in caplog.text


def test_changes_name_paths_and_never_values() -> None:
    def spec(addition: str) -> ConfigSpec:
        return parse(TEXT + addition, file=None, environ={})

    limits = "limits: [{name: a, concurrent: 1}, {name: b, concurrent: 1}]\n"
    assert changes(spec(""), spec("")) == []
    assert changes(spec(""), spec("listen: {max_headers: 3}\nwatch: true\n")) == ["listen.max_headers", "watch"]
    assert changes(spec(limits), spec(limits.replace("name: b, concurrent: 1", "name: b, concurrent: 2"))) == ["limits.b"]
    assert changes(spec(limits), spec("limits: [{name: c, concurrent: 1}, {name: a, concurrent: 1}]\n")) == ["limits.b", "limits.c"]
    assert changes(spec(limits), spec("limits: [{name: b, concurrent: 1}, {name: a, concurrent: 1}]\n")) == ["limits"]
    other = parse(TEXT.replace(KEY, "z" * 40), file=None, environ={})
    assert changes(spec(""), other) == ["identity.api_keys"]


async def test_a_text_that_the_file_does_not_have_counts_until_a_restart_and_says_so(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    reloader = world.reloader
    assert (await reloader.apply(TEXT + "state_dir: second\n", source="admin"))["until_restart"] is True
    assert "counts until a restart" in caplog.text and str(world.file) in caplog.text
    await reloader.refresh("store")
    assert reloader.status.until_restart, "a change of the store tells nothing about the file"
    assert (await reloader.apply(TEXT, source="admin"))["until_restart"] is False, "the file says the same"
    await reloader.apply(TEXT + "state_dir: second\n", source="admin")
    world.write("second")
    assert (await reloader.reload())["until_restart"] is False
    assert reloader.status.until_restart is False
