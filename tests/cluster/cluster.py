"""The cluster: PostgreSQL, Redis, an engine, two gateways ("a" and "b") and haproxy in front of them, all on this machine."""

from __future__ import annotations

import contextlib
import copy
import http.client
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

from tests.cluster.load import request_bytes
from tests.cluster.machine import Ports, children, client_ports, command, family, in_sessions, marked
from tests.cluster.proxy import Network, Proxy
from tests.cluster.servers import EngineServer, Haproxy, RedisServer, short_directory
from tests.e2e.harness import KEY, Gatehouse, configuration, external
from tests.integration.postgres import USER, PostgresServer
from tests.plain import PLAIN
from tests.waiting import until

ADMIN_KEY = "admin-key-0123456789abcdef0123456789abcdef"
PEPPER = "a pepper that two replicas share in the tests"
MODELS = {"static": "static", "stream": "stream", "long": "stream-100", "slow": "slow-0.5"}
"""Public names, and the engine's: JSON at once; 10 events; 100 events; JSON after half a second."""
NAMES = ("a", "b")


class Replica(Gatehouse):
    """One gateway of the cluster, always on the same ports. Its ways to PostgreSQL, Redis and the engine are proxies."""

    own_session = True

    def __init__(self, name: str, directory: Path, config: dict[str, Any], environ: dict[str, str], workers: int | None) -> None:
        super().__init__(directory, config, environ, [] if workers is None else ["--workers", str(workers)])
        self.name, self.expected = name, workers
        self.port = int(config["listen"]["data"].rpartition(":")[2])
        self.ways: dict[str, Proxy] = {}
        self.sessions: list[int] = []
        """Process ids of its starts so far: each began a session."""

    def launch(self) -> Replica:
        super().launch()
        self.sessions.append(self.pid)
        return self

    @property
    def pid(self) -> int:
        """The control process (without workers, the only one)."""
        assert self.process is not None
        return self.process.pid

    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def workers(self) -> list[int]:
        """Process ids of the data workers; without workers, of the one process."""
        if self.expected is None:
            return [self.pid]
        return [pid for pid in children(self.pid) if "gateway" in command(pid) and "serve" not in command(pid)]

    def processes(self) -> set[int]:
        """All that it has started and that still runs, itself included."""
        return family(self.pid) if self.runs() else set(in_sessions(self.sessions))

    def all_there(self) -> bool:
        """Whether as many workers serve as were asked for, and no others are left."""
        if self.expected is None:
            return self.runs()
        return len(self.workers()) == self.expected and self.metric("gatehouse_workers", state="ready") == self.expected

    def served_by(self, worker: int) -> set[int]:
        """The clients' ports of a worker's connections."""
        return client_ports(worker, self.port)

    def kill(self) -> None:
        """kill -9 of the control process, and the wait for its end. Its workers and sidecars are to end by themselves."""
        os.kill(self.pid, signal.SIGKILL)
        assert self.process is not None
        self.process.wait(90)

    def readiness(self) -> tuple[int, dict[str, Any]]:
        answer = httpx.get(f"{self.url}/readyz", verify=PLAIN, trust_env=False, timeout=30)
        return answer.status_code, answer.json()

    def admin(self) -> httpx.Client:
        headers = {"authorization": f"Bearer {ADMIN_KEY}"}
        return httpx.Client(base_url=f"{self.admin_url}/admin/v1", headers=headers, verify=PLAIN, trust_env=False, timeout=60)

    def make_key(self, **fields: Any) -> tuple[str, str]:
        """A new key of the store: its id and its secret."""
        with self.admin() as client:
            answer = client.post("/keys", json={"tenant": "acme", "models": ["*"], **fields})
            answer.raise_for_status()
            return answer.json()["id"], answer.json()["secret"]

    def revoke(self, id: str, wait: float = 0.0) -> bool:
        """Revokes a key. wait: seconds to wait for every worker of this replica; whether all have put it into force by then."""
        with self.admin() as client:
            answer = client.post(f"/keys/{id}/revoke", params={"wait": wait} if wait else {})
            answer.raise_for_status()
            return answer.headers.get("x-gatehouse-in-force") == "true"


