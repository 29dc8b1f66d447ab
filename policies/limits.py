"""Which limits apply to a request, and what it costs. Pure: gateway.limits keeps the buckets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from gateway.core.errors import LimitExceeded, Overloaded
from gateway.core.slices import Steps, portions
from gateway.core.specs import LimitSpec
from gateway.core.types import InferenceRequest, Principal, Usage
from policies.loops import Loop, measured
from policies.patterns import matches

Scope = tuple[LimitSpec, tuple[str, ...]]
"""A limit and the key of its bucket: for `per: key`, ("team", "api_key", "ci") is tenant, kind and id."""


FIELDS: Final = ("key", "user", "agent", "group", "tenant", "role", "model", "operation")
"""Of a limit's `match`, the one that fewest requests fit first."""
AT_ONCE: Final = 256
"""Limits that are added in a step."""


class Numbers:
    """The numbers of limits by a name. Most names have one: a list for each would be a hundred thousand objects that end in one step."""

    __slots__ = ("_first", "_more")

    def __init__(self) -> None:
        self._first: dict[str, int] = {}
        self._more: dict[str, list[int]] = {}

    def add(self, name: str, number: int) -> None:
        if name not in self._first:
            self._first[name] = number
        else:
            self._more.setdefault(name, []).append(number)

    def of(self, name: str) -> list[int]:
        first = self._first.get(name)
        return [] if first is None else [first, *self._more.get(name, ())]


class LimitRules:
    """The limits of a configuration, in its order: all that they count but places of queues, or with `places` only those.

    A limit is found by the first field of its `match` that is a name without `*`, so only limits without any are looked at for each
    caller."""

    def __init__(self, limits: Iterable[LimitSpec], places: bool = False) -> None:
        self._names: set[str] = set()
        self._limits: list[LimitSpec] = []
        self._all: list[int] = []
        """The places of the limits that are looked at for everybody."""
        self._found: dict[str, Numbers] = {}
        """Of the others, by field and name."""
        self._named = Numbers()
        """Of those that a key may name instead, by the limit's name."""
        self._part = queue_part if places else counted_part
        self.add(limits)

    def add(self, limits: Iterable[LimitSpec]) -> None:
        """Adds limits behind those that are there; only before anybody asks."""
        for limit in limits:
            self._names.add(limit.name)
            part = self._part(limit)
            if part is not None:
                self._add(part)

    def _add(self, limit: LimitSpec) -> None:
        number = len(self._limits)
        self._limits.append(limit)
        match = limit.match
        values = (match.key, match.user, match.agent, match.group, match.tenant, match.role, match.model, match.operation)
        for field, value in zip(FIELDS, values, strict=True):
            if "*" not in value:
                if field not in self._found:
                    self._found[field] = Numbers()
                self._found[field].add(value, number)
                if field == "key":
                    self._named.add(limit.name, number)
                return
        self._all.append(number)

    def _candidates(self, principal: Principal, model: str, operation: str) -> list[LimitSpec]:
        """Those that may apply, in their order."""
        if not self._found:
            return self._limits
        numbers = set(self._all)
        for field, known in self._found.items():
            for value in _values(field, principal, model, operation):
                numbers.update(known.of(value))
        for name in principal.limits:
            numbers.update(self._named.of(name))
        return [self._limits[number] for number in sorted(numbers)]

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self._limits)

    def missing(self, principal: Principal) -> tuple[str, ...]:
        """Limits that the credential names and that are not there."""
        return tuple(name for name in principal.limits if name not in self._names)

    def applying(self, principal: Principal, model: str, operation: str = "") -> tuple[Scope, ...]:
        """The limits whose `match` fits this caller, model and operation, each with its bucket's key. With `per: group` there is one for
        each of the caller's groups that fits.

        Raises Overloaded when the credential names a limit that is not there: without it, the caller would be unlimited.
        """
        if principal.limits and (missing := self.missing(principal)):
            raise Overloaded(f"The limit {missing[0]!r} of this key is not in force.", code="limit_not_in_force", retry_after=1.0)
        found: list[Scope] = []
        for limit in self._candidates(principal, model, operation):
            if _fits(limit, principal, model, operation):
                for key in _bucket_keys(limit, principal, model, operation):
                    found.append((limit, key))
        return tuple(found)

    def loops(self, principal: Principal, model: str, operation: str = "") -> tuple[Loop, ...]:
        """The bounds on conversations that apply: they need no bucket, because each request carries its conversation."""
        found: list[Loop] = []
        for limit in self._candidates(principal, model, operation):
            bounds = limit.session
            if bounds is not None and (bounds.depth or bounds.same_tool_calls) and _fits(limit, principal, model, operation):
                found.append((limit.name, bounds.depth or 0, bounds.same_tool_calls or 0, limit.enforce))
        return tuple(found)

    def check_loops(self, loops: Sequence[Loop], request: InferenceRequest) -> list[str]:
        """Raises LimitExceeded for a conversation beyond a bound. Returns the limits that would refuse it if they were enforced."""
        depth, same = measured(request.api.turns(request))
        would: list[str] = []
        for name, deepest, most, enforced in loops:
            found = ""
            if deepest and depth > deepest:
                found = f"calls tools {depth} times in a row; the limit '{name}' allows {deepest}"
            elif most and same > most:
                found = f"holds the same call of a tool {same} times; the limit '{name}' allows {most}"
            if found and enforced:
                raise LimitExceeded(f"This conversation {found}.", code="session_exceeded", headers=(("x-should-retry", "false"),))
            if found:
                would.append(name)
        return would


