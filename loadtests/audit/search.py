"""Indexes a made log and searches it: how long it takes, by one to three random fields.

    python -m loadtests.audit.search --records 1000000
    python -m loadtests.audit.search --records 1000000 --sealed

`--sealed`: the records are encrypted as a whole, and opened by searches as the gateway does. A search that it would refuse (too many
records to open) is counted. Prints how long it took to write the log (with encrypting it), to index and to search it, and the most memory
that the process had after each step.

The records are two a request, of 50 tenants (one of them has half of the requests), 2,000 keys, 3,000 users, 20 models, 100,000 sessions.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import random
import resource
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from gateway.audit.blind_index import Blinder
from gateway.audit.envelopes import RecordSealer
from gateway.audit.index import Index
from gateway.audit.indexer import Indexer
from gateway.audit.keyring import DataKey, KeyRing
from gateway.audit.opened_index import search_opened
from gateway.audit.opening import CLOSED, Opener
from gateway.core.audit_questions import AuditSearch
from gateway.core.errors import AuditSearchTooLong
from gateway.core.secret import Secret
from gateway.core.tasks import TaskOwner
from gateway.core.vault import DataKeyGiven
from gateway.core.waiting import as_future

START: Final = 1.79e9
SEGMENT: Final = 64 << 20
FIELDS: Final = ("tenant", "principal", "user", "model", "outcome", "rule", "since", "code", "session")


class Log:
    """Writes segments of so many bytes as the gateway does, without checkpoints. cover: encrypts what is not a header."""

    def __init__(self, directory: Path, most: int = SEGMENT, cover: RecordSealer | None = None) -> None:
        self._directory, self._most, self._cover = directory, most, cover
        self._head, self._seq, self._segment, self._size = "0" * 64, 0, 0, most
        self._file: Any = None

    @property
    def sealed(self) -> bool:
        return self._cover is not None

    def begin(self) -> None:
        """The next segment."""
        self.close()
        self._segment, self._size = self._segment + 1, 0
        self._file = (self._directory / f"audit-gw-{self._segment:08d}.jsonl").open("wb")
        self.add("segment", time=START, format=1, segment=self._segment, writer="gw", previous=self._head, config=1)

    def add(self, kind: str, **fields: Any) -> None:
        if self._size >= self._most:
            self.begin()
        self._seq += 1
        payload = f',"kind":"{kind}",{json.dumps(fields, separators=(",", ":"))[1:-1]}'.encode()
        if self._cover is not None and kind != "segment":
            (covered,) = self._cover([payload], "gw", self._seq - 1)
            assert isinstance(covered, bytes)
            payload = covered
        body = b'{"seq":%d' % self._seq + payload
        self._head = hashlib.sha256(self._head.encode() + body).hexdigest()
        line = body + f',"hash":"{self._head}"}}\n'.encode()
        self._file.write(line)
        self._size += len(line)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def write(log: Log, records: int, chance: random.Random) -> None:
    """Adds so many records."""
    for number in range(records // 2):
        moment, request = START + number / 100, f"req-{chance.getrandbits(64):016x}"
        caller = {"tenant": f"tenant-{int(chance.paretovariate(1)) % 50}", "principal": f"key-{chance.randrange(2000)}"}
        what = {"operation": "chat", "model": f"model-{chance.randrange(20)}", "stream": True, "bytes": 812, "body_hash": "b" + "0" * 32}
        who = {
            "user": f"user-{chance.randrange(3000)}",
            "session": f"s-{chance.randrange(100_000)}",
            "rule": f"rule-{chance.randrange(30)}",
        }
        peer = f"10.0.{chance.randrange(16)}.{chance.randrange(256)}"
        log.add("intent", time=moment, request_id=request, **caller, credential="api_key", peer=peer, **what, **who, config=3)
        ended = chance.random()
        outcome, status = ("ok", 200) if ended < 0.95 else ("denied", 403) if ended < 0.98 else ("failed", 502)
        how = {"outcome": outcome, "status": status, **({} if outcome == "ok" else {"code": "policy_denied"})}
        used = {"endpoint": f"e{chance.randrange(4)}", "attempts": 1, "prompt_tokens": 100, "completion_tokens": 50, "duration_ms": 501.5}
        whose = {"tenant": caller["tenant"]} if log.sealed else {}  # whose key encrypts it
        log.add("outcome", time=moment + 0.5, request_id=request, **whose, **how, **used)


def question(chance: random.Random, seconds: float) -> AuditSearch:
    """By one to three fields. seconds: that the log covers."""
    values: dict[str, Any] = {
        "tenant": f"tenant-{chance.randrange(50)}",
        "principal": f"key-{chance.randrange(2000)}",
        "user": f"user-{chance.randrange(3000)}",
        "model": chance.choice([f"model-{chance.randrange(20)}", "model-1*"]),
        "outcome": chance.choice(["ok", "denied", "failed"]),
        "rule": f"rule-{chance.randrange(30)}",
        "since": START + chance.random() * seconds,
        "code": "policy_denied",
        "session": f"s-{chance.randrange(100_000)}",
    }
    return AuditSearch(**{name: values[name] for name in chance.sample(FIELDS, chance.randrange(1, 4))})


class Keys:
    """A data key for each tenant, whose name its id has."""

    def __init__(self) -> None:
        self.ring = KeyRing(self._given, TaskOwner("keys"))
        self.opener = Opener(lambda id: DataKey(id, id.partition("-")[2], 1, self._bytes(id)))

    @staticmethod
    def _bytes(id: str) -> bytes:
        return hashlib.sha256(id.encode()).digest()

    async def _given(self, tenant: str) -> DataKeyGiven:
        return DataKeyGiven(id=f"dk-{tenant}", tenant=tenant, version=1, key=Secret(self._bytes(f"dk-{tenant}").hex()), seconds=86400.0)

    async def sealer(self) -> RecordSealer:
        """With the keys of all tenants at hand."""
        sealer = RecordSealer(self.ring)
        await sealer.begin()
        for number in range(50):
            found = self.ring.current(f"tenant-{number}")
            if not isinstance(found, DataKey):
                await as_future(found)
        return sealer


def memory() -> str:
    """The most that this process has had so far."""
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB of memory"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--searches", type=int, default=300)
    parser.add_argument("--sealed", action="store_true", help="the records are encrypted as a whole")
    given = parser.parse_args()
    chance = random.Random(1)
    with tempfile.TemporaryDirectory() as place:
        directory, path = Path(place) / "audit", Path(place) / "index.sqlite"
        directory.mkdir()
        keys = Keys()
        log = Log(directory, cover=asyncio.run(keys.sealer()) if given.sealed else None)
        cpu = time.process_time()
        write(log, given.records, chance)
        log.close()
        print(f"written: {(time.process_time() - cpu) / given.records * 1e6:.1f} us of CPU a record, {memory()}", flush=True)
        size = sum(file.stat().st_size for file in directory.iterdir())
        index = Index(path)
        wall, cpu = time.perf_counter(), time.process_time()
        Indexer(directory, index).update(lambda: True)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        index.close()
        each = cpu / given.records * 1e6
        sizes = f"{size / 1e6:.0f} MB of log, {path.stat().st_size / 1e6:.0f} MB of index"
        print(f"{sizes}: {wall:.1f} s, {each:.1f} us of CPU a record, {memory()}", flush=True)
        if given.sealed:
            cpu = time.process_time()
            Blinder(path, directory, keys.opener).update(3600.0)
            each = (time.process_time() - cpu) / given.records * 1e6
            size = path.stat().st_size
            print(f"tokens of encrypted records: {each:.1f} us of CPU a record, {size / 1e6:.0f} MB of index, {memory()}", flush=True)
        times, refused, cpu = [], 0, time.process_time()
        for _ in range(given.searches):
            asked = question(chance, given.records / 200)
            begin = time.perf_counter()
            try:
                search_opened(path, asked, directory, keys.opener if given.sealed else CLOSED, 60.0)
            except AuditSearchTooLong:
                refused += 1
            times.append((time.perf_counter() - begin) * 1e3)
        times.sort()
        middle, late = times[len(times) // 2], times[int(len(times) * 0.95)]
        print(f"{len(times)} searches: p50 {middle:.1f} ms, p95 {late:.1f} ms, longest {times[-1]:.1f} ms; {refused} refused")
        print(f"{(time.process_time() - cpu) / len(times) * 1e3:.1f} ms of CPU a search, {memory()}")


if __name__ == "__main__":
    main()
