"""What a large store costs: the start, the memory, and one change, in the control process and in a worker.

    python -m loadtests.store.large [--of access|engines|others|policies|people|work] [--count 100000] [--changes 3] [--profile DIRECTORY]

`access`: so many roles, bindings, tenants and keys. `engines`: so many engines, each with a model of its own; each is probed once, as
probes would be most of what is measured. `others`: so many halts, suspensions, limits, legal holds, captures, schedules and decided
approvals (loadtests.store.others). `policies`, `people`, `work`: loadtests.store.further. They are written into the tables directly
(SQLite), the gateway starts with one worker, and each kind of change is made over the admin API, and some lists are asked for. CPU and
memory are those of /proc. `idle` is what both processes use while nothing happens; of a change, what they have used until SETTLED seconds
after it (of a list, a sixth of that), less what they use in that time anyway. `told`: bytes that the worker has read meanwhile, less those
of an idle time; `kept`: bytes that the text of the policies takes on the disk; `late`: the longest delay of a wake-up of the loop is below
this bound (gatehouse_loop_lag_seconds, which other work on the machine lengthens too). Metrics are read outside these times: of ten
thousand engines they cost a second of CPU.
--profile: py-spy, which must be on the PATH, records each process there.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import httpx
import sqlalchemy as sa

from gateway.store.tables import resources
from loadtests.store import further, others
from loadtests.store.keys import fill, opened, table_of
from loadtests.store.others import written
from tests.e2e.harness import Gatehouse, configuration, external

ROOT_KEY: Final = "root-key-0123456789abcdef0123456789abcdef"
PEPPER: Final = "a pepper for measuring, 32 characters"
BATCH: Final = 10_000
QUIET_SECONDS: Final = 1.0
QUIET_AT_MOST: Final = 300.0
SETTLED: Final = 12.0
"""Seconds: two of the workers' reports of figures, and the looks of scaling."""
TICKS: Final = os.sysconf("SC_CLK_TCK")


