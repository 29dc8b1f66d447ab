"""Logins at an LDAP directory (RFC 4511, RFC 4513) over ldap3. Everything here blocks and belongs to a thread.

A login finds the user's entry (by a search with an account of ours, or by a template), binds as the user with the password, and looks for
groups. Names are escaped (RFC 4514, RFC 4515). Referrals are not followed, because they would send passwords wherever a server says. Every
call has a deadline. An empty password is refused before it reaches a server, where it would be an unauthenticated bind that succeeds
(RFC 4513, 5.1.2).
"""

from __future__ import annotations

import logging
import socket
import ssl
import time
from collections import deque
from contextlib import suppress
from importlib import import_module
from math import ceil
from threading import Event, Lock, Thread
from typing import Any, Final
from urllib.parse import urlsplit

from gateway.core.pauses import Pauses
from gateway.core.specs import LdapSpec
from gateway.core.stamps import stamps

log = logging.getLogger("gatehouse.identity")

CONNECT_SECONDS: Final = 2.0
PROMPT_SECONDS: Final = 0.5
"""A server that refuses connections within this time is asked again at the next login. ldap3 avoids a failed server for six seconds, which
spares logins the wait for one that does not answer, but for one that restarts would only make the outage longer."""
LOOK_SECONDS: Final = 0.25
"""Seconds between two checks for a pause of this process."""
IDLE: Final = 4
IDLE_SECONDS: Final = 60.0
MAX_GROUPS: Final = 500
MAX_DEPTH: Final = 8
MAX_VALUE: Final = 256
INVALID, SIZE_LIMIT, SUCCESS = 49, 4, 0
"""Result codes (RFC 4511, 4.1.9)."""
UNABLE: Final = frozenset({1, 2, 3, 8, 13, 51, 52, 80})
"""Codes by which a server says that it cannot check a password now, or not over this connection: operations error, protocol error, time
limit exceeded, TLS or signing required, busy, unavailable, other."""


class Refused(Exception):
    """The directory says no: an unknown user, a wrong password, an account that may not log in. The message is for the log.

    checked: a password was compared, as far as can be told; then that took as long as it takes. stood: seconds for which this process stood
    still meanwhile."""

    stood = 0.0

    def __init__(self, reason: str, *, checked: bool = False) -> None:
        super().__init__(reason)
        self.checked = checked


class Unavailable(Exception):
    """No server answered in time, or not as a directory does."""


class Found:
    """A user who logged in. attributes: texts by name in lower case, the first of each. seconds: until the password was found right."""

    __slots__ = ("attributes", "dn", "groups", "seconds")

    def __init__(self, dn: str, attributes: dict[str, str], groups: tuple[str, ...], seconds: float) -> None:
        self.dn, self.attributes, self.groups, self.seconds = dn, attributes, groups, seconds


class Deadline:
    """The end of one login. ldap3 bounds single reads, in whole seconds; so at the end every connection in use is cut, whatever a server
    still sends, bit by bit. Pauses of this process are no part of it.

    stood: seconds for which this process stood still so far."""

    def __init__(self, seconds: float) -> None:
        self._began = time.monotonic()
        self._end = self._began + seconds
        self.stood = 0.0
        self._pauses, self._lock = Pauses(LOOK_SECONDS, self._began), Lock()
        self._sockets: list[Any] = []
        self._ended = Event()
        Thread(target=self._watch, name="ldap deadline", daemon=True).start()

    @property
    def passed(self) -> float:
        """Seconds since the login began, without those of pauses."""
        return time.monotonic() - self._began - self.stood

    def look(self) -> float:
        """Notices a pause. Seconds that are left."""
        with self._lock:
            now = time.monotonic()
            stood = self._pauses.since(now)
            self.stood += stood
            self._end += stood
            return self._end - now

    def seconds(self) -> int:
        """The whole seconds that are left, rounded up. Raises Unavailable if none are."""
        left = self.look()
        if left <= 0:
            raise Unavailable("no answer in time")
        return ceil(left)

    def bound(self, connection: Any) -> None:
        """Applies the deadline to what is done with a connection from now on."""
        connection.receive_timeout = self.seconds()
        if connection.socket is not None and connection.socket not in self._sockets:
            self._sockets.append(connection.socket)

    def end(self) -> None:
        self._ended.set()
        self._sockets = []

    def _watch(self) -> None:
        while (left := self.look()) > 0:
            if self._ended.wait(min(LOOK_SECONDS, left)):
                return
        self._cut()

    def _cut(self) -> None:
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


