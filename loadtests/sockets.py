"""What sockets and gRPC cost: memory of a thousand sockets, CPU of a message against a request over HTTP, and of a tensor of a megabyte by
gRPC against the REST form with binary tensors. `python -m loadtests.sockets`; CPU is that of the gateway's process, so other work on the
machine blurs it little. The engine is scripted (tests/fakes), the tensors' engine is the ONNX sidecar.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from websockets.asyncio.client import ClientConnection, connect

from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, Gatehouse, configuration, external
from tests.e2e.test_tensors import double_model

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import tritonclient.grpc as by_grpc
    import tritonclient.http as by_http

BODY = {"model": "m1", "messages": [{"role": "user", "content": "Hello"}]}
BEARER = {"authorization": f"Bearer {KEY}"}


def cpu(pid: int) -> float:
    """Seconds of CPU of a process so far."""
    parts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def sockets(gatehouse: Gatehouse, count: int) -> float:
    """KiB of the gateway's memory for each of so many open sockets, each of which has asked once."""
    assert gatehouse.process is not None
    pid, url = gatehouse.process.pid, gatehouse.url.replace("http", "ws", 1) + "/v1/stream"

    async def opened() -> ClientConnection:
        wire = await connect(url, additional_headers=BEARER, compression=None, proxy=None, open_timeout=60)
        await asked(wire, 1)
        return wire

    warm = [await opened() for _ in range(20)]
    before = resident(pid)
    wires: list[ClientConnection] = []
    while len(wires) < count:
        wires += await asyncio.gather(*(opened() for _ in range(min(50, count - len(wires)))))
    used = (resident(pid) - before) / count / 1024
    for wire in (*warm, *wires):
        await wire.close()
    return used


async def asked(wire: ClientConnection, count: int) -> None:
    for number in range(count):
        await wire.send(json.dumps({"type": "request", "id": number, "path": "/v1/chat/completions", "body": BODY}))
        while json.loads(await wire.recv())["type"] != "done":
            pass


async def by_socket(gatehouse: Gatehouse, count: int) -> None:
    url = gatehouse.url.replace("http", "ws", 1) + "/v1/stream"
    async with connect(url, additional_headers=BEARER, compression=None, proxy=None) as wire:
        await asked(wire, count)


async def by_requests(gatehouse: Gatehouse, count: int) -> None:
    async with httpx.AsyncClient(base_url=gatehouse.url, headers=BEARER, trust_env=False, timeout=60) as client:
        for _ in range(count):
            (await client.post("/v1/chat/completions", json=BODY)).raise_for_status()


def tensors(module: Any, client: Any, count: int) -> None:
    values = np.zeros((87_381, 3), np.float32)  # a megabyte
    tensor = module.InferInput("x", list(values.shape), "FP32")
    tensor.set_data_from_numpy(values)
    for _ in range(count):
        client.infer("double", [tensor], outputs=[module.InferRequestedOutput("y")], headers=dict(BEARER)).as_numpy("y")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sockets", type=int, default=1000)
    parser.add_argument("--messages", type=int, default=1000)
    parser.add_argument("--tensors", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    directory, engine = Path(tempfile.mkdtemp()), EngineThread()
    (directory / "double.onnx").write_bytes(double_model())
    config = configuration(
        directory / "state",
        listen={"grpc": "127.0.0.1:0", "sockets": {"max_per_principal": 4096}, "max_connections_per_peer": 4096},
        engines=[
            external("fake", engine.port, slots=256),
            {"name": "double", "runtime": "onnx", "model": str(directory / "double.onnx"), "slots": 4},
        ],
        models=[{"name": "m1", "pool": ["fake"]}, {"name": "double", "pool": ["double"]}],
    )
    with Gatehouse(directory, config) as gatehouse:
        assert gatehouse.process is not None
        pid = gatehouse.process.pid
        asyncio.run(by_socket(gatehouse, 100))
        print(f"memory: {asyncio.run(sockets(gatehouse, options.sockets)):.1f} KiB a socket, {options.sockets} sockets")
        grpc = by_grpc.InferenceServerClient(next(line[6:] for line in gatehouse.lines if line.startswith("grpc: ")))
        rest = by_http.InferenceServerClient(gatehouse.url.removeprefix("http://"))
        for number in range(options.rounds):
            found = []
            for run in (by_socket, by_requests):
                before = cpu(pid)
                asyncio.run(run(gatehouse, options.messages))
                found.append((cpu(pid) - before) / options.messages * 1e6)
            ratio = found[0] / found[1]
            print(f"round {number}: CPU of a message {found[0]:.0f} us, of a request over HTTP {found[1]:.0f} us, ratio {ratio:.2f}")
        for number in range(options.rounds):
            found = []
            for module, client in ((by_grpc, grpc), (by_http, rest)):
                before, begun = cpu(pid), time.perf_counter()
                tensors(module, client, options.tensors)
                found += [(cpu(pid) - before) / options.tensors * 1e3, (time.perf_counter() - begun) / options.tensors * 1e3]
            print(
                f"round {number}: a tensor of 1 MB by gRPC {found[0]:.2f} ms of CPU ({found[1]:.1f} ms in all), "
                f"by REST {found[2]:.2f} ms ({found[3]:.1f} ms), ratio {found[0] / found[2]:.2f}"
            )
        grpc.close()
        rest.close()
    engine.close()


if __name__ == "__main__":
    main()
