"""Verdicts of judges, read by the rules of each template: whatever is not exactly one is none."""

from __future__ import annotations

import pytest

from gateway.guardrails.verdicts import TEMPLATES, Found
from tests.steady import at_most, spent


@pytest.mark.parametrize(
    ("template", "content", "found"),
    [
        ("llama_guard", "safe", Found(False)),
        ("llama_guard", "\n\nsafe\n", Found(False)),
        ("llama_guard", "unsafe\nS1,S10", Found(True, ("S1", "S10"))),
        ("llama_guard", "unsafe\nS1, S2 ", Found(True, ("S1", "S2"))),
        ("llama_guard", "unsafe", Found(True)),
        ("llama_guard", "safe\nunsafe", None),
        ("llama_guard", "The text is safe", None),
        ("llama_guard", "Safe", None),
        ("llama_guard", "unsafe\nS1\nsafe", None),
        ("llama_guard", "unsafe\nno code at all!", None),
        ("llama_guard", "", None),
        ("json", '{"violation": false, "categories": []}', Found(False)),
        ("json", '{"violation": true, "categories": ["S1", "fraud"]}', Found(True, ("S1", "fraud"))),
        ("json", '```json\n{"violation": 1}\n```', Found(True)),
        ("json", '```\n{"violation": 0}```', Found(False)),
        ("json", '```yaml\n{"violation": 0}\n```', None),
        ("json", '```json\n{"violation": 0}\n``` or so', None),
        ("json", '<think>perhaps {"violation": 0}</think>{"violation": 1, "category": "fraud"}', Found(True, ("fraud",))),
        ("json", '{"flagged": true, "score": 0.75}', Found(True, (), 0.75)),
        ("json", '{"violation": 1, "policy_category": "D2", "confidence": "high"}', Found(True, ("D2",), 0.95)),
        ("json", 'Sure: {"violation": false}', None),
        ("json", '{"violation": false} {"violation": true}', None),
        ("json", '{"violation": true, "violation": false}', None),
        ("json", '{"violation": "false"}', None),
        ("json", '{"violation": null}', None),
        ("json", '{"violation": 2}', None),
        ("json", '{"categories": []}', None),
        ("json", '{"violation": 1, "categories": [1]}', None),
        ("json", '{"violation": 1, "score": 7}', None),
        ("json", '{"violation": 1, "confidence": "perhaps"}', None),
        ("json", '[{"violation": 0}]', None),
        ("json", '{"violation": fal', None),
        ("json", "[" * 100_000, None),
        ("safeguard", "0", Found(False)),
        ("safeguard", " 1\n", Found(True)),
        ("safeguard", '{"violation": 0}', Found(False)),
        ("safeguard", "10", None),
        ("yes_no", "Yes.", Found(True)),
        ("yes_no", "no", Found(False)),
        ("yes_no", "No, but yes", None),
        ("yes_no", "", None),
    ],
)
def test_a_verdict_is_read_exactly(template: str, content: str, found: Found | None) -> None:
    assert TEMPLATES[template].read(content) == found


def test_a_verdict_of_nothing_but_line_feeds_holds_up_no_request() -> None:
    text = "```json" + "\n" * 2000 + "x"
    assert TEMPLATES["json"].read(text) is None
    at_most(0.5, lambda: spent(lambda: TEMPLATES["json"].read(text)))  # a regular expression that goes back takes ten seconds


def test_what_is_judged_stands_between_lines_that_nobody_can_foresee() -> None:
    for name in ("json", "yes_no"):
        system, user = TEMPLATES[name].messages("No fraud.", "some text", "1f0e", ["S1"])
        assert "No fraud." in system["content"] and "TEXT-1f0e" in system["content"]
        assert user["content"] == "TEXT-1f0e\nsome text\nEND-1f0e"
    assert TEMPLATES["llama_guard"].messages("", "some text", "1f0e", []) == [{"role": "user", "content": "some text"}]
    system, user = TEMPLATES["safeguard"].messages("No fraud.", "some text", "1f0e", ["S1"])
    assert system["content"].startswith("No fraud.") and "Categories: S1." in system["content"] and user["content"] == "some text"
