"""A folder becomes a GGUF file."""

from __future__ import annotations

import errno
import math
import re
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from engines.convert import gguf, vocabulary, weights
from engines.convert.families import PASSED_OVER, Config, wanted
from engines.convert.folder import MOST_MEMORY, Folder, Refused
from engines.convert.gguf import Writer, Written
from engines.convert.safetensors import READ, Tensor, tensors

Type = Literal["auto", "F32", "F16", "BF16"]
SAMPLING: Final = MappingProxyType(
    {"top_k": "top_k", "top_p": "top_p", "min_p": "min_p", "temperature": "temp", "repetition_penalty": "penalty_repeat"}
)
"""What generation_config.json recommends -> its name in `general.sampling`."""
YARN: Final = ("extrapolation_factor", "attention_factor", "beta_fast", "beta_slow")
_YARN: Final = ("yarn_ext_factor", "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow")


def convert(
    path: Path, target: Path, type: Type, most: int, told: Callable[[float], None], *, memory: int = MOST_MEMORY
) -> dict[str, Any]:  # fmt: skip
    """Makes the file `target` of a folder; figures to be shown. type: of the matrices; auto: as they are, 16 bits. most: bytes of the file.
    told: how far it is, from 0 to 1. memory: bytes that the process may have. Raises Refused; OSError."""
    try:
        return _convert(Folder(path, memory), target, type, most, told)
    except (struct.error, UnicodeEncodeError, OverflowError) as error:
        raise Refused(f"a value does not fit GGUF: {error}") from None


def _convert(folder: Folder, target: Path, type: Type, most: int, told: Callable[[float], None]) -> dict[str, Any]:
    values = folder.json("config.json")
    if values is None:
        raise Refused("there is no config.json")
    config, found = Config(values), tensors(folder)
    chosen = _chosen(found) if type == "auto" else type
    made = Writer()
    made.text("general.architecture", config.family.name)
    _tensors(made, config, found, chosen)
    _general(made, folder, chosen)
    _parameters(made, config)
    _tokenizer(made, folder, config)
    if (size := made.size()) > most:
        raise Refused(f"the file would have {size} bytes; {most} are possible (jobs.max_output_bytes)")
    try:
        made.write(target, told)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise Refused("the file becomes larger than it may") from None
        raise
    before = sum(tensor.elements * (4 if tensor.dtype == "F32" else 2) for tensor in found.values())
    return {
        "bytes_before": before,
        "bytes": size,
        "architecture": config.architecture,
        "type": chosen,
        "parameters": _parameter_count(made),
    }


def _chosen(found: dict[str, Tensor]) -> str:
    """The type of the first matrix, as llama.cpp's script guesses it; F32 becomes F16."""
    first = next((tensor.dtype for tensor in found.values() if len(tensor.shape) > 1), "F16")
    return "BF16" if first == "BF16" else "F16"


def _tensors(made: Writer, config: Config, found: dict[str, Tensor], type: str) -> None:
    left = {name for name in found if not name.endswith(PASSED_OVER)}
    if config.family.swa:
        left.discard("lm_head.weight")  # the embeddings again
    if (freqs := _llama3(config)) is not None:
        made.tensors.append(Written("rope_freqs.weight", freqs.shape, "F32", lambda: (freqs,)))
    for name, want in wanted(config):
        tensor = found.get(name)
        if tensor is None:
            if want.optional:
                continue
            raise Refused(f"the tensor {name} is missing")
        if tensor.shape != want.shape or tensor.dtype not in READ:
            raise Refused(
                f"the tensor {name} is {tensor.dtype} of {list(tensor.shape)}; F32, F16 or BF16 of {list(want.shape)} is expected"
            )
        left.discard(name)
        to = "F32" if len(want.shape) == 1 else type
        blocks = partial(weights.blocks, tensor, name, to, want.heads, want.shift)
        made.tensors.append(Written(want.name, want.shape, to, blocks))
    if left:
        raise Refused(f"{config.architecture} has no tensor {min(left)[:100]!r} ({len(left)} are unknown)")


