"""What runs with tickets at a machine that stood still: it ends where no gateway is heard, and not because nothing was heard meanwhile."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.app.joined import ticket_side as module
from gateway.app.joined.ticket_side import ALONE_SECONDS, BEAT_SECONDS, LOOK_SECONDS, TicketSide


class Machine:
    """One with a ticket that runs. `heard`: monotonic seconds at which its gateway was heard last."""

    def __init__(self, folder: Path, now: list[float]) -> None:
        self._now, self.heard = now, now[0]
        self.ended = False
        key = SimpleNamespace(sign=lambda data: b"")
        identity = SimpleNamespace(certificate=folder / "certificate.pem", key_file=folder / "key.pem", key=key)
        caller = SimpleNamespace(url="https://gateway.example", report=None, tickets="", reached=self._reached)
        self.side = TicketSide("gpu-1", identity, ["chat"], [caller], lambda engine: None)  # type: ignore[arg-type, list-item]
        self.side._port = SimpleNamespace(running=1, stop_all=self._end)  # type: ignore[assignment]

    def _reached(self, within: float) -> bool:
        return self._now[0] - self.heard < within

    def _end(self) -> None:
        self.ended = True

    async def looks(self, seconds: float, every: float = LOOK_SECONDS, heard: bool = False) -> None:
        """Looks for so long; heard: its gateway takes each beat."""
        end = self._now[0] + seconds
        while self._now[0] < end:
            self._now[0] += every
            if heard:
                self.heard = self._now[0]
            await self.side._look()


@pytest.fixture
async def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    now = [1000.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    made = Machine(tmp_path, now)
    await made.looks(20.0, heard=True)
    yield made
    made.side._receipts.close()


async def test_what_runs_ends_where_no_gateway_is_heard(machine: Machine) -> None:
    await machine.looks(ALONE_SECONDS - LOOK_SECONDS)
    assert not machine.ended
    await machine.looks(2 * LOOK_SECONDS)
    assert machine.ended


@pytest.mark.parametrize("seconds", [13.0, 40.0])
async def test_what_runs_goes_on_after_a_pause_of_the_machine(machine: Machine, seconds: float) -> None:
    """Its gateways are asked again first."""
    await machine.looks(seconds, every=seconds)
    await machine.looks(BEAT_SECONDS - LOOK_SECONDS)
    assert not machine.ended
    await machine.looks(20.0, heard=True)
    await machine.looks(seconds, every=seconds)
    await machine.looks(5.0, heard=True)
    assert not machine.ended, "a second pause within a minute counts as much"


async def test_it_ends_where_none_answers_after_the_pause_either(machine: Machine) -> None:
    await machine.looks(13.0, every=13.0)
    await machine.looks(BEAT_SECONDS + LOOK_SECONDS)
    assert machine.ended
