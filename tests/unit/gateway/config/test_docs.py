"""docs/configuration.md: every example is a configuration, every setting is there with its default."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.app.configuration.plugins import OURS
from gateway.config.load import parse

DOCS = Path(__file__).parents[4] / "docs"
PAGES = {name: (DOCS / name).read_text() for name in ("configuration.md", "identity.md", "limits.md", "guardrails.md")}
EXAMPLES = [(name, block) for name, text in PAGES.items() for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
KEY = "k" * 40


@pytest.mark.parametrize(("page", "example"), EXAMPLES, ids=[f"{page} {n}" for n, (page, _) in enumerate(EXAMPLES)])
def test_every_example_is_a_configuration(page: str, example: str, tmp_path: Path) -> None:
    text = example
    if not re.search(r"^version:", text, re.MULTILINE):
        text += "version: 1\n"
    if not re.search(r"^identity:", text, re.MULTILINE):
        text += f"identity: {{api_keys: {{static: [{{id: ci, key: {KEY}, tenant: ci, models: ['*']}}]}}}}\n"
    for name in re.findall(r"\$\{file:([^}]+)\}", text):
        (tmp_path / name).write_text(f"{name}-{KEY}\n")
    parse(text, file=str(tmp_path / "gate.yaml"), environ={"MY_KEY": KEY, "PII_KEY": KEY}, schemas=OURS.schemas())


def test_there_are_examples() -> None:
    assert {page for page, _ in EXAMPLES} == set(PAGES)
