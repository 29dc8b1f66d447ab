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
from typing import Any, Final

import httpx
import msgspec
import typer

from admin.cli.errors import CommandError, UsageError
from engines.environment import inherited
from engines.runtimes import RUNTIMES, RuntimeRow, runtime_of_file
from gateway.core.specs import SidecarSpec

POLL_SECONDS: Final = 0.1
READY_SECONDS: Final = 600.0
END_SECONDS: Final = 40.0


def run(model: Path, runtime: str | None, device: str, slots: int, context: int, socket: Path | None) -> int:
    """Runs one engine in the foreground and prints its socket when it is ready; the exit code. Raises CommandError."""
    with tempfile.TemporaryDirectory(prefix="gatehouse-") as directory:
        row = _row(model, runtime)
        return _serve(row, _settings(row, model, device, slots, context, socket, Path(directory)), device)


def _row(model: Path, runtime: str | None) -> RuntimeRow:
    """The requested runtime, else the one whose models look like this one. Raises CommandError."""
    if not model.exists():
        raise CommandError(f"{model}: no such file or folder")
    if runtime is not None and runtime not in RUNTIMES:
        raise UsageError(f"there is no runtime {runtime!r}: write {' or '.join(row.name for row in RUNTIMES)}")
    folders = next(row for row in RUNTIMES if row.folder_files)
    return RUNTIMES[runtime] if runtime is not None else runtime_of_file(model.name, RUNTIMES) or folders


def _settings(row: RuntimeRow, model: Path, device: str, slots: int, context: int, socket: Path | None, directory: Path) -> SidecarSpec:
    """Raises CommandError for a device or socket that no engine could use."""
    name, _, number = device.partition(":")
    if device != "cpu" and not (name == "cuda" and number.isdigit()):
        raise UsageError(f"{device!r} is not a device: write cpu or cuda:N")
    place = (socket or directory / "engine.sock").resolve()
    if len(str(place).encode()) > 99:
        raise CommandError(f"the path of the socket is too long: {place}")
    return SidecarSpec(
        name="run",
        runtime=row.name,
        model=str(model.resolve()),
        socket=str(place),
        state_dir=str(directory),
        device="cpu" if device == "cpu" else "cuda:0",  # as the process sees it: one visible device
        wanted=device,
        slots=slots,
        context=context,
    )


def _serve(row: RuntimeRow, settings: SidecarSpec, device: str) -> int:
    """The exit code of the engine. Its standard input is its lifeline: it ends with this process, whatever happens."""
    environment = {**inherited(os.environ), **({} if device == "cpu" else {row.devices["cuda"]: device.partition(":")[2]})}
    with subprocess.Popen([sys.executable, "-m", row.module], stdin=subprocess.PIPE, env=environment) as process:
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
