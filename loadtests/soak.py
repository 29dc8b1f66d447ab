"""The soak: mixed load for most of an hour while callers leave, keys come and go, the configuration is reloaded and sidecars are killed.

    python -m loadtests.soak [--minutes 45] [--users 24] [--kill-every 120] [--reload-every 60] [--workers N] [--redis] [--output FILE]

Starts the quickstart's fleet (two chat sidecars, two for embeddings) with limits, pii, secrets, a deny list and the audit log; with
`--redis` also a Redis, in which the limits are counted. Locust brings the load (loadtests/profiles/soak.conf). Every five seconds the
gateway's memory, descriptors and connections are noted; memory is what its processes have written (anonymous, /proc/PID/smaps_rollup), for
pages of files come and go with what the machine does. Part of it are the blocks that glibc keeps for each thread, which grow until they are
full (`thread_caches_mib`). After the load has ended and what it had opened is closed, the figures of the end
stand beside those before the load; `descriptors` tells what each is. `refused` says why requests were refused: codes and load shedding
from the audit log, and the message that each client got. `acts` and `stalls` have the seconds of kills and reloads, and of moments at which
the machine woke this process late, to compare them with. The exit code is 1 where a threshold was passed: failed requests, memory that
grows by more than `--max-slope` MiB an hour after the first ten minutes (the slope of a line through the samples), descriptors or
connections that are not back.
"""

import argparse
import json
import os
import secrets
import signal
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from loadtests import descriptors, locust_run
from loadtests.memory import heap
from tests.cluster.servers import RedisServer
from tests.e2e.harness import Gatehouse, alive, total

MIB = 2**20
WARM = 600.0
"""Seconds after which memory must be flat; in shorter runs a third of the run."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The gateway at one moment: seconds since the start, MiB of memory of all its processes (what they have written, and what is resident
    in all; of the former, what the first one's threads keep of freed blocks: loadtests.memory.heap), descriptors of the first, exchanges
    under way, keys of the store that are remembered."""

    at: float
    memory_mib: float
    resident_mib: float
    thread_caches_mib: float
    files: int
    in_flight: float
    connections: float
    attempts: float
    keys: float


def configuration(state: Path, key: str, admin: str, redis: RedisServer | None = None) -> dict[str, Any]:
    """The quickstart's fleet with the policies of a careful operator. redis: where limits are counted, if not in the gateway."""
    sidecar = {"runtime": "llama.cpp", "model": "demo-chat.gguf", "device": "cpu", "slots": 8, "context": 1024}
    embed = {"runtime": "onnx", "model": "demo-embed", "device": "cpu", "slots": 32}
    return {
        "version": 1,
        "listen": {"data": "127.0.0.1:0", "admin": "127.0.0.1:0"},
        "state_dir": str(state),
        "engines": [
            {"name": "chat-a", **sidecar},
            {"name": "chat-b", **sidecar},
            {"name": "embed-a", **embed},
            {"name": "embed-b", **embed},
        ],
        "models": [
            {"name": "demo-chat", "pool": ["chat-a", "chat-b"], "routing": {"policy": "consistent_hash", "key": "prefix"}},
            {"name": "demo-embed", "pool": ["embed-a", "embed-b"]},
        ],
        "identity": {
            "api_keys": {
                "static": [
                    {"id": "soak", "key": key, "tenant": "soak", "models": ["*"]},
                    {"id": "root", "key": admin, "tenant": "soak", "models": ["*"], "roles": ["admin"]},
                ]
            }
        },
        "limits": [
            {"name": "per-key", "per": "key", "requests": {"rate": 10000, "per": "1s"}, "tokens": {"rate": 100000000, "per": "1m"}},
            {"name": "per-tenant", "per": "tenant", "requests": {"rate": 10000, "per": "1s"}, "concurrent": 1000},
        ],
        "guardrails": [
            {"name": "pii", "type": "pii", "on": ["request", "response"], "settings": {"entities": {"email": "mask", "card": "block"}}},
            {"name": "secrets", "type": "secrets", "settings": {"action": "mask"}},
            {"name": "words", "type": "denylist", "settings": {"phrases": ["project nightingale", "operation sundial"]}},
        ],
        "audit": {"durability": "write", "sinks": [{"type": "file"}]},
        "telemetry": {"log_level": "warning"},
        **({"redis": {"url": f"unix://{redis.socket}"}} if redis else {}),
    }


