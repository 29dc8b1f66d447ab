"""A GGUF file's facts for the catalogue, read in the inspector's process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engines.facts import Facts
from engines.llamacpp.cursor import GgufError
from engines.llamacpp.gguf import RANK, TENSOR_TYPES, Gguf, describe, read

MAX_TITLE = 200


def facts(path: Path) -> Facts:
    """The facts of a file, or the problem with it. Raises OSError."""
    try:
        return _facts(path)
    except GgufError as error:
        return Facts(problem=str(error))


def _facts(path: Path) -> Facts:
    file = read(path)
    part, parts = file.pairs.get("split.no", 0), file.pairs.get("split.count", 0)
    if not (_is_count(part) and _is_count(parts)) or (parts and part >= parts):
        raise GgufError(f"split.no {part!r} and split.count {parts!r} contradict each other")
    if part:  # only the first part describes the model
        return Facts(part=part + 1, parts=parts, parameters=_parameters(file))
    known = describe(file)
    return Facts(
        architecture=known.architecture,
        title=known.name[:MAX_TITLE] or None,
        task="rerank" if known.pooling == RANK else "embeddings" if known.pooling else "chat" if known.has_template else "completion",
        parameters=known.parameters,
        quantisation=known.quantisation,
        context=known.context,
        layers=known.layers,
        vocabulary=known.vocabulary,
        template=known.has_template,
        part=1 if parts else 0,
        parts=parts,
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 100_000


def _parameters(file: Gguf) -> int:
    return sum(tensor.size // TENSOR_TYPES[tensor.kind][2] * TENSOR_TYPES[tensor.kind][1] for tensor in file.tensors)
