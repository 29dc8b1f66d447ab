"""What encrypting texts costs a request: CPU of the event loop and of the writer's thread, without sockets, the modes in turns.

    python -m loadtests.audit.texts --requests 4000 --rounds 20

Each request hands in an intent and an outcome, 32 at a time, with `durability: async`. Modes: `off` (no encryption configured), `idle`
(configured, this request's text is not kept), `texts` (the prompt and the answer are kept, `--bytes` each), `record` (whole records are
encrypted, no text is kept), `privacy` (peer and user hashed). Prints, for each, the median and the smallest CPU microseconds a request of
the loop's thread and of all threads, and what is above `off`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from typing import Any

import msgspec

from gateway.audit.broker import FLUSH_DELAY, AuditBroker
from gateway.audit.keyring import DataKey, KeyRing
from gateway.audit.opening import CLOSED
from gateway.audit.sealing import Pending
from gateway.core.secret import Secret
from gateway.core.specs import AuditSpec
from gateway.core.specs.audit import EncryptionSpec, MasterSpec, PrivacySpec
from gateway.core.tasks import TaskOwner
from gateway.core.types import IntentRecord, OutcomeRecord
from gateway.core.vault import DataKeyGiven

AT_ONCE = 32
BATCH = 64
"""Requests of a batch: 13,000 a second. Of thousands, the memory for their lines would cost more than to encrypt them."""
ON = EncryptionSpec(master=MasterSpec(file="unused"))
MODES = {
    "off": AuditSpec(durability="async"),
    "idle": AuditSpec(durability="async", encryption=ON),
    "texts": AuditSpec(durability="async", encryption=ON),
    "record": AuditSpec(durability="async", encryption=msgspec.structs.replace(ON, scope="record")),
    "privacy": AuditSpec(durability="async", privacy=PrivacySpec(peer="hash", user="hash")),
}


async def round_of(broker: AuditBroker, mode: str, requests: int, key: DataKey, prompt: bytes, answer: bytes) -> tuple[float, float]:
    """CPU microseconds a request: of this thread, of the process."""
    before, began, mine = broker.records, time.process_time(), time.thread_time()
    kept = mode == "texts"
    for number in range(requests):
        text: Any = Pending(key, "acme", [prompt], 16384) if kept else None
        id = f"req-{number}"
        broker.intent(
            IntentRecord(
                time.time(), id, "acme", "k", "api_key", f"192.0.2.{number % 250}", "chat", "m", False, len(prompt), user="alice", text=text
            )
        )
        said: Any = Pending(key, "acme", [answer], 16384, answer=True) if kept else None
        broker.outcome(OutcomeRecord(time.time(), id, "ok", 200, attempts=1, prompt_tokens=9, completion_tokens=9, text=said))
        if number % AT_ONCE == 0:
            await asyncio.sleep(0)
        if number % BATCH == 0:
            await asyncio.sleep(FLUSH_DELAY)
    loop = time.thread_time() - mine
    while broker.records < before + 2 * requests:
        await asyncio.sleep(0.005)
    return loop * 1e6 / requests, (time.process_time() - began) * 1e6 / requests


async def given_key(tenant: str) -> DataKeyGiven:
    return DataKeyGiven(id=f"dk-{tenant}", tenant=tenant, version=1, key=Secret("ab" * 32), seconds=3600.0)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--bytes", type=int, default=1024)
    given = parser.parse_args()
    key = DataKey("dk-1", "acme", 1, os.urandom(32))
    prompt = os.urandom(given.bytes // 2).hex().encode()
    answer = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n" + prompt
    with tempfile.TemporaryDirectory() as directory:
        brokers = {}
        for mode, spec in MODES.items():
            os.mkdir(f"{directory}/{mode}")
            brokers[mode] = AuditBroker(msgspec.structs.replace(spec), f"{directory}/{mode}")
            brokers[mode].encrypt(KeyRing(given_key, TaskOwner("keys")), CLOSED)
            await brokers[mode].start()
        found: dict[str, list[tuple[float, float]]] = {mode: [] for mode in MODES}
        for _ in range(given.rounds):
            for mode, broker in brokers.items():
                found[mode].append(await round_of(broker, mode, given.requests, key, prompt, answer))
        for broker in brokers.values():
            await broker.aclose()
    for name, best in (("median", statistics.median), ("smallest", min)):
        base = [best(one[index] for one in found["off"]) for index in (0, 1)]
        for mode, pairs in found.items():
            loop, whole = (best(one[index] for one in pairs) for index in (0, 1))
            print(f"{name:8} {mode:8} loop {loop:6.2f} us ({loop - base[0]:+.2f})   all threads {whole:6.2f} us ({whole - base[1]:+.2f})")


if __name__ == "__main__":
    asyncio.run(main())
