"""`gatehouse policies`: limits, guardrails and bindings, and what they would decide."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer
import yaml

from admin.cli.client import ApiError, Client, name
from admin.cli.errors import CommandError
from admin.cli.session import DryRun, Session, connected

group = typer.Typer(no_args_is_help=True, help="Limits, guardrails and bindings, and what they would decide.")
KINDS: Final = ("limits", "guardrails", "bindings")


@group.command("list")
@connected
def index(session: Session) -> None:
    """Lists all of them, those of the configuration file first."""
    with session.client() as client:
        found = [{"kind": kind, **item} for kind in KINDS for item in client.items(f"/{kind}", limit=1000)]
    session.out.rows(found, ("kind", "name", "source", "version", "updated_at", "updated_by"))


@group.command("show")
@connected
def show(session: Session, policy: Annotated[str, typer.Argument(metavar="KIND/NAME", help="limits/NAME, for example.")]) -> None:
    """Shows one."""
    kind, slash, rest = policy.partition("/")
    if kind not in KINDS or not slash or not rest:
        raise CommandError(f"write KIND/NAME, where KIND is one of {', '.join(KINDS)}")
    with session.client() as client:
        session.out.one(client.get(f"/{kind}/{name(rest)}"))


@group.command("apply")
@connected
def apply(
    session: Session,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="YAML with `limits`, `guardrails` or `bindings`: a list each.")],
    dry_run: DryRun = False,
) -> None:
    """Makes the policies of a file those of the store: what is new is created, what differs replaced; nothing is deleted."""
    wanted = read(file)
    done: list[dict[str, Any]] = []
    with session.client() as client:
        for kind, items in wanted.items():
            done += [_apply(client, kind, item, dry_run) for item in items]
    session.out.rows(done, ("kind", "name", "action", "diff"))


def read(file: Path) -> dict[str, list[dict[str, Any]]]:
    """The policies of a file by kind. Raises CommandError."""
    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise CommandError(f"{file} is not YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(found, dict) or not found or any(kind not in KINDS for kind in found):
        raise CommandError(f"{file} must hold a mapping with {', '.join(KINDS)}")
    for kind, items in found.items():
        if not isinstance(items, list) or any(not isinstance(item, dict) or not item.get("name") for item in items):
            raise CommandError(f"{file}: {kind} must be a list of mappings with a name")
    return found


def _apply(client: Client, kind: str, item: dict[str, Any], dry_run: bool) -> dict[str, Any]:
    path = f"/{kind}/{name(str(item['name']))}"
    params = {"dry_run": "true"} if dry_run else {}
    try:
        current = client.request("GET", path)
    except ApiError as error:
        if error.status != 404:
            raise
        client.post(f"/{kind}", item, dry_run=dry_run)
        return {"kind": kind, "name": item["name"], "action": "created", "diff": []}
    planned = client.json("PUT", path, json=item, params={"dry_run": "true"})
    if planned["diff"] and not dry_run:
        client.json("PUT", path, json=item, params=params, headers={"if-match": current.headers.get("etag", "*")})
    return {"kind": kind, "name": item["name"], "action": "replaced" if planned["diff"] else "unchanged", "diff": planned["diff"]}


@group.command("test")
@connected
def test(
    session: Session,
    key_id: Annotated[str, typer.Option("--key-id", help="The id of an API key.")],
    model: Annotated[str, typer.Option("--model", help="A model.")],
    operation: Annotated[str, typer.Option("--operation", help="chat, completions, embeddings, rerank, classify or infer.")] = "chat",
) -> None:
    """Says whether a key may use a model, and which limits and guardrails apply. Exit code 1 when it may not."""
    with session.client() as client:
        answer = client.get("/policies/test", key=key_id, model=model, operation=operation)
    session.out.one({"decision": "allow" if answer["allow"] else "deny", **answer} if session.out.for_people else answer)
    if not answer["allow"]:
        raise typer.Exit(1)
