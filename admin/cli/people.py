"""`gatehouse users` and `gatehouse groups`; `suspend` and `resume` of users, tenants and keys."""

from __future__ import annotations

import difflib
import os
import sys
import unicodedata
from contextlib import suppress
from importlib import import_module
from typing import Annotated, Any

import typer

from admin.cli import completion
from admin.cli.client import ApiError, Client, name
from admin.cli.errors import CommandError
from admin.cli.keys import duration
from admin.cli.session import DryRun, IfVersion, Session, changed, connected, fail
from gateway.core.people import full_name

users = typer.Typer(no_args_is_help=True, help="Users: people and services that log in.")
groups = typer.Typer(no_args_is_help=True, help="Groups: what their members may use.")
MIN_PASSWORD, MAX_PASSWORD = 12, 256
"""Characters of the password of a user in the configuration."""
_USERS = ("name", "display_name", "origin", "groups", "roles", "suspended", "last_login")
_GROUPS = ("name", "description", "models", "operations", "own_keys", "updated_at")
NewUser = Annotated[str, typer.Argument(metavar="NAME@TENANT", help="The user.")]
User = Annotated[str, typer.Argument(metavar="NAME@TENANT", help="The user.", autocompletion=completion.users)]
NewGroup = Annotated[str, typer.Argument(metavar="NAME@TENANT", help="The group.")]
Group = Annotated[str, typer.Argument(metavar="NAME@TENANT", help="The group.", autocompletion=completion.groups)]
Tenant = Annotated[str, typer.Argument(metavar="NAME", help="The tenant.", autocompletion=completion.tenants)]
KeyId = Annotated[str, typer.Argument(metavar="ID", help="The key's id.", autocompletion=completion.keys)]
Roles = Annotated[list[str] | None, typer.Option("--role", help="A role; repeat it.", autocompletion=completion.roles)]
InGroups = Annotated[list[str] | None, typer.Option("--group", help="A group's name, without the tenant; repeat it.")]
Models = Annotated[
    list[str] | None, typer.Option("--model", help="A pattern of models that members may use; repeat it.", autocompletion=completion.models)
]
Operations = Annotated[
    list[str] | None, typer.Option("--operation", help="An operation that they may call; repeat it.", autocompletion=completion.operations)
]
Count = Annotated[int | None, typer.Option("--own-keys", help="How many keys of their own members may create.", min=1)]
Life = Annotated[str | None, typer.Option("--key-life", help="The longest life of such a key, such as 90d.")]
Within = Annotated[str | None, typer.Option("--login-within", help="How long after the last login such keys are accepted.")]
Reason = Annotated[str, typer.Option("--why", help="The reason, for other operators and the audit log; callers never see it.")]


def full(text: str) -> str:
    """A full name as the gateway writes it: %XX for other characters. One that is written so already stays."""
    bare, at, tenant = text.rpartition("@")
    return text if "%" in text or not at else full_name(bare, tenant) or text