class Account:
    """What the gateway is made of while it runs."""

    def __init__(self, gatehouse: Gatehouse) -> None:
        self.gatehouse = gatehouse
        self.begin, self.wall = time.monotonic(), time.time()
        self.samples: list[Sample] = []

    def sample(self) -> Sample:
        at, scrape = round(time.monotonic() - self.begin, 1), self.gatehouse.metrics()
        found = Sample(
            at=at,
            memory_mib=round(sum(map(anonymous, [self._pid, *self._children()])) / MIB, 2),
            resident_mib=round(total(scrape, "gatehouse_resident_bytes") / MIB, 2),
            thread_caches_mib=round(heap.walk(self._pid).cached.total() / MIB, 2),
            files=len(os.listdir(f"/proc/{self._pid}/fd")),
            in_flight=total(scrape, "gatehouse_in_flight"),
            connections=total(scrape, "gatehouse_connections"),
            attempts=total(scrape, "gatehouse_endpoint_in_flight"),
            keys=total(scrape, "gatehouse_keys_cached"),
        )
        self.samples.append(found)
        return found

    def descriptors(self) -> dict[str, int]:
        return descriptors.kinds(self._pid)

    @property
    def _pid(self) -> int:
        assert self.gatehouse.process is not None
        return self.gatehouse.process.pid

    def _children(self) -> list[int]:
        """The gateway's other processes, without its sidecars."""
        return [pid for pid in self.gatehouse.engines() if not is_sidecar(pid)]

    def slope(self, loaded: float) -> float:
        """MiB an hour: the line of least squares through the samples between the warm-up and the end of the load, in seconds."""
        first = min(WARM, loaded / 3)
        points = [(s.at, s.memory_mib) for s in self.samples if first <= s.at <= loaded]
        if len(points) < 3:
            return 0.0
        return statistics.linear_regression(*zip(*points, strict=True)).slope * 3600


