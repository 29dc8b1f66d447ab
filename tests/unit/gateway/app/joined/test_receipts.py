"""Receipts on their way: told until they are taken, over restarts, and no more."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import msgspec
import pytest

from gateway.app.joined import receipts
from gateway.app.joined.receipts import Receipts
from gateway.core.tickets import RECEIPT, TICKET, Receipt, Report, Taken, Ticket, opened, sealed
from tests.unit.gateway.core.test_tickets import KEY, ticket

LATER = 4e9


class Gateway:
    """Takes the receipts of some tickets."""

    def __init__(self, takes: bool = True) -> None:
        self.takes, self.there = takes, True
        self.begun: list[str] = []
        self.receipts: list[str] = []
        self.messages = 0
        self.heard = asyncio.Event()

    async def __call__(self, body: bytes) -> bytes | None:
        if not self.there:
            return None
        told = msgspec.json.decode(body, type=Report).told
        assert len(told) <= 8
        self.messages += 1
        self.heard.set()
        ids = [opened(TICKET, one.ticket, Ticket)[0].id for one in told]
        self.begun += [id for id, one in zip(ids, told, strict=True) if not one.receipt]
        self.receipts += [id for id, one in zip(ids, told, strict=True) if one.receipt]
        return msgspec.json.encode(Taken(ids=tuple(ids) if self.takes else ()))


def made(number: int, expires: float = LATER) -> tuple[Ticket, str, str]:
    own = ticket(id=f"{number:032x}", expires=expires)
    receipt = Receipt(ticket=own.id, machine="gpu-1", outcome="ok", status=200)
    return own, sealed(TICKET, own, KEY.sign), sealed(RECEIPT, receipt, KEY.sign)


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


async def test_a_receipt_is_told_to_all_until_one_takes_it_more_and_more_seldom(tmp_path: Path) -> None:
    issuer, other, clock = Gateway(), Gateway(takes=False), Time()
    issuer.there = False
    kept = Receipts(tmp_path / "r", [issuer, other], clock)
    kept.add(*made(1))
    told = []
    for _ in range(200):
        assert not await kept.flush()
        told.append(len(other.receipts))
        clock.now += 1.0
    assert [told.index(count) for count in range(1, 9)] == [0, 1, 3, 7, 15, 31, 63, 127], "after 1, 2, 4 ... 64 seconds"
    assert told[-1] == 9 and len(kept) == 1
    issuer.there = True
    kept.reached(other)
    assert not await kept.flush(), "that one was not silent"
    kept.reached(issuer)
    assert await kept.flush() and len(kept) == 0
    assert (tmp_path / "r").stat().st_size == 0
    kept.close()


async def test_receipts_outlive_the_process_and_a_torn_line(tmp_path: Path) -> None:
    path, away = tmp_path / "r", Gateway()
    away.there = False
    kept = Receipts(path, [away])
    for number in range(20):
        kept.add(*made(number))
    kept._take(msgspec.json.encode(Taken(ids=(f"{3:032x}", f"{4:032x}"))), {f"{3:032x}"})
    kept.close()
    with path.open("ab") as file:
        file.write(b'{"ticket":"ght_')
    gateway = Gateway()
    again = Receipts(path, [gateway])
    assert len(again) == 19
    assert await again.flush()
    assert sorted(gateway.receipts) == [f"{number:032x}" for number in range(20) if number != 3]
    again.close()
    assert len(Receipts(path, [])) == 0


async def test_a_receipt_that_follows_a_torn_line_outlives_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r"
    path.write_bytes(b'{"ticket":"ght_')  # a kill
    kept = Receipts(path, [])
    kept.add(*made(1))
    with monkeypatch.context() as full:
        write = os.write
        full.setattr(os, "write", lambda file, data: write(file, data[:7]))  # a disk that becomes full
        with pytest.raises(OSError):
            kept.add(*made(2))
    kept.add(*made(3))
    kept.close()
    again = Receipts(path, [])
    assert sorted(again._waiting) == [f"{number:032x}" for number in (1, 3)]
    again.close()


async def test_what_has_begun_is_told_once_unless_it_is_over_by_then(tmp_path: Path) -> None:
    gateway = Gateway()
    kept = Receipts(tmp_path / "r", [gateway])
    telling = asyncio.ensure_future(kept.tell())
    kept.begun(*made(1)[:2])
    kept.begun(*made(2)[:2])
    kept.add(*made(2))
    async with asyncio.timeout(60):
        while not gateway.begun:
            await asyncio.sleep(0)
        kept.add(*made(1))
        while len(kept):
            await asyncio.sleep(0)
    telling.cancel()
    assert gateway.begun == [made(1)[0].id], "the second one's receipt says that it has begun"
    assert sorted(gateway.receipts) == [made(1)[0].id, made(2)[0].id]
    kept.close()


async def test_what_has_begun_is_told_at_once_before_it_would_be_charged_and_again_if_nobody_heard(tmp_path: Path) -> None:
    gateway, clock = Gateway(), Time()
    gateway.there = False
    kept = Receipts(tmp_path / "r", [gateway], clock)
    kept.begun(*made(1, expires=time.time() + 1)[:2])
    await kept.flush()
    gateway.there = True
    await kept.flush()
    assert gateway.begun == []
    clock.now += 1.0
    await kept.flush()
    await kept.flush()
    assert gateway.begun == [made(1)[0].id]
    kept.close()


async def test_a_gateway_that_is_away_is_tried_once_however_much_waits(tmp_path: Path) -> None:
    asked = 0

    async def away(body: bytes) -> bytes | None:
        nonlocal asked
        asked += 1
        return None

    kept = Receipts(tmp_path / "r", [away])
    for number in range(100):
        kept.add(*made(number))
    assert not await kept.flush() and asked == 1
    kept.close()


async def test_what_no_gateway_takes_is_dropped_long_after_its_end(tmp_path: Path) -> None:
    kept = Receipts(tmp_path / "r", [Gateway(takes=False)])
    kept.add(*made(1, expires=100.0))
    assert await kept.flush() and len(kept) == 0
    kept.close()


async def test_the_file_is_written_anew_when_it_is_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r"
    kept = Receipts(path, [Gateway(takes=False)])
    monkeypatch.setattr(receipts, "COMPACT", 1000)
    for number in range(10):
        kept.add(*made(number))
    size = path.stat().st_size
    gone = [f"{number:032x}" for number in range(8)]
    kept._take(msgspec.json.encode(Taken(ids=tuple(gone))), gone)
    assert path.stat().st_size < size / 2
    kept.add(*made(11))
    kept.close()
    assert len(Receipts(path, [])) == 3


async def telling(kept: Receipts, gateway: Gateway, count: int) -> None:
    """Until the gateway has so many receipts."""
    task = asyncio.create_task(kept.tell())
    try:
        async with asyncio.timeout(60):
            while len(gateway.receipts) < count:
                await gateway.heard.wait()
                gateway.heard.clear()
    finally:
        task.cancel()
        kept.close()


async def test_receipts_of_requests_that_run_side_by_side_are_told_in_one_message(tmp_path: Path) -> None:
    gateway = Gateway()
    kept = Receipts(tmp_path / "r", [gateway], gather=1000)
    for number in (1, 2):
        kept.begun(*made(number)[:2])
    kept.add(*made(1))
    asyncio.get_running_loop().call_later(0.02, kept.add, *made(2))
    await telling(kept, gateway, 2)
    assert gateway.messages == 1


async def test_a_receipt_waits_for_no_other_where_nothing_else_runs_or_a_message_is_full(tmp_path: Path) -> None:
    alone, full = Gateway(), Gateway()
    kept = Receipts(tmp_path / "alone", [alone], gather=1000)
    kept.begun(*made(1)[:2])
    kept.add(*made(1))
    await telling(kept, alone, 1)
    kept = Receipts(tmp_path / "full", [full], Time(), gather=1000)  # however slowly these are made, what has begun is not due yet
    for number in range(9):
        kept.begun(*made(number)[:2])
    for number in range(8):
        kept.add(*made(number))
    await telling(kept, full, 8)
    assert (alone.messages, full.messages, full.begun) == (1, 1, [])


async def test_a_receipt_does_not_wait_for_ever_for_a_request_that_runs_on(tmp_path: Path) -> None:
    gateway = Gateway()
    kept = Receipts(tmp_path / "r", [gateway], gather=0.01)
    kept.begun(*made(1)[:2])
    kept.begun(*made(2)[:2])
    kept.add(*made(1))
    await telling(kept, gateway, 1)
    assert gateway.receipts == [made(1)[0].id]
