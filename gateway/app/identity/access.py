"""From `roles` and `bindings` to the Authorizer of a Snapshot, and the check of these settings when a configuration is read."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from itertools import islice

from admin.permissions import ALL, ROLES
from gateway.config.convert import COMPARED
from gateway.core.errors import ConfigError
from gateway.core.ports import Authorizer
from gateway.core.slices import Steps
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
    known = {name for model in models for name in (model.name, *model.aliases)}
    for role, settings in roles.items():
        for number, text in enumerate(settings.permissions):
            message = unknown_model(text, known)
            if message and strict:
                raise ConfigError(message, path=f"roles.{role}.permissions[{number}]")
            if message:
                log.warning("roles.%s.permissions[%d]: %s", role, number, message)
        yield


def unknown_model(permission: str, known: Collection[str]) -> str:
    """What is wrong with a permission for one model that is not there; "" for any other. Raises ConfigError for what is no permission."""
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


class _Index:
    """What was made of some roles and bindings. infer: what roles permit. ignored: names of those that say nothing about inference.
    made: by the name of its rule, each binding with the permissions of its role and the Grant."""

    def __init__(self, roles: Mapping[str, RoleSpec], bindings: tuple[BindingSpec, ...]) -> None:
        self.roles, self.bindings = roles, bindings
        self.infer: dict[str, tuple[Permission, ...]] = {}
        self.ignored: set[str] = set(ROLES)
        self.made: dict[str, tuple[BindingSpec, tuple[Permission, ...], Grant]] = {}
        self.grants = Grants()


class AccessBuilder:
    """Builds Authorizers. Conditions outlive them: a reload compiles only those that are new. What bindings say is indexed anew only when
    one of them, or a role, has changed, and then of the others everything is kept but the index. country: of an address."""

    def __init__(self, country: Callable[[str], str] = nowhere) -> None:
        self._conditions, self._country = Conditions(), country
        self._last = _Index({}, ())

    def steps(self, spec: ConfigSpec) -> Steps[Authorizer]:
        """The Authorizer of a configuration, with pauses. Raises ConfigError."""
        if not spec.roles and not spec.bindings:
            access = ModelAccess(spec.models)
            yield
            return access
        same = yield from self._unchanged(spec)
        if not same:
            self._last = yield from self._indexed(spec)
        found = self._last
        return RoleAccess(spec.models, found.infer, found.grants, ignored=found.ignored, country=self._country)

    def _unchanged(self, spec: ConfigSpec) -> Steps[bool]:
        if spec.roles != self._last.roles or len(spec.bindings) != len(self._last.bindings):
            return False
        yield
        for start in range(0, len(spec.bindings), BATCH):
            if spec.bindings[start : start + BATCH] != self._last.bindings[start : start + BATCH]:
                return False
            yield
        return True

    def _indexed(self, spec: ConfigSpec) -> Steps[_Index]:
        before, made = self._last, _Index(spec.roles, spec.bindings)
        roles = iter(spec.roles.items())
        while some := list(islice(roles, BATCH)):
            for name, role in some:
                infer = before.infer.get(name, ()) if before.roles.get(name) is role else _infer(role)
                if infer:
                    made.infer[name] = infer
                else:
                    made.ignored.add(name)
            yield
        texts = set()
        rest = iter(enumerate(spec.bindings))
        while batch := list(islice(rest, BATCH)):
            for number, binding in batch:
                if binding.role in made.ignored:
                    continue  # says nothing about inference
                texts.add(binding.when)
                rule = f"binding:{binding.name or number}"
                permissions = made.infer.get(binding.role, ())
                known = before.made.get(rule)
                if known is None or known[0] is not binding or known[1] is not permissions:
                    known = binding, permissions, self._grant(rule, binding, permissions)
                made.made[rule] = known
                made.grants.add(binding.subjects, known[2])
            yield
        self._conditions.keep(texts)
        yield
        return made

    def _grant(self, rule: str, binding: BindingSpec, permissions: tuple[Permission, ...]) -> Grant:
        """A binding whose role is not there gives its subjects a role that permits nothing (gateway.config.merge keeps such ones)."""
        condition = None if binding.when is None else self._conditions.compiled(binding.when)
        return Grant(rule, permissions, binding.effect == "deny", condition, binding.tenant)


def _infer(role: RoleSpec) -> tuple[Permission, ...]:
    return rights(role.permissions, OPERATIONS, ALL, role.confined).infer
