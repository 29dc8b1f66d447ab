"""The credential in a request's headers, and the errors that reject one.

A rejection has one text and one code. It never says whether a key was unknown, damaged or expired.
"""

from __future__ import annotations

from gateway.core.errors import AuthenticationError, RequestError
from gateway.core.proofs import PROVED
from gateway.core.types import Headers

CHALLENGE = (("www-authenticate", 'Bearer realm="gatehouse"'),)
INVALID = "The credential is not valid."
"""The text of every rejection, whatever kind of credential it was, and whatever is wrong with it."""
MAX_CREDENTIAL_BYTES = 16 * 1024
"""The longest credential that is read. No accepted key or token is this long."""


def presented(headers: Headers) -> tuple[bytes, bytes] | None:
    """The one credential of a request as (scheme in lower case, value); the key headers count as `bearer`.

    None when there is none. A header without a value beside another is none: clients send one for a variable that is set to nothing. Raises
    RequestError (400, ambiguous_credentials) when two headers carry different ones.
    """
    found: tuple[bytes, bytes] | None = None
    authorization = headers.get(b"authorization")
    if authorization is not None:
        scheme, _, value = authorization.strip().partition(b" ")
        found = (scheme.lower(), value.strip())
    for name in (b"x-api-key", b"api-key"):
        other = headers.get(name)
        if other is None:
            continue
        candidate = (b"bearer", other.strip())
        if found is None or not found[1]:
            found = candidate
        elif candidate[1] and found != candidate:
            raise RequestError("The request carries two different credentials; send one.", code="ambiguous_credentials")
    return found


def presented_token(headers: Headers) -> bytes | None:
    """The access token of a request, which may be one of ours or an issuer's. One with the scheme DPoP only where its proof has been read
    (gateway.identity.proving); else nobody knows that scheme."""
    found = presented(headers)
    if found is None or not found[1]:
        return None
    if found[0] == b"bearer" or (found[0] == b"dpop" and PROVED in headers):
        return found[1]
    return None


def looks_like_jwt(value: bytes) -> bool:
    """Whether a bearer value has the shape of a signed token (RFC 7519): a JSON header in base64url and two dots."""
    return value.startswith(b"eyJ") and value.count(b".") == 2


def missing_credentials() -> AuthenticationError:
    return AuthenticationError(
        "No usable credential was sent. Send an API key as 'Authorization: Bearer gh_...'.",
        code="missing_credentials",
        headers=CHALLENGE,
    )


def nobody_knew(headers: Headers) -> AuthenticationError:
    """The error of a request that no authenticator recognised: it has no credential, or one of a kind that is not configured."""
    found = presented(headers)
    known = (b"bearer", b"basic", b"dpop") if PROVED in headers else (b"bearer", b"basic")
    if found is None or found[0] not in known or not found[1]:
        return missing_credentials()
    return invalid_credentials() if found[0] != b"bearer" or looks_like_jwt(found[1]) else invalid_api_key()


def invalid_api_key() -> AuthenticationError:
    return AuthenticationError(INVALID, code="invalid_api_key", headers=CHALLENGE)


def invalid_credentials() -> AuthenticationError:
    """The error for tokens and all other credentials. The caller is not told why."""
    return AuthenticationError(INVALID, code="invalid_credentials", headers=CHALLENGE)
