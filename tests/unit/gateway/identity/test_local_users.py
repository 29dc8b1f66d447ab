"""People whose passwords are in the configuration: who gets in as whom, what is refused, and what is left to directories."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable

import pytest
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

from gateway.core.clock import SystemClock
from gateway.core.errors import AuthenticationError, Overloaded
from gateway.core.secret import Secret
from gateway.core.specs.identity import LocalUserSpec, LocalUsersSpec
from gateway.core.throttle import PAIR
from gateway.core.types import Headers, Peer, Principal
from gateway.identity import local_users
from gateway.identity.local_users import LocalUsers, fits, like

PEER, ELSEWHERE = Peer("192.0.2.1"), Peer("198.51.100.7")


def hashed(password: str) -> str:
    """Cheaper than any that the configuration accepts."""
    return Argon2id(salt=b"salt" * 4, length=32, iterations=1, lanes=1, memory_cost=64).derive_phc_encoded(password.encode())


class Later(SystemClock):
    """The system's clock, ahead by `seconds`."""

    seconds = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.seconds


class Site:
    def __init__(self) -> None:
        self.clock = Later()
        users = (
            LocalUserSpec(name="alice", tenant="acme", password_hash=Secret(hashed("alice-secret")), groups=("staff",), roles=("admin",)),
            LocalUserSpec(name="zoë", tenant="acme", password_hash=Secret(hashed("caf\u00e9"))),
        )
        self.authenticator = LocalUsers(LocalUsersSpec(users=users, cache=60.0), self.clock)

    async def ask(self, name: str, password: str, peer: Peer = PEER) -> Principal | None:
        found = self.authenticator.authenticate(basic(name, password), peer)
        return await found if isinstance(found, Awaitable) else found

    async def refused(self, name: str, password: str, peer: Peer = PEER) -> bool:
        try:
            return await self.ask(name, password, peer) is None
        except AuthenticationError:
            return True


def basic(name: str, password: str) -> Headers:
    return {b"authorization": b"Basic " + b64encode(f"{name}:{password}".encode())}


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    made = Site()
    yield made
    await made.authenticator.aclose()


async def test_a_user_gets_in_with_what_the_configuration_says(site: Site) -> None:
    found = await site.ask("alice", "alice-secret")
    assert found is not None and found.login is not None
    assert (found.id, found.user, found.tenant, found.kind) == ("alice", "alice", "acme", "local_user")
    assert (found.groups, found.roles, found.models) == (("staff",), ("admin",), ())
    assert (found.login.strength, found.login.issuer, found.login.amr) == ("password", "local_users", ("pwd",))


async def test_a_login_is_remembered_for_a_while(site: Site) -> None:
    found = await site.ask("alice", "alice-secret")
    assert site.authenticator.authenticate(basic("alice", "alice-secret"), ELSEWHERE) is found
    site.clock.seconds = 61.0
    again = await site.ask("alice", "alice-secret")
    assert again is not None and again is not found


@pytest.mark.parametrize("password", ["caf\u00e9", "cafe\u0301"])
async def test_an_accent_may_be_written_in_two_ways(site: Site, password: str) -> None:
    assert await site.ask("zoë", password) is not None


@pytest.mark.parametrize("name", ["Alice", "alice ", "alice\u200b", "eve", "*"])
async def test_another_name_is_left_to_directories(site: Site, name: str) -> None:
    assert await site.ask(name, "alice-secret") is None


async def test_a_wrong_password_is_refused_here(site: Site) -> None:
    with pytest.raises(AuthenticationError):
        await site.ask("alice", "wrong")


async def test_names_take_equally_many_comparisons_whether_there_are_such_users(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the hash for others costs as much as those of the users."""
    compared: list[str] = []

    def counted(password: str, encoded: str) -> bool:
        compared.append(encoded)
        return fits(password, encoded)

    monkeypatch.setattr(local_users, "fits", counted)
    for name in ("alice", "eve"):
        for number in range(2 * PAIR[0]):
            assert await site.refused(name, f"guess {number}")
    known, unknown = compared[: PAIR[0]], compared[PAIR[0] :]
    assert len(known) == len(unknown) == PAIR[0]
    assert {one.split("$")[3] for one in compared} == {"m=64,t=1,p=1"} and len(known[0]) == len(unknown[0]) and known[0] != unknown[0]


async def test_guessing_holds_up_only_its_own_address(site: Site) -> None:
    assert await site.ask("alice", "alice-secret", ELSEWHERE) is not None
    site.clock.seconds = 61.0  # the password itself is not remembered any more
    for number in range(2 * PAIR[0]):
        assert await site.refused("alice", f"guess {number}")
    assert await site.ask("alice", "alice-secret", ELSEWHERE) is not None


async def test_equal_logins_at_once_are_one_comparison(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []

    def counted(password: str, encoded: str) -> bool:
        compared.append(password)
        return fits(password, encoded)

    monkeypatch.setattr(local_users, "fits", counted)
    found = await asyncio.gather(*(site.ask("alice", "alice-secret") for _ in range(20)))
    assert len({id(one) for one in found}) == 1 and compared == ["alice-secret"]


async def test_too_many_logins_at_once_are_shed(site: Site) -> None:
    waiting = [site.authenticator.authenticate(basic(f"user {n}", "x"), Peer(f"192.0.2.{n}")) for n in range(local_users.WAITING)]
    with pytest.raises(Overloaded):
        site.authenticator.authenticate(basic("one more", "x"), PEER)
    assert await asyncio.gather(*(one for one in waiting if isinstance(one, Awaitable))) == [None] * local_users.WAITING
    assert await site.ask("alice", "alice-secret") is not None


def test_the_hash_of_nobody_fits_nothing() -> None:
    encoded = like(hashed("x"))
    assert not fits("x", encoded) and not fits("", encoded)
