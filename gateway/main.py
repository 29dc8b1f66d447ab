"""The console script `gatehouse`: `serve` and `check-config` here, everything that talks to a running gateway in admin.cli."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from admin.cli.app import register
from gateway import administration, process
from gateway.build import PLUGINS, resolve_models
from gateway.config.load import load
from gateway.core.errors import ConfigError

HELP = "A policy-driven gateway in front of a fleet of inference engines. Exit codes: 0 done, 1 refused or failed, 2 wrong usage."
app = typer.Typer(name="gatehouse", no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False, help=HELP)


@app.command("check-config")
def check_config(file: Annotated[Path, typer.Argument(help="The configuration file.")]) -> None:
    """Checks a configuration file as `serve` would, without starting anything."""
    try:
        loaded = load(file, dict(os.environ), PLUGINS)
        resolve_models(loaded.spec, file.resolve().parent)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
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
