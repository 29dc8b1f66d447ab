"""An ONNX model's facts for the catalogue, read in the inspector's process without ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from engines.facts import Facts, Port
from engines.onnx.folder import ModelFolder, read_folder
from engines.onnx.modelfile import check_model_file, read_model_file
from engines.onnx.options import OnnxOptions
from engines.onnx.signature import Signature, read_signature
from engines.sidecar.loading import LoadError

IDS: Final = "input_ids"
MAX_TITLE: Final = 200


def facts(path: Path) -> Facts:
    """The facts of a file or folder, or the problem with it. Raises OSError."""
    try:
        return _facts(path)
    except LoadError as error:
        return Facts(problem=str(error))


def _facts(path: Path) -> Facts:
    folder = read_folder(str(path), OnnxOptions())
    file = read_model_file(folder.graph)
    check_model_file(file, {domain: max(1, version) for domain, version in file.opsets.items()})  # only the runtime knows which it runs
    signature = read_signature(folder.graph)
    return Facts(
        architecture="onnx",
        task=_task(folder, signature),
        context=folder.max_length,
        graph=folder.graph.relative_to(folder.root).as_posix(),
        producer=file.producer[:MAX_TITLE] or None,
        opsets={domain or "ai.onnx": version for domain, version in file.opsets.items()},
        inputs=tuple(Port(*port) for port in signature.inputs),
        outputs=tuple(Port(*port) for port in signature.outputs),
        labels=len(folder.labels),
    )


def _task(folder: ModelFolder, signature: Signature) -> str:
    """What the runtime would choose (engines.onnx.app.find_task), from the files alone."""
    if folder.tokenizer is None or not any(port.name == IDS for port in signature.inputs):
        return "tensor"
    if folder.task is not None:
        return folder.task
    if any(port.name == "logits" and len(port.shape) == 2 for port in signature.outputs):
        return "classification"
    return "embeddings" if any(port.type.startswith("float") and len(port.shape) in (2, 3) for port in signature.outputs) else "tensor"
