"""Logins at a real directory (slapd), and at servers that are not one."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
import time
from base64 import b64encode
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.core.clock import FakeClock, SystemClock
from gateway.core.errors import AuthenticationError, GatehouseError
from gateway.core.secret import Secret
from gateway.core.specs import LdapSpec
from gateway.core.specs.identity import LdapBindSpec, LdapGroupsSpec, LdapTenantSpec, LdapTlsSpec, LdapUsersSpec
from gateway.core.throttle import PAIR
from gateway.core.types import Peer, Principal
from gateway.identity.directory import Directory, Found, Refused, Unavailable
from gateway.identity.ldap import THREADS, LdapAuthenticator
from gateway.identity.pace import FIRST_SECONDS
from tests.integration.slapd import ADMIN, ADMIN_PASSWORD, BASE, Slapd, directory
from tests.pki import Authority, replaced
from tests.steady import at_most


@pytest.fixture(scope="module")
def slapd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slapd]:
    with directory(tmp_path_factory.mktemp("slapd")) as made:
        yield made


def spec(slapd: Slapd | None, *servers: str, **more: Any) -> LdapSpec:
    settings: dict[str, Any] = {
        "name": "corp",
        "servers": servers or (f"ldap://127.0.0.1:{slapd.port}" if slapd else "",),
        "tenant": LdapTenantSpec(attribute="o"),
        "bind": LdapBindSpec(dn=ADMIN, password=Secret(ADMIN_PASSWORD)),
        "users": LdapUsersSpec(base=f"ou=people,{BASE}"),
        "groups": LdapGroupsSpec(base=f"ou=groups,{BASE}", nested=True),
        "timeout": 60.0,
    }
    return LdapSpec(**{**settings, **more})


def login(settings: LdapSpec, name: str = "alice", password: str = "alice-secret") -> Any:
    made = Directory(settings)
    try:
        return made.login(name, password)
    finally:
        made.close()


def test_a_user_with_the_groups_of_groups(slapd: Slapd) -> None:
    found = login(spec(slapd))
    assert found.dn == f"uid=alice,ou=people,{BASE}" and found.attributes == {"uid": "alice", "o": "acme"}
    assert found.groups == ("engineers", "staff", "loop")
    flat = login(spec(slapd, groups=LdapGroupsSpec(base=f"ou=groups,{BASE}")))
    assert flat.groups == ("engineers",)


def test_whose_groups_cannot_all_be_known_cannot_log_in(slapd: Slapd, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deny might name the group that is missing."""
    settings = spec(slapd, bind=None, users=LdapUsersSpec(dn=f"uid={{username}},ou=people,{BASE}"))
    change = "dn: cn={group},ou=groups,{base}\nchangetype: modify\n{what}: member\nmember: uid=bob,ou=people,{base}\n\n"
    slapd.modify(change.format(group="engineers", base=BASE, what="add"))
    assert login(spec(slapd), "bob", "bob-secret").groups == ("engineers", "staff", "loop")
    slapd.modify(change.format(group="staff", base=BASE, what="add"))
    try:
        with pytest.raises(Refused, match="more groups than the directory lists at once"):  # it lists one at a time for bob
            login(settings, "bob", "bob-secret")
        assert set(login(spec(slapd), "bob", "bob-secret").groups) == {"engineers", "staff", "loop"}
    finally:
        for group in ("engineers", "staff"):
            slapd.modify(change.format(group=group, base=BASE, what="delete"))
    monkeypatch.setattr("gateway.identity.directory.MAX_DEPTH", 3)
    assert login(spec(slapd)).groups == ("engineers", "staff", "loop")
    monkeypatch.setattr("gateway.identity.directory.MAX_DEPTH", 2)
    with pytest.raises(Refused, match="groups in more than 2 levels"):
        login(spec(slapd))


def test_a_direct_bind(slapd: Slapd) -> None:
    settings = spec(slapd, bind=None, users=LdapUsersSpec(dn=f"uid={{username}},ou=people,{BASE}"))
    assert login(settings).groups == ("engineers", "staff", "loop")
    with pytest.raises(Refused):
        login(settings, "alice,ou=people", "alice-secret")


