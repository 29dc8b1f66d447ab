"""`gatehouse policies`: limits, guardrails, roles and bindings, and what they would decide."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from admin.cli import completion
from admin.cli.apply import apply_all, read, report, text_of
from admin.cli.client import LONG, ApiError, Client, name
from admin.cli.errors import CommandError, UsageError
from admin.cli.keys import duration
from admin.cli.session import DryRun, Session, connected
from gateway.core.errors import ConfigError
from gateway.wire import yamltree

group = typer.Typer(no_args_is_help=True, help="Limits, guardrails, roles and bindings, and what they would decide.")
KINDS: Final = completion.POLICY_KINDS
Policy = Annotated[str, typer.Argument(metavar="KIND/NAME", help="limits/NAME, for example.", autocompletion=completion.policies)]
StoredPolicy = Annotated[
    str, typer.Argument(metavar="KIND/NAME", help="limits/NAME, for example.", autocompletion=completion.stored_policies)
]


@group.command("list")
@connected
def index(session: Session) -> None:
    """Lists all policies, those of the configuration file first."""
    with session.client() as client:
        found = [{"kind": kind, **item} for kind in KINDS for item in client.items(f"/{kind}", limit=1000)]
    session.out.rows(found, ("kind", "name", "source", "version", "updated_at", "updated_by"))


@group.command("show")
@connected
def show(session: Session, policy: Policy) -> None:
    """Shows a policy."""
    with session.client() as client:
        session.out.one(client.get(_path(policy)))


@group.command("delete")
@connected
def delete(session: Session, policy: StoredPolicy, dry_run: DryRun = False) -> None:
    """Deletes a policy of the store."""
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
    report(session.out, done)


@group.command("explain")
@connected
def explain(
    session: Session,
    model: Annotated[str | None, typer.Option("--model", help="A model.", autocompletion=completion.models)] = None,
    key_id: Annotated[str | None, typer.Option("--key-id", help="The id of an API key.", autocompletion=completion.keys)] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Instead of a key: the tenant of a hypothetical caller.")] = None,
    user: Annotated[str, typer.Option("--user", help="Its user.")] = "",
    groups: Annotated[list[str] | None, typer.Option("--group", help="One of its groups; repeat it.")] = None,
    agent: Annotated[str, typer.Option("--agent", help="The agent that acts for it.")] = "",
    operation: Annotated[
        str,
        typer.Option(
            "--operation",
            help="chat, completions, embeddings, rerank, score, classify, moderations, images, speech, transcriptions, translations, "
            "tokenize or infer.",
            autocompletion=completion.operations,
        ),
    ] = "chat",
    source: Annotated[str, typer.Option("--source", help="The address that the request comes from.")] = "192.0.2.1",
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="The request's max_tokens.", min=0)] = 0,
    tools: Annotated[list[str] | None, typer.Option("--tool", help="A tool that the request offers; repeat it.")] = None,
    label: Annotated[str, typer.Option("--label", help="How the client labels its data.")] = "",
    strength: Annotated[
        str, typer.Option("--strength", help="The login of a hypothetical caller: password, token, certificate, mfa.")
    ] = "",
    at: Annotated[str | None, typer.Option("--at", help="The time of the request, such as 2026-01-31T22:00:00Z; default: now.")] = None,
    past: Annotated[
        str | None, typer.Option("--request", metavar="ID", help="Instead of all these: a past request, by its x-request-id.")
    ] = None,
) -> None:
    """Says whether a caller may use a model, and why: each rule, and whether it applies. Exit code 1 if it may not.

    With --request: why a request of the past was allowed or denied, from its record in the audit log, and what would be decided now.
    """
    if past is not None:
        if model is not None or key_id is not None or tenant is not None:
            raise UsageError("say either --request, or --model with --key-id or --tenant")
        _past(session, past)
        return
    if model is None:
        raise UsageError("say --model, or --request for a request of the past")
    if (key_id is None) == (tenant is None):
        raise UsageError("say either --key-id, or --tenant with --user, --group, --agent")
    request = {"model": model, "operation": operation, "source": source, "max_tokens": max_tokens, "tools": tools or [], "label": label}
    request |= {} if at is None else {"time": at}
    caller = {"tenant": tenant, "user": user, "groups": groups or [], "agent": agent, "strength": strength}
    question = {"request": request, **({"key": key_id} if key_id is not None else {"principal": caller})}
    with session.client() as client:
        answer = client.post("/policies:explain", question)
    if session.out.for_people:
        rules = answer.pop("rules")
        session.out.one({"decision": _word(answer["allow"]), **answer})
        session.out.rows(rules, ("rule", "effect", "holds", "when"))
    else:
        session.out.one(answer)
    if not answer["allow"]:
        raise typer.Exit(1)


def _past(session: Session, request_id: str) -> None:
    """Exit code 1 for a request that was denied."""
    with session.client() as client:
        answer = client.json("GET", f"/policies/decisions/{name(request_id)}", timeout=LONG)
    if not session.out.for_people:
        session.out.one(answer)
    else:
        shown = {key: value for key, value in answer.items() if key not in ("facts", "rules", "now", "unrecorded", "lacking", "allow")}
        session.out.one({"decision": _word(answer["allow"]), **shown, **answer["facts"]})
        if answer["unrecorded"]:
            session.out.remark(f"not recorded, so not known: {', '.join(answer['unrecorded'])}")
        now = answer["now"]
        if now is None:
            session.out.remark(f"what would be decided now is not known: that depends on {answer['lacking']}, which was not recorded")
        else:
            session.out.remark(f"now: {_word(now['allow'])} by {now['rule']}")
            session.out.rows(answer["rules"], ("rule", "effect", "holds", "when"))
    if not answer["allow"]:
        raise typer.Exit(1)


def _word(allow: bool) -> str:
    return "allow" if allow else "deny"


@group.command("diff")
@connected
def diff(
    session: Session,
    file: Annotated[
        Path,
        typer.Argument(metavar="CANDIDATE", help="YAML with `roles` and `bindings`, as in the configuration; everything else is ignored."),
    ],
    last: Annotated[int, typer.Option("--last", help="How many of the newest decisions.", min=1, max=100_000)] = 10_000,
    since: Annotated[str | None, typer.Option("--since", help="How far back, such as 24h.")] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only this tenant's.", autocompletion=completion.tenants)] = None,
    beside: Annotated[
        bool,
        typer.Option("--beside", help="Add them to all existing ones, as `policies apply` would, instead of replacing the file's."),
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit code 1 if a decision would change.")] = False,
) -> None:
    """Replays past decisions from the audit log with other roles and bindings, and lists those that would change."""
    question: dict[str, Any] = {**_candidate(file), "beside": beside, "last": last, "tenant": tenant}
    if since is not None:
        question["since"] = time.time() - duration(since)
    with session.client() as client:
        answer = client.post("/policies:diff", question, timeout=LONG)
    if session.out.for_people:
        _show(session, answer)
    else:
        session.out.one(answer)
    if check and answer["allowed"] + answer["denied"]:
        raise typer.Exit(1)


def _candidate(file: Path) -> dict[str, Any]:
    """The roles and bindings of a file. Raises CommandError."""
    text, where = text_of(file)
    try:
        found = yamltree.plain(yamltree.read(text, file=where))
    except ConfigError as error:
        raise CommandError(str(error)) from None
    if not isinstance(found, dict) or not {"roles", "bindings"} & set(found):
        raise CommandError(f"{where} must hold a mapping with roles or bindings")
    return {kind: found[kind] for kind in ("roles", "bindings") if found.get(kind) is not None}


def _side(one: dict[str, Any]) -> str:
    return f"{_word(one['allow'])} by {one['rule']}"


def _show(session: Session, answer: dict[str, Any]) -> None:
    rows = [{**one, "before": _side(one["before"]), "after": _side(one["after"])} for one in answer["changes"]]
    session.out.rows(rows, ("tenant", "principal", "user", "model", "operation", "requests", "before", "after", "last", "request_id"))
    remark = session.out.remark
    when = f" ({answer['first']} to {answer['last']})" if answer["first"] is not None else ""
    remark(f"{answer['replayed']} of {answer['decisions']} decisions made again{when}")
    remark(f"{answer['denied']} would be denied that are allowed, {answer['allowed']} allowed that are denied")
    for one in answer["not_replayed"]:
        lacks = "the caller's facts: they are from an earlier version" if one["fact"] == "older" else one["fact"]
        remark(f"{one['decisions']} could not be made again, as their records lack {lacks}")
    if answer["other_rule"]:
        remark(f"{answer['other_rule']} stay as they are by another rule")
    if answer["decided_otherwise_then"]:
        remark(f"{answer['decided_otherwise_then']} were decided otherwise at their time: the policies have changed since")
    if answer["left_out"]:
        remark(f"{answer['left_out']} changed decisions are not listed")
    if not answer["complete"]:
        remark("time ran out: older decisions were not looked at; say --last or --since")


@group.command("test")
@connected
def test(
    session: Session,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="YAML with `cases`, a list.")],
) -> None:
    """Checks decisions against a file of cases. Exit code 1 on a difference.

    A case has `principal` (a supposed caller) or `key` (an id), `request`, `expect` (allow or deny), and may have `name` and `rule`.
    """
    cases = read(file, ("cases",), nameless=True)["cases"]
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
    try:
        answer = client.post("/policies:explain", {name: case[name] for name in ("principal", "key", "request") if name in case})
    except ApiError as error:
        raise ApiError(error.status, f"{called}: {error}") from None
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
