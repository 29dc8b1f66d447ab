"""How exactly limits count over the workers of one gateway: hammers `serve --workers N` with one key from many connections.

    python -m loadtests.limits.workers [--workers 2 4] [--seconds 20] [--connections 64] [--stop]

For each number of workers: a rate (100/s, burst 50), undisturbed; the same while workers are killed with SIGKILL every two seconds; the
same while one is stopped with SIGSTOP for five seconds (--stop); while the configuration is reloaded ten times a second; while the
program is upgraded every three seconds; four concurrent requests, with an engine that counts; a budget of tokens.

Prints a Markdown table: what was admitted, of what the limit allows from the first request to the last answer (never more than 100 %),
and of what it allows from the first admitted answer to the last request (98 % or more). Exits with 1 when a limit was exceeded, or an
undisturbed one was not used up.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, OTHER_KEY, Gatehouse, alive, configuration, external
from tests.fakes.hammer import Hammered, hammer, request_bytes
from tests.waiting import until

TOKEN_KEY = "token-key-0123456789abcdef0123456789abcdef"
RATE, BURST, SLOTS, TOKENS = 100, 50, 4, 10_000
LIMITS = [
    {"name": "rate", "match": {"key": "test"}, "requests": {"rate": RATE, "per": "1s", "burst": BURST}},
    {"name": "slots", "match": {"key": "other"}, "concurrent": SLOTS},
    {"name": "tokens", "match": {"key": "tokens"}, "tokens": {"rate": 1, "per": "1h", "burst": TOKENS}},
]


class Farm(Gatehouse):
    def __init__(self, directory: Path, engine: EngineThread, workers: int) -> None:
        config = configuration(
            directory / "state",
            engines=[external("fake", engine.port, slots=256)],
            models=[{"name": "m1", "pool": ["fake"]}],
            limits=LIMITS,
        )
        config["identity"]["api_keys"]["static"].append({"id": "tokens", "key": TOKEN_KEY, "tenant": "t", "models": ["*"]})
        super().__init__(directory, config, arguments=["--workers", str(workers)])
        self.count = workers
        self.file.write_text(yaml.safe_dump(config))

    def pids(self) -> list[int]:
        """Processes of the workers that serve."""
        said = [int(line.split()[-1].rstrip(")")) for line in list(self.lines) if " serves (process " in line]
        return [pid for pid in said if alive(pid)]

    def whole(self) -> None:
        until(lambda: len(self.pids()) == self.count, 60, "all workers")

    def hammered(self, key: str, connections: int, seconds: float, max_tokens: int = 8) -> Hammered:
        return asyncio.run(hammer(self.url, request_bytes(self.url, key, max_tokens), connections, seconds))


@dataclass
class Row:
    name: str
    admitted: float
    most: float
    least: float
    refused: int
    lost: int = 0
    wrong: bool = False

    def line(self) -> str:
        figures = f"{self.admitted:g} | {self.most:.1f} | {self.admitted / self.most:.2%} | {self.admitted / self.least:.2%}"
        return f"| {self.name} | {figures} | {self.refused} | {self.lost} |{' **wrong**' if self.wrong else ''}"


class Disturbed:
    """Does something to a worker every few seconds, until it is left."""

    def __init__(self, action: Callable[[], None], every: float) -> None:
        self._action, self._every, self._over = action, every, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._over.wait(self._every):
            self._action()

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()


def rate_row(name: str, found: Hammered, disturbed: bool) -> Row:
    admitted, most, least = len(found.admitted), found.most(RATE, BURST), found.least(RATE, BURST)
    wrong = admitted > most or (not disturbed and admitted < 0.98 * least)
    return Row(name, admitted, most, least, found.statuses[429], found.lost, wrong)


def kill_one(farm: Farm) -> None:
    if len(pids := farm.pids()) == farm.count:
        os.kill(pids[0], signal.SIGKILL)


def stop_one(farm: Farm) -> None:
    """For five seconds; a worker that does not answer for ten is ended."""
    pid = farm.pids()[0]
    os.kill(pid, signal.SIGSTOP)
    threading.Event().wait(5.0)
    os.kill(pid, signal.SIGCONT)


def reload(farm: Farm) -> None:
    """With another limit each time; the one that is hammered stays."""
    farm.config["limits"] = [*LIMITS, {"name": f"l{len(farm.lines)}-{time.monotonic_ns() % 1000}", "requests": {"rate": 1_000_000}}]
    farm.file.write_text(yaml.safe_dump(farm.config))
    assert farm.process is not None
    farm.process.send_signal(signal.SIGHUP)


def upgrade(farm: Farm) -> None:
    assert farm.process is not None
    farm.process.send_signal(signal.SIGUSR2)


def measure(farm: Farm, engine: EngineThread, seconds: float, connections: int, stop: bool) -> list[Row]:
    rows = [rate_row("rate", farm.hammered(KEY, connections, seconds), False)]
    with Disturbed(lambda: kill_one(farm), 2.0):
        found = farm.hammered(KEY, connections, seconds)
    rows.append(rate_row("rate, workers killed", found, True))
    farm.whole()
    if stop:
        with Disturbed(lambda: stop_one(farm), 2.0):
            found = farm.hammered(KEY, connections, seconds)
        rows.append(rate_row("rate, a worker stopped", found, True))
    with Disturbed(lambda: reload(farm), 0.1):
        found = farm.hammered(KEY, connections, seconds)
    rows.append(rate_row("rate, reloads", found, False))
    with Disturbed(lambda: upgrade(farm), 3.0):
        found = farm.hammered(KEY, connections, seconds)
    rows.append(rate_row("rate, upgrades", found, True))
    engine.engine.most_busy = 0
    found = farm.hammered(OTHER_KEY, connections, seconds / 2)
    most = engine.engine.most_busy
    rows.append(Row(f"concurrent {SLOTS}: most at once", most, SLOTS, SLOTS, found.statuses[429], found.lost, most != SLOTS))
    used = refused = 0
    while (found := farm.hammered(TOKEN_KEY, connections, 1.0, 40)).admitted:
        used, refused = used + found.tokens, refused + found.statuses[429]
    rows.append(Row("tokens", used, TOKENS, TOKENS, refused, 0, not 0.98 * TOKENS <= used <= TOKENS))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--stop", action="store_true")
    arguments = parser.parse_args()
    engine = EngineThread(slots=256, service=0.02)
    wrong = False
    print("| what | admitted | allowed | of it | of what it could be | refused | lost |\n|---|---|---|---|---|---|---|")
    for workers in arguments.workers:
        with tempfile.TemporaryDirectory() as directory, Farm(Path(directory), engine, workers) as farm:
            farm.whole()
            for row in measure(farm, engine, arguments.seconds, arguments.connections, arguments.stop):
                row.name = f"{workers} workers: {row.name}"
                wrong = wrong or row.wrong
                print(row.line(), flush=True)
    engine.close()
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