def _general(made: Writer, folder: Folder, type: str) -> None:
    made.text("general.type", "model")
    made.text("general.name", title(folder.name))
    made.text("general.size_label", size_label(_parameter_count(made)))
    made.whole("general.file_type", gguf.TYPES[type][2])
    made.whole("general.quantization_version", gguf.QUANTIZATION_VERSION)
    recommended = folder.json("generation_config.json") or {}
    for name, key in SAMPLING.items():
        value = recommended.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            continue
        if name == "top_k":
            made.signed(f"general.sampling.{key}", int(value))
        else:
            made.number(f"general.sampling.{key}", value)


def _parameters(made: Writer, config: Config) -> None:
    arch = config.family.name
    made.whole(f"{arch}.block_count", config.layers)
    made.whole(f"{arch}.context_length", config.whole("max_position_embeddings"))
    made.whole(f"{arch}.embedding_length", config.hidden)
    made.whole(f"{arch}.feed_forward_length", config.inner)
    made.whole(f"{arch}.attention.head_count", config.heads)
    made.whole(f"{arch}.attention.head_count_kv", config.kv_heads)
    made.number(f"{arch}.attention.layer_norm_rms_epsilon", config.number("rms_norm_eps"))
    if arch != "qwen2" or config.values.get("head_dim") is not None:
        made.whole(f"{arch}.attention.key_length", config.width)
        made.whole(f"{arch}.attention.value_length", config.width)
    if arch == "llama":
        made.whole(f"{arch}.vocab_size", config.vocabulary)
        made.whole(f"{arch}.rope.dimension_count", config.width)
    if arch == "gemma2":
        made.number(f"{arch}.attn_logit_softcapping", config.number("attn_logit_softcapping"))
        made.number(f"{arch}.final_logit_softcapping", config.number("final_logit_softcapping"))
    if arch == "gemma3" and config.values.get("final_logit_softcapping") is not None:
        made.number(f"{arch}.final_logit_softcapping", config.number("final_logit_softcapping"))
    if arch == "gemma3" and config.values.get("attn_logit_softcapping") is not None:
        raise Refused("config.json has attn_logit_softcapping, which llama.cpp does not know of Gemma 3")
    if config.family.swa:
        made.whole(f"{arch}.attention.sliding_window", config.whole("sliding_window"))
    if arch != "gemma2":
        _rope(made, config, arch)


def _given(config: Config) -> dict[str, Any]:
    """How positions are encoded; of Gemma 3, in the layers that see the whole context."""
    given = config.values.get("rope_parameters") or config.values.get("rope_scaling") or {}
    given = given.get("full_attention", given) if isinstance(given, dict) else None
    if not isinstance(given, dict):
        raise Refused("config.json has rope_parameters or rope_scaling that is no object")
    return given


def _theta(config: Config, given: dict[str, Any]) -> float:
    usual = 1_000_000.0 if config.family.name == "gemma3" else 10000.0
    return config.number("rope_theta", given, config.number("rope_theta", default=usual))


def _rope(made: Writer, config: Config, arch: str) -> None:
    given = _given(config)
    kind = given.get("rope_type", given.get("type", "default"))
    made.number(f"{arch}.rope.freq_base", _theta(config, given))
    if arch == "gemma3":
        windows = (config.values.get("rope_parameters") or {}).get("sliding_attention") or {}
        if not isinstance(windows, dict):
            raise Refused("config.json has rope_parameters.sliding_attention that is no object")
        made.number(
            f"{arch}.rope.freq_base_swa", config.number("rope_theta", windows, config.number("rope_local_base_freq", default=10000.0))
        )
    if kind in ("linear", "yarn"):
        made.text(f"{arch}.rope.scaling.type", kind)
        made.number(f"{arch}.rope.scaling.factor", config.number("factor", given))
    elif kind not in ("default", "llama3", None):
        raise Refused(f"config.json scales positions by {str(kind)[:32]!r}; linear, yarn and llama3 are converted")
    if kind == "yarn":
        context = given.get("original_max_position_embeddings", config.values.get("original_max_position_embeddings"))
        if type(context) is not int or not 1 <= context < 1 << 31:
            raise Refused("config.json has yarn without original_max_position_embeddings")
        made.whole(f"{arch}.rope.scaling.original_context_length", context)
        for name, key in zip(YARN, _YARN, strict=True):
            if given.get(name) is not None:
                made.number(f"{arch}.rope.scaling.{key}", config.number(name, given))


