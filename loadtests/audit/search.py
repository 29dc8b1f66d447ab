"""Indexes a made log and searches it: how long it takes, by one to three random fields.

    python -m loadtests.audit.search --records 1000000

The records are two a request, of 50 tenants (one of them has half of the requests), 2,000 keys, 3,000 users, 20 models, 100,000 sessions.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from gateway.audit.index import Index, search
from gateway.audit.indexer import Indexer
from gateway.core.audit_questions import AuditSearch

START: Final = 1.79e9
SEGMENT: Final = 64 << 20
FIELDS: Final = ("tenant", "principal", "user", "model", "outcome", "rule", "since", "code", "session")


class Log:
    """Writes segments of so many bytes as the gateway does, without checkpoints."""

    def __init__(self, directory: Path, most: int = SEGMENT) -> None:
        self._directory, self._most = directory, most
        self._head, self._seq, self._segment, self._size = "0" * 64, 0, 0, most
        self._file: Any = None

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
        body = f'{{"seq":{self._seq},"kind":"{kind}",{json.dumps(fields, separators=(",", ":"))[1:-1]}'.encode()
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
        log.add("outcome", time=moment + 0.5, request_id=request, **how, **used)


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--searches", type=int, default=300)
    given = parser.parse_args()
    chance = random.Random(1)
    with tempfile.TemporaryDirectory() as place:
        directory, path = Path(place) / "audit", Path(place) / "index.sqlite"
        directory.mkdir()
        log = Log(directory)
        write(log, given.records, chance)
        log.close()
        size = sum(file.stat().st_size for file in directory.iterdir())
        index = Index(path)
        wall, cpu = time.perf_counter(), time.process_time()
        Indexer(directory, index).update(lambda: True)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        index.close()
        each = cpu / given.records * 1e6
        print(f"{size / 1e6:.0f} MB of log, {path.stat().st_size / 1e6:.0f} MB of index: {wall:.1f} s, {each:.1f} us of CPU a record")
        times = []
        for _ in range(given.searches):
            asked = question(chance, given.records / 200)
            begin = time.perf_counter()
            search(path, asked, 60.0)
            times.append((time.perf_counter() - begin) * 1e3)
        times.sort()
        middle, late = times[len(times) // 2], times[int(len(times) * 0.95)]
        print(f"{len(times)} searches: p50 {middle:.1f} ms, p95 {late:.1f} ms, longest {times[-1]:.1f} ms")


if __name__ == "__main__":
    main()
