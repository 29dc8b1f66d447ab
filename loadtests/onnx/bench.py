"""What dynamic batching gains and what the sidecar costs: `python -m loadtests.onnx.bench [--seconds S] [--only NAME]`.

Starts real sidecar processes and talks to their sockets from 16 connections, each with one request at a time (a closed loop),
over asyncio streams. Measured in one run, with and without batching by turns:

- bert: one short text a request, a BERT encoder of the size of all-MiniLM-L6-v2 with random weights;
- tiny: the same with the demo embedding model, a table of 2,000 vectors, where the cost of a call rules and not arithmetic;
- trivial: y = x @ w + 1 on 4 numbers, binary both ways;
- large: a binary tensor of 1 MiB there and back, one connection;
- ways (with --only): the BERT encoder as one instance on two threads, as two instances on one thread each, and by OpenVINO where its
  package is installed.

Prints requests per second, the median and the 99th percentile in milliseconds, and the sidecar's processor time for a request.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import onnxruntime as ort

from engines.demo.embed import OUT as DEMO
from engines.onnx.build_bert import convert
from gateway.core.specs import BatchingSpec
from tests.integration import bert
from tests.integration.onnx_process import OnnxProcess
from tests.unit.engines.onnx import models

CLIENTS = 16
ROUNDS = 3
TEXTS = (
    "how do I rotate my key", "the cat sat on the mat", "what is the status of my order", "engine two does not answer",
    "reset my password please",
    "where can I find the logs", "book a table for two", "the invoice is wrong", "what is a circuit breaker", "thanks, that was helpful",
)  # fmt: skip


class Client:
    """One connection that sends prepared requests one after the other."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.times: list[float] = []

    async def run(self, requests: list[bytes], until: float, offset: int) -> None:
        reader, writer = await asyncio.open_unix_connection(self._path, limit=8 << 20)
        place = offset
        while time.perf_counter() < until:
            started = time.perf_counter()
            writer.write(requests[place % len(requests)])
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(head.decode("latin-1"))
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)
            self.times.append(time.perf_counter() - started)
            place += 1
        writer.close()