@pytest.mark.parametrize(
    ("name", "password"),
    [
        ("alice", "wrong"),
        ("alice", ""),
        ("alice", "\u00ad"),
        ("alice", "alice\u0001secret"),
        ("", "alice-secret"),
        ("nobody", "alice-secret"),
        ("*", "alice-secret"),
        ("ali*", "alice-secret"),
        ("alice)(uid=*", "alice-secret"),
        ("alice)(|(uid=*", "alice-secret"),
        ("a*b", "alice-secret"),
        ("\\2a", "alice-secret"),
        ("alice\\", "alice-secret"),
        ("ali\u0000ce", "alice-secret"),
        ("(", "alice-secret"),
        ("é" * 200, "alice-secret"),
    ],
)
def test_names_are_names_and_nothing_else(slapd: Slapd, name: str, password: str) -> None:
    with pytest.raises(Refused):
        login(spec(slapd), name, password)


def test_a_name_with_a_star_is_that_user(slapd: Slapd) -> None:
    assert login(spec(slapd), "a*b", "star-secret").attributes["uid"] == "a*b"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_tls_with_a_private_authority(slapd: Slapd, host: str) -> None:
    tls = LdapTlsSpec(ca=str(slapd.ca))
    assert login(spec(slapd, f"ldaps://{host}:{slapd.tls_port}", tls=tls)).groups
    assert login(spec(slapd, f"ldap://{host}:{slapd.port}", starttls=True, tls=tls)).groups


def test_a_certificate_that_nobody_vouches_for_is_refused(slapd: Slapd, tmp_path: Path) -> None:
    for settings in (
        spec(slapd, f"ldaps://127.0.0.1:{slapd.tls_port}"),
        spec(slapd, f"ldap://127.0.0.1:{slapd.port}", starttls=True),
        spec(slapd, f"ldaps://127.0.0.2:{slapd.tls_port}", tls=LdapTlsSpec(ca=str(slapd.ca))),
    ):
        with pytest.raises(Unavailable):
            login(settings)


