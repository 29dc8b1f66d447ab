"""`gatehouse batches` and `gatehouse files`: batches of clients, and the files that they read and write."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from admin.cli.client import name
from admin.cli.session import DryRun, Session, connected

batches = typer.Typer(no_args_is_help=True, help="Client batches: list, show, cancel.")
files = typer.Typer(no_args_is_help=True, help="Client files, read and written by batches: list, delete.")
COLUMNS = ("id", "state", "creator", "endpoint", "total", "completed", "failed", "created_at", "expires_at")
FILE_COLUMNS = ("id", "owner", "name", "purpose", "bytes", "created_at", "expires_at")
Id = Annotated[str, typer.Argument(metavar="ID", help="As `list` shows it.")]
Tenant = Annotated[str | None, typer.Option("--tenant", help="Only those of this tenant.")]


@batches.command("list")
@connected
def index(
    session: Session,
    state: Annotated[
        Literal["validating", "in_progress", "finalizing", "cancelling", "completed", "failed", "expired", "cancelled"] | None,
        typer.Option("--state", help="Only those in this state."),
    ] = None,
    tenant: Tenant = None,
) -> None:
    """Lists batches, the newest first."""
    with session.client() as client:
        session.out.rows(list(client.items("/batches", **_given(state=state, tenant=tenant))), COLUMNS)


@batches.command()
@connected
def show(session: Session, id: Id) -> None:
    """Shows a batch: outcomes of its lines, errors in its input, and when each state began."""
    with session.client() as client:
        session.out.one(client.get(f"/batches/{name(id)}"))


@batches.command()
@connected
def cancel(session: Session, id: Id, dry_run: DryRun = False) -> None:
    """Cancels a batch: running lines finish, the others are listed in its error file."""
    with session.client() as client:
        session.out.one(client.json("POST", f"/batches/{name(id)}/cancel", params={"dry_run": "true"} if dry_run else {}))


@files.command("list")
@connected
def list_files(session: Session, tenant: Tenant = None) -> None:
    """Lists files, newest first. Only the tenant can read their content."""
    with session.client() as client:
        session.out.rows(list(client.items("/client-files", **_given(tenant=tenant))), FILE_COLUMNS)


@files.command()
@connected
def delete(session: Session, id: Id, dry_run: DryRun = False) -> None:
    """Deletes a file and its content. To delete the input of an unfinished batch, cancel the batch first."""
    with session.client() as client:
        session.out.one(client.json("DELETE", f"/client-files/{name(id)}", params={"dry_run": "true"} if dry_run else {}))


def _given(**params: Any) -> dict[str, Any]:
    return {key: value for key, value in params.items() if value is not None}
