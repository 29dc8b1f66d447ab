"""What a worker loads, and its share of what bounds a process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gateway.app.workers.share import share_of
from gateway.core.specs import ConfigSpec, ExporterSpec, ListenSpec, TelemetrySpec

ROOT = Path(__file__).parents[5]
NOT_LOADED = (
    *("redis", "sqlalchemy", "alembic", "psycopg", "starlette", "httpx", "typer", "rich"),
    *("engines.host", "gateway.store", "admin.api", "admin.app", "admin.resources", "gateway.app.gateway", "gateway.app.workers.control"),
)


def test_a_worker_loads_nothing_of_the_store_of_engines_or_of_the_admin_api() -> None:
    code = f"import sys, gateway.app.start, gateway.app.workers.process\nprint([name for name in {NOT_LOADED} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.strip() == "[]"


@given(st.integers(1, 64), st.integers(1, 100_000), st.integers(1, 100_000), st.integers(1 << 20, 1 << 40), st.integers(1, 1 << 24))
def test_all_workers_together_have_what_one_process_has(count: int, connections: int, per_peer: int, memory: int, body: int) -> None:
    listen = ListenSpec(max_connections=connections, max_connections_per_peer=per_peer, memory_bytes=memory, max_body_bytes=body)
    part = share_of(ConfigSpec(version=1, listen=listen), count).listen
    for whole, share in ((connections, part.max_connections), (per_peer, part.max_connections_per_peer)):
        assert whole <= share * count < whole + count
    assert share_of(ConfigSpec(version=1), count).files.max_open == -(-16 // count)
    assert part.memory_bytes >= body, "the largest body has room"
    assert part.memory_bytes == body or part.memory_bytes * count < memory + count


def test_metrics_are_exported_by_the_control_process_alone() -> None:
    telemetry = TelemetrySpec(log_level="debug", log_format="json", exporters=(ExporterSpec(type="textfile"),))
    spec = ConfigSpec(version=1, telemetry=telemetry)
    assert share_of(spec, 2).telemetry == msgspec.structs.replace(telemetry, exporters=())
