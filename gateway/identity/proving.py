"""The scheme DPoP (RFC 9449, 7): a bound token together with the proof that its sender has the key."""

from __future__ import annotations

from collections.abc import Awaitable

from gateway.core.clock import Clock
from gateway.core.errors import AuthenticationError
from gateway.core.ports import Authenticator
from gateway.core.proofs import INVALID_PROOF, PROOF, PROVED, Claim, ClaimProof
from gateway.core.specs.identity import DpopSpec
from gateway.core.types import Headers, Peer, Principal
from gateway.core.waiting import Maybe
from gateway.identity.credentials import INVALID, presented
from gateway.identity.dpop import Nonces, Proof, Reader


class Proving:
    """Every way to log in, for callers who present a bound token with the scheme DPoP and a proof. Anything else with that scheme is
    refused, a token that is bound to no key too. The proof is read before the token, so that its errors tell nothing of the token, and
    used up after it, so that only holders of tokens take room."""

    def __init__(self, inner: Authenticator, spec: DpopSpec, clock: Clock, secret: bytes, claim: Claim) -> None:
        self._authenticate, self._claim = inner.authenticate, claim
        self._reader = Reader(spec, clock, Nonces(secret, clock))

    def authenticate(self, headers: Headers, peer: Peer) -> Maybe[Principal | None]:
        value = headers.get(b"authorization")
        if value is None or value[:5].lower() != b"dpop ":
            return self._authenticate(headers, peer)
        found = presented(headers)  # refuses a second credential
        assert found is not None
        proof = self._reader.read(headers, found[1])
        headers[PROVED] = proof.key
        try:
            answer = self._authenticate(headers, peer)
        except AuthenticationError as error:
            rejection = self._told(error)
        else:
            if answer is None or isinstance(answer, Principal):
                return self._admitted(answer, proof)
            return self._wait(answer, proof)
        raise rejection

    async def _wait(self, answer: Awaitable[Principal | None], proof: Proof) -> Principal | None:
        rejection: AuthenticationError | None = None
        found: Principal | None = None
        try:
            found = await answer
        except AuthenticationError as error:
            rejection = self._told(error)
        if rejection is not None:
            raise rejection
        admitted = self._admitted(found, proof)
        return admitted if admitted is None or isinstance(admitted, Principal) else await admitted

    def _admitted(self, principal: Principal | None, proof: Proof) -> Maybe[Principal | None]:
        if principal is None or principal.login is None or principal.login.key != proof.key.decode():
            raise self._refused("invalid_token")
        fresh = self._claim(self._wish(proof))
        if isinstance(fresh, bool):
            return principal if self._is_fresh(fresh) else None
        return self._later(principal, fresh)

    async def _later(self, principal: Principal, fresh: Awaitable[bool]) -> Principal | None:
        return principal if self._is_fresh(await fresh) else None

    def proved(self, headers: Headers) -> Maybe[bytes]:
        """See gateway.core.proofs.Prover."""
        if PROOF not in headers:
            return b""
        proof = self._reader.read(headers, None)
        fresh = self._claim(self._wish(proof))
        if isinstance(fresh, bool):
            return proof.key if self._is_fresh(fresh) else b""
        return self._proved_later(proof, fresh)

    async def _proved_later(self, proof: Proof, fresh: Awaitable[bool]) -> bytes:
        return proof.key if self._is_fresh(await fresh) else b""

    def _wish(self, proof: Proof) -> ClaimProof:
        return ClaimProof(proof.key, proof.id, proof.issued, self._reader.window, self._reader.ahead)

    def _is_fresh(self, fresh: bool) -> bool:
        """Raises AuthenticationError for a proof that was used."""
        if not fresh:
            raise AuthenticationError(
                "The DPoP proof is not valid: it was used before.", code=INVALID_PROOF, headers=self._reader.challenge(INVALID_PROOF)
            )
        return True

    def _refused(self, error: str) -> AuthenticationError:
        return AuthenticationError(INVALID, code="invalid_credentials", headers=self._reader.challenge(error))

    def _told(self, error: AuthenticationError) -> AuthenticationError:
        """The same refusal, in the words of the scheme that was used."""
        told = AuthenticationError(error.message, code=error.code, headers=self._reader.challenge("invalid_token"))
        told.__suppress_context__ = True
        return told
