"""What a figure needs to be believed: the command, the versions, the machine, and every outcome counted."""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gateway.app.release import release
from tests.cluster.cluster import Cluster, Replica
from tests.cluster.machine import memory, processor
from tests.integration.postgres import binaries

Rows = Sequence[dict[str, Any]]


def arguments(description: str | None, **defaults: Any) -> argparse.ArgumentParser:
    """A parser with the options that all drivers share; `defaults` replace theirs and add further ones (named as in Python)."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = {"workers": 2, "rate": 1000, "streams": 0.1}
    for name, value in {**shared, **defaults}.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value, help=f"default: {value}")
    return parser


def header(cluster: Cluster) -> None:
    """The command, the versions, the machine and the cluster's start, as lines before the tables."""
    module = sys.modules["__main__"].__spec__
    command = f"python -m {module.name if module else sys.argv[0]} {' '.join(sys.argv[1:])}".strip()
    build = "compiled" if any("the hot path is compiled" in line for line in cluster.a.lines) else "from its sources"
    print(f"`{command}`, {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}\n")
    print(f"Gatehouse {release()} ({build}), {cluster.workers or 'no'} workers each, up in {cluster.seconds:.1f} s;")
    print(f"{_first('haproxy', '-v')}; {_first(str(binaries() / 'postgres'), '--version')};")
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"Python {platform.python_version()}, Linux {platform.release()}, {os.cpu_count()} processors, load before {load}\n", flush=True)


def _first(*command: str) -> str:
    environ = {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin"}
    try:
        out = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return f"{Path(command[0]).name}: version unknown"
    return out.partition("\n")[0].partition(" - ")[0]


def table(rows: Rows) -> None:
    """Markdown."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    print(f"| {' | '.join(names)} |\n|{'---|' * len(names)}")
    for row in rows:
        print(f"| {' | '.join(_shown(row.get(name, '')) for name in names)} |")
    print(flush=True)


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
    return str(value)


def outcomes(account: dict[str, Any], name: str = "all") -> dict[str, Any]:
    """The row of an account (tests/cluster/load.py): every request is ok at once, ok after a repetition, or failed with its last reason."""
    return {
        "requests": name,
        "sent": account["sent"],
        "of them streams": account["streams"],
        "ok at once": account["ok"] - account["retried"],
        "ok when repeated": account["retried"],
        "failed": sum(account["failed"].values()),
        "reasons (first / last)": f"{reasons(account['first'])} / {reasons(account['failed'])}",
        "p50 / p99 / max, ms": f"{account['p50']:.1f} / {account['p99']:.1f} / {account['max']:.0f}",
        "first event p50 / p99": f"{account['first_p50']:.1f} / {account['first_p99']:.1f}",
        "sent late p99": account["sent_late_p99"],
    }


def reasons(counted: dict[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in sorted(counted.items())) or "-"


def spread(seconds: Iterable[float]) -> dict[str, float]:
    """p50, p99 and max in milliseconds."""
    values = sorted(seconds)
    at = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return {f"{name}, ms": values[min(len(values) - 1, int(len(values) * share))] * 1000 for name, share in at.items()} if values else {}


def verified(replica: Replica) -> dict[str, Any]:
    """The row of a replica's audit log, checked by itself: records of each writer, and whether all of it holds."""
    with replica.admin() as client:
        answer = client.post("/audit/verify", timeout=300)
        answer.raise_for_status()
        report = answer.json()
    writers = report["writers"]
    intents, outcomes = recorded(replica)
    return {
        "audit log of": replica.name,
        "verifies": "yes" if report["ok"] else f"NO: {report['first_problem']}",
        "writers": len(writers),
        "lines": sum(writer["lines"] for writer in writers),
        "left in journals": sum((writer["journal"] or {}).get("unchained", 0) for writer in writers),
        "intents": len(intents),
        "of them without an outcome": len(intents - outcomes),
    }


def recorded(replica: Replica) -> tuple[set[str], set[str]]:
    """Ids of the requests with an intent, and of those with an outcome, of all writers of a replica."""
    found: dict[str, set[str]] = {"intent": set(), "outcome": set()}
    for record in replica.audit():
        if record["kind"] in found:
            found[record["kind"]].add(record["request_id"])
    return found["intent"], found["outcome"]


class Usage:
    """Processor time of the processes of a cluster, from now on."""

    def __init__(self, cluster: Cluster, load: int) -> None:
        self._cluster, self._load, self._begin = cluster, load, time.monotonic()
        self._before = self._now()

    def _now(self) -> Counter[str]:
        cluster, found = self._cluster, Counter[str]()
        for replica in cluster.replicas.values():
            if replica.runs():
                found["control"] += processor([replica.pid]) if replica.expected else 0.0  # type: ignore[assignment]
                found["workers"] += processor(replica.workers())  # type: ignore[assignment]
        for name, server in (("haproxy", cluster.haproxy), ("engine", cluster.engine)):
            found[name] += processor([server.process.pid] if server.process else [])  # type: ignore[assignment]
        found["load"] += processor([self._load])  # type: ignore[assignment]
        return found

    def row(self, requests: int) -> dict[str, Any]:
        """Percent of one processor since the start of this, and the gateways' microseconds for a request; only while no process changed."""
        now, seconds = self._now(), time.monotonic() - self._begin
        used = {name: now[name] - self._before[name] for name in now}
        gateways = used["control"] + used["workers"]
        shares = {f"{name}, %": used[name] / seconds * 100 for name in used}
        return {**shares, "gateways, us a request": gateways / requests * 1e6 if requests else 0.0}


def resident(cluster: Cluster) -> list[dict[str, Any]]:
    """Resident memory of each process of the gateways, MiB."""
    rows = []
    for replica in (one for one in cluster.replicas.values() if one.runs()):
        workers = [memory(pid) / 2**20 for pid in replica.workers()]
        control = memory(replica.pid) / 2**20
        shown = " / ".join(f"{value:.0f}" for value in workers)
        rows.append({"resident": replica.name, "control, MiB": control, "workers, MiB": shown})
    return rows
