"""Roles and bindings on the admin listener, of the configuration file in force and of the store as it was last read.

The store's are read here rather than from the Snapshot, so that what was written counts for the next call, and an administrator can mend
what keeps the store's changes from being put into force.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from admin.permissions import ALL, ROLES, Grant, Permitted
from gateway.app.identity.access import EXCHANGED, Conditions, TooMuch, between, changed, let_go, rule_of
from gateway.config.additions import StoreAdditions
from gateway.config.merge import Addition, merge_access
from gateway.config.unchanged import common_end, common_start
from gateway.core.collecting import uncollected
from gateway.core.errors import ConfigError, StoreUnavailable
from gateway.core.slices import Steps, in_slices
from gateway.core.specs import BindingSpec, ConfigSpec, RoleSpec
from gateway.core.types import Peer, Principal
from gateway.wire.table import OPERATIONS
from policies.facts import Present
from policies.permissions import Rights, rights
from policies.roles import Grant as Bound
from policies.roles import Grants, nowhere

log = logging.getLogger("gatehouse.config")
BATCH: Final = 100
"""Roles or bindings between two pauses."""
NOTHING: Final = Rights()


Known = tuple[BindingSpec, Bound]
"""A binding and what was made of it."""


class _Book:
    """What was made of one state of the file and the store. bound: by the name of its rule. texts: the conditions, with how many bindings
    have each. places: of the bindings, rising. unnamed: from this number on every binding has a name."""

    def __init__(self, roles: dict[str, Rights], specs: Mapping[str, RoleSpec], bindings: tuple[BindingSpec, ...] = ()) -> None:
        self.roles, self.specs, self.bindings = roles, specs, bindings
        self.grants = Grants()
        self.bound: dict[str, Known] = {}
        self.texts: dict[str | None, int] = {}
        self.places: list[float] = []
        self.unnamed = 0

    def note(self, number: int, known: Known) -> None:
        """All of `put` but for its Grant."""
        binding, bound = known
        self.texts[binding.when] = self.texts.get(binding.when, 0) + 1
        self.bound[bound.rule] = known
        if binding.name is None:
            self.unnamed = max(self.unnamed, number + 1)

    def put(self, number: int, known: Known) -> None:
        self.note(number, known)
        self.grants.add(known[0].subjects, known[1], self.places[number])

    def take(self, number: int, binding: BindingSpec) -> Bound:
        """This binding, which is not in it any more but for its Grant. Raises TooMuch."""
        known = self.bound.pop(rule_of(number, binding), None)
        if known is None or known[0] != binding:
            raise TooMuch  # two have the same rule
        self.texts[binding.when] -= 1
        return known[1]

    def rights(self, bound: Bound) -> Rights:
        return self.roles.get(bound.role, NOTHING)


class RoleBook:
    """Implements admin.ports.RoleBook. file: the file's configuration in force. wall: seconds since the epoch. country: of an
    address."""

    def __init__(
        self,
        additions: StoreAdditions,
        file: Callable[[], ConfigSpec],
        wall: Callable[[], float] = time.time,
        country: Callable[[str], str] = nowhere,
    ) -> None:
        self._additions, self._file, self._wall, self._country = additions, file, wall, country
        self._conditions = Conditions()
        self._made_of: tuple[ConfigSpec, Mapping[str, Addition], Mapping[str, Addition]] | None = None
        self._book = _Book({name: _built_in(name) for name in ROLES}, {})
        self._making = asyncio.Lock()

    # --- the port

    async def held(self, principal: Principal, peer: Peer) -> tuple[tuple[Grant, ...], frozenset[str]]:
        book = await self._current()
        found = self._own(book, principal)
        denied: set[str] = set()
        read = Present(principal, peer, self._country, self._wall).read
        for bound in book.grants.of(principal):
            rights = book.rights(bound)
            if not rights.admin or (principal.personal and not bound.deny):
                continue  # a user's own key has what was chosen when it was made, and no more
            if bound.condition is not None and not bound.condition.holds(read, otherwise=bound.deny):
                continue
            if bound.deny:
                denied |= rights.admin
            else:
                found.append(_grant(bound.role, rights, principal.tenant))
        return tuple(found), frozenset(denied)

    async def possible(self, principal: Principal) -> tuple[Grant, ...]:
        book = await self._current()
        bound = [one for one in book.grants.of(principal) if not one.deny]
        return (*self._own(book, principal), *(_grant(one.role, book.rights(one), principal.tenant) for one in bound))

    async def differing(self, one: Principal, other: Principal) -> tuple[Grant, ...]:
        book = await self._current()
        mine, theirs = book.grants.of(one), book.grants.of(other)
        facts = {f"principal.{name}" for name in _FACTS if getattr(one, name) != getattr(other, name)}
        found = {bound.rule: bound for bound in (*mine, *theirs) if (bound in mine) != (bound in theirs) or _reads(bound, facts)}
        roles = sorted(set(one.roles) ^ set(other.roles))
        own = [_grant(role, book.roles[role], one.tenant) for role in roles if role in book.roles]
        return (*own, *(_grant(bound.role, book.rights(bound), one.tenant) for bound in found.values()))

    async def naming(self, kind: str, name: str, tenant: str, without: Collection[str] = ()) -> str | None:
        found = (await self._current()).grants.naming(kind, name, tenant)
        names = (one.rule.removeprefix("binding:") for one in found)
        return next((one for one in names if one not in without), None)

    async def denied_by(self, principal: Principal) -> frozenset[str]:
        book = await self._current()
        return frozenset(bound.role for bound in book.grants.of(principal) if bound.deny and book.rights(bound).admin)

    def concerns(self, principal: Principal, subjects: Sequence[str], tenant: str) -> bool:
        grants = Grants()
        grants.add(subjects, Bound("", (), tenant=tenant))
        return bool(grants.of(principal))

    async def permitted(self, role: str) -> Permitted | None:
        found = (await self._current()).roles.get(role)
        return None if found is None else _permitted(role, found)

    def meaning(self, role: str, permissions: Sequence[str], confined: bool) -> Permitted:
        return _permitted(role, rights(permissions, OPERATIONS, ALL, confined))

    # --- making it

    async def _current(self) -> _Book:
        try:
            await self._additions.read()
        except StoreUnavailable as error:
            log.warning("the store does not answer, so the roles of the admin listener stay as they were: %s", error.message)
        async with self._making:
            now = (self._file(), self._additions.by_kind["roles"], self._additions.by_kind["bindings"])
            if self._made_of is None or any(one is not other for one, other in zip(now, self._made_of, strict=True)):
                self._made_of = now
                try:
                    with uncollected():
                        made = await in_slices(self._made(*now))
                        former, self._book = list(vars(self._book).values()), made
                        await in_slices(let_go(former))
                except ConfigError as error:
                    log.error("the roles and bindings of the admin listener stay as they were: %s", error)
            return self._book

    def _made(self, file: ConfigSpec, roles: Mapping[str, Addition], bindings: Mapping[str, Addition]) -> Steps[_Book]:
        """Where few roles and bindings have changed, these are exchanged in a copy; else all is indexed anew, but what was made of a role
        or a binding that has not changed is kept. Raises ConfigError for a binding that denies and cannot be used."""
        specs, bound, _ = yield from merge_access(file, {"roles": roles, "bindings": bindings}, ROLES)
        try:
            made = yield from self._exchanged(specs, bound)
        except TooMuch:
            made = yield from self._indexed(specs, bound)
        if 0 in made.texts.values():
            yield
            made.texts = {text: count for text, count in made.texts.items() if count}
            self._conditions.keep(made.texts)
        yield
        return made

    def _exchanged(self, specs: Mapping[str, RoleSpec], new: tuple[BindingSpec, ...]) -> Steps[_Book]:
        """Raises TooMuch."""
        before, old = self._book, self._book.bindings
        most = max(EXCHANGED, len(new) // EXCHANGED)
        roles = yield from changed(before.specs, specs, most)
        start = yield from common_start(old, new)
        end = yield from common_end(old, new, start)
        stop, until = len(old) - end, len(new) - end
        if max(stop, until) - start + len(roles) > most:
            raise TooMuch
        if len(old) != len(new) and before.unnamed > stop:
            raise TooMuch  # the rules of bindings without a name, their numbers, have changed
        made = _Book(before.roles.copy(), specs, new)
        yield
        for name in roles:
            made.roles.pop(name, None)
            if (spec := specs.get(name)) is not None:
                made.roles[name] = _rights(spec)
            yield
        made.bound, made.texts = before.bound.copy(), before.texts.copy()
        yield
        made.grants = yield from before.grants.without([made.take(number, old[number]) for number in range(start, stop)])
        made.places = between(before.places, start, stop, until - start)
        made.unnamed = before.unnamed if before.unnamed > stop else min(before.unnamed, start)
        for number in range(start, until):
            if (rule := rule_of(number, new[number])) in made.bound:
                raise TooMuch
            made.put(number, (new[number], self._bound(rule, new[number])))
            yield
        return made

    def _indexed(self, specs: Mapping[str, RoleSpec], new: tuple[BindingSpec, ...]) -> Steps[_Book]:
        before, book = self._book, _Book({name: _built_in(name) for name in ROLES}, specs, new)
        for number, (name, spec) in enumerate(specs.items()):
            if number % BATCH == 0:
                yield
            book.roles[name] = before.roles[name] if before.specs.get(name) is spec else _rights(spec)
        book.places = list(map(float, range(len(new))))
        found: list[tuple[tuple[str, ...], Bound, float]] = []
        for number, binding in enumerate(new):
            if number % BATCH == 0:
                yield
            rule = rule_of(number, binding)
            known = before.bound.get(rule)
            if known is None or known[0] is not binding:
                known = binding, self._bound(rule, binding)
            book.note(number, known)
            found.append((binding.subjects, known[1], book.places[number]))
        yield from book.grants.index(found)
        self._conditions.keep(book.texts)
        return book

    def _bound(self, rule: str, binding: BindingSpec) -> Bound:
        condition = None if binding.when is None else self._conditions.compiled(binding.when)
        return Bound(rule, (), binding.effect == "deny", condition, binding.tenant, binding.role)

    def _own(self, book: _Book, principal: Principal) -> list[Grant]:
        """The roles of a user's own key. Only built-in ones: no others can be given to such a key."""
        roles = (role for role in principal.roles if role in book.roles and (role in ROLES or not principal.personal))
        return [_grant(role, book.roles[role], principal.tenant) for role in roles]


_FACTS: Final = ("id", "kind", "user", "groups", "roles", "scopes", "agent", "session")


def _reads(bound: Bound, facts: set[str]) -> bool:
    """Whether the binding's condition reads one of these facts, so that it may hold for one caller and not for another."""
    return bound.condition is not None and not facts.isdisjoint(bound.condition.reads)


def _built_in(name: str) -> Rights:
    return Rights(admin=ROLES[name].permissions, confined=ROLES[name].confined)


def _rights(spec: RoleSpec) -> Rights:
    return rights(spec.permissions, OPERATIONS, ALL, spec.confined)


def _permitted(role: str, found: Rights) -> Permitted:
    return Permitted(role, found.admin, bool(found.infer), found.confined)


def _grant(role: str, found: Rights, tenant: str) -> Grant:
    if role in ROLES:
        return Grant.of(role, tenant)
    return Grant(role, tenant if found.confined else None, found.admin, bool(found.infer))
