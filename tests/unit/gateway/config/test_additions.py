"""What of the store is part of the configuration: read again when it has changed, kept when it cannot be read, errors kept apart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.config.additions import StoreAdditions
from gateway.core.errors import ConfigError, StoreUnavailable
from gateway.core.specs import BindingSpec, ConfigSpec, EngineSpec, LimitSpec, ModelSpec, RoleSpec
from gateway.identity import keys
from gateway.store.store import Store
from tests.stores import migrated

LIMIT = {"name": "l", "concurrent": 1}
MODEL = {"name": "m", "pool": ["a"]}


def read_engine(name: str, body: dict[str, Any]) -> EngineSpec:
    if body.get("wrong"):
        raise ConfigError("its secret cannot be opened", path="api_key")
    return EngineSpec(name=name, runtime="external", url=body["url"])


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    made = Store("sqlite", migrated(tmp_path), keys)
    await made.start()
    yield made
    await made.aclose()


@pytest.fixture
async def additions(store: Store) -> StoreAdditions:
    made = StoreAdditions(store, read_engine)
    store.subscribe(lambda change: made.changed(change.kind, change.name))
    await made.read()
    return made


async def test_a_model_was_made_with_its_resource_unless_it_says_when(store: Store, additions: StoreAdditions) -> None:
    made = (await store.create("models", "a", {**MODEL, "name": "a"}, actor="x")).created
    await store.create("models", "b", {**MODEL, "name": "b", "created": 5}, actor="x")
    await additions.read()
    await store.update("models", "a", {**MODEL, "name": "a", "max_tokens": 5}, actor="x")
    await additions.read()
    specs = [additions.by_kind["models"][name].spec for name in ("a", "b")]
    assert [spec.created for spec in specs if isinstance(spec, ModelSpec)] == [int(made), 5] and made > 1e9


async def test_only_what_has_changed_is_read_again(store: Store, additions: StoreAdditions, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b", "a"):
        await store.create("models", name, {**MODEL, "name": name}, actor="x")
    await store.create("tenants", "t", {"name": "t"}, actor="x")
    await additions.read()
    assert list(additions.by_kind["models"]) == ["a", "b"]
    before, generation = additions.by_kind["models"]["b"], additions.generation
    monkeypatch.setattr(store, "list", None)
    await store.update("models", "a", {**MODEL, "name": "a", "max_tokens": 5}, actor="x")
    await store.create("limits", "l", LIMIT, actor="x")
    await additions.read()
    assert additions.by_kind["models"]["b"] is before and additions.by_kind["models"]["a"].revision == 2
    assert isinstance(additions.by_kind["limits"]["l"].spec, LimitSpec)
    assert additions.generation == generation + 2
    await store.delete("models", "a", actor="x")
    await additions.read()
    assert list(additions.by_kind["models"]) == ["b"]
    await additions.read()
    assert additions.generation == generation + 3, "nothing new, nothing read"


async def test_after_a_gap_everything_is_read(store: Store, additions: StoreAdditions) -> None:
    await store.create("models", "m", MODEL, actor="x")
    await additions.read()
    same = additions.by_kind["models"]["m"]
    other = StoreAdditions(store, read_engine)  # as a replica that heard nothing
    await other.read()
    await store.delete("models", "m", actor="x")
    await store.create("models", "m", {**MODEL, "max_tokens": 9}, actor="x")
    other.forget()
    await other.read()
    assert other.by_kind["models"]["m"].spec != same.spec, "the same name and revision, but another resource"


async def test_an_error_belongs_to_one_resource(store: Store, additions: StoreAdditions) -> None:
    await store.create("engines", "good", {"url": "http://x"}, actor="x")
    await store.create("engines", "bad", {"wrong": True}, actor="x")
    await store.create("models", "m", {"pool": 5}, actor="x")
    await additions.read()
    assert additions.by_kind["engines"]["good"].spec is not None
    assert str(additions.by_kind["engines"]["bad"].error) == "api_key: its secret cannot be opened"
    assert "cannot use" in str(additions.by_kind["models"]["m"].error)


async def test_what_cannot_be_read_now_is_read_another_time(
    store: Store, additions: StoreAdditions, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*args: Any, **more: Any) -> Any:
        raise StoreUnavailable("away")

    await store.create("models", "m", MODEL, actor="x")
    with monkeypatch.context() as patched:
        patched.setattr(store, "get", away)
        with pytest.raises(StoreUnavailable):
            await additions.read()
        additions.changed("models", "other")
    assert not additions.by_kind["models"]
    await additions.read()
    assert list(additions.by_kind["models"]) == ["m"]


async def test_whoever_comes_second_sees_what_the_first_one_read(store: Store, additions: StoreAdditions) -> None:
    for number in range(20):
        await store.create("models", f"m{number}", {**MODEL, "name": f"m{number}"}, actor="x")
        seen = []

        async def look(seen: list[int] = seen) -> None:
            await additions.read()
            seen.append(len(additions.by_kind["models"]))

        await asyncio.gather(*(look() for _ in range(4)))
        assert seen == [number + 1] * 4


FILE = ConfigSpec(
    version=1, roles={"all": RoleSpec(permissions=("infer:*",))}, bindings=(BindingSpec(name="own", role="all", subjects=("key/a",)),)
)


async def bound(store: Store, name: str, **body: Any) -> None:
    await store.create("bindings", name, {"role": "all", "subjects": ["key/k"], **body}, actor="t")


async def test_roles_and_bindings_follow_those_of_the_file(store: Store, additions: StoreAdditions) -> None:
    await store.create("roles", "r", {"permissions": ["infer:chat"]}, actor="t")
    await store.create("roles", "all", {"permissions": ["infer:chat"]}, actor="t")
    await bound(store, "b", role="r", when="true", tenant="acme")
    await bound(store, "own", role="r")
    await store.create("bindings", "old", {"name": "old", "tenant": "acme", "principal": "ci", "role": "viewer"}, actor="t")
    merged = await additions.merged(FILE)
    assert set(merged.left_out) == {("bindings", "old")}
    assert merged.spec.roles == {"all": FILE.roles["all"], "r": RoleSpec(permissions=("infer:chat",))}, "the file's wins"
    assert [binding.name for binding in merged.spec.bindings] == ["own", "b", "old"] and merged.spec.bindings[0] is FILE.bindings[0]
    assert merged.spec.bindings[2].subjects == ("principal/ci",) and merged.spec.bindings[2].tenant == "acme"


async def test_a_binding_that_allows_and_cannot_be_used_permits_nothing(store: Store, additions: StoreAdditions) -> None:
    await store.create("roles", "odd", {"permissions": ["infer:chat"], "colour": "red"}, actor="t")
    await bound(store, "a", role="gone")
    await bound(store, "b", role="odd", tenant="acme")
    await bound(store, "c", later="setting")
    await bound(store, "d", subjects=[])
    merged = await additions.merged(FILE)
    assert {(kind, name) for kind, name in merged.left_out} == {("roles", "odd"), *(("bindings", name) for name in "abcd")}
    assert "did you mean" in str(merged.left_out["bindings", "a"]) or "known: all" in str(merged.left_out["bindings", "a"])
    kept = {binding.name: binding for binding in merged.spec.bindings}
    assert set(kept) == {"own", "a", "b", "c"} and kept["b"].tenant == "acme"
    assert all(kept[name].role not in merged.spec.roles for name in "abc"), "its subjects have a role, and it permits nothing"


@pytest.mark.parametrize(
    "body", [{"role": "gone"}, {"later": "setting"}, {"subjects": []}, {"effect": "refuse"}, {"when": 5}, {"effect": ["deny"]}]
)
async def test_a_binding_that_denies_and_cannot_be_used_refuses_the_whole(
    store: Store, additions: StoreAdditions, body: dict[str, Any]
) -> None:
    await bound(store, "d", **{"effect": "deny", **body})
    with pytest.raises(ConfigError, match="bindings\\.d"):
        await additions.merged(FILE)
