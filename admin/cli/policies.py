"""`gatehouse policies`: limits, guardrails and bindings, and what they would decide."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from admin.cli import completion
from admin.cli.apply import apply_all, read
from admin.cli.client import name
from admin.cli.errors import UsageError
from admin.cli.session import DryRun, Session, connected

group = typer.Typer(no_args_is_help=True, help="Limits, guardrails and bindings, and what they would decide.")
KINDS: Final = completion.POLICY_KINDS
Policy = Annotated[str, typer.Argument(metavar="KIND/NAME", help="limits/NAME, for example.", autocompletion=completion.policies)]
StoredPolicy = Annotated[
    str, typer.Argument(metavar="KIND/NAME", help="limits/NAME, for example.", autocompletion=completion.stored_policies)
]


@group.command("list")
@connected
def index(session: Session) -> None:
    """Lists all of them, those of the configuration file first."""
    with session.client() as client:
        found = [{"kind": kind, **item} for kind in KINDS for item in client.items(f"/{kind}", limit=1000)]
    session.out.rows(found, ("kind", "name", "source", "version", "updated_at", "updated_by"))


@group.command("show")
@connected
def show(session: Session, policy: Policy) -> None:
    """Shows one."""
    with session.client() as client:
        session.out.one(client.get(_path(policy)))


@group.command("delete")
@connected
def delete(session: Session, policy: StoredPolicy, dry_run: DryRun = False) -> None:
    """Deletes one of the store."""
    with session.client() as client:
        session.out.one(client.delete(_path(policy), dry_run=dry_run))


def _path(policy: str) -> str:
    """Raises CommandError."""
    kind, slash, rest = policy.partition("/")
    if kind not in KINDS or not slash or not rest:
        raise UsageError(f"{policy!r}: write KIND/NAME, where KIND is one of {', '.join(KINDS)}")
    return f"/{kind}/{name(rest)}"


@group.command("apply")
@connected
def apply(
    session: Session,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="YAML with `limits`, `guardrails` or `bindings`: a list each.")],
    dry_run: DryRun = False,
) -> None:
    """Applies a file of policies to the store: creates new ones, replaces different ones, deletes none."""
    wanted = read(file, KINDS)
    with session.client() as client:
        done = apply_all(client, wanted, dry_run)
    session.out.rows(done, ("kind", "name", "action", "diff"))


@group.command("test")
@connected
def test(
    session: Session,
    key_id: Annotated[str, typer.Option("--key-id", help="The id of an API key.", autocompletion=completion.keys)],
    model: Annotated[str, typer.Option("--model", help="A model.", autocompletion=completion.models)],
    operation: Annotated[
        str,
        typer.Option("--operation", help="chat, completions, embeddings, rerank, classify or infer.", autocompletion=completion.operations),
    ] = "chat",
) -> None:
    """Says whether a key may use a model, and which limits and guardrails apply. Exit code 1 when it may not."""
    with session.client() as client:
        answer = client.get("/policies/test", key=key_id, model=model, operation=operation)
    session.out.one({"decision": "allow" if answer["allow"] else "deny", **answer} if session.out.for_people else answer)
    if not answer["allow"]:
        raise typer.Exit(1)
