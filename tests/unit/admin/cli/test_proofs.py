"""Proofs of the command line, as the gateway reads them; nonces; bodies that can be sent once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from admin.cli.errors import CommandError
from admin.cli.proofs import Bound, Holder, credentials, reaches
from gateway.core.clock import SystemClock
from gateway.core.errors import AuthenticationError
from gateway.core.proofs import PROOF, note_target
from gateway.core.specs.identity import DpopSpec
from gateway.identity.dpop import Nonces, Reader

URL = "https://gateway.example/admin"
TOKEN = "eyJ.token"
NONCES = Nonces(b"secret", SystemClock())


def reader(**settings: Any) -> Reader:
    return Reader(DpopSpec(urls=(URL,), **settings), SystemClock(), NONCES)


def read(proof: str, token: str | None = TOKEN, path: bytes = b"/admin/v1/whoami", method: bytes = b"GET", **settings: Any) -> bytes:
    headers = {PROOF: proof.encode()}
    note_target(headers, method, path)
    return reader(**settings).read(headers, None if token is None else token.encode()).key


def test_the_gateway_reads_a_proof() -> None:
    holder = Holder()
    url = f"{URL}/admin/v1/whoami?x=y#z"
    assert read(holder.proof("GET", url, TOKEN)) == holder.thumbprint.encode()
    assert read(Holder(holder.text).proof("GET", url, TOKEN)) == holder.thumbprint.encode(), "as it was saved"
    assert holder.text not in repr(holder) and holder.proof("GET", url) != holder.proof("GET", url)
    for other in (holder.proof("GET", url, "other"), holder.proof("POST", url, TOKEN), holder.proof("GET", f"{URL}/", TOKEN)):
        with pytest.raises(AuthenticationError):
            read(other)


def served(holder: Holder, seen: list[tuple[str, str]]) -> httpx.Client:
    """A client of a gateway that wants a nonce."""

    def answer(request: httpx.Request) -> httpx.Response:
        request.read()
        seen.append((request.method, request.content.decode()))
        assert request.headers["authorization"] == f"DPoP {TOKEN}"
        try:
            read(request.headers["dpop"], path=request.url.path[len("/admin") :].encode(), method=request.method.encode(), nonce="required")
        except AuthenticationError as error:
            return httpx.Response(401, headers=dict(error.headers))
        return httpx.Response(200)

    return httpx.Client(transport=httpx.MockTransport(answer), auth=Bound(TOKEN, holder))


def test_a_nonce_is_given_once_it_is_asked_for() -> None:
    seen: list[tuple[str, str]] = []
    with served(Holder(), seen) as client:
        for _ in range(2):
            assert client.post(f"{URL}/admin/v1/keys", json={}).status_code == 200
    assert seen == [("POST", "{}")] * 3, "the first one was sent again"


def test_a_body_that_can_be_sent_once_is_sent_when_the_nonce_is_known() -> None:
    seen: list[tuple[str, str]] = []

    def body() -> Iterator[bytes]:
        yield b"part"

    with served(Holder(), seen) as client:
        assert client.post(f"{URL}/admin/v1/files?x=y", content=body()).status_code == 200
    assert [content for _, content in seen] == ["", "part"]


@pytest.mark.parametrize(
    ("url", "is_one"),
    [
        ("https://gateway.example:443/admin/", True),
        ("https://gateway.example", False),
        ("http://gateway.example/admin", False),
        ("https://gateway.example:x/admin", False),
        ("https://other.example/admin", False),
    ],
)
def test_urls_that_a_gateway_knows_itself_by(url: str, is_one: bool) -> None:
    assert reaches(url, (URL,)) is is_one


def test_what_is_not_bound_is_shown_as_before() -> None:
    assert credentials("k") == {"headers": {"authorization": "Bearer k"}} and credentials("", "") == {}
    assert isinstance(credentials("k", Holder().text)["auth"], Bound)


@pytest.mark.parametrize("key", ["gh_one\ngh_two", "gh_one\r", " gh_one", "gh_\u00e9"])
def test_a_key_that_no_header_can_carry_is_not_shown(key: str) -> None:
    with pytest.raises(CommandError, match="line break") as refused:
        credentials(key)
    assert "gh_" not in str(refused.value)
