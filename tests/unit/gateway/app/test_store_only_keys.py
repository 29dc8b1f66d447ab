"""A gateway whose keys are all in the store: before the first one, with it, and what a change of the configuration may not take away."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import pytest

from gateway.app.gateway import Gateway
from gateway.app.identity.first_administrator import make_first_key
from gateway.core.errors import AuthenticationError, ConfigError, StoreUnavailable
from gateway.core.storage import KeySettings
from gateway.core.types import Peer
from gateway.server.health import Health
from tests.unit.gateway.app.making import config, made

STORE_ONLY = {"identity": {"api_keys": {"rely_on_store": True}}}
PEER = Peer("192.0.2.1")


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    found = made(tmp_path, **STORE_ONLY)
    await found.start()
    yield found
    await found.aclose()


async def tenant_of(gateway: Gateway, key: str) -> str | None:
    found = gateway.plane.current().identity.authenticate({b"x-api-key": key.encode()}, PEER)
    principal = await found if isinstance(found, Awaitable) else found
    return None if principal is None else principal.tenant


async def test_before_the_first_key_everybody_is_refused_and_told(gateway: Gateway) -> None:
    health = Health(gateway.plane, keys=gateway.changes.somebody_can_log_in)
    assert health.ready()[1]["no_keys"] is True
    for key in ("k" * 40, ""):
        with pytest.raises(AuthenticationError):
            await tenant_of(gateway, key)
    first = await make_first_key(gateway.spec, gateway.store_link, gateway.events)
    assert first is not None and await tenant_of(gateway, first) == "gatehouse"
    assert "no_keys" not in health.ready()[1]
    assert await make_first_key(gateway.spec, gateway.store_link, gateway.events) is None


async def test_that_nobody_can_log_in_is_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for keys in (0, 1):
        found = made(tmp_path, **STORE_ONLY)
        caplog.clear()
        await found.start()
        assert ("no key can log in yet" in caplog.text) == (keys == 0)
        await found.store_link.store.create_key("t", KeySettings(), actor="test")
        await found.aclose()


async def test_a_store_that_cannot_take_the_first_key_says_so(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def away(*given: object, **named: object) -> None:
        raise StoreUnavailable("it is away")

    monkeypatch.setattr(gateway.store_link.store, "create_key", away)
    assert await make_first_key(gateway.spec, gateway.store_link, gateway.events) is None
    assert "the first administrator's key could not be made, the next start tries again: it is away" in caplog.text


async def test_keys_of_the_file_are_only_left_behind_when_the_store_has_one(tmp_path: Path) -> None:
    """The first administrator's key is made at a start: a change must not leave nobody who could make another."""
    gateway = made(tmp_path)
    await gateway.start()
    try:
        for dry_run in (True, False):
            with pytest.raises(ConfigError, match="the store has no key") as caught:
                await gateway.changes.reloader.apply(config(tmp_path, **STORE_ONLY), source="test", dry_run=dry_run)
            assert caught.value.path == "identity.api_keys.rely_on_store"
        _, secret = await gateway.store_link.store.create_key("acme", KeySettings(models=("*",)), actor="test")
        await gateway.changes.reloader.apply(config(tmp_path, **STORE_ONLY), source="test")
        assert await tenant_of(gateway, secret.reveal()) == "acme"
    finally:
        await gateway.aclose()


async def test_the_store_adds_to_a_gateway_that_has_no_key_yet(gateway: Gateway) -> None:
    await gateway.store_link.store.create("limits", "l", {"name": "l", "concurrent": 5}, actor="test")
    await gateway.changes.reloader.refresh("store")
    assert [limit.name for limit in gateway.plane.current().spec.limits] == ["l"]