def rules_of(limits: Sequence[LimitSpec], places: bool = False) -> Steps[LimitRules]:
    """The LimitRules of so many limits that making them at once would hold the loop."""
    rules = LimitRules((), places)
    for some in portions(limits, AT_ONCE):
        rules.add(some)
        yield
    return rules


def counted_part(limit: LimitSpec) -> LimitSpec | None:
    """The limit without its places of queues; None if nothing else is limited."""
    if limit.queued is None:
        return limit
    fields = ("requests", "tokens", "bytes", "elements", "concurrent", "budget", "session")
    return replace(limit, queued=None) if any(getattr(limit, name) is not None for name in fields) else None


def queue_part(limit: LimitSpec) -> LimitSpec | None:
    """The limit's places of queues alone; None if it has none."""
    if limit.queued is None:
        return None
    return LimitSpec(
        name=limit.name, per=limit.per, match=limit.match, queued=limit.queued, on_failure=limit.on_failure, enforce=limit.enforce
    )


def nothing(request: InferenceRequest) -> tuple[int, int]:
    """The tokens of a place in a queue."""
    return 0, 0


def estimate(request: InferenceRequest) -> tuple[int, int]:
    """Tokens to reserve before the engine counts: (of the prompt, that may be generated), each at least 0."""
    prompt, completion = request.prompt_tokens, request.max_tokens
    return prompt if prompt > 0 else 0, completion if completion > 0 else 0


def charge(usage: Usage) -> int:
    """Tokens that an exchange cost: prompt, cached or not, and completion."""
    prompt, completion = usage.prompt_tokens, usage.completion_tokens
    return (prompt if prompt > 0 else 0) + (completion if completion > 0 else 0)


def _fits(limit: LimitSpec, principal: Principal, model: str, operation: str) -> bool:
    """Whether a limit applies. A credential that names it counts as matching `key`, so a limit with `key: ""` applies to those only."""
    match = limit.match
    if not (matches(match.tenant, principal.tenant) and matches(match.model, model) and matches(match.operation, operation)):
        return False
    if not (matches(match.user, principal.user) or _of_tenant(match.user, principal.user, principal.tenant)):
        return False
    if not matches(match.agent, principal.agent):
        return False
    if match.group != "*" and not _groups(match.group, principal):
        return False
    if match.role != "*" and not any(matches(match.role, role) for role in principal.roles):
        return False
    return matches(match.key, principal.id) or limit.name in principal.limits


def _values(field: str, principal: Principal, model: str, operation: str) -> list[str]:
    """What a pattern without `*` may be that fits in this field."""
    if field == "key":
        return [principal.id]
    if field == "user":
        return [principal.user, f"{principal.user}@{principal.tenant}"]
    if field == "agent":
        return [principal.agent]
    if field == "group":
        return [value for name in principal.groups for value in (name, f"{name}@{principal.tenant}")]
    if field == "tenant":
        return [principal.tenant]
    if field == "role":
        return list(principal.roles)
    return [model] if field == "model" else [operation]


def _of_tenant(pattern: str, name: str, tenant: str) -> bool:
    """Whether a pattern such as `alice@acme` means this name in this tenant."""
    return "@" in pattern and name != "" and matches(pattern, f"{name}@{tenant}")


def _groups(pattern: str, principal: Principal) -> list[str]:
    return [name for name in principal.groups if matches(pattern, name) or _of_tenant(pattern, name, principal.tenant)]


def _bucket_keys(limit: LimitSpec, principal: Principal, model: str, operation: str) -> list[tuple[str, ...]]:
    """The keys of the buckets. None for what the caller does not have: a limit on each agent says nothing about callers without one.

    A credential that stands for no user counts as a user of its own, because otherwise it would be unlimited.
    """
    caller = (principal.tenant, principal.kind, principal.id)
    user = (principal.tenant, principal.user) if principal.user else caller
    match limit.per:
        case "key":
            return [caller]
        case "user":
            return [user]
        case "group":
            return [(principal.tenant, name) for name in dict.fromkeys(_groups(limit.match.group, principal))]
        case "tenant":
            return [(principal.tenant,)]
        case "agent":
            return [(principal.tenant, principal.agent)] if principal.agent else []
        case "session":
            return [(*user, principal.session)] if principal.session else []
        case "model":
            return [(model,)]
        case "key_model":
            return [(*caller, model)]
        case "tenant_model":
            return [(principal.tenant, model)]
        case "user_model":
            return [(*user, model)]
        case "operation":
            return [(operation,)]
        case "global":
            return [()]
