"""What a machine says of itself in each beat."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from engines.host.memory import host_free
from engines.host.supervisor import Supervisor
from gateway.core.joining import MAX_ENGINES, Beat, EngineReport, Load, Room, TicketPort

_STATES: Final = frozenset(("starting", "loading", "ready", "draining", "stopped", "failed"))
MAX_COUNT: Final = 1_000_000
MAX_TEXT: Final = 256


class Reporter:
    """address: ADDRESS:PORT where the engines are reached."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self.address = ""
        self.leaving = self.renew = False
        self.tickets: TicketPort | None = None
        self.room: Callable[[], Room | None] = lambda: None
        """What a gateway may place here."""

    def beat(self, session: str, sequence: int) -> Beat:
        engines = tuple(_engine(view) for view in self._supervisor.engines()[:MAX_ENGINES])
        return Beat(
            session=session,
            sequence=sequence,
            address=self.address,
            leaving=self.leaving,
            renew=self.renew,
            engines=engines,
            load=_load(),
            tickets=self.tickets,
            room=self.room(),
        )


def _engine(view: dict[str, Any]) -> EngineReport:
    """A sidecar as its supervisor sees it. Files are named without their folders: where they are is this machine's affair."""
    return EngineReport(
        name=view["name"],
        runtime=_text(view.get("runtime")),
        model=Path(_text(view.get("model"))).name,
        sha256=_text(view.get("sha256")),
        device=_text(view.get("device")),
        state=view["state"] if view["state"] in _STATES else "starting",
        reason=_text(view.get("reason")),
        slots=int(_number(view.get("slots"), MAX_COUNT)),
        in_use=int(_number(view.get("in_use"), MAX_COUNT)),
        queue=int(_number(view.get("queue"), MAX_COUNT)),
        kv_used=_number(view.get("kv_used"), 1.0),
        tokens_per_second=_number(view.get("tokens_per_second"), 1e6),
        vram_bytes=int(_number(view.get("vram_bytes"), 2**50)),
    )


def _number(value: Any, most: float) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        return 0.0
    return min(max(float(value), 0.0), most)


def _text(value: Any) -> str:
    return str(value)[:MAX_TEXT] if value is not None else ""


def _load() -> Load:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Load(cpus=os.cpu_count() or 0, load=os.getloadavg()[0], memory_bytes=total, memory_free_bytes=host_free() or 0)
