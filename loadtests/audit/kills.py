"""Kills a gateway under load again and again, on one log: `python -m loadtests.audit.kills [--kills 500] [--seconds 600]`.

Each cycle starts `gatehouse serve`, sends it requests over loopback and ends it with SIGKILL at a random moment. Required: every start
succeeds, every request that was answered is in the audit log, no record is there twice, `gatehouse audit verify` says ok.

--build chooses what runs: `sources`, `installed` (the compiled build of this environment) or the directory of a build
(scripts/compile.py). With `--workers N`, the gateway has so many workers: some of them are killed one by one and replaced, then the control
process, whose workers the next start meets. With `--sinks`, the log goes to a syslog server (TCP) and an HTTP server besides, which must
have every line in the end, and closed segments are sealed, compressed and taken away meanwhile. Only processes that this script started
are ended, by their process ids. Exit code 1 when a requirement is not met.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from gateway.app.compiled import fault, place
from gateway.audit.crypto import load_verifier
from gateway.audit.segments import open_segment
from gateway.audit.sinks.file import list_segments
from gateway.audit.verify import verify_log
from loadtests.routing.bench import EngineProcess
from tests.e2e.harness import KEY, ROOT, Gatehouse, alive, configuration, external
from tests.fakes.http_receiver import HttpReceiver
from tests.waiting import until

OPS = "ops-key-0123456789abcdef0123456789abcdef"
BODY = b'{"model":"m1","messages":[{"role":"user","content":"Hello!"}]}'
HEAD = "POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nauthorization: Bearer %s\r\ncontent-type: application/json\r\nx-request-id: %s\r\n"


@dataclass
class Found:
    """What was seen. early: kills during a start. answered: the ids of requests with a 200. other: other answers while all of the gateway
    was there. orphaned: those of workers whose control process had been killed. from_journal: records that starts took from a journal.
    """

    starts: int = 0
    early: int = 0
    failed: int = 0
    answered: set[str] = field(default_factory=set)
    other: Counter[str] = field(default_factory=Counter)
    orphaned: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    twice: int = 0
    from_journal: int = 0
    kills: int = 0
    workers: int = 0
    verified: bool = False
    open: int = 0
    unknown: int = 0
    unsent: Counter[str] = field(default_factory=Counter)
    duplicates: Counter[str] = field(default_factory=Counter)
    keys: Counter[str] = field(default_factory=Counter)

    @property
    def good(self) -> bool:
        return self.verified and not (self.failed or self.lost or self.twice or self.other or self.open or self.unsent)


class Load:
    """Clients that send the next request when the last one is answered, until the gateway is gone."""

    def __init__(self, found: Found, cycle: int, port: int, connections: int) -> None:
        self._found, self._cycle, self._port, self._connections = found, cycle, port, connections
        self._sent = [0] * connections
        self._over = False

    async def run(self, gatehouse: Gatehouse, moments: list[float]) -> None:
        """moments: seconds between kills: of workers, and at last of the gateway."""
        clients = [asyncio.ensure_future(self._client(number)) for number in range(self._connections)]
        for seconds in moments[:-1]:
            await asyncio.sleep(seconds)
            if pids := workers(gatehouse):
                os.kill(random.choice(pids), signal.SIGKILL)
                self._found.workers += 1
        await asyncio.sleep(moments[-1])
        self._over = True
        assert gatehouse.process is not None
        gatehouse.process.send_signal(signal.SIGKILL)
        await asyncio.wait(clients, timeout=30)

    async def _client(self, number: int) -> None:
        while not self._over:  # a worker that is killed ends a connection, and the next one meets another worker
            await self._connection(number)
            await asyncio.sleep(0.01)

    async def _connection(self, number: int) -> None:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            while True:
                self._sent[number] += 1
                request_id = f"k{self._cycle}-{number}-{self._sent[number]}"
                writer.write((HEAD % (KEY, request_id)).encode() + b"content-length: %d\r\n\r\n%b" % (len(BODY), BODY))
                head = await reader.readuntil(b"\r\n\r\n")
                status = head.split(b" ", 2)[1].decode()
                if status == "200":  # its head is proof enough: nothing of it is sent before the intent is recorded
                    self._found.answered.add(request_id)
                body = await reader.readexactly(_length(head))
                if status != "200":
                    seen = self._found.orphaned if self._over else self._found.other
                    seen[f"{status} {body[:200].decode(errors='replace')}"] += 1
        except (OSError, EOFError):  # killed
            pass


def workers(gatehouse: Gatehouse) -> list[int]:
    """The processes of the workers that are alive, as the log tells them."""
    found = [int(line.split()[-1].rstrip(")")) for line in list(gatehouse.lines) if " serves (process " in line]
    return [pid for pid in found if alive(pid)]


def _length(head: bytes) -> int:
    (line,) = (line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return int(line.partition(b":")[2])


def environment(build: str) -> dict[str, str]:
    """What makes a gateway run this build. Exits when there is none."""
    if build == "sources":
        return {"GATEHOUSE_COMPILED": "0"}
    chosen = {} if build == "installed" else {"GATEHOUSE_COMPILED": str(Path(build).absolute())}
    directory = place(chosen)
    if directory is None or (reason := fault(directory)):
        sys.exit(f"this build cannot be used: {reason}")
    return chosen


def cycles(found: Found, fresh: Callable[[], Gatehouse], options: argparse.Namespace) -> None:
    chance, end = random.Random(options.seed), time.monotonic() + options.seconds
    for cycle in range(options.kills):
        if time.monotonic() >= end:
            break
        gatehouse = fresh()
        if chance.random() < options.early:
            gatehouse.launch()
            time.sleep(chance.uniform(0.0, 1.5))  # the moment of the kill is the point
            found.early += 1
            _end(gatehouse)
            continue
        found.starts += 1
        try:
            gatehouse.start(60.0)
        except AssertionError as error:
            found.failed += 1
            print(f"start {found.starts} failed: {error}", flush=True)
            _end(gatehouse)
            break  # a log that cannot be opened cannot be opened the next time
        load = Load(found, cycle, int(gatehouse.url.rpartition(":")[2]), options.connections)
        if options.keys:
            threading.Thread(target=change_keys, args=(found, gatehouse.admin_url, options.seed + cycle), daemon=True).start()
        kills = 1 + (chance.randint(0, 3) if options.workers else 0)
        asyncio.run(load.run(gatehouse, [chance.uniform(0.0, options.life) for _ in range(kills)]))
        _end(gatehouse)
        found.kills += 1
        if cycle % 50 == 49:
            print(f"{cycle + 1} kills, {len(found.answered)} requests answered", flush=True)


def change_keys(found: Found, url: str, seed: int) -> None:
    """Rotates the key that signs and the data keys, and destroys those of the tenant, in turn, until the gateway is gone."""
    chance = random.Random(seed)
    with httpx.Client(base_url=f"{url}/admin/v1", headers={"authorization": f"Bearer {OPS}"}, timeout=10) as client:
        try:
            while True:
                what = chance.choice(("signing", "data", "shred"))
                if what == "signing":
                    response = client.post("/audit/keys")
                elif what == "data":
                    response = client.post("/audit/data-keys/rotate", json={"tenant": "acme"})
                else:
                    plan = client.get("/audit/data-keys/shred", params={"tenant": "acme"})
                    if plan.status_code != 200:
                        continue
                    body = {"tenant": "acme", "reason": "a test", "confirm": plan.json()["digest"]}
                    response = client.post("/audit/data-keys/shred", json=body)
                found.keys[f"{what} {response.status_code}"] += 1
        except httpx.HTTPError:
            return  # killed


def _end(gatehouse: Gatehouse) -> None:
    assert gatehouse.process is not None
    gatehouse.process.kill()
    gatehouse.process.wait(60)


def records(directory: Path) -> Iterator[tuple[str, dict[str, object]]]:
    """(writer, record) of all that is there."""
    for writer, segments in list_segments(directory).items():
        for _, path in segments:
            with open_segment(path) as lines:
                for line in lines:
                    yield writer, json.loads(line)


class Receivers:
    """A syslog server and an HTTP server that keep which lines they got."""

    def __init__(self) -> None:
        self.http = HttpReceiver()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.syslog: Counter[str] = Counter()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def sinks(self) -> list[dict[str, object]]:
        address = f"tcp://127.0.0.1:{self.listener.getsockname()[1]}"
        return [
            {"type": "syslog", "settings": {"address": address, "history": True}},
            {"type": "http", "settings": {"url": self.http.url, "history": True}},
        ]

    def _accept(self) -> None:
        while True:
            connection, _ = self.listener.accept()
            threading.Thread(target=self._read, args=(connection,), daemon=True).start()

    def _read(self, connection: socket.socket) -> None:
        rest = b""
        with connection:
            while part := connection.recv(1 << 20):
                rest += part
                while (space := rest.find(b" ")) > 0 and len(rest) > space + (length := int(rest[:space])):
                    message, rest = rest[space + 1 : space + 1 + length], rest[space + 1 + length :]
                    self.syslog[message[-67:-2].decode("ascii", "replace").strip('"')] += 1

    def hashes(self) -> dict[str, Counter[str]]:
        """How often each line's hash arrived, by sink."""
        http: Counter[str] = Counter()
        for _, body in list(self.http.requests):
            http.update(json.loads(line)["hash"] for line in body.splitlines())
        return {"syslog": Counter(self.syslog), "http": http}


