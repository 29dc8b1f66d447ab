"""From `roles` and `bindings` to the Authorizer of a Snapshot, and the check of these settings when a configuration is read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from difflib import get_close_matches
from itertools import islice

from gateway.core.errors import ConfigError
from gateway.core.ports import Authorizer
from gateway.core.slices import Steps
from gateway.core.specs import BindingSpec, ConfigSpec
from gateway.wire.table import OPERATIONS
from policies.conditions import Condition, Language
from policies.permissions import Permission, parse
from policies.rbac import ModelAccess
from policies.roles import SUBJECTS, Grant, Grants, RoleAccess

log = logging.getLogger("gatehouse.config")

ErrorAt = Callable[[str, str], ConfigError]
BATCH = 50
"""Bindings that are added between two pauses of a build."""


def check(spec: ConfigSpec, error: ErrorAt, built_in: Collection[str] = ()) -> None:
    """Raises ConfigError, made by `error` of a path and a message, for the first role or binding that is wrong. built_in: names of roles
    that the configuration cannot define."""
    for name, role in spec.roles.items():
        if name in built_in:
            raise error(f"roles.{name}", f"{name!r} is a built-in role of the admin API; give this one another name")
        for number, text in enumerate(role.permissions):
            with _at(f"roles.{name}.permissions[{number}]", error):
                parse(text, OPERATIONS)
    conditions = Conditions()
    for number, binding in enumerate(spec.bindings):
        path = f"bindings[{number}]"
        if binding.role not in spec.roles:
            raise error(f"{path}.role", f"there is no role {binding.role!r}; {_nearest(binding.role, spec.roles)}")
        for place, subject in enumerate(binding.subjects):
            kind, slash, name = subject.partition("/")
            if kind not in SUBJECTS or not slash or not name:
                raise error(f"{path}.subjects[{place}]", f"{subject[:80]!r} is not a subject; write {', '.join(_EXAMPLES)}")
        if binding.when is not None:
            with _at(f"{path}.when", error):
                conditions.compiled(binding.when)


_EXAMPLES = ("key/ci", "user/alice", "group/engineers", "tenant/acme", "agent/*")


class _at:
    """Gives a ConfigError raised inside the place of its setting."""

    def __init__(self, path: str, error: ErrorAt) -> None:
        self._path, self._error = path, error

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, failure: BaseException | None, trace: object) -> None:
        if isinstance(failure, ConfigError):
            raise self._error(self._path, failure.message) from None


def _nearest(name: str, known: Collection[str]) -> str:
    close = get_close_matches(name, known, 1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known: {', '.join(sorted(known)[:8])}" if known else "there is none"


def models_there(spec: ConfigSpec, *, strict: bool) -> None:
    """strict: a permission for one model that is not there raises ConfigError; else it is only logged, because the store's models come
    and go."""
    if not spec.roles:
        return
    known = {name for model in spec.models for name in (model.name, *model.aliases)}
    for role, settings in spec.roles.items():
        for number, text in enumerate(settings.permissions):
            wanted = parse(text, OPERATIONS).exact_model
            if wanted is None or wanted in known:
                continue
            message = f"there is no model {wanted!r}, so this permission means nothing; {_nearest(wanted, known)}"
            if strict:
                raise ConfigError(message, path=f"roles.{role}.permissions[{number}]")
            log.warning("roles.%s.permissions[%d]: %s", role, number, message)


class Conditions:
    """Compiled conditions by their text. Loads the language at the first."""

    def __init__(self) -> None:
        self.language: Language | None = None
        self._known: dict[str, Condition] = {}

    def compiled(self, text: str) -> Condition:
        """Raises ConfigError."""
        found = self._known.get(text)
        if found is None:
            self.language = self.language or Language()
            found = self._known[text] = self.language.compile(text)
        return found

    def keep(self, texts: Collection[str]) -> None:
        """Forgets all others."""
        self._known = {text: condition for text, condition in self._known.items() if text in texts}


class AccessBuilder:
    """Builds Authorizers. Conditions outlive them: a reload compiles only those that are new."""

    def __init__(self) -> None:
        self._conditions = Conditions()

    def steps(self, spec: ConfigSpec) -> Steps[Authorizer]:
        """The Authorizer of a configuration, with pauses. Raises ConfigError."""
        if not spec.roles and not spec.bindings:
            access = ModelAccess(spec.models)
            yield
            return access
        roles = {name: tuple(parse(text, OPERATIONS) for text in role.permissions) for name, role in spec.roles.items()}
        grants = Grants()
        rest = iter(enumerate(spec.bindings))
        while batch := list(islice(rest, BATCH)):
            for number, binding in batch:
                grants.add(binding.subjects, self._grant(number, binding, roles[binding.role]))
            yield
        texts = {binding.when for binding in spec.bindings if binding.when is not None}
        self._conditions.keep(texts)
        yield
        return RoleAccess(spec.models, roles, grants, self._conditions.language if texts else None)

    def _grant(self, number: int, binding: BindingSpec, permissions: tuple[Permission, ...]) -> Grant:
        condition = None if binding.when is None else self._conditions.compiled(binding.when)
        return Grant(f"binding:{binding.name or number}", permissions, binding.effect == "deny", condition, binding.tenant)
