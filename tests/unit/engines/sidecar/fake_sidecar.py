"""A sidecar with a runtime that has no model, run by test_sidecar.py as a process of its own."""

import asyncio
import sys
import time
from pathlib import Path

from engines.sidecar import shell as sidecar
from engines.sidecar.loading import LoadError
from engines.sidecar.shell import ApiError, Request, Response, Stream


class FakeRuntime:
    def __init__(self, spec):
        self.spec = spec
        self.waiting = 0
        self.cancelled = 0
        self.closed_streams = 0
        self.release = asyncio.Event()

    def load(self):
        gate = self.spec.options.get("load_when_exists")
        while gate and not Path(gate).exists():
            time.sleep(0.005)
        if self.spec.options.get("fail") == "load_error":
            raise LoadError("model_invalid", "the file is no model")
        if self.spec.options.get("fail") == "exception":
            raise ZeroDivisionError("native")

    async def start(self):
        pass

    def routes(self):
        return {
            ("POST", "/v1/echo"): self.echo,
            ("POST", "/v1/wait"): self.wait,
            ("POST", "/v1/release"): self.let_go,
            ("POST", "/v1/gate"): self.gate,
            ("POST", "/v1/refuse"): self.refuse,
            ("POST", "/v1/broken"): self.broken,
            ("POST", "/v1/block"): self.block,
            ("POST", "/v1/stream"): self.stream,
            ("POST", "/v1/open"): self.open,
            ("POST", "/v2/models/{model}/infer"): self.infer,
        }

    def health(self):
        return {"in_use": 3, "waiting": self.waiting, "cancelled": self.cancelled, "closed_streams": self.closed_streams}

    def metrics(self):
        return "# TYPE fake gauge\nfake 1\n"

    async def aclose(self):
        print("closed", file=sys.stderr, flush=True)

    async def echo(self, request: Request):
        return Response(request.body, headers=((b"x-priority", str(request.priority).encode()),))

    async def wait(self, request: Request):
        self.waiting += 1
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.waiting -= 1
        return Response(b'"released"')

    async def let_go(self, request: Request):
        self.release.set()
        return Response(b"{}")

    async def gate(self, request: Request):
        self.waiting += 1
        while not Path(request.body.decode()).exists():
            await asyncio.sleep(0.005)
        self.waiting -= 1
        return Response(b'"through"')

    async def refuse(self, request: Request):
        raise ApiError(400, "no", param="x")

    async def broken(self, request: Request):
        raise ValueError("secret detail")

    async def block(self, request: Request):
        Path(self.spec.options["stuck"]).touch()
        time.sleep(3600)  # a stuck event loop
        return Response(b"")

    async def open(self, request: Request):
        try:
            return Response(Path(request.body.decode()).read_bytes())
        except OSError as error:
            raise ApiError(403, type(error).__name__) from None

    async def stream(self, request: Request):
        async def chunks():
            try:
                for number in range(int(request.body)):
                    yield b"data: %d\n\n" % number
                await self.release.wait()
                yield b"data: [DONE]\n\n"
            finally:
                self.closed_streams += 1

        return Stream(chunks())

    async def infer(self, request: Request):
        return Response(request.params["model"].encode())


if __name__ == "__main__":
    sys.exit(sidecar.run(FakeRuntime))
