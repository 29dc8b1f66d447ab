"""What every metric exporter keeps to: a row of the table, and a life (gateway.core.plugins.Lives)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway.app.configuration.plugins import OURS
from gateway.core.errors import ConfigError
from gateway.core.plugins import Lives, no_files
from gateway.core.specs import ExporterSpec


@dataclass
class Case:
    """Settings that work, where its metrics then are, and settings with which it cannot start."""

    settings: dict[str, Any]
    exported: Callable[[], bytes]
    broken: dict[str, Any]


def textfile(folder: Path) -> Case:
    file = folder / "gatehouse.prom"
    return Case({"path": str(file)}, file.read_bytes, {"path": str(folder / "missing" / "gatehouse.prom")})


IMPLEMENTATIONS = {"textfile": textfile}
"""To add an exporter, add one."""


@pytest.fixture(params=IMPLEMENTATIONS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def case(name: str, tmp_path: Path) -> Case:
    return IMPLEMENTATIONS[name](tmp_path)


def make(name: str, settings: dict[str, Any], scrape: Callable[[], bytes]) -> object:
    return OURS.exporter(ExporterSpec(type=name, settings=settings), no_files, scrape)


def test_every_type_is_held_to_this_contract() -> None:
    assert set(IMPLEMENTATIONS) == {row.name for row in OURS.exporters}


async def test_metrics_are_exported_from_the_start_to_the_end(name: str, case: Case) -> None:
    now = [b"requests 1\n"]
    hold = await Lives().hold([("e", make(name, case.settings, lambda: now[0]))])
    assert case.exported() == b"requests 1\n"
    now[0] = b"requests 2\n"
    await hold.release()
    assert case.exported() == b"requests 2\n"


async def test_what_cannot_export_does_not_start(name: str, case: Case) -> None:
    with pytest.raises(ConfigError, match=r"telemetry\.exporters"):
        await Lives().hold([("telemetry.exporters[0]", make(name, case.broken, lambda: b""))])
