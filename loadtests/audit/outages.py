"""What a gateway under load refuses and loses when its audit sinks or its disk fail: `python -m loadtests.audit.outages --what away`.

A gateway whose log goes to a real rsyslog (TLS) and an HTTP server serves `--rate` requests/s. After `--before` seconds something fails for
`--for` seconds, then all is well again:

- `away`: neither of the two answers on its port;
- `frozen`: rsyslog gets SIGSTOP: its kernel takes bytes, and nobody reads them;
- `full`: the file system of the log has no room (ENOSPC; a tmpfs, so root only);
- `error`: every write and fdatasync of the log fails with EIO (a library that is loaded before the C library does it).

Required: every request that was answered is in the log; both servers have every line of it in the end, byte for byte in rsyslog; without
duplicates once those with the same writer, number and hash are removed; all refusals are `audit_unavailable`; `audit verify` says ok; with
`--required BYTES`, no more than that and two seconds' records ever waited for a server. Exit code 1 when that is not so.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from loadtests.audit.kills import BODY, HEAD
from loadtests.audit.receivers import HttpSiem, in_rsyslog, logged
from loadtests.routing.bench import EngineProcess
from tests.e2e.harness import KEY, ROOT, Gatehouse, configuration, external
from tests.integration.disk import disk_of
from tests.integration.rsyslog import Rsyslog
from tests.waiting import until

WAITING: Final = "gatehouse_audit_sink_waiting_bytes"
MIB: Final = 1024 * 1024
ROOM: Final = 4096 * MIB
PER_REQUEST: Final = 2048
"""Bytes of the log, at most."""
LEFT: Final = 256 * 1024
"""Bytes that a full disk has left when it is filled."""
FAILING: Final = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>
static int fails(int fd) {
    const char *flag = getenv("FAILING_FLAG");
    char link[64], path[4096];
    if (!flag || access(flag, F_OK)) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return strstr(path, "/audit/audit-") || strstr(path, "/audit/checkpoints-");
}
#define REAL(name) ((__typeof__(name) *)dlsym(RTLD_NEXT, #name))
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    if (fails(fd)) { errno = EIO; return -1; }
    return REAL(pwrite)(fd, data, size, at);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    if (fails(fd)) { errno = EIO; return -1; }
    return REAL(pwrite64)(fd, data, size, at);
}
int fdatasync(int fd) {
    if (fails(fd)) { errno = EIO; return -1; }
    return REAL(fdatasync)(fd);
}
"""


@dataclass
class Found:
    """answered: the ids of requests with a 200. refused: other answers, by status and code. broken: connections that ended early. waiting:
    the most bytes that waited for each sink."""

    answered: set[str] = field(default_factory=set)
    refused: Counter[str] = field(default_factory=Counter)
    broken: int = 0
    waiting: Counter[str] = field(default_factory=Counter)
    took: float = 0.0
    drained: float = 0.0
    lost: int = 0
    problems: list[str] = field(default_factory=list)


