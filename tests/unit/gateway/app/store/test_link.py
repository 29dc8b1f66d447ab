"""A process's link to the store: keys that are remembered and revoked, usage that is written when the store answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.app.store.link import StoreLink
from gateway.core.errors import ConfigError, StoreUnavailable
from gateway.core.feed import LocalFeed
from gateway.core.specs import ConfigSpec, StoreSpec
from gateway.core.storage import KeySettings
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


async def test_last_use_is_written_at_the_end_and_kept_while_the_store_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = StoreLink(spec(tmp_path), {}, LocalFeed())
    await link.start()
    record, secret = await link.store.create_key("t", KeySettings(models=("*",)), actor="x")
    await lookup(link, secret.reveal())

    async def away(*args: Any) -> None:
        raise StoreUnavailable("away")

    with monkeypatch.context() as patched:
        patched.setattr(link.store, "touch_keys", away)
        await link.write()
    assert (await link.store.get_key(record.id)).last_used is None
    await link.aclose()
    again = StoreLink(spec(tmp_path), {}, LocalFeed())
    await again.start()
    assert again.has_keys
    assert (await again.store.get_key(record.id)).last_used is not None
    await again.aclose()


async def test_a_store_that_cannot_be_used_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        StoreLink(spec(tmp_path), {"GATEHOUSE_PEPPER": "short"}, LocalFeed())
    link = StoreLink(spec(tmp_path), {}, LocalFeed())
    await link.aclose()  # never started: nothing to write
