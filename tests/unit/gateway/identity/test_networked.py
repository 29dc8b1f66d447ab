"""From where a tenant's credentials may be used."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import pytest

from gateway.core.errors import AuthenticationError
from gateway.core.network import Networks
from gateway.core.types import Headers, Peer, Principal
from gateway.identity.networked import Networked


class Fixed:
    def __init__(self, answer: Any, later: bool = False) -> None:
        self.answer, self.later = answer, later

    def authenticate(self, headers: Headers, peer: Peer) -> Any:
        return self._wait() if self.later else self.answer

    async def _wait(self) -> Any:
        return self.answer


def who(tenant: str = "acme", networks: tuple[str, ...] = ()) -> Principal:
    made = Principal("k", tenant, "api_key", ("*",))
    made.networks = networks
    return made


async def ask(answer: Any, address: str, later: bool, tenants: dict[str, list[str]] | None = None) -> Any:
    shared = Networks()
    rules = {tenant: found for tenant, entries in (tenants or {}).items() if (found := shared.rules(entries)) is not None}
    found = Networked(Fixed(answer, later), shared, rules).authenticate({}, Peer(address))
    return await found if isinstance(found, Awaitable) else found


@pytest.mark.parametrize("later", [False, True])
async def test_the_rules_of_configuration_and_store_must_both_admit(later: bool) -> None:
    mine = {"acme": ["10.0.0.0/8"], "globex": ["192.0.2.0/24"]}
    caller = who(networks=("deny:10.1.0.0/16",))
    assert await ask(caller, "10.2.0.1", later, mine) is caller
    for address in ("10.1.0.1", "192.0.2.1", "local"):
        with pytest.raises(AuthenticationError) as caught:
            await ask(caller, address, later, mine)
        assert caught.value.code == "invalid_credentials"
    with pytest.raises(AuthenticationError):
        await ask(caller, "10.1.0.1", later)


@pytest.mark.parametrize("later", [False, True])
async def test_others_are_not_held_up(later: bool) -> None:
    free = who("other")
    assert await ask(free, "192.0.2.1", later, {"acme": ["10.0.0.0/8"]}) is free
    assert await ask(None, "192.0.2.1", later, {"acme": ["10.0.0.0/8"]}) is None
