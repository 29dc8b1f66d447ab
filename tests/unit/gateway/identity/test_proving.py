"""The scheme DPoP: token and proof together, each proof once, whichever way the answer comes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from gateway.core.clock import SystemClock
from gateway.core.errors import AuthenticationError, Overloaded, RequestError
from gateway.core.ports import Authenticator
from gateway.core.proofs import METHOD, PATH, PROOF, ClaimProof
from gateway.core.specs import ClaimSpec, ClaimsSpec, OidcSpec
from gateway.core.specs.identity import Binding, DpopSpec
from gateway.core.types import Headers, Peer, Principal
from gateway.core.waiting import Maybe
from gateway.identity.chain import chain
from gateway.identity.jwks import keys_of
from gateway.identity.oidc import OidcAuthenticator
from gateway.identity.proving import Proving
from gateway.identity.replays import Replays
from tests.unit.gateway.identity import issuing, proving

PEER = Peer("192.0.2.1")
CLOCK = SystemClock()
OTHER = ec.generate_private_key(ec.SECP256R1())


def issuer(binding: Binding = "optional") -> OidcAuthenticator:
    spec = OidcSpec(
        name="corp", issuer=issuing.ISSUER, audiences=("gatehouse",), claims=ClaimsSpec(tenant=ClaimSpec(value="t")), binding=binding
    )
    made = OidcAuthenticator(spec, CLOCK)
    made._issuer.keys._take(keys_of(issuing.jwks(issuing.jwk(issuing.RSA, "RS256"))))
    return made


class Later:
    """An authenticator whose answers must be waited for."""

    def __init__(self, inner: Authenticator) -> None:
        self._inner = inner

    def authenticate(self, headers: Headers, peer: Peer) -> Maybe[Principal | None]:
        return self._answer(headers, peer)

    async def _answer(self, headers: Headers, peer: Peer) -> Principal | None:
        await asyncio.sleep(0)
        return await settled(self._inner.authenticate(headers, peer))


def made(*, later: bool = False, remote: bool = False, binding: Binding = "optional", **settings: Any) -> Proving:
    table = Replays(CLOCK)

    async def asked(wish: ClaimProof) -> bool:
        await asyncio.sleep(0)
        return table.claim(wish)

    inner = chain([issuer(binding)])
    spec = DpopSpec(urls=(proving.URL,), **settings)
    return Proving(Later(inner) if later else inner, spec, CLOCK, b"s" * 32, asked if remote else table.claim)


def token(**claims: Any) -> bytes:
    now = time.time()
    return issuing.token({"sub": "ci", "iat": now - 10, "exp": now + 600, "cnf": {"jkt": proving.thumbprint()}, **claims})


def request(value: bytes, proof: bytes | None = None, scheme: bytes = b"DPoP ") -> Headers:
    found: Headers = {b"authorization": scheme + value, METHOD: b"POST", PATH: b"/v1/chat/completions"}
    return found if proof is None else {**found, PROOF: proof}


async def settled(answer: Maybe[Principal | None]) -> Principal | None:
    return await answer if isinstance(answer, Awaitable) else answer


@pytest.mark.parametrize(("later", "remote"), [(False, False), (True, False), (False, True), (True, True)])
async def test_a_bound_token_counts_with_its_proof_and_each_proof_once(later: bool, remote: bool) -> None:
    door, bound = made(later=later, remote=remote), token()
    proof = proving.proof(bound, time.time())
    found = await settled(door.authenticate(request(bound, proof), PEER))
    assert found is not None and found.id == "ci"
    with pytest.raises(AuthenticationError) as caught:
        await settled(door.authenticate(request(bound, proof), PEER))
    assert caught.value.code == "invalid_dpop_proof" and "used before" in caught.value.message
    again = await settled(door.authenticate(request(bound, proving.proof(bound, time.time(), jti="2"), b"dpop "), PEER))
    assert again is found, "decisions are remembered by the object"
    at_once = proving.proof(bound, time.time(), jti="3")
    answers = await asyncio.gather(
        *(settled(door.authenticate(request(bound, at_once), PEER)) for _ in range(8)), return_exceptions=True
    ) if later or remote else []  # fmt: skip
    assert [isinstance(answer, Principal) for answer in answers].count(True) == (1 if answers else 0)


@pytest.mark.parametrize("later", [False, True])
async def test_every_downgrade_is_refused(later: bool) -> None:
    """RFC 9449, 7.2 and 11: a bound token as a bearer token, with another's proof, an unbound token with a proof."""
    door, bound, unbound = made(later=later), token(), token(cnf=None)
    now = time.time()
    foreign = proving.proof(bound, now, key=OTHER)
    forged = bound[:-6] + b"AAAAAA"
    for refused in (
        request(bound, None, b"Bearer "),
        request(bound, proving.proof(bound, now), b"Bearer "),
        request(bound, foreign),
        request(unbound, proving.proof(unbound, now)),
        request(forged, proving.proof(forged, now)),
    ):
        with pytest.raises(AuthenticationError) as caught:
            await settled(door.authenticate(refused, PEER))
        assert (caught.value.code, caught.value.message) == ("invalid_credentials", "The credential is not valid.")
        challenge = dict(caught.value.headers)["www-authenticate"]
        assert challenge.startswith("DPoP " if refused[b"authorization"].startswith(b"DPoP") else "Bearer ")
    found = await settled(door.authenticate(request(bound, proving.proof(bound, now)), PEER))
    assert found is not None, "what others tried has used nothing up"
    assert await settled(door.authenticate(request(unbound, None, b"Bearer "), PEER)) is not None
    for nothing in (request(b"", None), request(bound, None)):
        with pytest.raises(AuthenticationError) as caught:
            await settled(door.authenticate(nothing, PEER))
        assert caught.value.code == "invalid_dpop_proof"
    with pytest.raises(RequestError):
        door.authenticate({**request(bound, proving.proof(bound, now, jti="x")), b"x-api-key": bound}, PEER)


async def test_an_issuer_may_ask_for_bound_tokens() -> None:
    door, unbound, bound = made(binding="dpop"), token(cnf=None), token()
    with pytest.raises(AuthenticationError):
        door.authenticate(request(unbound, None, b"Bearer "), PEER)
    assert await settled(door.authenticate(request(bound, proving.proof(bound, time.time())), PEER))


async def test_an_expired_token_is_told_so_in_the_scheme_that_was_used() -> None:
    door, old = made(), token(iat=time.time() - 600, exp=time.time() - 300)
    with pytest.raises(AuthenticationError) as caught:
        door.authenticate(request(old, proving.proof(old, time.time())), PEER)
    assert caught.value.code == "expired_token" and dict(caught.value.headers)["www-authenticate"].startswith("DPoP ")


@pytest.mark.parametrize("remote", [False, True])
async def test_a_token_request_proves_a_key(remote: bool) -> None:
    door = made(remote=remote)
    headers = request(b"", proving.proof(None, time.time()), b"Basic ")

    async def proved() -> bytes:
        answer = door.proved(headers)
        return await answer if isinstance(answer, Awaitable) else answer

    assert (await proved()).decode() == proving.thumbprint()
    with pytest.raises(AuthenticationError):
        await proved()
    del headers[PROOF]
    assert await proved() == b""


async def test_a_full_table_refuses_and_admits_nobody() -> None:
    door, bound = made(), token()
    door._claim = Replays(CLOCK, capacity=0).claim
    with pytest.raises(Overloaded):
        door.authenticate(request(bound, proving.proof(bound, time.time())), PEER)
