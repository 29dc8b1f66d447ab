"""The pure guardrails. To add one: a file here, a line in ROWS, a row in tests/contract/test_guardrail.py, a heading in
docs/guardrails.md."""

from __future__ import annotations

from typing import Final

from gateway.core.plugins import GuardrailRow
from policies.guardrails import denylist, tool_calls
from policies.guardrails.pii import guardrail as pii

ROWS: Final = (
    GuardrailRow(name="denylist", settings=denylist.DenyListSettings, build=denylist.build),
    GuardrailRow(name="pii", settings=pii.PiiSettings, build=pii.build),
    GuardrailRow(name="tool_calls", settings=tool_calls.ToolCallsSettings, build=tool_calls.build, judges=True),
)
