"""Suspends the garbage collector for work that makes many objects and drops them all at its end.

Reading a configuration of ten thousand endpoints makes half a million objects. The collector would look through them a dozen times, for up
to a tenth of a second each, in which the event loop has to wait; none of them is in a cycle, so that all end by themselves.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final


class Pause:
    """The collector of this process, switched off while somebody asks for it. Usable in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held = 0
        self._was_on = False

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if not self._held:
                self._was_on = gc.isenabled()
                gc.disable()
            self._held += 1
        try:
            yield
        finally:
            with self._lock:
                self._held -= 1
                if not self._held and self._was_on:
                    gc.enable()


uncollected: Final = Pause()
"""`with uncollected():` around such work. The collector is on again when the last of all threads has ended it."""
