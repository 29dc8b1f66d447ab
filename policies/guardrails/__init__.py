"""The pure guardrails. To add one: a file here, a line in ROWS, a row in tests/contract/test_guardrail.py, a heading in
docs/guardrails.md."""

from __future__ import annotations

from typing import Final

from gateway.core.plugins import GuardrailRow
from policies.guardrails import content, denylist, language, tool_calls
from policies.guardrails.injection import guardrail as injection
from policies.guardrails.json_schema import guardrail as json_schema
from policies.guardrails.pii import guardrail as pii
from policies.guardrails.secrets import guardrail as secrets

ROWS: Final = (
    GuardrailRow(name="denylist", settings=denylist.DenyListSettings, build=denylist.build),
    GuardrailRow(name="pii", settings=pii.PiiSettings, build=pii.build),
    GuardrailRow(name="tool_calls", settings=tool_calls.ToolCallsSettings, build=tool_calls.build, judges=True),
    GuardrailRow(name="injection", settings=injection.InjectionSettings, build=injection.build),
    GuardrailRow(name="content", settings=content.ContentSettings, build=content.build),
    GuardrailRow(name="language", settings=language.LanguageSettings, build=language.build),
    GuardrailRow(name="json_schema", settings=json_schema.JsonSchemaSettings, build=json_schema.build, shapes=True),
    GuardrailRow(name="secrets", settings=secrets.SecretsSettings, build=secrets.build),
)
