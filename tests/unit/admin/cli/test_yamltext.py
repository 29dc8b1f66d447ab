"""What commands write as YAML is read as it was, by Gatehouse and by readers of YAML 1.1."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from admin.cli.output import Format, Output
from admin.cli.yamltext import written
from gateway.wire import yamltree

SHARED = {"a": [1]}


def again(value: Any) -> Any:
    return yamltree.plain(yamltree.read(written({"value": value}), file=None))["value"]


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cs"])))
def test_every_text_is_read_as_it_was(text: str) -> None:
    assert again(text) == text
    assert yaml.safe_load(written({"value": text})) == {"value": text}


@pytest.mark.parametrize("text", ["x\x85y", "x\u2028y", "x\u2029y", "1e5", "0o17", "no", "2026-01-01", "12:30", "~", "${env:X}"])
def test_what_looks_like_something_else_stays_a_text(text: str) -> None:
    assert again(text) == text


def test_nothing_is_written_as_a_reference_to_another_place() -> None:
    assert "&" not in written([SHARED, SHARED])


def test_commands_print_it(capsys: pytest.CaptureFixture[str]) -> None:
    Output(Format.yaml).data({"name": "1e5", "text": "a\x85b"})
    assert yamltree.plain(yamltree.read(capsys.readouterr().out, file=None)) == {"name": "1e5", "text": "a\x85b"}
