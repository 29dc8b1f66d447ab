"""Hostile GGUF headers: which of those that Gatehouse's reader takes end llama.cpp, or occupy it?

    python -m loadtests.llamacpp.headers [--minutes 5] [--seed 1] [--only llama,bert] [--seconds 20] [--megabytes 4096] [--keep FOLDER]

For each architecture that the installed llama.cpp knows, a small file is made by asking llama.cpp itself: it says which key or tensor it
lacks and which shape it expects, until it loads. Then keys, tensors and their types are changed at random, one to three at a time, and each
file is loaded as an engine loads it, in a process of its own with a bound on time and memory, and asked once. What our reader or llama.cpp
refuses is right, as is what loads. Printed is each way in which a process ended otherwise, with the first header that did it; the files go
to FOLDER. Exits with 1 if there is one.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import resource
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import llama_cpp

from engines.host.ending import CRASHES
from engines.llamacpp.app import LlamaRuntime
from engines.llamacpp.native import Batch
from engines.sidecar.loading import LoadError
from gateway.core.specs import SidecarSpec
from loadtests.llamacpp import random_bert, random_gguf
from loadtests.llamacpp.hostile import ARRAY, BOOL, F32, I32, STRING, U32, Header, Value, changed, guess, value_of

SHAPE: Final = random_gguf.Shape(layers=2, width=64, heads=2, kv_heads=1, feed_forward=64, context=256)
TRIES: Final = 250
"""Loads until an architecture's file is whole."""
TEXT: Final = "the fox <|im_start|> é \0 日本 a  b"
_LACKS_KEY = re.compile(r"(?<!array )key not found in model: (\S+)")
_LACKS_TENSOR = re.compile(r"(?:missing )?tensor '([^']+)'(?: not found| is missing|$)")
_LACKS_ARRAY = re.compile(r"array key not found in model: (\S+)")
_OTHER_TYPE = re.compile(r"key (\S+) has wrong type \S+ but expected type (\S+)")
_OTHER_SHAPE = re.compile(r"tensor '([^']+)' has wrong shape; expected ([\d, ]+), got")
_EXPERTS: Final = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 64}
_VARIANTS: Final[tuple[dict[str, Any], ...]] = (
    {}, {"rope.dimension_count": 16}, _EXPERTS, {**_EXPERTS, "rope.dimension_count": 16}, {"attention.head_count_kv": 2},
    {"attention.head_count_kv": (0, 1)}, {**_EXPERTS, "attention.head_count_kv": (0, 1)}, {**_EXPERTS, "interleave_moe_layer_step": 1},
    {"attention.head_count_kv": (0, 1), "ssm.group_count": 0}, {"attention.head_count_kv": (0, 1), "feed_forward_length": (0, 0)},
    {**_EXPERTS, "attention.head_count_kv": (0, 1), "leading_dense_block_count": 1}, {"full_attention_interval": 2, "ssm.inner_size": 64},
    {**_EXPERTS, "full_attention_interval": 2, "ssm.inner_size": 64}, {"token_shift_count": 1}, {"attention.gate_lora_rank": 16},
)  # fmt: skip
"""What the architectures want beside the plain keys: one of these."""


_TAILS: Final = ("bert", "qwen", "qwen2", "t5", "glm4", "rwkv7")
"""Architectures that the library does not list: the linker keeps a name within another one that ends alike."""
_TYPES: Final = {"bool": Value(BOOL, False), "f32": Value(F32, 1.0), "u32": Value(U32, 1), "str": Value(STRING, "x")}
"""llama.cpp's name of a type -> a value of it."""


# -- one load, in a process of its own --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outcome:
    """kind: loaded, refused, raised, or ended, at the load or once it serves. why: the refusal, or how it ended."""

    kind: str
    why: str = ""


