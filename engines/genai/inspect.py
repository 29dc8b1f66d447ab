"""A folder's facts for the catalogue, read in the inspector's process without onnxruntime-genai.

`python -m engines.genai.inspect FOLDER` prints what placement needs of it as one JSON line, or on standard error what is wrong with it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from engines.confinement import confine
from engines.facts import Facts
from engines.genai.folder import read_folder
from engines.sidecar.loading import LoadError, readable

MOST_KV = 1 << 31
"""The most bytes of keys and values of a token that are believed: no machine has room for a model with more."""


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


def main(arguments: list[str]) -> int:
    """Print `engines.host.placement.Kept`; see the module's docstring."""
    try:
        folder = read_folder(arguments[0])
    except (LoadError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(msgspec.json.encode({"context": folder.context, "kv_bytes": min(folder.kv_bytes, MOST_KV)}).decode())
    return 0


if __name__ == "__main__":
    confine(reads=(file for argument in sys.argv[1:] for file in readable(Path(argument))))
    sys.exit(main(sys.argv[1:]))
