"""A process that writes an audit log under load until it is ended: the child of test_audit_kill.py.

Arguments: state directory, durability (`journal`: `write`, where requests rely on the journal from the first moments on), a prefix
for request ids. Prints each request id when its intent is acknowledged. SIGTERM closes the log and exits 0.
"""

import asyncio
import os
import signal
import sys
import time
from typing import Any

import uvloop

from gateway.app.compiled import activate

if os.environ.get("GATEHOUSE_TEST_COMPILED") == "1" and (fault := activate()):
    sys.exit(f"no compiled build: {fault}")

from gateway.audit.broker import STEADY, AuditBroker
from gateway.core.specs import AuditSpec, CheckpointSpec, SinkSpec
from gateway.core.types import IntentRecord, OutcomeRecord

CONNECTIONS = 16


def exchange(broker: AuditBroker, prefix: str, number: int, again: "asyncio.Queue[None]") -> None:
    request_id = f"{prefix}-{number}"
    signal = broker.intent(
        IntentRecord(
            time=time.time(),
            request_id=request_id,
            tenant="acme",
            principal="ci",
            credential="api_key",
            peer="10.0.0.1",
            operation="chat",
            model="demo-chat",
            stream=False,
            bytes=200,
        )
    )

    def acknowledged() -> None:
        if signal.error is None:
            os.write(1, request_id.encode() + b"\n")
            broker.outcome(OutcomeRecord(time=time.time(), request_id=request_id, outcome="ok", status=200, bytes=800))
            again.put_nowait(None)

    signal.add_callback(acknowledged)


def settings(durability: str, every: float = 0.02) -> tuple[AuditSpec, dict[str, Any]]:
    """Small segments and many checkpoints; and what the broker is given besides."""
    journal = durability == "journal"
    sink = SinkSpec(type="file", segment_bytes=40_000)
    spec = AuditSpec(durability="write" if journal else durability, sinks=(sink,), checkpoint=CheckpointSpec(every=every))  # type: ignore[arg-type]
    return spec, {"tick": 0.01, "cpu": (lambda: 0.0) if journal else time.thread_time, "steady": 1 if journal else STEADY}


async def load(broker: AuditBroker, prefix: str, connections: int = CONNECTIONS) -> None:
    """Exchanges, one after the other on each connection, until SIGTERM."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    again: asyncio.Queue[None] = asyncio.Queue()
    for _ in range(connections):
        again.put_nowait(None)
    number = 0
    while not ended.is_set():
        try:
            await asyncio.wait_for(again.get(), 0.05)
        except TimeoutError:
            continue
        number += 1
        exchange(broker, prefix, number, again)


async def main() -> None:
    state_dir, durability, prefix = sys.argv[1:]
    spec, more = settings(durability)
    broker = AuditBroker(spec, state_dir, **more)
    await broker.start()
    await load(broker, prefix)
    await broker.aclose()


if __name__ == "__main__":
    uvloop.run(main())
