"""Tells of committed changes in this process. Of thousands some at a time, so that requests get the event loop in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from gateway.core.storage import StoreChange

AT_ONCE: Final = 64
"""Changes of one write that are told without a pause."""


class Told:
    """Subscribers hear each change of a write in order, though a later write may be told of in between: it has higher numbers."""

    def __init__(self) -> None:
        self._subscribers: list[Callable[[StoreChange], None]] = []

    def subscribe(self, callback: Callable[[StoreChange], None]) -> Callable[[], None]:
        self._subscribers.append(callback)
        return lambda: self._subscribers.remove(callback)

    def tell(self, changes: Sequence[StoreChange], done: Callable[[], None] = lambda: None) -> None:
        """Tells of the first at once, and of the rest whenever the loop comes round; then calls `done`. Whoever began it may be gone."""
        try:
            for change in changes[:AT_ONCE]:
                for subscriber in tuple(self._subscribers):
                    subscriber(change)
        except BaseException:
            done()
            raise
        if len(changes) > AT_ONCE:
            asyncio.get_running_loop().call_soon(self.tell, changes[AT_ONCE:], done)
        else:
            done()


class Telling:
    """Tells of one write, as what `Database.run` is to call after the commit. over: once all of it is told."""

    def __init__(self, told: Told) -> None:
        self._told, self.over = told, asyncio.Event()

    def __call__(self, done: tuple[Any, Sequence[StoreChange]]) -> None:
        self._told.tell(done[1], self.over.set)