class _Verified:
    """Replaces ldap3's TLS settings: the standard library verifies certificate and host name, as it does by default. If the file has
    changed, it is read again for the next connection. Raises OSError if the file holds no certificates at first."""

    def __init__(self, ca: str | None) -> None:
        self._files: tuple[str, ...] = () if ca is None else (ca,)
        self._seen = stamps(self._files)
        self._context = ssl.create_default_context(cafile=ca)

    def _current(self) -> ssl.SSLContext:
        seen = stamps(self._files)
        if seen != self._seen:
            with suppress(OSError):  # it is being written, or damaged: those that were read before count, and the next one tries again
                self._context, self._seen = ssl.create_default_context(cafile=self._files[0]), seen
        return self._context

    def __call__(self, connection: Any, do_handshake: bool = True) -> None:
        plain = connection.socket
        try:
            connection.socket = self._current().wrap_socket(plain, server_hostname=connection.server.host)
        except BaseException:
            plain.close()
            raise


class Directory:
    """One directory. Any thread may call `login`. Life: `close`. Raises OSError, ValueError for TLS settings that cannot be used."""

    def __init__(self, spec: LdapSpec) -> None:
        self._spec = spec
        self._ldap: Any = import_module("ldap3")
        self._exceptions: Any = import_module("ldap3.core.exceptions")
        self._escape_filter: Any = import_module("ldap3.utils.conv").escape_filter_chars
        self._escape_rdn: Any = import_module("ldap3.utils.dn").escape_rdn
        self._prepare: Any = import_module("ldap3.protocol.sasl.sasl").validate_simple_password
        self._tls = self._ldap.Tls(validate=ssl.CERT_REQUIRED)
        self._tls.wrap_socket = _Verified(None if spec.tls is None else spec.tls.ca)
        self._servers = [self._server(url) for url in spec.servers]
        self._idle: deque[tuple[float, Any]] = deque()
        self._lock = Lock()
        wanted = [spec.users.name, *([spec.tenant.attribute] if spec.tenant.attribute else [])]
        self._attributes = sorted(set(wanted))

    def login(self, username: str, password: str) -> Found:
        """Raises Refused, Unavailable. Takes at most the settings' `timeout`; less for an unknown user than for a known one, because
        nothing makes a directory compare a password that nobody has (gateway.identity.pace)."""
        if not username:
            raise Refused("no name")
        self._insist_on_password(password)
        for last in (False, True):
            deadline = Deadline(self._spec.timeout)
            try:
                return self._login(username, password, deadline)
            except Refused as refusal:
                refusal.stood = deadline.stood
                raise
            except (Unavailable, OSError, self._exceptions.LDAPException, ValueError, TypeError, IndexError, KeyError) as error:
                deadline.look()
                if deadline.stood and not last:  # ldap3 gave up a connection or an answer that came while this process stood still
                    continue
                raise error if isinstance(error, Unavailable) else Unavailable(f"{type(error).__name__}") from None  # it may hold names
            finally:
                deadline.end()
        raise AssertionError("unreachable")

    def close(self) -> None:
        while self._idle:
            _close(self._idle.pop()[1])

    # --- inside

    def _insist_on_password(self, password: str) -> None:
        """Raises Refused for what cannot be a password (RFC 4513, 5.1.3 and RFC 4013). ldap3 would notice only at the bind, which would
        reveal which names exist."""
        try:
            self._prepare(password)
        except self._exceptions.LDAPException:
            raise Refused("no password, or one with characters that none can have") from None

    def _login(self, username: str, password: str, deadline: Deadline) -> Found:
        users = self._spec.users
        if users.dn is not None:
            dn = users.dn.replace("{username}", self._escape_rdn(username))
            as_user = self._bound(dn, password, deadline)
            checked = deadline.passed
            try:
                attributes = self._entry(as_user, dn, deadline)
                return Found(dn, attributes, self._groups(as_user, dn, deadline), checked)
            finally:
                _close(as_user)
        searcher = self._searcher(deadline)
        kept = False
        try:
            found = self._search(searcher, users.base or "", users.filter.replace("{username}", self._escape_filter(username)), 2, deadline)
            if len(found) != 1:
                raise Refused("no such user" if not found else "more than one such user")
            dn, attributes = found[0]
            _close(self._bound(dn, password, deadline))
            checked = deadline.passed
            groups = self._groups(searcher, dn, deadline)
            kept = True
            return Found(dn, attributes, groups, checked)
        except Refused:
            kept = True
            raise
        finally:
            self._release(searcher, kept)

    def _entry(self, connection: Any, dn: str, deadline: Deadline) -> dict[str, str]:
        found = self._search(connection, dn, "(objectClass=*)", 1, deadline, scope="BASE")
        return found[0][1] if found else {}

    def _groups(self, connection: Any, dn: str, deadline: Deadline) -> tuple[str, ...]:
        """All groups. Raises Refused if some would be left out, since a deny might name one of them."""
        wanted = self._spec.groups
        if wanted is None:
            return ()
        names: dict[str, None] = {}
        seen: set[str] = set()
        level = [dn]
        for depth in range(MAX_DEPTH + 1 if wanted.nested else 1):
            following = []
            for member in level:
                text = wanted.filter.replace("{dn}", self._escape_filter(member))
                for group, attributes in self._search(connection, wanted.base, text, MAX_GROUPS + 1, deadline, ("cn",)):
                    if group.lower() in seen:
                        continue
                    seen.add(group.lower())
                    following.append(group)
                    if name := attributes.get("cn"):
                        names[name] = None
                if connection.result["result"] == SIZE_LIMIT and len(seen) <= MAX_GROUPS:
                    raise Refused(f"more groups than the directory lists at once ({len(seen)})")
            if len(seen) > MAX_GROUPS:
                raise Refused(f"more than {MAX_GROUPS} groups")
            if depth == MAX_DEPTH and following:
                raise Refused(f"groups in more than {MAX_DEPTH} levels")
            level = following
        return tuple(names)

    def _search(
        self, connection: Any, base: str, filter: str, size: int, deadline: Deadline, attributes: Any = None, scope: str = "SUBTREE"
    ) -> list[tuple[str, dict[str, str]]]:
        deadline.bound(connection)
        connection.search(
            base,
            filter,
            search_scope=scope,
            attributes=list(self._attributes if attributes is None else attributes),
            size_limit=size,
            time_limit=deadline.seconds(),
        )
        if connection.result["result"] not in (SUCCESS, SIZE_LIMIT, 32):  # no such object
            raise Unavailable(f"the search failed: {connection.result['description']}")
        found = []
        for entry in (connection.response or ())[: size + 1]:
            if entry.get("type") == "searchResEntry":
                values = {name.lower(): _first(value) for name, value in entry["raw_attributes"].items()}
                found.append((entry["dn"], {name: value for name, value in values.items() if value}))
        return found

    def _searcher(self, deadline: Deadline) -> Any:
        """A connection of the account that searches: an idle one, or a new one."""
        bind = self._spec.bind
        assert bind is not None
        while True:
            with self._lock:
                if not self._idle:
                    break
                since, connection = self._idle.pop()
            if time.monotonic() - since < IDLE_SECONDS and not connection.closed:
                deadline.bound(connection)
                with suppress(self._exceptions.LDAPException, OSError):
                    connection.search("", "(objectClass=*)", search_scope="BASE", attributes=["1.1"])
                    if connection.result["result"] == SUCCESS:
                        return connection
            _close(connection)
        try:
            return self._bound(bind.dn, bind.password.reveal(), deadline)
        except Refused as refusal:
            raise Unavailable(f"the account that searches cannot log in: {refusal}") from None

    def _release(self, connection: Any, kept: bool) -> None:
        with self._lock:
            if kept and len(self._idle) < IDLE:
                self._idle.append((time.monotonic(), connection))
                return
        _close(connection)

    def _bound(self, dn: str, password: str, deadline: Deadline) -> Any:
        """A connection bound as this entry. Raises Refused for a wrong password or an account that may not log in."""
        last: Exception = Unavailable("no server is configured")
        for server in tuple(self._servers):
            try:
                connection = self._open(server, dn, password, deadline)
            except (self._exceptions.LDAPException, OSError, Unavailable) as error:
                last = error
                continue
            if server is not self._servers[0]:
                self._servers = [server, *(one for one in self._servers if one is not server)]
            result = connection.result
            if result["result"] == SUCCESS:
                return connection
            _close(connection)
            if result["result"] not in UNABLE:
                reason, checked = _reason(result)
                raise Refused(reason, checked=checked)
            last = Unavailable(str(result.get("description")))
        raise Unavailable(f"no server answers ({str(last) if isinstance(last, Unavailable) else type(last).__name__})")

    def _open(self, server: Any, dn: str, password: str, deadline: Deadline) -> Any:
        connection = self._ldap.Connection(
            server,
            user=dn,
            password=password,
            auto_referrals=False,
            read_only=True,
            raise_exceptions=False,
            check_names=False,
            receive_timeout=deadline.seconds(),
            return_empty_attributes=False,
        )
        tried, began = bool(server.candidate_addresses()), time.monotonic()
        try:
            connection.open(read_server_info=False)
            deadline.bound(connection)
            if self._spec.starttls and not server.ssl and not connection.start_tls(read_server_info=False):
                raise Unavailable("the server does not take StartTLS")
            deadline.bound(connection)
            connection.bind(read_server_info=False)
        except BaseException:
            _close(connection)
            if tried and time.monotonic() - began < PROMPT_SECONDS:
                server.reset_availability()
            raise
        return connection

    def _server(self, url: str) -> Any:
        parts = urlsplit(url)
        return self._ldap.Server(
            parts.hostname,
            port=parts.port or (636 if parts.scheme == "ldaps" else 389),
            use_ssl=parts.scheme == "ldaps",
            tls=self._tls,
            get_info=self._ldap.NONE,
            connect_timeout=CONNECT_SECONDS,
            allowed_referral_hosts=[],
        )


