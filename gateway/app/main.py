"""The console script `gatehouse`: `serve` and `check-config` here, everything that talks to a running gateway in admin.cli."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from admin.cli.app import register
from gateway.app import process
from gateway.app.offline import check_parts, verify_audit_log
from gateway.app.plugins import installed
from gateway.config.load import load
from gateway.core.errors import ConfigError

HELP = "A policy-driven gateway in front of a fleet of inference engines. Exit codes: 0 done, 1 refused or failed, 2 wrong usage."
app = typer.Typer(name="gatehouse", no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False, help=HELP)


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


register(app, verify=verify_audit_log)


def main() -> None:
    """The command line."""
    app()
