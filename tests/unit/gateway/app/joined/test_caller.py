"""Where a machine may join. What it says there is in tests/e2e/test_joined_machines.py."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import httpx
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gateway.app.joined import caller as module
from gateway.app.joined.caller import UNKNOWN_TIMES, Caller, Refused, checked_url
from gateway.core.errors import ConfigError
from gateway.core.joining import Beat, Heard, TicketPort
from tests.waiting import SECONDS


def test_admin_listeners() -> None:
    assert checked_url("https://gateway.example:8081/") == "https://gateway.example:8081"
    for text in ("http://127.0.0.1:8081", "http://[::1]:8081", "http://localhost:8081"):
        assert checked_url(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "http://10.1.2.3:8081",
        "http://127.0.0.1.example:8081",
        "gateway:8081",
        "https://u@h:1",
        "https://h/x",
        "https://h?x=1",
        "ftp://h",
        "",
    ],
)
def test_a_token_goes_to_no_other(text: str) -> None:
    with pytest.raises(ConfigError):
        checked_url(text)


NOW = 1_800_000_000.0


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's clock stands still: how long an answer takes is no difference of clocks."""
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=time.monotonic, time=lambda: NOW))


@pytest.mark.usefixtures("still")
async def test_a_machine_without_tickets_says_when_its_clock_is_hours_off(caplog: pytest.LogCaptureFixture) -> None:
    behind = iter([0.0, 60.0, 5 * 3600.0, 5 * 3600.0, 0.0])

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=msgspec.json.encode(Heard(every=0.5, now=NOW + next(behind))))

    caller = Caller("http://127.0.0.1:1", "gpu-1", Ed25519PrivateKey.generate(), True)
    caller._client = httpx.AsyncClient(base_url=caller.url, transport=httpx.MockTransport(answer))
    for _ in range(5):
        assert await caller.beat(lambda session, sequence: Beat(session=session, sequence=sequence, address="127.0.0.1:8443")) is not None
    told = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(told) == 1 and "clock is 18000 s behind: mend it" in told[0], told
    await caller.aclose()


@pytest.mark.usefixtures("still")
async def test_a_machine_whose_clock_is_wrong_offers_no_port_for_tickets(caplog: pytest.LogCaptureFixture) -> None:
    said: list[bool] = []
    wrong = [0.0, 30.0, 30.0, -30.0, 0.0, 0.0]
    asked = iter(wrong)

    def answer(request: httpx.Request) -> httpx.Response:
        said.append(msgspec.json.decode(request.content, type=Beat).tickets is not None)
        return httpx.Response(200, content=msgspec.json.encode(Heard(every=0.5, tickets="a key", now=NOW - next(asked))))

    caller = Caller("http://127.0.0.1:1", "gpu-1", Ed25519PrivateKey.generate(), True)
    caller._client = httpx.AsyncClient(base_url=caller.url, transport=httpx.MockTransport(answer))
    port = TicketPort(address="127.0.0.1:8444", boot="0" * 32)
    for _ in wrong:
        heard = await caller.beat(
            lambda session, sequence: Beat(session=session, sequence=sequence, address="127.0.0.1:8443", tickets=port)
        )
        assert heard is not None and caller.tickets == "a key", "those that were given before are verified"
    assert said == [True, True, False, False, False, True]
    assert [record.message.partition("clock is ")[2][:12] for record in caplog.records if record.levelname == "WARNING"] == ["30 s ahead: "]
    await caller.aclose()


@pytest.mark.parametrize(("pause", "asked"), [(0.0, None), (60.0, UNKNOWN_TIMES)])
async def test_a_machine_ends_only_where_it_is_unknown_again_and_again(
    pause: float, asked: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another replica may have taken it in just now; a pause of the machine makes that no longer ago."""
    now = [1000.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0], time=time.time))
    caller = Caller("http://127.0.0.1:1", "gpu-1", Ed25519PrivateKey.generate(), True)

    def refused(request: httpx.Request) -> httpx.Response:
        return httpx.Response(404, json={"code": "unknown_machine", "detail": "there is no such machine"})

    caller._client = httpx.AsyncClient(base_url=caller.url, transport=httpx.MockTransport(refused))

    async def beats(count: int) -> int | None:
        """At which of so many it ended; None: at none."""
        for number in range(1, count + 1):
            try:
                assert await caller.beat(lambda session, sequence: Beat(session=session, sequence=sequence, address="127.0.0.1:1")) is None
            except Refused:
                return number
            now[0] += pause if number == 1 else 0.1
        return None

    assert await beats(UNKNOWN_TIMES + 2) == asked
    await caller.aclose()


@pytest.mark.parametrize(("endless", "whole"), [(b"x" * 65536, module.WHOLE), (b"x", 0.01)])
async def test_an_answer_without_an_end_is_given_up(
    endless: bytes, whole: float, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway that somebody has taken over fills no machine's memory, and holds up no machine."""
    monkeypatch.setattr(module, "WHOLE", whole)
    sent = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000000\r\n\r\n")
        try:
            while True:
                writer.write(endless)
                await writer.drain()
                sent += len(endless)
                await asyncio.sleep(0 if len(endless) > 1 else 0.02)
        except OSError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    caller = Caller(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "gpu-1", Ed25519PrivateKey.generate(), True)
    caller.every = 30.0  # no step of it is late where this process stands still
    async with server:
        async with asyncio.timeout(SECONDS):
            assert await caller.beat(lambda session, sequence: Beat(session=session, sequence=sequence, address="127.0.0.1:1")) is None
        assert sent < 4 * module.MAX_ANSWER and "cannot be reached: its answer" in caplog.text
        await caller.aclose()
