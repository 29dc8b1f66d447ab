"""What every store keeps of users, groups and logins (gateway.core.storage.ControlStore), over SQLite and over a real PostgreSQL server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.core.errors import AlreadyExists, NotFound, RequestError, VersionMismatch
from gateway.core.people import GroupRules, OwnKeys, PersonRecord, Seen
from gateway.core.storage import ControlStore, KeySettings, StoreChange
from gateway.identity import keys
from gateway.store import resources
from gateway.store.store import Store
from tests.contract.store.place import ANY, Place


def seen(user: str = "alice", time: float = 10.0, **more: Any) -> Seen:
    return Seen(tenant="acme", user=user, method="oidc", **{"issuer": "corp", "time": time, **more})


async def changes(store: ControlStore) -> list[tuple[str, str, str]]:
    return [(change.kind, change.name, change.action) for change in (await store.changes_since(0)).changes]


async def test_of_a_caller_whom_nobody_knows_there_is_nothing(store: ControlStore) -> None:
    assert await store.find_person("acme", "", ()) == PersonRecord()
    assert await store.find_person("acme", "alice", ("a", "b")) == PersonRecord()
    assert await store.find_person("a tenant \U0001f600", "\ud800", ("\x00",)) == PersonRecord()


async def test_what_there_is_on_a_caller(store: ControlStore, place: Place) -> None:
    await store.create("tenants", "acme", {"models": ["demo-*"]}, actor="x", tenant="acme")
    made = await store.create("users", "alice@acme", {"groups": ["staff"], "roles": ["viewer"]}, actor="x", tenant="acme")
    for group, models in (("staff", ["a"]), ("engineers", ["b"]), ("Domain%20Admins", ["c"]), ("others", ["d"])):
        await store.create("groups", f"{group}@acme", {"models": models}, actor="x", tenant="acme")
    await store.create("groups", "staff@globex", {"models": ["*"]}, actor="x", tenant="globex")
    found = await store.find_person("acme", "alice", ("engineers", "unknown"))
    assert (found.models, found.made, found.groups, found.roles) == (("demo-*",), made.created, ("staff",), ("viewer",))
    assert found.rules == {"staff": GroupRules(models=("a",)), "engineers": GroupRules(models=("b",))}
    await store.note_logins([seen(groups=("Domain Admins",), roles=("r",))], limit=10)
    found = await store.find_person("acme", "alice", ())
    assert (found.login_groups, found.login_roles, found.last_login) == (("Domain Admins",), ("r",), 10.0)
    assert set(found.rules) == {"staff", "Domain Admins"}
    assert (await store.find_person("acme", "", ())).models == ("demo-*",)


async def test_a_first_login_makes_the_user_once(store: ControlStore) -> None:
    assert await store.note_logins([seen("bob"), seen("alice")], limit=10) == 2
    made = await store.get("users", "alice@acme")
    assert (made.body, made.tenant, made.actor, made.version) == ({"source": "oidc"}, "acme", "login", 1)
    known = await changes(store)
    assert await store.note_logins([seen(time=20.0), seen("bob", 5.0)], limit=10) == 0
    assert await changes(store) == known, "a login that says nothing new is no change"
    kept = await store.logins(["alice@acme", "bob@acme", "carol@acme"])
    assert {id: (login.first, login.last) for id, login in kept.items()} == {"alice@acme": (10.0, 20.0), "bob@acme": (10.0, 10.0)}
    await store.note_logins([seen(time=30.0, groups=("new",))], limit=10)
    assert (await changes(store))[len(known) :] == [("logins", "alice@acme", "updated")]
    assert (await store.get("users", "alice@acme")).version == 1


async def test_no_more_users_are_made_than_there_may_be(store: ControlStore) -> None:
    assert await store.note_logins([seen(f"u{number}") for number in range(8)], limit=5) == 5
    assert await store.note_logins([seen("u7"), seen("late")], limit=5) == 0
    assert len((await store.list("users")).items) == len(await store.logins([f"u{number}@acme" for number in range(8)])) == 5
    assert await store.note_logins([seen("u0", 99.0), seen("late")], limit=0) == 0
    assert (await store.logins(["u0@acme"]))["u0@acme"].last == 99.0


async def test_names_that_cannot_be_kept_are_passed_over(store: ControlStore) -> None:
    odd = [seen("a" * 300), seen("x", groups=("\x00",)), seen(""), Seen(tenant="two words", user="y", method="oidc")]
    assert await store.note_logins([*odd, seen("J\u00fcrgen")], limit=10) == 1
    assert [user.name for user in (await store.list("users")).items] == ["J%C3%BCrgen@acme"]


async def test_replicas_that_note_the_same_users_make_each_once(place: Place) -> None:
    stores = [await place.open() for _ in range(3)]
    logins = [seen(f"u{number}") for number in range(20)]
    assert sum(await asyncio.gather(*(store.note_logins(logins, limit=100) for store in stores))) == 20


async def test_a_user_that_is_made_at_the_same_moment_is_noted_all_the_same(store: ControlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes of PostgreSQL's look before either has made the record; one finds that it exists after all."""
    made = resources.create
    tries: list[str] = []

    def late(tx: Any, kind: str, name: str, *rest: Any) -> Any:
        tries.append(name)
        if len(tries) == 1:
            raise AlreadyExists("The user already exists.", param="name")
        return made(tx, kind, name, *rest)

    monkeypatch.setattr(resources, "create", late)
    assert await store.note_logins([seen("alice"), seen("bob")], limit=10) == 2
    assert tries == ["alice@acme", "alice@acme", "bob@acme"]
    assert set(await store.logins(["alice@acme", "bob@acme"])) == {"alice@acme", "bob@acme"}


