"""What the control process hands to the program that takes its place (exec in place), and how: one message in memory, and descriptors.

The process stays: its number, its children (workers, sidecars), its sockets. Everything else of the old program is gone with the exec.
The message is written to an anonymous file (memfd_create(2)), which the new program reads and closes; the descriptors that it names are
the only ones that survive. Both programs may be of different versions: a message that the new one cannot read is found out by the check.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, Final, Literal

import msgspec

from engines.host.handover import HeldEngines
from gateway.app.workers.messages import FiguresHeld
from gateway.core.errors import ConfigError
from gateway.core.secret import Secret, secret_hook
from gateway.limits.lease_messages import BookState
from gateway.routing.mirror_messages import SlotsHeld
from gateway.server.tls import Material

log = logging.getLogger("gatehouse.upgrade")

VARIABLE: Final = "GATEHOUSE_HANDOVER"
"""Number of the descriptor with the message; set by one program for the next alone."""
FORMAT: Final = 1
HELD: Final = frozenset({signal.SIGTERM, signal.SIGINT})
"""Signals that wait while the new program begins: it would die of them before it can handle them."""
IGNORED: Final = (signal.SIGHUP, signal.SIGUSR2)


class HeldWorker(msgspec.Struct, frozen=True, kw_only=True):
    """One worker. feed: the descriptor of our end. unread: bytes of a frame that has begun. asked: number of the last question to it.
    acknowledged: the last change that it has in force. grace: seconds that it may take to end, if it is draining."""

    id: str
    number: int
    pid: int
    feed: int
    state: Literal["ready", "draining"]
    unread: bytes = b""
    asked: int = 0
    acknowledged: int = 0
    grace: float = 0.0
    compiled: bool = False


class Mark(msgspec.Struct, frozen=True):
    """What an operator has set at an endpoint."""

    endpoint: str
    drained: bool = False
    forced: Literal["open", "closed"] | None = None


class HandOver(msgspec.Struct, frozen=True, kw_only=True):
    """Everything. version: of the program that hands over. data, admin: descriptors of the listening sockets. lock: of the state
    directory's lock; -1: the next program, of an earlier version, locks it anew. change: number of the last
    change that workers were sent. engines: the sidecars. limits: the state of the lease book. slots: the workers' shares of the
    engines' slots. figures: what was counted. certificates: of the listeners, by setting. upgrades: how many there were, with this one.
    began: seconds since the epoch. actor: who asked."""

    format: int = FORMAT
    version: str
    data: int
    admin: int
    lock: int = -1
    workers: list[HeldWorker] = []
    change: int = 0
    engines: HeldEngines = HeldEngines()
    marks: list[Mark] = []
    limits: BookState | None = None
    slots: list[SlotsHeld] = []
    figures: FiguresHeld | None = None
    certificates: dict[str, Material] = {}
    upgrades: int = 1
    began: float = 0.0
    actor: str = ""

    def descriptors(self) -> list[int]:
        """Those that must survive the exec."""
        lock = [self.lock] if self.lock >= 0 else []
        return [self.data, self.admin, *lock, *(worker.feed for worker in self.workers), *self.engines.descriptors()]


def encode(message: object) -> bytes:
    return msgspec.msgpack.encode(message, enc_hook=_revealed)


def decode(data: bytes) -> HandOver:
    """Raises ConfigError for what this program cannot read."""
    try:
        found = msgspec.msgpack.decode(data, type=HandOver, dec_hook=secret_hook)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"this version cannot read what the running one hands over ({error}): restart instead") from None
    if found.format != FORMAT:
        raise ConfigError(f"this version reads format {FORMAT} of what is handed over, not {found.format}: restart instead")
    return found


def take(environ: MutableMapping[str, str]) -> HandOver | None:
    """What the program before this one has handed over; None at an ordinary start. Raises ConfigError."""
    given = environ.pop(VARIABLE, "")
    if not given:
        return None
    try:
        with os.fdopen(int(given), "rb") as file:
            found = decode(file.read())
        for descriptor in found.descriptors():
            os.set_inheritable(descriptor, False)
    except (OSError, ValueError) as error:
        raise ConfigError(f"what {VARIABLE} names cannot be read: {error}") from None
    return found


def last_signals(ended: Callable[[], None]) -> None:
    """Between the loop and the new program: a reload or an upgrade is ignored, a signal to end is noted by `ended`. Call in the running
    loop, which would otherwise put the deadly defaults back as it closes."""
    for number in (*IGNORED, *HELD):
        asyncio.get_running_loop().remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN if number in IGNORED else lambda *_: ended())


def become(command: Sequence[str], environ: Mapping[str, str], handed: HandOver, ended: Callable[[], bool] = lambda: False) -> None:
    """Replaces this program. ended: whether it was asked to end meanwhile; the new one hears of it. Returns only by raising OSError."""
    memory = os.memfd_create("gatehouse-handover", 0)
    with os.fdopen(os.dup(memory), "wb") as file:
        file.write(encode(handed))
    os.lseek(memory, 0, os.SEEK_SET)
    for descriptor in handed.descriptors():
        os.set_inheritable(descriptor, True)
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, HELD)
    if ended():
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)  # it waits, as any that comes now, for `handled` in the new program
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command[0], list(command), {**environ, VARIABLE: str(memory)})


def handled() -> None:
    """The new program handles signals now; one that came meanwhile counts."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)


def copies(descriptors: Iterable[int]) -> list[int]:
    """Further descriptors of the same files, which stay open when their owners close theirs."""
    return [os.dup(descriptor) for descriptor in descriptors]


def _revealed(value: Any) -> str:
    if isinstance(value, Secret):
        return value.reveal()
    raise NotImplementedError(f"a {type(value).__name__} is not handed over")
