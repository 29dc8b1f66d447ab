"""What stands beside the local audit log: the other sinks, built at the start, fed while the process lives, closed last; and the recovery
of writers whose processes have ended."""

from __future__ import annotations

from gateway.audit.broker import AuditBroker
from gateway.audit.crypto import load_signer
from gateway.audit.recovery import Recovery
from gateway.audit.shipping import Shipper
from gateway.audit.sinks import local_sink, other_sinks
from gateway.core.clock import SystemClock
from gateway.core.plugins import Hold, Lives, SinkRow, Table
from gateway.core.specs import ConfigSpec


class Shipping:
    """Life: `start` before the audit log's, `aclose` after it. Raises ConfigError, with the path, for settings that make no sink."""

    def __init__(self, spec: ConfigSpec, audit: AuditBroker, sinks: Table[SinkRow]) -> None:
        found = list(other_sinks(spec.audit, spec.state_dir, audit.writer, sinks))
        self._sinks = [(path, sink) for path, _, sink in found]
        self.shippers = [Shipper(name, sink, timeout=spec.audit.timeout) for _, name, sink in found]
        self._lives = Lives()
        self._hold: Hold | None = None
        audit.follow(*(shipper.take for shipper in self.shippers))

    async def start(self) -> None:
        """Raises ConfigError when a sink does not start."""
        self._hold = await self._lives.hold(self._sinks)
        for shipper in self.shippers:
            shipper.start()

    async def aclose(self) -> None:
        """Gives each sink a few seconds to take what waits, and closes it."""
        for shipper in self.shippers:
            await shipper.aclose()
        if self._hold is not None:
            await self._hold.release()


def recovery(spec: ConfigSpec, writer: str) -> Recovery:
    """What looks after the writers that share a log with `writer`. Raises ConfigError."""
    directory = local_sink(spec.audit, spec.state_dir, writer).directory
    return Recovery(
        directory, writer, lambda other: local_sink(spec.audit, spec.state_dir, other), load_signer(spec.state_dir), SystemClock()
    )