class Load:
    """Requests at a steady rate over some connections, each of which sends one when it is due. One that is late by a second is left out."""

    def __init__(self, found: Found, port: int, rate: float, connections: int) -> None:
        self._found, self._port, self._step, self._connections = found, port, connections / rate, connections
        self._over = False
        self._sent = 0

    async def run(self, parts: list[tuple[float, Callable[[], None]]], look: Callable[[], None]) -> None:
        """parts: for how many seconds to wait, and what happens then. look: called once a second, in a thread."""
        clients = [asyncio.ensure_future(self._client(number)) for number in range(self._connections)]
        watch = asyncio.ensure_future(self._watch(look))
        began = time.monotonic()
        for seconds, happens in parts:
            await asyncio.sleep(seconds)
            await asyncio.to_thread(happens)
        self._over = True
        self._found.took = time.monotonic() - began
        await asyncio.wait([*clients, watch], timeout=60)

    async def _watch(self, look: Callable[[], None]) -> None:
        while not self._over:
            await asyncio.to_thread(look)
            await asyncio.sleep(1.0)

    async def _client(self, number: int) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + self._step * number / self._connections
        reader: asyncio.StreamReader | None = None
        while not self._over:
            await asyncio.sleep(max(0.0, due - loop.time()))
            due = max(due + self._step, loop.time() - 1.0)
            try:
                if reader is None:
                    reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                await self._request(reader, writer)
            except (OSError, EOFError):
                self._found.broken += 1
                reader = None

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._sent += 1
        request_id = f"o-{self._sent}"
        writer.write((HEAD % (KEY, request_id)).encode() + b"content-length: %d\r\n\r\n%b" % (len(BODY), BODY))
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        (line,) = (line for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
        body = await reader.readexactly(int(line[15:]))
        status = head.split(b" ", 2)[1].decode()
        if status == "200":
            self._found.answered.add(request_id)
        else:
            code = body.partition(b'"code":"')[2].partition(b'"')[0].decode()
            self._found.refused[f"{status} {code}"] += 1
        if b"\r\nconnection: close" in head:
            raise EOFError


class Bench:
    """The gateway and what stands around it."""

    def __init__(self, options: argparse.Namespace, place: Path, state: Path, engine: EngineProcess) -> None:
        self.options, self.place = options, place
        self.rsyslog, self.http = Rsyslog(place).start(), HttpSiem()
        address, tls = f"tls://127.0.0.1:{self.rsyslog.tls}", {"ca": self.rsyslog.authority.cert}
        common: dict[str, object] = {"history": True, "timeout": "2s"}
        if options.required:
            common |= {"required": True, "spool_bytes": options.required}
        sinks = [
            {"type": "file", "segment_bytes": "8MiB"},
            {"type": "syslog", "settings": {"address": address, "tls": tls, **common}},
            {"type": "http", "settings": {"url": self.http.url, **common}},
        ]
        audit = {"durability": options.durability, "sinks": sinks, "timeout": "2s"}
        models = [{"name": "m1", "pool": ["e"]}]
        config = configuration(state, engines=[external("e", engine.port, slots=256)], models=models, audit=audit)
        self.flag = place / "failing"
        self.gatehouse = Gatehouse(place, config, self._environment())

    def _environment(self) -> dict[str, str]:
        if self.options.what != "error":
            return {}
        source, library = self.place / "failing.c", self.place / "failing.so"
        source.write_text(FAILING)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
        return {"LD_PRELOAD": str(library), "FAILING_FLAG": str(self.flag)}

    def fail(self) -> None:
        what = self.options.what
        if what == "away":
            self.rsyslog.stop()
            self.http.away()
        elif what == "frozen":
            self.rsyslog.freeze()
        elif what == "full":
            self._fill()
        else:
            self.flag.touch()

    def heal(self) -> None:
        what = self.options.what
        if what == "away":
            self.http.back()
            self.rsyslog.start()
        elif what == "frozen":
            self.rsyslog.thaw()
        elif what == "full":
            (self.gatehouse.state_dir / "filler").unlink()
        else:
            self.flag.unlink()

    def _fill(self) -> None:
        part = bytes(LEFT)
        with (self.gatehouse.state_dir / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(part)

    def look(self, found: Found) -> None:
        for name in ("syslog", "http"):
            found.waiting[name] = max(found.waiting[name], int(self.gatehouse.metric(WAITING, sink=name)))

    def drain(self, seconds: float) -> None:
        """Waits until both servers have everything."""
        until(lambda: all(self.gatehouse.metric(WAITING, sink=name) == 0 for name in ("syslog", "http")), seconds, "the sinks")

    def close(self) -> None:
        process = self.gatehouse.process
        if process is not None and process.poll() is None:
            process.kill()
            process.wait(60)
        self.rsyslog.stop()
        self.http.away()


@contextlib.contextmanager
def place_of(what: str, place: Path) -> Iterator[Path]:
    """The state directory."""
    if what != "full":
        yield place / "state"
        return
    with disk_of(place / "disk", 64 * MIB, ROOM) as (disk, _):
        if not disk.is_mount():
            sys.exit("a full disk needs a tmpfs, which only root may mount")
        yield disk / "state"


def judge(found: Found, bench: Bench) -> None:
    """Ends the gateway, then compares the log with what both servers have."""
    bench.gatehouse.stop()
    directory = bench.gatehouse.state_dir / "audit"
    lines: dict[tuple[str, int, bytes], bytes] = {}
    intents: set[str] = set()
    for writer, seq, line in logged(directory):
        lines[writer, seq, line[-66:-2]] = line
        if b'"kind":"intent"' in line[:48]:
            intents.add(line.partition(b'"request_id":"')[2].partition(b'"')[0].decode())
    found.lost = len(found.answered - intents)
    with contextlib.suppress(AssertionError):  # it may still be reading
        until(lambda: len(lines) <= len({(writer, seq) for writer, seq, _ in in_rsyslog(bench.rsyslog)}), 30, "rsyslog")
    got: Counter[tuple[str, int, bytes]] = Counter()
    for writer, seq, line in in_rsyslog(bench.rsyslog):
        one = (writer, seq, line[-66:-2])
        got[one] += 1
        if lines.get(one, line) != line:
            found.problems.append(f"rsyslog has line {seq} of {writer} otherwise")
    for name, had in (("syslog", got), ("http", bench.http.got)):
        missing, again = len(lines.keys() - had.keys()), sum(had.values()) - len(had)
        foreign = len(had.keys() - lines.keys())
        numbers = Counter(one[:2] for one in had)
        print(f"{name}: lines {len(lines)}, missing {missing}, that came again {again}, not in the log {foreign}")
        if missing or any(count > 1 for count in numbers.values()):
            found.problems.append(f"{name} lacks {missing} lines, and has {sum(count > 1 for count in numbers.values())} numbers twice")
    key = bench.gatehouse.state_dir / "keys" / "audit-signing.pub.pem"
    command = [sys.executable, "-m", "gateway", "audit", "verify", "--dir", str(directory), "--public-key", str(key)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    print("audit verify " + ("ok" if done.returncode == 0 else done.stdout))
    if done.returncode:
        found.problems.append("audit verify is not ok")


def run(options: argparse.Namespace, place: Path, state: Path, engine: EngineProcess, found: Found) -> None:
    bench = Bench(options, place, state, engine)
    try:
        bench.gatehouse.start()
        load = Load(found, int(bench.gatehouse.url.rpartition(":")[2]), options.rate, options.connections)
        parts: list[tuple[float, Callable[[], None]]] = [
            (options.before, bench.fail),
            (options.outage, bench.heal),
            (options.after, lambda: None),
        ]
        asyncio.run(load.run(parts, lambda: bench.look(found)))
        began = time.monotonic()
        bench.drain(600)
        found.drained = time.monotonic() - began
        judge(found, bench)
    finally:
        bench.close()


def report(options: argparse.Namespace, found: Found) -> None:
    rate = (len(found.answered) + sum(found.refused.values())) / found.took
    print(f"{options.what} for {options.outage:g} s, durability {options.durability}: {rate:.0f} requests/s")
    print(f"answered {len(found.answered)}, refused {dict(found.refused)}, connections that broke {found.broken}")
    print(f"answered and not in the log {found.lost}")
    print(f"most bytes that waited {dict(found.waiting)}, all sent {found.drained:.1f} s after the load's end")
    if found.lost:
        found.problems.append(f"{found.lost} requests are lost")
    if strange := [what for what in found.refused if what != "503 audit_unavailable"]:
        found.problems.append(f"answers {strange}")
    if options.required and max(found.waiting.values()) > options.required + 2 * options.rate * PER_REQUEST:
        found.problems.append("more bytes waited than the spool may hold")
    for problem in found.problems[:20]:
        print(f"NOT met: {problem}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", choices=["away", "frozen", "full", "error"], required=True)
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--before", type=float, default=3.0)
    parser.add_argument("--for", dest="outage", type=float, default=10.0)
    parser.add_argument("--after", type=float, default=5.0)
    parser.add_argument("--durability", choices=["async", "write", "fsync"], default="write")
    parser.add_argument("--required", type=int, default=0, help="both sinks are required, with so many bytes of spool")
    options = parser.parse_args()
    found, engine = Found(), EngineProcess()
    try:
        with tempfile.TemporaryDirectory(prefix="outages-") as name, place_of(options.what, Path(name)) as state:
            run(options, Path(name), state, engine, found)
    finally:
        engine.kill()
    report(options, found)
    sys.exit(1 if found.problems else 0)


if __name__ == "__main__":
    main()