def http(path: str, body: bytes, *headers: str) -> bytes:
    """A whole POST request."""
    lines = [f"POST {path} HTTP/1.1", "host: sidecar", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


async def load(path: str, requests: list[bytes], clients: int, seconds: float) -> list[float]:
    """Latencies of all requests of one phase, in seconds."""
    crowd = [Client(path) for _ in range(clients)]
    until = time.perf_counter() + seconds
    await asyncio.gather(*[client.run(requests, until, index) for index, client in enumerate(crowd)])
    return [latency for client in crowd for latency in client.times]


def processor_seconds(process: OnnxProcess) -> float:
    """Processor time the sidecar has used so far (proc(5), fields utime and stime): steadier than the clock on a shared machine."""
    fields = Path(f"/proc/{process.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Figures:
    """Of one way to run: requests per second of each round, all latencies, processor seconds."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.times: list[float] = []
        self.processor = 0.0
        self.requests = 0

    def measure(self, sidecar: OnnxProcess, requests: list[bytes], clients: int, seconds: float) -> None:
        """One more round, after a short one that is not counted."""
        asyncio.run(load(sidecar.socket, requests, clients, min(1.0, seconds)))
        before, started = processor_seconds(sidecar), time.perf_counter()
        times = asyncio.run(load(sidecar.socket, requests, clients, seconds))
        self.rates.append(len(times) / (time.perf_counter() - started))
        self.processor += processor_seconds(sidecar) - before
        self.requests += len(times)
        self.times += times

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    @property
    def cost(self) -> float:
        """Processor microseconds of the sidecar for a request."""
        return self.processor / self.requests * 1e6

    def show(self, name: str) -> None:
        ordered = sorted(self.times)
        p50, p99 = statistics.median(ordered) * 1e3, ordered[int(len(ordered) * 0.99)] * 1e3
        print(f"{name:24}{self.rate:8.0f} req/s   p50 {p50:7.2f} ms   p99 {p99:7.2f} ms   {self.cost:7.0f} us processor", flush=True)


@contextmanager
def pair(folder: Path) -> Iterator[tuple[OnnxProcess, OnnxProcess]]:
    """The same model with and without batching."""
    batched, plain = BatchingSpec(max_batch=32, max_delay_ms=2), BatchingSpec(max_batch=1, max_delay_ms=0)
    with OnnxProcess(folder, batching=batched, queue=256) as one, OnnxProcess(folder, batching=plain, queue=256) as two:
        yield one, two


def compare(name: str, folder: Path, requests: list[bytes], seconds: float) -> None:
    """Both by turns, so that what else the machine does falls on both."""
    batched, plain = Figures(), Figures()
    with pair(folder) as (one, two):
        for _ in range(ROUNDS):
            batched.measure(one, requests, CLIENTS, seconds)
            plain.measure(two, requests, CLIENTS, seconds)
    batched.show(f"{name}, batched")
    plain.show(f"{name}, not batched")
    print(f"{name}: {batched.rate / plain.rate:.2f} x the requests, {plain.cost / batched.cost:.2f} x less processor time\n", flush=True)


def texts() -> list[bytes]:
    return [http("/v1/embeddings", json.dumps({"model": "m", "input": text, "encoding_format": "base64"}).encode()) for text in TEXTS]


def infer(name: str, datatype: str, array: np.ndarray) -> bytes:
    """A binary infer request that wants binary outputs."""
    item = {"name": name, "datatype": datatype, "shape": array.shape, "parameters": {"binary_data_size": array.nbytes}}
    head = json.dumps({"inputs": [item], "parameters": {"binary_data_output": True}}).encode()
    return http("/v2/models/m/infer", head + array.tobytes(), f"inference-header-content-length: {len(head)}")


def ways(folder: Path, seconds: float) -> None:
    """The same model on two processors in several ways, by turns."""
    batching = BatchingSpec(max_batch=8, max_delay_ms=2)
    chosen: dict[str, tuple[int, dict[str, object]]] = {"1 instance, 2 threads": (2, {}), "2 instances, 1 thread": (1, {"instances": 2})}
    if "OpenVINOExecutionProvider" in ort.get_available_providers():
        chosen["OpenVINO, 2 threads"] = (2, {"execution_provider": "openvino"})
        chosen["OpenVINO, 2 instances"] = (1, {"execution_provider": "openvino", "instances": 2})
    found = {name: Figures() for name in chosen}
    with ExitStack() as stack:
        running = {
            name: stack.enter_context(OnnxProcess(folder, batching=batching, queue=256, threads=threads, options=options))
            for name, (threads, options) in chosen.items()
        }
        for _ in range(ROUNDS):
            for name, figures in found.items():
                figures.measure(running[name], texts(), CLIENTS, seconds)
    for name, figures in found.items():
        figures.show(name)


def large(folder: Path, seconds: float) -> None:
    models.save(models.identity("FP32", ("n", "m")), folder / "model.onnx")
    with OnnxProcess(folder) as sidecar:
        figures = Figures()
        figures.measure(sidecar, [infer("x", "FP32", np.zeros((1, 262144), np.float32))], 1, seconds)
    figures.show("1 MiB there and back")


def main() -> None:
    parser = argparse.ArgumentParser(description="Dynamic batching and the sidecar's own cost.")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each phase; there are three with and three without batching")
    parser.add_argument("--only", choices=("bert", "tiny", "trivial", "large", "ways"))
    arguments = parser.parse_args()

    def wanted(name: str) -> bool:
        return arguments.only in (None, name)

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if wanted("bert"):
            graph = convert(bert.source(folder / "source", bert.MINILM), folder / "bert")
            compare("bert", graph.parent, texts(), arguments.seconds)
        if arguments.only == "ways":
            ways(convert(bert.source(folder / "source", bert.MINILM), folder / "bert").parent, arguments.seconds)
        if wanted("tiny"):
            compare("tiny", DEMO, texts(), arguments.seconds)
        if wanted("trivial"):
            models.save(models.affine(), folder / "trivial" / "model.onnx")
            compare("trivial", folder / "trivial", [infer("x", "FP32", np.ones((1, 4), np.float32))], arguments.seconds)
        if wanted("large"):
            large(folder / "large", arguments.seconds)


if __name__ == "__main__":
    main()
