"""`gatehouse log-levels`: what the log of a running gateway tells."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from admin.cli.client import LONG
from admin.cli.errors import UsageError
from admin.cli.keys import duration
from admin.cli.session import DryRun, Session, connected

group = typer.Typer(no_args_is_help=True, help="Log levels: change them for a while.")
Wait = Annotated[float, typer.Option("--wait", help="Maximum seconds to wait until it is in force in every worker.", min=0, max=60)]


@group.command("show")
@connected
def show(session: Session) -> None:
    """Shows the current levels, and until when they apply."""
    with session.client() as client:
        session.out.one(client.get("/log-levels"))


@group.command("set")
@connected
def put(
    session: Session,
    level: Annotated[str | None, typer.Argument(metavar="[LEVEL]", help="trace, debug, info, warning or error, for all loggers.")] = None,
    logger: Annotated[list[str] | None, typer.Option("--logger", metavar="NAME=LEVEL", help="The level of one logger; repeat it.")] = None,
    lasting: Annotated[str, typer.Option("--for", help="How long; then the configured levels apply again.")] = "15m",
    wait: Wait = 5.0,
    dry_run: DryRun = False,
) -> None:
    """Changes the levels of this gateway and its workers for a while."""
    body: dict[str, Any] = {"loggers": dict(_named(one) for one in logger or ()), "seconds": duration(lasting)}
    if level is not None:
        body["level"] = level
    params = {"dry_run": "true"} if dry_run else {"wait": f"{wait:g}"}
    with session.client() as client:
        session.out.one(client.json("PUT", "/log-levels", params=params, json=body, timeout=LONG))


@group.command("reset")
@connected
def reset(session: Session, wait: Wait = 5.0, dry_run: DryRun = False) -> None:
    """Restores the configured levels."""
    params = {"dry_run": "true"} if dry_run else {"wait": f"{wait:g}"}
    with session.client() as client:
        session.out.one(client.json("DELETE", "/log-levels", params=params, timeout=LONG))


def _named(one: str) -> tuple[str, str]:
    name, sign, level = one.partition("=")
    if not sign:
        raise UsageError(f"--logger {one}: write NAME=LEVEL, such as gatehouse.engines=debug")
    return name, level
