"""What a client's connection can be doing, and what may happen next: three state machines, each one table (h11 does it this way).

Reading a request, answering one and ending the connection overlap: a connection reads the next request while it answers the last, and it
may have to end in the middle of either. So each has a machine of its own, driven by its own events, and the connection is in one state of
each. A table says for every state what each event leads to. An event that a state does not list is a bug of ours and raises
IllegalTransition instead of leaving the connection in a state that nobody thought of.

READING: what the parser is in the middle of.

    state      begin     head      upgrade   end       stop
    BETWEEN    HEAD                                    OVER     between two requests
    HEAD                 BODY      UPGRADE             OVER     in a request's head
    UPGRADE                                  BODY      OVER     a head that asks for another protocol: for the parser it ends the message
    BODY                                     BETWEEN   OVER     in a request's body, which may be empty
    OVER       OVER      OVER      OVER      OVER      OVER     no further request is read; whatever else arrives is dropped

OVER takes every event: the parser may still be in the middle of the read that was refused, and hears of it only when it returns.

ANSWERING: what happens to the request whose turn it is. Requests are answered one at a time, in the order they came (RFC 9112, 9.3.2).

    state      take      start     started   finish    lose
    NOTHING    READY     STARTING  NOTHING             GONE     no request has its turn
    READY                STARTING                      GONE     its head is read; it starts when the read is through
    STARTING                       SERVING   NOTHING   GONE     its handler is being started, and may finish before that returns
    SERVING                                  NOTHING   GONE     its handler answers it
    GONE       GONE      GONE      GONE      GONE      GONE     the client has left; a handler may still finish

STARTING apart from SERVING keeps a pipeline of short requests off the stack: what finishes while it is being started leaves the next one to
the loop that started it.

LIFE: how the connection ends. After a last answer the client's bytes are still read and dropped for a while, because closing with unread
bytes resets the connection and may destroy the answer on its way (RFC 9112, 9.6).

    state      drain     linger    close     lose
    OPEN       DRAINING  LINGERING CLOSING   LOST     in use
    DRAINING   DRAINING  LINGERING CLOSING   LOST     ends after the answer under way
    LINGERING  LINGERING LINGERING CLOSING   LOST     our end is closed; the client's bytes are dropped
    CLOSING    CLOSING             CLOSING   LOST     closes when what was written is sent
    LOST       LOST                          LOST     closed
"""

from __future__ import annotations

from typing import Final

BETWEEN: Final = 0
HEAD: Final = 1
UPGRADE: Final = 2
BODY: Final = 3
OVER: Final = 4

BEGIN: Final = 0
HEAD_READ: Final = 1
UPGRADE_ASKED: Final = 2
MESSAGE_READ: Final = 3
STOP: Final = 4

NOTHING: Final = 0
READY: Final = 1
STARTING: Final = 2
SERVING: Final = 3
GONE: Final = 4

TAKE: Final = 0
START: Final = 1
STARTED: Final = 2
FINISH: Final = 3
LOSE: Final = 4

OPEN: Final = 0
DRAINING: Final = 1
LINGERING: Final = 2
CLOSING: Final = 3
LOST: Final = 4

DRAIN: Final = 0
LINGER: Final = 1
CLOSE: Final = 2
LOSE_LIFE: Final = 3

NO: Final = 255
"""Where a table allows no transition."""
SHIFT: Final = 3
"""A row of a table is 1 << SHIFT entries long."""

ROWS_READING: Final = (
    (HEAD, NO, NO, NO, OVER),
    (NO, BODY, UPGRADE, NO, OVER),
    (NO, NO, NO, BODY, OVER),
    (NO, NO, NO, BETWEEN, OVER),
    (OVER, OVER, OVER, OVER, OVER),
)
ROWS_ANSWERING: Final = (
    (READY, STARTING, NOTHING, NO, GONE),
    (NO, STARTING, NO, NO, GONE),
    (NO, NO, SERVING, NOTHING, GONE),
    (NO, NO, NO, NOTHING, GONE),
    (GONE, GONE, GONE, GONE, GONE),
)
ROWS_LIFE: Final = (
    (DRAINING, LINGERING, CLOSING, LOST),
    (DRAINING, LINGERING, CLOSING, LOST),
    (LINGERING, LINGERING, CLOSING, LOST),
    (CLOSING, NO, CLOSING, LOST),
    (LOST, NO, NO, LOST),
)


class IllegalTransition(Exception):
    """An event came in a state that does not allow it: a bug."""


def table(rows: tuple[tuple[int, ...], ...]) -> bytes:
    """The rows as one string of bytes, one for each state and event: what `after` looks a transition up in."""
    return b"".join(bytes((*row, *(NO,) * ((1 << SHIFT) - len(row)))) for row in rows)


READING: Final = table(ROWS_READING)
ANSWERING: Final = table(ROWS_ANSWERING)
LIFE: Final = table(ROWS_LIFE)


def after(transitions: bytes, state: int, event: int) -> int:
    """The state that an event leads to. Raises IllegalTransition."""
    found = transitions[state << SHIFT | event]
    if found == NO:
        raise IllegalTransition(f"event {event} in state {state}")
    return found
