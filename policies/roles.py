"""Roles, and who has them: authorisation where the configuration has `roles` and `bindings`.

A binding gives subjects a role, or (effect `deny`) takes what the role permits from them; it may have a condition. Of all that apply:

1. A deny whose role covers the request and whose condition is true, or cannot be evaluated, denies. Deny wins.
2. What the credential itself says (its models and operations) bounds everything: roles never grant more than it.
3. A caller who has any role through a binding or its credential needs one that covers the request with a true condition. A condition
   that cannot be evaluated is false.
4. A caller without a role keeps what its credential says.

What depends on the caller, the model, its version and the operation alone is decided once and remembered; conditions are evaluated for
each request.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from time import time
from typing import Any, Final

from gateway.core.slices import Steps, portions
from gateway.core.specs import ModelSpec
from gateway.core.types import NARROWED, Decision, InferenceRequest, Peer, Principal
from policies.conditions import Condition, Read
from policies.facts import Asked
from policies.patterns import matches
from policies.permissions import Permission
from policies.rbac import BEYOND, MEMO_SIZE, MEMO_VERSION, UNKNOWN, ModelAccess, within_bounds
from policies.scopes import scope_allows, scope_sees

BATCH = 50
"""Bindings that are indexed in one step."""
SUBJECTS: Final = ("key", "user", "group", "tenant", "agent", "principal")
"""Kinds of subjects: `key/ci`, `user/alice`, `group/engineers`, `tenant/acme`, `agent/*`; `principal/ID`: the id that any kind of login
has, such as a token's subject or a key's id."""
_Decision: Final = Decision
"""Compiled, a Final is one load, and a name that was imported a look-up."""
_NO_ROLE: Final = Decision(False, "No role of this credential allows this request.", "default-deny")
_DENIED: Final = "A policy denies this request."
_CONDITIONS: Final = "A policy allows this only under conditions that the request does not meet."


class Grant:
    """One binding, or a role that a credential has by itself. rule: how the audit log and `explain` name it. role: the role's name."""

    __slots__ = ("condition", "deny", "exact", "patterns", "permissions", "role", "rule", "tenant")

    def __init__(
        self,
        rule: str,
        permissions: Sequence[Permission],
        deny: bool = False,
        condition: Condition | None = None,
        tenant: str = "*",
        role: str = "",
    ) -> None:
        self.rule, self.permissions, self.deny, self.condition, self.tenant = rule, tuple(permissions), deny, condition, tenant
        self.role = role
        self.exact: tuple[tuple[str, str], ...] = ()
        """Whom it is about, as (kind, name); set by the first `Grants.add`."""
        self.patterns: tuple[tuple[str, str], ...] = ()

    def covers(self, operation: str, names: tuple[str, ...], version: str) -> bool:
        return any(permission.covers(operation, names, version) for permission in self.permissions)

    def hides(self, names: tuple[str, ...], version: str) -> bool:
        """Whether it denies every operation on the model, always."""
        if not self.deny or self.condition is not None:
            return False
        return any(permission.operation == "*" and permission.covers("", names, version) for permission in self.permissions)

    def shown(self, read: Read) -> dict[str, Any]:
        """For operators: see `Authorizer.explain`."""
        holds = self.condition is None or self.condition.holds(read, otherwise=self.deny)
        when = None if self.condition is None else self.condition.text
        return {"rule": self.rule, "effect": "deny" if self.deny else "allow", "when": when, "holds": holds}


class Plan:
    """What is left to decide for each request: conditions. denies: those with a condition, in order. allows: the same, or one without."""

    __slots__ = ("allows", "denies", "granted")

    def __init__(self, denies: tuple[Grant, ...], allows: tuple[Grant, ...], granted: Decision | None) -> None:
        self.denies, self.allows, self.granted = denies, allows, granted

    def decide(self, read: Read) -> Decision:
        for grant in self.denies:
            assert grant.condition is not None
            if grant.condition.holds(read, otherwise=True):
                return Decision(False, _DENIED, grant.rule)
        if self.granted is not None:
            return self.granted
        for grant in self.allows:
            assert grant.condition is not None
            if grant.condition.holds(read, otherwise=False):
                return Decision(True, "", grant.rule)
        return Decision(False, _CONDITIONS, self.allows[0].rule)


