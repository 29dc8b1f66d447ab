"""From `roles` and `bindings` to the Authorizer of a Snapshot, and the check of these settings when a configuration is read."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from itertools import islice, pairwise

from admin.permissions import ALL, ROLES
from gateway.config.convert import COMPARED
from gateway.config.unchanged import common_end, common_start
from gateway.core.errors import ConfigError
from gateway.core.ports import Authorizer
from gateway.core.slices import Steps, portions
from gateway.core.specs import BindingSpec, ConfigSpec, ModelSpec, RoleSpec
from gateway.wire.table import OPERATIONS
from policies.conditions import Condition, Language
from policies.permissions import Permission, rights
from policies.rbac import ModelAccess
from policies.roles import SUBJECTS, Grant, Grants, RoleAccess, nowhere

log = logging.getLogger("gatehouse.config")

ErrorAt = Callable[[str, str], ConfigError]
REMEMBERED = 4096
"""Conditions that a check remembers."""
BATCH = 50
"""Roles or bindings that are looked at between two pauses of a build."""
PORTION = 1024
"""The same, where each takes little."""
EXCHANGED = 32
"""Roles and bindings that are exchanged in an index, at least; and the part of all that is exchanged at most."""


def check(spec: ConfigSpec, error: ErrorAt, built_in: Collection[str] = ()) -> None:
    """Raises ConfigError, made by `error` of a path and a message, for the first role or binding of the file that is wrong. built_in: names
    of roles that the configuration cannot define."""
    rules = Rules(built_in)
    for name, role in spec.roles.items():
        if name in built_in:
            raise error(f"roles.{name}", _TAKEN.format(name))
        with _at(f"roles.{name}", error):
            rules.check(role)
    named: set[str] = set()
    for number, binding in enumerate(spec.bindings):
        path = f"bindings[{number}]"
        with _at(path, error):
            rules.check(binding)
        if binding.role not in spec.roles and binding.role not in built_in:
            raise error(f"{path}.role", unknown_role(binding.role, (*spec.roles, *built_in)))
        if binding.when is not None and _COUNTRY.search(binding.when) and spec.network.countries is None:
            raise error(f"{path}.when", "source.country is never known without a database of countries: set network.countries")
        if binding.name is not None:
            if binding.name in named:
                raise error(f"{path}.name", f"{binding.name!r} is the name of another binding already")
            named.add(binding.name)


def check_alone(roles: Mapping[str, RoleSpec], bindings: Iterable[BindingSpec], built_in: Collection[str] = ()) -> None:
    """Raises ConfigError for the first of these that is wrong in itself, or that has a name that one for the store must not have."""
    rules = Rules(built_in)
    for name, role in roles.items():
        if name in built_in:
            raise ConfigError(_TAKEN.format(name), path=f"roles.{name}")
        with _at(f"roles.{name}", _within):
            rules.check(role)
    named: set[str] = set()
    for number, binding in enumerate(bindings):
        with _at(f"bindings[{number}]", _within):
            rules.check(binding)
        if binding.name is None or binding.name in named:
            raise ConfigError("needs a name of its own to be applied to the store", path=f"bindings[{number}].name")
        named.add(binding.name)


def unknown_role(name: str, known: Collection[str]) -> str:
    """The message about a role that is not there."""
    return f"there is no role {name!r}; {_nearest(name, known)}"


_COUNTRY = re.compile(r"\bsource\s*\.\s*country\b")
_TAKEN = "{!r} is a built-in role of the admin API; give this one another name"


class Rules:
    """Checks one role or binding, as far as it can be said of it alone. Remembers conditions that were good."""

    def __init__(self, built_in: Collection[str] = ()) -> None:
        self._built_in = built_in
        self._conditions = Conditions()

    def check(self, rule: RoleSpec | BindingSpec) -> None:
        """Raises ConfigError with a path within it."""
        if isinstance(rule, RoleSpec):
            for number, text in enumerate(rule.permissions):
                with _at(f"permissions[{number}]", _within):
                    rights([text], OPERATIONS, ALL)
            return
        for place, subject in enumerate(rule.subjects):
            kind, slash, name = subject.partition("/")
            if kind not in SUBJECTS or not slash or not name:
                raise _within(f"subjects[{place}]", f"{subject[:80]!r} is not a subject; write {', '.join(_EXAMPLES)}")
        if rule.when is not None:
            with _at("when", _within):
                if self._conditions.many():
                    self._conditions.keep(())
                self._conditions.compiled(rule.when)


def _within(path: str, message: str) -> ConfigError:
    return ConfigError(message, path=path)


_EXAMPLES = ("key/ci", "user/alice", "group/engineers", "tenant/acme", "agent/*", "principal/ci")


class _at:
    """Gives a ConfigError raised inside the place of its setting."""

    def __init__(self, path: str, error: ErrorAt) -> None:
        self._path, self._error = path, error

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, failure: BaseException | None, trace: object) -> None:
        if isinstance(failure, ConfigError):
            inner = f"{self._path}.{failure.path}" if failure.path else self._path
            raise self._error(inner, failure.message) from None


def _nearest(name: str, known: Collection[str]) -> str:
    if len(known) > COMPARED:
        return f"there are {len(known)} others"
    close = get_close_matches(name, known, 1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known: {', '.join(sorted(known)[:8])}" if known else "there is none"


def models_there(roles: Mapping[str, RoleSpec], models: Iterable[ModelSpec], *, strict: bool) -> Steps[None]:
    """In steps. strict: a permission for one model that is not there raises ConfigError; else it is only logged, as models come and go."""
    if not roles:
        return
    known = yield from model_names(models)
    for role, settings in roles.items():
        for number, text in enumerate(settings.permissions):
            message = unknown_model(text, known)
            if message and strict:
                raise ConfigError(message, path=f"roles.{role}.permissions[{number}]")
            if message:
                log.warning("roles.%s.permissions[%d]: %s", role, number, message)
        yield


def model_names(models: Iterable[ModelSpec]) -> Steps[dict[str, None]]:
    """Names and aliases."""
    found: dict[str, None] = {}
    for some in portions(tuple(models)):
        found.update((name, None) for model in some for name in (model.name, *model.aliases))
        yield
    return found


def unknown_model(permission: str, known: Collection[str]) -> str:
    """What is wrong with a permission that names a model which does not exist; "" for any other. Raises ConfigError for a malformed one."""
    for one in rights([permission], OPERATIONS, ALL).infer:
        wanted = one.exact_model
        if wanted is not None and wanted not in known:
            return f"there is no model {wanted!r}, so this permission means nothing; {_nearest(wanted, known)}"
    return ""


class Conditions:
    """Compiled conditions by their text. Loads the language at the first."""

    def __init__(self) -> None:
        self._language: Language | None = None
        self._known: dict[str, Condition] = {}

    def compiled(self, text: str) -> Condition:
        """Raises ConfigError."""
        found = self._known.get(text)
        if found is None:
            self._language = self._language or Language()
            found = self._known[text] = self._language.compile(text)
        return found

    def many(self) -> bool:
        """Whether so many are known that all should be forgotten."""
        return len(self._known) >= REMEMBERED

    def keep(self, texts: Collection[str | None]) -> None:
        """Forgets all others."""
        self._known = {text: condition for text, condition in self._known.items() if text in texts}


Made = tuple[BindingSpec, tuple[Permission, ...], Grant]
"""A binding, the permissions of its role, and what was made of both."""


class _Index:
    """What was made of some roles and bindings. infer: what roles permit. ignored: names of those that say nothing about inference.
    made: by the name of its rule. texts: the conditions, with how many bindings have each. places: of the bindings, rising. unnamed: from
    this number on every binding has a name."""

    def __init__(self, roles: Mapping[str, RoleSpec], bindings: tuple[BindingSpec, ...]) -> None:
        self.roles, self.bindings = roles, bindings
        self.infer: dict[str, tuple[Permission, ...]] = {}
        self.ignored: set[str] = set(ROLES)
        self.made: dict[str, Made] = {}
        self.grants = Grants()
        self.texts: dict[str | None, int] = {}
        self.places: list[float] = []
        self.unnamed = 0

    def permit(self, name: str, infer: tuple[Permission, ...]) -> None:
        if infer:
            self.infer[name] = infer
        else:
            self.ignored.add(name)

    def forget(self, name: str) -> None:
        """A role is not there any more, or is another one."""
        self.infer.pop(name, None)
        if name not in ROLES:
            self.ignored.discard(name)

    def note(self, known: Made) -> None:
        """All of `put` but for its Grant."""
        binding, _, grant = known
        self.texts[binding.when] = self.texts.get(binding.when, 0) + 1
        self.made[grant.rule] = known

    def put(self, number: int, known: Made) -> None:
        self.note(known)
        self.grants.add(known[0].subjects, known[2], self.places[number])

    def take(self, number: int) -> Made | None:
        """The binding with this number, which is not in it any more but for its Grant. None if it says nothing about inference."""
        binding = self.bindings[number]
        if binding.role in self.ignored:
            return None
        known = self.made.pop(rule_of(number, binding), None)
        if known is None or known[0] != binding:
            raise TooMuch  # two have the same rule
        self.texts[binding.when] -= 1
        return known


class TooMuch(Exception):
    """An index is better made anew."""


class AccessBuilder:
    """Builds Authorizers. Conditions outlive them: a reload compiles only those that are new. Where few roles and bindings have changed,
    these are exchanged in a copy of the index; else it is made anew, but of the others everything is kept. country: of an address."""

    def __init__(self, country: Callable[[str], str] = nowhere) -> None:
        self._conditions, self._country = Conditions(), country
        self._last = _Index({}, ())

    def steps(self, spec: ConfigSpec) -> Steps[Authorizer]:
        """The Authorizer of a configuration, with pauses. Raises ConfigError."""
        if not spec.roles and not spec.bindings:
            access = ModelAccess(spec.models, operations=OPERATIONS)
            yield
            return access
        try:
            found = yield from self._exchanged(spec)
        except TooMuch:
            found = yield from self._indexed(spec)
        if found is not self._last:
            former, self._last = list(vars(self._last).values()), found
            yield from let_go(former)
        return RoleAccess(spec.models, found.infer, found.grants, ignored=found.ignored, country=self._country, operations=OPERATIONS)

    def _exchanged(self, spec: ConfigSpec) -> Steps[_Index]:
        """The index in force where nothing has changed. Raises TooMuch."""
        before, old, new = self._last, self._last.bindings, spec.bindings
        most = max(EXCHANGED, len(new) // EXCHANGED)
        roles = frozenset((yield from changed(before.roles, spec.roles, most)))
        start = yield from common_start(old, new)
        if not roles and start == len(old) == len(new):
            return before
        end = yield from common_end(old, new, start)
        stop, until = len(old) - end, len(new) - end
        if max(stop, until) - start + len(roles) > most or (len(old) != len(new) and before.unnamed > stop):
            raise TooMuch  # or the rules of bindings without a name, their numbers, have changed
        others = yield from _naming(new, roles, start, until, most)
        made = _Index(before.roles, old)
        made.infer, made.ignored, made.texts = before.infer.copy(), before.ignored.copy(), before.texts.copy()
        yield
        made.made = before.made.copy()
        yield
        more = len(new) - len(old)
        taken = [made.take(number) for number in (*range(start, stop), *[other if other < start else other - more for other in others])]
        known = {one[2].rule: one for one in taken if one is not None}
        made.grants = yield from before.grants.without([one[2] for one in known.values()])
        made.roles, made.bindings = spec.roles, new
        made.places = between(before.places, start, stop, until - start)
        made.unnamed = before.unnamed if before.unnamed > stop else min(before.unnamed, start)
        for name in roles:
            made.forget(name)
            if (role := spec.roles.get(name)) is not None:
                made.permit(name, _infer(role))
            yield
        for number in (*range(start, until), *others):
            if (rule := rule_of(number, new[number])) in made.made:
                raise TooMuch
            if new[number].name is None:
                made.unnamed = max(made.unnamed, number + 1)
            if (bound := self._bound(made, number, known.get(rule))) is not None:
                made.put(number, bound)
            yield
        if 0 in made.texts.values():
            yield from self._forget(made)
        return made

    def _indexed(self, spec: ConfigSpec) -> Steps[_Index]:
        before, made = self._last, _Index(spec.roles, spec.bindings)
        roles = iter(spec.roles.items())
        while some := list(islice(roles, BATCH)):
            for name, role in some:
                made.permit(name, before.infer.get(name, ()) if before.roles.get(name) is role else _infer(role))
            yield
        made.places = list(map(float, range(len(spec.bindings))))
        found: list[tuple[tuple[str, ...], Grant, float]] = []
        for start in range(0, len(spec.bindings), BATCH):
            for number, binding in enumerate(spec.bindings[start : start + BATCH], start):
                if binding.name is None:
                    made.unnamed = number + 1
                if (known := self._bound(made, number, before.made.get(rule_of(number, binding)))) is not None:
                    made.note(known)
                    found.append((binding.subjects, known[2], made.places[number]))
            yield
        yield from made.grants.index(found)
        yield from self._forget(made)
        return made

    def _bound(self, made: _Index, number: int, known: Made | None) -> Made | None:
        """known: what was made of this rule before. None for what says nothing about inference."""
        binding = made.bindings[number]
        if binding.role in made.ignored:
            return None
        permissions = made.infer.get(binding.role, ())
        if known is None or known[0] is not binding or known[1] is not permissions:
            known = binding, permissions, self._grant(rule_of(number, binding), binding, permissions)
        return known

    def _forget(self, made: _Index) -> Steps[None]:
        """Forgets the conditions that no binding has any more."""
        if 0 in made.texts.values():
            yield
            made.texts = {text: count for text, count in made.texts.items() if count}
        yield
        self._conditions.keep(made.texts)
        yield

    def _grant(self, rule: str, binding: BindingSpec, permissions: tuple[Permission, ...]) -> Grant:
        """A binding whose role is not there gives its subjects a role that permits nothing (gateway.config.merge keeps such ones)."""
        condition = None if binding.when is None else self._conditions.compiled(binding.when)
        return Grant(rule, permissions, binding.effect == "deny", condition, binding.tenant)


def rule_of(number: int, binding: BindingSpec) -> str:
    return f"binding:{binding.name or number}"


def changed(before: Mapping[str, RoleSpec], after: Mapping[str, RoleSpec], most: int) -> Steps[list[str]]:
    """Names of the roles that are new, gone or different. Raises TooMuch for more than `most`."""
    found: list[str] = []
    if before is after:
        return found
    rest = iter(after.items())
    while some := list(islice(rest, PORTION)):
        found += [name for name, role in some if (known := before.get(name)) is not role and known != role]
        if len(found) > most:
            raise TooMuch
        yield
    if len(before) != len(after) - sum([name not in before for name in found]):
        names = iter(before)
        while gone := list(islice(names, PORTION)):
            found += [name for name in gone if name not in after]
            if len(found) > most:
                raise TooMuch
            yield
    return found


def let_go(parts: list[object]) -> Steps[None]:
    """What is left of them ends one by one: tables of a hundred thousand take milliseconds each."""
    while parts:
        yield
        parts.pop()


def _naming(bindings: tuple[BindingSpec, ...], roles: frozenset[str], start: int, until: int, most: int) -> Steps[list[int]]:
    """Numbers of the bindings that give one of these roles, but for those from start to until. Raises TooMuch."""
    found: list[int] = []
    for first in range(0, len(bindings) if roles else 0, PORTION):
        found += [number for number, one in enumerate(bindings[first : first + PORTION], first) if one.role in roles]
        if len(found) > most:
            raise TooMuch
        yield
    return [number for number in found if not start <= number < until]


def between(places: list[float], start: int, stop: int, count: int) -> list[float]:
    """Replaces the places from `start` to `stop` by `count` others. Raises TooMuch if there is no room."""
    low = places[start - 1] if start else -1.0
    high = places[stop] if stop < len(places) else low + count + 1.0
    made = [low + (high - low) * number / (count + 1) for number in range(1, count + 1)]
    if any(one >= other for one, other in pairwise([low, *made, high])):
        raise TooMuch
    return [*places[:start], *made, *places[stop:]]


def _infer(role: RoleSpec) -> tuple[Permission, ...]:
    return rights(role.permissions, OPERATIONS, ALL, role.confined).infer
