"""A model's folder as onnxruntime-genai's model builder writes it: what is read of it, checked before native code sees it.

`genai_config.json` may tell the library to load other libraries into the process (custom operators) and to compute on other devices than
the engine was given. The first is refused; the second is overruled (engines.genai.native).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from engines.onnx.modelfile import check_external, read_model_file
from engines.sidecar.loading import LoadError, read_object

CONFIG: Final = "genai_config.json"
MAX_CONFIG_BYTES: Final = 16 * 1024 * 1024
MAX_TOKENIZER_BYTES: Final = 256 * 1024 * 1024
OTHER_PARTS: Final = ("encoder", "vision", "speech", "embedding", "encoder_decoder_init", "mtp", "dflash2")
LIBRARIES: Final = ("custom_ops_library", "library_path", "ep_library", "shared_lib_path")
"""Keys, whatever comes before or behind them, that name a library to be loaded."""

COPIES: Final = 3
"""Of keys and values, where the library does not write new ones beside the old: each step has both, and what it gave up is not at once used
again. Measured: 2.5 with eight slots, 2.9 with twenty-four (onnxruntime-genai 0.18, on the CPU)."""


@dataclass(frozen=True, slots=True)
class GenaiFolder:
    """What was found. context: tokens of prompt and answer together. eos: tokens that end an answer. search: settings of generation.
    kv_bytes: of keys and values of one token, as often as they are in memory. template: the chat template, if there is one."""

    root: Path
    graph: Path
    architecture: str
    context: int
    vocabulary: int
    layers: int
    eos: frozenset[int]
    search: dict[str, Any]
    kv_bytes: int
    bos_text: str
    eos_text: str
    template: str | None


def read_folder(model: str) -> GenaiFolder:
    """Looks at the folder. Raises LoadError (`model_missing`, `model_invalid`)."""
    root = Path(model)
    if not root.is_dir():
        raise LoadError("model_missing", f"{root}: no such folder; a model of this runtime is a folder with {CONFIG}")
    if not (root / CONFIG).is_file():
        raise LoadError("model_missing", f"{root / CONFIG}: no such file")
    config = read_object(root / CONFIG, MAX_CONFIG_BYTES)
    described = _object(config, "model", root)
    decoder = _object(described, "decoder", root)
    others = [part for part in OTHER_PARTS if part in described] + ["pipeline"] * ("pipeline" in decoder)
    if others:
        raise LoadError("model_invalid", f"{root / CONFIG}: model.{others[0]}: only models that are one decoder of text are served")
    for path, key in _keys(config):
        if any(word in key for word in LIBRARIES):
            raise LoadError("model_invalid", f"{root / CONFIG}: {path}{key}: a model may not load libraries")
        if "profil" in key:
            raise LoadError("model_invalid", f"{root / CONFIG}: {path}{key}: a model may not write files")
    graph = _graph(root, decoder.get("filename", "model.onnx"))
    check_external(read_model_file(graph))
    tokenizer = root / "tokenizer.json"
    if not tokenizer.is_file():
        raise LoadError("model_missing", f"{tokenizer}: no such file")
    if tokenizer.stat().st_size > MAX_TOKENIZER_BYTES:
        raise LoadError("model_invalid", f"{tokenizer}: larger than {MAX_TOKENIZER_BYTES} bytes")
    texts = read_object(root / "tokenizer_config.json", MAX_CONFIG_BYTES)
    layers = _count(decoder, "num_hidden_layers", root)
    heads, width = _count(decoder, "num_key_value_heads", root), _count(decoder, "head_size", root)
    eos = described.get("eos_token_id")
    search = config.get("search")
    search = search if isinstance(search, dict) else {}
    copies = 1 if search.get("past_present_share_buffer") is True else COPIES
    return GenaiFolder(
        root=root,
        graph=graph,
        architecture=str(described.get("type", ""))[:64],
        context=_count(described, "context_length", root),
        vocabulary=_count(described, "vocab_size", root),
        layers=layers,
        eos=frozenset(token for token in (eos if isinstance(eos, list) else [eos]) if isinstance(token, int)),
        search=search,
        kv_bytes=copies * 2 * 4 * layers * heads * width,  # at most: graphs with 16 bits keep half
        bos_text=_text(texts.get("bos_token")),
        eos_text=_text(texts.get("eos_token")),
        template=_template(root, texts),
    )


def weights(root: Path) -> int:
    """Bytes of the folder's files."""
    return sum(file.stat().st_size for file in root.rglob("*") if file.is_file())


def _graph(root: Path, name: Any) -> Path:
    if not isinstance(name, str) or PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        raise LoadError("model_invalid", f"{root / CONFIG}: model.decoder.filename must be a file in the folder, not {str(name)[:128]!r}")
    if not (root / name).is_file():
        raise LoadError("model_missing", f"{root / name}: no such file, though {CONFIG} names it")
    return root / name


def _template(root: Path, texts: dict[str, Any]) -> str | None:
    """As Hugging Face keeps it: a file of its own, a text, or several with names."""
    file = root / "chat_template.jinja"
    if file.is_file() and file.stat().st_size <= MAX_CONFIG_BYTES:
        return file.read_text("utf-8", "replace")
    found = texts.get("chat_template")
    if isinstance(found, list):
        named = {item.get("name"): item.get("template") for item in found if isinstance(item, dict)}
        found = named.get("default", next(iter(named.values()), None))
    return found if isinstance(found, str) else None


def _text(token: Any) -> str:
    """A special token's text: itself, or an object's `content`."""
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else ""


def _object(parent: dict[str, Any], key: str, root: Path) -> dict[str, Any]:
    found = parent.get(key)
    if not isinstance(found, dict):
        raise LoadError("model_invalid", f"{root / CONFIG}: {key} is missing")
    return found


def _count(parent: dict[str, Any], key: str, root: Path) -> int:
    found = parent.get(key)
    if not isinstance(found, int) or isinstance(found, bool) or not 0 < found <= 1 << 31:
        raise LoadError("model_invalid", f"{root / CONFIG}: {key} must be a whole number of at least 1")
    return found


def _keys(config: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Every key of a JSON value, with the path to it."""
    waiting: list[tuple[str, Any]] = [("", config)]  # not a recursion: the file says how deep it is nested
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, dict):
            for key, item in value.items():
                yield path, key
                waiting.append((f"{path}{key}."[-256:], item))
        elif isinstance(value, list):
            waiting += [(path, item) for item in value]
