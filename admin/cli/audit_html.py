"""An audit report as one HTML page that needs nothing else: for a browser, a printer, an auditor's file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

TABLES: Final = (
    ("accesses", "Accesses", ("tenant", "model", "operation", "outcome", "requests", "prompt_tokens", "completion_tokens")),
    ("callers", "Callers", ("tenant", "principal", "user", "method", "requests", "not_ok", "prompt_tokens", "completion_tokens")),
    ("denials", "Denials", ("tenant", "code", "rule", "guardrail", "requests")),
    ("logins", "Logins and refused connections", ("event", "outcome", "times")),
    ("changes", "Changes of configuration and policy", ("time", "event", "actor", "target", "outcome")),
    ("log", "The log itself", ("time", "event", "writer", "target", "outcome")),
)
"""Part of the report, heading, columns."""

ANSWERS: Final = (
    ("OWASP AISVS 1.0, 12.1.1", "AI interactions are logged with session context", "Accesses, Callers"),
    ("OWASP AISVS 1.0, 12.1.2", "Policy decisions are logged in sufficient detail", "Denials; each record has rule, facts and guardrails"),
    ("OWASP AISVS 1.0, 12.1.3", "A structured schema with model, tokens and operation", "Accesses; the schema is in the documentation"),
    ("OWASP AISVS 1.0, 12.2.5", "Token usage by user, session and team", "Accesses, Callers; `gatehouse usage`"),
    ("OWASP AISVS 1.0, 12.5.2", "Approvals with approver, time, arguments and decision", "Changes; events `approval.*`"),
    ("OWASP AISVS 1.0, 12.5.3", "Kill-switch activations are logged", "Changes; events `halt*`"),
    ("OWASP AISVS 1.0, 12.6.3", "Model changes generate immutable audit records", "Changes; Integrity"),
    ("OWASP AISVS 1.0, 9.4.3", "The log is tamper-evident and can be verified independently", "Integrity"),
    ("ISO/IEC DIS 24970, events of operation", "Start, stop, use and failure of the system are recorded", "Accesses, The log itself"),
    ("ISO/IEC DIS 24970, traceability", "Who used or changed what, when, and what decided", "Callers, Denials, Changes"),
    ("ISO/IEC DIS 24970, protection of logs", "Logs are protected against change and loss", "Integrity"),
)
"""Requirement, what it asks, where the report answers."""

_STYLE: Final = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #1b1f24; }
h1 { font-size: 1.6rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .25rem .6rem; border-bottom: 1px solid #d7dce1; vertical-align: top; }
th { background: #f3f5f7; } td.number { text-align: right; font-variant-numeric: tabular-nums; }
.good { color: #12683b; } .bad { color: #a3151d; font-weight: 600; } .note { color: #59636e; }
@media print { body { margin: 0; max-width: none; } h2 { break-after: avoid; } }
"""


def page(report: Mapping[str, Any]) -> str:
    """The whole page. Every text of the report is escaped: callers choose names of models, users and sessions."""
    scope = "all tenants" if report["tenants"] is None else ", ".join(report["tenants"]) or "no tenant"
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><title>Gatehouse audit report</title>',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<style>{_STYLE}</style></head><body>",
        "<h1>Audit report</h1>",
        f"<p>{escape(report['since'])} to {escape(report['until'])}, {escape(scope)}</p>",
        _coverage(report["coverage"]),
        *(_unopened(why, count) for why, count in sorted(report["unopened"].items())),
        _integrity(report["integrity"]),
    ]
    for name, heading, columns in TABLES:
        parts.append(f"<h2>{heading}</h2>{_table(report[name], columns)}")
    rows = [{"requirement": requirement, "asks for": asks, "answered by": where} for requirement, asks, where in ANSWERS]
    parts.append(f"<h2>What this answers</h2>{_table(rows, ('requirement', 'asks for', 'answered by'))}")
    parts.append('<p class="note">The text of ISO/IEC DIS 24970 was not at hand: its lines name subjects, not clauses.</p></body></html>')
    return "\n".join(parts) + "\n"


def _coverage(found: Mapping[str, Any]) -> str:
    """Each replica reports on the requests that it served."""
    if found["missing"] is None:
        return '<p class="bad">The store did not answer, so other replicas are not known. Their requests are not in this report.</p>'
    several = ", " in found["replica"]
    if not found["missing"]:
        if several:
            return f'<p class="note">Covers all replicas on the same store: {escape(found["replica"])}.</p>'
        return '<p class="note">There is no other replica on the same store.</p>'
    others = ", ".join(f"{one['id']} ({one['state']})" for one in found["missing"])
    these = "replicas" if several else "replica"
    return f'<p class="bad">Covers only the {these} {escape(found["replica"])}. Missing: the requests of {escape(others)}.</p>'


def _unopened(why: str, count: int) -> str:
    """A warning in the report: records that are encrypted as a whole and could not be decrypted are shown in part only."""
    return f'<p class="bad">{count} requests and events could not be decrypted ({escape(why)}): only what is in the clear is shown.</p>'


def _integrity(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return '<h2>Integrity</h2><p class="note">The log was not verified for this report.</p>'
    columns = ("writer", "segments", "lines", "checkpoints", "signed", "unsigned", "problems")
    rows = [{**writer, "problems": len(writer["problems"])} for writer in found["writers"]]
    if found["ok"]:
        said = '<p class="good">Every line is as it was written.</p>'
    else:
        first = found["first_problem"]
        said = f'<p class="bad">Altered or damaged: {escape(str(first["file"]))}:{first["line"]}: {escape(str(first["reason"]))}</p>'
    return f"<h2>Integrity</h2>{said}{_table(rows, columns)}"


def _table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    if not rows:
        return '<p class="note">None.</p>'
    head = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in columns)
    body = "".join("<tr>" + "".join(_cell(row.get(name, "")) for name in columns) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f'<td class="number">{value:,}</td>'
    return f"<td>{escape(str(value))}</td>"
