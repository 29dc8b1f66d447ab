"""Calls the subscribers of this process with committed changes. A write of thousands is passed on in portions, so that requests get the
event loop in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from gateway.core.storage import StoreChange

AT_ONCE: Final = 64
"""Changes of one write that are passed on without a pause."""


class ChangeNotifier:
    """Subscribers get the changes of one write in order. Those of a later write, which have higher numbers, may come in between."""

    def __init__(self) -> None:
        self._subscribers: list[Callable[[StoreChange], None]] = []

    def subscribe(self, callback: Callable[[StoreChange], None]) -> Callable[[], None]:
        self._subscribers.append(callback)
        return lambda: self._subscribers.remove(callback)

    def tell(self, changes: Sequence[StoreChange], done: Callable[[], None] = lambda: None) -> None:
        """Passes on the first AT_ONCE changes now and the rest in later turns of the loop, then calls `done`. Raises what a subscriber
        raises, after `done`; in later turns the loop's exception handler gets it."""
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


class NotifyAfterCommit:
    """What `Database.run` calls after the commit of a write. over: set once all its changes have been passed on."""

    def __init__(self, notifier: ChangeNotifier) -> None:
        self._notifier, self.over = notifier, asyncio.Event()

    def __call__(self, done: tuple[Any, Sequence[StoreChange]]) -> None:
        self._notifier.tell(done[1], self.over.set)
