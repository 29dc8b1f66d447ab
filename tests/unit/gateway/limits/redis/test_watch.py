"""When calls are looked at: at the first deadline, whatever was meant before."""

from __future__ import annotations

from collections.abc import Callable

from gateway.limits.redis.watch import Watch


class World:
    def __init__(self) -> None:
        self.now = 1_000_000
        self.timers: list[tuple[int, Callable[[], None]]] = []
        self.looked: list[int] = []
        self.watch = Watch(self._later, lambda: self.now, self._look)
        self.then: list[int] = []

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        self.timers.append((self.now + round(seconds * 1_000_000), call))

    def _look(self) -> None:
        self.looked.append(self.now)
        self.watch.again(self.then.pop(0) if self.then else 0)

    def run(self, until: int) -> None:
        while due := sorted((timer for timer in self.timers if timer[0] <= until), key=lambda timer: timer[0]):
            self.timers.remove(due[0])
            self.now = max(self.now, due[0][0])
            due[0][1]()
        self.now = until


def test_one_look_for_many_calls_at_the_deadline_of_the_first() -> None:
    world = World()
    for deadline in (1_050_000, 1_051_000, 1_060_000):
        world.watch.by(deadline)
    assert len(world.timers) == 1
    world.then = [1_060_000]
    world.run(2_000_000)
    assert world.looked == [1_050_000, 1_060_000]


def test_an_earlier_deadline_replaces_a_later_look() -> None:
    world = World()
    world.watch.again(1_250_000)
    world.watch.by(1_050_000)
    world.then = [1_200_000]
    world.run(2_000_000)
    assert world.looked == [1_050_000, 1_200_000], "and the former look is not taken too"


def test_after_the_last_call_a_new_one_is_looked_at() -> None:
    world = World()
    world.watch.by(1_050_000)
    world.run(1_100_000)
    world.watch.again(0)
    world.run(1_500_000)
    world.watch.by(1_550_000)
    world.run(2_000_000)
    assert world.looked == [1_050_000, 1_550_000]
