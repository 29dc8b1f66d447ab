"""`gatehouse policies`: limits, guardrails, roles and bindings, and what they would decide."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from admin.cli import completion
from admin.cli.apply import apply_all, read
from admin.cli.client import Client, name
from admin.cli.errors import UsageError
from admin.cli.session import DryRun, Session, connected

group = typer.Typer(no_args_is_help=True, help="Limits, guardrails, roles and bindings, and what they would decide.")
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
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="YAML with `limits`, `guardrails`, `roles` or `bindings`, as in the configuration.")
    ],
    dry_run: DryRun = False,
) -> None:
    """Applies a file of policies to the store: creates new ones, replaces different ones, deletes none."""
    wanted = read(file, KINDS, by_name=("roles",))
    with session.client() as client:
        done = apply_all(client, wanted, dry_run)
    session.out.rows(done, ("kind", "name", "action", "diff"))


@group.command("explain")
@connected
def explain(
    session: Session,
    model: Annotated[str, typer.Option("--model", help="A model.", autocompletion=completion.models)],
    key_id: Annotated[str | None, typer.Option("--key-id", help="The id of an API key.", autocompletion=completion.keys)] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Instead of a key: the tenant of a supposed caller.")] = None,
    user: Annotated[str, typer.Option("--user", help="Its user.")] = "",
    groups: Annotated[list[str] | None, typer.Option("--group", help="One of its groups; may be repeated.")] = None,
    agent: Annotated[str, typer.Option("--agent", help="The agent that acts for it.")] = "",
    operation: Annotated[
        str,
        typer.Option("--operation", help="chat, completions, embeddings, rerank, classify or infer.", autocompletion=completion.operations),
    ] = "chat",
    source: Annotated[str, typer.Option("--source", help="The address that the request comes from.")] = "192.0.2.1",
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="The request's max_tokens.", min=0)] = 0,
    tools: Annotated[list[str] | None, typer.Option("--tool", help="A tool that the request offers; may be repeated.")] = None,
) -> None:
    """Says whether a caller may use a model, and why: each rule, and whether it counts. Exit code 1 when it may not."""
    if (key_id is None) == (tenant is None):
        raise UsageError("say either --key-id, or --tenant with --user, --group, --agent")
    request = {"model": model, "operation": operation, "source": source, "max_tokens": max_tokens, "tools": tools or []}
    caller = {"tenant": tenant, "user": user, "groups": groups or [], "agent": agent}
    question = {"request": request, **({"key": key_id} if key_id is not None else {"principal": caller})}
    with session.client() as client:
        answer = client.post("/policies:explain", question)
    if session.out.for_people:
        rules = answer.pop("rules")
        session.out.one({"decision": "allow" if answer["allow"] else "deny", **answer})
        session.out.rows(rules, ("rule", "effect", "holds", "when"))
    else:
        session.out.one(answer)
    if not answer["allow"]:
        raise typer.Exit(1)


@group.command("test")
@connected
def test(
    session: Session,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="YAML with `cases`, a list.")],
) -> None:
    """Compares decisions with a file of cases. Exit code 1 when one is different.

    A case has `principal` (a supposed caller) or `key` (an id), `request`, `expect` (allow or deny), and may have `name` and `rule`.
    """
    cases = read(file, ("cases",))["cases"]
    with session.client() as client:
        results = [_judged(client, number, case) for number, case in enumerate(cases)]
    session.out.rows(results, ("case", "expected", "decision", "rule", "result"))
    if any(result["result"] != "as expected" for result in results):
        raise typer.Exit(1)


def _judged(client: Client, number: int, case: dict[str, Any]) -> dict[str, str]:
    """Raises CommandError."""
    called = str(case.get("name", f"cases[{number}]"))
    if unknown := set(case) - {"name", "principal", "key", "request", "expect", "rule"}:
        raise UsageError(f"cases[{number}]: unknown key {min(unknown)!r}; there are name, principal, key, request, expect, rule")
    if case.get("expect") not in ("allow", "deny"):
        raise UsageError(f"cases[{number}].expect: write allow or deny")
    answer = client.post("/policies:explain", {name: case[name] for name in ("principal", "key", "request") if name in case})
    decision = "allow" if answer["allow"] else "deny"
    same = decision == case["expect"] and case.get("rule", answer["rule"]) == answer["rule"]
    expected = case["expect"] + (f" by {case['rule']}" if "rule" in case else "")
    return {
        "case": called,
        "expected": expected,
        "decision": decision,
        "rule": answer["rule"],
        "result": "as expected" if same else "different",
    }
