"""What the process tells the service manager, and what it takes over from it, without a library of systemd's.

A notification is one datagram of `NAME=value` lines to the Unix socket that NOTIFY_SOCKET names (sd_notify(3)); without the variable
nothing is sent. Sockets that systemd listens on for the process come as descriptors from 3 on, counted by LISTEN_FDS, named by
LISTEN_FDNAMES, and meant for LISTEN_PID (sd_listen_fds(3)). WATCHDOG_USEC is the time within which the process must say that it lives
(sd_watchdog_enabled(3)).
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Final

from gateway.core.errors import ConfigError, one_line
from gateway.core.tasks import TaskOwner

log = logging.getLogger("gatehouse")

FIRST_DESCRIPTOR: Final = 3
VARIABLES: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PIDFDID")
"""Meant for this process alone: children that inherited them would speak in its name."""
SEND_SECONDS: Final = 1.0
"""How long a notification may wait for room in the manager's queue."""
STATUS_BYTES: Final = 400


class ServiceManager:
    """Tells systemd how the process is doing. Every method may be called without systemd; it does nothing then.

    environ: the variables that the process was started with. The states follow Type=notify and Type=notify-reload.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._address = _address(environ.get("NOTIFY_SOCKET", ""))
        self._watchdog = _watchdog_seconds(environ)
        self._reloads = 0
        self._is_ready = self._is_stopping = False

    @property
    def there(self) -> bool:
        """Whether somebody listens."""
        return self._address is not None

    def ready(self, status: str) -> None:
        """The start is complete."""
        self._is_ready = True
        self._tell("READY=1", _status(status))

    def reloading(self) -> None:
        """A reload, or an upgrade, begins; `reloaded` must follow for each."""
        self._reloads += 1
        if self._is_ready and not self._is_stopping:
            self._tell("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def reloaded(self, status: str) -> None:
        """A reload has ended, whether the new configuration was taken or refused."""
        self._reloads -= 1
        if self._is_ready and not self._is_stopping and not self._reloads:
            self._tell("READY=1", _status(status))

    def stopping(self, seconds: float) -> None:
        """The end has begun and may take so long."""
        self._is_stopping = True
        self._tell("STOPPING=1", _status("leaving: requests under way finish"), f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")

    def status(self, text: str) -> None:
        """One line for `systemctl status`."""
        self._tell(_status(text))

    def watch(self, owner: TaskOwner, alive: Callable[[], Awaitable[bool]]) -> None:
        """Feeds the watchdog, twice in its time, from the event loop and only while `alive` says so: a loop that hangs is found out."""
        if self._watchdog is None or self._address is None:
            return

        async def feed() -> None:
            if await alive():
                self.feed()
            else:
                log.error("the watchdog is not fed: a worker does not answer")

        owner.every(self._watchdog / 2, feed, name="watchdog")

    def feed(self) -> None:
        """Gives the watchdog its time once more."""
        if self._watchdog is not None:
            self._tell("WATCHDOG=1")

    def _tell(self, *lines: str) -> None:
        if self._address is None:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.settimeout(SEND_SECONDS)
                sock.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            log.warning("the service manager cannot be told %s: %s", lines[0], error.strerror or error)


def take_variables(environ: MutableMapping[str, str]) -> None:
    """Removes what is meant for this process alone from the environment that children inherit."""
    for name in VARIABLES:
        environ.pop(name, None)


def given_sockets(environ: Mapping[str, str], first: int = FIRST_DESCRIPTOR) -> dict[str, socket.socket]:
    """The sockets that systemd passes, by name: `data`, `admin`. No child inherits them. Raises ConfigError and closes them.

    first: the number of the first descriptor, which only a test changes.
    """
    if environ.get("LISTEN_PID") != str(os.getpid()):
        return {}
    count = environ.get("LISTEN_FDS", "")
    if not count.isdigit():
        raise ConfigError(f"LISTEN_FDS is {count!r}; it must be a number")
    names = environ.get("LISTEN_FDNAMES", "").split(":")
    found: dict[str, socket.socket] = {}
    try:
        for number in range(int(count)):
            name = names[number] if number < len(names) else ""
            if name not in ("data", "admin") or name in found:
                raise ConfigError(
                    f"the service manager passes a socket named {name!r}; there may be one named data and one named admin "
                    "(FileDescriptorName= in the socket unit)"
                )
            found[name] = _socket(first + number, name)
    except ConfigError:
        for sock in found.values():
            sock.close()
        raise
    return found


def _socket(descriptor: int, name: str) -> socket.socket:
    os.set_inheritable(descriptor, False)
    try:
        sock = socket.socket(fileno=descriptor)
        is_ours = sock.family in (socket.AF_INET, socket.AF_INET6) and sock.type == socket.SOCK_STREAM
        is_ours = is_ours and bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    except OSError as error:
        raise ConfigError(f"the descriptor {descriptor} for {name} is not a socket: {error.strerror}") from None
    if not is_ours:
        sock.close()
        raise ConfigError(f"the socket named {name} is not a listening TCP socket (use ListenStream=HOST:PORT, without Accept=yes)")
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setblocking(False)
    return sock


def _status(text: str) -> str:
    return f"STATUS={one_line(text)[:STATUS_BYTES]}"


def _address(name: str) -> str | None:
    """A path, or with `@` a name in the kernel's abstract name space."""
    if name.startswith("/"):
        return name
    if name.startswith("@"):
        return "\0" + name[1:]
    if name:
        log.warning("NOTIFY_SOCKET is %r, which is neither a path nor an abstract name: it gets no notifications", name)
    return None


def _watchdog_seconds(environ: Mapping[str, str]) -> float | None:
    microseconds = environ.get("WATCHDOG_USEC", "")
    meant = environ.get("WATCHDOG_PID", str(os.getpid()))
    if not microseconds.isdigit() or int(microseconds) == 0 or meant != str(os.getpid()):
        return None
    return int(microseconds) / 1e6
