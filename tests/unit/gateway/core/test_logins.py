"""Logins by password that are counted in another process: the same budget as in one, whichever worker they come to."""

from __future__ import annotations

import pytest

from gateway.core.clock import FakeClock
from gateway.core.errors import Overloaded
from gateway.core.logins import MAX_OPEN, Attempt, BeginLogin, LocalLogins, LoginBegun, LoginDesk, LoginEnded, RemoteLogins
from gateway.core.throttle import PAIR

KEY = b"k" * 32


class Replica:
    """A control process and its workers."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.local = LocalLogins(self.clock, lambda: KEY)
        self.desk = LoginDesk(self.local)

    def worker(self, name: str) -> RemoteLogins:
        async def ask(wish: BeginLogin) -> LoginBegun:
            return self.desk.begin(name, wish)

        return RemoteLogins(KEY, ask, lambda said: self.desk.ended(name, said))


async def begin(logins: RemoteLogins, account: str = "alice", proof: bytes = b"p") -> Attempt | None:
    return await logins.begin("corp", account, "192.0.2.1", proof)


async def test_workers_share_one_budget() -> None:
    replica = Replica()
    workers = [replica.worker("1"), replica.worker("2")]
    for number in range(PAIR[0]):
        attempt = await begin(workers[number % 2])
        assert attempt is not None
        attempt.failed()
    assert [await begin(worker) for worker in workers] == [None, None]
    assert replica.local.begin("corp", "alice", "192.0.2.1", b"p") is None, "and with the admin listener"
    assert replica.local.begin("other", "alice", "192.0.2.1", b"p") is not None, "another directory has its own"
    replica.clock.advance(PAIR[1])
    assert await begin(workers[1]) is not None and len(replica.desk) == 1


async def test_what_succeeds_or_is_abandoned_costs_nothing() -> None:
    replica = Replica()
    first, second = replica.worker("1"), replica.worker("2")
    for _ in range(3 * PAIR[0]):
        attempt = await begin(first)
        assert attempt is not None
        attempt.abandoned()
    for _ in range(PAIR[0]):
        wrong = await begin(first, proof=b"wrong")
        assert wrong is not None
        wrong.failed()
    assert await begin(second) is None
    replica.clock.advance(PAIR[1])
    right = await begin(first)
    assert right is not None
    right.succeeded()
    for _ in range(PAIR[0]):
        wrong = await begin(second, proof=b"wrong")
        if wrong is not None:
            wrong.failed()
    assert await begin(second) is not None, "a password that was right at one worker is asked about at every other"


async def test_many_at_once_are_no_way_around_and_a_worker_that_ends_gives_nothing_back() -> None:
    replica = Replica()
    worker = replica.worker("1")
    assert [await begin(worker) is not None for _ in range(PAIR[0] + 3)] == [True] * PAIR[0] + [False] * 3
    replica.desk.gone("1")
    assert len(replica.desk) == 0 and await begin(replica.worker("2")) is None


async def test_nobody_ends_anothers_login_and_the_desk_is_bounded() -> None:
    replica = Replica()
    attempt = replica.desk.begin("1", BeginLogin("corp", "alice", "192.0.2.1", b"p"))
    replica.desk.ended("2", LoginEnded(attempt.number, "succeeded"))
    replica.desk.ended("1", LoginEnded(99, "succeeded"))
    assert len(replica.desk) == 1
    replica.desk.ended("1", LoginEnded(attempt.number, "abandoned"))
    replica.desk.ended("1", LoginEnded(attempt.number, "abandoned"))
    assert len(replica.desk) == 0
    for number in range(MAX_OPEN):
        replica.desk.begin("1", BeginLogin("corp", f"user{number}", f"2001:db8:{number:x}::1", b"p"))
    with pytest.raises(Overloaded):
        replica.desk.begin("1", BeginLogin("corp", "bob", "192.0.2.9", b"p"))