class Grants:
    """All bindings, found by subject. Patterns among the subjects are looked through; exact ones are looked up.

    Of a hundred thousand bindings most stay when one changes: a Grant may be in several of these, which share what they keep of it, and
    `without` begins the next of them with little work.
    """

    def __init__(self) -> None:
        self._exact: dict[str, dict[str, Grant | list[Grant]]] = {kind: {} for kind in SUBJECTS}
        """By kind and name. One table for all would take twice as long to grow, which it does in one step."""
        self._patterns: dict[str, list[tuple[str, Grant]]] = {kind: [] for kind in SUBJECTS}
        self._places: dict[Grant, float] = {}
        self._own: set[tuple[str, str]] | None = None
        """Subjects whose lists are of these alone, where others are shared; None: all are."""

    def without(self, removed: Sequence[Grant]) -> Steps[Grants]:
        """The same without these, in steps; others may be added."""
        made = Grants()
        made._own = set()
        for kind, named in self._exact.items():
            made._exact[kind] = named.copy()
            yield
        made._places = self._places.copy()
        yield
        gone = set(removed)
        for kind, known in self._patterns.items():
            made._patterns[kind] = [one for one in known if one[1] not in gone] if gone else known.copy()
        for grant in removed:
            yield
            del made._places[grant]
            for kind, name in grant.exact:
                table = made._exact[kind]
                found = table.get(name)
                if found is grant:
                    del table[name]
                elif isinstance(found, list):
                    made._own.add((kind, name))
                    table[name] = [one for one in found if one is not grant]
        return made

    def add(self, subjects: Iterable[str], grant: Grant, place: float | None = None) -> None:
        """subjects: as in a binding, of known kinds; a Grant has the same ones wherever it is added. place: in the order of all, if it is
        not the last."""
        self._places[grant] = float(len(self._places)) if place is None else place
        self._name(subjects, grant)

    def index(self, found: Sequence[tuple[Iterable[str], Grant, float]]) -> Steps[None]:
        """As `add` for each (subjects, grant, place), in steps. Large tables take milliseconds to grow: not all do it in the same step."""
        for some in portions(found, BATCH):
            for subjects, grant, _ in some:
                self._name(subjects, grant)
            yield
        for some in portions(found):
            self._places.update([(grant, place) for _, grant, place in some])
            yield

    def _name(self, subjects: Iterable[str], grant: Grant) -> None:
        if not grant.exact and not grant.patterns:
            split = [subject.partition("/") for subject in subjects]
            grant.exact = tuple([(kind, name) for kind, _, name in split if "*" not in name])
            grant.patterns = tuple([(kind, name) for kind, _, name in split if "*" in name])
        for kind, name in grant.exact:
            table = self._exact.setdefault(kind, {})
            known = table.get(name)
            if known is None:
                table[name] = grant
            elif isinstance(known, list):
                if self._own is not None and (kind, name) not in self._own:
                    self._own.add((kind, name))
                    known = table[name] = known.copy()
                known.append(grant)
            else:
                table[name] = [known, grant]
        for kind, pattern in grant.patterns:
            self._patterns.setdefault(kind, []).append((pattern, grant))

    def of(self, principal: Principal) -> list[Grant]:
        """Those that apply to a caller, in the configuration's order, each once. A user's own key is given nothing by itself, as it may do
        nothing but what its user may; it can be denied something."""
        found: dict[Grant, None] = {}
        for kind, name in _subjects(principal):
            itself = principal.personal and kind in ("key", "principal")
            for grant in self._named(kind, name):
                if grant.deny or not itself:
                    found[grant] = None
            for pattern, grant in self._patterns[kind]:
                if (grant.deny or not itself) and matches(pattern, name):
                    found[grant] = None
        return [grant for grant in sorted(found, key=self._place) if matches(grant.tenant, principal.tenant)]

    def naming(self, kind: str, name: str, tenant: str) -> list[Grant]:
        """Those that name this subject, not by a pattern, for callers of this tenant."""
        return [grant for grant in sorted(self._named(kind, name), key=self._place) if matches(grant.tenant, tenant)]

    def _named(self, kind: str, name: str) -> list[Grant]:
        known = self._exact.get(kind, {}).get(name)
        if known is None:
            return []
        return known if isinstance(known, list) else [known]

    def _place(self, grant: Grant) -> float:
        return self._places[grant]


