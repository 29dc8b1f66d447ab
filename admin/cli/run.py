"""`gatehouse engines run`: one engine in the foreground, without a gateway, to try a model or to find out why it does not start."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final

import httpx
import msgspec
import typer

from admin.cli.errors import CommandError
from admin.cli.session import fail
from gateway.core.specs import SidecarSpec

MODULES: Final = MappingProxyType({"llama.cpp": "engines.llamacpp", "onnx": "engines.onnx"})
POLL_SECONDS: Final = 0.1
READY_SECONDS: Final = 600.0
END_SECONDS: Final = 40.0


def run(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A GGUF file, or a folder with an ONNX model.")],
    runtime: Annotated[str | None, typer.Option("--runtime", help="llama.cpp or onnx; by the model otherwise.")] = None,
    device: Annotated[str, typer.Option("--device", help="cpu or cuda:N.")] = "cpu",
    slots: Annotated[int, typer.Option("--slots", help="Requests at a time.", min=1, max=1024)] = 4,
    context: Annotated[int, typer.Option("--context", help="Tokens of context for each slot.", min=64)] = 2048,
    socket: Annotated[Path | None, typer.Option("--socket", help="The Unix socket to listen on.")] = None,
) -> None:
    """Runs one engine in the foreground and prints its socket when it is ready. Ctrl-C drains it."""
    try:
        with tempfile.TemporaryDirectory(prefix="gatehouse-") as directory:
            raise typer.Exit(_serve(_settings(model, runtime, device, slots, context, socket, Path(directory)), device))
    except CommandError as error:
        raise fail(error) from None


def _settings(model: Path, runtime: str | None, device: str, slots: int, context: int, socket: Path | None, directory: Path) -> SidecarSpec:
    """Raises CommandError for what no engine could run."""
    if not model.exists():
        raise CommandError(f"{model}: no such file or folder")
    kind = runtime or ("llama.cpp" if model.suffix == ".gguf" else "onnx")
    if kind not in MODULES:
        raise CommandError(f"there is no runtime {kind!r}: write llama.cpp or onnx")
    name, _, number = device.partition(":")
    if device != "cpu" and not (name == "cuda" and number.isdigit()):
        raise CommandError(f"{device!r} is no device: write cpu or cuda:N")
    place = (socket or directory / "engine.sock").resolve()
    if len(str(place).encode()) > 99:
        raise CommandError(f"the path of the socket is too long: {place}")
    return SidecarSpec(
        name="run",
        runtime="llama.cpp" if kind == "llama.cpp" else "onnx",
        model=str(model.resolve()),
        socket=str(place),
        state_dir=str(directory),
        device="cpu" if device == "cpu" else "cuda:0",  # as the process sees it: one visible device
        wanted=device,
        slots=slots,
        context=context,
    )


def _serve(settings: SidecarSpec, device: str) -> int:
    """The exit code of the engine. Its standard input is its lifeline: it ends with this process, whatever happens."""
    environment = {**os.environ, **({} if device == "cpu" else {"CUDA_VISIBLE_DEVICES": device.partition(":")[2]})}
    with subprocess.Popen([sys.executable, "-m", MODULES[settings.runtime]], stdin=subprocess.PIPE, env=environment) as process:
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(settings) + b"\n")
        process.stdin.flush()
        signal.signal(signal.SIGTERM, lambda number, frame: process.terminate())
        try:
            _ready(process, settings)
            return process.wait()
        except KeyboardInterrupt:
            process.terminate()
            return _ended(process)


def _ready(process: subprocess.Popen[bytes], settings: SidecarSpec) -> None:
    """Waits until the engine is ready and says where it listens. Raises CommandError with its reason when it fails."""
    transport = httpx.HTTPTransport(uds=settings.socket)
    deadline = time.monotonic() + READY_SECONDS
    with httpx.Client(transport=transport, base_url="http://engine", timeout=2.0) as client:
        while process.poll() is None and time.monotonic() < deadline:
            report = _health(client)
            if report.get("state") == "ready":
                typer.echo(f"engine: unix:{settings.socket}")
                typer.echo(json.dumps(report), err=True)
                return
            if report.get("state") == "failed":
                process.terminate()
                raise CommandError(str(report.get("reason") or "the engine failed without a reason"))
            time.sleep(POLL_SECONDS)
    if process.poll() is None:
        process.terminate()
        raise CommandError(f"the engine was not ready within {READY_SECONDS:g} s")
    raise CommandError(f"the engine ended with code {process.returncode}")


def _health(client: httpx.Client) -> dict[str, Any]:
    try:
        report = client.get("/health").json()
    except (httpx.HTTPError, ValueError):
        return {}
    return report if isinstance(report, dict) else {}


def _ended(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
