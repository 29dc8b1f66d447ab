"""One look at a machine with GPUs: what is there, and whether engines do on it what they promise. Offline; all that it needs it makes.

    ./scripts/gpu-check [--device cuda:0] [--out FILE] [--quick] [--model FILE.gguf]

Writes one JSON file and prints a table. Without a GPU it says so and ends with 2; `--device cpu` runs the same checks on the processor,
which shows that the checks work. A check that fails is an entry with its error; the others go on. Ends with 1 if any has failed.

| check | what |
|---|---|
| devices | driver, GPUs (name, UUID, memory), toolkit, what llama-cpp-python and ONNX Runtime were built for |
| load | planned and real memory, seconds to ready, first token of the first request (with just-in-time compiling) and of the second |
| memory | planned and real memory of other contexts, slots and types of keys and values |
| agree | the demo chat model writes the same as on the processor, by itself and as one of eight |
| streams f16, q8_0, unified | tokens/s at 1, 8, 32 and 64 streams with keys and values of this type, or in one memory; gain over one |
| beside | a prompt of 8 tokens beside one of 2,500 and four streams: first tokens, gaps |
| partial | half of the layers on the device: it answers, and takes less of it |
| speculation, adapters | the same text with guesses as without; two LoRA adapters by turns |
| kill | kill -9, memory back, a new process answers |
| two | two engines on one device at once |
| onnx | the demo embedding model with IO binding: milliseconds a request, and the largest difference to the processor |
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.metadata
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from engines.demo import embed
from engines.host import nvml
from engines.host.memory import device_free, device_overhead
from engines.host.placement import inspect, plan, with_cache
from engines.llamacpp.options import step_size
from loadtests.llamacpp import goodput, measures
from loadtests.llamacpp.peers import Server
from loadtests.llamacpp.random_gguf import Shape, write, write_lora

ROOT = Path(__file__).resolve().parents[2]
SMALL = Shape(layers=8, width=512, heads=8, kv_heads=4, feed_forward=1408, context=4096, extra_words=4000)
LARGE = Shape(layers=24, width=2048, heads=16, kv_heads=8, feed_forward=5632, context=4096, extra_words=31600)
START_SECONDS = 300.0
SLOTS, CONTEXT = 8, 1024
PROMPT = "hello world, this text is read and continued"
Figures = dict[str, Any]


class Failed(Exception):
    """A check's expectation does not hold."""


