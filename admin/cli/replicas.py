"""`gatehouse replicas`: the gateways that share a store."""

from __future__ import annotations

import typer

from admin.cli.session import Session, connected

group = typer.Typer(no_args_is_help=True, help="The gateways that share a store.")
COLUMNS = ("id", "state", "here", "host", "data", "admin", "workers", "version", "started_at", "seen_at", "clock_skew")


@group.command("list")
@connected
def index(session: Session) -> None:
    """Lists the replicas on the gateway's store. Exit code 1 if two of them have the same id."""
    with session.client() as client:
        found = client.get("/replicas")
    if session.out.for_people:
        session.out.rows(found["items"], COLUMNS)
        if found["jobs"]:
            session.out.rows(found["jobs"], ("name", "holder", "done_at"))
    else:
        session.out.data(found)
    twice = sorted({one["id"] for one in found["items"] if one["duplicate"]})
    for id in twice:
        typer.echo(f"warning: more than one gateway has the id {id}: set `replica` or GATEHOUSE_REPLICA, each to another one", err=True)
    if twice:
        raise typer.Exit(1)
