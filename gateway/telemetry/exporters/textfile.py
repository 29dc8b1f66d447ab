"""Metrics into a file, for the textfile collector of Prometheus' node_exporter: where nothing may connect to the admin listener."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from gateway.core.plugins import ExporterContext
from gateway.core.specs import Spec, Timeout
from gateway.core.tasks import TaskOwner


class TextfileSettings(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """path: ends with `.prom`, or the collector does not read it. every: seconds between two writes."""

    path: Annotated[str, Meta(pattern=r"^/.*\.prom$")]
    every: Timeout = 15.0


class TextfileExporter:
    """Replaces the file as a whole: a reader never sees half of it."""

    def __init__(self, settings: TextfileSettings, scrape: Callable[[], bytes]) -> None:
        self._path, self._every, self._scrape = Path(settings.path), settings.every, scrape
        self._tasks = TaskOwner("textfile exporter")

    async def start(self) -> None:
        """Raises OSError when the file cannot be written."""
        await self._write()
        self._tasks.every(self._every, self._write, name="write")

    async def aclose(self) -> None:
        """The file stays, with what was true last."""
        await self._tasks.aclose()
        await self._write()

    async def _write(self) -> None:
        text = self._scrape()
        await asyncio.to_thread(self._replace, text)

    def _replace(self, text: bytes) -> None:
        beside = self._path.with_suffix(".tmp")
        beside.write_bytes(text)
        os.replace(beside, self._path)


def build(settings: TextfileSettings, context: ExporterContext) -> TextfileExporter:
    return TextfileExporter(settings, context.scrape)
