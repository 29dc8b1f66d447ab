"""A folder's facts for the catalogue, read in the inspector's process without onnxruntime-genai."""

from __future__ import annotations

from pathlib import Path

from engines.facts import Facts
from engines.genai.folder import read_folder
from engines.sidecar.loading import LoadError


def facts(path: Path) -> Facts:
    """The facts of a folder, or the problem with it. Raises OSError."""
    try:
        folder = read_folder(str(path))
    except LoadError as error:
        return Facts(problem=str(error))
    return Facts(
        architecture=folder.architecture or None,
        task="chat" if folder.template is not None else "completion",
        context=folder.context,
        layers=folder.layers,
        vocabulary=folder.vocabulary,
        template=folder.template is not None,
        graph=folder.graph.relative_to(folder.root).as_posix(),
    )
