"""The pure guardrails. To add one: a file here, a line in ROWS, a row in tests/contract/test_guardrail.py, a heading in
docs/guardrails.md."""

from __future__ import annotations

from typing import Final

from gateway.core.plugins import GuardrailRow
from policies.guardrails import denylist
from policies.guardrails.pii import guardrail as pii

ROWS: Final = (
    GuardrailRow(name="denylist", settings=denylist.DenyListSettings, build=denylist.build),
    GuardrailRow(name="pii", settings=pii.PiiSettings, build=pii.build),
)
