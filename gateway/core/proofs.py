"""Proofs of possession that come with a request (DPoP, RFC 9449), as they are passed between packages.

A proof names the method and path of its request, which are not headers. The listeners add them to the headers, under names that no client
can send.
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
"""The path of the request, without the query."""
PROVED: Final = b":proved"
"""The thumbprint (RFC 7638) of the key that the sender has proved to hold."""
USE_NONCE: Final = "use_dpop_nonce"
INVALID_PROOF: Final = "invalid_dpop_proof"


def note_target(headers: Headers, method: bytes, path: bytes) -> None:
    """Adds the request's method and path to the headers. Called by a listener for requests with a proof."""
    headers[METHOD], headers[PATH] = method, path


def proven(headers: Headers) -> None:
    """Rewrites the headers for later requests on a connection whose client proved at the beginning that it holds the token's key (RFC
    9449): a proof can be used only once, and the connection is still the same."""
    for name in (PROOF, METHOD, PATH):
        headers.pop(name, None)
    authorization = headers.get(b"authorization", b"")
    if PROVED in headers and authorization[:5].lower() == b"dpop ":
        headers[b"authorization"] = b"Bearer " + authorization[5:]


class ProofClaimed(Message, frozen=True):
    """fresh: the proof has not been used before."""

    fresh: bool


class ClaimProof(Ask[ProofClaimed], frozen=True):
    """Uses a proof up. key: the thumbprint of its key. id: a hash of its unique part. issued: when it was made, in seconds since the epoch.
    window: for how many seconds it is valid, from `ahead` seconds before `issued`."""

    key: bytes
    id: bytes
    issued: float
    window: float
    ahead: float


Claim = Callable[[ClaimProof], Maybe[bool]]
"""Whether a proof is used for the first time. Raises Overloaded if that is unknown."""


class Prover(Protocol):
    """Reads proofs that come without a bound token, at the token endpoint."""

    def proved(self, headers: Headers) -> Maybe[bytes]:
        """The thumbprint of the key that the sender has proved to hold; b"" without a proof. Raises AuthenticationError."""
        ...
