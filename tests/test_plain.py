"""Clients of plain HTTP: what they say where a test meets HTTPS after all."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import httpx
import pytest

from tests.plain import PLAIN


@pytest.fixture
def url() -> Iterator[str]:
    """Somebody listens there: the connection comes about, and TLS would begin."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"https://127.0.0.1:{server.getsockname()[1]}/"


def test_https_fails_and_not_as_a_server_that_is_not_there(url: str) -> None:
    with pytest.raises(AssertionError, match="this client is for plain HTTP"):
        httpx.get(url, verify=PLAIN, trust_env=False, timeout=60)


def test_https_fails_without_threads_too(url: str) -> None:
    async def ask() -> None:
        async with httpx.AsyncClient(verify=PLAIN, trust_env=False, timeout=60) as client:
            await client.get(url)

    with pytest.raises(AssertionError, match="this client is for plain HTTP"):
        asyncio.run(ask())


def test_nobody_changes_what_others_trust(url: str) -> None:
    with pytest.raises(AssertionError, match="this client is for plain HTTP"):
        PLAIN.load_verify_locations("authority.pem")
    with pytest.raises(AssertionError, match="this client is for plain HTTP"), pytest.warns(DeprecationWarning, match="cert"):
        httpx.Client(verify=PLAIN, cert="certificate.pem", trust_env=False)
