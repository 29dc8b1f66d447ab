"""Conditions on the arguments of tool calls, in CEL as the conditions of bindings are (policies.conditions). What one reads:

    tool (the name under which the call is judged), arguments (the decoded JSON: `arguments.path`, `arguments["to"][0]`, or a text),
    kind (`call` or `result`), model, principal.id, .tenant, .user, .agent

An evaluation is bounded: CEL's own budget of steps, and arguments of at most MAX_ARGUMENTS characters and MAX_VALUES values. Arguments that
a tool may read otherwise than the condition does (policies.guardrails.tool_arguments) cannot be evaluated.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any, Final

import re2

from gateway.core.errors import ConfigError
from policies.guardrails.tool_arguments import Readings, Reads

MAX_LENGTH: Final = 4096
MAX_ARGUMENTS: Final = 32 * 1024
MAX_VALUES: Final = 4096
_PLACE: Final = re.compile(r"<input>:(\d+):(\d+): (.*)")
_PATTERN: Final = re.compile(r"""\.matches\(\s*r?(['"])(.*?)\1\s*\)""")


class ToolCondition:
    """One compiled expression. Immutable."""

    __slots__ = ("_expression", "_reads", "text")

    def __init__(self, text: str, expression: Any, reads: Reads) -> None:
        self.text, self._expression, self._reads = text, expression, reads

    def holds(self, facts: dict[str, Any] | None, otherwise: bool) -> bool:
        """Whether it is true; `otherwise` where it cannot be evaluated: a field is missing or its name is spelled otherwise, too many
        steps, `facts` is None."""
        if facts is None or self._reads.doubtful(facts["arguments"]):
            return otherwise
        try:
            found = self._expression.eval(data=facts).value()
        except (RuntimeError, ValueError, OverflowError, TypeError):
            return otherwise
        return found if isinstance(found, bool) else otherwise


class ToolLanguage:
    """The environment in which such conditions are compiled. Loads the library: about 12 MiB."""

    def __init__(self) -> None:
        self._cel: Any = import_module("cel_expr_python.cel")
        kind = self._cel.Type
        text = kind.STRING
        variables = {"tool": text, "arguments": kind.DYN, "kind": text, "model": text, "principal": kind.Map(text, text)}
        self._environment = self._cel.NewEnv(variables=variables)
        self._readings = Readings()

    def compile(self, text: str) -> ToolCondition:
        """Raises ConfigError with the place in the text for an expression that is wrong, or that is not a yes or no."""
        if len(text) > MAX_LENGTH:
            raise ConfigError(f"has {len(text)} characters; a condition has at most {MAX_LENGTH}")
        for found in _PATTERN.finditer(text):
            try:
                re2.compile(found[2].encode().decode("unicode_escape", "replace"))
            except re2.error as error:
                raise ConfigError(f"matches({found[2][:60]!r}) is not a regular expression of RE2: {error}") from None
        try:
            expression = self._environment.compile(text)
        except (RuntimeError, ValueError) as error:
            raise ConfigError(_readable(str(error))) from None
        if expression.return_type() != self._cel.Type.BOOL:
            raise ConfigError("is not a condition: it must be true or false, such as arguments.amount <= 100")
        return ToolCondition(text, expression, self._readings.of(expression))


def bounded(value: Any) -> bool:
    """Whether a decoded value has few enough values to be evaluated on."""
    waiting, count = [value], 0
    while waiting:
        one = waiting.pop()
        count += 1
        if count > MAX_VALUES:
            return False
        if isinstance(one, dict):
            waiting.extend(one.values())
        elif isinstance(one, list):
            waiting.extend(one)
    return True


def _readable(message: str) -> str:
    """The first error of the compiler in one line."""
    found = _PLACE.search(message)
    if found is None:
        return f"cannot be compiled: {message[:200]}"
    what = found[3].partition(" [")[0].replace(" (in container '')", "")
    if what.startswith("undeclared reference to"):
        what += "; there are tool, arguments, kind, model, principal"
    where = f"column {found[2]}" if found[1] == "1" else f"line {found[1]}, column {found[2]}"
    return f"{where}: {what[:200]}"
