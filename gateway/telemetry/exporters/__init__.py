"""The metric exporters beside `/metrics`. To add one: a file here, a line in ROWS, a row in tests/contract/test_exporter.py, a heading in
docs/metrics.md."""

from __future__ import annotations

from typing import Final

from gateway.core.plugins import ExporterRow
from gateway.telemetry.exporters import textfile

ROWS: Final = (ExporterRow(name="textfile", settings=textfile.TextfileSettings, build=textfile.build),)
