"""Proofs of possession that come with a request (DPoP, RFC 9449), as the parts of the house hand them to each other.

What a proof is about is not in the headers: the listeners put the method and the path there, under names that no client can send.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from gateway.core.messages import Ask, Message
from gateway.core.values import Headers
from gateway.core.waiting import Maybe

PROOF: Final = b"dpop"
"""The header with the proof."""
METHOD: Final = b":method"
PATH: Final = b":path"
"""As the request has it, without the query."""
PROVED: Final = b":proved"
"""The thumbprint (RFC 7638) of the key that the sender has shown to have."""
USE_NONCE: Final = "use_dpop_nonce"
INVALID_PROOF: Final = "invalid_dpop_proof"


def note_target(headers: Headers, method: bytes, path: bytes) -> None:
    """Says which request it is. Called by a listener for requests that have a proof."""
    headers[METHOD], headers[PATH] = method, path


def proven(headers: Headers) -> None:
    """Whoever has proved at the beginning to hold a token's key (RFC 9449) need not do so again for each request that follows: a proof is
    good once, and the connection is the same."""
    for name in (PROOF, METHOD, PATH):
        headers.pop(name, None)
    authorization = headers.get(b"authorization", b"")
    if PROVED in headers and authorization[:5].lower() == b"dpop ":
        headers[b"authorization"] = b"Bearer " + authorization[5:]


class ProofClaimed(Message, frozen=True):
    """fresh: the proof has not been used before."""

    fresh: bool


class ClaimProof(Ask[ProofClaimed], frozen=True):
    """Uses up a proof. key: the thumbprint of its key. id: a hash of what is unique of it. issued: when it was made, in seconds since the
    epoch. window: for how many seconds it counts, from `ahead` seconds before it is made."""

    key: bytes
    id: bytes
    issued: float
    window: float
    ahead: float


Claim = Callable[[ClaimProof], Maybe[bool]]
"""Whether a proof is used for the first time. Raises Overloaded when that cannot be said."""


class Prover(Protocol):
    """Reads proofs that come without a bound token, at the token endpoint."""

    def proved(self, headers: Headers) -> Maybe[bytes]:
        """The thumbprint of the key that the sender has shown to have; b"" without a proof. Raises AuthenticationError."""
        ...