def left(gatehouse: Gatehouse) -> None:
    """What a kill leaves: a chain as it was written, and records in a journal."""
    verifier = load_verifier(gatehouse.state_dir / "keys" / "audit-signing.pub.pem")
    report = verify_log(gatehouse.state_dir / "audit", verifier, patience=0.0)
    journals = {writer.writer: writer.journal for writer in report.writers if writer.journal is not None}
    print(f"after the last kill: journals {journals}, problems {[problem.reason for problem in report.problems]}")


def judge(found: Found, gatehouse: Gatehouse, receivers: Receivers | None = None) -> None:
    """Ends the log cleanly, then reads all of it."""
    found.starts += 1
    gatehouse.start()
    key = gatehouse.state_dir / "keys" / "audit-signing.pub.pem"
    verifier = load_verifier(key)
    until(lambda: all(w.live or w.unsigned <= 1 for w in verify_log(gatehouse.state_dir / "audit", verifier).writers), what="the recovery")
    if receivers is not None:
        names = ("syslog", "http")
        until(lambda: all(gatehouse.metric("gatehouse_audit_sink_waiting_bytes", sink=name) == 0 for name in names), 120, what="the sinks")
    gatehouse.stop()
    time.sleep(1.0 if receivers is not None else 0.0)  # until the last bytes are read from the sockets
    directory = gatehouse.state_dir / "audit"
    seen: Counter[tuple[str, str]] = Counter()
    lines: set[str] = set()
    for _, record in records(directory):
        lines.add(str(record["hash"]))
        if record["kind"] in ("intent", "outcome"):
            seen[str(record["kind"]), str(record["request_id"])] += 1
            found.unknown += record.get("code") == "outcome_unknown" or record.get("outcome") == "unknown"
        elif record.get("event") == "audit.opened":
            detail = record["detail"]
            assert isinstance(detail, dict)
            found.from_journal += int(detail.get("from_journal", 0))
    found.twice = sum(count > 1 for count in seen.values())
    found.open = sum(kind == "intent" and ("outcome", request_id) not in seen for kind, request_id in seen)
    for name, got in receivers.hashes().items() if receivers is not None else ():
        found.unsent[name] += len(lines - got.keys())
        found.duplicates[name] = sum(got.values()) - len(got)
    found.unsent = +found.unsent
    found.lost = sum(("intent", request_id) not in seen for request_id in found.answered)
    command = [sys.executable, "-m", "gateway", "audit", "verify", "--dir", str(directory), "--public-key", str(key)]
    done = subprocess.run(command, cwd=ROOT, env=gatehouse.environ, capture_output=True, text=True, timeout=600)
    found.verified = done.returncode == 0
    print(done.stdout + done.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=600, help="no new cycle begins later")
    parser.add_argument("--build", default="installed")
    parser.add_argument("--workers", type=int, default=0, help="0: one process serves")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--life", type=float, default=0.5, help="seconds of load before a kill, at most")
    parser.add_argument("--early", type=float, default=0.1, help="share of the kills that come while the gateway starts")
    parser.add_argument("--segment-bytes", default="4MiB")
    parser.add_argument("--durability", choices=["write", "fsync"], default="write")
    parser.add_argument("--encrypt", choices=["text", "record"], help="texts are kept, or whole records are encrypted")
    parser.add_argument("--keys", action="store_true", help="keys that sign and encrypt are rotated and destroyed meanwhile")
    parser.add_argument("--sinks", action="store_true", help="a syslog and an HTTP server besides, and retention")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    options = parser.parse_args()
    environment(options.build)
    found, started = Found(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kills-") as name:
        engine = EngineProcess()
        try:
            sink = {"type": "file", "segment_bytes": options.segment_bytes}
            receivers = Receivers() if options.sinks else None
            sinks = [sink, *(receivers.sinks if receivers is not None else [])]
            audit = {"durability": options.durability, "sinks": sinks, "checkpoint": {"every": "1s"}}
            if receivers is not None:
                audit["retention"] = {"compress_after": "0.001s"}
            if options.encrypt:
                master = Path(name) / "master.key"
                master.write_bytes(os.urandom(32))
                master.chmod(0o600)
                audit["encryption"] = {"scope": options.encrypt, "master": {"file": str(master)}}
                audit["text"] = {"record": "both", "when": [{}]} if options.encrypt == "text" else {}
            models = [{"name": "m1", "pool": ["e"]}]
            config = configuration(Path(name) / "state", engines=[external("e", engine.port, slots=64)], models=models, audit=audit)

            config["identity"]["api_keys"]["static"].append({"id": "ops", "key": OPS, "tenant": "ops", "models": [], "roles": ["admin"]})

            def fresh() -> Gatehouse:
                arguments = ["--workers", str(options.workers)] if options.workers else []
                return Gatehouse(Path(name), config, environment(options.build), arguments)  # which a change of the sources has made stale

            cycles(found, fresh, options)
            if not found.failed:
                left(fresh())
                judge(found, fresh(), receivers)
            if receivers is not None:
                receivers.http.close()
        finally:
            engine.kill()
    took = time.monotonic() - started
    print(f"build {options.build}, seed {options.seed}, {took:.0f} s")
    print(
        f"kills {found.kills}, of workers {found.workers}, starts {found.starts}, failed starts {found.failed}, starts killed {found.early}"
    )
    print(f"requests answered {len(found.answered)}, other answers {dict(found.other)}, by workers after the kill {dict(found.orphaned)}")
    print(
        f"answered but not in the log {found.lost}, records that are there twice {found.twice}, records from a journal {found.from_journal}"
    )
    print(f"intents without an outcome {found.open}, outcomes that recovery wrote (outcome_unknown) {found.unknown}")
    if options.keys:
        print(f"changes of keys {dict(found.keys)}")
    if options.sinks:
        print(f"lines that a sink did not get {dict(found.unsent)}, that came again {dict(found.duplicates)}")
    print(f"audit verify {'ok' if found.verified else 'NOT ok'}")
    sys.exit(0 if found.good else 1)


if __name__ == "__main__":
    main()
