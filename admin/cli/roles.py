"""`gatehouse roles` and `gatehouse bindings`: what may be done, and who may do it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from admin.cli import completion
from admin.cli.apply import Wanted, apply_all, read, report
from admin.cli.client import name
from admin.cli.session import DryRun, Session, connected

roles = typer.Typer(no_args_is_help=True, help="Roles: what their holders may do.")
bindings = typer.Typer(no_args_is_help=True, help="Bindings: who has which role, or is denied what it permits, under which condition.")
KINDS: Final = ("roles", "bindings")
_COLUMNS: Final = ("name", "effect", "role", "subjects", "tenant", "when", "source")
RoleName = Annotated[str, typer.Argument(metavar="ROLE", help="One of `gatehouse roles list`.", autocompletion=completion.roles)]
StoredRole = Annotated[str, typer.Argument(metavar="ROLE", help="A role of the store.", autocompletion=completion.stored_roles)]
BindingName = Annotated[str, typer.Argument(metavar="NAME", help="The binding.", autocompletion=completion.all_bindings)]
StoredBinding = Annotated[str, typer.Argument(metavar="NAME", help="The binding.", autocompletion=completion.bindings)]
FileOfBoth = Annotated[
    Path, typer.Argument(metavar="FILE", help="YAML with `roles`, `bindings` or both, as in the configuration, each binding with a name.")
]
When = Annotated[str | None, typer.Option("--when", help="A condition in CEL, such as 'request.max_tokens <= 1000'.")]


@roles.command("list")
@connected
def list_roles(session: Session) -> None:
    """Lists all roles, the built-in ones of the admin listener and those of the configuration file first."""
    with session.client() as client:
        session.out.rows(client.items("/roles", limit=1000), ("name", "source", "confined", "description"))


@roles.command("show")
@connected
def show_role(session: Session, role: RoleName) -> None:
    """Shows a role with its permissions."""
    with session.client() as client:
        session.out.one(client.get(f"/roles/{name(role)}"))


@roles.command("create")
@connected
def create_role(
    session: Session,
    role: Annotated[str, typer.Argument(metavar="ROLE", help="A name for it.")],
    permissions: Annotated[
        list[str],
        typer.Option("--permission", help="infer:OPERATION:model/PATTERN or admin:RESOURCE:ACTION; repeat it."),
    ],
    description: Annotated[str, typer.Option("--description", help="What it is for.")] = "",
    everywhere: Annotated[
        bool, typer.Option("--everywhere", help="On the admin listener, reach all tenants, not only the holder's own.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Creates a role in the store. You must hold every permission that it has."""
    body = {"name": role, "permissions": permissions, "description": description, "confined": not everywhere}
    with session.client() as client:
        session.out.one(client.post("/roles", body, dry_run=dry_run))


@roles.command("delete")
@connected
def delete_role(session: Session, role: StoredRole, dry_run: DryRun = False) -> None:
    """Deletes a role of the store. Refused while it is bound."""
    with session.client() as client:
        session.out.one(client.delete(f"/roles/{name(role)}", dry_run=dry_run))


@roles.command("apply")
@bindings.command("apply")
@connected
def apply(session: Session, file: FileOfBoth, dry_run: DryRun = False) -> None:
    """Applies a file of roles and bindings to the store: creates new ones, replaces different ones, deletes none; all or nothing."""
    wanted = wanted_of(file)
    with session.client() as client:
        done = apply_all(client, wanted, dry_run)
    report(session.out, done)


def wanted_of(file: Path) -> Wanted:
    """The roles and bindings of a file. Raises CommandError."""
    return read(file, KINDS, by_name=("roles",))


@bindings.command("list")
@roles.command("bindings")
@connected
def list_bindings(session: Session) -> None:
    """Lists all bindings, those of the configuration file first."""
    with session.client() as client:
        session.out.rows(client.items("/bindings", limit=1000), _COLUMNS)


@bindings.command("show")
@connected
def show_binding(session: Session, binding: BindingName) -> None:
    """Shows a binding."""
    with session.client() as client:
        session.out.one(client.get(f"/bindings/{name(binding)}"))


@bindings.command("create")
@connected
def create_binding(
    session: Session,
    binding: Annotated[str, typer.Argument(metavar="NAME", help="Its name, also in the audit log.")],
    role: Annotated[str, typer.Option("--role", help="The role.", autocompletion=completion.roles)],
    subjects: Annotated[
        list[str],
        typer.Option("--subject", help="key/ID, user/NAME, group/NAME, tenant/NAME, agent/NAME or principal/ID; repeat it."),
    ],
    tenant: Annotated[str, typer.Option("--tenant", help="Only for callers of this tenant.", autocompletion=completion.tenants)] = "*",
    deny: Annotated[bool, typer.Option("--deny", help="Deny what the role permits, instead of granting it.")] = False,
    when: When = None,
    dry_run: DryRun = False,
) -> None:
    """Creates a binding in the store. You must hold every permission of its role."""
    body = {"name": binding, "role": role, "subjects": subjects, "tenant": tenant, "effect": "deny" if deny else "allow", "when": when}
    _create(session, body, dry_run)


def _create(session: Session, body: dict[str, Any], dry_run: bool) -> None:
    with session.client() as client:
        session.out.one(client.post("/bindings", body, dry_run=dry_run))


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
    """Binds a role to a credential; short for `gatehouse bindings create`."""
    body = {"name": binding or f"{tenant}.{principal}.{role}", "tenant": tenant, "subjects": [f"principal/{principal}"], "role": role}
    _create(session, body, dry_run)


@bindings.command("delete")
@roles.command("unbind")
@connected
def delete_binding(session: Session, binding: StoredBinding, dry_run: DryRun = False) -> None:
    """Deletes a binding of the store."""
    with session.client() as client:
        session.out.one(client.delete(f"/bindings/{name(binding)}", dry_run=dry_run))
