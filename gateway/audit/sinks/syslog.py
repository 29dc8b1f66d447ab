"""Syslog over TLS (RFC 5425), TCP with octet counting (RFC 6587) and UDP (RFC 5426), in the format of RFC 5424.

Syslog confirms nothing. Over TCP and TLS a batch counts as accepted once the other side's kernel has acknowledged all of it; what its
process may not have read comes again after a lost connection (gateway.audit.courier). A datagram is gone when it is sent.
"""

from __future__ import annotations

import array
import fcntl
import os
import select
import socket
import ssl
import termios
import time
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from gateway.audit.formats import rfc3339
from gateway.audit.sinks.contract import Batch, Unacceptable
from gateway.core.addresses import quotable
from gateway.core.errors import ConfigError
from gateway.core.plugins import SinkContext
from gateway.core.specs.sinks import SyslogSinkSpec
from gateway.transport.address import tls_context

LARGEST_RECEIVE_BUFFER: Final = 6 * 1024 * 1024
"""Bytes that a Linux kernel keeps at most for a process that does not read (net.ipv4.tcp_rmem)."""
LARGEST_DATAGRAM: Final = 65_000
PORTS: Final = {"tls": 6514, "tcp": 514, "udp": 514}
NOTICE: Final = 5
SEVERITIES: Final = {"denied": 4, "failed": 3, "timeout": 4, "unknown": 4, "cancelled": 6, "ok": 6}
"""Severities (3 error, 4 warning, 6 informational) by the result of an outcome."""
REQUESTS: Final = ("intent", "outcome")
LATEST: Final = 253402300799.0
"""Seconds since the epoch: the end of the year 9999."""
ROUND: Final = 0.999999
"""What is later in its second may be the next one, in whole microseconds."""
_POLL: Final = 0.002


class Head(msgspec.Struct):
    """What a line's syslog header needs of it."""

    seq: int = 0
    kind: str = ""
    time: float = 0.0
    outcome: str = ""
    event: str = ""


decode_head: Final = msgspec.json.Decoder(Head).decode


