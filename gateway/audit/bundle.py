"""Evidence bundles: what the log proves about one request, with the policy that decided it, in one ZIP file. Everything here blocks.

`proofs.json` has the proofs of the request's records, and as `context` those of the events that say which policy was in force and which
model file the engine had loaded. `context.json` says what follows from them: each claim names the record and the place in it that it comes
from; a text counts as proven when a proven record has its hash. `manifest.json` has the SHA-256 of every file. scripts/verify-proof reads
all of it.
"""

from __future__ import annotations

import io
import zipfile
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.audit.crypto import Signer
from gateway.audit.entries import may_end
from gateway.audit.opening import CLOSED, Opener
from gateway.audit.policy_files import read_policy
from gateway.audit.proof import Place, places, prove, prove_line, told
from gateway.audit.signing_keys import endorsements
from gateway.core.clock import Clock
from gateway.core.errors import AuditUnproven

POLICY_EVENT: Final = "policy_in_force"
ENGINE_EVENT: Final = "engine_ready"
MARGIN: Final = 60.0
"""Seconds by which a policy's event may be later than the first request that it decided."""
MOST: Final = 64 * 1024 * 1024
"""Bytes of a policy's text in a bundle."""


def bundle(directory: Path, policies: Path, signer: Signer, clock: Clock, request_id: str, opener: Opener = CLOSED) -> bytes | None:
    """The ZIP file for a request; None where the log has no record of it. policies: the folder of their texts. opener: of records that were
    encrypted as a whole. Raises AuditUnproven, OSError, GatehouseError."""
    proofs = prove(directory, signer, clock, request_id, opener)
    if not proofs:
        return None
    records = [told(proof) for proof in proofs]
    intent, outcome = _request(records)
    context = _events(directory, signer, clock, intent, outcome, opener)
    says = {"request_id": request_id, "claims": _claims(intent, outcome, context), "texts": _texts(policies, context)}
    files = {
        "proofs.json": _json(
            {
                "request_id": request_id,
                "proofs": proofs,
                "context": context,
                "keys": [msgspec.to_builtins(one) for one in endorsements(directory)],
            }
        ),
        "context.json": _json(says),
    }
    digests = {name: sha256(data).hexdigest() for name, data in files.items()}
    files["manifest.json"] = _json({"request_id": request_id, "made": clock.wall(), "files": digests})
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as made:
        for name, data in files.items():
            made.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return target.getvalue()


def _request(records: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The first request's intent and outcome. Callers choose ids: what another tenant or caller did under the same one is no part of it."""
    intent: dict[str, Any] = next((one for one in records if one["kind"] == "intent"), {})
    outcomes = [one for one in records if one["kind"] == "outcome"]
    if not intent:
        return {}, next(iter(outcomes), {})
    who = intent.get("tenant", ""), intent.get("principal", "")
    fit = (one for one in outcomes if not one.get("peer") and may_end(*who, one.get("tenant", ""), one.get("principal", "")))
    return intent, next((one for one in fit if one["time"] >= intent["time"]), {})


def _events(
    directory: Path, signer: Signer, clock: Clock, intent: dict[str, Any], outcome: dict[str, Any], opener: Opener
) -> list[dict[str, Any]]:
    """The proofs of the newest events before the request that name its policy and its engine's model file. One that cannot be proven yet is
    left out."""
    newest: dict[str, tuple[float, Place]] = {}
    needles = [b'"event":"%b"' % name.encode() for name in (POLICY_EVENT, ENGINE_EVENT)]
    limits = {POLICY_EVENT: float(intent.get("time", 0.0)) + MARGIN, ENGINE_EVENT: float(outcome.get("time", 0.0))}
    for place in places(directory, needles):
        record: dict[str, Any] = msgspec.json.decode(opener.line(place.writer, place.line))
        event, time, detail = record.get("event", ""), float(record.get("time", 0.0)), record.get("detail") or {}
        wanted = (event == POLICY_EVENT and detail.get("version") == intent.get("config", 0)) or (
            event == ENGINE_EVENT and record.get("target") == outcome.get("endpoint") and bool(detail.get("sha256"))
        )
        if wanted and time <= limits[event] and (event not in newest or time >= newest[event][0]):
            newest[event] = time, place
    found = []
    for _, place in newest.values():
        try:
            found.append(prove_line(directory, signer, clock, place, opener))
        except AuditUnproven:
            continue
    return found


def _claims(intent: dict[str, Any], outcome: dict[str, Any], context: list[dict[str, Any]]) -> list[dict[str, Any]]:
    events = {proof["record"]["event"]: told(proof) for proof in context}
    named = (
        ("tenant", intent or outcome, ("tenant",)),
        ("principal", intent or outcome, ("principal",)),
        ("model", intent or outcome, ("model",)),
        ("rule", intent or outcome, ("rule",)),
        ("configuration version", intent, ("config",)),
        ("route", outcome, ("endpoint",)),
        ("attempts", outcome, ("attempts",)),
        ("outcome", outcome, ("outcome",)),
        ("reason", outcome, ("code",)),
        ("on its way", outcome, ("route",)),
        ("finish reason", outcome, ("finish",)),
        ("policy", events.get(POLICY_EVENT, {}), ("detail", "sha256")),
        ("model file's sha256", events.get(ENGINE_EVENT, {}), ("detail", "sha256")),
    )
    found = []
    for name, record, path in named:
        value: Any = record
        for step in path:
            value = value.get(step) if isinstance(value, dict) else None
        if value not in (None, ""):
            found.append({"name": name, "value": value, "hash": record["hash"], "path": list(path)})
    return found


def _texts(policies: Path, context: list[dict[str, Any]]) -> list[dict[str, str]]:
    digest = next((told(proof)["detail"]["sha256"] for proof in context if proof["record"]["event"] == POLICY_EVENT), "")
    text = read_policy(policies, digest, MOST) if digest else None
    return [] if text is None else [{"name": "policy", "sha256": digest, "text": text.decode()}]


def _json(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=1)
