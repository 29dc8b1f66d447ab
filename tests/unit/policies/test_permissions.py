"""Permissions to infer."""

from __future__ import annotations

import pytest

from gateway.core.errors import ConfigError
from policies.permissions import parse

OPERATIONS = ("chat", "completions", "embeddings", "infer")


@pytest.mark.parametrize(
    ("text", "operation", "model", "version", "covered"),
    [
        ("infer:*", "chat", "demo", "", True),
        ("infer:*", "infer", "demo", "3", True),
        ("infer:chat", "chat", "demo", "", True),
        ("infer:chat", "embeddings", "demo", "", False),
        ("infer:chat:*", "chat", "demo", "", True),
        ("infer:c*:model/demo-*", "completions", "demo-chat", "", True),
        ("infer:chat:model/demo-*", "chat", "demo-chat", "", True),
        ("infer:chat:model/demo-*", "chat", "other", "", False),
        ("infer:*:model/demo@2", "infer", "demo", "2", True),
        ("infer:*:model/demo@2", "infer", "demo", "", False),
        ("infer:raw", "completions", "demo", "", True),
        ("infer:raw", "chat", "demo", "", False),
    ],
)
def test_what_a_permission_covers(text: str, operation: str, model: str, version: str, covered: bool) -> None:
    assert parse(text, OPERATIONS).covers(operation, (model,), version) is covered


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "write infer:OPERATION:model/PATTERN"),
        ("infer", "write infer:OPERATION:model/PATTERN"),
        ("infer:", "write infer:OPERATION:model/PATTERN"),
        ("admin:keys:write", "write infer:OPERATION:model/PATTERN"),
        ("infer:chatt", "did you mean 'chat'?"),
        ("infer:zzz", "there are chat, completions, embeddings, infer"),
        ("infer:chat:demo", "write model/PATTERN"),
        ("infer:chat:model/", "write model/PATTERN"),
    ],
)
def test_what_is_no_permission(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("?", r"\?").replace("*", r"\*")):
        parse(text, OPERATIONS)


def test_an_alias_is_covered_by_a_permission_for_its_model() -> None:
    permission = parse("infer:chat:model/demo", OPERATIONS)
    assert permission.covers("chat", ("alias", "demo"), "") and permission.sees(("alias", "demo"))
    assert permission.exact_model == "demo" and parse("infer:chat:model/d*", OPERATIONS).exact_model is None
