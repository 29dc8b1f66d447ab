"""Starts processes that write one audit log together: the child of test_audit_writers.py.

Arguments: state directory, durability (as for audit_process.py). It reads orders from standard input, a line each, and answers each with a
line. `start worker FILE` or `start control FILE` forks a process that writes under load, and answers its pid; the request ids that were
acknowledged are appended to FILE. `ended PID` waits for a process and answers how it ended (0: as it was told; -9: killed).

Everything is imported once; a process that is forked is at work within some milliseconds.
"""

import asyncio
import os
import signal
import sys

import uvloop

from tests.integration import audit_process

from gateway.audit.broker import AuditBroker  # isort: skip  # the compiled modules, where they are wanted, first
from gateway.audit.crypto import load_signer
from gateway.audit.recovery import Recovery
from gateway.audit.sinks import local_sink
from gateway.audit.writers import claim
from gateway.core.clock import SystemClock
from gateway.core.specs import AuditSpec

REPLICA = "gw"


async def recover(spec: AuditSpec, state_dir: str) -> None:
    """What the control process does for writers that no process has, only more often."""
    directory = local_sink(spec, state_dir, REPLICA).directory
    recovery = Recovery(directory, REPLICA, lambda writer: local_sink(spec, state_dir, writer), load_signer(state_dir), SystemClock())
    while True:
        await asyncio.to_thread(recovery.look)
        await asyncio.sleep(0.05)


async def write(state_dir: str, durability: str, control: bool, prefix: str) -> None:
    spec, settings = audit_process.settings(durability, every=0.1)
    if control:
        broker = AuditBroker(spec, state_dir, writer=REPLICA, **settings)
    else:
        broker = AuditBroker(spec, state_dir, sink=claim(spec, state_dir, REPLICA), **settings)
    await broker.start()
    recovering = asyncio.ensure_future(recover(spec, state_dir)) if control else None
    await audit_process.load(broker, prefix, connections=4)
    if recovering is not None:
        recovering.cancel()
    await broker.aclose()


def child(state_dir: str, durability: str, kind: str, file: str) -> None:
    os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 1)
    code = 1
    try:
        uvloop.run(write(state_dir, durability, kind == "control", f"{kind}-{os.getpid()}"))
        code = 0
    except Exception as error:  # noqa: BLE001 - whatever it was, the process has failed
        print(f"{kind} {os.getpid()}: {error!r}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def main() -> None:
    state_dir, durability = sys.argv[1:]
    while order := sys.stdin.readline().split():
        if order[0] == "start":
            pid = os.fork()
            if pid == 0:
                os.close(0)
                child(state_dir, durability, order[1], order[2])
            print(pid, flush=True)
        else:
            _, status = os.waitpid(int(order[1]), 0)
            print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    main()
