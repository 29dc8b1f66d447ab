"""Folders of weights that no runtime takes as they are (config.json, safetensors): found by name, for jobs that convert them, and told
apart from models for the catalogue."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from engines.host.catalogue.scan import Place
from gateway.core.errors import NotFound
from gateway.core.modelfiles import CONFIG
from gateway.core.modelfiles import WEIGHTS as SUFFIX


def folder(places: Iterable[Place], name: str) -> tuple[Path, int]:
    """The folder of this name in the first of these places that has it, and the bytes of its safetensors. Blocks. Raises NotFound."""
    parts = name.split("/")
    if any(part.startswith(".") or not part.isprintable() for part in parts) or not all(parts):
        raise _missing(name)
    for place in places:
        root = place.root.resolve()
        path = root.joinpath(*parts)
        if Path(os.path.realpath(path)) == path and path != root and (path / CONFIG).is_file():  # no link leads there
            with os.scandir(path) as entries:
                return path, sum(entry.stat(follow_symlinks=False).st_size for entry in entries if entry.name.endswith(SUFFIX))
    raise _missing(name)


def _missing(name: str) -> NotFound:
    return NotFound(f"There is no folder {name[:128]!r} with {CONFIG} among the model files (uploaded, or in model_dirs).", param="model")
