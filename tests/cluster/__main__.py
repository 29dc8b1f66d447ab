"""A cluster by hand: `python -m tests.cluster [--workers N]` prints where everything is; Ctrl-C ends all of it."""

from __future__ import annotations

import argparse
import signal
import threading

from tests.cluster.cluster import ADMIN_KEY, MODELS, Cluster
from tests.e2e.harness import KEY


def describe(cluster: Cluster) -> None:
    rows = [("haproxy", cluster.url, cluster.haproxy), ("engine", cluster.engine.url, cluster.engine)]
    print(f"\nup in {cluster.seconds:.1f} s; folder {cluster.directory}\n")
    for name, url, server in rows:
        print(f"{name:<12} {url:<28} pid {server.process.pid if server.process else '-'}")
    for replica in cluster.replicas.values():
        workers = " ".join(map(str, replica.workers())) if replica.expected else "none, one process"
        print(f"replica {replica.name:<4} {replica.url:<28} pid {replica.pid}; workers {workers}; admin {replica.admin_url}")
    print(f"PostgreSQL   {cluster.postgres.url('cluster')}")
    print(f"Redis        {cluster.redis.socket}")
    print(f"\nkey          {KEY}\nadmin key    {ADMIN_KEY}\nmodels       {' '.join(MODELS)} far")
    body = '{"model": "stream", "stream": true, "messages": [{"role": "user", "content": "Hello!"}]}'
    print(f"\n  curl -N {cluster.url}/v1/chat/completions -H 'authorization: Bearer {KEY}' -d '{body}'")
    print(f"  GATEHOUSE_API_KEY={ADMIN_KEY} gatehouse --url {cluster.a.admin_url} status")
    print("\nCtrl-C ends everything.", flush=True)


def main() -> None:
    arguments = argparse.ArgumentParser(prog="scripts/cluster", description=__doc__)
    arguments.add_argument("--workers", type=int, help="data workers of each gateway; without it, each is one process")
    given = arguments.parse_args()
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: stop.set())
    cluster = Cluster(given.workers).start()
    try:
        describe(cluster)
        while not stop.wait(1):
            pass
    finally:
        wrong = cluster.close()
    print("\n".join(wrong) or "everything has ended")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
