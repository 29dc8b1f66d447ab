"""What a folder of safetensors says about itself, for the catalogue: read in the inspector's process, headers alone."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Final

from engines.convert.folder import Folder, Refused
from engines.convert.safetensors import tensors
from engines.facts import Facts

MOST_TITLE: Final = 200


def facts(path: Path) -> Facts:
    """The facts of a folder, or the problem with it. Whether its architecture can be converted is for the job to say. Raises OSError."""
    folder = Folder(path)
    try:
        config = folder.json("config.json")
        if config is None:
            return Facts(problem="there is no config.json")
        found = tensors(folder)
        for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
            folder.json(name)
    except Refused as error:
        return Facts(problem=str(error))
    types = Counter[str]()
    for tensor in found.values():
        types[tensor.dtype] += tensor.elements
    return Facts(
        architecture=_architecture(config),
        parameters=types.total(),
        quantisation=types.most_common(1)[0][0] if types else None,
        context=_whole(config, "max_position_embeddings"),
        layers=_whole(config, "num_hidden_layers"),
        vocabulary=_whole(config, "vocab_size"),
    )


def _architecture(config: dict[str, Any]) -> str | None:
    named = config.get("architectures")
    first = named[0] if isinstance(named, list) and named else None
    return first[:MOST_TITLE] if isinstance(first, str) else None


def _whole(config: dict[str, Any], name: str) -> int | None:
    value = config.get(name)
    return value if type(value) is int and 0 < value < 1 << 31 else None