class Bench:
    """The device under test, the models, and how engines are started on it."""

    def __init__(self, device: str, folder: Path, model: Path, adapters: list[Path], quick: bool) -> None:
        self.device, self.folder, self.model, self.adapters, self.quick = device, folder, model, adapters, quick
        self._started = 0

    @contextlib.contextmanager
    def engine(self, runtime: str = "llamacpp", model: Path | None = None, **settings: Any) -> Iterator[Engine]:
        """An engine, ready; ended afterwards."""
        self._started += 1
        place = self.folder / f"e{self._started}"
        place.mkdir()
        spec = {"name": "check", "runtime": "llama.cpp" if runtime == "llamacpp" else runtime, "model": str(model or self.model),
                "socket": str(place / "s.sock"), "state_dir": str(place), "slots": SLOTS, "context": CONTEXT, "queue": 64,
                "device": "cpu" if self.device == "cpu" else "cuda:0", "wanted": self.device, **settings}  # fmt: skip
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        if self.device != "cpu":
            environment |= {"CUDA_VISIBLE_DEVICES": self.device.partition(":")[2], "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        engine = Engine(runtime, spec, environment, place / "log")
        try:
            engine.ready()
            yield engine
        finally:
            engine.close()

    def free(self) -> int | None:
        """Bytes free on the device; None on the processor, or where the driver does not tell."""
        found = device_free(self.device)
        return sum(found) if found else None


class Engine:
    """A sidecar as a process of its own."""

    def __init__(self, runtime: str, spec: dict[str, Any], environment: dict[str, str], log: Path) -> None:
        self._log = log
        self.began = time.monotonic()
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", f"engines.{runtime}"], cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=file, stderr=file
            )  # fmt: skip
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(spec).encode() + b"\n")
        self.process.stdin.flush()
        self.server = Server("check", (self.process.pid,), path=spec["socket"])
        transport = httpx.HTTPTransport(uds=spec["socket"])
        self.http = httpx.Client(transport=transport, base_url="http://engine", timeout=START_SECONDS)
        self.health: dict[str, Any] = {}

    def ready(self) -> None:
        """Wait until it serves. Raises Failed with its reason or its log."""
        while time.monotonic() - self.began < START_SECONDS:
            if self.process.poll() is not None:
                raise Failed(f"the engine ended with {self.process.returncode}: {self._log.read_text(errors='replace')[-800:]}")
            if self._listens():
                self.health = self.http.get("/health").json()
                if self.health["state"] == "ready":
                    return
                if self.health["state"] == "failed":
                    raise Failed(str(self.health.get("reason")))
            time.sleep(0.05)
        raise Failed(f"the engine was not ready after {START_SECONDS:.0f} s")

    def _listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(self.server.path or "") == 0

    def complete(self, tokens: int = 16, **settings: Any) -> str:
        """A text, greedy."""
        body = {"prompt": PROMPT, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, **settings}
        answer = self.http.post("/v1/completions", json=body)
        if answer.status_code != 200:
            raise Failed(answer.text[:400])
        return str(answer.json()["choices"][0]["text"])

    def at_once(self, count: int, tokens: int = 24) -> list[str]:
        """The same text, asked for so many times at once."""
        with ThreadPoolExecutor(count) as threads:
            return list(threads.map(lambda _: self.complete(tokens), range(count)))

    def memory(self) -> int:
        """Bytes that it holds: on the GPU where it says so, else resident."""
        vram = int(self.http.get("/health").json().get("vram_bytes") or 0)
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return vram or pages * os.sysconf("SC_PAGESIZE")

    def close(self) -> None:
        """Kill it and wait."""
        self.http.close()
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()


def devices(bench: Bench) -> Figures:
    """What is installed and what there is."""
    found: Figures = {
        "machine": platform.machine(), "cores": len(os.sched_getaffinity(0)),
        "offload": told("import llama_cpp; print(json.dumps(bool(llama_cpp.llama_supports_gpu_offload())))"),
        "providers": told("import onnxruntime; print(json.dumps(onnxruntime.get_available_providers()))"),
        "packages": packages(), "toolkit": toolkit(), "gpus": gpus(),
    }  # fmt: skip
    if bench.device != "cpu":
        if not found["offload"]:
            raise Failed("llama-cpp-python was built without CUDA; run ./scripts/install --cuda")
        if "CUDAExecutionProvider" not in found["providers"]:
            raise Failed("ONNX Runtime has no CUDA provider; run ./scripts/install --cuda")
    return found


