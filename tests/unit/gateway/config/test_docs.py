"""Every example of YAML in the documentation is a configuration that loads, with the files and variables that it names."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent

import pytest

from gateway.app.configuration.plugins import OURS
from gateway.config.load import parse
from gateway.config.machine import load_machine
from gateway.core.asking import NobodyToAsk

ROOT = Path(__file__).parents[4]
PAGES = {page.name: page.read_text(encoding="utf-8") for page in [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]}
OTHERS = {
    ("access.md", "cases:"): "cases of `gatehouse policies test`",
    ("clients.md", "name: Gatehouse"): "settings of a client",
    ("plugins.md", "identity:"): "needs the plug-in that the page writes",
    ("plugins.md", "hooks:"): "needs the plug-in that the page writes",
}
"""Examples that are no configuration of Gatehouse alone, by page and first line."""
EXAMPLES = [
    (name, block)
    for name, text in PAGES.items()
    for block in (dedent(found) for _, found in re.findall(r"^( *)```yaml\n(.*?)^\1```", text, re.DOTALL | re.MULTILINE))
    if (name, block.split("\n")[0]) not in OTHERS
]
KEY = "k" * 40
VARIABLES = {"GATEHOUSE_STORE_URL": "postgresql://gatehouse@db/gatehouse?sslmode=verify-full&sslrootcert=/etc/ssl/db-ca.pem"}


@pytest.mark.parametrize(("page", "example"), EXAMPLES, ids=[f"{page} {n}" for n, (page, _) in enumerate(EXAMPLES)])
def test_every_example_is_a_configuration(page: str, example: str, tmp_path: Path) -> None:
    if "gatehouse-machine" in example:
        (tmp_path / "machine.yaml").write_text(example)
        load_machine(tmp_path / "machine.yaml", {}, OURS.schemas())
        return
    text = example
    if not re.search(r"^version:", text, re.MULTILINE):
        text += "version: 1\n"
    if not re.search(r"^identity:", text, re.MULTILINE):
        text += f"identity: {{api_keys: {{static: [{{id: ci, key: {KEY}, tenant: ci, models: ['*']}}]}}}}\n"
    for name in re.findall(r"\$\{file:([^}]+)\}", text):
        mine = name.lstrip("/").replace("/", "-")
        (tmp_path / mine).write_text(f"{mine}-{KEY}\n")
        text = text.replace(f"${{file:{name}}}", f"${{file:{mine}}}")
    environ = {name: VARIABLES.get(name, f"{name}-{KEY}") for name in re.findall(r"\$\{env:(\w+)\}", text)}
    spec = parse(text, file=str(tmp_path / "gate.yaml"), environ=environ, schemas=OURS.schemas())

    for guardrail in spec.guardrails:
        OURS.guardrail(guardrail, lambda name: "a phrase of a file\n", asker=NobodyToAsk())


def test_examples_are_found_and_others_are_still_there() -> None:
    assert len(EXAMPLES) > 110
    for page, first in OTHERS:
        assert f"```yaml\n{first}\n" in PAGES[page]
