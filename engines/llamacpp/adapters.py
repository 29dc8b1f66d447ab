"""LoRA adapters of a model: their files, checked before native code sees them, and whose turn it is.

llama.cpp computes a step with one adapter for all of its sequences. So a step serves the requests of one adapter (or of the model without
one), and those with work take turns: each gets as many steps as any other, for a few steps at a time (`TURN`), because a change makes
llama.cpp plan its computation anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from engines.llamacpp.cursor import GgufError
from engines.llamacpp.gguf import FLOAT32, read
from engines.llamacpp.jobs import SequenceJob
from engines.llamacpp.options import Adapter
from engines.sidecar.loading import LoadError, sha256_of

ALPHA: Final = "adapter.lora.alpha"
TURN: Final = 4
"""Steps in a row for one adapter while others wait."""


class Turns:
    """Whose requests the next step serves."""

    def __init__(self) -> None:
        self.adapter = ""
        self._steps = 0
        self._served: dict[str, int] = {}
        self._clock = 0

    def of(self, running: Sequence[SequenceJob]) -> Sequence[SequenceJob]:
        """Those of the adapter whose turn it is: the present one's until its turn is over or it has no work, then who waited longest."""
        waiting = {job.adapter for job in running if not job.paused}
        if not waiting or (len(waiting) == 1 and all(job.adapter in waiting for job in running)):
            self._take(next(iter(waiting), self.adapter))
            return running
        if self.adapter not in waiting or self._steps >= TURN:
            self._take(min(waiting, key=lambda name: (self._served.get(name, 0), name)))
        self._steps += 1
        self._clock += 1
        self._served[self.adapter] = self._clock
        return [job for job in running if job.adapter == self.adapter]

    def _take(self, adapter: str) -> None:
        self.adapter = adapter
        self._steps = 0


def check_adapters(adapters: Sequence[Adapter], model: Path, architecture: str) -> list[Path]:
    """The adapters' files, beside the model's; each a LoRA adapter of its architecture. Raises LoadError that names the file."""
    return [_check(adapter, model.with_name(adapter.file), architecture) for adapter in adapters]


def _check(adapter: Adapter, path: Path, architecture: str) -> Path:
    where = f"options.adapters: {adapter.name}: {path}"
    if not path.is_file():
        raise LoadError("model_missing", f"{where}: no such file; adapters lie beside the model's file")
    try:
        file = read(path)
    except GgufError as error:
        raise LoadError("model_invalid", f"{where}: {error}") from None
    pairs = file.pairs
    if pairs.get("general.type") != "adapter" or pairs.get("adapter.type") != "lora":
        raise LoadError("model_invalid", f"{where}: not a LoRA adapter (general.type adapter, adapter.type lora)")
    if pairs.get("general.architecture") != architecture:
        raise LoadError("model_invalid", f"{where}: made for {pairs.get('general.architecture')}, the model is {architecture}")
    if file.kinds.get(ALPHA, FLOAT32) != FLOAT32:
        raise LoadError(
            "model_invalid", f"{where}: {ALPHA} is not a number of 32 bits with a point, and llama.cpp ends its process for that"
        )
    if adapter.sha256 is not None and (found := sha256_of(path)) != adapter.sha256:
        raise LoadError("checksum_mismatch", f"{where}: its SHA-256 is {found}, {adapter.sha256} is configured")
    return path
