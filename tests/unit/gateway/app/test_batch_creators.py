"""Who made a batch: what makes them another caller, and what ends them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gateway.app.batch_creators import COMPARED, Creators
from gateway.core.batches import Creator
from gateway.core.clock import FakeClock
from gateway.core.errors import PermissionDenied
from gateway.core.network import Networks
from gateway.core.specs import NetworkSpec
from gateway.core.storage import PersonRecord
from gateway.core.tasks import TaskOwner
from gateway.core.types import Peer, Principal
from gateway.core.values import Login
from gateway.identity.people import People
from gateway.identity.revocations import Revocations, Row, name_of

DERIVED = {"recorded", "key_salt", "tenant_salt", "login"}
"""Kept beside the rest, or told again by each login."""
IDP = "https://idp.example"


def test_every_right_of_a_caller_is_compared() -> None:
    assert set(COMPARED) | DERIVED == set(Principal.__slots__) and not set(COMPARED) & DERIVED


def made(record: PersonRecord, tenants: dict[str, tuple[str, ...]], revocations: Revocations) -> Creators:
    """record: what the store says of everybody. tenants: of `network.tenants`."""

    async def person(tenant: str, user: str, groups: Any) -> PersonRecord:
        return record

    async def no_key(id: str) -> Any:
        raise AssertionError("no key is asked for")

    snapshot: Any = SimpleNamespace(spec=SimpleNamespace(network=NetworkSpec(tenants=tenants)))
    return Creators(no_key, People(person, TaskOwner("test")), lambda: snapshot, Networks(), FakeClock(), revocations)


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
