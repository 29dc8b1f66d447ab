"""Roles and bindings on the admin listener: of the file and of the store, rows of the former form among them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from admin.permissions import ALL, Access, Grant
from gateway.app.plugins import OURS
from gateway.app.role_book import RoleBook
from gateway.config.additions import StoreAdditions
from gateway.core.errors import PermissionDenied, StoreUnavailable
from gateway.core.specs import BindingSpec, ConfigSpec, EngineSpec, RoleSpec
from gateway.core.types import Login, Principal
from gateway.identity import keys
from gateway.store.store import Store

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
    made = Store("sqlite", tmp_path, keys)
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
    return RoleBook(additions, lambda: FILE, wall=lambda: 1000.0)


async def access(book: RoleBook, who: Principal, address: str = "10.0.0.1") -> Access:
    grants, denied = await book.held(who, address)
    return Access(who, grants, denied=denied)


async def test_rows_of_the_former_form_mean_what_they_meant(store: Store, book: RoleBook) -> None:
    for name, tenant, principal, role in (("a", "acme", "k", "admin"), ("b", "acme", "k", "tenant-admin"), ("c", "globex", "k", "admin")):
        body = {"name": name, "tenant": tenant, "principal": principal, "role": role}
        await store.create("bindings", name, body, actor="t", tenant=tenant)
    assert (await book.held(WHO, "::1"))[0] == (Grant("admin"), Grant("tenant-admin", "acme"))
    assert (await book.held(Principal("k", "acme", "oidc", user="alice"), "::1"))[0] == (Grant("admin"), Grant("tenant-admin", "acme"))
    assert not (await book.held(Principal("other", "acme", "oidc", user="k"), "::1"))[0], "the id counted, not the user"
    await store.delete("bindings", "a", actor="t")
    assert (await book.held(WHO, "::1"))[0] == (Grant("tenant-admin", "acme"),), "at once"


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
    assert await book.held(WHO, "::1") == ((), frozenset())
    await bind("good", "viewer", "key/k")
    assert (await book.held(WHO, "::1"))[0] == (Grant("viewer"),)
    await bind("e", "gone", "key/k", effect="deny")
    assert (await book.held(WHO, "::1"))[0] == (Grant("viewer"),)
    assert "bindings.e" in caplog.text and "there is no role 'gone'" in caplog.text


async def test_while_the_store_is_away_what_was_read_last_counts(
    store: Store, book: RoleBook, bind: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    await bind("a", "viewer", "key/k")
    assert (await book.held(WHO, "::1"))[0] == (Grant("viewer"),)

    async def away(*args: Any, **more: Any) -> Any:
        raise StoreUnavailable("away")

    monkeypatch.setattr(store, "get", away)
    await bind("b", "auditor", "key/k")
    assert (await book.held(WHO, "::1"))[0] == (Grant("viewer"),)
    monkeypatch.undo()
    assert (await book.held(WHO, "::1"))[0] == (Grant("viewer"), Grant("auditor"))


async def test_what_a_role_permits(book: RoleBook) -> None:
    known = await book.permitted("keymaster")
    assert known is not None and known.permissions == KEYS | {"models:read"} and known.confined and not known.infers
    chatter = await book.permitted("chatter")
    assert chatter is not None and chatter.infers and not chatter.permissions
    assert (await book.permitted("admin") or known).permissions == ALL and await book.permitted("gone") is None