def _close(connection: Any) -> None:
    """Closes a connection, whatever state it is in."""
    used = connection.socket
    with suppress(Exception):  # boundary: it is given up either way
        connection.unbind()
    if used is not None:
        used.close()


def _first(values: Any) -> str:
    """The first value as a text; "" when it is not one."""
    value = values[0] if isinstance(values, list) and values else b""
    try:
        text = value.decode("utf-8") if isinstance(value, bytes) else ""
    except UnicodeDecodeError:
        return ""
    return text if len(text) <= MAX_VALUE and text.isprintable() else ""


def _reason(result: dict[str, Any]) -> tuple[str, bool]:
    """Why a bind failed, in words for the log, and whether that was because the password is wrong. Active Directory gives a `data` code
    beside 49 (MS-ADTS, 5.1.1.4)."""
    text = str(result.get("message") or "")
    for code, reason in _DATA.items():
        if f"data {code}" in text:
            return reason, False
    return ("the password is wrong", True) if result["result"] == INVALID else (str(result.get("description")), False)


_DATA: Final = {
    "525": "no such user",
    "530": "not at this time",
    "531": "not at this machine",
    "532": "the password has expired",
    "533": "the account is disabled",
    "701": "the account has expired",
    "773": "the password must be changed",
    "775": "the account is locked",
}
