"""Roles and bindings on the admin listener: of the file and of the store, rows of the former form among them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admin.permissions import ALL, ROLES, Access, Grant
from gateway.app.configuration.plugins import OURS
from gateway.app.identity.role_book import RoleBook
from gateway.config.additions import StoreAdditions
from gateway.config.merge import Addition, merge_access
from gateway.core.errors import ConfigError, PermissionDenied, StoreUnavailable
from gateway.core.slices import at_once
from gateway.core.specs import BindingSpec, ConfigSpec, EngineSpec, RoleSpec
from gateway.core.types import Login, Peer, Principal
from gateway.identity import keys
from gateway.store.store import Store
from tests.stores import migrated

FILE = ConfigSpec(
    version=1,
    roles={"keymaster": RoleSpec(permissions=("admin:keys:*", "admin:models:read")), "chatter": RoleSpec(permissions=("infer:chat",))},
    bindings=(BindingSpec(name="from-file", role="keymaster", subjects=("group/ops",)),),
)
WHO = Principal("k", "acme", "api_key")
KEYS = frozenset(one for one in ALL if one.startswith("keys:"))


def no_engine(name: str, body: dict[str, Any]) -> EngineSpec:
    raise AssertionError


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    made = Store("sqlite", migrated(tmp_path), keys, deadline=60.0)
    await made.start()
    yield made
    await made.aclose()


@pytest.fixture
async def bind(store: Store) -> Callable[..., Any]:
    async def make(name: str, role: str, *subjects: str, **more: Any) -> None:
        await store.create("bindings", name, {"role": role, "subjects": list(subjects), **more}, actor="t")

    return make


@pytest.fixture
def book(store: Store) -> RoleBook:
    additions = StoreAdditions(store, no_engine, OURS.schemas())
    store.subscribe(lambda change: additions.changed(change.kind, change.name))
    return RoleBook(additions, lambda: FILE, wall=lambda: 1000.0, country=lambda address: "DE" if address == "192.0.2.1" else "")


HERE = Peer("::1")


async def access(book: RoleBook, who: Principal, peer: Peer | None = None) -> Access:
    grants, denied = await book.held(who, peer or Peer("10.0.0.1"))
    return Access(who, grants, denied=denied)


async def test_rows_of_the_former_form_mean_what_they_meant(store: Store, book: RoleBook) -> None:
    for name, tenant, principal, role in (("a", "acme", "k", "admin"), ("b", "acme", "k", "tenant-admin"), ("c", "globex", "k", "admin")):
        body = {"name": name, "tenant": tenant, "principal": principal, "role": role}
        await store.create("bindings", name, body, actor="t", tenant=tenant)
    assert (await book.held(WHO, HERE))[0] == (Grant("admin"), Grant("tenant-admin", "acme"))
    assert (await book.held(Principal("k", "acme", "oidc", user="alice"), HERE))[0] == (Grant("admin"), Grant("tenant-admin", "acme"))
    assert not (await book.held(Principal("other", "acme", "oidc", user="k"), HERE))[0], "the id counted, not the user"
    await store.delete("bindings", "a", actor="t")
    assert (await book.held(WHO, HERE))[0] == (Grant("tenant-admin", "acme"),), "at once"


async def test_a_role_of_ours_reaches_its_holders_tenant_and_what_belongs_to_none(book: RoleBook) -> None:
    who = Principal("alice", "acme", "oidc", user="alice", groups=("ops",))
    mine = await access(book, who)
    assert mine.may("keys:rotate", "acme") and not mine.may("keys:rotate", "globex") and not mine.may("keys:rotate")
    assert mine.may("models:read") and not mine.may("models:load") and not mine.may("tenants:read", "acme")
    assert mine.tenants("keys:read") == {"acme"}


async def test_an_unconfined_role_reaches_all_tenants(store: Store, book: RoleBook, bind: Callable[..., Any]) -> None:
    await store.create("roles", "all-keys", {"permissions": ["admin:keys:write"], "confined": False}, actor="t")
    await bind("x", "all-keys", "key/k")
    mine = await access(book, WHO)
    assert mine.may("keys:rotate", "globex") and mine.may("keys:create") and not mine.may("keys:read", "acme"), "write is not read"


async def test_deny_wins_whoever_allows(book: RoleBook, bind: Callable[..., Any]) -> None:
    await bind("a", "admin", "key/k")
    await bind("d", "keymaster", "tenant/ac*", effect="deny")
    mine = await access(book, WHO)
    assert not any(mine.may(permission, "acme") for permission in KEYS) and mine.may("tenants:create") and not mine.may("models:read")
    with pytest.raises(PermissionDenied):
        mine.require_grant("tenant-admin", "acme")
    assert (await access(book, Principal("k", "globex", "api_key"))).denied == frozenset()


@pytest.mark.parametrize(
    ("when", "login", "allowed"),
    [
        ('principal.strength == "mfa"', Login("mfa"), True),
        ('principal.strength == "mfa"', Login("token"), False),
        ('principal.strength == "mfa"', None, False),
        ('now - principal.auth_time < duration("10m")', Login(auth_time=900.0), True),
        ('now - principal.auth_time < duration("1m")', Login(auth_time=900.0), False),
        ('has(principal.auth_time) && now - principal.auth_time < duration("10m")', Login(), False),
        (
            'principal.acr == "gold" && "otp" in principal.amr && principal.issuer == "corp"',
            Login(acr="gold", amr=("otp",), issuer="corp"),
            True,
        ),
        ('cidr("10.0.0.0/8").containsIP(source.address) && !has(request.operation)', None, True),
        ('cidr("192.0.2.0/24").containsIP(source.address)', None, False),
        ("1 / request.bytes == 1", None, False),
        ('principal.key == "k" && !has(source.country)', None, True),
    ],
)
async def test_conditions_on_how_and_from_where_somebody_has_logged_in(
    book: RoleBook, bind: Callable[..., Any], when: str, login: Login | None, allowed: bool
) -> None:
    await bind("a", "admin", "key/k", when=when)
    mine = await access(book, Principal("k", "acme", "api_key", login=login))
    assert mine.may("audit:read") is allowed
    assert await book.possible(WHO) == (Grant("admin"),), "what it could hold counts, whatever the condition says now"


async def test_conditions_on_countries_and_certificates(book: RoleBook, bind: Callable[..., Any]) -> None:
    await bind("a", "admin", "key/k", when='source.country == "DE"')
    await bind("d", "auditor", "key/k", effect="deny", when="has(source.certificate)")
    there, shown = Peer("192.0.2.1"), Peer("192.0.2.1", certificate=b"der")
    assert (await access(book, WHO, there)).may("audit:read") and not (await access(book, WHO)).may("audit:read")
    assert not (await access(book, WHO, shown)).may("audit:read") and (await access(book, WHO, shown)).may("keys:create")


async def test_a_users_own_key_has_the_roles_it_was_made_with_and_no_others(book: RoleBook, bind: Callable[..., Any]) -> None:
    for number, subject in enumerate(("user/alice", "key/k*", "principal/k1", "tenant/acme")):
        await bind(f"b{number}", "operator", subject)
    await bind("no", "auditor", "user/alice", effect="deny", when="!has(request.model)")
    own = {"user": "alice", "groups": ("ops",), "personal": True}
    bare = await access(book, Principal("k1", "acme", "api_key", roles=("keymaster",), **own))
    assert not any(bare.may(permission, "acme") for permission in ALL)
    made_with = await access(book, Principal("k1", "acme", "api_key", roles=("admin",), **own))
    assert made_with.may("keys:create") and not made_with.may("audit:verify"), "what the user is denied, it is denied"


async def test_what_differs_between_two_callers(book: RoleBook, bind: Callable[..., Any]) -> None:
    def alice(*groups: str, roles: tuple[str, ...] = ()) -> Principal:
        return Principal("alice", "acme", "oidc", user="alice", groups=groups, roles=roles)

    async def roles(one: Principal, other: Principal) -> set[str]:
        found = await book.differing(one, other)
        assert set(found) == set(await book.differing(other, one))
        return {grant.role for grant in found}

    await bind("everybody", "viewer", "tenant/acme")
    assert await roles(alice(), alice("a")) == set()
    assert await roles(alice(), alice("ops")) == {"keymaster"}
    await bind("b", "operator", "tenant/acme", when='"night" in principal.groups')
    assert await roles(alice(), alice("a")) == {"operator"}, "its condition reads the groups"
    await bind("c", "auditor", "user/alice", effect="deny", when="[principal].all(p, size(p.roles) == 0)")
    assert await roles(alice(), alice("a")) == {"operator", "auditor"}
    assert await roles(alice("a"), alice("a", roles=("tenant-admin",))) == {"tenant-admin", "auditor"}
    await bind("d", "chatter", "group/talk")
    found = await book.differing(alice(), alice("talk"))
    assert {grant.role for grant in found if grant.infers} == {"chatter"}


async def test_which_binding_names_a_subject(book: RoleBook, bind: Callable[..., Any]) -> None:
    await bind("a", "chatter", "group/talk", tenant="acme")
    assert await book.naming("group", "talk", "acme") == "a" and await book.naming("group", "talk", "globex") is None
    assert await book.naming("group", "ops", "globex") == "from-file" and await book.naming("group", "t*", "acme") is None


async def test_a_denial_that_cannot_be_evaluated_denies(book: RoleBook, bind: Callable[..., Any]) -> None:
    await bind("a", "admin", "key/k")
    await bind("d", "admin", "key/k", effect="deny", when="1 / request.bytes == 1")
    assert (await access(book, WHO)).denied == ALL


async def test_what_cannot_be_read_gives_nothing_and_takes_nothing_away(
    store: Store, book: RoleBook, bind: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    await bind("a", "gone", "key/k")
    await bind("b", "admin", "key/k", when="request.colour == 1")
    await bind("c", "viewer", "robot/k")
    await store.create("roles", "broken", {"permissions": ["admin:teapots:*"]}, actor="t")
    await bind("d", "broken", "key/k")
    assert await book.held(WHO, HERE) == ((), frozenset())
    await bind("good", "viewer", "key/k")
    assert (await book.held(WHO, HERE))[0] == (Grant("viewer"),)
    await bind("e", "gone", "key/k", effect="deny")
    assert (await book.held(WHO, HERE))[0] == (Grant("viewer"),)
    assert "bindings.e" in caplog.text and "there is no role 'gone'" in caplog.text


async def test_while_the_store_is_away_what_was_read_last_counts(
    store: Store, book: RoleBook, bind: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    await bind("a", "viewer", "key/k")
    assert (await book.held(WHO, HERE))[0] == (Grant("viewer"),)

    async def away(*args: Any, **more: Any) -> Any:
        raise StoreUnavailable("away")

    monkeypatch.setattr(store, "get", away)
    await bind("b", "auditor", "key/k")
    assert (await book.held(WHO, HERE))[0] == (Grant("viewer"),)
    monkeypatch.undo()
    assert (await book.held(WHO, HERE))[0] == (Grant("viewer"), Grant("auditor"))


async def test_what_a_role_permits(book: RoleBook) -> None:
    known = await book.permitted("keymaster")
    assert known is not None and known.permissions == KEYS | {"models:read"} and known.confined and not known.infers
    chatter = await book.permitted("chatter")
    assert chatter is not None and chatter.infers and not chatter.permissions
    assert (await book.permitted("admin") or known).permissions == ALL and await book.permitted("gone") is None


async def test_what_has_not_changed_is_kept(store: Store, book: RoleBook, bind: Callable[..., Any]) -> None:
    await store.create("roles", "looker", {"name": "looker", "permissions": ["admin:keys:read"], "confined": True}, actor="t")
    for name in "cab":
        await bind(name, "looker", f"user/{name}")
    alice = Principal("a", "acme", "oidc", user="a")
    assert (await access(book, alice)).may("keys:read", "acme")
    before = book._book
    await bind("ab", "looker", "user/a")
    await store.update(
        "roles", "looker", {"name": "looker", "permissions": ["admin:keys:rotate"], "confined": True}, actor="t", version=None
    )
    after = await access(book, alice)
    assert after.may("keys:rotate", "acme") and not after.may("keys:read", "acme")
    assert [one.name for one in book._book.bindings] == ["from-file", "a", "ab", "b", "c"], "in the order of the names"
    assert [one.rule for one in book._book.grants.of(alice)] == ["binding:a", "binding:ab"]
    assert all(book._book.bound[name] is one for name, one in before.bound.items())
    assert book._book.roles["keymaster"] is before.roles["keymaster"] and book._book.roles["looker"] is not before.roles["looker"]
    await store.delete("bindings", "a", actor="t")
    await store.delete("bindings", "ab", actor="t")
    assert not (await access(book, alice)).may("keys:rotate", "acme")


class Read:
    """As much of StoreAdditions as is used."""

    def __init__(self) -> None:
        self.by_kind: dict[str, dict[str, Addition]] = {"roles": {}, "bindings": {}}

    async def read(self) -> None:
        pass

    def put(self, kind: str, name: str, spec: RoleSpec | BindingSpec | None) -> None:
        found = {**self.by_kind[kind], name: Addition(1, 1.0, spec)}
        if spec is None:
            del found[name]
        self.by_kind[kind] = dict(sorted(found.items()))


NAMES = st.sampled_from(["a", "b", "c", "d", "0", "1", "7"])
SUBJECTS = st.lists(st.sampled_from(["user/u1", "user/u2", "user/*", "group/g", "key/u?"]), min_size=1, max_size=3).map(tuple)
SMALL = "request.bytes < 10"
BOUND = st.builds(
    BindingSpec,
    role=st.sampled_from(["r0", "r1", "admin", "viewer"]),
    subjects=SUBJECTS,
    effect=st.sampled_from(["allow", "allow", "deny"]),
    when=st.sampled_from([None, None, SMALL, 'principal.strength == "mfa"']),
)
PERMITTED = st.sampled_from([("admin:keys:read",), ("admin:*:read",), ("infer:chat:model/m",)])
CHANGE = st.one_of(
    st.tuples(st.just("bindings"), NAMES, st.one_of(st.none(), BOUND)),
    st.tuples(st.just("roles"), st.sampled_from(["r0", "r1"]), st.one_of(st.none(), st.builds(RoleSpec, permissions=PERMITTED))),
    st.tuples(st.just("file"), st.integers(0, 4), st.lists(BOUND, max_size=3).map(tuple)),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(CHANGE, min_size=1, max_size=4), max_size=8))
def test_whatever_has_changed_a_book_says_what_a_new_one_says(rounds: list[list[tuple[str, Any, Any]]]) -> None:
    asyncio.run(compared(rounds))


async def compared(rounds: list[list[tuple[str, Any, Any]]]) -> None:
    read, file = Read(), [ConfigSpec(version=1, roles={"r1": RoleSpec(permissions=("admin:models:read",))})]
    book = RoleBook(cast(StoreAdditions, read), lambda: file[0], wall=lambda: 1000.0)
    for changes in [[], *rounds]:
        for kind, name, value in changes:
            if kind == "file":
                file[0] = ConfigSpec(version=1, roles=file[0].roles if name else {}, bindings=value)
            elif kind == "bindings" and value is not None:
                read.put(kind, name, msgspec.structs.replace(value, name=name))
            else:
                read.put(kind, name, value)
        try:
            at_once(merge_access(file[0], read.by_kind, ROLES))
        except ConfigError:  # a binding that denies, of a role that is not there: the book stays as it was
            await outcome(book)
        else:
            assert await outcome(book) == await outcome(RoleBook(cast(StoreAdditions, read), lambda: file[0], wall=lambda: 1000.0))


async def outcome(book: RoleBook) -> list[object]:
    callers = [Principal(user, "t", "oidc", user=user, groups=groups) for user, groups in (("u1", ()), ("u2", ("g",)), ("v", ()))]
    found: list[object] = []
    for who in callers:
        found += [await book.held(who, HERE), await book.possible(who), await book.denied_by(who)]
        found += [await book.differing(who, other) for other in callers]
        found.append(await book.naming("user", who.id, "t"))
    found += [await book.permitted(role) for role in ("r0", "r1", "admin")]
    return found


def of_many(count: int) -> Read:
    read = Read()
    read.by_kind["roles"] = {f"r{n:05d}": Addition(1, 1.0, RoleSpec(permissions=("admin:keys:read",))) for n in range(count)}
    read.by_kind["bindings"] = {
        f"b{n:05d}": Addition(1, 1.0, BindingSpec(name=f"b{n:05d}", role=f"r{n:05d}", subjects=(f"user/u{n}", "group/all")))
        for n in range(count)
    }
    return read


@pytest.mark.parametrize("what", ["binding", "role", "gone", "new"])
async def test_of_many_bindings_one_that_changes_is_exchanged(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = of_many(2000)
    book = RoleBook(cast(StoreAdditions, read), lambda: FILE)
    who = Principal("u7", "t", "oidc", user="u7")
    assert [grant.role for grant in await book.possible(who)] == ["r00007"]
    monkeypatch.setattr(book, "_indexed", None)
    match what:
        case "binding":
            read.put("bindings", "b00007", BindingSpec(name="b00007", role="r00008", subjects=("user/u7",)))
        case "role":
            read.put("roles", "r00007", RoleSpec(permissions=("admin:models:read",)))
        case "gone":
            read.put("bindings", "b00007", None)
        case _:
            read.put("bindings", "b00007x", BindingSpec(name="b00007x", role="admin", subjects=("user/u7",)))
    found = await book.possible(who)
    expected = {"binding": ["r00008"], "role": ["r00007"], "gone": [], "new": ["r00007", "admin"]}
    assert [grant.role for grant in found] == expected[what]
    if what == "role":
        assert "models:read" in (found[0].permissions or ())
    assert len(await book.possible(Principal("u8", "t", "oidc", user="u8", groups=("all",)))) == {"gone": 1999, "new": 2000}.get(
        what, 1999 if what == "binding" else 2000
    )