def attempt(path: Path, seconds: int, megabytes: int) -> Outcome:
    """Load a file and ask it once."""
    told, tell = os.pipe()
    said, say = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(say, 1)
        os.dup2(say, 2)
        signal.alarm(seconds)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))
        os.write(tell, _asked(path, lambda: os.write(tell, b"\0")).encode("utf-8", "replace")[:4000])
        os._exit(0)
    os.close(tell)
    os.close(say)
    answer, log = _read_both(told, said)
    _, status = os.waitpid(child, 0)
    stage = "once it served" if answer.startswith("\0") else "at the load"
    if answer := answer.lstrip("\0"):
        kind, _, why = answer.partition(":")
        return Outcome(kind, why)
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if number == signal.SIGALRM:
        return Outcome("ended", f"{stage}: not within {seconds} s")
    words = [line.strip() for line in log.splitlines() if CRASHES.search(line) or "what()" in line]
    how = signal.Signals(number).name if number else f"code {os.WEXITSTATUS(status)}"
    return Outcome("ended", f"{stage}: {how}: {words[-1][-200:] if words else 'without a word'}")


def _read_both(told: int, said: int) -> tuple[str, str]:
    """What came through either pipe, of each the last 64 KiB."""
    found = {told: b"", said: b""}
    left = set(found)
    while left:
        for pipe in select.select(list(left), [], [])[0]:
            if data := os.read(pipe, 65536):
                found[pipe] = (found[pipe] + data)[-65536:]
            else:
                left.discard(pipe)
                os.close(pipe)
    return found[told].decode("utf-8", "replace"), found[said].decode("utf-8", "replace")


def _asked(path: Path, loaded: Callable[[], object]) -> str:
    """What an engine makes of it: its load, then a text's tokens and one step. loaded: is called between them."""
    spec = SidecarSpec(
        name="e", runtime="llama.cpp", model=str(path), socket="unused", state_dir=str(path.parent), slots=2, context=128, threads=1
    )
    try:
        made = LlamaRuntime(spec)
        made.load()
        loaded()
        model, context = made._model, made._context
        assert model is not None and context is not None
        tokens = model.tokenize(TEXT, add_special=True, parse_special=True)[:32]
        model.detokenize([*tokens, 0, model.n_vocab - 1])
        for token in {*tokens, 0, model.n_vocab - 1}:
            model.piece(token)
        batch = Batch(64)
        batch.add(0, 0, tokens or [0], output_last=True)
        if model.has_encoder and context.encode(batch) == 0 and not model.has_decoder:
            return "loaded:"
        if not model.has_encoder:
            context.clear()
            context.decode(batch)
        return "loaded:"
    except LoadError as error:
        return f"refused:{error}"
    except Exception as error:  # noqa: BLE001 - whatever comes out of it is what this program looks for
        return f"raised:{error!r}"


# -- a file of each architecture --------------------------------------------------------------------------------------------


def library() -> bytes:
    """The bytes of llama.cpp's library."""
    return next(Path(llama_cpp.__file__).with_name("lib").glob("libllama.so*")).read_bytes()


def architectures(data: bytes) -> list[str]:
    """Their names, as the library lists them."""
    names = data[: data.index(b"\0(unknown)\0general.type\0")].rsplit(b"\0clip\0", 1)[1]
    return [*_TAILS, *(name.decode() for name in names.split(b"\0") if name and name.decode() not in _TAILS)]


def further_keys(data: bytes) -> list[str]:
    """Keys that begin with the architecture's name, without it."""
    return sorted({found.decode() for found in re.findall(rb"\0%s\.([a-z0-9_.]+)(?=\0)", data)})


def build(name: str, folder: Path, shapes: dict[str, tuple[int, ...]], limits: tuple[int, int]) -> tuple[Header | None, str]:
    """A file that llama.cpp loads, or why there is none. shapes: of tensors of other architectures; more are noted."""
    encoder = "bert" in name or name == "llama-embed"
    base = random_bert.metadata(random_bert.Shape(width=64, heads=2, feed_forward=64)) if encoder else random_gguf.metadata(SHAPE)
    old = "bert." if encoder else "llama."
    values = {f"{name}.{key.removeprefix(old)}" if key.startswith(old) else key: value_of(value) for key, value in base.items()}
    values |= {"general.architecture": Value(STRING, name)}
    if encoder:
        values[f"{name}.pooling_type"] = Value(U32, 1)
    header, why = Header(values), ""
    for further in _VARIANTS:
        made = header.copy()
        made.values |= {f"{name}.{key}": value_of(value) for key, value in further.items()}
        why = _complete(made, folder / "base.gguf", shapes, limits)
        if not why:
            return made, ""
    return None, why


