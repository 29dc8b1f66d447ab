"""The sinks besides the local audit log, to which one process ships the logs of all writers; and the recovery of writers whose
processes have ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from gateway.audit.broker import AuditBroker
from gateway.audit.courier import Courier
from gateway.audit.crypto import load_signer
from gateway.audit.opening import CLOSED, Opener
from gateway.audit.recovery import Recovery
from gateway.audit.signing_keys import KeyWatch
from gateway.audit.sink_positions import SinkPositionsFile
from gateway.audit.sinks import carried, local_sink, named, other_sinks
from gateway.audit.spool import Required, SpoolWatch
from gateway.audit.writer import ChainWriter
from gateway.core.clock import SystemClock
from gateway.core.errors import ConfigError
from gateway.core.plugins import Hold, Lives, SinkRow, Table
from gateway.core.specs import ConfigSpec

Record = Callable[[str, str, dict[str, Any]], None]


def obey(spec: ConfigSpec, audit: AuditBroker, sinks: Table[SinkRow]) -> None:
    """Has a process record nothing while a required sink is too far behind what it has written. Raises ConfigError."""
    state_dir = Path(spec.state_dir)
    required = []
    for _, name, wanted in named(spec.audit):
        settings = carried(wanted, sinks)
        if settings.required:
            required.append(Required(name, SinkPositionsFile(state_dir, name), settings.spool_bytes))
    if required:
        directory = local_sink(spec.audit, spec.state_dir, audit.writer).directory
        audit.obey(SpoolWatch(directory, audit.writer, required))


class Shipping:
    """For the process that stands for the whole replica. Life: `start` before the audit log's, `aclose` after it. Raises ConfigError, with
    the path, for settings that make no sink. record: an audit event of the given name, target and details. opener: for sinks that get
    records opened.
    """

    def __init__(self, spec: ConfigSpec, writer: str, sinks: Table[SinkRow], record: Record, opener: Opener = CLOSED) -> None:
        state_dir = Path(spec.state_dir)
        directory = local_sink(spec.audit, spec.state_dir, writer).directory
        wanted = {name: carried(one, sinks) for _, name, one in named(spec.audit)}
        found = list(other_sinks(spec.audit, spec.state_dir, writer, sinks))
        self._sinks = [(path, sink) for path, _, sink in found]
        self.couriers = [
            Courier(
                name,
                sink,
                directory,
                SinkPositionsFile(state_dir, name),
                history=of.history,
                required=of.required,
                on_fault=self._changed,
                opener=opener if of.records == "opened" else None,
            )
            for name, sink, of in ((name, sink, wanted[name]) for _, name, sink in found)
        ]
        self._record = record
        self._lives = Lives()
        self._hold: Hold | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        """Raises ConfigError when a sink does not start, or its position in the log cannot be written down."""
        self._loop = asyncio.get_running_loop()
        self._hold = await self._lives.hold(self._sinks)
        for (path, _), courier in zip(self._sinks, self.couriers, strict=True):
            try:
                await asyncio.to_thread(courier.prepare)
            except OSError as error:
                raise ConfigError(f"where it has come to in the log cannot be kept: {error.strerror or error}", path=path) from error
        for courier in self.couriers:
            courier.start()

    async def aclose(self) -> None:
        """Gives each sink a few seconds to take what waits, and closes it."""
        self._loop = None
        await asyncio.gather(*(courier.aclose() for courier in self.couriers))
        if self._hold is not None:
            await self._hold.release()

    def _changed(self, name: str, reason: str | None) -> None:
        """Called in a courier's thread."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            event, detail = ("audit.sink_failed", {"reason": reason}) if reason else ("audit.sink_recovered", {})
            loop.call_soon_threadsafe(partial(self._record, event, name, detail))


def recovery(spec: ConfigSpec, writer: str, prepare: Callable[[ChainWriter], None] = lambda chain: None) -> Recovery:
    """What looks after the writers that share a log with `writer`. prepare: see Recovery. Raises ConfigError."""
    directory = local_sink(spec.audit, spec.state_dir, writer).directory
    signer = load_signer(spec.state_dir)
    return Recovery(
        directory,
        writer,
        lambda other: local_sink(spec.audit, spec.state_dir, other),
        signer,
        SystemClock(),
        KeyWatch(spec.state_dir),
        prepare,
    )
