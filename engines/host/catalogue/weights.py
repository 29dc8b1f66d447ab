"""Folders of weights that no runtime takes as they are (config.json, safetensors): found by name, for jobs that convert them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from engines.host.catalogue.scan import Place
from gateway.core.errors import NotFound

CONFIG: Final = "config.json"
SUFFIX: Final = ".safetensors"


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
    return NotFound(f"There is no folder {name[:128]!r} with {CONFIG} in the directories of models (model_dirs).", param="model")
