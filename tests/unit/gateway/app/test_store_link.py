"""A process's link to the store: keys that are remembered and revoked, usage that is written when the store answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.app.store_link import StoreLink
from gateway.core.errors import ConfigError, StoreUnavailable
from gateway.core.feed import LocalFeed
from gateway.core.specs import ConfigSpec, StoreSpec
from gateway.core.storage import KeySettings, UsageRow
from gateway.core.types import OutcomeRecord, Peer, Principal
from gateway.identity import keys

NEW_YEAR = 1_767_225_600.0  # 2026-01-01T00:00:00Z


def outcome(time: float = NEW_YEAR, attempts: int = 1, **fields: Any) -> OutcomeRecord:
    return OutcomeRecord(time, "r", "ok", 200, tenant="t", principal="k", model="m", attempts=attempts, **fields)


def spec(directory: Path) -> ConfigSpec:
    return ConfigSpec(version=1, state_dir=str(directory), store=StoreSpec(poll_interval=0.05))


async def lookup(link: StoreLink, key: str) -> Principal | None:
    answer = link.keys.lookup(keys.digest(key), key, Peer("127.0.0.1"))
    return answer if answer is None or isinstance(answer, Principal) else await answer


async def test_a_local_revocation_counts_before_the_write_returns(tmp_path: Path) -> None:
    link = StoreLink(spec(tmp_path), {}, LocalFeed())
    await link.start()
    assert not link.has_keys
    record, secret = await link.store.create_key("t", KeySettings(models=("*",)), actor="x")
    assert link.has_keys and await lookup(link, secret.reveal()) is not None
    await link.store.revoke_key(record.id, actor="x")
    assert await lookup(link, secret.reveal()) is None
    await link.aclose()


async def test_counts_are_written_at_the_end_and_kept_while_the_store_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = StoreLink(spec(tmp_path), {}, LocalFeed())
    await link.start()
    record, secret = await link.store.create_key("t", KeySettings(models=("*",)), actor="x")
    await lookup(link, secret.reveal())
    link.usage.add(outcome(prompt_tokens=7))

    async def away(*args: Any) -> None:
        raise StoreUnavailable("away")

    with monkeypatch.context() as patched:
        patched.setattr(link.store, "add_usage", away)
        await link.write()
    assert await link.store.report_usage() == []
    with monkeypatch.context() as patched:
        patched.setattr(link.store, "touch_keys", away)
        await link.write()
    assert (await link.store.get_key(record.id)).last_used is None
    await link.aclose()
    again = StoreLink(spec(tmp_path), {}, LocalFeed())
    await again.start()
    assert again.has_keys
    assert [(row["prompt_tokens"], row["requests"]) for row in await again.store.report_usage()] == [(7, 1)]
    assert (await again.store.get_key(record.id)).last_used is not None
    await again.aclose()


async def test_much_usage_is_written_in_small_parts_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.app.store_link.BATCH", 10)
    link = StoreLink(spec(tmp_path), {}, LocalFeed())
    await link.start()
    for number in range(25):
        link.usage.add(OutcomeRecord(NEW_YEAR, "r", "ok", 200, tenant="t", principal=f"k{number}", model="m", attempts=1))
    add, calls = link.store.add_usage, []

    async def fails_the_second_time(part: list[UsageRow]) -> None:
        calls.append(len(part))
        if len(calls) == 2:
            raise StoreUnavailable("away")
        await add(part)

    monkeypatch.setattr(link.store, "add_usage", fails_the_second_time)
    await link.write()
    assert [row["requests"] for row in await link.store.report_usage()] == [10]
    await link.write()
    assert calls == [10, 10, 10, 5]
    report = await link.store.report_usage(("key",))
    assert len(report) == 25 and {row["requests"] for row in report} == {1}
    await link.aclose()


async def test_a_store_that_cannot_be_used_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        StoreLink(spec(tmp_path), {"GATEHOUSE_PEPPER": "short"}, LocalFeed())
    link = StoreLink(spec(tmp_path), {}, LocalFeed())
    await link.aclose()  # never started: nothing to write