class SyslogSink:
    unsure_bytes = LARGEST_RECEIVE_BUFFER

    def __init__(self, settings: SyslogSinkSpec) -> None:
        url = urlsplit(settings.address)
        if url.scheme not in PORTS or not url.hostname or url.path not in ("", "/") or url.query or url.username:
            raise ConfigError(
                f"{quotable(settings.address)!r} is no address of a syslog server: write tls://HOST:PORT, tcp://HOST:PORT or udp://HOST:PORT"
            )
        self._way, self._host, self._port = url.scheme, url.hostname, url.port or PORTS[url.scheme]
        if settings.tls is not None and self._way != "tls":
            raise ConfigError("there are settings for TLS, but the address begins with " + url.scheme)
        if self._way == "tls":
            tls_context(settings.tls, "")  # its files are looked at now
        self._settings = settings
        source = settings.host or socket.gethostname() or "-"
        self._who = f"{source} gatehouse {os.getpid()} ".encode("ascii", "replace")
        self._second, self._begins = -1.0, b""
        self._socket: socket.socket | None = None
        self._closed = False

    # --- the contract

    def write(self, batch: Batch) -> None:
        messages = [self._message(batch.writer, line) for line in batch.splitlines()]
        deadline = time.monotonic() + self._settings.timeout
        try:
            connection = self._connected(deadline)
            if self._way == "udp":
                self._send_datagrams(connection, messages)
            else:
                self._send(connection, b"".join(b"%d %b" % (len(message), message) for message in messages), deadline)
        except (OSError, ValueError) as error:
            self._let_go()
            raise OSError(f"{self._settings.address}: {error or type(error).__name__}") from error

    def probe(self) -> None:
        try:
            self._connected(time.monotonic() + self._settings.timeout)
        except OSError as error:
            self._let_go()
            raise OSError(f"{self._settings.address}: {error or type(error).__name__}") from error

    def finish(self) -> bool:
        connection = self._socket
        if connection is None or self._way == "udp":
            self._let_go()
            return True
        try:
            connection.settimeout(self._settings.timeout)
            if isinstance(connection, ssl.SSLSocket):
                connection.unwrap()  # its answer comes after all that it read
                return True
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(4096):
                pass
        except (OSError, ValueError):
            return False
        finally:
            self._let_go()
        return True

    async def aclose(self) -> None:
        self._closed = True
        self._let_go()

    # --- the connection

    def _connected(self, deadline: float) -> socket.socket:
        if self._closed:
            raise OSError(9, "it is closed")
        if self._socket is not None:
            if self._way == "udp" or not _ended(self._socket):
                return self._socket
            raise OSError(104, "the other side has closed the connection")
        seconds = max(0.001, deadline - time.monotonic())
        if self._way == "udp":
            self._socket = self._datagram_socket()
        else:
            self._socket = made = socket.create_connection((self._host, self._port), timeout=seconds)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if self._way == "tls":
                context = tls_context(self._settings.tls, "")
                name = (self._settings.tls.server_name if self._settings.tls else None) or self._host
                self._socket = context.wrap_socket(made, server_hostname=name)
        return self._socket

    def _datagram_socket(self) -> socket.socket:
        family, kind, protocol, _, address = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_DGRAM)[0]
        made = socket.socket(family, kind, protocol)
        made.connect(address)
        return made

    def _let_go(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, connection: socket.socket, data: bytes, deadline: float) -> None:
        """Raises OSError unless the other side's kernel has acknowledged everything by the deadline."""
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        connection.sendall(data)
        pause = _POLL
        while _unacknowledged(connection):
            if time.monotonic() > deadline:
                raise TimeoutError(f"it has not taken a batch within {self._settings.timeout:g} s")
            time.sleep(pause)
            pause = min(0.1, 2 * pause)

    def _send_datagrams(self, connection: socket.socket, messages: list[bytes]) -> None:
        for message in messages:
            if len(message) > LARGEST_DATAGRAM:
                raise Unacceptable(f"it has {len(message)} bytes, a datagram at most {LARGEST_DATAGRAM}")
        for message in messages:
            connection.send(message)

    # --- the format

    def _message(self, writer: str, line: bytes) -> bytes:
        """RFC 5424. The line is printable ASCII, so it can neither end the message nor forge another one."""
        try:
            head = decode_head(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            head = Head()
            line = b"".join(b"%c" % byte if 32 <= byte < 127 else b"?" for byte in line)  # somebody has changed the log: `verify` tells
        severity = SEVERITIES.get(head.outcome, 6) if head.kind in REQUESTS else NOTICE
        message_id = (head.event or head.kind or "-")[:32]
        message_id = message_id if message_id.isascii() and message_id.isprintable() and " " not in message_id else "-"
        return b'<%d>1 %b %b%b [gatehouse@%d writer="%b" seq="%d"] %b' % (
            self._settings.facility * 8 + severity,
            self._moment(head.time),
            self._who,
            message_id.encode(),
            self._settings.enterprise,
            writer.encode(),
            head.seq,
            line,
        )

    def _moment(self, seconds: float) -> bytes:
        """The time in UTC with microseconds. The second is remembered, as many records in a row have the same."""
        if self._second <= seconds < self._second + ROUND:
            return b"%b.%06dZ" % (self._begins, round((seconds - self._second) * 1_000_000))
        found = rfc3339(seconds)
        if 0.0 <= seconds < LATEST and seconds - int(seconds) < ROUND:
            self._second, self._begins = float(int(seconds)), found[: len("2026-01-01T00:00:00")].encode()
        return found.encode()


def _unacknowledged(connection: socket.socket) -> int:
    """Bytes that the other side's kernel has not acknowledged (SIOCOUTQ)."""
    found = array.array("i", [0])
    fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, found, True)
    return found[0]


def _ended(connection: socket.socket) -> bool:
    """Whether the other side has closed or reset the connection: a syslog server says nothing else."""
    readable, _, _ = select.select([connection], [], [], 0)
    if not readable:
        return False
    if isinstance(connection, ssl.SSLSocket):  # a session ticket may be waiting
        connection.settimeout(0.0)
        try:
            return not connection.recv(4096)
        except (ssl.SSLWantReadError, BlockingIOError):
            return False
    return not connection.recv(4096)


def build(settings: SyslogSinkSpec, context: SinkContext) -> Any:
    return SyslogSink(settings)