def _warn_of_tenant(session: Session, client: Client, whom: str) -> None:
    """A login may name a tenant that nobody has created, so its users and groups are allowed; most often the name is misspelt."""
    tenant = whom.rpartition("@")[2]
    with suppress(CommandError):  # it is created: whatever goes wrong here must not look as if it were not
        try:
            client.get(f"/tenants/{name(tenant)}")
            return
        except ApiError as error:
            if error.status != 404:
                return
        known = [str(one["name"]) for one in client.get("/tenants", limit=1000)["items"]]
        near = difflib.get_close_matches(tenant, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "`gatehouse tenants list` shows those that there are."
        session.out.remark(f"warning: there is no tenant {tenant!r}, so this counts only for logins that name it; {hint}")


# --- users


@users.command("hash-password")
def hash_password() -> None:
    """Prints the hash of a password, for `password_hash` of a user in the configuration.

    It is asked for twice; without a terminal it is the first line of standard input. Nothing is sent anywhere.
    """
    if sys.stdin.isatty():
        password = str(typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    password = unicodedata.normalize("NFC", password)
    if not MIN_PASSWORD <= len(password) <= MAX_PASSWORD or "\x00" in password:
        raise fail(CommandError(f"the password has {len(password)} characters; it needs {MIN_PASSWORD} to {MAX_PASSWORD}"))
    argon2 = import_module("cryptography.hazmat.primitives.kdf.argon2")  # takes a while to load, and no other command needs it
    made = argon2.Argon2id(salt=os.urandom(16), length=32, iterations=2, lanes=1, memory_cost=19 * 1024)
    typer.echo(made.derive_phc_encoded(password.encode()))


@users.command("list")
@connected
def list_users(
    session: Session,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only those of a tenant.", autocompletion=completion.tenants)] = None,
    prefix: Annotated[str | None, typer.Option("--prefix", help="Only names with this prefix.")] = None,
) -> None:
    """Lists users."""
    with session.client() as client:
        session.out.rows(client.items("/users", tenant=tenant, prefix=prefix, limit=1000), _USERS)


@users.command("show")
@connected
def show_user(session: Session, user: User) -> None:
    """Shows a user."""
    with session.client() as client:
        session.out.one(client.get(f"/users/{name(full(user))}"))


@users.command("create")
@connected
def create_user(
    session: Session,
    user: NewUser,
    display_name: Annotated[str, typer.Option("--display-name", help="For people.")] = "",
    email: Annotated[str, typer.Option("--email", help="The user's e-mail address.")] = "",
    description: Annotated[str, typer.Option("--description", help="A note.")] = "",
    groups: InGroups = None,
    roles: Roles = None,
    dry_run: DryRun = False,
) -> None:
    """Creates a user, before the first login would."""
    body = {"name": full(user), "display_name": display_name, "email": email, "description": description}
    with session.client() as client:
        session.out.one(client.post("/users", {**body, "groups": groups or [], "roles": roles or []}, dry_run=dry_run))
        _warn_of_tenant(session, client, full(user))


@users.command("update")
@connected
def update_user(
    session: Session,
    user: User,
    display_name: Annotated[str | None, typer.Option("--display-name", help="For people.")] = None,
    email: Annotated[str | None, typer.Option("--email", help="The user's e-mail address.")] = None,
    description: Annotated[str | None, typer.Option("--description", help="A note.")] = None,
    groups: InGroups = None,
    roles: Roles = None,
    clear: Annotated[
        list[str] | None,
        typer.Option(
            "--clear",
            help="A setting to reset to its default.",
            autocompletion=completion.one_of("display_name", "email", "description", "groups", "roles"),
        ),
    ] = None,
    if_version: IfVersion = None,
    dry_run: DryRun = False,
) -> None:
    """Changes a user. Settings not named stay; a list replaces the previous list."""
    given = {"display_name": display_name, "email": email, "description": description, "groups": groups, "roles": roles}
    with session.client() as client:
        session.out.one(client.patch(f"/users/{name(full(user))}", changed(given, clear or ()), version=if_version, dry_run=dry_run))


@users.command("delete")
@connected
def delete_user(session: Session, user: User, dry_run: DryRun = False) -> None:
    """Deletes a user and revokes their own keys. The next login recreates the user; to keep them out, suspend them."""
    with session.client() as client:
        session.out.one(client.delete(f"/users/{name(full(user))}", dry_run=dry_run))


# --- groups


@groups.command("list")
@connected
def list_groups(
    session: Session,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only those of a tenant.", autocompletion=completion.tenants)] = None,
) -> None:
    """Lists groups."""
    with session.client() as client:
        session.out.rows(client.items("/groups", tenant=tenant, limit=1000), _GROUPS)


@groups.command("show")
@connected
def show_group(session: Session, group: Group) -> None:
    """Shows a group."""
    with session.client() as client:
        session.out.one(client.get(f"/groups/{name(full(group))}"))


@groups.command("create")
@connected
def create_group(
    session: Session,
    group: NewGroup,
    description: Annotated[str, typer.Option("--description", help="What it is for.")] = "",
    models: Models = None,
    operations: Operations = None,
    own_keys: Count = None,
    key_life: Life = None,
    login_within: Within = None,
    dry_run: DryRun = False,
) -> None:
    """Creates a group."""
    body: dict[str, Any] = {"name": full(group), "description": description, "models": models or [], "operations": operations or []}
    if (allowed := _own_keys(own_keys, key_life, login_within)) is not None:
        body["own_keys"] = allowed
    with session.client() as client:
        session.out.one(client.post("/groups", body, dry_run=dry_run))
        _warn_of_tenant(session, client, full(group))


@groups.command("update")
@connected
def update_group(
    session: Session,
    group: Group,
    description: Annotated[str | None, typer.Option("--description", help="What it is for.")] = None,
    models: Models = None,
    operations: Operations = None,
    own_keys: Count = None,
    key_life: Life = None,
    login_within: Within = None,
    clear: Annotated[
        list[str] | None,
        typer.Option(
            "--clear",
            help="A setting to reset to its default.",
            autocompletion=completion.one_of("description", "models", "operations", "own_keys"),
        ),
    ] = None,
    if_version: IfVersion = None,
    dry_run: DryRun = False,
) -> None:
    """Changes a group. Settings not named stay. Takes effect at once for all members."""
    allowed = _own_keys(own_keys, key_life, login_within)
    given = {"description": description, "models": models, "operations": operations, "own_keys": allowed}
    with session.client() as client:
        session.out.one(client.patch(f"/groups/{name(full(group))}", changed(given, clear or ()), version=if_version, dry_run=dry_run))


@groups.command("delete")
@connected
def delete_group(session: Session, group: Group, dry_run: DryRun = False) -> None:
    """Deletes a group that has no members and no bindings."""
    with session.client() as client:
        session.out.one(client.delete(f"/groups/{name(full(group))}", dry_run=dry_run))


@groups.command("members")
@connected
def members(session: Session, group: Group) -> None:
    """Lists the users to whom a group is assigned."""
    with session.client() as client:
        session.out.rows(client.items(f"/groups/{name(full(group))}/members", limit=1000), _USERS)


@groups.command("add-member")
@connected
def add_member(session: Session, group: Group, user: User, dry_run: DryRun = False) -> None:
    """Gives a group to a user."""
    with session.client() as client:
        session.out.one(client.post(f"/groups/{name(full(group))}/add-member", {"user": full(user)}, dry_run=dry_run))


@groups.command("remove-member")
@connected
def remove_member(session: Session, group: Group, user: User, dry_run: DryRun = False) -> None:
    """Takes a group from a user. Takes effect at once, also for the user's own keys."""
    with session.client() as client:
        session.out.one(client.post(f"/groups/{name(full(group))}/remove-member", {"user": full(user)}, dry_run=dry_run))


def _own_keys(count: int | None, life: str | None, within: str | None) -> dict[str, Any] | None:
    given = {
        "count": count,
        "life": None if life is None else duration(life),
        "login_within": None if within is None else duration(within),
    }
    found = {key: value for key, value in given.items() if value is not None}
    return found or None


# --- suspend and resume


def _suspend(session: Session, path: str, why: str, dry_run: bool) -> None:
    with session.client() as client:
        session.out.one(client.post(f"{path}/suspend", {"reason": why}, dry_run=dry_run))


def _resume(session: Session, path: str, dry_run: bool) -> None:
    with session.client() as client:
        session.out.one(client.post(f"{path}/resume", dry_run=dry_run))


@users.command("suspend")
@connected
def suspend_user(session: Session, user: User, why: Reason = "", dry_run: DryRun = False) -> None:
    """Refuses a user (403 `suspended`) and their own keys everywhere at once, and cancels their requests under way."""
    _suspend(session, f"/users/{name(full(user))}", why, dry_run)


@users.command("resume")
@connected
def resume_user(session: Session, user: User, dry_run: DryRun = False) -> None:
    """Lets a suspended user in again."""
    _resume(session, f"/users/{name(full(user))}", dry_run)


@connected
def suspend_tenant(session: Session, tenant: Tenant, why: Reason = "", dry_run: DryRun = False) -> None:
    """Refuses all keys and users of a tenant (403 `suspended`) everywhere at once, and cancels their requests under way."""
    _suspend(session, f"/tenants/{name(tenant)}", why, dry_run)


@connected
def resume_tenant(session: Session, tenant: Tenant, dry_run: DryRun = False) -> None:
    """Lets a suspended tenant in again."""
    _resume(session, f"/tenants/{name(tenant)}", dry_run)


@connected
def suspend_key(session: Session, id: KeyId, why: Reason = "", dry_run: DryRun = False) -> None:
    """Refuses a key (403 `suspended`) everywhere at once, and cancels its requests under way, until it is resumed."""
    _suspend(session, f"/keys/{name(id)}", why, dry_run)


@connected
def resume_key(session: Session, id: KeyId, dry_run: DryRun = False) -> None:
    """Accepts a suspended key again."""
    _resume(session, f"/keys/{name(id)}", dry_run)


def extend(tenants: typer.Typer, keys: typer.Typer) -> None:
    """Adds `suspend` and `resume` to the groups of tenants and keys."""
    tenants.command("suspend")(suspend_tenant)
    tenants.command("resume")(resume_tenant)
    keys.command("suspend")(suspend_key)
    keys.command("resume")(resume_key)
