"""Permissions to infer: `infer:OPERATION:model/PATTERN`, each part a pattern with `*`; parts that are left out mean `*`.

`infer:chat:model/demo-*` · `infer:embeddings` (every model) · `infer:*` (everything) · `infer:chat:model/demo-chat@2` (calls that name
this version in their path). `infer:raw` is another name for `infer:completions`, whose prompts reach the model without its chat template.
"""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches
from typing import Final

from gateway.core.errors import ConfigError
from policies.patterns import matches, names

INFER: Final = "infer"
_MODEL: Final = "model/"
_ALIASES: Final = {"raw": "completions"}


class Permission:
    """One permission. operation, model: patterns; a model's may end in `@VERSION`."""

    __slots__ = ("model", "operation", "text")

    def __init__(self, text: str, operation: str = "*", model: str = "*") -> None:
        self.text, self.operation, self.model = text, operation, model

    def __repr__(self) -> str:
        return self.text

    def covers(self, operation: str, names_of_model: tuple[str, ...], version: str) -> bool:
        """Whether it allows an operation on a model, which may have several names (the one asked for, and the one that it stands for)."""
        return matches(self.operation, operation) and any(names(self.model, name, version) for name in names_of_model)

    def sees(self, names_of_model: tuple[str, ...]) -> bool:
        """Whether it allows any operation on any version of the model."""
        model, at, _ = self.model.rpartition("@")
        return any(matches(model if at else self.model, name) for name in names_of_model)

    @property
    def exact_model(self) -> str | None:
        """The one model it names, or None for a pattern."""
        model, at, _ = self.model.rpartition("@")
        model = model if at else self.model
        return None if "*" in model else model


def parse(text: str, operations: Collection[str]) -> Permission:
    """The permission that a text means. operations: the names of all operations. Raises ConfigError, naming what would be right."""
    head, _, rest = text.partition(":")
    if head != INFER or not rest:
        raise ConfigError(f"{text[:80]!r} is not a permission; write infer:OPERATION:model/PATTERN, such as infer:chat:model/demo-*")
    operation, colon, target = rest.partition(":")
    operation = _ALIASES.get(operation, operation)
    if not any(matches(operation, known) for known in operations):
        close = get_close_matches(operation, [*operations, *_ALIASES], 1, 0.5)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(sorted(operations))}"
        raise ConfigError(f"{text[:80]!r} names an unknown operation {operation[:40]!r}; {hint}")
    if not colon:
        return Permission(text, operation)
    if target == "*":
        return Permission(text, operation)
    if not target.startswith(_MODEL) or not target.removeprefix(_MODEL):
        raise ConfigError(f"{text[:80]!r} ends in {target[:40]!r}; write model/PATTERN, such as model/demo-*")
    return Permission(text, operation, target.removeprefix(_MODEL))
