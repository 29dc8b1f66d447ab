"""Leases of joined machines, by a clock that the test turns."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from gateway.core.joining import Beat, EngineReport
from gateway.routing.leases import FORGET, SETTLE, InUse, Leases, Replayed, TooSoon, Unknown

LEASE = 1.5


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now


class House:
    """Machines as one process hears them; `look` after a while."""

    def __init__(self) -> None:
        self.clock, self.events, numbers = Clock(), list[tuple[str, str]](), count(1)
        self.leases = Leases(self.clock, LEASE, lambda: f"s{next(numbers)}", lambda *event: self.events.append(event))

    def say(self, session: str, sequence: int, name: str = "a", **fields: Any) -> None:
        self.leases.heard(name, Beat(session=session, sequence=sequence, address=fields.pop("address", "10.0.0.1:1"), **fields))

    def joined(self, name: str = "a") -> str:
        with pytest.raises(Unknown) as begun:
            self.say("", 1, name)
        self.say(begun.value.session, 1, name)
        return begun.value.session

    def pass_time(self, seconds: float, step: float = 0.1) -> None:
        for _ in range(round(seconds / step)):
            self.clock.now += step
            self.leases.look()

    def what(self) -> list[str]:
        found, self.events[:] = [what for _, what in self.events], []
        return found


@pytest.fixture
def house() -> House:
    return House()


def test_a_machine_is_there_from_the_first_beat_of_a_session_that_it_was_given(house: House) -> None:
    assert house.leases.out("a") is not None
    with pytest.raises(Unknown):
        house.say("made-up", 1)
    assert house.leases.out("a") is not None and house.what() == []
    house.joined()
    assert house.leases.out("a") is None and house.what() == ["joined"]


def test_a_lease_ends_on_time_and_the_next_beat_begins_it_again(house: House) -> None:
    session = house.joined()
    house.pass_time(LEASE - 0.1)
    assert house.leases.out("a") is None
    house.pass_time(0.2)
    assert house.leases.out("a") == "the machine's lease is over"
    house.say(session, 2)
    assert house.leases.out("a") is None
    assert house.what() == ["joined", "lost", "returned"] and house.leases.losses == 1


def test_beats_keep_it_there(house: House) -> None:
    session = house.joined()
    for number in range(2, 40):
        house.pass_time(0.4)
        house.say(session, number)
    assert house.what() == ["joined"]


def test_a_pause_of_this_process_is_no_silence_of_the_machines(house: House) -> None:
    house.joined()
    house.pass_time(0.3)
    house.clock.now += 60.0
    house.leases.look()
    assert house.leases.out("a") is None
    house.pass_time(LEASE + 0.1)
    assert house.leases.out("a") is not None


def test_what_a_machine_says_after_a_pause_holds_no_longer_than_ever(house: House) -> None:
    session = house.joined()
    house.pass_time(0.3)
    house.clock.now += 60.0
    house.say(session, 2)  # read first, as it had come meanwhile
    house.leases.look()
    house.pass_time(LEASE + 0.1)
    assert house.leases.out("a") is not None


def test_a_pause_of_this_process_makes_no_loss_older(house: House) -> None:
    house.joined()
    house.pass_time(LEASE + 1.0)
    lost = house.clock.now - house.leases.machines["a"].since
    house.clock.now += 60.0
    house.leases.look()
    assert house.clock.now - house.leases.machines["a"].since == pytest.approx(lost + 0.25)


def test_a_sequence_number_counts_once(house: House) -> None:
    session = house.joined()
    house.pass_time(0.1)
    house.say(session, 7)
    for number in (7, 6, 1):
        with pytest.raises(Replayed):
            house.say(session, number)
    house.pass_time(LEASE + 0.1)
    with pytest.raises(Replayed):
        house.say(session, 7)
    assert house.leases.out("a") is not None, "a replay does not bring it back"


def test_a_session_is_not_taken_over_while_its_lease_runs(house: House) -> None:
    session = house.joined()
    with pytest.raises(Unknown) as begun:
        house.say("", 1, address="10.9.9.9:1")
    with pytest.raises(InUse):
        house.say(begun.value.session, 1, address="10.9.9.9:1")
    house.pass_time(0.1)
    house.say(session, 2)
    beat = house.leases.machines["a"].beat
    assert beat is not None and beat.address == "10.0.0.1:1"
    house.pass_time(LEASE + 0.1)
    house.say(begun.value.session, 1, address="10.9.9.9:1")
    assert house.what() == ["joined", "lost", "returned", "moved"]
    with pytest.raises(Unknown):
        house.say(session, 3)


def test_one_that_leaves_is_gone_at_once_and_what_it_said_before_does_not_bring_it_back(house: House) -> None:
    session = house.joined()
    house.say(session, 2, leaving=True)
    assert house.leases.out("a") is not None and house.what() == ["joined", "left"]
    for number in (1, 3):
        with pytest.raises(Unknown):
            house.say(session, number)
    with pytest.raises(Unknown) as begun:
        house.say("", 1)
    with pytest.raises(InUse):  # it could come and go as often as it can speak
        house.say(begun.value.session, 1)
    house.pass_time(SETTLE + 0.1)
    house.joined()
    assert house.what() == ["joined"]


def test_what_is_ready_there_is_followed(house: House) -> None:
    session = house.joined()
    for number, state in enumerate(("loading", "ready", "ready"), start=2):
        house.pass_time(0.2)
        house.say(session, number, engines=(EngineReport(name="chat", state=state, in_use=number),))
    assert house.what() == ["joined", "moved"]


def test_a_machine_that_changes_all_the_time_causes_one_change_in_a_while_and_the_last_one_counts(house: House) -> None:
    session = house.joined()
    for number in range(2, 102):
        house.pass_time(0.1)
        house.say(session, number, address=f"10.0.0.{number}:1")
    assert len(house.what()) <= 1 + 1 + 10.0 / SETTLE
    for number in range(102, 112):  # it says the same from now on
        house.pass_time(0.2)
        house.say(session, number, address="10.0.0.9:1")
    assert house.what()[-1:] == ["moved"] and house.leases.machines["a"].known[0] == "10.0.0.9:1"


def test_beats_that_come_too_fast_are_not_taken(house: House) -> None:
    session = house.joined()
    house.pass_time(0.1)
    house.say(session, 2)
    with pytest.raises(TooSoon):
        house.say(session, 3)
    house.say(session, 4, leaving=True)
    assert house.what() == ["joined", "left"]


def test_what_is_lost_for_long_is_forgotten_and_so_is_what_never_began(house: House) -> None:
    house.joined()
    with pytest.raises(Unknown):
        house.say("", 1, "b")
    house.pass_time(FORGET + LEASE + 1, step=0.2)
    assert house.leases.machines == {} and house.what() == ["joined", "lost", "left"]
