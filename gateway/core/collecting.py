"""Work that makes many objects which all end with it: the garbage collector looks away meanwhile.

Reading a configuration of ten thousand endpoints makes half a million objects. The collector would look through them a dozen times, for up
to a tenth of a second each, in which the event loop has to wait; none of them is in a cycle, so that all end by themselves.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Pauses the collector, unless it is off already. Where several threads do so at once, the first that ends may switch it on again while
    the others go on, which costs time and nothing else; it is on again when all have ended."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
