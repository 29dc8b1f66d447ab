"""Changes of the configuration under load: what 200 of them cost requests and streams, against quiet phases in between.

    python -m loadtests.cluster.reloads [--reloads 200] [--rate 500] [--workers 2] [--pause 0.2] [--phase 5] [--wait 0]

The changes, in turns: a limit, a model's aliases, a key made and revoked, the file read again; each at one replica, seen by both. Phases of
`--phase` seconds, quiet and with changes, take turns, so that what the machine does by itself falls on both alike. `--wait 10` waits for
each change until every worker has it. Exits with 1 when a request failed, a stream was cut or a change was refused or not in force.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator
from typing import Any

import httpx

from loadtests.cluster.evidence import arguments, header, outcomes, resident, spread, table
from tests.cluster.cluster import Cluster
from tests.cluster.load import Load
from tests.e2e.harness import KEY


def operator(client: httpx.Client, wait: float) -> Iterator[float]:
    """Makes one change after the other; the seconds until its answer. Raises AssertionError if an answer says that it is not in force."""
    params = {"wait": wait} if wait else {}

    def ask(method: str, path: str, body: Any = None) -> Any:
        answer = client.request(method, path, json=body, params=params)
        answer.raise_for_status()
        assert not wait or answer.headers["x-gatehouse-in-force"] == "true", f"{method} {path} is not in force"
        return answer.json()

    ask("POST", "/limits", {"name": "bench", "per": "key", "requests": {"rate": 1_000_000}})
    ask("POST", "/models", {"name": "stored", "pool": ["engine"]})
    for number in itertools.count():
        begin = time.monotonic()
        match number % 4:
            case 0:
                ask("PATCH", "/limits/bench", {"requests": {"rate": 1_000_000 + number}})
            case 1:
                ask("PATCH", "/models/stored", {"aliases": [f"stored-{number}"]})
            case 2:
                ask("POST", f"/keys/{ask('POST', '/keys', {'tenant': 'acme', 'models': ['*']})['id']}/revoke")
            case 3:
                ask("POST", "/config/reload")
        yield time.monotonic() - begin


def main() -> None:
    given = arguments(__doc__, rate=500, reloads=200, pause=0.2, phase=5.0, wait=0.0).parse_args()
    each = max(1, round(given.phase / given.pause))
    took: list[float] = []
    names: list[str] = []
    with Cluster(given.workers or None) as cluster, cluster.a.admin() as client:
        header(cluster)
        changes = operator(client, given.wait)
        next(changes)
        with Load([cluster.haproxy.port], KEY, rate=given.rate, streams=given.streams) as load:
            load.phase("warm")
            time.sleep(3)
            for number in range(0, given.reloads, each):
                names += [f"quiet {number}", f"changes {number}"]
                load.phase(names[-2])
                time.sleep(given.phase)
                load.phase(names[-1])
                for _ in range(min(each, given.reloads - number)):
                    took.append(next(changes))
                    time.sleep(max(0.0, given.pause - took[-1]))
            names.append("quiet at the end")
            load.phase(names[-1])
            time.sleep(given.phase)
        table([outcomes(load.account[name], name) for name in names] + [outcomes(load.total)])
        table([{"of a change": "until its answer", "times": len(took), **spread(took)}])
        table(resident(cluster))
        for failure in load.total["failures"][:10]:
            print(f"  {failure}")
    ratios = [
        load.account[names[at]]["p99"] / ((load.account[names[at - 1]]["p99"] + load.account[names[at + 1]]["p99"]) / 2)
        for at in range(1, len(names), 2)
    ]
    print(f"p99 with changes to that of the quiet phases beside it: median {statistics.median(ratios):.2f}, max {max(ratios):.2f}")
    raise SystemExit(load.total["ok"] != load.total["sent"])


if __name__ == "__main__":
    main()
