"""No place, spelling, escape or API is a way around a guardrail: loadtests.guardrails.bypass with some spellings for every place."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.guardrails.bypass import Engine, Probe, gateway


@pytest.mark.parametrize("transport", ["HTTP", "socket", "gRPC"])
def test_nothing_passes(tmp_path: Path, transport: str) -> None:
    engine = Engine()
    try:
        with gateway(tmp_path, engine) as running:
            probe = Probe(running, engine, transport, few=True)
            probe.run()
    finally:
        engine.close()
    assert not any(probe.passed.values()), {row: found[:3] for row, found in probe.passed.items() if found}
    assert probe.tried.total() > (30 if transport == "gRPC" else 900)
    assert probe.lost() == [], "a place that forwards nothing proves nothing"
