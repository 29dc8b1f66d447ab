"""`gatehouse my-keys`: keys of one's own, for whoever has logged in (`gatehouse login`), within what their groups allow."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from admin.cli import completion
from admin.cli.client import name
from admin.cli.keys import duration, expiry, show_once
from admin.cli.session import DryRun, Session, connected

group = typer.Typer(no_args_is_help=True, help="Keys of your own, within what your groups allow.")
_COLUMNS = ("id", "state", "suspended", "prefix", "models", "operations", "expires", "last_used", "description")
KeyId = Annotated[str, typer.Argument(metavar="ID", help="The key's id.", autocompletion=completion.own_keys)]


@group.command("rules")
@connected
def rules(session: Session) -> None:
    """Shows what your groups allow: how many keys, and for how long."""
    with session.client() as client:
        session.out.one(client.get("/my/key-rules"))


@group.command("list")
@connected
def index(session: Session) -> None:
    """Lists your keys."""
    with session.client() as client:
        session.out.rows(client.items("/my/keys", limit=1000), _COLUMNS)


@group.command("show")
@connected
def show(session: Session, id: KeyId) -> None:
    """Shows the record of one of your keys, never the key itself."""
    with session.client() as client:
        session.out.one(client.get(f"/my/keys/{name(id)}"))


@group.command("create")
@connected
def create(
    session: Session,
    models: Annotated[
        list[str] | None,
        typer.Option("--model", help="A pattern of models; repeat it. Default: all that you may use.", autocompletion=completion.models),
    ] = None,
    operations: Annotated[
        list[str] | None,
        typer.Option("--operation", help="An operation; default: all.", autocompletion=completion.operations),
    ] = None,
    cidrs: Annotated[list[str] | None, typer.Option("--cidr", help="A network that it may be used from; default: all.")] = None,
    expires: Annotated[str | None, typer.Option("--expires", help="A date, or a duration such as 30d.")] = None,
    roles: Annotated[
        list[str] | None,
        typer.Option("--role", help="One of your roles for the admin API.", autocompletion=completion.roles),
    ] = None,
    description: Annotated[str, typer.Option("--description", help="What it is for.")] = "",
    dry_run: DryRun = False,
) -> None:
    """Creates a key of your own. It is printed once, has at most your rights, and is revoked with you."""
    body: dict[str, Any] = {"description": description}
    given = {"models": models, "operations": operations, "cidrs": cidrs, "roles": roles}
    body |= {field: value for field, value in given.items() if value}
    if expires is not None:
        body["expires"] = expiry(expires, time.time())
    with session.client() as client:
        show_once(session, client.post("/my/keys", body, dry_run=dry_run))


@group.command("rotate")
@connected
def rotate(
    session: Session,
    id: KeyId,
    overlap: Annotated[str, typer.Option("--overlap", help="How long the old secret stays valid; 0s ends it at once.")] = "24h",
    dry_run: DryRun = False,
) -> None:
    """Gives one of your keys a new secret, valid for as long as your groups allow."""
    with session.client() as client:
        show_once(session, client.post(f"/my/keys/{name(id)}/rotate", {"overlap": duration(overlap)}, dry_run=dry_run))


@group.command("revoke")
@connected
def revoke(session: Session, id: KeyId, dry_run: DryRun = False) -> None:
    """Refuses one of your keys from now on."""
    with session.client() as client:
        session.out.one(client.post(f"/my/keys/{name(id)}/revoke", dry_run=dry_run))