def _subjects(principal: Principal) -> list[tuple[str, str]]:
    found = [("tenant", principal.tenant), ("principal", principal.id), *(("group", group) for group in principal.groups)]
    if principal.kind == "api_key":
        found.append(("key", principal.id))
    if principal.user:
        found.append(("user", principal.user))
    if principal.agent:
        found.append(("agent", principal.agent))
    return found


def nowhere(address: str) -> str:
    """No address's country is known."""
    return ""


class RoleAccess:
    """The Authorizer over roles and bindings. roles: what each permits.

    ignored: roles that say nothing about inference, so having one changes nothing here. A caller with any other role that is not in `roles`
    has a role that permits nothing. country: of an address, "" if that is not known. wall: seconds since the epoch. operations: as
    ModelAccess has them.
    """

    def __init__(
        self,
        models: Iterable[ModelSpec],
        roles: Mapping[str, tuple[Permission, ...]],
        grants: Grants,
        *,
        ignored: Collection[str] = (),
        country: Callable[[str], str] = nowhere,
        wall: Callable[[], float] = time,
        operations: Sequence[str] = (),
        memo_size: int = MEMO_SIZE,
    ) -> None:
        models = tuple(models)
        self._own, self._operations = ModelAccess(models, operations=operations), operations
        self._names: dict[str, tuple[str, ...]] = {model.name: (model.name,) for model in models}
        self._names.update({alias: (alias, model.name) for model in models for alias in model.aliases})
        self._country, self._wall, self._memo_size = country, wall, memo_size
        self._roles, self._grants, self._ignored = roles, grants, frozenset(ignored)
        self._memo: dict[tuple[Principal, str, str], Decision | Plan] = {}
        self._callers: dict[Principal, list[Grant]] = {}

    # --- the port

    def decide(self, principal: Principal, request: InferenceRequest, peer: Peer, size: int) -> Decision:
        """The decision about one request of a caller. size: bytes of the body."""
        version = request.version
        key = (principal, request.model, f"{request.operation}:{version}" if version else request.operation)
        plan = self._memo.get(key)
        if plan is None:
            plan = self._plan(principal, request.model, request.operation, version)
            if plan is not UNKNOWN and len(version) <= MEMO_VERSION:
                if len(self._memo) >= self._memo_size:
                    del self._memo[next(iter(self._memo))]
                self._memo[key] = plan
        return plan if isinstance(plan, _Decision) else plan.decide(self._asked(principal, request, peer, size).read)

    def may_see(self, principal: Principal, model: str, version: str = "") -> bool:
        """Whether the model (or this version of it) exists for this caller: whether it may be used, under whatever conditions, with any
        operation."""
        names = self._names.get(model)
        if names is None:
            return False
        grants = self._caller(principal)
        if any(grant.hides(names, version) for grant in grants) or not within_bounds(principal, names, version):
            return False
        if principal.reach is not None and not scope_sees(principal.reach, names):
            return False
        if _bounded(principal) and not self._own.may_see(principal, model, version):
            return False
        allows = [grant for grant in grants if not grant.deny]
        if not allows and not _bounded(principal):
            return False
        if allows and not any(permission.sees(names) for grant in allows for permission in grant.permissions):
            return False
        return not self._operations or any(self._opens(principal, model, grants, operation, version) for operation in self._operations)

    def _opens(self, principal: Principal, model: str, grants: Sequence[Grant], operation: str, version: str) -> bool:
        """Whether a model that is not hidden from the caller may be used with this operation, if conditions are met."""
        names = self._names[model]
        if any(grant.deny and grant.condition is None and grant.covers(operation, names, version) for grant in grants):
            return False
        allows = [grant for grant in grants if not grant.deny]
        if allows and not any(permission.sees(names, operation) for grant in allows for permission in grant.permissions):
            return False
        if not within_bounds(principal, names, version, operation):
            return False
        if _bounded(principal):
            return self._own.opens(principal, model, operation, version)
        return principal.reach is None or scope_sees(principal.reach, names, operation)

    def explain(self, principal: Principal, request: InferenceRequest, peer: Peer, size: int) -> list[dict[str, Any]]:
        """Denials first, then what the credential itself says, then what allows."""
        read = self._asked(principal, request, peer, size).read
        return self.considered(principal, request.model, request.operation, request.version, read)

    def judge(self, principal: Principal, model: str, operation: str, version: str, read: Read) -> Decision:
        plan = self._plan(principal, model, operation, version)
        return plan if isinstance(plan, Decision) else plan.decide(read)

    def considered(self, principal: Principal, model: str, operation: str, version: str, read: Read) -> list[dict[str, Any]]:
        names = self._names.get(model)
        if names is None:
            return self._own.considered(principal, model, operation, version, read)
        covering = [grant for grant in self._caller(principal) if grant.covers(operation, names, version)]
        beyond = not within_bounds(principal, names, version, operation)
        own = self._own.considered(principal, model, operation, version, read) if beyond or _bounded(principal) else []
        denies, allows = ([grant.shown(read) for grant in covering if grant.deny is deny] for deny in (True, False))
        return [*denies, *own, *allows]

    # --- deciding

    def _plan(self, principal: Principal, model: str, operation: str, version: str) -> Decision | Plan:
        names = self._names.get(model)
        if names is None:
            return UNKNOWN
        found = self._may(principal, model, names, operation, version)
        if principal.reach is not None and (isinstance(found, Plan) or found.allow):
            return found if scope_allows(principal.reach, operation, names, version) else NARROWED
        return found

    def _may(self, principal: Principal, model: str, names: tuple[str, ...], operation: str, version: str) -> Decision | Plan:
        """What the caller may do, whatever the token's scope."""
        grants = self._caller(principal)
        covering = [grant for grant in grants if grant.covers(operation, names, version)]
        for grant in covering:
            if grant.deny and grant.condition is None:
                return Decision(False, _DENIED, grant.rule)
        own = self._own.evaluate(principal, model, operation, version) if _bounded(principal) else None
        if own is not None and not own.allow:
            return own
        if own is None and not within_bounds(principal, names, version, operation):
            return BEYOND
        denies = tuple(grant for grant in covering if grant.deny)
        granted = own
        allows: tuple[Grant, ...] = ()
        if any(not grant.deny for grant in grants):
            allows = tuple(grant for grant in covering if not grant.deny)
            if not allows:
                return _NO_ROLE
            always = next((grant for grant in allows if grant.condition is None), None)
            granted = None if always is None else Decision(True, "", always.rule)
        if granted is None and not allows:
            return _NO_ROLE
        if granted is not None and not denies:
            return granted
        return Plan(denies, allows, granted)

    def _caller(self, principal: Principal) -> list[Grant]:
        """What applies to a caller; remembered for as long as the credential."""
        known = self._callers.get(principal)
        if known is None:
            own = [Grant(f"role:{role}", self._roles.get(role, ())) for role in principal.roles if role not in self._ignored]
            known = self._grants.of(principal) + own
            if len(self._callers) >= self._memo_size:
                del self._callers[next(iter(self._callers))]
            self._callers[principal] = known
        return known

    def _asked(self, principal: Principal, request: InferenceRequest, peer: Peer, size: int) -> Asked:
        names = self._names.get(request.model)
        return Asked(principal, request, request.model if names is None else names[-1], peer, size, self._country, self._wall)


def _bounded(principal: Principal) -> bool:
    """Whether the credential itself says which models it may use. An API key does, unless it is personal; others leave it to roles."""
    return bool(principal.models) or (principal.kind == "api_key" and not principal.personal)
