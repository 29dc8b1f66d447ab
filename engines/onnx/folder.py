"""A model's folder: which file is the graph, which is the tokenizer, and what the configuration files say about pooling and labels.

Understands the layout that Hugging Face and Sentence Transformers write (config.json, tokenizer.json, modules.json, 1_Pooling/config.json,
sentence_bert_config.json, tokenizer_config.json); each of them may be absent.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from engines.onnx.options import OnnxOptions, Pooling, Task
from engines.sidecar.loading import POOLING, LoadError, read_object, verify_files

GRAPH_NAMES = ("model.onnx", "onnx/model.onnx", "1/model.onnx")
MAX_CONFIG_BYTES = 4 * 1024 * 1024
MAX_TOKENIZER_BYTES = 256 * 1024 * 1024
ABSURD_LENGTH = 1 << 20
"""tokenizer_config.json contains 1e30 if a tokenizer has no limit."""


class ModelFolder(NamedTuple):
    """What was found. `task` is None if only the graph can tell; `max_length` is in tokens, None if unknown."""

    root: Path
    graph: Path
    tokenizer: Path | None
    task: Task | None
    pooling: Pooling | None
    normalize: bool
    max_length: int | None
    labels: tuple[str, ...]
    multi_label: bool
    dimensions: tuple[int, ...]
    prompts: dict[str, str]
    default_prompt: str | None
    raw_scores: bool
    """A reranker whose scores its configuration leaves as the graph gives them."""


def read_folder(model: str, options: OnnxOptions) -> ModelFolder:
    """Look at the model's file or folder. Raises LoadError (`model_missing`, `model_invalid`, `checksum_mismatch`)."""
    path = Path(model)
    root, graph = (path, _graph(path)) if path.is_dir() else (path.parent, path)
    if not graph.is_file():
        raise LoadError("model_missing", f"{graph}: no such file")
    tokenizer = next((found for found in (root / "tokenizer.json", graph.parent / "tokenizer.json") if found.is_file()), None)
    if tokenizer is not None and tokenizer.stat().st_size > MAX_TOKENIZER_BYTES:
        raise LoadError("model_invalid", f"{tokenizer}: larger than {MAX_TOKENIZER_BYTES} bytes")
    verify_files(root, options.checksums)
    config = _json(root / "config.json")
    prompts, default_prompt = _prompts(root)
    return ModelFolder(
        root=root,
        graph=graph,
        tokenizer=tokenizer,
        task=_task(config),
        pooling=_pooling(root),
        normalize=_normalizes(root),
        max_length=_max_length(root, config),
        labels=_labels(root / "config.json", config),
        multi_label=config.get("problem_type") == "multi_label_classification",
        dimensions=_dimensions(root / "config.json", config),
        prompts=prompts,
        default_prompt=default_prompt,
        raw_scores=_raw_scores(config),
    )


def _graph(root: Path) -> Path:
    for name in GRAPH_NAMES:
        if (root / name).is_file():
            return root / name
    found = sorted(root.glob("*.onnx"))
    if len(found) == 1:
        return found[0]
    if found:
        raise LoadError("model_invalid", f"{root}: which of {', '.join(f.name for f in found)}? Name the file, or call it model.onnx")
    raise LoadError("model_missing", f"{root}: no model.onnx in this folder")


def _json(path: Path) -> dict[str, Any]:
    return read_object(path, MAX_CONFIG_BYTES)


def _task(config: dict[str, Any]) -> Task | None:
    architectures = config.get("architectures")
    for name in architectures if isinstance(architectures, list) else ():
        if str(name).endswith("ForSequenceClassification"):
            return "rerank" if _classes(config) == 1 else "classification"
        if str(name).endswith("ForTokenClassification"):
            return "entities"
    return None


def _prompts(root: Path) -> tuple[dict[str, str], str | None]:
    """What Sentence Transformers puts before texts, by name, and the name that counts where none is given."""
    path = root / "config_sentence_transformers.json"
    config = _json(path)
    found, default = config.get("prompts") or {}, config.get("default_prompt_name")
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise LoadError("model_invalid", f"{path}: prompts is not an object of texts")
    if default is not None and default not in found:
        raise LoadError("model_invalid", f"{path}: default_prompt_name {str(default)[:64]!r} is not among its prompts")
    if any(found.values()) and _json(root / POOLING).get("include_prompt") is False:
        raise LoadError("model_invalid", f"{root / POOLING}: pooling without the prompt's tokens is not supported")
    return {str(name): text for name, text in found.items()}, default


def _classes(config: dict[str, Any]) -> int:
    """How many classes a classifier has; one that has one scores pairs (a cross-encoder). Hugging Face's default is two."""
    names, count = config.get("id2label"), config.get("num_labels")
    return len(names) if isinstance(names, dict) else count if isinstance(count, int) else 2


def _raw_scores(config: dict[str, Any]) -> bool:
    """Whether Sentence Transformers' configuration of a cross-encoder names no activation; the logistic function is the default."""
    ours = config.get("sentence_transformers")
    named = [ours.get("activation_fn") if isinstance(ours, dict) else None, config.get("sbert_ce_default_activation_function")]
    return any(isinstance(name, str) and name.endswith("Identity") for name in named)


def _pooling(root: Path) -> Pooling | None:
    config = _json(root / POOLING)
    for key, pooling in (("mean_tokens", "mean"), ("cls_token", "cls"), ("lasttoken", "last")):
        if config.get(f"pooling_mode_{key}"):
            return pooling  # type: ignore[return-value] # the literals of the line above
    unknown = [key for key, value in config.items() if key.startswith("pooling_mode") and value]
    if unknown:
        raise LoadError("model_invalid", f"{root / POOLING}: {', '.join(unknown)} is not among mean, cls and last")
    return None


def _normalizes(root: Path) -> bool:
    path = root / "modules.json"
    if not path.is_file():
        return True  # cosine similarity is what clients of an embeddings API expect
    try:
        modules = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as exc:
        raise LoadError("model_invalid", f"{path}: {exc}") from None
    return any(isinstance(module, dict) and str(module.get("type", "")).endswith("Normalize") for module in modules)


def _max_length(root: Path, config: dict[str, Any]) -> int | None:
    found = (
        _json(root / "sentence_bert_config.json").get("max_seq_length"),
        _json(root / "tokenizer_config.json").get("model_max_length"),
        config.get("max_position_embeddings"),
    )
    lengths = [int(length) for length in found if isinstance(length, int | float) and 0 < length <= ABSURD_LENGTH]
    return min(lengths) if lengths else None


def _labels(path: Path, config: dict[str, Any]) -> tuple[str, ...]:
    names = config.get("id2label")
    if not isinstance(names, dict):
        return ()
    try:
        ordered = {int(key): str(value) for key, value in names.items()}
    except ValueError:
        raise LoadError("model_invalid", f"{path}: id2label has keys that are not numbers") from None
    if sorted(ordered) != list(range(len(ordered))):
        raise LoadError("model_invalid", f"{path}: id2label does not number its labels from 0")
    return tuple(ordered[index] for index in range(len(ordered)))


def _dimensions(path: Path, config: dict[str, Any]) -> tuple[int, ...]:
    found = config.get("matryoshka_dimensions") or ()
    if not isinstance(found, list | tuple) or not all(isinstance(size, int) and size > 0 for size in found):
        raise LoadError("model_invalid", f"{path}: matryoshka_dimensions is not a list of sizes")
    return tuple(found)
