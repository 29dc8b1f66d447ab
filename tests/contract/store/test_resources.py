"""What every store keeps to (gateway.core.storage.ControlStore), over SQLite and over a real PostgreSQL server: resources and keys."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from gateway.core.errors import AlreadyExists, ConfigError, NotFound, RequestError, VersionMismatch
from gateway.core.secret import Secret
from gateway.core.storage import ControlStore, KeyRecord, KeySettings, KeyWrite, Removal, StoreChange, Write
from gateway.identity import keys
from gateway.store.store import Store
from gateway.store.tables import metadata
from tests.contract.store.place import ANY, Place

# --- resources


async def test_a_resource_is_read_as_it_was_written(store: ControlStore, place: Place) -> None:
    body = {"text": "ünï \x00 \U0001f600", "n": 2**60, "f": 0.1, "list": [1, None, {"a": {}}], "z": 1, "a": 2}
    made = await store.create("tenants", "acme", body, actor="root", tenant="acme")
    assert (made.version, made.actor, made.created, made.updated) == (1, "root", place.clock.wall(), place.clock.wall())
    read = await store.get("tenants", "acme")
    assert read == made and read.body == body and list(read.body) == list(body)


async def test_those_of_some_names_are_read_at_once(store: ControlStore) -> None:
    for name in ("a", "b", "c"):
        await store.create("models", name, {"is": name}, actor="x")
    await store.create("engines", "d", {}, actor="x")
    found = await store.those("models", ["c", "a", "d", "nul\0", *(f"n{number}" for number in range(1100))])
    assert sorted((one.name, one.body["is"]) for one in found) == [("a", "a"), ("c", "c")]


async def test_an_update_replaces_the_body_and_counts(store: ControlStore, place: Place) -> None:
    made = await store.create("models", "m", {"a": 1}, actor="x", tenant="t")
    place.clock.advance(5)
    new = await store.update("models", "m", {"b": 2}, actor="y", version=1)
    assert (new.version, new.body, new.tenant, new.actor) == (2, {"b": 2}, "t", "y")
    assert (new.created, new.updated) == (made.created, made.created + 5)
    assert (await store.update("models", "m", {}, actor="y", tenant="u")).tenant == "u"
    assert (await store.get("models", "m")).version == 3


async def test_a_lost_update_is_refused_and_says_what_is_there(store: ControlStore) -> None:
    await store.create("models", "m", {}, actor="x")
    await store.update("models", "m", {"by": "first"}, actor="x", version=1)
    for attempt in (
        store.update("models", "m", {"by": "second"}, actor="x", version=1),
        store.delete("models", "m", actor="x", version=1),
        store.update("models", "m", {}, actor="x", version=10**30),
    ):
        with pytest.raises(VersionMismatch) as caught:
            await attempt
        assert (caught.value.status, caught.value.current) == (412, 2)
    assert (await store.get("models", "m")).body == {"by": "first"}


async def test_what_is_not_there(store: ControlStore) -> None:
    for attempt in (
        store.get("models", "m"),
        store.get("models", "nul\0"),
        store.get("models", "half\ud800"),
        store.update("models", "m", {}, actor="x"),
        store.delete("models", "m", actor="x"),
        store.get_key("k"),
        store.update_key("k", ANY, actor="x"),
        store.revoke_key("k", actor="x"),
        store.rotate_key("k", actor="x"),
        store.delete_key("k\0", actor="x"),
    ):
        with pytest.raises(NotFound) as caught:
            await attempt
        assert caught.value.status == 404


async def test_a_name_is_taken_once_per_kind(store: ControlStore) -> None:
    await store.create("models", "m", {}, actor="x")
    await store.create("engines", "m", {}, actor="x")
    with pytest.raises(AlreadyExists) as caught:
        await store.create("models", "m", {"other": 1}, actor="x")
    assert caught.value.status == 409
    deleted = await store.delete("models", "m", actor="x", version=1)
    assert deleted.body == {}
    assert (await store.create("models", "m", {}, actor="x")).version == 1


@pytest.mark.parametrize("name", ["", " ", "a b", "-a", "a" * 256, "a\0", "a\n", "ä", "\ud800"])
async def test_a_name_that_cannot_be_stored(store: ControlStore, name: str) -> None:
    for attempt in (
        store.create("models", name, {}, actor="x"),
        store.create(name, "m", {}, actor="x"),
        store.create("models", "m", {}, actor="x", tenant=name or " "),
        store.create_key("t", ANY, actor="x", id=name),
        store.create_key(name, ANY, actor="x"),
    ):
        with pytest.raises(RequestError):
            await attempt


@pytest.mark.parametrize("body", [{"a": float("nan")}, {"a": {1, 2}}, {"a": "x" * (1 << 20)}])
async def test_a_body_that_cannot_be_stored(store: ControlStore, body: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        await store.create("models", "m", body, actor="x")


async def test_pages_cover_everything_once_in_bytewise_order(store: ControlStore) -> None:
    names = ["Z", "a", "B", "b-1", "b.1", "b/1", "b1", "c", "a0", "10", "9"]
    for name in names:
        await store.create("models", name, {"n": name}, actor="x", tenant="t1" if name < "b" else "t2")
    assert await collect(lambda cursor: store.list("models", limit=3, cursor=cursor)) == sorted(names)
    assert await collect(lambda cursor: store.list("models", limit=2, cursor=cursor, tenant="t2")) == sorted(n for n in names if n >= "b")
    assert await collect(lambda cursor: store.list("models", limit=11, cursor=cursor, tenant=["t1", "t2"])) == sorted(names)
    assert await collect(lambda cursor: store.list("models", limit=1, cursor=cursor, prefix="b")) == ["b-1", "b.1", "b/1", "b1"]
    for nothing in (
        store.list("models", tenant=[]),
        store.list("models", prefix="%"),
        store.list("engines"),
        store.list("\0"),
        store.list("models", tenant="\ud800"),
        store.list("models", prefix="\0"),
    ):
        page = await nothing
        assert (page.items, page.cursor) == ((), None)


async def collect(fetch: Callable[[str | None], Awaitable[Any]]) -> list[str]:
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = await fetch(cursor)
        found += [getattr(item, "name", None) or item.id for item in page.items]
        cursor = page.cursor
        if cursor is None:
            return found


@pytest.mark.parametrize("cursor", ["", "!", "a", "AAAA", "A" * 1000, "\ud800", "YSBi"])
async def test_a_cursor_that_no_page_gave(store: ControlStore, cursor: str) -> None:
    for attempt in (store.list("models", cursor=cursor), store.list_keys(cursor=cursor)):
        with pytest.raises(RequestError) as caught:
            await attempt
        assert caught.value.param == "cursor"


@pytest.mark.parametrize("limit", [0, -1, 1001])
async def test_a_page_is_bounded(store: ControlStore, limit: int) -> None:
    with pytest.raises(RequestError):
        await store.list("models", limit=limit)
    with pytest.raises(RequestError):
        await store.list_keys(limit=limit)


async def test_everything_is_read_as_it_was_at_one_moment_however_much_is_written(store: ControlStore, place: Place) -> None:
    other = await place.open()
    await store.write_all([Write("tenants", "t", {"x": 0}), Write("limits", "l", {"x": 0})], actor="x")
    await store.create_key("t", ANY, actor="x", id="k")
    reading = True

    async def write() -> None:
        count = 0
        while reading:
            count += 1
            both = [Write(kind, name, {"x": count}, version=count) for kind, name in (("limits", "l"), ("tenants", "t"))]
            await other.write_all(both, actor="y")

    writing = asyncio.create_task(write())
    seen = set()
    try:
        while len(seen) < 20:
            found, of_keys = await store.everything(["tenants", "roles", "limits"], keys=(), most=10)
            assert [one.id for one in of_keys] == ["k"] and found["roles"] == ()
            [tenant], [limit] = found["tenants"], found["limits"]
            assert tenant.body == limit.body
            seen.add(limit.version)
    finally:
        reading = False
        await writing


async def test_of_a_kind_with_too_many_it_is_seen_that_there_are_more(store: ControlStore) -> None:
    await store.write_all([Write("models", f"m{n}", {}) for n in range(4)], actor="x")
    found, of_keys = await store.everything(["models"], keys=None, most=3)
    assert len(found["models"]) > 3 and of_keys == ()


async def test_of_keys_those_in_use_are_read_and_those_that_are_asked_for(store: ControlStore) -> None:
    for id in ("a", "b", "gone", "lost"):
        await store.create_key("t", ANY, actor="x", id=id)
    for id in ("gone", "lost"):
        await store.revoke_key(id, actor="x")
    await store.create("users", "ann@t", {"source": "local"}, actor="x", tenant="t")
    await store.create_own_key("t", "ann", ANY, actor="ann", count=3, id="own")

    async def read(*ids: str, most: int = 10) -> list[str]:
        return sorted(key.id for key in (await store.everything([], keys=ids, most=most))[1])

    assert await read() == ["a", "b"], "ended keys stay in the store for ever: they count for nothing"
    assert await read("a", "gone", "own", "absent", "\0") == ["a", "b", "gone", "own"]
    assert len(await read(most=1)) > 1


async def test_a_dry_run_answers_and_changes_nothing(store: ControlStore) -> None:
    await store.create("models", "m", {"a": 1}, actor="x")
    record, _ = await store.create_key("t", ANY, actor="x", id="k")
    head = (await store.changes_since(0)).head
    heard: list[StoreChange] = []
    store.subscribe(heard.append)
    assert (await store.create("models", "n", {}, actor="x", dry_run=True)).version == 1
    assert (await store.update("models", "m", {"a": 2}, actor="x", dry_run=True)).body == {"a": 2}
    assert (await store.delete("models", "m", actor="x", dry_run=True)).name == "m"
    assert (await store.revoke_key("k", actor="x", dry_run=True)).revoked is not None
    await store.rotate_key("k", actor="x", dry_run=True)
    await store.create_key("t", ANY, actor="x", id="k2", dry_run=True)
    await store.update_key("k", KeySettings(), actor="x", dry_run=True)
    await store.delete_key("k", actor="x", dry_run=True)
    with pytest.raises(AlreadyExists):
        await store.create("models", "m", {}, actor="x", dry_run=True)
    with pytest.raises(VersionMismatch):
        await store.update("models", "m", {}, actor="x", version=7, dry_run=True)
    assert [item.body for item in (await store.list("models")).items] == [{"a": 1}]
    assert (await store.list_keys()).items == (record,)
    assert ((await store.changes_since(0)).head, heard) == (head, [])


# --- keys


async def test_a_key_is_found_by_itself_and_stored_nowhere(store: ControlStore, place: Place) -> None:
    settings = KeySettings(
        models=("demo-*",),
        operations=("chat",),
        cidrs=("10.0.0.0/8", "2001:DB8::/32"),
        expires=place.clock.wall() + 60,
        limits=("small",),
        roles=("viewer",),
        priority="batch",
        description="ci",
    )
    record, secret = await store.create_key("acme", settings, actor="root")
    key = secret.reveal()
    assert keys.well_formed(key) and key.startswith(record.prefix) and len(record.prefix) == 8 and key not in repr(record)
    assert record.settings() == msgspec.structs.replace(settings, cidrs=("10.0.0.0/8", "2001:db8::/32"))
    assert (record.tenant, record.version, record.actor, record.state(place.clock.wall())) == ("acme", 1, "root", "active")
    assert await store.find_key(hashlib.sha256(key.encode()).digest(), key) == record == await store.get_key(record.id)
    assert await store.find_key(b"", key[:-1]) is None
    for table in metadata.sorted_tables:
        rows = await place.opened[0]._database.run(lambda connection, table=table: connection.execute(sa.select(table)).all())
        assert key not in repr(rows) and key.encode() not in repr(rows).encode() and keys.digest(key) not in [c for r in rows for c in r]


@pytest.mark.parametrize("earlier", [False, True])
async def test_the_text_of_a_pepper_file_opens_the_store_of_its_machine(place: Place, earlier: bool) -> None:
    """earlier: the store was made by a version that hashed the text instead of decoding it."""
    text = "5a" * 32
    (place.directory / "pepper").write_text(hashlib.sha256(text.encode()).hexdigest() if earlier else text + "\n")
    (place.directory / "pepper").chmod(0o600)
    first = Store(place.url, place.directory, keys)
    second = Store(place.url, place.directory, keys, given_pepper=text)
    place.opened += [first, second]
    await first.start()
    _, secret = await first.create_key("t", ANY, actor="x", id="k")
    sealed = first.seal(Secret("s"), "p")
    await second.start()
    found = await second.find_key(b"", secret.reveal())
    assert found is not None and found.id == "k" and second.unseal(sealed, "p").reveal() == "s"


async def test_another_pepper_is_refused_at_the_start(place: Place) -> None:
    store = await place.open()
    _, secret = await store.create_key("t", ANY, actor="x")
    other = Store(place.url, place.directory, keys, given_pepper="q" * 32)
    place.opened.append(other)
    with pytest.raises(ConfigError, match="another pepper"):
        await other.start()
    assert await other.find_key(b"", secret.reveal()) is None
    await place.open()  # the same one again


@pytest.mark.parametrize(
    "given",
    [
        KeySettings(cidrs=("10.0.0.1/8",)),
        KeySettings(cidrs=("nonsense",)),
        KeySettings(operations=("fly",)),
        KeySettings(expires=float("nan")),
        KeySettings(expires=-1.0),
        KeySettings(models=("*",) * 257),
        KeySettings(models=("a\0",)),
        KeySettings(description="x" * 1025),
        KeySettings(priority="urgent"),  # type: ignore[arg-type]
    ],
)
async def test_settings_that_make_no_sense(store: ControlStore, given: KeySettings) -> None:
    await store.create_key("t", ANY, actor="x", id="k")
    for attempt in (store.create_key("t", given, actor="x"), store.update_key("k", given, actor="x")):
        with pytest.raises(RequestError) as caught:
            await attempt
        assert caught.value.param is not None
    assert (await store.get_key("k")).version == 1


async def test_rotation_gives_a_key_a_new_secret_and_lets_the_old_one_overlap(store: ControlStore, place: Place) -> None:
    old, first = await store.create_key("t", KeySettings(models=("a",), limits=("l",), roles=("r",)), actor="x", id="k")
    new, second = await store.rotate_key("k", actor="y", overlap=60, version=1)
    until = place.clock.wall() + 60
    assert (new.settings(), new.id, new.tenant, new.version, new.actor) == (old.settings(), "k", "t", 2, "y")
    assert (new.overlap_until, new.ends(), new.created) == (until, None, old.created)
    assert second.reveal() != first.reveal() and new.prefix == second.reveal()[:8] and await store.get_key("k") == new
    assert await store.find_key(b"", second.reveal()) == new
    former = await store.find_key(b"", first.reveal())
    assert former is not None and (former.id, former.ends(), former.limits) == ("k", until, ("l",))
    place.clock.advance(60)
    await store.prune()
    assert await store.find_key(b"", first.reveal()) is None
    assert await store.find_key(b"", second.reveal()) is not None
    for overlap in (-1.0, float("nan"), 1e12):
        with pytest.raises(RequestError):
            await store.rotate_key("k", actor="y", overlap=overlap)


async def test_an_old_secret_is_accepted_for_a_day_unless_it_is_cut(store: ControlStore, place: Place) -> None:
    _, first = await store.create_key("t", KeySettings(expires=place.clock.wall() + 3600), actor="x", id="k")
    _, second = await store.rotate_key("k", actor="y")
    former = await store.find_key(b"", first.reveal())
    assert former is not None and former.ends() == place.clock.wall() + 3600, "never for longer than the key itself"
    assert (await store.get_key("k")).overlap_until == place.clock.wall() + 86400
    _, third = await store.rotate_key("k", actor="y", overlap=30)
    ends = [(await store.find_key(b"", secret.reveal())) for secret in (first, second)]
    assert [each.ends() for each in ends if each is not None] == [place.clock.wall() + 30] * 2, "older secrets end with it at the latest"
    cut, fourth = await store.rotate_key("k", actor="y", overlap=0)
    assert cut.overlap_until is None
    assert [await store.find_key(b"", secret.reveal()) for secret in (first, second, third)] == [None] * 3
    assert await store.find_key(b"", fourth.reveal()) == cut


async def test_what_ends_a_key_ends_its_former_secrets(store: ControlStore) -> None:
    for end in (store.revoke_key, store.delete_key):
        _, first = await store.create_key("t", ANY, actor="x", id="k")
        _, second = await store.rotate_key("k", actor="y")
        await end("k", actor="y")
        found = [await store.find_key(b"", secret.reveal()) for secret in (first, second)]
        assert all(record is None or record.revoked is not None for record in found)
        if end == store.revoke_key:
            assert None not in found
            with pytest.raises(VersionMismatch) as caught:
                await store.rotate_key("k", actor="y")
            assert (caught.value.status, caught.value.code) == (409, "key_not_active")
            await store.delete_key("k", actor="y")


async def test_a_limit_that_keys_name_is_not_deleted(store: ControlStore) -> None:
    for name in ("l", "l_", "la"):
        await store.create("limits", name, {"name": name, "concurrent": 1}, actor="x")
    for number in range(7):
        await store.create_key("t", KeySettings(limits=("other", "l_")), actor="x", id=f"k{number}")
    await store.create_key("t", KeySettings(limits=("la",)), actor="x", id="gone")
    await store.revoke_key("gone", actor="x")
    with pytest.raises(VersionMismatch) as caught:
        await store.delete("limits", "l_", actor="x")
    assert (caught.value.status, caught.value.code) == (409, "in_use")
    assert "k0, k1, k2, k3, k4 and 2 more" in caught.value.message
    await store.delete("limits", "l", actor="x")
    await store.delete("limits", "la", actor="x")
    for number in range(7):
        await store.update_key(f"k{number}", ANY, actor="x")
    await store.delete("limits", "l_", actor="x")


async def test_revocation_lasts(store: ControlStore, place: Place) -> None:
    await store.create_key("t", ANY, actor="x", id="k")
    place.clock.advance(5)
    revoked = await store.revoke_key("k", actor="y", version=1)
    assert (revoked.revoked, revoked.ends(), revoked.state(0)) == (place.clock.wall(), place.clock.wall(), "revoked")
    head = (await store.changes_since(0)).head
    place.clock.advance(5)
    assert await store.revoke_key("k", actor="z") == revoked
    assert (await store.changes_since(0)).head == head
    assert (await store.update_key("k", ANY, actor="z")).revoked == revoked.revoked
    with pytest.raises(VersionMismatch):
        await store.rotate_key("k", actor="y")


async def test_lists_of_keys_by_tenant_and_state(store: ControlStore, place: Place) -> None:
    now = place.clock.wall()
    for id, wanted in {"a": ANY, "b": KeySettings(expires=now + 10), "c": ANY, "d": ANY, "e": KeySettings(expires=now + 10)}.items():
        await store.create_key("t1" if id < "c" else "t2", wanted, actor="x", id=id)
    await store.revoke_key("c", actor="x")
    await store.revoke_key("e", actor="x")
    await store.rotate_key("d", actor="x", overlap=10)
    place.clock.advance(10)
    states = {}
    for state in ("active", "expired", "revoked"):
        states[state] = await collect(lambda cursor, state=state: store.list_keys(state=state, limit=1, cursor=cursor))
    assert states == {"active": ["a", "d"], "expired": ["b"], "revoked": ["c", "e"]}
    every = (await store.list_keys()).items
    assert {record.id: record.state(place.clock.wall()) for record in every} == {id: state for state, ids in states.items() for id in ids}
    assert await collect(lambda cursor: store.list_keys(tenant="t1", cursor=cursor)) == ["a", "b"]
    assert await collect(lambda cursor: store.list_keys(prefix="d", cursor=cursor)) == ["d"]
    with pytest.raises(RequestError):
        await store.list_keys(state="lost")


async def test_last_use_never_goes_back(store: ControlStore) -> None:
    for id in ("a", "b"):
        await store.create_key("t", ANY, actor="x", id=id)
    head = (await store.changes_since(0)).head
    await store.touch_keys({"a": 100.0, "gone": 1.0, "nul\0": 1.0})
    await store.touch_keys({"a": 50.0, "b": 60.0})
    await store.touch_keys({})
    assert [(record.last_used, record.version) for record in (await store.list_keys()).items] == [(100.0, 1), (60.0, 1)]
    assert (await store.changes_since(0)).head == head


async def test_a_deleted_key_is_gone(store: ControlStore) -> None:
    _, secret = await store.create_key("t", ANY, actor="x", id="k")
    with pytest.raises(VersionMismatch):
        await store.delete_key("k", actor="x", version=9)
    assert isinstance(await store.delete_key("k", actor="x"), KeyRecord)
    assert await store.find_key(b"", secret.reveal()) is None


# --- several writes together


async def test_a_role_goes_with_its_binding_and_comes_with_one(store: ControlStore) -> None:
    await store.create("roles", "old", {"permissions": []}, actor="x")
    await store.create("bindings", "b", {"role": "old"}, actor="x")
    head = (await store.changes_since(0)).head
    with pytest.raises(VersionMismatch) as caught:
        await store.write_all([], removals=[Removal("roles", "old", 1)], actor="x")
    assert (caught.value.status, caught.value.code) == (409, "in_use")
    new = [Write("bindings", "b", {"role": "new"}, version=1, needs=(("roles", "new"),)), Write("roles", "new", {"permissions": []})]
    done = await store.write_all(new, removals=[Removal("roles", "old", 1)], actor="y")
    assert [(one.name, one.version, one.actor) for one in done] == [("b", 2, "y"), ("new", 1, "y")]
    with pytest.raises(NotFound):
        await store.get("roles", "old")
    changes = (await store.changes_since(head)).changes
    assert [(one.name, one.action) for one in changes] == [("b", "updated"), ("new", "created"), ("old", "deleted")]


async def test_what_a_write_needs_may_not_go_with_it(store: ControlStore) -> None:
    await store.create("roles", "r", {"permissions": []}, actor="x")
    with pytest.raises(NotFound):
        wanted = [Write("bindings", "b", {"role": "r"}, needs=(("roles", "r"),))]
        await store.write_all(wanted, removals=[Removal("roles", "r", 1)], actor="x")
    assert (await store.get("roles", "r")).version == 1
    with pytest.raises(NotFound):
        await store.get("bindings", "b")


async def test_a_limit_goes_when_its_keys_let_go_of_it_in_the_same_write(store: ControlStore) -> None:
    await store.create("limits", "l", {}, actor="x")
    await store.create_key("t", KeySettings(limits=("l",)), actor="x", id="k")
    await store.create_key("t", KeySettings(limits=("l",)), actor="x", id="gone")
    away = [Removal("limits", "l", 1)]
    with pytest.raises(VersionMismatch) as caught:
        await store.write_all([], keys=[KeyWrite("k", ANY, 1)], removals=away, actor="x")
    assert (caught.value.code, caught.value.message.count("gone")) == ("in_use", 1)
    for dry_run in (True, False):
        await store.write_all([], keys=[KeyWrite("k", ANY, 1)], removals=[*away, Removal("keys", "gone", 1)], actor="x", dry_run=dry_run)
        assert [key.id for key in (await store.list_keys()).items] == (["gone", "k"] if dry_run else ["k"])
    assert (await store.get_key("k")).settings() == ANY


async def test_one_that_somebody_else_has_written_undoes_all(store: ControlStore) -> None:
    await store.create("limits", "a", {}, actor="x")
    await store.create_key("t", ANY, actor="x", id="k")
    head = (await store.changes_since(0)).head
    lost: list[dict[str, Any]] = [
        {"removals": [Removal("limits", "a", 2)]},
        {"removals": [Removal("keys", "k", 2)]},
        {"keys": [KeyWrite("k", KeySettings(), 2)]},
        {"removals": [Removal("limits", "gone", 1)]},
    ]
    for rest in lost:
        with pytest.raises((VersionMismatch, NotFound)):
            await store.write_all([Write("limits", "b", {})], actor="x", **rest)
    assert [one.name for one in (await store.list("limits")).items] == ["a"] and (await store.changes_since(0)).head == head


async def test_of_several_who_compare_and_then_write_one_is_first(place: Place) -> None:
    """What one of them creates the others have not seen, so that no version of theirs is wrong."""
    stores = [await place.open() for _ in range(4)]
    head = (await stores[0].changes_since(2**62, 1)).head

    async def write(number: int, kind: str = "limits") -> bool:
        try:
            await stores[number].write_all([Write(kind, f"l{number}", {}, "")], actor="x", since=(head, ["limits", "roles"]))
        except VersionMismatch as error:
            assert "Somebody else has changed the store" in error.message
            return False
        return True

    done = await asyncio.gather(*(write(number) for number in range(4)))
    assert sorted(done) == [False, False, False, True]
    assert [one.name for one in (await stores[0].list("limits")).items] == [f"l{done.index(True)}"]
    head = (await stores[0].changes_since(2**62, 1)).head
    await stores[1].create("tenants", "acme", {}, actor="x")  # of another kind
    assert await write(0, "roles")


async def test_a_users_own_keys_end_with_the_user_in_a_write_of_several(store: ControlStore) -> None:
    await store.create("users", "u@t", {}, actor="x", tenant="t")
    await store.create_own_key("t", "u", ANY, actor="x", count=1, id="own")
    await store.write_all([], removals=[Removal("users", "u@t", 1)], actor="x")
    assert (await store.get_key("own")).revoked is not None