def told(program: str) -> Any:
    """What a library says in a process of its own: the process that loads llama.cpp's CUDA build and then onnxruntime-gpu crashes."""
    done = subprocess.run([sys.executable, "-c", f"import json; {program}"], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise Failed(f"{program.partition(';')[0]}: ended with {done.returncode}: {done.stderr[-400:]}")
    return json.loads(done.stdout.splitlines()[-1])


def packages() -> dict[str, str]:
    """Versions of what matters here."""
    found = {}
    for name in ("llama-cpp-python", "onnxruntime", "onnxruntime-gpu", "nvidia-ml-py"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def toolkit() -> str | None:
    """The CUDA compiler's release."""
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if nvcc is None:
        return None
    text = subprocess.run([nvcc, "--version"], capture_output=True, text=True, timeout=30, check=False).stdout
    return next((line.strip() for line in text.splitlines() if "release" in line), None)


def gpus(library: Any = nvml.LIBRARY) -> list[Figures]:
    """Each GPU as the driver tells; empty without driver or GPU."""
    try:
        uuids = nvml.present(library)
        with nvml.opened(library):
            version = library.nvmlSystemGetDriverVersion()
            found = []
            for number, uuid in enumerate(uuids):
                handle = nvml.handle(library, str(number))
                memory = library.nvmlDeviceGetMemoryInfo(handle)
                found.append({"number": number, "uuid": uuid, "name": library.nvmlDeviceGetName(handle), "driver": version,
                              "memory": int(memory.total), "free": int(memory.free),
                              "capability": list(library.nvmlDeviceGetCudaComputeCapability(handle))})  # fmt: skip
            return found
    except nvml.Unknown:
        return []


def load(bench: Bench) -> Figures:
    """Planned against real memory, and how soon the first tokens come."""
    before = bench.free()
    with bench.engine() as engine:
        ready = time.monotonic() - engine.began
        first, second = (timed(lambda: engine.complete(1)) for _ in range(2))
        return {**taken(bench, engine, before, {}), "ready s": round(ready, 2),
                "first token s": round(first, 3), "second first token s": round(second, 3)}  # fmt: skip


def memory(bench: Bench) -> Figures:
    """Planned against real memory of other engines."""
    settings: dict[str, dict[str, Any]] = {
        "large": {"slots": 16, "context": 4096},
        "large q8_0": {"slots": 16, "context": 4096, "options": {"cache_type_k": "q8_0", "cache_type_v": "q8_0", "flash_attention": "on"}},
        "unified": {"slots": 16, "context": 1024, "options": {"kv_unified": True}},
        "batch 2048": {"slots": 8, "context": 2048, "options": {"batch": 2048}},
        "half of the layers": {"slots": 8, "context": 2048, "options": {"gpu_layers": 4 if bench.quick else 12}},
    }
    found: Figures = {}
    for name, chosen in settings.items():
        before = bench.free()
        with bench.engine(**chosen) as engine:
            engine.at_once(8, 2)
            found[name] = taken(bench, engine, before, chosen)
    if bench.device != "cpu" and (short := {name for name, each in found.items() if each["taken bytes"] > each["planned bytes"] * 1.1}):
        raise Failed(f"these take more than was planned: {sorted(short)}: {found}")
    return found


def taken(bench: Bench, engine: Engine, before: int | None, settings: Figures) -> Figures:
    """What was planned for the engine on its device, and what it took there."""
    after = bench.free()
    real = before - after if before is not None and after is not None else engine.memory()
    ours = planned(bench, settings)
    return {"planned bytes": ours, "taken bytes": real, "ratio": round(real / ours, 3), "its own figure": engine.memory()}


def planned(bench: Bench, settings: Figures) -> int:
    """Bytes that placement plans for the engine on its device, or in main memory."""
    options, slots = settings.get("options", {}), settings.get("slots", SLOTS)
    metadata = asyncio.run(inspect("engines.llamacpp.gguf", str(bench.model)))
    step = step_size(options, slots, metadata.architecture, bench.device)
    kept = with_cache(metadata, options.get("cache_type_k"), options.get("cache_type_v"))
    made = plan(
        kept, bench.device, None, settings.get("context", CONTEXT), slots,
        micro_batch=step.micro_batch, outputs=step.outputs, lines=step.lines, unified=step.unified, layers=options.get("gpu_layers"),
        overhead=device_overhead(bench.device),
    )  # fmt: skip
    return made.host_bytes if bench.device == "cpu" else made.device_bytes


def agree(bench: Bench) -> Figures:
    """A model that was trained writes what it writes on the processor."""
    here = bench.device
    texts: dict[str, str] = {}
    several: list[str] = []
    for device in ("cpu", here):
        bench.device = device
        try:
            with bench.engine(model=embed.OUT.parent / "demo-chat.gguf") as engine:
                texts[device] = engine.complete(24)
                several = engine.at_once(8)
        finally:
            bench.device = here
    same = common(texts["cpu"], texts[here])
    if same < 4:
        raise Failed(f"other texts than on the processor: {texts}")
    return {"characters": len(texts[here]), "as on the processor": same, "as alone, of eight": several.count(texts[here])}


def common(one: str, other: str) -> int:
    """Characters of the beginning that both share."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def timed(work: Callable[[], object]) -> float:
    """Seconds that it takes."""
    began = time.monotonic()
    work()
    return time.monotonic() - began


def streams(kind: str, **options: Any) -> Callable[[Bench], Figures]:
    """Tokens a second with keys and values of this type."""

    def check(bench: Bench) -> Figures:
        counts, tokens = ((1, 4), 16) if bench.quick else ((1, 8, 32, 64), 128)
        chosen = {"cache_type_k": kind, "cache_type_v": kind, **({} if kind == "f16" else {"flash_attention": "on"}), **options}
        with bench.engine(slots=max(counts), context=512, options=chosen) as engine:
            measures.throughput(engine.server, counts[-1], 4, 1)
            speeds = {count: measures.throughput(engine.server, count, tokens, 2 + count)["tok/s"] for count in counts}
        found: Figures = {f"tok/s x{count}": round(speed, 1) for count, speed in speeds.items()}
        return found | {f"gain x{count}": round(speeds[count] / speeds[1], 2) for count in counts[1:]}

    return check


def beside(bench: Bench) -> Figures:
    """A short prompt beside a long one."""
    with bench.engine(context=4096) as engine:
        figures = goodput.beside(engine.server, 1, 1 if bench.quick else 4)
    return {name: round(value, 3) for name, value in figures.items()}


def partial(bench: Bench) -> Figures:
    """Half of the layers on the device."""
    figures: Figures = {}
    for name, layers in (("all", -1), ("half", 4 if bench.quick else 12)):
        with bench.engine(slots=1, options={"gpu_layers": layers}) as engine:
            engine.complete(4)
            figures[f"{name} bytes"] = engine.memory()
            figures[f"{name} layers"] = engine.health["placement"]["device_layers"]
    if bench.device != "cpu" and figures["half bytes"] >= figures["all bytes"]:
        raise Failed(f"half of the layers take as much of the device as all: {figures}")
    return figures


def speculation(bench: Bench) -> Figures:
    """The same text with guesses."""
    prompt = PROMPT * 3
    texts = []
    for options in (None, {"speculation": {}}):
        with bench.engine(slots=1, options=options or {}) as engine:
            texts.append(engine.complete(64, prompt=prompt))
    return {"characters": len(texts[0]), "the same": common(*texts)}


def adapters(bench: Bench) -> Figures:
    """Two adapters and the model without change each other's text in nothing."""
    named = [{"name": file.stem, "file": file.name} for file in bench.adapters]
    if not named:
        return {"skipped": "the model was given, and no adapters for it"}
    with bench.engine(options={"adapters": named}) as engine:
        names = ["m", *(f"m:{adapter['name']}" for adapter in named)]
        texts = {name: engine.complete(12, model=name) for name in names}
    if len(set(texts.values())) != len(names):
        raise Failed(f"two of them write the same: {texts}")
    return {"texts": len(texts)}


def kill(bench: Bench) -> Figures:
    """kill -9 gives the memory back."""
    before = bench.free()
    with bench.engine() as engine:
        text = engine.complete()
        engine.process.kill()
        engine.process.wait()
    deadline = time.monotonic() + 30
    while before is not None and (bench.free() or 0) < before - (64 << 20):
        if time.monotonic() > deadline:
            raise Failed(f"30 s after the kill, {before - (bench.free() or 0)} bytes of the device are still taken")
        time.sleep(0.1)
    with bench.engine() as engine:
        if engine.complete() != text:
            raise Failed("the new process writes another text")
        return {"ready again s": round(time.monotonic() - engine.began, 2)}


def two(bench: Bench) -> Figures:
    """Two engines at once."""
    with bench.engine(slots=2) as first, bench.engine(slots=2) as second:
        if first.complete() != second.complete():
            raise Failed("the two write different texts")
        return {"bytes": [first.memory(), second.memory()]}


def onnx(bench: Bench) -> Figures:
    """Embeddings on the device, against those of the processor."""
    body = {"input": ["how do I create a key?", "the breaker opens"], "model": "m"}
    vectors, figures = [], {}
    here = bench.device
    for device in ("cpu", here):
        bench.device = device
        try:
            with bench.engine("onnx", embed.OUT) as engine:
                answer = engine.http.post("/v1/embeddings", json=body)
                if answer.status_code != 200:
                    raise Failed(answer.text[:400])
                vectors.append([value for item in answer.json()["data"] for value in item["embedding"]])
                figures[f"{device} ms"] = round(
                    1000 * min(timed(lambda: engine.http.post("/v1/embeddings", json=body)) for _ in range(10)), 2
                )
                figures[f"{device} runs on"] = engine.health["device"]
        finally:
            bench.device = here
    difference = max(abs(a - b) for a, b in zip(*vectors, strict=True))
    if difference > 0.01:
        raise Failed(f"a value differs by {difference}")
    return figures | {"largest difference": difference}


CHECKS: dict[str, Callable[[Bench], Figures]] = {
    "devices": devices,
    "load": load,
    "memory": memory,
    "agree": agree,
    "streams f16": streams("f16"),
    "streams q8_0": streams("q8_0"),
    "streams unified": streams("f16", kv_unified=True),
    "beside": beside,
    "partial": partial,
    "speculation": speculation,
    "adapters": adapters,
    "kill": kill,
    "two": two,
    "onnx": onnx,
}


def run(bench: Bench, names: list[str]) -> dict[str, Figures]:
    """All checks, each with what it found or its error."""
    results: dict[str, Figures] = {}
    for name in names:
        began = time.monotonic()
        try:
            found: Figures = {"ok": True, **CHECKS[name](bench)}
        except Exception as error:  # noqa: BLE001 - boundary: a check that fails is a finding, and the others go on
            found = {"ok": False, "error": f"{type(error).__name__}: {error}"[:1000]}
        results[name] = {**found, "seconds": round(time.monotonic() - began, 1)}
        print(table(name, results[name]), flush=True)
    return results


def table(name: str, found: Figures) -> str:
    """One check for people."""
    rest = ", ".join(f"{key} {value}" for key, value in found.items() if key not in ("ok", "seconds", "error"))
    return f"{'ok    ' if found['ok'] else 'FAILED'} {name:13} {found['seconds']:7.1f} s  {found.get('error') or rest}"


def main(arguments: list[str] | None = None) -> int:
    """Entry point; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0", help="cuda:NUMBER, cuda:UUID, or cpu")
    parser.add_argument("--out", type=Path, default=Path("gpu-check.json"))
    parser.add_argument("--quick", action="store_true", help="a small model and few tokens: shows that it works, not how fast")
    parser.add_argument("--model", type=Path, help="a GGUF file instead of random weights")
    parser.add_argument("--only", default=",".join(CHECKS), help="some of the checks")
    options = parser.parse_args(arguments)
    report: Figures = {"device": options.device, "quick": options.quick, "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    code = 0
    if options.device != "cpu" and not gpus():
        why = "the package nvidia-ml-py is missing" if nvml.LIBRARY is None else "NVIDIA's driver does not answer, or knows no GPU"
        print(f"there is no GPU here: {why}. `--device cpu` runs the checks on the processor.")
        report |= {"gpu": None, "reason": why, "packages": packages(), "toolkit": toolkit()}
        code = 2
    else:
        with tempfile.TemporaryDirectory(prefix="gc") as folder:
            report["checks"] = run(prepared(options, Path(folder)), options.only.split(","))
        code = 0 if all(found["ok"] for found in report["checks"].values()) else 1
    options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"written to {options.out}")
    return code


def prepared(options: argparse.Namespace, folder: Path) -> Bench:
    """The models and the device."""
    if options.model is not None:
        return Bench(options.device, folder, options.model.resolve(), [], options.quick)
    shape = SMALL if options.quick else LARGE
    model = write(folder / "m.gguf", shape, scale=4.0)
    adapters = [write_lora(folder / f"{name}.gguf", shape, rank=8, seed=seed) for seed, name in enumerate(("a", "b"), start=2)]
    return Bench(options.device, folder, model, adapters, options.quick)


if __name__ == "__main__":
    sys.exit(main())