def _complete(header: Header, path: Path, shapes: dict[str, tuple[int, ...]], limits: tuple[int, int]) -> str:
    """Give a header what llama.cpp asks for, until it loads; why it does not."""
    why = ""
    for _ in range(TRIES):
        header.write(path)
        found = attempt(path, *limits)
        if found.kind == "loaded":
            return ""
        why = found.why or found.kind
        if missing := _LACKS_ARRAY.search(why):
            if missing[1] in header.values:
                break
            header.values[missing[1]] = Value(ARRAY, (1,) * SHAPE.layers, I32)
        elif (other := _OTHER_TYPE.search(why)) and other[2] in _TYPES:
            header.values[other[1]] = _TYPES[other[2]]
        elif missing := _LACKS_KEY.search(why):
            if missing[1] in header.values:
                break
            header.values[missing[1]] = guess(missing[1])
        elif missing := _LACKS_TENSOR.search(why):
            if missing[1] in header.tensors:
                break
            header.tensors[missing[1]] = shapes.get(missing[1], (1,)), 0
        elif other := _OTHER_SHAPE.search(why):
            dims = tuple(int(number) for number in other[2].split(","))
            while len(dims) > 1 and dims[-1] == 1:
                dims = dims[:-1]
            if header.tensors[other[1]][0] == dims or 0 in dims:
                break
            header.tensors[other[1]], shapes[other[1]] = (dims, 0), dims
        else:
            break
    return why


# -- the run ----------------------------------------------------------------------------------------------------------------


def bases(names: list[str], folder: Path, limits: tuple[int, int]) -> Iterator[tuple[str, Header]]:
    """The architectures for which a file can be made; the others are printed."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name in names:
        header, why = build(name, folder, shapes, limits)
        if header is not None:
            yield name, header
        else:
            print(f"no file of {name}: {why[-160:]}", flush=True)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0, help="beside the time that the first files take; default: 5")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="architectures, separated by commas; default: all")
    parser.add_argument("--seconds", type=int, default=20, help="for one load; default: 20")
    parser.add_argument("--megabytes", type=int, default=4096, help="address space of one process; default: 4096")
    parser.add_argument("--keep", type=Path, help="a folder for the files that end llama.cpp")
    chosen = parser.parse_args(arguments)
    os.environ["GGML_NO_BACKTRACE"] = "1"
    data, limits = library(), (chosen.seconds, chosen.megabytes)
    keys, chance = further_keys(data), random.Random(chosen.seed)
    counts: dict[str, int] = {}
    found: dict[tuple[str, str], int] = {}
    with tempfile.TemporaryDirectory(prefix="headers") as place:
        folder = Path(place)
        made = list(bases([name for name in chosen.only.split(",") if name] or architectures(data), folder, limits))
        print(f"{len(made)} architectures: {' '.join(name for name, _ in made)}; {len(keys)} further keys", flush=True)
        end = time.monotonic() + 60 * chosen.minutes
        while made and time.monotonic() < end:
            name, header = chance.choice(made)
            hostile, said = changed(header, keys, chance)
            hostile.write(path := folder / "hostile.gguf")
            outcome = attempt(path, *limits)
            counts[outcome.kind] = counts.get(outcome.kind, 0) + 1
            if outcome.kind in ("loaded", "refused"):
                continue
            way = outcome.kind, re.sub(r"0x[0-9a-f]+", "", outcome.why)
            found[way] = found.get(way, 0) + 1
            if found[way] == 1:
                print(f"{outcome.kind} {name}: {said}\n    {outcome.why}", flush=True)
                if chosen.keep is not None:
                    chosen.keep.mkdir(parents=True, exist_ok=True)
                    path.replace(chosen.keep / f"{len(found)}-{name}.gguf")
    print(f"{sum(counts.values())} headers: {', '.join(f'{count} {kind}' for kind, count in sorted(counts.items()))}; {len(found)} ways")
    for (kind, why), count in sorted(found.items(), key=lambda item: -item[1]):
        print(f"{count:6} {kind} {why}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
