"""The credential in a request's headers."""

from __future__ import annotations

import pytest

from gateway.core.errors import RequestError
from gateway.core.types import Headers
from gateway.identity.credentials import invalid_api_key, invalid_credentials, looks_like_jwt, nobody_knew, presented


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ({}, None),
        ({b"authorization": b"Bearer abc"}, (b"bearer", b"abc")),
        ({b"authorization": b"  bEaReR   abc  "}, (b"bearer", b"abc")),
        ({b"authorization": b"Basic eA=="}, (b"basic", b"eA==")),
        ({b"authorization": b""}, (b"", b"")),
        ({b"x-api-key": b"abc"}, (b"bearer", b"abc")),
        ({b"api-key": b"abc", b"x-api-key": b" abc "}, (b"bearer", b"abc")),
        ({b"authorization": b"Bearer abc", b"api-key": b"abc"}, (b"bearer", b"abc")),
        ({b"authorization": b"Bearer ", b"x-api-key": b"abc"}, (b"bearer", b"abc")),
        ({b"authorization": b"Bearer", b"x-api-key": b"", b"api-key": b"abc"}, (b"bearer", b"abc")),
        ({b"authorization": b"", b"x-api-key": b"abc"}, (b"bearer", b"abc")),
        ({b"authorization": b"Basic eA==", b"x-api-key": b" ", b"api-key": b""}, (b"basic", b"eA==")),
        ({b"authorization": b"Basic", b"x-api-key": b""}, (b"bearer", b"")),
    ],
)
def test_one_credential(headers: Headers, found: tuple[bytes, bytes] | None) -> None:
    assert presented(headers) == found


@pytest.mark.parametrize(
    "headers",
    [
        {b"authorization": b"Bearer abc", b"x-api-key": b"abd"},
        {b"authorization": b"Basic abc", b"x-api-key": b"abc"},
        {b"api-key": b"abc", b"x-api-key": b"abd"},
        {b"authorization": b"Bearer ", b"api-key": b"abc", b"x-api-key": b"abd"},
    ],
)
def test_two_credentials(headers: Headers) -> None:
    with pytest.raises(RequestError) as caught:
        presented(headers)
    assert caught.value.code == "ambiguous_credentials"


def test_every_rejection_reads_the_same() -> None:
    assert invalid_api_key().message == invalid_credentials().message
    assert nobody_knew({b"x-api-key": b"a"}).code == "invalid_api_key"
    assert nobody_knew({b"authorization": b"Bearer eyJ.a.b"}).code == "invalid_credentials"
    for nothing in ({}, {b"authorization": b""}, {b"authorization": b"Bearer "}, {b"authorization": b"Digest x"}):
        assert nobody_knew(nothing).code == "missing_credentials"


def test_the_shape_of_a_token() -> None:
    assert looks_like_jwt(b"eyJhbGciOiJub25lIn0.eyJ.x") and not looks_like_jwt(b"eyJ.x") and not looks_like_jwt(b"gh_a.b.c")
