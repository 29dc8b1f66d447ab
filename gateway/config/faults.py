"""Several faults of one configuration, told at once: whoever mends one file need not run the check once for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar, cast

from gateway.core.errors import ConfigError

T = TypeVar("T")
MOST: Final = 20
"""Faults that are told of one configuration."""


def joined(faults: Sequence[ConfigError]) -> ConfigError:
    """The first of them, which has the others, MOST in all."""
    first, *others = faults
    first.others = tuple(others[: MOST - 1])
    return first


class _Enough(Exception):
    """So many faults were found that no further one is looked for."""


class Faults:
    """Gathers the faults of one reading. Outside of `gathered`, each is raised at once."""

    def __init__(self) -> None:
        self._found: list[ConfigError] | None = None

    def __len__(self) -> int:
        return len(self._found or ())

    def gathered(self, read: Callable[[], T]) -> T:
        """What is read. Raises ConfigError for the first fault, with all others."""
        found: list[ConfigError] = []
        self._found = found
        try:
            with suppress(_Enough):
                value = self.tried(None, read)
        finally:
            self._found = None
        if found:
            raise joined(found)
        return cast(T, value)

    def add(self, error: ConfigError) -> None:
        if self._found is None:
            raise error
        self._found += [error, *error.others]
        if len(self._found) >= MOST:
            raise _Enough

    def tried(self, otherwise: Any, read: Callable[[], Any]) -> Any:
        """The value that `read` returns. If it raises ConfigError, notes that and returns `otherwise`, which stands in for it only until
        the faults are raised."""
        try:
            return read()
        except ConfigError as error:
            self.add(error)
            return otherwise


def each(rules: Iterable[Callable[[], None]]) -> None:
    """Applies every rule. Raises ConfigError for the first fault, with what the rules behind it find."""
    found: list[ConfigError] = []
    for rule in rules:
        try:
            rule()
        except ConfigError as fault:
            found += [fault, *fault.others]
            if len(found) >= MOST:
                break
        except Exception:  # boundary: a rule may count on what a rule before it has refused
            if not found:
                raise
    if found:
        raise joined(found)


def unique(names: Iterable[str], path: str, what: str, error: Callable[[str, str], ConfigError], name: str = "name") -> None:
    """Raises ConfigError where a name appears twice. error: (path, message) -> the error with its file and line."""
    seen: dict[str, int] = {}
    for index, value in enumerate(names):
        if value in seen:
            raise error(f"{path}[{index}].{name}", f"the {what} '{value}' appears twice; the first is {path}[{seen[value]}]")
        seen[value] = index
