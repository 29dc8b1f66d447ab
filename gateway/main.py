"""The console script `gatehouse`: `serve` and `check-config` here, everything that talks to a running gateway in admin.cli."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from admin.app import create_app
from admin.cli.app import register
from gateway import administration, compiled
from gateway.build import PLUGINS, Gateway, resolve_models
from gateway.config.load import Loaded, load
from gateway.core.errors import ConfigError, GatehouseError
from gateway.core.feed import STOPPING
from gateway.core.specs import ConfigSpec
from gateway.quickstart import Credentials, environment, greeting
from gateway.server.app import DataApplication
from gateway.server.asgi import AsgiApplication
from gateway.server.health import Health
from gateway.server.listener import QuietServer, address_of, admin_server, bind, data_server
from gateway.server.protocol import ListenerState
from gateway.telemetry import logging as gatehouse_logging
from gateway.wire.requests import is_inference

HELP = "A policy-driven gateway in front of a fleet of inference engines. Exit codes: 0 done, 1 refused or failed, 2 wrong usage."
log = logging.getLogger("gatehouse")
app = typer.Typer(name="gatehouse", no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False, help=HELP)


def fail(message: str) -> None:
    """One line on standard error, exit code 1."""
    print(f"error: {message}", file=sys.stderr)
    raise typer.Exit(1)


def read(config: Path, environ: dict[str, str]) -> Loaded:
    """The configuration, or one line that says what is wrong with it."""
    try:
        return load(config, environ, PLUGINS)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(1) from None


@app.command("check-config")
def check_config(file: Annotated[Path, typer.Argument(help="The configuration file.")]) -> None:
    """Checks a configuration file as `serve` would, without starting anything."""
    loaded = read(file, dict(os.environ))
    try:
        resolve_models(loaded.spec, file.resolve().parent)
    except ConfigError as error:
        fail(str(error))
    print(f"{file}: ok ({len(loaded.spec.engines)} engines, {len(loaded.spec.models)} models)")


@app.command()
def serve(
    config: Annotated[Path, typer.Option("--config", help="The configuration file.")],
    quickstart: Annotated[bool, typer.Option("--quickstart", help="Make keys at the first start and print how to use them.")] = False,
) -> None:
    """Runs the gateway in the foreground: both listeners and the sidecars. Ctrl-C or SIGTERM drains."""
    environ = dict(os.environ)
    credentials: Credentials | None = None
    if quickstart:
        try:
            credentials = environment(environ)
        except OSError as error:
            fail(f"the state directory cannot be used: {error.strerror}: {error.filename}")
    loaded = read(config, environ)
    gatehouse_logging.setup(loaded.spec.telemetry.log_level, loaded.spec.telemetry.log_format)
    log.info("the hot path %s", "is compiled" if compiled.active() else "runs from its sources")
    try:
        code = uvloop.run(Process(loaded, environ, credentials).run())
    except GatehouseError as error:
        fail(str(error) if isinstance(error, ConfigError) else error.message)
    raise typer.Exit(code)


class Process:
    """One run of `serve`: binds, builds, serves, drains."""

    def __init__(self, loaded: Loaded, environ: dict[str, str], credentials: Credentials | None) -> None:
        self.loaded = loaded
        self.spec: ConfigSpec = loaded.spec
        self.environ, self.credentials = environ, credentials
        self.stop = asyncio.Event()
        self.fatal: ConfigError | None = None
        self.servers: list[QuietServer] = []

    async def run(self) -> int:
        """The exit code; raises ConfigError when the start fails. Nothing is left running either way."""
        self._prepare_state_dir()
        data = bind(self.spec.listen.data, "listen.data")
        try:
            admin = bind(self.spec.listen.admin, "listen.admin")
        except ConfigError:
            data.close()
            raise
        gateway = Gateway(self.loaded, self.environ)
        try:
            await gateway.start()
            await self._serve(gateway, data, admin)
        finally:
            data.close()
            admin.close()
            await gateway.aclose()
        if self.fatal is not None:
            raise self.fatal
        return 0

    def _prepare_state_dir(self) -> None:
        path = Path(self.spec.state_dir)
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            probe = path / f".probe-{os.getpid()}"
            probe.touch(mode=0o600)
            probe.unlink()
        except OSError as error:
            raise ConfigError(f"the state directory {path} cannot be written: {error.strerror}", path="state_dir") from None

    async def _serve(self, gateway: Gateway, data: socket.socket, admin: socket.socket) -> None:
        plane, listen = gateway.plane, self.spec.listen
        health = Health(plane, lambda: gateway.control.store.available, gateway.somebody_can_log_in)
        state = ListenerState(plane, AsgiApplication(DataApplication(plane, health)), is_inference)
        plane.listeners.append(state.sweep)
        data_side = data_server(state, listen.tls, listen.drain_timeout)
        scheme = "http" if listen.tls is None else "https"
        ports = administration.ports(gateway, health, f"{scheme}://{address_of(data)}")
        admin_side = admin_server(create_app(gateway.metrics.scrape, health.ready, ports))
        running = [
            plane.tasks.spawn(data_side.serve(sockets=[data]), name="data listener"),
            plane.tasks.spawn(admin_side.serve(sockets=[admin]), name="admin listener"),
        ]
        self._signals(gateway)
        started = plane.tasks.spawn(self._start_engines(gateway, data, admin), name="start")
        await self.stop.wait()
        started.cancel()
        plane.draining = True
        data_side.end()
        if not await plane.drained(listen.drain_timeout):
            for exchange in list(plane.exchanges):
                exchange.cancel(GatehouseError("The gateway is shutting down.", code="overloaded", status=503, retry_after=1.0))
        gateway.feed.publish(STOPPING, {})  # streams of events end, or they would hold the admin listener
        admin_side.end()
        data_side.force_exit = admin_side.force_exit = True
        await asyncio.wait(running, timeout=5.0)

    def _signals(self, gateway: Gateway) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.stop.set)
        loop.add_signal_handler(signal.SIGHUP, gateway.reloader.request_reload)

    async def _start_engines(self, gateway: Gateway, data: socket.socket, admin: socket.socket) -> None:
        try:
            await gateway.start_engines()
        except ConfigError as error:
            self.fatal = error
            self.stop.set()
            return
        first = await administration.bootstrap(gateway)
        if first is not None:
            print(f"admin key: {first}", flush=True)
        print(greeting(address_of(data), address_of(admin), gateway.plane.current().spec, self.credentials), flush=True)


register(app, verify=administration.verify_offline)


def main() -> None:
    """Entry point of the console script."""
    app()
