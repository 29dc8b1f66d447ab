"""A Hugging Face folder becomes an ONNX graph, by PyTorch's own exporter: the half of an `export` that needs PyTorch.

It runs in the Python of `jobs.export_python`, which has PyTorch and transformers and need not have anything of the gateway's
(engines.jobs.elsewhere), with an `Order` on standard input as `python -m engines.jobs` takes it. Beside the graph it leaves what the
model answered to a sample (SAMPLE): the other half, in the gateway's own environment (engines.jobs.export), asks the graph the same.

No code of the folder runs, and no pickle is read: `trust_remote_code` is off, weights come from safetensors alone, nothing is fetched.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from engines.confinement import rather_me
from engines.jobs.bounds import restrain
from engines.jobs.pack import kept

MADE: Final = "made"
"""The folder with SAMPLE, and with MODEL: the graph and what is kept beside it."""
SAMPLE: Final = "sample.json"
MODEL: Final = "model"
GRAPH: Final = "model.onnx"
MOST_BYTES: Final = 2**31 - 64 * 1024**2
"""The most bytes of weights in F32: one file of Protocol Buffers cannot hold more."""
OPSET: Final = 18
MODULES: Final = ("Transformer", "Pooling", "Normalize")
"""The modules of Sentence Transformers that the runtime or the graph replaces."""


class Refused(ValueError):
    """Another try would be refused as well."""


def main() -> int:
    order = SimpleNamespace(**json.loads(sys.stdin.buffer.readline()))
    folder = Path(order.folder)
    os.environ.update(
        {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "USE_HUB_KERNELS": "0", "HF_HUB_DISABLE_TELEMETRY": "1"}
        | dict.fromkeys(("HF_HOME", "TMPDIR", "TORCHINDUCTOR_CACHE_DIR", "XDG_CACHE_HOME", "HOME"), order.folder)
    )
    rather_me(800)
    try:
        torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
        importlib.import_module("onnxscript")
    except ImportError as error:
        _put(folder, "outcome.json", {"problem": f"a library is missing in the Python of jobs.export_python: {error.name}"})
        return 0
    if os.path.isdir("/proc/self/task") and len(os.listdir("/proc/self/task")) > 1:
        _put(folder, "outcome.json", {"problem": "a library has started threads, which could not be confined any more"})
        return 0
    restrain(order)
    try:
        outcome: dict[str, Any] = {"result": export(torch, transformers, order)}
    except MemoryError:
        print(f"out of memory: {order.memory_bytes} bytes are allowed", file=sys.stderr)
        return 1
    except Exception as error:  # noqa: BLE001 - boundary: whatever the libraries make of somebody's folder, the job tells it and ends
        if "alloc" in str(error) and "memory" in str(error):
            print(f"out of memory: {order.memory_bytes} bytes are allowed", file=sys.stderr)
            return 1
        outcome = {"problem": f"the folder is not exported: {' '.join(str(error).split())[:400] or type(error).__name__}"}
    _put(folder, "outcome.json", outcome)
    return 0


def export(torch: Any, transformers: Any, order: Any) -> dict[str, Any]:
    """Writes MADE. Raises Refused, and whatever the libraries raise."""
    source, folder = Path(order.source), Path(order.folder)
    config_file = _checked(source)
    torch.set_num_threads(order.threads)
    torch.manual_seed(0)
    safe: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    config = transformers.AutoConfig.from_pretrained(order.source, **safe)
    auto, output = _kind(source, config_file)
    safe |= {"config": config, "use_safetensors": True, "attn_implementation": "eager", "dtype": torch.float32}
    model, told = getattr(transformers, auto).from_pretrained(order.source, output_loading_info=True, **safe)
    missing = sorted(name for name in told["missing_keys"] if not (output == "last_hidden_state" and "pooler" in name))
    if missing or told.get("mismatched_keys"):
        raise Refused(f"weights are missing, or have another shape than config.json says: {', '.join(map(str, missing))[:200]}")
    _fits(json.loads((source / "tokenizer.json").read_bytes()), model.get_input_embeddings().weight.shape[0])
    size = 4 * sum(weights.numel() for weights in model.parameters())
    if size > MOST_BYTES:
        raise Refused(f"its weights have {size >> 20} MiB in F32; an ONNX file holds {MOST_BYTES >> 20} MiB")
    model.eval()
    _put(folder, "told.json", {"progress": 0.2})
    names = _inputs(model, config)
    made = folder / MADE
    (made / MODEL).mkdir(parents=True)
    _write(torch, _wrapped(torch, model, names, output), _sample(torch, config, names, 2, 8), made / MODEL / GRAPH, output)
    _put(folder, "told.json", {"progress": 0.8})
    sample = _sample(torch, config, names, 3, 11)
    with torch.no_grad():
        answer = _wrapped(torch, model, names, output)(*sample.values())
    if not bool(torch.isfinite(answer).all()):
        raise Refused("the model answers with values that are no numbers")
    _put(made, SAMPLE, {"inputs": {name: value.tolist() for name, value in sample.items()}, "output": output, "answer": answer.tolist()})
    _copy(source, made / MODEL)
    return {
        "architecture": type(model).__name__,
        "parameters": size // 4,
        "inputs": names,
        "output": output,
        "torch": str(torch.__version__)[:32],
        "transformers": str(transformers.__version__)[:32],
    }


def _checked(source: Path) -> dict[str, Any]:
    """config.json, after a look at what must be there and what must not. Raises Refused."""
    config = json.loads((source / "config.json").read_bytes())
    if not isinstance(config, dict):
        raise Refused("config.json is not an object")
    if config.get("auto_map"):
        raise Refused("config.json names code of its own (auto_map): no code of a model's folder runs here")
    if config.get("quantization_config"):
        raise Refused("its weights are quantised already")
    if not any((source / name).is_file() for name in ("model.safetensors", "model.safetensors.index.json")):
        raise Refused("there is no model.safetensors; pickles are not read")
    if "transformers_weights" in config:
        raise Refused("config.json names another file of weights (transformers_weights); model.safetensors is read")
    _parts(source / "model.safetensors.index.json")
    if (source / "adapter_config.json").exists():
        raise Refused("it is an adapter: merge it into its model first")
    if not (source / "tokenizer.json").is_file():
        raise Refused("there is no tokenizer.json, which the onnx runtime needs")
    return config


def _parts(index: Path) -> None:
    """The parts that an index names: transformers would read one with another name as a pickle. Raises Refused."""
    if not index.is_file():
        return
    try:
        parts = set(json.loads(index.read_bytes())["weight_map"].values())
        bad = next((part for part in parts if not part.endswith(".safetensors") or "/" in part or part.startswith(".")), None)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise Refused(f"{index.name} has no weight_map of names") from None
    if bad is not None:
        raise Refused(f"{index.name} names {bad[:64]!r}: parts are *.safetensors beside it, and pickles are not read")


def _fits(tokenizer: Any, rows: int) -> None:
    """rows: of the model's embeddings. A text with a token beyond them would fail, once the graph serves. Raises Refused."""
    try:
        vocabulary, added = tokenizer["model"]["vocab"], tokenizer.get("added_tokens") or []
        ids = vocabulary.items() if isinstance(vocabulary, dict) else ((piece, at) for at, (piece, _) in enumerate(vocabulary))
        token, highest = max([*ids, *((token["content"], token["id"]) for token in added)], key=lambda one: one[1], default=("", -1))
        beyond = not 0 <= highest < rows
    except (AttributeError, KeyError, TypeError, ValueError):
        raise Refused("tokenizer.json has no vocabulary as tokenizers write it") from None
    if beyond:
        raise Refused(f"tokenizer.json gives {str(token)[:64]!r} the id {highest}, and the model has {rows} embeddings")


