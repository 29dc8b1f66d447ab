"""Who made a batch: what makes them another caller, and what ends them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from gateway.app.batches.creators import COMPARED, Creators
from gateway.core.batches import Creator
from gateway.core.clock import FakeClock
from gateway.core.errors import PermissionDenied
from gateway.core.network import Networks
from gateway.core.secret import Secret
from gateway.core.specs import NetworkSpec, StaticKeySpec
from gateway.core.storage import KeyRecord, PersonRecord
from gateway.core.tasks import TaskOwner
from gateway.core.types import Peer, Principal
from gateway.core.values import Login
from gateway.identity.people import People
from gateway.identity.revocations import Revocations, Row, name_of
from gateway.identity.stored import principal_of

DERIVED = {"recorded", "key_salt", "tenant_salt", "login"}
"""Kept beside the rest, or told again by each login."""
IDP = "https://idp.example"


def test_every_right_of_a_caller_is_compared() -> None:
    assert set(COMPARED) | DERIVED == set(Principal.__slots__) and not set(COMPARED) & DERIVED


def made(
    record: PersonRecord,
    tenants: dict[str, tuple[str, ...]],
    revocations: Revocations,
    key: Any = None,
    fixed: tuple[StaticKeySpec, ...] = (),
) -> Creators:
    """record: what the store says of everybody. tenants: of `network.tenants`. key: of the store; fixed: of the configuration."""

    async def person(tenant: str, user: str, groups: Any) -> PersonRecord:
        return record

    async def no_key(id: str) -> Any:
        raise AssertionError("no key is asked for")

    identity = SimpleNamespace(api_keys=SimpleNamespace(static=fixed))
    snapshot: Any = SimpleNamespace(spec=SimpleNamespace(network=NetworkSpec(tenants=tenants), identity=identity))
    return Creators(key or no_key, People(person, TaskOwner("test")), lambda: snapshot, Networks(), FakeClock(), revocations)


@pytest.mark.parametrize(
    ("row", "refused"),
    [
        (("token", IDP, "t-1", 0.0, 9e9), True),
        (("token", IDP, "t-0", 0.0, 9e9), True),
        (("token", IDP, "t-2", 0.0, 9e9), False),
        (("subject", IDP, "alice", 100.0, 9e9), True),
        (("subject", IDP, "alice", 49.0, 9e9), False),
        (("subject", IDP, "bob", 100.0, 9e9), False),
        (("issuer", IDP, "", 100.0, 9e9), True),
        (("issuer", "https://other.example", "", 100.0, 9e9), False),
        (("all", "", "", 100.0, 9e9), True),
    ],
)
async def test_a_batch_ends_with_the_token_that_made_it(row: Row, refused: bool) -> None:
    revocations = Revocations()
    creators = made(PersonRecord(), {}, revocations)
    login = Login("token", issuer=IDP, token_id="t-1", issued=100.0, source=Login(issuer=IDP, token_id="t-0", issued=50.0))
    alice = Principal("alice", "acme", "oidc", ("*",), user="alice", login=login)
    creator = Creator.of_batch(alice, Peer("127.0.0.1"), ())
    assert (await creators.of(creator)).id == "alice"
    revocations.apply({name_of(row): row}, ())
    if refused:
        with pytest.raises(PermissionDenied) as caught:
            await creators.of(creator)
        assert caught.value.code == "creator_stopped"
    else:
        assert (await creators.of(creator)).id == "alice"
    revocations.apply({}, [name_of(row)])
    assert (await creators.of(creator)).id == "alice"


@pytest.mark.parametrize(
    ("stored", "configured", "refused"),
    [
        ((), {}, False),
        (("10.0.0.0/8",), {}, False),
        (("192.168.0.0/16",), {}, True),
        ((), {"acme": ("192.168.0.0/16",)}, True),
        ((), {"acme": ("10.1.0.0/16",), "globex": ("192.168.0.0/16",)}, False),
    ],
)
async def test_a_batch_ends_where_its_tenant_may_not_be_used_any_more(
    stored: tuple[str, ...], configured: dict[str, tuple[str, ...]], refused: bool
) -> None:
    creators = made(PersonRecord(networks=stored), configured, Revocations())
    creator = Creator.of_batch(Principal("alice", "acme", "oidc", ("*",), user="alice"), Peer("10.1.2.3"), ())
    if refused:
        with pytest.raises(PermissionDenied) as caught:
            await creators.of(creator)
        assert caught.value.code == "creator_stopped"
    else:
        assert (await creators.of(creator)).id == "alice"


def stored(created: float) -> KeyRecord:
    return KeyRecord(id="app", tenant="acme", prefix="gh_", version=1, created=created, updated=created, actor="x", models=("*",))


@pytest.mark.parametrize("now", ["the same", "anew", "anew in the configuration"])
async def test_a_batch_ends_with_its_key_also_where_another_has_the_id(now: str) -> None:
    there, fixed = stored(100.0), StaticKeySpec(id="app", tenant="acme", key=Secret("k" * 40), models=("*",))

    async def key(id: str) -> KeyRecord:
        return there

    creator = Creator.of_batch(principal_of(there), Peer("127.0.0.1"), ())
    there = stored(100.5) if now == "anew" else there
    creators = made(PersonRecord(), {}, Revocations(), key, (fixed,) if now == "anew in the configuration" else ())
    if now == "the same":
        assert (await creators.of(creator)).made == 100.0
        return
    if now == "anew":
        with pytest.raises(PermissionDenied) as caught:
            await creators.of(creator)
        assert caught.value.code == "creator_stopped"
        earlier = msgspec.structs.replace(creator, made=None)  # of a version that did not write it
        assert (await creators.of(earlier)).id == "app"
    else:
        assert (await creators.of(creator)).made == 100.0, "the stored key is still there; the other one is another caller's"
    fixed_creator = Creator.of_batch(Principal("app", "acme", "api_key", ("*",)), Peer("127.0.0.1"), ())
    with_stored = made(PersonRecord(), {}, Revocations(), key)
    with pytest.raises(PermissionDenied):
        await with_stored.of(fixed_creator)
