"""Looks into model files in a process of its own: `python -m engines.host.catalogue.inspector`, a question a line, an answer a line.

Whoever holds the data plane must not parse what somebody uploaded, or what changes while it is mapped (a file that shrinks under a memory
map ends the process). The process ends with its standard input. It runs at a low priority.
"""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path
from typing import Any

import msgspec

from engines.host.catalogue.facts import Facts, Port, Question
from engines.llamacpp.gguf import TENSOR_TYPES, Gguf, GgufError, describe, read
from engines.onnx.folder import ModelFolder, read_folder
from engines.onnx.modelfile import check_model_file, read_model_file
from engines.onnx.options import OnnxOptions
from engines.onnx.signature import Signature, read_signature
from engines.sidecar.shell import LoadError

NICENESS = 10
IDS = "input_ids"
MAX_TITLE = 200
MAX_MEMORY = 2 * 1024**3
"""Bytes of its own, mapped files aside: a header can ask for as much as its file is long."""


def look(question: Question) -> Facts:
    """The facts, or the problem; raises nothing."""
    path = Path(question.path)
    try:
        return _gguf(path) if question.runtime == "llama.cpp" else _onnx(path)
    except OSError as error:
        return Facts(problem=f"cannot be read: {error.strerror or error}")
    except (GgufError, LoadError) as error:
        return Facts(problem=_without(str(error), path))
    except Exception as error:  # noqa: BLE001 - boundary: a reader that fails says something of this file, and the next one is looked at
        return Facts(problem=f"the reader failed ({type(error).__name__})")


def _without(text: str, path: Path) -> str:
    """A message that does not tell where on this machine the model lies."""
    return text.replace(f"{path}/", "").replace(f"{path}: ", "").replace(str(path.parent), "...")


# --- GGUF


def _gguf(path: Path) -> Facts:
    file = read(path)
    part, parts = file.pairs.get("split.no", 0), file.pairs.get("split.count", 0)
    if not (_is_count(part) and _is_count(parts)) or (parts and part >= parts):
        raise GgufError(f"split.no {part!r} and split.count {parts!r} do not fit each other")
    if part:  # only the first part describes the model
        return Facts(part=part + 1, parts=parts, parameters=_parameters(file))
    known = describe(file)
    return Facts(
        architecture=known.architecture,
        title=known.name[:MAX_TITLE] or None,
        task="embeddings" if known.pooling else "chat" if known.has_template else "completion",
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


# --- ONNX


def _onnx(path: Path) -> Facts:
    folder = read_folder(str(path), OnnxOptions())
    file = read_model_file(folder.graph)
    check_model_file(file, {domain: max(1, version) for domain, version in file.opsets.items()})  # which opsets run, the runtime knows
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
    """As the runtime would choose (engines.onnx.app.find_task), from the file alone."""
    if folder.tokenizer is None or not any(port.name == IDS for port in signature.inputs):
        return "tensor"
    if folder.task is not None:
        return folder.task
    if any(port.name == "logits" and len(port.shape) == 2 for port in signature.outputs):
        return "classification"
    return "embeddings" if any(port.type.startswith("float") and len(port.shape) in (2, 3) for port in signature.outputs) else "tensor"


def confine(memory: int = MAX_MEMORY) -> None:
    """Low priority, bounded memory, no core dumps (they would hold the models)."""
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> int:
    """Answers until standard input ends."""
    decoder = msgspec.json.Decoder(Question)
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(msgspec.json.encode(look(decoder.decode(line))) + b"\n")
        sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    confine()
    sys.exit(main())
