"""Clocks: the system's counts on, and its epoch is before everything; the fake one moves when it is told to."""

from __future__ import annotations

from gateway.core.clock import FakeClock, SystemClock


def test_the_epoch_is_a_whole_second_before_anything_happened_here() -> None:
    clock = SystemClock()
    assert clock.epoch == int(clock.epoch) == SystemClock().epoch
    assert clock.epoch <= clock.monotonic() <= clock.monotonic()


def test_a_fake_clock_moves_only_when_told_to() -> None:
    clock = FakeClock(5.0, 100.0, epoch=2.0)
    clock.advance(1.5)
    assert (clock.monotonic(), clock.wall(), clock.epoch) == (6.5, 101.5, 2.0)
