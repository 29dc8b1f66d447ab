"""What the history of the configuration keeps, and how."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from msgspec import Raw

from gateway.core.errors import ConfigError, NotFound
from gateway.core.secret import Secret
from gateway.core.storage import Removal, Write
from gateway.identity import keys
from gateway.store import config_rows
from gateway.store.store import Store
from tests.stores import migrated


def kept(text: str) -> str | None:
    return config_rows.compressed({"text": text})


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    made = Store("sqlite", migrated(tmp_path), keys, history=5)
    await made.start()
    yield made
    await made.aclose()


async def test_a_write_of_several_is_one_entry_and_a_dry_run_is_none(store: Store) -> None:
    await store.create("limits", "a", {"x": 1}, actor="ann")
    await store.create("limits", "b", {"x": 1}, actor="ann", dry_run=True)
    await store.write_all(
        [Write("limits", "a", {"x": 2}, version=1), Write("roles", "r", {})], removals=[Removal("limits", "a", 2)], actor="bob"
    )
    newest, oldest = (await store.configurations()).items
    assert (newest.actor, newest.told["changed"], oldest.actor) == ("bob", ["limits/a", "roles/r"], "ann")
    _, payload = await store.configuration(newest.number)
    assert payload["units"] == [
        {"kind": "limits", "name": "a", "before": {"x": 1}, "after": None},
        {"kind": "roles", "name": "r", "before": None, "after": {}},
    ]


async def test_what_is_nobodys_configuration_makes_no_entry(store: Store) -> None:
    await store.create("webhook-notes", "a", {}, actor="ann")
    await store.create("users", "u@t", {}, actor="ann")
    assert (await store.configurations()).items == ()


async def test_a_write_that_is_refused_makes_no_entry(store: Store) -> None:
    await store.create("limits", "a", {}, actor="ann")
    with pytest.raises(NotFound):
        await store.create("limits", "b", {}, actor="ann", needs=[("roles", "none")])
    assert len((await store.configurations()).items) == 1


async def test_notes_have_numbers_in_the_same_order_and_only_the_newest_stay(store: Store) -> None:
    numbers = []
    for number in range(4):
        numbers.append(await store.note_configuration({"of": "file", "changed": [], "count": 0}, kept(f"t{number}"), actor="ann"))
        await store.create("limits", f"l{number}", {}, actor="ann")
    assert numbers == sorted(numbers)
    found = (await store.configurations()).items
    assert [row.number for row in found] == sorted((row.number for row in found), reverse=True) and len(found) == 5
    assert (await store.configuration(numbers[-1]))[1] == {"text": "t3"}
    with pytest.raises(NotFound, match=r"store\.history"):
        await store.configuration(numbers[0])


async def test_none_is_kept_where_none_is_wanted(tmp_path: Path) -> None:
    store = Store("sqlite", migrated(tmp_path), keys)
    await store.start()
    await store.create("limits", "a", {}, actor="ann")
    assert await store.note_configuration({"of": "file"}, kept("a"), actor="ann") == 0
    assert (await store.configurations()).items == ()
    await store.aclose()


async def test_what_it_says_of_settings_is_sealed(store: Store, tmp_path: Path) -> None:
    await store.note_configuration({"of": "file", "changed": [], "count": 0}, kept("planted-secret"), actor="ann")
    assert b"planted-secret" not in b"".join(path.read_bytes() for path in tmp_path.glob("*.db*"))


@pytest.mark.parametrize("number", [0, -1, 10**15, 10**20, 7])
async def test_a_number_that_is_not_there(store: Store, number: int) -> None:
    with pytest.raises(NotFound):
        await store.configuration(number)


def test_what_is_too_large_is_not_kept_and_what_is_damaged_is_told() -> None:
    def plain(secret: Secret, purpose: str) -> str:
        return secret.reveal()

    assert config_rows.packed(config_rows.compressed({"x": [str(n * 7919 % 999983) for n in range(400_000)]}), plain) is None
    sealed = config_rows.packed(config_rows.compressed({"x": "\ud800 ä"}), plain)
    assert sealed is not None and config_rows.unpacked(sealed, lambda text, purpose: Secret(text)) == {"x": "\ud800 ä"}
    for damaged in ("", "AAAA", "not base64"):
        with pytest.raises(ConfigError):
            config_rows.unpacked(damaged, lambda text, purpose: Secret(text))


def test_parts_that_are_written_already_are_what_they_say() -> None:
    engines = [{"name": "a", "tags": ["ü", 1.5, None]}, {"name": "b"}]
    plain = {"text": "é\ud800", "config": {"engines": engines, "listen": {"data": "x"}}, "diff": []}
    config = {"engines": [Raw(msgspec.json.encode(one)) for one in engines], "listen": Raw(b'{"data":"x"}')}
    sealed = config_rows.packed(config_rows.compressed({**plain, "config": config}), lambda secret, purpose: secret.reveal())
    assert sealed is not None and config_rows.unpacked(sealed, lambda text, purpose: Secret(text)) == plain


def test_parts_that_are_made_while_they_are_written() -> None:
    plain = {"engines": [{"name": "a"}, {"name": "b"}], "models": [], "watch": True}
    config = config_rows.Written(iter([("engines", iter(plain["engines"])), ("models", iter([])), ("watch", True)]))
    sealed = config_rows.packed(config_rows.compressed({"text": "t", "config": config}), lambda secret, purpose: secret.reveal())
    assert sealed is not None
    assert config_rows.unpacked(sealed, lambda text, purpose: Secret(text)) == {"text": "t", "config": plain}


def test_no_more_is_made_than_is_kept() -> None:
    made = iter(range(400_000))
    engines = ({"name": str(number * 7919 % 999983)} for number in made)
    assert config_rows.compressed({"config": config_rows.Written(iter([("engines", engines)]))}) is None
    assert next(made) < 300_000
