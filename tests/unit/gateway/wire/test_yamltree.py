"""Any text is a tree or a ConfigError; both of PyYAML's parsers agree."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.config.load import parse
from gateway.core.errors import ConfigError
from gateway.core.specs import ConfigSpec
from gateway.wire import yamltree
from gateway.wire.yamltree import MANY, Node, let_go, read

KEY = "k" * 40
GOOD = f"""\
version: 1
identity: {{api_keys: {{static: [{{id: ci, key: {KEY}, tenant: ci, models: ["*"]}}]}}}}
engines: [{{name: a, runtime: external, url: "http://h", timeouts: {{connect: 1s}}}}]
models: [{{name: m, pool: [a, {{engine: b}}]}}]
limits: [{{name: l, requests: {{rate: 1, per: 1s}}}}]
"""
SPICE = st.text(st.sampled_from(list("&*!|>'\"%@`{}[],:#?-\n\t ~<=.0aé\u2028\ufeff\x00\x07$")), max_size=12)


def plain(node: Node) -> Any:
    if node.kind == "mapping":
        return {key: plain(value) for key, value in node.entries.items()}
    return [plain(item) for item in node.items] if node.kind == "sequence" else (node.text, node.plain)


@settings(deadline=None)
@given(st.text(max_size=60) | SPICE)
@example("a: 1\n...\nb: 2")
@example("%YAML 9.9\n---\na: 1")
@example("? ")
@example("a: &x 1\nb: &x 2\nc: *x")
def test_any_text(text: str) -> None:
    try:
        read(text, file="f")
    except ConfigError as error:
        assert str(error).startswith("f")


@settings(deadline=None)
@given(st.integers(0, len(GOOD)), SPICE, st.integers(0, 5))
@example(50, "", 5)  # the key's value becomes a key of the mapping
def test_a_damaged_configuration_is_a_configuration_or_an_error(place: int, spice: str, cut: int) -> None:
    try:
        assert isinstance(parse(GOOD[:place] + spice + GOOD[place + cut :], file="f", environ={}), ConfigSpec)
    except ConfigError as error:
        assert str(error).startswith("f") and KEY not in str(error)


TEXTS = [
    GOOD,
    "a: 'x\n\n  y'\nb: |\n  z\n\nc: >-\n  d\n  e\n",
    "a: &x [1, '2']\nb: *x\n",
    '{"a": ["\\u00e9\\n", null, 1.5]}',
]


@pytest.mark.parametrize("text", TEXTS)
def test_the_parser_written_in_c_and_the_one_in_python_agree(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = plain(read(text, file="f"))
    monkeypatch.setattr(yamltree, "_LOADER", yaml.SafeLoader)
    assert plain(read(text, file="f")) == fast


def test_lines_are_those_of_the_file() -> None:
    root = read("a: 1\n\nb:\n  - c: 2\n    d: [3,\n      4]\n", file="f")
    member = root.entries["b"].items[0]
    assert (root.entries["a"].origin.line, member.entries["c"].origin.line, member.key_origins["d"].line) == (1, 4, 5)
    assert [item.origin.line for item in member.entries["d"].items] == [5, 6]


def test_plain_values_are_those_of_yaml_1_2_and_duplicates_are_refused() -> None:
    text = "on: [request]\nfrom: 2026-01-01\nat: 12:30\nanswer: no\ncount: 3\nshare: 0.5\nyes: true\nnone: ~\nquoted: '3'\n"
    assert yamltree.plain(read(text, file="f")) == {
        "on": ["request"],
        "from": "2026-01-01",
        "at": "12:30",
        "answer": "no",
        "count": 3,
        "share": 0.5,
        "yes": True,
        "none": None,
        "quoted": "3",
    }
    with pytest.raises(ConfigError, match="twice"):
        read("a: 1\na: 2\n", file="f")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a:\n\t- 1\n", "indent with spaces, not tabs"),
        ("a: {key: ${env:KEY}}\n", 'a reference needs quotes: "${env:NAME}"'),
        ("a: [${env:KEY}]\n", 'a reference needs quotes: "${env:NAME}"'),
        ("a:\n  - b: 1\n   - c: 2\n", "check the indentation"),
        ("a: b: c\n", "put quotes around a text that has a colon"),
    ],
)
def test_what_is_not_yaml_is_refused_with_what_is_usually_wrong(text: str, words: str):
    with pytest.raises(ConfigError, match="malformed YAML") as caught:
        read(text, file="f")
    assert str(caught.value).endswith(words)


def test_a_line_that_is_not_yaml_is_not_shown():
    with pytest.raises(ConfigError) as caught:
        read("a: {key: gh_secret}}\n", file="f")
    assert "gh_secret" not in str(caught.value)


def test_a_tree_ends_member_by_member_and_the_collector_never_looks_at_it():
    text = (
        "a: [" + ", ".join(f"{{n: {n}, deep: {{list: [1, 2]}}}}" for n in range(3 * MANY)) + "]\nb: {c: {d: [" + "x, " * 2 * MANY + "]}}\n"
    )
    root = read(text, file="f")
    listed, deep = root.entries["a"], root.entries["b"].entries["c"].entries["d"]
    assert not gc.is_tracked(root) and not gc.is_tracked(listed.items[0]) and not gc.is_tracked(root.origin)
    assert listed.items[0].origin is listed.items[-1].entries["n"].origin, "one line, one origin"
    last = listed.items[-1]
    let_go(root)
    assert not root.entries and not listed.items and not deep.items
    assert last.entries["n"].text == str(3 * MANY - 1), "a short one is left whole"


def test_origins_of_other_lines_are_others():
    root = read("a: 1\nb:\n  c: 2\nd: 3\n", file="f")
    assert [root.entries[key].origin.line for key in "abd"] == [1, 3, 4]
    assert [root.key_origins[key].line for key in "abd"] == [1, 2, 4]
