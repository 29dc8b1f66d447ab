"""Suspends the garbage collector for work that makes many objects and drops them all at its end.

Reading a configuration of ten thousand endpoints makes half a million objects. The collector would scan them a dozen times, and hold up the
event loop for up to a tenth of a second each time, without finding anything: none of these objects is part of a cycle.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final


class Pause:
    """Switches the collector of this process off while at least one user wants it off. Usable in any thread."""

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
