"""The patterns of settings in words: each that the configuration or the admin API has is explained, and no other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import inspect

from admin.openapi import describe
from admin.resources import table
from gateway.app.configuration.plugins import installed
from gateway.core.patterns import WORDS, words
from gateway.core.specs import ConfigSpec

EMPTY = r"^$|"
"""Patterns of writers' places in the audit log, which the program makes and nobody types."""


def patterns(kind: inspect.Type, seen: set[type]) -> Iterator[str]:
    if isinstance(kind, inspect.Metadata):
        yield from patterns(kind.type, seen)
    elif isinstance(kind, inspect.UnionType):
        for one in kind.types:
            yield from patterns(one, seen)
    elif isinstance(kind, inspect.VarTupleType | inspect.ListType):
        yield from patterns(kind.item_type, seen)
    elif isinstance(kind, inspect.DictType):
        yield from patterns(kind.key_type, seen)
        yield from patterns(kind.value_type, seen)
    elif isinstance(kind, inspect.StructType) and kind.cls not in seen:
        seen.add(kind.cls)
        for field in kind.fields:
            yield from patterns(field.type, seen)
    elif isinstance(kind, inspect.StrType) and kind.pattern is not None:
        yield kind.pattern


def documented(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if value.get("in") == "header":
            return
        if isinstance(value.get("pattern"), str):
            yield value["pattern"]
        value = [member for name, member in value.items() if name != "headers"]
    if isinstance(value, list):
        for member in value:
            yield from documented(member)


def settings() -> Iterator[type]:
    """The settings of the file, and of everything that its plug-ins may have."""
    yield ConfigSpec
    schemas = installed().schemas()
    for known in (schemas.authenticators, schemas.guardrails, schemas.sinks, schemas.engines, schemas.selectors, schemas.exporters):
        yield from known.values()


CONFIGURATION = {pattern for one in settings() for pattern in patterns(inspect.type_info(one), set())}
API = {pattern for pattern in documented(describe(table.operations())) if not pattern.startswith(EMPTY)}


def test_there_are_patterns() -> None:
    assert len(CONFIGURATION) > 20
    assert len(API) > 20


def test_every_pattern_is_explained_and_no_other() -> None:
    assert sorted((CONFIGURATION | API) ^ set(WORDS)) == []


@pytest.mark.parametrize("pattern", WORDS)
def test_a_pattern_is_one_and_its_words_end_a_sentence(pattern: str) -> None:
    re.compile(pattern)
    assert not WORDS[pattern].endswith(".")


def test_a_pattern_without_words_is_shown_itself() -> None:
    assert words("^x+$") == "a text that matches ^x+$"