def _kind(source: Path, config: dict[str, Any]) -> tuple[str, str]:
    """The class that loads it, and what of its answer the graph gives. Raises Refused."""
    named = config.get("architectures")
    architecture = str(named[0]) if isinstance(named, list) and named else ""
    if architecture.endswith("ForSequenceClassification"):
        return "AutoModelForSequenceClassification", "logits"
    if architecture.endswith("ForTokenClassification"):
        return "AutoModelForTokenClassification", "logits"
    modules = source / "modules.json"
    if modules.is_file():
        others = [kind for module in json.loads(modules.read_bytes()) if (kind := str(module["type"]).rpartition(".")[2]) not in MODULES]
        if others:
            raise Refused(f"modules.json has a module {others[0][:64]}; {', '.join(MODULES)} are possible")
    elif not architecture.endswith(("Model", "ForMaskedLM", "ForPreTraining")):
        raise Refused(
            f"config.json names the architecture {architecture[:64]!r}: encoders, classifiers and cross-encoders are exported "
            "(of one that generates text, `convert` makes a GGUF file)"
        )
    if config.get("is_encoder_decoder"):
        raise Refused("it has an encoder and a decoder")
    return "AutoModel", "last_hidden_state"


def _inputs(model: Any, config: Any) -> list[str]:
    taken = inspect.signature(model.forward).parameters
    names = ["input_ids", "attention_mask"]
    if "token_type_ids" in taken and getattr(config, "type_vocab_size", 0) > 1:
        names.append("token_type_ids")
    return names


def _sample(torch: Any, config: Any, names: list[str], rows: int, length: int) -> dict[str, Any]:
    """Texts of different lengths, padded at the end."""
    padding = config.pad_token_id if isinstance(getattr(config, "pad_token_id", None), int) else 0
    ids = torch.randint(0, config.vocab_size, (rows, length))
    ids[ids == padding] = (padding + 1) % config.vocab_size
    mask = torch.ones(rows, length, dtype=torch.int64)
    for row in range(1, rows):
        mask[row, length - 2 * row :] = 0
    ids[mask == 0] = padding
    segments = torch.zeros(rows, length, dtype=torch.int64)
    segments[:, length // 2 :] = mask[:, length // 2 :]
    return {name: {"input_ids": ids, "attention_mask": mask, "token_type_ids": segments}[name] for name in names}


def _wrapped(torch: Any, model: Any, names: list[str], output: str) -> Any:
    more = {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}

    class Graph(torch.nn.Module):  # type: ignore[misc] # torch is imported when the process runs
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *values: Any) -> Any:
            return getattr(self.model(**dict(zip(names, values, strict=True)), **more), output)

    return Graph().eval()


def _write(torch: Any, graph: Any, sample: dict[str, Any], path: Path, output: str) -> None:
    each = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    with torch.no_grad():
        torch.onnx.export(
            graph,
            tuple(sample.values()),
            str(path),
            input_names=[*sample],
            output_names=[output],
            opset_version=OPSET,
            dynamo=True,
            external_data=False,
            dynamic_shapes=(tuple(each for _ in sample),),
        )


def _copy(source: Path, made: Path) -> None:
    for path in kept(source):
        target = made / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


def _put(folder: Path, name: str, what: dict[str, Any]) -> None:
    """Whole or not at all."""
    beside = folder / f"{name}.new"
    beside.write_text(json.dumps(what))
    os.replace(beside, folder / name)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # the thread that waits for the end of standard input must not keep it
