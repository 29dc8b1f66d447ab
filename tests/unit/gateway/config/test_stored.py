"""What of the store is part of the configuration: read again when it has changed, kept when it cannot be read, errors kept apart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.config.stored import StoredParts
from gateway.core.errors import ConfigError, StoreUnavailable
from gateway.core.specs import EngineSpec, LimitSpec
from gateway.identity import keys
from gateway.store.store import Store

LIMIT = {"name": "l", "concurrent": 1}
MODEL = {"name": "m", "pool": ["a"]}


def engine_of(name: str, body: dict[str, Any]) -> EngineSpec:
    if body.get("wrong"):
        raise ConfigError("its secret cannot be opened", path="api_key")
    return EngineSpec(name=name, runtime="external", url=body["url"])


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    made = Store("sqlite", tmp_path, keys)
    await made.start()
    yield made
    await made.aclose()


@pytest.fixture
async def parts(store: Store) -> StoredParts:
    made = StoredParts(store, engine_of)
    store.subscribe(lambda change: made.changed(change.kind, change.name))
    await made.read()
    return made


async def test_only_what_has_changed_is_read_again(store: Store, parts: StoredParts, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b", "a"):
        await store.create("models", name, {**MODEL, "name": name}, actor="x")
    await store.create("tenants", "t", {"name": "t"}, actor="x")
    await parts.read()
    assert list(parts.parts["models"]) == ["a", "b"]
    before, generation = parts.parts["models"]["b"], parts.generation
    monkeypatch.setattr(store, "list", None)
    await store.update("models", "a", {**MODEL, "name": "a", "max_tokens": 5}, actor="x")
    await store.create("limits", "l", LIMIT, actor="x")
    await parts.read()
    assert parts.parts["models"]["b"] is before and parts.parts["models"]["a"].revision == 2
    assert isinstance(parts.parts["limits"]["l"].spec, LimitSpec)
    assert parts.generation == generation + 2
    await store.delete("models", "a", actor="x")
    await parts.read()
    assert list(parts.parts["models"]) == ["b"]
    await parts.read()
    assert parts.generation == generation + 3, "nothing new, nothing read"


async def test_after_a_gap_everything_is_read(store: Store, parts: StoredParts) -> None:
    await store.create("models", "m", MODEL, actor="x")
    await parts.read()
    same = parts.parts["models"]["m"]
    other = StoredParts(store, engine_of)  # as a replica that heard nothing
    await other.read()
    await store.delete("models", "m", actor="x")
    await store.create("models", "m", {**MODEL, "max_tokens": 9}, actor="x")
    other.forget()
    await other.read()
    assert other.parts["models"]["m"].spec != same.spec, "the same name and revision, but another resource"


async def test_an_error_belongs_to_one_resource(store: Store, parts: StoredParts) -> None:
    await store.create("engines", "good", {"url": "http://x"}, actor="x")
    await store.create("engines", "bad", {"wrong": True}, actor="x")
    await store.create("models", "m", {"pool": 5}, actor="x")
    await parts.read()
    assert parts.parts["engines"]["good"].spec is not None
    assert str(parts.parts["engines"]["bad"].error) == "api_key: its secret cannot be opened"
    assert "cannot use" in str(parts.parts["models"]["m"].error)


async def test_what_cannot_be_read_now_is_read_another_time(store: Store, parts: StoredParts, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*args: Any, **more: Any) -> Any:
        raise StoreUnavailable("away")

    await store.create("models", "m", MODEL, actor="x")
    with monkeypatch.context() as patched:
        patched.setattr(store, "get", away)
        with pytest.raises(StoreUnavailable):
            await parts.read()
        parts.changed("models", "other")
    assert not parts.parts["models"]
    await parts.read()
    assert list(parts.parts["models"]) == ["m"]


async def test_whoever_comes_second_sees_what_the_first_one_read(store: Store, parts: StoredParts) -> None:
    for number in range(20):
        await store.create("models", f"m{number}", {**MODEL, "name": f"m{number}"}, actor="x")
        seen = []

        async def look(seen: list[int] = seen) -> None:
            await parts.read()
            seen.append(len(parts.parts["models"]))

        await asyncio.gather(*(look() for _ in range(4)))
        assert seen == [number + 1] * 4