def test_a_server_that_restarts_is_asked_at_once(slapd: Slapd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.identity.directory.PROMPT_SECONDS", 60.0)  # this process may stand still
    made = Directory(spec(slapd))
    assert made.login("alice", "alice-secret").groups
    slapd.stop()
    try:
        for _ in range(2):
            with pytest.raises(Unavailable):
                made.login("alice", "alice-secret")
    finally:
        slapd.start()
    assert made.login("alice", "alice-secret").groups
    made.close()


def test_a_server_that_does_not_answer_is_left_alone_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[object] = []

    def silent(self: object, address: object, *more: object, **kinds: object) -> None:
        tried.append(address)
        raise TimeoutError

    monkeypatch.setattr("gateway.identity.directory.PROMPT_SECONDS", 0.0)
    monkeypatch.setattr("ldap3.strategy.base.BaseStrategy._open_socket", silent)
    made = Directory(spec(None, "ldap://127.0.0.1:9"))
    for _ in range(4):
        with pytest.raises(Unavailable):
            made.login("alice", "alice-secret")
    assert len(tried) == 1
    monkeypatch.setattr("gateway.identity.directory.PROMPT_SECONDS", 60.0)
    for _ in range(2):
        with pytest.raises(Unavailable):
            made.login("alice", "alice-secret")
    assert len(tried) == 1, "that it was not asked is no answer"


def test_other_authorities_count_from_the_next_connection_on(slapd: Slapd, tmp_path: Path) -> None:
    file, right = tmp_path / "ca.pem", slapd.ca.read_bytes()
    file.write_bytes(right)
    made = Directory(spec(slapd, f"ldaps://localhost:{slapd.tls_port}", tls=LdapTlsSpec(ca=str(file))))
    another = Authority(tmp_path / "another").pem
    try:
        for data in (right, b"", right[: len(right) // 2], another + right):
            replaced(file, data)
            made.close()  # the connections that wait
            assert made.login("alice", "alice-secret").groups, "a damaged file leaves what was read before"
        replaced(file, another)
        made.close()
        with pytest.raises(Unavailable):
            made.login("alice", "alice-secret")
    finally:
        made.close()


def test_the_next_server_is_asked_when_one_is_away(slapd: Slapd) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        away = f"ldap://127.0.0.1:{closed.getsockname()[1]}"
        made = Directory(spec(slapd, away, f"ldap://127.0.0.1:{slapd.port}"))
        assert made.login("alice", "alice-secret").groups
        assert made._servers[0].port == slapd.port, "the one that answered is asked first from now on"
        made.close()
        with pytest.raises(Unavailable):
            login(spec(slapd, away))


def test_a_frozen_server_costs_the_deadline_and_no_more(slapd: Slapd) -> None:
    def taken() -> float:
        began = time.monotonic()
        with pytest.raises(Unavailable):
            login(spec(slapd, timeout=0.5))
        return time.monotonic() - began

    slapd.signal(signal.SIGSTOP)
    try:
        at_most(10.0, taken)
    finally:
        slapd.signal(signal.SIGCONT)


class Pausing(Directory):
    """Its process stands still for `pauses[n]` seconds while it connects for the nth time, of which ldap3 makes what `late` says."""

    def __init__(self, spec: LdapSpec, monkeypatch: pytest.MonkeyPatch, *pauses: float, late: bool = True) -> None:
        super().__init__(spec)
        self.pauses, self.late, self.tries = list(pauses), late, 0
        self.paused = 0.0
        monkeypatch.setattr("gateway.identity.directory.time", SimpleNamespace(monotonic=lambda: 1000.0 + self.paused))

    def _open(self, server: Any, dn: str, password: str, deadline: Any) -> Any:
        self.tries += 1
        if self.pauses:
            self.paused += self.pauses.pop(0)
            if self.late:
                raise OSError("socket connection error: timed out")
        return super()._open(server, dn, password, deadline)


def test_a_pause_of_this_process_costs_no_login(slapd: Slapd, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a connection that took too long, nor the time for what was still to be asked."""
    for late in (True, False):
        made = Pausing(spec(slapd, timeout=30.0), monkeypatch, 40.0, late=late)
        found = made.login("alice", "alice-secret")
        assert found.groups and found.seconds < 30.0 and made.tries == (3 if late else 2)
        made.close()


def test_a_server_that_is_away_is_tried_once_more_after_a_pause_and_never_without(slapd: Slapd, monkeypatch: pytest.MonkeyPatch) -> None:
    for pauses, tries in (((40.0, 40.0, 40.0), 2), ((0.0, 0.0), 1)):
        made = Pausing(spec(slapd), monkeypatch, *pauses)
        with pytest.raises(Unavailable):
            made.login("alice", "alice-secret")
        assert made.tries == tries
        made.close()


def test_a_refusal_says_for_how_long_this_process_stood_still(slapd: Slapd, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Pausing(spec(slapd), monkeypatch, 0.0, 40.0, late=False)
    with pytest.raises(Refused) as caught:
        made.login("alice", "wrong")
    assert caught.value.checked and 39.0 < caught.value.stood <= 40.0
    made.close()


HOSTILE = {
    "nothing": b"",
    "not LDAP": b"HTTP/1.1 200 OK\r\n\r\n",
    "a truncated length": b"\x30\x84\x7f",
    "a huge length": b"\x30\x84\x7f\xff\xff\xff\x02\x01\x01",
    "an endless length": b"\x30\x80" + b"\x00" * 4096,
    "a wrong tag": b"\x30\x0c\x02\x01\x01\x7f\x07\x0a\x01\x00\x04\x00\x04\x00",
    "a success for another message": b"\x30\x0c\x02\x01\x63\x61\x07\x0a\x01\x00\x04\x00\x04\x00",
    "a trickle": b"",
    "garbage": bytes(range(256)) * 64,
}


def trickle(connection: socket.socket) -> None:
    """One byte after the other, each in time, of a message that never ends."""
    connection.sendall(b"\x30\x84\x7f\xff\xff\xff")
    while True:
        connection.sendall(b"\x00")
        time.sleep(0.05)


@pytest.mark.parametrize("case", HOSTILE)
def test_a_server_that_is_no_directory_is_away(case: str) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    ended = threading.Event()

    def serve() -> None:
        while not ended.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                try:
                    connection.recv(4096)
                    if case == "a trickle":
                        trickle(connection)
                    connection.sendall(HOSTILE[case])
                    connection.recv(1)
                except OSError:
                    pass

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        with pytest.raises(Unavailable):
            login(spec(None, f"ldap://127.0.0.1:{listener.getsockname()[1]}", timeout=1.0))
    finally:
        ended.set()
        listener.close()
        thread.join(5)


@contextmanager
def answering(code: int) -> Iterator[str]:
    """The URL of a server that answers every bind with this result code."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                asked = connection.recv(4096)  # SEQUENCE, its length, then the message's number, which the answer repeats
                body = asked[2 : 4 + asked[3]] + b"\x61\x07\x0a\x01" + bytes([code]) + b"\x04\x00\x04\x00"
                connection.sendall(b"\x30" + bytes([len(body)]) + body)
                connection.recv(1)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"ldap://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)


@pytest.mark.parametrize(
    ("code", "reason"), [(8, "strongerAuthRequired"), (13, "confidentialityRequired"), (51, "busy"), (52, "unavailable")]
)
def test_a_server_that_cannot_check_a_password_is_away_and_the_next_one_is_asked(slapd: Slapd, code: int, reason: str) -> None:
    direct: dict[str, Any] = {"bind": None, "users": LdapUsersSpec(dn=f"uid={{username}},ou=people,{BASE}")}
    with answering(code) as url:
        with pytest.raises(Unavailable, match=reason):
            login(spec(None, url, **direct))
        assert login(spec(slapd, url, f"ldap://127.0.0.1:{slapd.port}", **direct)).attributes["uid"] == "alice"
    with answering(53) as url, pytest.raises(Refused):
        login(spec(slapd, url, f"ldap://127.0.0.1:{slapd.port}", **direct))


PEER, OTHER = Peer("192.0.2.1"), Peer("192.0.2.2")


def basic(name: str = "alice", password: str = "alice-secret") -> dict[bytes, bytes]:
    return {b"authorization": b"Basic " + b64encode(f"{name}:{password}".encode())}


async def ask(ldap: LdapAuthenticator, headers: dict[bytes, bytes], peer: Peer = PEER) -> Principal | None:
    found = ldap.authenticate(headers, peer)
    return await found if isinstance(found, Awaitable) else found


async def code(ldap: LdapAuthenticator, headers: dict[bytes, bytes], peer: Peer = PEER) -> str:
    with pytest.raises(GatehouseError) as caught:
        await ask(ldap, headers, peer)
    if isinstance(caught.value, AuthenticationError):
        assert caught.value.message == "The credential is not valid."
    return caught.value.code


async def test_a_login_is_believed_for_a_while(slapd: Slapd) -> None:
    settings = spec(slapd)
    ldap = LdapAuthenticator(settings, Directory(settings), SystemClock())
    principal = await ask(ldap, basic())
    assert principal is not None and (principal.id, principal.tenant, principal.kind) == ("alice", "acme", "ldap")
    assert principal.groups == ("engineers", "staff", "loop")
    slapd.signal(signal.SIGSTOP)
    try:
        assert await ask(ldap, basic()) is principal, "the directory is not asked"
    finally:
        slapd.signal(signal.SIGCONT)
    await ldap.aclose()


async def test_refusals_look_alike_and_are_throttled_without_locking_others_out(slapd: Slapd) -> None:
    settings = spec(slapd, cache=0.0)
    ldap = LdapAuthenticator(settings, Directory(settings), FakeClock())  # what may be guessed does not come back while this runs
    for headers in (basic("bob", "bob-secret"), basic("nobody"), basic("alice", ""), {b"authorization": b"Basic !"}):
        assert await code(ldap, headers) == "invalid_credentials"
    for number in range(5):
        assert await code(ldap, basic("alice", f"guess-{number}")) == "invalid_credentials"
    assert await code(ldap, basic()) == "invalid_credentials", "even the right password, after so many guesses from here"
    assert await ask(ldap, basic(), OTHER) is not None, "but not from elsewhere"
    assert await ask(ldap, basic()) is not None, "and what was right once may be asked about from anywhere"
    await ldap.aclose()


async def test_many_guesses_at_once_are_no_more_than_the_budget(slapd: Slapd) -> None:
    settings = spec(slapd, cache=0.0)
    directory = Counting(settings)
    ldap = LdapAuthenticator(settings, directory, FakeClock())
    spellings = (
        "alice",
        "ALICE",
        " alice ",
        "\uff41lice",
        "ali\u00adce",
        "al\u00efce",
        "alice\u00a0",
        "ali\u0001ce",
    )  # for the directory, most are alice
    guesses = [code(ldap, basic(spellings[number % 8], f"guess-{number}")) for number in range(40)]
    assert set(await asyncio.gather(*guesses)) == {"invalid_credentials"}
    assert directory.logins == PAIR[0]
    await ldap.aclose()


class Counting(Directory):
    """Counts what the directory's server is asked for."""

    def __init__(self, settings: LdapSpec) -> None:
        super().__init__(settings)
        self.logins = 0
        self.work: list[str] = []

    def login(self, username: str, password: str) -> Found:
        self.logins += 1
        return super().login(username, password)

    def _search(self, *arguments: Any, **named: Any) -> Any:
        self.work.append("search")
        return super()._search(*arguments, **named)

    def _open(self, *arguments: Any) -> Any:
        self.work.append("bind")
        return super()._open(*arguments)


def test_nobody_is_asked_about_the_password_of_an_unknown_user(slapd: Slapd) -> None:
    directory = Counting(spec(slapd))
    directory.login("alice", "alice-secret")  # the account that searches is connected
    for name, work, checked in (("alice", ["search", "bind"], True), ("nobody", ["search"], False), ("*", ["search"], False)):
        directory.work.clear()
        with pytest.raises(Refused) as refused:
            directory.login(name, "wrong")
        assert directory.work == work and refused.value.checked is checked
    for name in ("alice", "nobody"):
        directory.work.clear()
        with pytest.raises(Refused) as refused:
            directory.login(name, "no\u0001password")
        assert not directory.work and not refused.value.checked, "what no password can be is refused alike, whoever it is"
    directory.close()


class Timed(Directory):
    """Whose checks of passwords take as long as is said, on a clock that nobody waits for."""

    def __init__(self, settings: LdapSpec, clock: FakeClock, seconds: float) -> None:
        super().__init__(settings)
        self._clock, self._seconds = clock, seconds

    def _open(self, server: Any, dn: str, *arguments: Any) -> Any:
        if dn != ADMIN:
            self._clock.advance(self._seconds)
        return super()._open(server, dn, *arguments)


@pytest.mark.parametrize("seconds", [0.01, 1.5])
async def test_a_wrong_password_and_an_unknown_user_take_the_same_time(slapd: Slapd, seconds: float) -> None:
    """Quick hashes and slow ones; seen from outside, with the first refusals and later ones."""
    settings, clock = spec(slapd), FakeClock()

    async def pause(wanted: float) -> None:
        clock.advance(wanted)

    ldap = LdapAuthenticator(settings, Timed(settings, clock, seconds), clock, pause=pause)
    await ask(ldap, basic("a*b", "star-secret"), OTHER)
    took: dict[str, list[float]] = {"alice": [], "bob": [], "nobody": [], "*": [], "(": []}
    for turn in range(4):
        for name, times in took.items():
            began = clock.monotonic()
            assert await code(ldap, basic(name, f"wrong-{turn}"), Peer(f"192.0.2.{turn}")) == "invalid_credentials"
            times.append(clock.monotonic() - began)
    assert {round(each, 6) for times in took.values() for each in times} == {max(seconds, FIRST_SECONDS)}
    await ldap.aclose()


async def test_refusals_that_wait_hold_no_thread(slapd: Slapd) -> None:
    waiting = asyncio.Event()

    async def pause(_: float) -> None:
        await waiting.wait()

    settings = spec(slapd)
    ldap = LdapAuthenticator(settings, Directory(settings), SystemClock(), pause=pause)
    refused = [asyncio.create_task(code(ldap, basic(f"nobody{number}", "x"), Peer(f"192.0.2.{number}"))) for number in range(3 * THREADS)]
    while not ldap._flights:
        await asyncio.sleep(0)
    assert await ask(ldap, basic(), OTHER) is not None
    waiting.set()
    assert set(await asyncio.gather(*refused)) == {"invalid_credentials"}
    await ldap.aclose()


async def test_a_new_password_ends_the_login_with_the_old_one(slapd: Slapd) -> None:
    settings = spec(slapd)
    ldap = LdapAuthenticator(settings, Directory(settings), SystemClock())
    star = f"dn: uid=a\\2Ab,ou=people,{BASE}\nchangetype: modify\nreplace: userPassword\nuserPassword: "
    assert await ask(ldap, basic("a*b", "star-secret")) is not None
    slapd.modify(star + "new-secret\n")
    try:
        assert await ask(ldap, basic("a*b", "new-secret")) is not None
        assert await code(ldap, basic("a*b", "star-secret")) == "invalid_credentials"
    finally:
        slapd.modify(star + "star-secret\n")
    await ldap.aclose()


async def test_a_directory_that_is_away_says_so(slapd: Slapd, tmp_path: Path) -> None:
    settings = spec(slapd, "ldap://127.0.0.1:1", timeout=0.5)
    ldap = LdapAuthenticator(settings, Directory(settings), SystemClock())
    assert await code(ldap, basic()) == "directory_unavailable"
    assert await ask(ldap, {b"authorization": b"Bearer x"}) is None
    await ldap.aclose()
