"""What every Authenticator keeps to: gateway.core.ports.Authenticator and the contract's errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from gateway.core.errors import AuthenticationError, GatehouseError, RequestError
from gateway.core.ports import Authenticator
from gateway.core.secret import Secret
from gateway.core.specs import StaticKeySpec
from gateway.core.types import Headers, Peer, Principal
from gateway.identity.api_key import ApiKeyAuthenticator
from gateway.identity.chain import chain

KEY = "k" * 40
PEER = Peer("192.0.2.1")


def api_keys() -> Authenticator:
    return ApiKeyAuthenticator([StaticKeySpec(id="ci", tenant="t", models=("*",), key=Secret(KEY))])


class Nobody:
    """Knows no credential of any kind."""

    def authenticate(self, headers: Headers, peer: Peer) -> None:
        return None


IMPLEMENTATIONS: dict[str, Callable[[], Authenticator]] = {
    "api keys": api_keys,
    "a chain of one": lambda: chain([api_keys()]),
    "a chain of several": lambda: chain([Nobody(), api_keys()]),
}
CHAINS = [name for name in IMPLEMENTATIONS if "chain" in name]


@pytest.fixture(params=IMPLEMENTATIONS)
def authenticator(request: pytest.FixtureRequest) -> Authenticator:
    return IMPLEMENTATIONS[request.param]()


async def ask(authenticator: Authenticator, headers: Headers) -> Principal | None:
    found = authenticator.authenticate(headers, PEER)
    return await found if isinstance(found, Awaitable) else found


async def test_a_good_credential_is_one_principal_object(authenticator: Authenticator) -> None:
    headers: Headers = {b"authorization": b"Bearer " + KEY.encode(), b"host": b"x"}
    principal = await ask(authenticator, headers)
    assert principal is not None and principal.id == "ci" and principal.tenant == "t"
    assert await ask(authenticator, headers) is principal


@pytest.mark.parametrize("value", [b"wrong", b"", KEY.encode()[:-1], b"\xff", b"gh_" + b"x" * 39])
async def test_a_bad_credential_is_rejected(authenticator: Authenticator, value: bytes) -> None:
    with pytest.raises(AuthenticationError) as caught:
        await ask(authenticator, {b"authorization": b"Bearer " + value})
    assert caught.value.status == 401
    assert ("www-authenticate", 'Bearer realm="gatehouse"') in caught.value.headers
    assert value == b"" or value.decode("latin-1") not in str(caught.value)


@pytest.mark.parametrize("headers", [{}, {b"authorization": b""}, {b"authorization": b"Digest x"}, {b"cookie": b"key=" + KEY.encode()}])
async def test_no_credential_is_nobody(authenticator: Authenticator, headers: Headers) -> None:
    try:
        assert await ask(authenticator, headers) is None
    except AuthenticationError as error:
        assert error.code == "missing_credentials"


@pytest.mark.parametrize("name", CHAINS)
async def test_a_chain_always_decides(name: str) -> None:
    with pytest.raises(AuthenticationError) as caught:
        await ask(IMPLEMENTATIONS[name](), {})
    assert caught.value.code == "missing_credentials"


async def test_two_credentials_are_ambiguous(authenticator: Authenticator) -> None:
    with pytest.raises(RequestError) as caught:
        await ask(authenticator, {b"authorization": b"Bearer " + KEY.encode(), b"x-api-key": b"other"})
    assert caught.value.code == "ambiguous_credentials"


async def test_only_errors_of_the_tree_come_out(authenticator: Authenticator) -> None:
    for value in (b"Bearer", b" ", b"Bearer \x00", b"Basic \xff", b"Bearer " + b"a" * 100_000, b"Bearer a.b.c", b"Bearer eyJ.a.b"):
        try:
            await ask(authenticator, {b"authorization": value})
        except GatehouseError:
            pass
