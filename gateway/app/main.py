"""The console script `gatehouse`: `serve` and `check-config` here, everything that talks to a running gateway in admin.cli."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from admin.cli.app import register
from gateway.app import administration, process
from gateway.app.build import resolve_models
from gateway.app.plugins import Plugins, installed
from gateway.audit.sinks import local_sink
from gateway.config.load import load
from gateway.core.errors import ConfigError
from gateway.core.plugins import AuthenticatorContext
from gateway.core.specs import ConfigSpec
from gateway.server.listener import tls_context as server_tls
from gateway.store.database import make_engine
from gateway.transport.address import tls_context as client_tls

HELP = "A policy-driven gateway in front of a fleet of inference engines. Exit codes: 0 done, 1 refused or failed, 2 wrong usage."
app = typer.Typer(name="gatehouse", no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False, help=HELP)


def check_parts(spec: ConfigSpec, base: Path, plugins: Plugins) -> None:
    """What `serve` would refuse while it builds, as far as that shows without writing, connecting or starting. Raises ConfigError."""
    resolve_models(spec, base)
    local_sink(spec.audit, spec.state_dir, "0")
    if spec.store.url != "sqlite":
        make_engine(spec.store.url, Path(spec.state_dir), 1.0)
    if spec.listen.tls is not None:
        server_tls(spec.listen.tls)
    for number, engine in enumerate(spec.engines):
        if engine.tls is not None:
            try:
                client_tls(engine.tls)
            except ConfigError as error:
                raise ConfigError(error.message, path=f"engines[{number}].tls") from None

    def read(name: str) -> str:
        return (base / name).read_text(encoding="utf-8")

    for path, row, settings in plugins.logins(spec.identity):
        plugins.authenticator(path, row, settings, AuthenticatorContext(name=row.name, read=read))
    for number, guardrail in enumerate(spec.guardrails):
        try:
            plugins.guardrail(guardrail, read)
        except ConfigError as error:
            raise ConfigError(f"the guardrail {guardrail.name!r}: {error.message}", path=f"guardrails[{number}].settings") from None


@app.command("check-config")
def check_config(file: Annotated[Path, typer.Argument(help="The configuration file.")]) -> None:
    """Checks a configuration file as `serve` would, without starting anything."""
    try:
        plugins = installed()
        loaded = load(file, dict(os.environ), plugins.schemas())
    except ConfigError as error:
        raise typer.Exit(process.fail(str(error))) from None
    try:
        check_parts(loaded.spec, file.resolve().parent, plugins)
    except ConfigError as error:
        loaded.place(error)
        raise typer.Exit(process.fail(str(error))) from None
    print(f"{file}: ok ({len(loaded.spec.engines)} engines, {len(loaded.spec.models)} models)")


@app.command()
def serve(
    config: Annotated[Path, typer.Option("--config", help="The configuration file.")],
    quickstart: Annotated[bool, typer.Option("--quickstart", help="Make keys at the first start and print how to use them.")] = False,
) -> None:
    """Runs the gateway in the foreground: both listeners and the sidecars. Ctrl-C or SIGTERM drains."""
    raise typer.Exit(process.serve(config, quickstart=quickstart))


register(app, verify=administration.verify_offline)


def main() -> None:
    """The command line."""
    app()
