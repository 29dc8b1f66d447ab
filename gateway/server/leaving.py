"""How a data listener leaves without failing a request.

    serving ──ask──▶ delay ──▶ finishing ──▶ gone        ask again: every wait is over at once
    serving ──retire──▶ retiring ──▶ gone                another process accepts on the same socket from now on

In the delay `/readyz` says 503, so that a load balancer stops sending, and everything is served as before, new connections too; each
answer says `connection: close`, so that clients move while they still can. Then the listener accepts no more, idle connections close, and
what runs may finish within the drain timeout. What still runs then ends with an error: a stream with an event, anything else with a 503.

A retiring listener leaves idle connections open until their next answer, at most IDLE_SECONDS: closing one just as its next request arrives
would lose that request, and the longer it was idle the less likely that is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from gateway.core.errors import Overloaded
from gateway.core.pauses import STALL
from gateway.server.closing import LINGER_SECONDS
from gateway.server.listener import QuietServer
from gateway.server.protocol import ListenerState

LOOK_SECONDS: Final = 0.05
"""Between two looks at what is still under way."""
IDLE_SECONDS: Final = 10.0
"""How long a retiring listener waits for the next request of an idle connection."""


class Leaving:
    """The wish to leave, and the waits on the way. Needs a running loop when it is asked."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.hurried = False
        self.asks = 0
        self._wait: asyncio.Timeout | None = None

    def ask(self) -> None:
        """Leave; if asked before: at once. Once the last answers are written, each gets its time to arrive unless asked again."""
        self.asks += 1
        if self.asked.is_set():
            self.hurried = True
            if self._wait is not None:
                self._wait.reschedule(asyncio.get_running_loop().time())
        self.asked.set()

    async def leave(self, server: QuietServer, state: ListenerState, *, delay: float, timeout: float) -> None:
        """Returns when nothing is under way any more, at most `LINGER_SECONDS` after the delay and the timeout (seconds)."""
        plane = state.plane
        plane.draining = plane.closing = True
        await self._until(lambda: False, delay)
        if await server.accept_rest():
            for _ in range(2):  # what they sent is read: until then they look idle. A pause of the process takes one of the two
                await asyncio.sleep(LOOK_SECONDS / 2)
        server.end()
        if not await self._until(lambda: not under_way(state), timeout):
            cut_short(state)
        self.hurried = False  # the last answers are written: they get their time to arrive
        await self._until(lambda: not state.count(), LINGER_SECONDS)

    async def retire(self, server: QuietServer, state: ListenerState) -> None:
        """Returns when every connection has ended, each after its last answer; or when asked to leave, which is then to follow."""
        state.plane.closing = True
        server.stop_accepting()
        for socket in list(state.sockets):
            socket.shutdown()
        looked = asyncio.get_running_loop().time()
        late, rested = looked + IDLE_SECONDS, False
        while (state.count() or server.arriving) and not self.asked.is_set():
            now, before = asyncio.get_running_loop().time(), looked
            looked = now
            if now - before >= STALL and not rested:  # this process stood still: what lies unread in their sockets comes first
                late, rested = late + now - before, True
            if now > late:
                for connection in [each for each in state.connections if not each.busy]:
                    connection.shutdown()
            await asyncio.sleep(LOOK_SECONDS)

    async def _until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Waits at most so long, or until hurried; whether the condition came true."""
        try:
            async with asyncio.timeout(0.0 if self.hurried else seconds) as self._wait:
                while not condition():
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            return condition()
        finally:
            self._wait = None
        return True


def under_way(state: ListenerState) -> bool:
    """Whether any request is being received or answered."""
    return bool(state.plane.exchanges) or any(connection.busy for connection in state.connections)


def cut_short(state: ListenerState) -> None:
    """Ends everything that is under way with an error."""
    error = Overloaded("The gateway is shutting down.", retry_after=1.0)
    for connection in list(state.connections):
        connection.cut_short(error)
    for exchange in list(state.plane.exchanges):
        exchange.cancel(error)
    for socket in list(state.sockets):
        socket.shutdown()
