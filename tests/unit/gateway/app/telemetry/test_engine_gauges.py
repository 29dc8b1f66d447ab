"""What a scrape reads of sidecars."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from gateway.app.telemetry.engine_gauges import EngineGauges, EngineTimes


class Supervised:
    def __init__(self, *engines: dict[str, Any]) -> None:
        self._engines = list(engines)

    def engines(self) -> list[dict[str, Any]]:
        return self._engines


def shown(gauges: EngineGauges) -> dict[tuple[str, ...], float]:
    return {(s.name, *s.labels.values()): s.value for f in gauges.collect() for s in f.samples if not s.name.endswith("_bucket")}


def test_what_a_sidecar_reports_is_shown_while_it_is_ready() -> None:
    report = {"slots": 8, "in_use": 3, "queue": 1, "kv_used": 0.25, "vram_bytes": 1 << 30, "tokens_per_second": 99.5}
    up = {"name": "a", "state": "ready", "pid": os.getpid(), "restarts": 2, "out_of_memory": 1, **report}
    down = {"name": "b", "state": "loading", "pid": None, "restarts": 0, **report}
    unloaded = {"name": "c", "state": "stopped"}
    found = shown(EngineGauges(Supervised(up, down, unloaded), EngineTimes()))  # type: ignore[arg-type]
    assert found.pop(("gatehouse_engine_resident_bytes", "a")) > 1e6
    assert found == {
        ("gatehouse_engine_slots", "a"): 8,
        ("gatehouse_engine_slots_in_use", "a"): 3,
        ("gatehouse_engine_queue", "a"): 1,
        ("gatehouse_engine_kv_used_ratio", "a"): 0.25,
        ("gatehouse_engine_vram_bytes", "a"): 1 << 30,
        ("gatehouse_engine_tokens_per_second", "a"): 99.5,
        ("gatehouse_engine_restarts_total", "a"): 2,
        ("gatehouse_engine_restarts_total", "b"): 0,
        ("gatehouse_engine_restarts_total", "c"): 0,
        ("gatehouse_engine_out_of_memory_total", "a"): 1,
        ("gatehouse_engine_out_of_memory_total", "b"): 0,
        ("gatehouse_engine_out_of_memory_total", "c"): 0,
    }


def test_where_proc_hides_a_sidecar_its_memory_is_what_it_reports(tmp_path: Path) -> None:
    up = {"name": "a", "state": "ready", "pid": 4711, "resident_bytes": 5 << 20}
    older = {"name": "b", "state": "ready", "pid": 4712}
    found = shown(EngineGauges(Supervised(up, older), EngineTimes(), tmp_path))  # type: ignore[arg-type]
    assert {key: value for key, value in found.items() if key[0] == "gatehouse_engine_resident_bytes"} == {
        ("gatehouse_engine_resident_bytes", "a"): 5 << 20
    }


def test_loading_and_ending_are_timed_from_what_happens_to_sidecars() -> None:
    times = EngineTimes()
    for detail in ({"from": "loading", "load_seconds": 3.5}, {"from": "loading", "load_seconds": 1.5}, {"from": "ready"}):
        times.heard("a", detail)
    times.heard("a", {"from": "draining", "unload_seconds": 0.5})
    found = shown(EngineGauges(Supervised(), times))  # type: ignore[arg-type]
    assert (found["gatehouse_engine_load_seconds_count", "a"], found["gatehouse_engine_load_seconds_sum", "a"]) == (2, 5.0)
    assert found["gatehouse_engine_unload_seconds_sum", "a"] == 0.5
