"""One run of `serve`: what ends it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.app.configuration.plugins import OURS
from gateway.app.identity import first_administrator
from gateway.app.process import Process
from gateway.config.load import load
from gateway.core.errors import ConfigError
from gateway.server import listener
from gateway.server.listener import QuietServer
from tests.waiting import reached


def process(directory: Path) -> Process:
    file = directory / "gatehouse.yaml"
    settings = {
        "version": 1,
        "listen": {"data": "127.0.0.1:0", "admin": "127.0.0.1:0"},
        "state_dir": str(directory / "state"),
        "identity": {"api_keys": {"static": [{"id": "k", "key": "k" * 40, "tenant": "t", "models": ["*"]}]}},
    }
    file.write_text(yaml.safe_dump(settings))
    return Process(load(file, {}, OURS.schemas()), {}, None)


async def test_a_start_that_fails_in_an_unforeseen_way_ends_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*parts: object) -> str | None:
        raise RuntimeError("no luck")

    monkeypatch.setattr(first_administrator, "make_first_key", broken)
    with pytest.raises(ConfigError, match="the start failed: no luck"):
        await process(tmp_path).run()


async def test_two_processes_cannot_share_a_state_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def second(*parts: object) -> str | None:
        with pytest.raises(ConfigError, match=r"another gateway \(process \d+\) is running with the state directory"):
            await process(tmp_path).run()
        raise ConfigError("seen", path="listen.data")

    monkeypatch.setattr(first_administrator, "make_first_key", second)
    with pytest.raises(ConfigError) as caught:
        await process(tmp_path).run()
    assert caught.value.message == "seen" and caught.value.line is not None


async def test_the_end_waits_for_requests_as_long_as_the_configuration_in_force_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reload may have changed `listen.drain_timeout` since the start."""
    servers: list[QuietServer] = []

    def data_server(*parts: Any) -> QuietServer:
        servers.append(listener.data_server(*parts))
        return servers[0]

    monkeypatch.setattr("gateway.app.data_side.data_server", data_server)
    one = process(tmp_path)
    running = asyncio.ensure_future(one.run())
    await reached(lambda: one.gateway is not None)
    assert one.gateway is not None
    settings = yaml.safe_load((tmp_path / "gatehouse.yaml").read_text())
    settings["listen"]["drain_timeout"] = "7s"
    await one.gateway.changes.reloader.apply(yaml.safe_dump(settings), source="test")
    one.leaving.ask()
    assert await running == 0
    assert servers[0].config.timeout_graceful_shutdown == 10, "and as long as a last answer may take to arrive"


async def test_each_further_wish_to_leave_says_what_it_ends(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "gatehouse")
    running = process(tmp_path)
    for _ in range(5):
        running._end()
    assert [record.message for record in caplog.records] == [
        "asked to leave again: requests under way end with an error",
        "asked to leave a third time: clients get no time to read their answers",
    ]