def _llama3(config: Config) -> npt.NDArray[np.float32] | None:
    """Factors of Llama 3.1's scaling, one for each pair (transformers.modeling_rope_utils)."""
    given = _given(config)
    if given.get("rope_type", given.get("type")) != "llama3":
        return None
    if config.family.name != "llama":
        raise Refused(f"config.json scales the positions of {config.architecture} as llama3, which llama.cpp does not")
    factor, low, high = (config.number(name, given) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    context = config.number("original_max_position_embeddings", given)
    if not (factor >= 1 and 0 < low < high and context > 0 and _theta(config, given) > 0):
        raise Refused("config.json has factors of llama3 that do not fit each other")
    exponents = np.arange(0, config.width, 2, dtype=np.float32) / np.float32(config.width)
    with np.errstate(all="ignore"):
        lengths = np.float32(2 * math.pi) / (np.float32(1) / np.power(np.float32(_theta(config, given)), exponents))
        smooth = (np.float32(context) / lengths - np.float32(low)) / np.float32(high - low)
        between = np.float32(1) / ((np.float32(1) - smooth) / np.float32(factor) + smooth)
        made = np.where(lengths < context / high, np.float32(1), np.where(lengths > context / low, np.float32(factor), between))
    if not np.isfinite(made).all():
        raise Refused("config.json has factors of llama3 that do not fit each other")
    return made.astype("<f4")


def _tokenizer(made: Writer, folder: Folder, config: Config) -> None:
    settings = folder.json("tokenizer_config.json") or {}
    prefix = settings.get("add_prefix_space")
    if config.family.swa:
        made.flag("tokenizer.ggml.add_space_prefix", False)
    elif config.family.name == "llama" and isinstance(prefix, bool):
        made.flag("tokenizer.ggml.add_space_prefix", prefix)
    vocabulary.write(folder, dict(config.values), config.vocabulary, made)
    if config.family.name == "llama" and config.vocabulary == 32016:  # CodeLlama's tokens to fill in between
        for name, id in (("prefix", 32007), ("suffix", 32008), ("middle", 32009), ("eot", 32010)):
            made.whole(f"tokenizer.ggml.{name}_token_id", id)
    if config.family.name == "llama" and config.vocabulary == 49152:  # of small models whose tokenizers say nothing of it
        made.flag("tokenizer.ggml.add_bos_token", False)


def _parameter_count(made: Writer) -> int:
    return sum(math.prod(tensor.shape) for tensor in made.tensors)


def size_label(parameters: int) -> str:
    """As llama.cpp writes it: 494M, 1.5B."""
    unit, size = next((one for one in (("T", 1e12), ("B", 1e9), ("M", 1e6)) if parameters > one[1]), ("K", 1e3))
    scaled = parameters / size
    return f"{scaled:.{max(2 - len(str(round(scaled)).lstrip('0')), 0)}f}{unit}"


def title(name: str) -> str:
    """The folder's name in words."""
    words = name.strip().replace("-", " ").split()
    plain = [word.title() if word.islower() and not re.fullmatch(r"v\d+(?:\.\d+)*|\d.*", word) else word for word in words]
    return " ".join(plain) or "model"
