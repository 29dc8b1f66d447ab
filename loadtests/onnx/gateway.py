"""What the gateway adds to a tensor request: `python -m loadtests.onnx.gateway [--seconds S]`.

Starts the real gateway with an ONNX sidecar, once with and once without `audit.body_hashes`, and sends the same requests, by turns, to
the gateway's port and straight to the sidecar's socket, over asyncio streams, in a closed loop:

- request: a binary tensor of 1 MiB in, one number out; one connection;
- there and back: the same out again; one connection;
- trivial: y = x + x on 4 numbers; 16 connections.

Prints medians in milliseconds and requests per second, and what the gateway itself says that it took (`x-gatehouse-overhead-us`: from
the request's first byte to the answer, without the wait for the engine). Memory: the peak resident size of the gateway's process
during the large requests less its size before, in multiples of the body.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import re
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from onnx import ModelProto, TensorProto, helper

from tests.e2e.harness import KEY, Gatehouse, configuration

ROUNDS = 3
MIB = 1 << 20
TOTAL, ECHO, TRIVIAL = "total", "echo", "trivial"


def graph(operator: str, inputs: list[str], outputs: list[str | int]) -> ModelProto:
    """One operator on float32 rows."""
    rows = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "m"])
    made = helper.make_graph(
        [helper.make_node(operator, inputs, ["y"])],
        "g",
        [rows],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, outputs)],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def save_models(folder: Path) -> dict[str, Path]:
    """The three models; the path of each."""
    models = {
        TOTAL: graph("ReduceSum", ["x"], [1, 1]),
        ECHO: graph("Identity", ["x"], ["n", "m"]),
        TRIVIAL: graph("Add", ["x", "x"], ["n", "m"]),
    }
    paths = {name: folder / f"{name}.onnx" for name in models}
    for name, model in models.items():
        paths[name].write_bytes(model.SerializeToString())
    return paths


def infer(model: str, values: int) -> bytes:
    """A whole binary infer request for one row of `values` numbers."""
    array = np.zeros((1, values), np.float32)
    item = {"name": "x", "datatype": "FP32", "shape": array.shape, "parameters": {"binary_data_size": array.nbytes}}
    head = json.dumps({"inputs": [item], "parameters": {"binary_data_output": True}}).encode()
    body = head + array.tobytes()
    lines = [
        f"POST /v2/models/{model}/infer HTTP/1.1", "host: x", f"authorization: Bearer {KEY}", f"content-length: {len(body)}",
        f"inference-header-content-length: {len(head)}", "", "",
    ]  # fmt: skip
    return "\r\n".join(lines).encode() + body


class Figures:
    """Latencies of one way, and what the gateway said of itself."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.overhead: list[int] = []
        self.rates: list[float] = []

    async def one(self, address: str, request: bytes, until: float) -> None:
        """One connection, one request at a time."""
        if address.startswith("/"):
            reader, writer = await asyncio.open_unix_connection(address, limit=8 * MIB)
        else:
            host, _, port = address.partition(":")
            reader, writer = await asyncio.open_connection(host, int(port), limit=8 * MIB)
        while time.perf_counter() < until:
            started = time.perf_counter()
            writer.write(request)
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            if not head.startswith("http/1.1 200"):
                raise RuntimeError(head)
            await reader.readexactly(int(head.partition("\r\ncontent-length: ")[2].partition("\r\n")[0]))
            self.times.append(time.perf_counter() - started)
            if said := re.search(r"x-gatehouse-overhead-us: (\d+)", head):
                self.overhead.append(int(said[1]))
        writer.close()
        await writer.wait_closed()

    async def crowd(self, address: str, request: bytes, clients: int, seconds: float) -> None:
        before, started = len(self.times), time.perf_counter()
        await asyncio.gather(*[self.one(address, request, started + seconds) for _ in range(clients)])
        self.rates.append((len(self.times) - before) / (time.perf_counter() - started))

    @property
    def p50(self) -> float:
        return statistics.median(self.times) * 1000

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)


def compare(name: str, gateway: str, sidecar: str, request: bytes, clients: int, seconds: float) -> None:
    """Both ways by turns, so that what else the machine does falls on both."""
    direct, through = Figures(), Figures()
    gc.disable()
    for _ in range(ROUNDS):
        for figures, address in ((direct, sidecar), (through, gateway)):
            asyncio.run(figures.crowd(address, request, clients, seconds))
    gc.enable()
    print(
        f"{name:16} direct p50 {direct.p50:6.2f} ms {direct.rate:6.0f} req/s   "
        f"gateway p50 {through.p50:6.2f} ms {through.rate:6.0f} req/s   "
        f"adds {through.p50 - direct.p50:5.2f} ms   says {statistics.median(through.overhead) / 1000:5.2f} ms",
        flush=True,
    )


def resident(pid: int, field: str) -> int:
    """A size of a process in bytes (proc(5)): VmRSS now, VmHWM at its peak."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def memory(name: str, pid: int, gateway: str, request: bytes, seconds: float) -> None:
    """Peak growth of the gateway's process under one request at a time."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak starts anew at the present size
    before = resident(pid, "VmRSS")
    asyncio.run(Figures().crowd(gateway, request, 1, seconds))
    growth = resident(pid, "VmHWM") - before
    print(f"{name:16} memory + {growth / MIB:5.1f} MiB at its peak, {growth / len(request):4.1f} x the body", flush=True)


def measure(folder: Path, hashes: bool, seconds: float) -> None:
    """One gateway, with or without body hashes: memory first, as a process that has grown grows no more."""
    folder.mkdir()
    engines = [{"name": name, "runtime": "onnx", "model": str(path), "slots": 32} for name, path in save_models(folder).items()]
    config = configuration(
        folder / "state",
        engines=engines,
        models=[{"name": str(engine["name"]), "pool": [engine["name"]]} for engine in engines],
        audit={"body_hashes": hashes},
    )
    print(f"\n{'with' if hashes else 'without'} body hashes", flush=True)
    with Gatehouse(folder, config) as running:
        assert running.process is not None
        address = running.url.removeprefix("http://")
        sockets = {str(e["name"]): str(next((folder / "state").rglob(f"{e['name']}-*/s.sock"))) for e in engines}
        asyncio.run(Figures().crowd(address, infer(TRIVIAL, 4), 1, seconds))
        for label, model, size in (("request", TOTAL, 1), ("there and back", ECHO, 1), ("request, 6 MiB", TOTAL, 6)):
            memory(label, running.process.pid, address, infer(model, size * MIB // 4), seconds)
        compare("request", address, sockets[TOTAL], infer(TOTAL, MIB // 4), 1, seconds)
        compare("there and back", address, sockets[ECHO], infer(ECHO, MIB // 4), 1, seconds)
        compare("trivial", address, sockets[TRIVIAL], infer(TRIVIAL, 4), 16, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description="What the gateway adds to a tensor request.")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each phase")
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory(prefix="gh") as scratch:
        for hashes in (False, True):
            measure(Path(scratch) / ("hashed" if hashes else "plain"), hashes, seconds)


if __name__ == "__main__":
    main()