def answering() -> int:
    """The port of a server in a thread that answers every probe, as an engine that is well."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")
        writer.close()

    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    server = asyncio.run_coroutine_threadsafe(asyncio.start_server(answer, "127.0.0.1", 0, backlog=1024), loop).result()
    return int(server.sockets[0].getsockname()[1])


def bodies(of: str, number: int, port: int) -> list[tuple[str, str, dict[str, Any]]]:
    """(kind, name, body) of the resources with one number. port: where the engines are, which are probed once and then no more."""
    name = f"{number:06d}"
    if of == "engines":
        engine = {
            "runtime": "external",
            "url": f"http://127.0.0.1:{port}/{name}",
            "slots": 4,
            "health": {"interval": 86400, "metrics": None},
        }
        return [("engines", f"e{name}", engine), ("models", f"m{name}", {"pool": [f"e{name}"]})]
    return [
        ("roles", f"r{name}", {"permissions": [f"infer:chat:model/team-{name}-*"], "description": "one of many"}),
        ("bindings", f"b{name}", {"role": f"r{name}", "subjects": [f"user/u{name}", f"group/g{name}"]}),
        ("tenants", f"t{name}", {"description": "one of many"}),
    ]


async def made(directory: Path, of: str, count: int, port: int) -> None:
    store = opened("sqlite", directory)
    await store.start()
    fixed = {"tenant": "", "version": 1, "created": 1.0, "updated": 1.0, "actor": "bench"}
    for start in range(0, count if of in ("access", "engines") else 0, BATCH):
        found = [one for number in range(start, min(count, start + BATCH)) for one in bodies(of, number, port)]
        rows = [{**fixed, "kind": kind, "name": name, "body": body} for kind, name, body in found]

        def insert(connection: sa.Connection, rows: list[dict[str, Any]] = rows) -> None:
            connection.execute(sa.insert(resources), rows)

        await store._database.run(insert, write=True, deadline=120.0)
    if of == "access":
        await fill(store, count)
    if of == "others":
        await store._database.run(written(store, count), write=True, deadline=120.0)
    if of in further.KINDS:
        await store._database.run(further.written(of, count), write=True, deadline=240.0)
    await store.aclose()


class Process:
    """What /proc says of one."""

    def __init__(self, pid: int) -> None:
        self._folder = Path(f"/proc/{pid}")

    def cpu(self) -> float:
        fields = (self._folder / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def anonymous(self) -> float:
        """MiB."""
        lines = (self._folder / "status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024

    def runs(self) -> bool:
        """Whether its main thread computes, or would if it were given a processor."""
        return (self._folder / "stat").read_text().rpartition(")")[2].split()[0] == "R"

    def read(self) -> int:
        return int((self._folder / "io").read_text().split()[1])


class Measured:
    def __init__(self, gatehouse: Gatehouse, admin: httpx.Client, texts: Path) -> None:
        """texts: the folder of the policies' texts."""
        assert gatehouse.process is not None
        self._texts = texts
        self._admin, self._metrics = admin, f"{gatehouse.admin_url}/metrics"
        self._ids = gatehouse.process.pid, admin.get("/workers").json()["items"][0]["pid"]
        self.both = [Process(pid) for pid in self._ids]
        self.idle = [0.0, 0.0, 0.0]

    def shown(self) -> list[tuple[dict[str, Any], Process]]:
        names = zip(("control", "worker"), self.both, strict=True)
        return [({"process": name, "anonymous, MiB": one.anonymous()}, one) for name, one in names]

    def quiet(self) -> None:
        """Returns once neither process has computed for a while, nor waited for a processor, and the worker lags behind in nothing. Raises
        TimeoutError."""
        before, since, end, told, ran = [-1.0, -1.0], time.monotonic(), time.monotonic() + QUIET_AT_MOST, False, 0
        while time.monotonic() - since < QUIET_SECONDS or not told:
            if time.monotonic() > end:
                raise TimeoutError("the gateway has not become quiet")
            time.sleep(0.05)
            now = [one.cpu() for one in self.both]
            ran = ran + 1 if any(one.runs() for one in self.both) else 0
            if ran > 2 or any(new - old > 0.08 for new, old in zip(now, before, strict=True)):
                before, since, told = now, time.monotonic(), False
            elif not told and time.monotonic() - since >= QUIET_SECONDS:
                told = self._admin.get("/workers").json()["items"][0]["lag"] == 0
                before, since = [one.cpu() for one in self.both], time.monotonic()

    def version(self) -> int:
        """Of the configuration in force."""
        lines = httpx.get(self._metrics, trust_env=False, timeout=60).text.splitlines()
        return int(next(float(line.split()[-1]) for line in lines if line.startswith("gatehouse_config_version")))

    def late(self) -> dict[float, float]:
        """By bound, in all processes together: wake-ups that were not later."""
        found = {}
        for line in httpx.get(self._metrics, trust_env=False, timeout=60).text.splitlines():
            if line.startswith("gatehouse_loop_lag_seconds_bucket"):
                bound = float(line.partition('le="')[2].partition('"')[0])
                found[bound] = float(line.split()[-1])
        return found

    def kept(self) -> float:
        """KiB."""
        return sum(path.stat().st_size for path in self._texts.iterdir()) / 1024

    def used(self) -> list[float]:
        """So far: seconds of CPU of both processes, and KiB that the worker has read."""
        return [*(one.cpu() for one in self.both), self.both[1].read() / 1024]

    def rest(self) -> dict[str, float]:
        """What is used while nothing happens."""
        self.quiet()
        before = self.used()
        time.sleep(SETTLED)
        self.idle = [now - was for now, was in zip(self.used(), before, strict=True)]
        control, worker, told = (one / SETTLED for one in self.idle)
        return {"idle: control, CPU in %": control * 100, "worker, CPU in %": worker * 100, "told, KiB/s": told}

    def change(self, what: str, act: Callable[[], httpx.Response], configures: bool, profile: Path | None) -> dict[str, Any]:
        """Raises TimeoutError."""
        version, late, kept = self.version(), self.late(), self.kept()
        self.quiet()
        recorders = [] if profile is None else [self._recorded(pid, profile / f"{what}-{place}.txt") for place, pid in enumerate(self._ids)]
        if recorders:
            time.sleep(2)
        before, begin = self.used(), time.monotonic()
        act().raise_for_status()
        answered = time.monotonic() - begin
        settled = SETTLED / 6 if what.startswith("list of") else SETTLED
        time.sleep(max(0.0, settled - answered))
        share = max(settled, answered) / SETTLED
        control, worker, told = (now - was - idle * share for now, was, idle in zip(self.used(), before, self.idle, strict=True))
        if configures and self.version() <= version:
            raise TimeoutError("the change has not come into force")
        after = self.late()
        total = after.get(float("inf"), 0) - late.get(float("inf"), 0)
        bound = min((bound for bound in after if after[bound] - late.get(bound, 0) >= total), default=0.0)
        for recorder in recorders:
            recorder.wait(60)
        row = {"change": what, "answered after, s": answered, "control, s of CPU": control, "worker, s of CPU": worker}
        return {**row, "told, KiB": told, "kept, KiB": self.kept() - kept, "late, ms": bound * 1000}

    def _recorded(self, pid: int, file: Path) -> subprocess.Popen[bytes]:
        spy = ["py-spy", "record", "-r", "250", "-d", "10", "-f", "raw", "-o", str(file), "--pid", str(pid)]
        return subprocess.Popen(spy, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def plan(of: str, admin: httpx.Client, count: int, turn: int) -> list[tuple[str, Callable[[], httpx.Response], bool]]:
    """(what, how, whether it changes the configuration)."""
    if of == "others":
        return others.plan(admin, count, turn)
    if of in further.KINDS:
        return further.plan(of, admin, count, turn)
    name = f"{count // 2 + turn:06d}"
    if of == "engines":
        return [
            ("engine changed", lambda: admin.patch(f"/engines/e{name}", json={"slots": 5 + turn}), True),
            ("model changed", lambda: admin.patch(f"/models/m{name}", json={"aliases": [f"alias-{turn}"]}), True),
        ]
    role = {"name": f"r{name}x", "permissions": ["infer:chat:model/x-*"]}
    return [
        ("role changed", lambda: admin.patch(f"/roles/r{name}", json={"permissions": [f"infer:chat:model/other-{turn}-*"]}), True),
        ("role made", lambda: admin.post("/roles", json=role), True),
        ("binding changed", lambda: admin.patch(f"/bindings/b{name}", json={"subjects": [f"user/other-{turn}"]}), True),
        ("tenant changed", lambda: admin.patch(f"/tenants/t{name}", json={"description": str(turn)}), False),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="what a large store costs")
    parser.add_argument("--of", choices=("access", "engines", "others", *further.KINDS), default="access")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--changes", type=int, default=3)
    parser.add_argument("--profile", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gatehouse-bench-") as folder:
        directory = Path(folder)
        (directory / "state").mkdir()
        port = answering()
        asyncio.run(made(directory / "state", given.of, given.count, port))
        own = {
            "engines": [external("own", port)],
            "models": [{"name": "m", "pool": ["own"]}],
            "store": {"upstreams": ["127.0.0.0/8"]},
            "jobs": {"enabled": True},
        }
        config = configuration(directory / "state", **own)
        config["identity"]["api_keys"]["static"].append(
            {"id": "root", "key": ROOT_KEY, "tenant": "ops", "models": ["*"], "roles": ["admin"]}
        )
        gatehouse = Gatehouse(directory, config, {"GATEHOUSE_PEPPER": PEPPER}, ["--workers", "1"])
        gatehouse.start(300.0)
        try:
            headers = {"authorization": f"Bearer {ROOT_KEY}"}
            with httpx.Client(base_url=f"{gatehouse.admin_url}/admin/v1", headers=headers, trust_env=False, timeout=120) as admin:
                measured = Measured(gatehouse, admin, directory / "state" / "policies")
                measured.quiet()
                print(table_of([{**row, "start, s of CPU": one.cpu()} for row, one in measured.shown()]), flush=True)
                print(table_of([measured.rest()]), flush=True)
                changes = [one for turn in range(given.changes) for one in plan(given.of, admin, given.count, turn)]
                print(table_of([measured.change(what, act, configures, given.profile) for what, act, configures in changes]))
                print(table_of([row for row, _ in measured.shown()]), flush=True)
        finally:
            gatehouse.stop()


if __name__ == "__main__":
    main()
