"""The guardrails that do I/O. To add one: a file here, a line in ROWS, a row in tests/contract/test_guardrail.py, a heading in
docs/guardrails.md."""

from __future__ import annotations

from typing import Final

from gateway.core.plugins import GuardrailRow
from gateway.guardrails import classifier, entities, http, judge, topics

ROWS: Final = (
    GuardrailRow(name="http", settings=http.HttpSettings, build=http.build),
    GuardrailRow(name="classifier", settings=classifier.ClassifierSettings, build=classifier.build, asks=True, moderates=True),
    GuardrailRow(name="entities", settings=entities.EntitiesSettings, build=entities.build, asks=True),
    GuardrailRow(name="topics", settings=topics.TopicsSettings, build=topics.build, asks=True),
    GuardrailRow(name="judge", settings=judge.JudgeSettings, build=judge.build, asks=True, moderates=True),
)
