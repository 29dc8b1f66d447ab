"""Decides whose texts a process keeps. The same in the process with the store and in a worker, so it loads nothing of the store."""

from __future__ import annotations

from gateway.audit.keyring import KeyRing
from gateway.audit.sealing import Pending
from gateway.core.specs import AuditSpec
from gateway.pipeline.capture import RecordKeys, Texts
from policies.patterns import matches


def records_of(spec: AuditSpec, ring: KeyRing | None) -> RecordKeys | None:
    """None where records are not encrypted as a whole."""
    return None if ring is None or spec.encryption is None or spec.encryption.scope != "record" else RecordKeys(ring)


def texts_of(spec: AuditSpec, ring: KeyRing | None) -> Texts | None:
    """None where nothing is encrypted: then no text is kept, whatever a rule or an operator says."""
    return None if spec.encryption is None or ring is None else Texts(spec.text, ring, Pending, matches)
