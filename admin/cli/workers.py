"""`gatehouse workers`: the processes that serve requests."""

from __future__ import annotations

from typing import Annotated

import typer

from admin.cli.client import LONG, name
from admin.cli.session import DryRun, Session, connected

group = typer.Typer(no_args_is_help=True, help="The processes that serve requests, with `serve --workers N`.")
COLUMNS = ("id", "state", "pid", "ready", "in_flight", "connections", "lag", "started_at", "audit", "compiled")


@group.command("list")
@connected
def index(session: Session) -> None:
    """Lists the workers. An empty list means that the gateway serves requests itself."""
    with session.client() as client:
        session.out.rows(client.get("/workers")["items"], COLUMNS)


@group.command("replace")
@connected
def replace(
    session: Session, worker: Annotated[str, typer.Argument(metavar="WORKER", help="The worker's id.")], dry_run: DryRun = False
) -> None:
    """Replaces a worker: a new one starts, then this one finishes its requests and exits."""
    with session.client() as client:
        answer = client.post(f"/workers/{name(worker)}/replace", timeout=LONG, dry_run=dry_run)
    if dry_run or not session.out.for_people:
        session.out.one(answer)
    else:
        session.out.rows(answer["items"], COLUMNS)
