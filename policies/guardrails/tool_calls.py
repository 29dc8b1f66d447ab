"""The guardrail on tools: rules by the tool's name and its arguments say what an answer may call, and what a request may offer and bring.

Rules are tried in their order; the first that fits says what happens, and without one `default` does. A tool counts under each name that an
engine or a client may take for its own, also in other letters' case and without invisible characters: the strictest finding counts. What
cannot be read in one way only is blocked. A condition that cannot be evaluated counts as met in rules that hold or block, and as not met in
rules that allow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from gateway.core.canonical import canonical, digest, parsed
from gateway.core.errors import ConfigError
from gateway.core.plugins import Context
from gateway.core.specs import Timeout
from gateway.core.specs.base import Spec
from gateway.core.tools import SEVERITY, Action, Kind, Reversibility, ToolFinding, ToolUse
from gateway.core.types import ALLOW, Principal, Verdict
from policies.guardrails.folding import fold
from policies.guardrails.tool_arguments import loose
from policies.guardrails.tool_conditions import MAX_ARGUMENTS, ToolCondition, ToolLanguage, bounded
from policies.patterns import matches

MAX_NAME: Final = 256
"""Characters of a tool's name. OpenAI's API allows 64; no tool has a longer one than this."""
PREFIXES: Final = ("functions.", "functions::", "tools.", "default_api.")
"""What some models put before a name, and some clients take away again."""
WRAPPER: Final = "multitooluse"
"""Within a name as `loose` writes it: `multi_tool_use.parallel`, whose arguments are calls of other tools."""
Glob = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
Subject = Annotated[str, Meta(pattern=r"^(user|group|role|key)/[^\s].{0,254}$")]


class ToolRule(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """tool: names, `*` is any run of characters. of: calls in answers, the definitions that a request offers, the results that it brings.
    when: a condition on the arguments. reversibility: whether what the tool does can be taken back, for those who decide; a call of a tool
    that any rule names `irreversible` is held at least."""

    tool: Glob | tuple[Glob, ...] = "*"
    of: tuple[Kind, ...] = ("call", "result")
    when: str | None = None
    action: Action
    reversibility: Reversibility = "unknown"


class ToolCallsSettings(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """rules: tried in their order. default: what happens without one that fits. approvers: who may decide about what is held; without any,
    whoever has the permission `approvals:decide`. expires: how long it is kept."""

    rules: Annotated[tuple[ToolRule, ...], Meta(max_length=1000)] = ()
    default: Literal["allow", "block", "hold"] = "block"
    approvers: Annotated[tuple[Subject, ...], Meta(max_length=100)] = ()
    expires: Timeout = 600.0


class _Rule:
    """A rule, ready to be asked."""

    __slots__ = ("action", "condition", "folded", "kinds", "number", "patterns", "reversibility")

    def __init__(self, number: int, spec: ToolRule, condition: ToolCondition | None) -> None:
        self.number, self.action, self.condition = number, spec.action, condition
        self.kinds, self.reversibility = frozenset(spec.of), spec.reversibility
        self.patterns = (spec.tool,) if isinstance(spec.tool, str) else spec.tool
        self.folded = tuple(fold(pattern) for pattern in self.patterns)


class _Read:
    """The arguments of one use, decoded. fault: why they have no canonical form. facts: for conditions; None where they are too many."""

    __slots__ = ("fault", "sha256", "value")

    def __init__(self, use: ToolUse) -> None:
        self.fault, self.sha256, self.value = use.unreadable, "", ""
        if use.kind == "definition" or self.fault:
            return
        try:
            self.value = value_of(use)
            self.sha256 = digest(self.value)
        except ValueError as error:
            self.fault = str(error)


def value_of(use: ToolUse) -> Any:
    """The arguments of a call, or the content of a result: decoded where it is a JSON object or list, else the text itself. Raises
    ValueError where it can be read in more than one way."""
    text = use.arguments
    if use.free or text.strip()[:1] not in ("{", "["):
        text.encode()  # half a surrogate pair is a ValueError
        return text
    try:
        return parsed(text)
    except ValueError:
        if use.kind == "result":
            return text  # a program wrote it; it need not be JSON
        raise


class ToolCalls:
    """The guardrail. Immutable; shared by all requests of a snapshot. It reads no texts."""

    def __init__(self, name: str, settings: ToolCallsSettings, conditions: Sequence[ToolCondition | None]) -> None:
        self.name = name
        self._default: Action = settings.default
        self._rules = [_Rule(number, rule, conditions[number]) for number, rule in enumerate(settings.rules)]
        self._irreversible = [rule for rule in self._rules if rule.reversibility == "irreversible" and "call" in rule.kinds]
        self.may_hold = bool(self._irreversible) or settings.default == "hold" or any(rule.action == "hold" for rule in settings.rules)
        self.approvers, self.expires = settings.approvers, settings.expires

    def judge(self, uses: Sequence[ToolUse], caller: Principal, model: str) -> list[ToolFinding]:
        who = {"id": caller.id, "tenant": caller.tenant, "user": caller.user, "agent": caller.agent}
        return [self._finding(use, {"kind": use.kind, "model": model, "principal": who}) for use in uses]

    def _finding(self, use: ToolUse, facts: dict[str, Any]) -> ToolFinding:
        read = _Read(use)
        if read.fault or any(len(name) > MAX_NAME for name in use.names):
            return ToolFinding(use, "block", -1, "unknown", read.sha256)
        known: dict[str, Any] | None = None
        if len(use.arguments) <= MAX_ARGUMENTS and bounded(read.value):
            known = {**facts, "arguments": read.value}
        worst: tuple[Action, int, Reversibility] | None = None
        for name in use.names or ("",):
            for exact, text in spellings(name):
                found = self._decided(use.kind, text, exact, None if known is None else {**known, "tool": name})
                if worst is None or SEVERITY[found[0]] > SEVERITY[worst[0]]:
                    worst = found
        assert worst is not None
        for inner in wrapped(use, read.value):
            one = self._finding(inner, facts)
            if SEVERITY[one.action] > SEVERITY[worst[0]]:
                worst = one.action, one.rule, one.reversibility
        return ToolFinding(use, worst[0], worst[1], worst[2], read.sha256)

    def _decided(self, kind: Kind, name: str, exact: bool, facts: dict[str, Any] | None) -> tuple[Action, int, Reversibility]:
        """By the first rule that fits; but what cannot be taken back is never just allowed, whichever rule says so."""
        found = self._ruled(kind, name, exact, facts)
        if kind == "call" and found[0] == "allow":
            for rule in self._irreversible:
                if any(matches(pattern, name) for pattern in (rule.patterns if exact else rule.folded)):
                    return "hold", rule.number, "irreversible"
        return found

    def _ruled(self, kind: Kind, name: str, exact: bool, facts: dict[str, Any] | None) -> tuple[Action, int, Reversibility]:
        for rule in self._rules:
            if kind not in rule.kinds or not any(matches(pattern, name) for pattern in (rule.patterns if exact else rule.folded)):
                continue
            if rule.condition is not None and not rule.condition.holds(facts, rule.action != "allow"):
                continue
            return ("allow" if kind == "definition" and rule.action == "hold" else rule.action), rule.number, rule.reversibility
        if kind == "call":
            return self._default, -1, "unknown"
        return "allow", -1, "unknown"

    # --- texts, of which it says nothing

    def check(self, texts: Sequence[str]) -> Verdict:
        return ALLOW

    def stream(self) -> PassingStream:
        return PassingStream()


class PassingStream:
    """The matcher of a guardrail that reads no texts."""

    __slots__ = ()
    held = ""

    def feed(self, text: str) -> str:
        return text

    def finish(self) -> str:
        return ""


def spellings(name: str) -> list[tuple[bool, str]]:
    """(whether it is to be compared as it is, text): the name, what it folds to, and both without what models put before names."""
    found = [(True, name), (False, fold(name).strip())]
    for prefix in PREFIXES:
        if name.startswith(prefix) and len(name) > len(prefix):
            rest = name[len(prefix) :]
            found += [(True, rest), (False, fold(rest).strip())]
    return found


def wrapped(use: ToolUse, value: Any) -> list[ToolUse]:
    """The calls within a call of WRAPPER, which some models make of several, and some clients take apart again."""
    if use.kind != "call" or not any(WRAPPER in loose(name) for name in use.names):
        return []
    given = value.get("tool_uses") if isinstance(value, dict) else None
    if not isinstance(given, list):
        return [ToolUse("call", use.names, unreadable="it holds no list of calls")]
    found: list[ToolUse] = []
    for one in given:
        inside = one if isinstance(one, dict) else {}
        names = [inside[key] for key in ("recipient_name", "name") if isinstance(inside.get(key), str)]
        arguments = [inside[key] for key in ("parameters", "arguments") if key in inside]
        clear = names and len(arguments) <= 1 and not any(WRAPPER in loose(name) for name in names)
        first = arguments[0] if arguments else {}
        text = first if isinstance(first, str) else canonical(first).decode()
        found.append(ToolUse("call", tuple(names), text, unreadable="" if clear else "it can be read in more than one way"))
    return found


def build(settings: ToolCallsSettings, context: Context) -> ToolCalls:
    """Raises ConfigError that names the rule whose condition is wrong."""
    language: ToolLanguage | None = None
    conditions: list[ToolCondition | None] = []
    for number, rule in enumerate(settings.rules):
        if rule.reversibility == "irreversible" and rule.action == "allow" and "call" in rule.of:
            raise ConfigError(f"rules[{number}].action: a call that is irreversible needs an approval; use hold or block")
        if rule.when is None:
            conditions.append(None)
            continue
        if "definition" in rule.of:
            raise ConfigError(f"rules[{number}].when: a definition has no arguments; leave `definition` out of `of`")
        language = language or ToolLanguage()
        try:
            conditions.append(language.compile(rule.when))
        except ConfigError as error:
            raise ConfigError(f"rules[{number}].when: {error.message}") from None
    return ToolCalls(context.name, settings, conditions)
