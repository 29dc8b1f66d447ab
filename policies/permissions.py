"""Permissions: what a role allows. Each part of one is a pattern with `*`; parts that are left out mean `*`.

`infer:OPERATION:model/PATTERN`, on the data listener: `infer:chat:model/demo-*` · `infer:embeddings` (every model) · `infer:*` (everything)
· `infer:chat:model/demo-chat@2` (calls that name this version in their path). `infer:raw` is another name for `infer:completions`, whose
prompts reach the model without its chat template.

`admin:RESOURCE:ACTION`, on the admin listener: `admin:keys:read` · `admin:keys:*` · `admin:*`. `write` means every action but `read`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches
from typing import Final

from gateway.core.errors import ConfigError
from policies.patterns import matches, names

INFER: Final = "infer"
ADMIN: Final = "admin"
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

    def sees(self, names_of_model: tuple[str, ...], operation: str = "") -> bool:
        """Whether it allows an operation, by default any, on any version of the model."""
        model, at, _ = self.model.rpartition("@")
        if operation and not matches(self.operation, operation):
            return False
        return any(matches(model if at else self.model, name) for name in names_of_model)

    @property
    def exact_model(self) -> str | None:
        """The one model it names, or None for a pattern."""
        model, at, _ = self.model.rpartition("@")
        model = model if at else self.model
        return None if "*" in model else model


class Rights:
    """All that a role permits. infer: on the data listener. admin: on the admin listener, each as `RESOURCE:ACTION`.

    confined: what belongs to a tenant is reached in its holder's own tenant only.
    """

    __slots__ = ("admin", "confined", "infer")

    def __init__(self, infer: tuple[Permission, ...] = (), admin: frozenset[str] = frozenset(), confined: bool = True) -> None:
        self.infer, self.admin, self.confined = infer, admin, confined


def rights(texts: Iterable[str], operations: Collection[str], administrative: Collection[str], confined: bool = True) -> Rights:
    """What these permissions mean together. administrative: all that there are, each as `RESOURCE:ACTION`. Raises ConfigError."""
    infer: list[Permission] = []
    admin: set[str] = set()
    for text in texts:
        if text.partition(":")[0] == ADMIN:
            admin |= administration(text, administrative)
        else:
            infer.append(parse(text, operations))
    return Rights(tuple(infer), frozenset(admin), confined)


def administration(text: str, known: Collection[str]) -> frozenset[str]:
    """The known permissions, each as `RESOURCE:ACTION`, that `admin:RESOURCE:ACTION` means. Raises ConfigError where that is none."""
    resource, colon, action = text.removeprefix(f"{ADMIN}:").partition(":")
    if not text.startswith(f"{ADMIN}:") or not resource or (colon and not action):
        raise ConfigError(f"{text[:80]!r} is not a permission; write admin:RESOURCE:ACTION, such as admin:keys:read")
    there = {one for one in known if matches(resource, one.partition(":")[0])}
    if not there:
        resources = {one.partition(":")[0] for one in known}
        raise ConfigError(f"{text[:80]!r} names an unknown resource {resource[:40]!r}; {_nearest(resource, resources)}")
    wanted = action or "*"
    found = {one for one in there if _acts(wanted, one.partition(":")[2])}
    if not found:
        actions = {one.partition(":")[2] for one in there} | {"write"}
        raise ConfigError(f"{text[:80]!r} names an unknown action {wanted[:40]!r}; {_nearest(wanted, actions)}")
    return frozenset(found)


def _acts(wanted: str, action: str) -> bool:
    return action != "read" if wanted == "write" else matches(wanted, action)


def _nearest(name: str, known: Collection[str]) -> str:
    close = get_close_matches(name, known, 1, 0.5)
    return f"did you mean {close[0]!r}?" if close else f"there are {', '.join(sorted(known))}"


def parse(text: str, operations: Collection[str]) -> Permission:
    """The permission to infer that a text means. operations: the names of all. Raises ConfigError, naming what would be right."""
    head, _, rest = text.partition(":")
    if head != INFER or not rest:
        raise ConfigError(
            f"{text[:80]!r} is not a permission; write infer:OPERATION:model/PATTERN, such as infer:chat:model/demo-*, or"
            " admin:RESOURCE:ACTION, such as admin:keys:read"
        )
    operation, colon, target = rest.partition(":")
    operation = _ALIASES.get(operation, operation)
    if not any(matches(operation, known) for known in operations):
        hint = _nearest(operation, [*operations, *_ALIASES])
        raise ConfigError(f"{text[:80]!r} names an unknown operation {operation[:40]!r}; {hint}")
    if not colon:
        return Permission(text, operation)
    if target == "*":
        return Permission(text, operation)
    if not target.startswith(_MODEL) or not target.removeprefix(_MODEL):
        raise ConfigError(f"{text[:80]!r} ends in {target[:40]!r}; write model/PATTERN, such as model/demo-*")
    return Permission(text, operation, target.removeprefix(_MODEL))
