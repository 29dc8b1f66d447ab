"""What the demo models made with numpy share: Adam, and their folder on disk."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from tokenizers import Tokenizer

Floats = NDArray[np.float32]


class Adam:
    """Kingma and Ba, 2015. Changes the parameters in place."""

    def __init__(self, parameters: Sequence[Floats]) -> None:
        self._parameters = parameters
        self._first = [np.zeros_like(parameter) for parameter in parameters]
        self._second = [np.zeros_like(parameter) for parameter in parameters]
        self._steps = 0

    def step(self, gradients: Sequence[Floats], rate: float) -> None:
        """One step against the gradients, in the parameters' order."""
        self._steps += 1
        for parameter, gradient, one, two in zip(self._parameters, gradients, self._first, self._second, strict=True):
            one += 0.1 * (gradient - one)
            two += 0.01 * (gradient * gradient - two)
            parameter -= rate * (one / (1 - 0.9**self._steps)) / (np.sqrt(two / (1 - 0.99**self._steps)) + 1e-8)


def replace_folder(folder: Path, model: onnx.ModelProto, tokenizer: Tokenizer, config: dict[str, Any]) -> None:
    """Writes the model's folder through a temporary one, so that a failed write leaves the old folder in place."""
    fresh = folder.with_name(f"{folder.name}.tmp")
    fresh.mkdir(parents=True)
    onnx.save(model, str(fresh / "model.onnx"))
    tokenizer.save(str(fresh / "tokenizer.json"), pretty=False)
    (fresh / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    if folder.exists():
        shutil.rmtree(folder)
    fresh.rename(folder)
