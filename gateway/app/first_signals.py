"""What a signal does to a process whose modules are still being loaded: it ends it, without a traceback.

This is imported before everything else, so it takes `_signal`, which is built in: the module `signal` first loads others."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
from types import FrameType


def end_at_once(number: int, _: FrameType | None) -> None:
    """What a signal that nobody handles does to every process but the first of a container."""
    os._exit(128 + number)


def settle() -> None:
    """Until the process handles signals there is nothing to clean up. An interruption that is ignored, as of a background job, stays so."""
    first = os.getpid() == 1
    if first:  # the kernel drops signals that process 1 does not handle: a container could not be stopped while its gateway starts
        _signal.signal(_signal.SIGTERM, end_at_once)
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, end_at_once if first else _signal.SIG_DFL)