class Cluster:
    """Use as a context manager; leaving it ends every process and fails if one is left, or if a gateway did not end cleanly.

    workers: data workers of each gateway; None: each is one process. parts: settings for both gateways, `listen` being merged.
    """

    def __init__(self, workers: int | None = None, **parts: Any) -> None:
        self.directory = short_directory("gh-cluster-")
        self.mark = f"GATEHOUSE_CLUSTER={self.directory}"
        self.ports, self.network = Ports(), Network()
        self.postgres = PostgresServer(own_session=True)
        self.redis = RedisServer(self.directory)
        self.engine = EngineServer(self.directory, self.ports.take())
        self.workers = workers
        self.replicas = {name: self._replica(name, parts) for name in NAMES}
        self.a, self.b = (self.replicas[name] for name in NAMES)
        self.haproxy = Haproxy(self.directory, self.ports.take(), {name: r.port for name, r in self.replicas.items()})
        self.url = self.haproxy.url
        self.seconds = 0.0
        """How long the start took."""

    def _replica(self, name: str, parts: dict[str, Any]) -> Replica:
        targets: dict[str, tuple[str, int] | str] = {
            "postgres": str(self.postgres.directory / ".s.PGSQL.5432"),
            "redis": self.redis.socket,
            "engine": ("127.0.0.1", self.engine.port),
        }
        ways = {what: self.network.proxy(target) for what, target in targets.items()}
        directory = self.directory / name
        directory.mkdir()
        replica = Replica(
            name,
            directory,
            self._configuration(directory, ways, parts),
            {"GATEHOUSE_PEPPER": PEPPER, "GATEHOUSE_CLUSTER": str(self.directory)},
            self.workers,
        )
        replica.ways = ways
        return replica

    def _configuration(self, directory: Path, ways: dict[str, Proxy], parts: dict[str, Any]) -> dict[str, Any]:
        parts = copy.deepcopy(parts)  # each replica its own
        listen = {
            "data": f"127.0.0.1:{self.ports.take()}",
            "admin": f"127.0.0.1:{self.ports.take()}",
            "trusted_peers": ["127.0.0.0/8"],
            "max_connections": 20_000,
            "max_connections_per_peer": 20_000,
            "drain_delay": "1s",
            **parts.get("listen", {}),
        }
        # Through the engine's proxy only by the model `far`: it would cost the load drivers more than the gateway does.
        health = {"timeout": 2}  # the usual one: what the network swallows is to be noticed
        engines = [
            external("engine", self.engine.port, slots=1024, health=health),
            external("far", ways["engine"].port, slots=64, health=health),
        ]
        models: list[dict[str, Any]] = [{"name": name, "pool": [{"engine": "engine", "model": theirs}]} for name, theirs in MODELS.items()]
        made = configuration(
            directory / "state",
            **{
                "engines": engines,
                "models": [*models, {"name": "far", "pool": [{"engine": "far", "model": "static"}]}],
                "store": {"url": f"postgresql://{USER}@127.0.0.1:{ways['postgres'].port}/cluster", "upstreams": ["127.0.0.0/8"]},
                "redis": {"url": f"redis://127.0.0.1:{ways['redis'].port}"},
                **parts,
                "listen": listen,
            },
        )
        root = {"id": "root", "key": ADMIN_KEY, "tenant": "acme", "models": ["*"], "roles": ["admin"]}
        made["identity"]["api_keys"]["static"].append(root)
        return made

    # --- life

    def start(self) -> Cluster:
        begin = time.monotonic()
        try:
            together(self.redis.start, self.engine.start, self._start_postgres)
            together(*(replica.start for replica in self.replicas.values()))
            self.haproxy.start()
            until(lambda: self.haproxy.up() == set(NAMES), what="both replicas behind haproxy")
        except BaseException:
            self.close()
            raise
        self.seconds = time.monotonic() - begin
        return self

    def _start_postgres(self) -> None:
        self.postgres.start()
        self.postgres.execute("CREATE DATABASE cluster")

    def mend(self) -> None:
        """Takes every fault back: what was stopped goes on, what ended starts again."""
        for way in self._ways():
            way.heal()
        self.redis.thaw()
        self.engine.thaw()
        for replica in self.replicas.values():
            if not replica.runs():
                replica.start()

    def _ways(self) -> list[Proxy]:
        return [way for replica in self.replicas.values() for way in replica.ways.values()]

    def close(self) -> list[str]:
        """Ends everything; returns what was wrong with that."""
        wrong: list[str] = []

        def stop(replica: Replica) -> None:
            if replica.process is not None:
                killed = replica.process.poll() == -signal.SIGKILL
                if replica.runs():
                    replica.process.send_signal(signal.SIGINT)  # with the one that follows, it does not wait for load balancers
                code = replica.stop(seconds=90)
                if code != 0 and not killed:
                    wrong.append(f"replica {replica.name} ended with {code}:\n" + "\n".join(replica.lines[-30:]))

        self.haproxy.stop()
        for way in self._ways():
            way.heal()
        together(*((lambda replica=replica: stop(replica)) for replica in self.replicas.values()))
        self.engine.stop()
        self.redis.stop()
        self.postgres.remove()
        for way in self._ways():
            way.close()
        self.network.close()
        self.ports.close()
        try:
            until(lambda: not self.left(), 15, "the end of all processes")
        except AssertionError:
            for pid in self.left():
                wrong.append(f"left: {pid} {' '.join(command(pid))}")
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.directory, ignore_errors=True)
        return wrong

    def left(self) -> list[int]:
        """Every live process of the cluster, PostgreSQL's aside."""
        servers = (self.haproxy, self.engine, self.redis)
        leaders = [pid for replica in self.replicas.values() for pid in replica.sessions]
        leaders += [server.process.pid for server in servers if server.process is not None]
        return sorted({*in_sessions(leaders), *marked(self.mark)})  # workers have sessions of their own

    def __enter__(self) -> Cluster:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        wrong = self.close()
        if exc[0] is None:
            assert not wrong, "\n".join(wrong)

    # --- traffic

    def chat(self, key: str = KEY, model: str = "static", url: str | None = None) -> httpx.Response:
        """A chat completion through haproxy, or at `url`, on a connection of its own."""
        body = {"model": model, "messages": [{"role": "user", "content": "Hello!"}]}
        return httpx.post(
            f"{url or self.url}/v1/chat/completions",
            json=body,
            headers={"authorization": f"Bearer {key}"},
            verify=PLAIN,
            trust_env=False,
            timeout=30,
        )

    @contextlib.contextmanager
    def at_each_worker(self, replica: Replica) -> Iterator[dict[int, Line]]:
        """A line to each of a replica's workers, by process id."""
        with contextlib.ExitStack() as stack:
            found: dict[int, Line] = {}

            def connect() -> bool:
                line = stack.enter_context(contextlib.closing(Line(replica.port)))
                owner = until(lambda: next((pid for pid in replica.workers() if line.port in replica.served_by(pid)), None), 10, "a worker")
                if owner in found:
                    line.close()
                found.setdefault(owner, line)
                return len(found) == len(replica.workers())

            until(connect, what=f"a connection to each worker of {replica.name}")
            yield found


class Line:
    """One connection that is kept, and so one worker's. port: of our end."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.port: int = self._socket.getsockname()[1]

    def chat(self, key: str = KEY, model: str = "static") -> int:
        """The status of a chat completion. Raises OSError or HTTPException when the connection is no more."""
        self._socket.sendall(request_bytes(key, model, False))  # at once: a refusal closes what was not read to its end
        answer = http.client.HTTPResponse(self._socket)
        answer.begin()
        answer.read()
        return answer.status

    def close(self) -> None:
        self._socket.close()


def together(*work: Callable[[], Any]) -> None:
    """Runs all at once, in threads, and waits for all; raises the first failure."""
    failed: list[BaseException] = []

    def run(one: Callable[[], Any]) -> None:
        try:
            one()
        except BaseException as error:  # noqa: BLE001 - raised by the caller
            failed.append(error)

    threads = [threading.Thread(target=run, args=(one,), daemon=True) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
