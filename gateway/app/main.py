"""The console script `gatehouse`: `serve` and `check-config` here, everything that talks to a running gateway in admin.cli.

A command imports what it needs when it runs: most of them talk to a gateway and need nothing of the one that they could start.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]  # httpx's own command line: it would double what httpx takes to load

from admin.cli import ending  # noqa: E402
from admin.cli.app import register  # noqa: E402
from admin.cli.moved import moved  # noqa: E402
from admin.cli.narrowed import narrowed  # noqa: E402
from gateway.app.release import release  # noqa: E402
from gateway.app.workers.arguments import MAX_WORKERS  # noqa: E402
from gateway.core.audit_questions import AuditScope, AuditSearch  # noqa: E402

HELP = "A policy-driven gateway in front of a fleet of inference engines. Exit codes: 0 success, 1 refused or failed, 2 wrong usage."
app = typer.Typer(name="gatehouse", no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False, help=HELP)

WorkersOption = Annotated[
    int, typer.Option("--workers", min=0, max=MAX_WORKERS, help="Processes that serve requests beside this one; 0: this one serves them.")
]


def show_version(asked: bool) -> None:
    """Prints the version and ends."""
    if asked:
        typer.echo(f"gatehouse {release()}")
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit.")] = False,
) -> None:
    """A policy-driven gateway in front of a fleet of inference engines. Exit codes: 0 success, 1 refused or failed, 2 wrong usage."""


@app.command("check-config")
def check_config(file: Annotated[Path, typer.Argument(metavar="FILE", help="The configuration file.")], workers: WorkersOption = 0) -> None:
    """Checks a configuration file as `serve` would, without starting anything. Give it the --workers of `serve`."""
    from gateway.app.offline import check  # noqa: PLC0415 - see above

    code, message = check(file, dict(os.environ), workers=bool(workers))
    typer.echo(message, err=code != 0)
    raise typer.Exit(code)


@app.command()
def serve(
    config: Annotated[Path, typer.Option("--config", help="The configuration file.")],
    quickstart: Annotated[bool, typer.Option("--quickstart", help="Create keys at the first start and print how to use them.")] = False,
    workers: WorkersOption = 0,
) -> None:
    """Runs the gateway in the foreground: both listeners and the sidecars. Ctrl-C or SIGTERM drains."""
    from gateway.app import process  # noqa: PLC0415 - see above

    raise typer.Exit(process.serve(config, quickstart=quickstart, workers=workers))


@app.command("copy-store")
def copy_store(
    source: Annotated[Path, typer.Argument(help="The SQLite file: gatehouse.db in the state directory. It is only read.")],
    target: Annotated[
        str, typer.Argument(envvar="GATEHOUSE__STORE__URL", help="postgresql://USER@HOST/DATABASE, an empty database.", show_envvar=True)
    ],
) -> None:
    """Copies the store from SQLite to PostgreSQL, all or nothing. Stop the gateway first."""
    from gateway.app.store import copy_store as copying  # noqa: PLC0415 - see above
    from gateway.core.errors import ConfigError  # noqa: PLC0415

    try:
        counts = copying.copy(source, target)
    except ConfigError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    typer.echo("\n".join(f"{name}: {count}" for name, count in counts.items() if count))


def verify_audit_log(directory: Path, public_key: Path, scope: AuditScope, progress: Callable[[int, int], None]) -> dict[str, Any]:
    """gateway.app.offline.verify_audit_log, imported when it is called."""
    from gateway.app import offline  # noqa: PLC0415 - see above

    return offline.verify_audit_log(directory, public_key, scope, progress)


def search_audit_log(directory: Path, asked: AuditSearch, keys: Path | None, records: bool) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """gateway.app.offline.search_audit_log, imported when it is called."""
    from gateway.app import offline  # noqa: PLC0415 - see above

    return offline.search_audit_log(directory, asked, keys, records=records)


def join(
    gateways: list[str],
    config: Path,
    name: str | None,
    listen: str,
    advertise: str | None,
    token: str | None,
    ca: Path | None,
    tickets: str | None = None,
    tickets_advertise: str | None = None,
) -> int:
    """gateway.app.joined.run, imported when it is called."""
    from gateway.app.joined import run  # noqa: PLC0415 - see above

    return run.run(run.Wanted(config, gateways, name or run.default_name(), listen, advertise, token, ca, tickets, tickets_advertise))


register(app, verify=verify_audit_log, search=search_audit_log, join=join)


def main() -> None:
    """The command line."""
    sys.argv[1:] = moved(sys.argv[1:])
    ending.run(narrowed(app, sys.argv[1:], os.environ), sys.argv[1:])