def anonymous(pid: int) -> int:
    """Bytes that a process has written and that no file has, swapped ones too; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("Anonymous:", "Swap:")))


def is_sidecar(pid: int) -> bool:
    try:
        return b"engines." in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def run(options: argparse.Namespace) -> dict[str, Any]:
    key, admin = ("soak-" + secrets.token_hex(24) for _ in range(2))
    arguments = ["--workers", str(options.workers)] if options.workers else []
    with tempfile.TemporaryDirectory(prefix="soak-") as folder, ExitStack() as stack:
        redis = RedisServer(Path(folder)) if options.redis else None
        if redis:
            stack.callback(redis.stop)
            redis.start()
        gatehouse = Gatehouse(Path(folder), configuration(Path(folder) / "state", key, admin, redis), arguments=arguments)
        stack.callback(gatehouse.stop)
        gatehouse.start()
        locust_run.make_tenant(gatehouse.admin_url, admin)
        return load(options, gatehouse, {"GATEHOUSE_KEY": key, "GATEHOUSE_ADMIN_KEY": admin})


def load(options: argparse.Namespace, gatehouse: Gatehouse, environment: dict[str, str]) -> dict[str, Any]:
    told = Path(gatehouse.directory) / "refusals.jsonl"
    environment |= {"GATEHOUSE_URL": gatehouse.url, "GATEHOUSE_ADMIN_URL": gatehouse.admin_url, "GATEHOUSE_REFUSALS": str(told)}
    account = Account(gatehouse)
    before = account.sample()
    opened = {"before": account.descriptors()}
    report = Path(options.html) if options.html else Path(gatehouse.directory) / "soak.html"
    locust = locust_run.start(
        "soak", environment, "--users", str(options.users), "--run-time", f"{int(options.minutes * 60)}s", "--html", str(report)
    )
    kills = reloads = 0
    acts: list[tuple[float, str]] = []
    stalls: list[tuple[float, float]] = []
    while locust.poll() is None:
        stalls.extend(watch(account, 5.0))
        now = account.sample().at
        if options.reload_every and now >= (reloads + 1) * options.reload_every:
            reloads += 1
            reload(gatehouse, reloads)
            acts.append((now, "reload"))
        if options.kill_every and now >= (kills + 1) * options.kill_every:
            kills += kill_one(gatehouse, kills)
            acts.append((now, "kill"))
    loaded = account.samples[-1].at
    opened["loaded"] = account.descriptors()
    settle(account, before)
    after = account.sample()
    opened["after"] = account.descriptors()
    return {
        "minutes": round(loaded / 60, 1),
        "locust": locust.returncode,
        "kills": kills,
        "reloads": reloads,
        "slope_mib_per_hour": round(account.slope(loaded), 2),
        "before": asdict(before),
        "after": asdict(after),
        "descriptors": opened,
        "peak_mib": max(s.memory_mib for s in account.samples),
        "refused": refused(gatehouse, account.wall) | {"told": refusals(told, account.wall)},
        "acts": acts,
        "stalls": stalls,
        "samples": [asdict(s) for s in account.samples],
    }


def refused(gatehouse: Gatehouse, begin: float) -> dict[str, Any]:
    """Why requests were refused, from the audit log: codes with the seconds at which they were given, and when load shedding changed its
    level. What was refused while it was in force is the machine's doing, not the gateway's."""
    codes: dict[str, list[float]] = {}
    shedding: list[tuple[float, int]] = []
    records: list[dict[str, Any]] = []
    for record in gatehouse.audit():
        at = round(record["time"] - begin, 1)
        if record.get("event") == "load_shedding":
            shedding.append((at, record["detail"]["level"]))
        elif record.get("code") and record.get("outcome") not in ("ok", "cancelled"):
            codes.setdefault(record["code"], []).append(at)
            if record["code"] == "overloaded":
                records.append(record)
    return {"codes": codes, "shedding": shedding, "records": records}


def refusals(file: Path, begin: float) -> list[dict[str, Any]]:
    """What refused clients were told, with the seconds since `begin`."""
    lines = file.read_text().splitlines() if file.exists() else []
    return [{**line, "time": round(line["time"] - begin, 1)} for line in map(json.loads, lines)]


def watch(account: Account, seconds: float, late: float = 0.2) -> list[tuple[float, float]]:
    """Sleeps in short steps, and returns when the machine woke this process late, and by how much."""
    found, end = [], time.monotonic() + seconds
    while (now := time.monotonic()) < end:
        time.sleep(0.05)
        behind = time.monotonic() - now - 0.05
        if behind >= late:
            found.append((round(now - account.begin, 1), round(behind, 2)))
    return found


def reload(gatehouse: Gatehouse, number: int) -> None:
    """Another limit, as an operator would change it, by the file and SIGHUP."""
    text = gatehouse.file.read_text()
    rate = 10000 + number % 2
    gatehouse.file.write_text(text.replace(f"rate: {10000 + (number + 1) % 2}\n", f"rate: {rate}\n"))
    assert gatehouse.process is not None
    gatehouse.process.send_signal(signal.SIGHUP)


def kill_one(gatehouse: Gatehouse, number: int) -> int:
    """kill -9 of one sidecar, by turns; 1 if there was one to kill."""
    found = [pid for pid in gatehouse.engines() if alive(pid) and is_sidecar(pid)]
    if not found:
        return 0
    os.kill(found[number % len(found)], signal.SIGKILL)
    return 1


def settle(account: Account, before: Sample, seconds: float = 75.0) -> None:
    """Waits until what the load had opened is closed, at most so long: idle connections to engines are kept for 55 s."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(2)
        now = account.sample()
        if now.in_flight == 0 and now.connections <= before.connections and now.attempts == 0 and now.files <= before.files:
            return


def wrong(figures: dict[str, Any], max_slope: float) -> list[str]:
    """Each threshold that was passed."""
    before, after, found = figures["before"], figures["after"], []
    if figures["locust"] != 0:
        found.append("requests failed: Locust's thresholds are above")
    if figures["slope_mib_per_hour"] > max_slope:
        found.append(f"memory grew by {figures['slope_mib_per_hour']} MiB an hour, at most {max_slope} is allowed")
    for name, most in (("in_flight", 0), ("attempts", 0), ("connections", before["connections"]), ("files", before["files"] + 8)):
        if after[name] > most:
            found.append(f"{name} is {after[name]} a minute after the load, at most {most} is expected")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=45)
    parser.add_argument("--users", type=int, default=24)
    parser.add_argument("--kill-every", type=float, default=120, help="seconds; 0: no sidecar is killed")
    parser.add_argument("--reload-every", type=float, default=60, help="seconds; 0: no reloads")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--redis", action="store_true", help="limits are counted in a Redis, which this starts")
    parser.add_argument("--max-slope", type=float, default=1.0, help="MiB an hour (default 1)")
    parser.add_argument("--html", help="where Locust's report goes")
    parser.add_argument("--output", help="a JSON file for the figures and all samples")
    options = parser.parse_args()
    figures = run(options)
    if options.output:
        Path(options.output).write_text(json.dumps(figures, indent=1) + "\n")
    print(json.dumps({key: value for key, value in figures.items() if key not in ("samples", "acts", "stalls")}, indent=1))
    found = wrong(figures, options.max_slope)
    for line in found:
        print(f"NOT REACHED: {line}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
