"""Every plug-in of this process: our own tables, and the rows that installed distributions add to them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from importlib.metadata import EntryPoint
from typing import Final

from gateway.app.configuration.plugin_set import WORKER, Plugins, at, with_installed
from gateway.store.database import STORES

__all__ = ["OURS", "Plugins", "at", "installed"]

OURS: Final = replace(WORKER, stores=STORES)
"""The plug-ins that Gatehouse brings."""


def installed(ours: Plugins = OURS, found: Iterable[EntryPoint] | None = None) -> Plugins:
    """Ours and those of every installed distribution (plugin_set.with_installed)."""
    return with_installed(ours, found)
