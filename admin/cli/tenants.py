"""`gatehouse tenants`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from admin.cli import completion
from admin.cli.client import name
from admin.cli.session import DryRun, IfVersion, Session, changed, connected

tenants = typer.Typer(no_args_is_help=True, help="Tenants: who keys and usage belong to.")
NewTenant = Annotated[str, typer.Argument(metavar="NAME", help="The tenant.")]
TenantName = Annotated[str, typer.Argument(metavar="NAME", help="The tenant.", autocompletion=completion.tenants)]
StoredTenant = Annotated[str, typer.Argument(metavar="NAME", help="The tenant.", autocompletion=completion.stored_tenants)]


@tenants.command("create")
@connected
def create(
    session: Session,
    tenant: NewTenant,
    display_name: Annotated[str, typer.Option("--display-name", help="For people.")] = "",
    description: Annotated[str, typer.Option("--description", help="What it is for.")] = "",
    cost_centre: Annotated[str, typer.Option("--cost-centre", help="Who pays for it in usage reports.")] = "",
    models: Annotated[
        list[str] | None,
        typer.Option("--model", help="A pattern of models its keys may have; default: all.", autocompletion=completion.models),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Creates a tenant."""
    body: dict[str, Any] = {"name": tenant, "display_name": display_name, "description": description, "cost_centre": cost_centre}
    if models:
        body["models"] = models
    with session.client() as client:
        session.out.one(client.post("/tenants", body, dry_run=dry_run))


@tenants.command("list")
@connected
def index(session: Session) -> None:
    """Lists tenants, including those of keys in the configuration file."""
    with session.client() as client:
        session.out.rows(client.items("/tenants", limit=1000), ("name", "display_name", "source", "models", "updated_at"))


@tenants.command("show")
@connected
def show(session: Session, tenant: TenantName) -> None:
    """Shows a tenant."""
    with session.client() as client:
        session.out.one(client.get(f"/tenants/{name(tenant)}"))


@tenants.command("update")
@connected
def update(
    session: Session,
    tenant: StoredTenant,
    display_name: Annotated[str | None, typer.Option("--display-name", help="For people.")] = None,
    description: Annotated[str | None, typer.Option("--description", help="What it is for.")] = None,
    cost_centre: Annotated[str | None, typer.Option("--cost-centre", help="Who pays for it in usage reports.")] = None,
    models: Annotated[
        list[str] | None,
        typer.Option("--model", help="The patterns of models its keys may have, all of them; repeat it.", autocompletion=completion.models),
    ] = None,
    clear: Annotated[
        list[str] | None,
        typer.Option(
            "--clear",
            help="A setting to reset to its default, named as in `show`.",
            autocompletion=completion.one_of("display_name", "description", "models", "cost_centre"),
        ),
    ] = None,
    if_version: IfVersion = None,
    dry_run: DryRun = False,
) -> None:
    """Changes a tenant of the store. Settings not named stay. Removing models takes effect at once for all of its keys and users."""
    changes = changed({"display_name": display_name, "description": description, "models": models, "cost_centre": cost_centre}, clear or ())
    with session.client() as client:
        session.out.one(client.patch(f"/tenants/{name(tenant)}", changes, version=if_version, dry_run=dry_run))


@tenants.command("delete")
@connected
def delete(session: Session, tenant: StoredTenant, dry_run: DryRun = False) -> None:
    """Deletes a tenant that has no keys."""
    with session.client() as client:
        session.out.one(client.delete(f"/tenants/{name(tenant)}", dry_run=dry_run))
