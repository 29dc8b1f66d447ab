"""Several authenticators in order, and what happens when one of them breaks."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import pytest

from gateway.core.errors import AuthenticationError, RequestError
from gateway.core.types import Headers, Peer, Principal
from gateway.core.waiting import Maybe
from gateway.identity.chain import chain

PEER = Peer("192.0.2.1")
ALICE, BOB = Principal("alice", "t", "oidc"), Principal("bob", "t", "ldap")
HEADERS: Headers = {b"authorization": b"Bearer x"}


class Says:
    """An authenticator that does what the test says."""

    def __init__(self, answer: Principal | Exception | None, later: bool = False) -> None:
        self.answer, self.later, self.asked = answer, later, 0

    def authenticate(self, headers: Headers, peer: Peer) -> Maybe[Principal | None]:
        self.asked += 1
        return self._wait() if self.later else self._now()

    def _now(self) -> Principal | None:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def _wait(self) -> Principal | None:
        return self._now()


async def ask(*members: Says, headers: Headers = HEADERS) -> Principal | None:
    found = chain(members).authenticate(headers, PEER)
    return await found if isinstance(found, Awaitable) else found


@pytest.mark.parametrize("later", [False, True])
async def test_the_first_that_knows_the_credential_decides(later: bool) -> None:
    last = Says(BOB)
    assert await ask(Says(None, later), Says(ALICE, later), last) is ALICE
    assert last.asked == 0


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("count", [0, 1, 2, 3])
@pytest.mark.parametrize(("headers", "code"), [({}, "missing_credentials"), ({b"x-api-key": b"eyJ.a.b"}, "invalid_credentials")])
async def test_a_credential_that_nobody_knows_and_none(count: int, later: bool, headers: Headers, code: str) -> None:
    with pytest.raises(AuthenticationError) as caught:
        found = chain([Says(None, later) for _ in range(count)]).authenticate(headers, PEER)
        if isinstance(found, Awaitable):
            await found
    error = caught.value
    assert (error.status, error.code) == (401, code)
    assert error.headers == (("www-authenticate", 'Bearer realm="gatehouse"'),)


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("members", [0, 1])
async def test_a_rejection_ends_the_chain(members: int, later: bool) -> None:
    following = [Says(BOB) for _ in range(members)]
    with pytest.raises(AuthenticationError) as caught:
        await ask(Says(AuthenticationError("expired", code="expired_token"), later), *following)
    assert caught.value.code == "expired_token"
    assert [member.asked for member in following] == [0] * members


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("members", [0, 1])
async def test_a_failure_is_a_rejection(members: int, later: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Fail closed: the next member is not asked, and neither the caller nor the log learns the failure's text."""
    following = [Says(BOB) for _ in range(members)]
    with caplog.at_level(logging.ERROR), pytest.raises(AuthenticationError) as caught:
        await ask(Says(ValueError("the key was hunter2"), later), *following)
    assert (caught.value.status, caught.value.code) == (401, "invalid_credentials")
    assert [member.asked for member in following] == [0] * members
    assert "Says failed (ValueError)" in caplog.text
    assert "hunter2" not in caplog.text + str(caught.value)
    assert caught.value.__suppress_context__


async def test_two_credentials_are_refused_before_anybody_is_asked() -> None:
    members = Says(ALICE), Says(BOB)
    with pytest.raises(RequestError):
        await ask(*members, headers={b"authorization": b"Bearer a", b"x-api-key": b"b"})
    assert [member.asked for member in members] == [0, 0]


def test_a_plain_answer_is_not_wrapped() -> None:
    for make in (lambda: chain([Says(ALICE)]), lambda: chain([Says(None), Says(ALICE)])):
        authenticate: Callable[[Headers, Peer], Maybe[Principal | None]] = make().authenticate
        assert authenticate(HEADERS, PEER) is ALICE