class TestOwnKeys:
    async def test_a_user_makes_as_many_as_are_allowed(self, store: ControlStore) -> None:
        await store.create("users", "alice@acme", {}, actor="x", tenant="acme")
        first, secret = await store.create_own_key("acme", "alice", ANY, actor="alice", count=2)
        assert (first.user, first.tenant, first.issued) == ("alice", "acme", first.created)
        found = await store.find_key(keys.digest(secret.reveal()), secret.reveal())
        assert found is not None and found.user == "alice"
        await store.create_own_key("acme", "alice", ANY, actor="alice", count=2)
        with pytest.raises(VersionMismatch) as caught:
            await store.create_own_key("acme", "alice", ANY, actor="alice", count=2)
        assert (caught.value.code, caught.value.status) == ("too_many_keys", 409)
        await store.revoke_key(first.id, actor="alice")
        await store.create_own_key("acme", "alice", ANY, actor="alice", count=2)
        assert len((await store.list_keys(user="alice", state="active")).items) == 2
        assert not (await store.list_keys(user="bob")).items

    async def test_at_the_same_moment_too(self, place: Place) -> None:
        stores = [await place.open() for _ in range(3)]
        await stores[0].create("users", "alice@acme", {}, actor="x", tenant="acme")
        tries = [store.create_own_key("acme", "alice", ANY, actor="alice", count=3) for store in stores * 4]
        made = [answer for answer in await asyncio.gather(*tries, return_exceptions=True) if not isinstance(answer, BaseException)]
        assert len(made) == 3

    async def test_there_is_none_without_a_user(self, store: ControlStore) -> None:
        with pytest.raises(NotFound):
            await store.create_own_key("acme", "nobody", ANY, actor="x", count=2)

    async def test_deleting_the_user_revokes_them_and_a_new_user_of_the_name_inherits_nothing(self, store: ControlStore) -> None:
        await store.note_logins([seen(groups=("g",))], limit=10)
        mine, _ = await store.create_own_key("acme", "alice", ANY, actor="alice", count=2)
        others = await store.create_key("acme", ANY, actor="x")
        heard: list[StoreChange] = []
        store.subscribe(heard.append)
        await store.delete("users", "alice@acme", actor="root")
        assert [(change.kind, change.name, change.action) for change in heard] == [
            ("users", "alice@acme", "deleted"),
            ("keys", mine.id, "revoked"),
        ]
        gone = await store.get_key(mine.id)
        assert gone.revoked is not None and gone.actor == "root" and gone.version == 2
        assert (await store.get_key(others[0].id)).revoked is None and await store.logins(["alice@acme"]) == {}

    async def test_a_user_is_not_deleted_while_a_key_is_made(self, place: Place) -> None:
        first, second = await place.open(), await place.open()
        for round in range(10):
            await first.create("users", "alice@acme", {}, actor="x", tenant="acme")
            await asyncio.gather(
                first.create_own_key("acme", "alice", ANY, actor="alice", count=99),
                second.delete("users", "alice@acme", actor="root"),
                return_exceptions=True,
            )
            with pytest.raises(NotFound):
                await first.get("users", "alice@acme")
            assert not (await first.list_keys(user="alice", state="active")).items, round

    async def test_a_rotation_gives_a_new_end_and_the_old_secret_keeps_its_own(self, store: ControlStore, place: Place) -> None:
        await store.create("users", "alice@acme", {}, actor="x", tenant="acme")
        now = place.clock.wall()
        settings = KeySettings(models=("*",), expires=now + 100)
        mine, secret = await store.create_own_key("acme", "alice", settings, actor="alice", count=2)
        place.clock.advance(50)
        rotated, _ = await store.rotate_key(mine.id, actor="alice", overlap=3600, expires=now + 500)
        assert (rotated.expires, rotated.issued, rotated.created) == (now + 500, now + 50, now)
        former = await store.find_key(keys.digest(secret.reveal()), secret.reveal())
        assert former is not None and former.expires == now + 100 and rotated.overlap_until == now + 100


class TestMembers:
    async def test_those_to_whom_it_is_assigned(self, store: ControlStore) -> None:
        for number in range(5):
            groups = ["staff", 'a "quoted" \u00fc%_'] if number % 2 else ["staff-2"]
            await store.create("users", f"u{number}@acme", {"groups": groups}, actor="x", tenant="acme")
        await store.create("users", "u1@globex", {"groups": ["staff"]}, actor="x", tenant="globex")
        assert [user.name for user in (await store.members("staff@acme")).items] == ["u1@acme", "u3@acme"]
        assert len((await store.members("a%20%22quoted%22%20%C3%BC%25_@acme")).items) == 2
        page = await store.members("staff@acme", limit=1)
        assert [user.name for user in (await store.members("staff@acme", limit=1, cursor=page.cursor)).items] == ["u3@acme"]
        with pytest.raises(RequestError):
            await store.members("staff")


async def test_own_key_rules_are_read_as_written(store: ControlStore) -> None:
    rule = {"count": 1, "life": 60.0, "login_within": None}
    await store.create("groups", "g@acme", {"own_keys": rule, "operations": ["chat"], "models": ["m"]}, actor="x", tenant="acme")
    found = await store.find_person("acme", "alice", ("g",))
    assert found.rules["g"] == GroupRules(models=("m",), operations=("chat",), own_keys=OwnKeys(count=1, life=60.0))


async def test_opening_an_older_database_keeps_its_keys_as_the_tenants(store: Store) -> None:
    made, _ = await store.create_key("acme", ANY, actor="x")
    assert (made.user, made.issued) == ("", made.created)
