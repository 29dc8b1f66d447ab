"""`gatehouse tenants`, `gatehouse roles` and `gatehouse usage`."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from admin.cli import completion
from admin.cli.client import name
from admin.cli.keys import duration
from admin.cli.session import DryRun, IfVersion, Session, changed, connected

tenants = typer.Typer(no_args_is_help=True, help="Tenants: who keys and usage belong to.")
roles = typer.Typer(no_args_is_help=True, help="Roles, and who has them.")
NewTenant = Annotated[str, typer.Argument(metavar="NAME", help="The tenant.")]
TenantName = Annotated[str, typer.Argument(metavar="NAME", help="The tenant.", autocompletion=completion.tenants)]
StoredTenant = Annotated[str, typer.Argument(metavar="NAME", help="The tenant.", autocompletion=completion.stored_tenants)]
RoleName = Annotated[
    str, typer.Argument(metavar="ROLE", help="admin, operator, tenant-admin, auditor or viewer.", autocompletion=completion.roles)
]


@tenants.command("create")
@connected
def create(
    session: Session,
    tenant: NewTenant,
    display_name: Annotated[str, typer.Option("--display-name", help="For people.")] = "",
    description: Annotated[str, typer.Option("--description", help="What it is for.")] = "",
    models: Annotated[
        list[str] | None,
        typer.Option("--model", help="A pattern of models its keys may have; default: all.", autocompletion=completion.models),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Makes a tenant."""
    body: dict[str, Any] = {"name": tenant, "display_name": display_name, "description": description}
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
    models: Annotated[
        list[str] | None,
        typer.Option("--model", help="The patterns of models its keys may have, all of them; repeat it.", autocompletion=completion.models),
    ] = None,
    clear: Annotated[
        list[str] | None,
        typer.Option(
            "--clear",
            help="A setting that goes back to its default, by its name as `show` has it.",
            autocompletion=completion.one_of("display_name", "description", "models"),
        ),
    ] = None,
    if_version: IfVersion = None,
    dry_run: DryRun = False,
) -> None:
    """Changes a tenant of the store. Settings not named stay. Its existing keys keep their models."""
    changes = changed({"display_name": display_name, "description": description, "models": models}, clear or ())
    with session.client() as client:
        session.out.one(client.patch(f"/tenants/{name(tenant)}", changes, version=if_version, dry_run=dry_run))


@tenants.command("delete")
@connected
def delete(session: Session, tenant: StoredTenant, dry_run: DryRun = False) -> None:
    """Deletes a tenant that has no keys."""
    with session.client() as client:
        session.out.one(client.delete(f"/tenants/{name(tenant)}", dry_run=dry_run))


@roles.command("list")
@connected
def list_roles(session: Session) -> None:
    """Lists the built-in roles."""
    with session.client() as client:
        session.out.rows(client.get("/roles")["items"], ("name", "confined", "description"))


@roles.command("show")
@connected
def show_role(session: Session, role: RoleName) -> None:
    """Shows a role with its permissions."""
    with session.client() as client:
        session.out.one(client.get(f"/roles/{name(role)}"))


@roles.command("bindings")
@connected
def bindings(session: Session) -> None:
    """Lists who has which roles besides those of their key."""
    with session.client() as client:
        session.out.rows(client.items("/bindings", limit=1000), ("name", "tenant", "principal", "role", "updated_at", "updated_by"))


@roles.command("bind")
@connected
def bind(
    session: Session,
    role: RoleName,
    tenant: Annotated[str, typer.Option("--tenant", help="The tenant of the credential.", autocompletion=completion.tenants)],
    principal: Annotated[str, typer.Option("--principal", help="The credential's id.", autocompletion=completion.keys)],
    binding: Annotated[str | None, typer.Option("--name", help="A name for the binding.")] = None,
    dry_run: DryRun = False,
) -> None:
    """Gives a role to a credential."""
    body = {"name": binding or f"{tenant}.{principal}.{role}", "tenant": tenant, "principal": principal, "role": role}
    with session.client() as client:
        session.out.one(client.post("/bindings", body, dry_run=dry_run))


@roles.command("unbind")
@connected
def unbind(
    session: Session,
    binding: Annotated[str, typer.Argument(metavar="NAME", help="The binding.", autocompletion=completion.bindings)],
    dry_run: DryRun = False,
) -> None:
    """Takes a role away."""
    with session.client() as client:
        session.out.one(client.delete(f"/bindings/{name(binding)}", dry_run=dry_run))


def first_day(text: str, now: float) -> str:
    """A day as it is, or the day (UTC) on which the time so far back lies. Raises UsageError."""
    if re.fullmatch(r"\d{4}-\d\d-\d\d", text):
        return text
    return datetime.fromtimestamp(max(0.0, now - duration(text)), UTC).strftime("%Y-%m-%d")


@connected
def usage(
    session: Session,
    by: Annotated[str, typer.Option("--by", help="Any of tenant, key, model and day, separated by commas.")] = "tenant,model",
    since: Annotated[
        str | None, typer.Option("--since", help="The first day, YYYY-MM-DD (UTC), or how far back, such as 24h or 30d.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", help="The last day.")] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only this tenant's.", autocompletion=completion.tenants)] = None,
    of_key: Annotated[str | None, typer.Option("--key-id", help="Only this key's.", autocompletion=completion.keys)] = None,
    model: Annotated[str | None, typer.Option("--model", help="Only this model's.", autocompletion=completion.models)] = None,
) -> None:
    """Reports requests and tokens."""
    with session.client() as client:
        scope = {"tenant": tenant, "key": of_key, "model": model}
        start = None if since is None else first_day(since, time.time())
        report = client.items("/usage", group_by=by, since=start, until=until, limit=10000, **scope)
        counted = ("requests", "prompt_tokens", "completion_tokens", "cached_tokens")
        session.out.rows(report, (*by.split(","), *counted))
