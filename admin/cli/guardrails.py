"""`gatehouse guardrails`: what the guardrails in force say of a text."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from admin.cli import completion
from admin.cli.apply import read
from admin.cli.client import Client
from admin.cli.errors import UsageError
from admin.cli.session import Session, connected

group = typer.Typer(no_args_is_help=True, help="Guardrails: try them on a text.")
KEYS = ("name", "text", "on", "model", "guardrails", "expect", "spans", "passes", "labels")


@group.callback()
def guardrails() -> None:
    """What the guardrails in force say of a text."""


@group.command("evaluate")
@connected
def evaluate(
    session: Session,
    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="The text; - reads standard input.")] = None,
    cases: Annotated[
        Path | None,
        typer.Option("--cases", metavar="FILE", help="Instead of a text: YAML with `cases`, texts and expected results."),
    ] = None,
    on: Annotated[str, typer.Option("--on", help="Guardrails of the request or of the response.")] = "request",
    model: Annotated[str | None, typer.Option("--model", help="Only guardrails of this model.", autocompletion=completion.models)] = None,
    names: Annotated[list[str] | None, typer.Option("--guardrail", help="Only this guardrail; repeat it.")] = None,
) -> None:
    """Runs a text through the guardrails in force: verdicts, places, scores, times, and how much a stream would hold. Exit code 1 when it
    would be blocked.

    --cases compares with a file of cases instead; exit code 1 when one is different. A case has `name` and `text`, and may have
    `on`, `model`, `guardrails`, `expect` (allow, rewrite, block, hold), `passes` (the text that would pass), `labels` (the data
    labels that a request would get) and `spans` (`offset`, `length`, `entity`).
    """
    if (text is None) == (cases is None):
        raise UsageError("say either TEXT or --cases FILE")
    with session.client() as client:
        if cases is not None:
            results = [_judged(client, number, case) for number, case in enumerate(_cases(cases))]
            session.out.rows(results, ("case", "expected", "verdict", "result", "difference"))
            if any(result["result"] != "as expected" for result in results):
                raise typer.Exit(1)
            return
        assert text is not None
        asked = {"text": sys.stdin.read() if text == "-" else text, "on": on, "model": model, "guardrails": names or []}
        answer = client.post("/guardrails:evaluate", asked)
    if session.out.for_people:
        steps = answer.pop("guardrails")
        session.out.one(answer)
        rows = [{**step, "spans": len(step["spans"])} for step in steps]
        session.out.rows(rows, ("guardrail", "mode", "verdict", "action", "label", "spans", "milliseconds", "held", "longest_hold", "why"))
        spans = [{"guardrail": step["guardrail"], **span} for step in steps for span in step["spans"]]
        if spans:
            session.out.rows(spans, ("guardrail", "entity", "offset", "length", "score"))
    else:
        session.out.one(answer)
    if answer["verdict"] in ("block", "hold"):
        raise typer.Exit(1)


def _cases(file: Path) -> list[dict[str, Any]]:
    """Raises CommandError."""
    return read(file, ("cases",))["cases"]


def _judged(client: Client, number: int, case: dict[str, Any]) -> dict[str, str]:
    """Raises CommandError."""
    if unknown := set(case) - set(KEYS):
        raise UsageError(f"cases[{number}]: unknown key {min(unknown)!r}; there are {', '.join(KEYS)}")
    if not isinstance(case.get("text"), str):
        raise UsageError(f"cases[{number}].text: write a text")
    answer = client.post("/guardrails:evaluate", {key: case[key] for key in ("text", "on", "model", "guardrails") if key in case})
    differences = []
    if "expect" in case and case["expect"] != answer["verdict"]:
        differences.append(f"verdict {answer['verdict']}")
    if "passes" in case and case["passes"] != answer["text"]:
        differences.append(f"passes {answer['text']!r}")
    if "labels" in case and sorted(case["labels"]) != answer["labels"]:
        differences.append(f"labels {', '.join(answer['labels']) or 'none'}")
    if "spans" in case:
        found = [
            {"offset": span["offset"], "length": span["length"], "entity": span["entity"]}
            for step in answer["guardrails"]
            for span in step["spans"]
        ]
        wanted = [{key: span[key] for key in span if key != "score"} for span in case["spans"]]
        missing = [span for span in wanted if not any(span.items() <= other.items() for other in found)]
        surplus = [span for span in found if not any(other.items() <= span.items() for other in wanted)]
        differences += [f"missing {span}" for span in missing] + [f"not expected {span}" for span in surplus]
    return {
        "case": str(case.get("name", f"cases[{number}]")),
        "expected": str(case.get("expect", "")),
        "verdict": answer["verdict"],
        "result": "different" if differences else "as expected",
        "difference": "; ".join(differences),
    }
