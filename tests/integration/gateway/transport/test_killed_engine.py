"""An engine in a process of its own that is killed: what callers in the middle hear, and what the next one hears."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.core.errors import EngineError
from gateway.transport.pool import EndpointClient
from tests.fakes.receiver import Sink

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\n"
STREAM = b'{"model":"m1","stream":true,"messages":[]}'
ROOT = Path(__file__).parents[4]


@pytest.fixture(params=["tcp", "unix"])
async def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """The address of an engine process, and the process."""
    where = ["--unix", str(tmp_path_factory.mktemp("e") / "e.sock")] if request.param == "unix" else ["--port", "0"]
    command = [sys.executable, "-m", "tests.fakes.engine", *where]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    ready = (await asyncio.wait_for(process.stdout.readline(), 60)).decode().split()
    assert ready[0] == "ready"
    yield ready[1], process
    if process.returncode is None:
        process.kill()
    await process.communicate()


async def test_a_killed_engine(engine: tuple[str, asyncio.subprocess.Process]) -> None:
    address, process = engine
    client = EndpointClient(address)
    kept, waiting, streaming = Sink(), Sink(), Sink()
    client.send(HEAD, STREAM, kept, 30, 30)
    await kept.finished()
    client.send(HEAD + b"x-fake: hang:at=mid\r\n", STREAM, streaming, 30, 30)
    await streaming.until(lambda: bool(streaming.chunks))
    client.send(HEAD + b"x-fake: hang:at=before\r\n", STREAM, waiting, 30, 30)
    client.send(HEAD, STREAM, kept := Sink(), 30, 30)
    await kept.finished()
    process.send_signal(signal.SIGKILL)
    await process.wait()
    torn, unanswered = await streaming.failed(), await waiting.failed()
    assert isinstance(torn, EngineError) and not torn.safe
    assert isinstance(unanswered, EngineError) and unanswered.safe
    refused = Sink()
    client.send(HEAD, STREAM, refused, 30, 30)
    error = await refused.failed()
    assert isinstance(error, EngineError) and error.safe and error.refused
    assert (client.in_flight, client.failed) == (0, 3)
    await client.aclose()
