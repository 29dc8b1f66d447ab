"""`gatehouse engines create|apply|delete` and `gatehouse models create|apply|delete`: those of the store."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from admin.cli import completion
from admin.cli.apply import Wanted, apply_all, read, report
from admin.cli.client import LONG, Client, name
from admin.cli.errors import CommandError, UsageError
from admin.cli.session import DryRun, Session, connected

KINDS: Final = ("engines", "models")
POLL_SECONDS: Final = 0.2
UNSURE: Final = 10
"""How often an engine that was starting is found stopped before that counts: why it could not start may be reported a moment later."""
Wait = Annotated[bool, typer.Option("--wait", help="Return once it is in force; otherwise say why it is not.")]
Timeout = Annotated[float, typer.Option("--timeout", help="Maximum seconds to wait.")]
FileOfBoth = Annotated[Path, typer.Argument(metavar="FILE", help="YAML with `engines`, `models` or both: a list each.")]
_SHOWN: Final = ("name", "source", "revision", "in_force", "state", "ready", "reason")


def register(engines: typer.Typer, models: typer.Typer) -> None:
    """Adds the commands to the groups."""
    for group, create, delete in ((engines, create_engine, delete_engine), (models, create_model, delete_model)):
        group.command("create")(create)
        group.command("apply")(apply)
        group.command("delete")(delete)
    engines.command("show")(show_engine)


@connected
def create_engine(
    session: Session,
    engine: Annotated[str, typer.Argument(metavar="ENGINE", help="A name for it.")],
    runtime: Annotated[
        str,
        typer.Option(
            "--runtime",
            help="llama.cpp, onnx, genai, or external for a server elsewhere.",
            autocompletion=completion.one_of("llama.cpp", "onnx", "genai", "external"),
        ),
    ],
    model: Annotated[
        str | None, typer.Option("--model", help="The name of a model in the registry.", autocompletion=completion.model_files)
    ] = None,
    upstream: Annotated[str | None, typer.Option("--upstream", help="The address of an external engine: http://HOST:PORT.")] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key",
            help="The key of an external engine; the gateway resolves ${env:GATEHOUSE_SECRET_NAME}.",
            envvar="GATEHOUSE_ENGINE_KEY",
        ),
    ] = None,
    version: Annotated[str | None, typer.Option("--version", help="The model's version.")] = None,
    device: Annotated[str | None, typer.Option("--device", help="cpu, metal, cuda:N, rocm:N or vulkan:N.")] = None,
    slots: Annotated[int | None, typer.Option("--slots", help="Requests that run at once.", min=1)] = None,
    context: Annotated[int | None, typer.Option("--context", help="Tokens of context for each slot.", min=64)] = None,
    wait: Wait = False,
    timeout: Timeout = LONG,
    dry_run: DryRun = False,
) -> None:
    """Creates an engine in the store. For all other settings use a file (`apply`)."""
    given = {"model": model, "url": upstream, "api_key": api_key, "version": version, "device": device, "slots": slots, "context": context}
    body = {"name": engine, "runtime": runtime, **{key: value for key, value in given.items() if value is not None}}
    _create(session, "engines", body, wait, timeout, dry_run)


@connected
def show_engine(
    session: Session, engine: Annotated[str, typer.Argument(metavar="ENGINE", help="Its name.", autocompletion=completion.engines)]
) -> None:
    """Shows an engine: its settings and its state."""
    with session.client() as client:
        session.out.one(client.get(f"/engines/{name(engine)}"))


@connected
def create_model(
    session: Session,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Its public name.")],
    engines: Annotated[
        list[str],
        typer.Option("--engine", help="An engine of its pool; ENGINE=WEIGHT for a share. Repeat it.", autocompletion=completion.engines),
    ],
    aliases: Annotated[list[str] | None, typer.Option("--alias", help="Another name for it; repeat it.")] = None,
    fallbacks: Annotated[
        list[str] | None, typer.Option("--fallback", help="A model to try when this one cannot answer.", autocompletion=completion.models)
    ] = None,
    policy: Annotated[
        str | None, typer.Option("--policy", help="The routing policy of its pool: consistent_hash, least_outstanding, ...")
    ] = None,
    upstream_model: Annotated[str | None, typer.Option("--upstream-model", help="Its name at the engines, if different.")] = None,
    wait: Wait = False,
    timeout: Timeout = LONG,
    dry_run: DryRun = False,
) -> None:
    """Creates a model in the store. For all other settings use a file (`apply`)."""
    body: dict[str, Any] = {
        "name": model,
        "pool": [member(text) for text in engines],
        "aliases": aliases or [],
        "fallbacks": fallbacks or [],
    }
    if policy is not None:
        body["routing"] = {"policy": policy}
    if upstream_model is not None:
        body["upstream_model"] = upstream_model
    _create(session, "models", body, wait, timeout, dry_run)


def member(text: str) -> str | dict[str, Any]:
    """`ENGINE` or `ENGINE=WEIGHT`. Raises UsageError."""
    engine, equals, weight = text.rpartition("=")
    if not equals:
        return text
    try:
        return {"engine": engine, "weight": float(weight)}
    except ValueError:
        raise UsageError(f"{text!r}: write ENGINE or ENGINE=WEIGHT, such as canary=0.1") from None


def _create(session: Session, kind: str, body: dict[str, Any], wait: bool, timeout: float, dry_run: bool) -> None:
    with session.client() as client:
        answer = client.post(f"/{kind}", body, dry_run=dry_run)
        if wait and not dry_run:
            answer = _waited(session, client, kind, str(body["name"]), time.monotonic() + timeout)
    session.out.one(answer if dry_run or not session.out.for_people else {field: answer.get(field) for field in _SHOWN})


@connected
def apply(session: Session, file: FileOfBoth, wait: Wait = False, timeout: Timeout = LONG, dry_run: DryRun = False) -> None:
    """Applies a file of engines and models to the store: creates new ones, replaces different ones, deletes none.

    Another `model`, `version` or `sha256` of an engine starts the new version beside the old one and moves the traffic.
    """
    wanted = read(file, KINDS)
    with session.client() as client:
        done = apply_all(client, wanted, dry_run)
        if wait and not dry_run:
            _wait_for_all(session, client, wanted, time.monotonic() + timeout)
    report(session.out, done)


def _wait_for_all(session: Session, client: Client, wanted: Wanted, deadline: float) -> None:
    for kind, items in wanted.items():
        for item in items:
            _waited(session, client, kind, str(item["name"]), deadline)


def _waited(session: Session, client: Client, kind: str, which: str, deadline: float) -> dict[str, Any]:
    """Returns the resource once it is in force. Raises CommandError with the reason if it fails or takes too long."""
    unsure = 0
    with session.out.remarks.status(f"{kind}/{which}"):
        while True:
            found: dict[str, Any] = client.get(f"/{kind}/{name(which)}")
            if found["failed"]:
                raise CommandError(f"{kind}/{which} is not in force: {found['reason']}")
            begun = _under_way(found)
            unsure = UNSURE if begun else unsure - 1
            if found["in_force"] and not begun and (unsure <= 0 or found.get("state") != "stopped"):
                return found
            if time.monotonic() > deadline:
                raise CommandError(f"{kind}/{which} is not in force yet")
            time.sleep(POLL_SECONDS)


def _under_way(found: dict[str, Any]) -> bool:
    """Whether an engine's state will not stay: it starts, or its process ends because it could not start, which is reported a moment later.
    One that is not loaded has no process to end."""
    state = found.get("state")
    return state in ("starting", "loading", "failed") or (state in ("draining", "stopped") and "pid" in found)


@connected
def delete_engine(
    session: Session,
    engine: Annotated[str, typer.Argument(metavar="ENGINE", help="Its name.", autocompletion=completion.stored_engines)],
    dry_run: DryRun = False,
) -> None:
    """Deletes an engine of the store after draining it. Refused while a model's pool names it."""
    _delete(session, "engines", engine, dry_run)


@connected
def delete_model(
    session: Session,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Its name.", autocompletion=completion.stored_models)],
    dry_run: DryRun = False,
) -> None:
    """Deletes a model of the store. Requests under way finish."""
    _delete(session, "models", model, dry_run)


def _delete(session: Session, kind: str, which: str, dry_run: bool) -> None:
    with session.client() as client:
        answer = client.json("DELETE", f"/{kind}/{name(which)}", params={"dry_run": "true"} if dry_run else {})
    if dry_run or not session.out.for_people:
        session.out.one(answer)
    else:
        session.out.remark(f"{kind}/{which} is deleted")
