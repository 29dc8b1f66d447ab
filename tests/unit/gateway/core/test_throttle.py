"""Budgets of failed logins: what they stop, and whom they must not stop."""

from __future__ import annotations

import pytest

from gateway.core.clock import FakeClock
from gateway.core.throttle import ACCOUNT, FAMILIAR_SECONDS, PAIR, PEER, SITE, Buckets, LoginThrottle, neighbourhood


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:1", "2001:db8::/64"),
        ("2001:db8:0:1::1", "2001:db8:0:1::/64"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("fe80::1%eth0", "fe80::/64"),
        ("local", "local"),
        ("no:address", "no:address"),
    ],
)
def test_as_what_an_address_counts(address: str, expected: str) -> None:
    assert neighbourhood(address) == expected


class TestBuckets:
    def test_a_budget_is_used_up_and_comes_back(self) -> None:
        clock = FakeClock()
        buckets = Buckets(clock, 3, 10.0)
        assert buckets.full("a")
        for _ in range(3):
            assert buckets.wait("a") == 0.0
            buckets.take("a")
        assert 0.0 < buckets.wait("a") <= 10.0 and not buckets.full("a") and buckets.wait("b") == 0.0
        clock.advance(10.0)
        assert buckets.wait("a") == 0.0
        clock.advance(20.0)
        assert buckets.full("a")

    def test_what_is_owed_is_bounded(self) -> None:
        clock = FakeClock()
        buckets = Buckets(clock, 3, 10.0)
        for _ in range(1000):
            buckets.take("a")
        assert buckets.wait("a") <= 10.0

    def test_the_table_is_bounded_and_forgetting_gives_a_full_budget(self) -> None:
        buckets = Buckets(FakeClock(), 1, 10.0, size=100)
        buckets.take("first")
        for number in range(100):
            buckets.take(number)
        assert len(buckets) == 100 and buckets.wait("first") == 0.0


class TestLogins:
    def setup_method(self) -> None:
        self.clock = FakeClock()
        self.throttle = LoginThrottle(self.clock)

    def guess(self, account: str, address: str, proof: bytes = b"wrong") -> bool:
        """Whether the guess was let through to a check, which it failed."""
        attempt = self.throttle.begin(account, address, proof)
        if attempt is not None:
            attempt.failed()
        return attempt is not None

    def login(self, account: str, address: str, proof: bytes = b"right") -> bool:
        attempt = self.throttle.begin(account, address, proof)
        if attempt is not None:
            attempt.succeeded()
        return attempt is not None

    def test_guesses_of_one_account_from_one_address_are_few(self) -> None:
        assert sum(self.guess("alice", "192.0.2.1") for _ in range(1000)) == PAIR[0]
        self.clock.advance(PAIR[1])
        assert [self.guess("alice", "192.0.2.1") for _ in range(2)] == [True, False]

    def test_and_from_many_addresses_too(self) -> None:
        tried = sum(self.guess("alice", f"192.0.{number}.1") for number in range(250) for _ in range(PAIR[0]))
        assert tried == ACCOUNT[0]

    def test_the_owner_gets_in_from_another_address_while_one_address_guesses(self) -> None:
        for _ in range(3600):
            self.guess("alice", "192.0.2.1")
            self.clock.advance(1.0)
        assert self.login("alice", "198.51.100.1")

    def test_the_owner_gets_in_where_they_were_before_while_all_the_world_guesses(self) -> None:
        assert self.login("alice", "198.51.100.1")
        for number in range(1000):
            self.guess("alice", f"2001:db8:{number:x}::1")
        assert self.login("alice", "198.51.100.1", b"a new password")
        assert not self.login("alice", "203.0.113.1", b"a new password, from a new address, while the account is under attack")

    def test_a_password_that_was_right_before_gets_in_from_anywhere(self) -> None:
        assert self.login("alice", "198.51.100.1")
        for number in range(1000):
            self.guess("alice", "203.0.113.1")
            self.guess("alice", f"2001:db8:{number:x}::1")
        assert self.login("alice", "203.0.113.1")
        attempt = self.throttle.begin("alice", "203.0.113.1", b"right")
        assert attempt is not None
        attempt.failed()  # it was changed
        assert not self.login("alice", "203.0.113.1")

    def test_others_behind_an_address_that_guesses_get_in_if_they_did_before(self) -> None:
        assert self.login("bob", "192.0.2.1")
        assert sum(self.guess(f"user{number}", "192.0.2.1") for number in range(1000)) == PEER[0]
        assert self.login("bob", "192.0.2.1", b"even with another password")

    def test_an_ipv6_site_has_a_budget_of_its_own(self) -> None:
        tried = sum(self.guess(f"user{number}", f"2001:db8:0:{number:x}::1") for number in range(2000))
        assert tried == SITE[0] and self.guess("x", "2001:db8:1::1")

    def test_many_at_once_are_no_way_around(self) -> None:
        assert sum(self.throttle.begin("alice", "192.0.2.1", b"%d" % number) is not None for number in range(1000)) == PAIR[0]

    def test_a_directory_that_does_not_answer_costs_no_budget(self) -> None:
        for _ in range(1000):
            attempt = self.throttle.begin("alice", "192.0.2.1", b"right")
            assert attempt is not None
            attempt.abandoned()

    def test_success_costs_nothing_and_is_forgotten_in_the_end(self) -> None:
        assert all(self.login("alice", "192.0.2.1") for _ in range(1000))
        self.clock.advance(FAMILIAR_SECONDS)
        for number in range(1000):
            self.guess("alice", f"2001:db8:{number:x}::1")
        assert not self.login("alice", "192.0.2.1")

    def test_more_addresses_than_are_remembered_neither_fill_the_memory_nor_lock_anyone_out(self) -> None:
        assert self.login("alice", "192.0.2.1")
        for number in range(12_000):
            self.guess(f"user{number}", f"2001:{number >> 8:x}:{number & 255:x}::1")
        for table in (self.throttle._pairs, self.throttle._accounts, self.throttle._peers, self.throttle._sites):
            assert len(table) <= 10_000
        assert len(self.throttle._pairs) == 10_000
        assert self.login("alice", "192.0.2.1") and self.login("new", "192.0.2.2")
