"""A worker as the mirror knows it."""

from __future__ import annotations

from collections.abc import Callable

from gateway.core.messages import Message


class MirroredWorker:
    """What a worker has said of itself. uses: by endpoint; the third item is since when it is idle there, None while it is not.

    routes: whether it has put a configuration into force. Before, it has no requests, needs no slots, and may take seconds to answer.
    changed: endpoints that have become new, changed or gone here since it last asked for what is new. It may not see them as changed: one
    that skips a configuration sees nothing of what that changed and the next one changed back.
    """

    def __init__(self, tell: Callable[[Message], None], routes: bool) -> None:
        self.tell, self.routes = tell, routes
        self.uses: dict[str, tuple[int, int, float | None, int]] = {}
        self.queued: dict[str, int] = {}
        self.shedding = 0
        self.leaving = False
        self.changed: set[str] = set()
