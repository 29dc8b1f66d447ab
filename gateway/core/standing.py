"""Who and what is stopped at the moment: halts and suspensions, in one place for a whole process.

It outlives Snapshots, because a stop must not wait for the build of a configuration. While nothing is stopped, a request pays for one
look at `active`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

from gateway.core.errors import ConfigError, PermissionDenied
from gateway.core.types import Principal

KINDS: Final = ("key", "agent", "user", "tenant", "model")
EVERYTHING: Final = "all"
TARGET: Final = r"^(all|(key|agent|user|tenant|model)/[^\x00-\x20\x7f-\xa0]([^\x00-\x1f\x7f-\x9f]{0,254}[^\x00-\x20\x7f-\xa0])?)$"
"""What a target looks like: no control character, no space at either end of a name."""
_TARGET = re.compile(TARGET)
MESSAGES: Final = {
    "halted": "This was halted by an administrator.",
    "suspended": "This account is suspended.",
}


class Stop:
    """One stop. target: `key/ID`, `agent/ID`, `user/NAME`, `user/NAME@TENANT`, `tenant/ID`, `model/NAME` or `all`. Compared by value.

    code: of the error that the caller gets (`halted`, `suspended`). interrupts: requests under way end too. admin: it also counts on the
    admin listener, where `all`, tenants and models are not stopped by a halt: somebody must be able to take it back.
    """

    __slots__ = ("admin", "code", "interrupts", "target")

    def __init__(self, target: str, code: str = "halted", *, interrupts: bool = True, admin: bool = False) -> None:
        self.target, self.code, self.interrupts, self.admin = target, code, interrupts, admin

    def error(self) -> PermissionDenied:
        """What the caller is told: never the reason, which is the operators' own."""
        return PermissionDenied(MESSAGES.get(self.code, MESSAGES["halted"]), code=self.code)

    def row(self) -> tuple[str, str, bool, bool]:
        """Plain values, from which `Stop.of` makes an equal one."""
        return self.target, self.code, self.interrupts, self.admin

    @classmethod
    def of(cls, row: tuple[str, str, bool, bool]) -> Stop:
        target, code, interrupts, admin = row
        return cls(target, code, interrupts=interrupts, admin=admin)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stop) and self.row() == other.row()

    def __hash__(self) -> int:
        return hash(self.row())

    def __repr__(self) -> str:
        return f"Stop{self.row()}"


def halt(target: str) -> Stop:
    """The stop that a halt of this target is."""
    return Stop(target, admin=target.partition("/")[0] in ("key", "agent", "user"))


def check_target(target: str) -> str:
    """The target itself. Raises ConfigError when it cannot be one."""
    if not target.endswith("\n") and _TARGET.match(target):
        return target
    kind, slash, _ = target.partition("/")
    if kind == EVERYTHING and slash:
        raise ConfigError(f"{target[:80]!r} is not a target: {EVERYTHING!r} stands alone")
    raise ConfigError(f"{target[:80]!r} is not a target; write {', '.join(f'{kind}/NAME' for kind in KINDS)} or {EVERYTHING}")


class Standing:
    """All stops of a process, by where they come from. For one event loop. `change` does not look at those that stay.

    active: whether anything is stopped. changed: called after each change with the name of its source, so that requests under way end.
    exchanged: the same, with the stops that are new or different and the targets that go on.
    """

    def __init__(self) -> None:
        self.active = False
        self.changed: list[Callable[[str], None]] = []
        self.exchanged: list[Callable[[str, list[Stop], list[str]], None]] = []
        self._sources: dict[str, dict[str, tuple[Stop, ...]]] = {}
        """By source and target."""
        self._stops: dict[str, tuple[Stop, ...]] = {}
        """By target; several where several sources stop the same."""

    def replace(self, source: str, stops: Iterable[Stop]) -> bool:
        """From now on these are all stops of one source. Returns whether that is a change."""
        wanted, before = _by_target(stops), self._sources.get(source, {})
        put = {target: found for target, found in wanted.items() if before.get(target) != found}
        return self._exchange(source, put, [target for target in before if target not in wanted])

    def change(self, source: str, stops: Iterable[Stop], dropped: Iterable[str] = ()) -> bool:
        """These are all stops of their targets from now on, and there are none of the targets that are dropped; the source's others stay.
        Returns whether that is a change."""
        wanted, before = _by_target(stops), self._sources.get(source, {})
        put = {target: found for target, found in wanted.items() if before.get(target) != found}
        return self._exchange(source, put, [target for target in dict.fromkeys(dropped) if target in before and target not in wanted])

    def _exchange(self, source: str, put: dict[str, tuple[Stop, ...]], dropped: list[str]) -> bool:
        if not put and not dropped:
            return False
        known = self._sources.setdefault(source, {})
        known.update(put)
        for target in dropped:
            del known[target]
        if not known:
            del self._sources[source]
        others = [self._sources[name] for name in sorted(self._sources)]
        for target in (*put, *dropped):
            found = tuple([stop for other in others for stop in other.get(target, ())])
            if found:
                self._stops[target] = found
            else:
                self._stops.pop(target, None)
        self.active = bool(self._stops)
        stops = [stop for found in put.values() for stop in found]
        for tell in self.exchanged:
            tell(source, stops, dropped)
        for hear in self.changed:
            hear(source)
        return True

    def sources(self) -> dict[str, list[tuple[str, str, bool, bool]]]:
        """The rows of all stops by source, for another process."""
        return {source: self.rows(source) for source in self._sources}

    def rows(self, source: str) -> list[tuple[str, str, bool, bool]]:
        """The rows of the stops of one source."""
        return sorted([stop.row() for found in self._sources.get(source, {}).values() for stop in found])

    def of(self, principal: Principal, *, admin: bool = False) -> Stop | None:
        """The stop that concerns this caller, or None. admin: on the admin listener."""
        for target in _targets(principal):
            for stop in self._stops.get(target, ()):
                if stop.admin or not admin:
                    return stop
        return None

    def of_model(self, *names: str) -> Stop | None:
        """The stop of a model under any of its names, or None."""
        for name in names:
            found = self._stops.get(f"model/{name}")
            if found is not None:
                return found[0]
        return None

    def admit(self, principal: Principal, *, admin: bool = False) -> None:
        """Raises PermissionDenied for a caller who is stopped."""
        stop = self.of(principal, admin=admin)
        if stop is not None:
            raise stop.error()

    def admit_model(self, *names: str) -> None:
        """Raises PermissionDenied for a model that is stopped under any of its names."""
        stop = self.of_model(*names)
        if stop is not None:
            raise stop.error()


def _by_target(stops: Iterable[Stop]) -> dict[str, tuple[Stop, ...]]:
    found: dict[str, tuple[Stop, ...]] = {}
    for stop in stops:
        known = found.get(stop.target)
        found[stop.target] = (stop,) if known is None else tuple(sorted({*known, stop}, key=Stop.row))
    return found


def _targets(principal: Principal) -> tuple[str, ...]:
    tenant = principal.tenant
    found = [EVERYTHING, f"tenant/{tenant}"]
    if principal.kind == "api_key":
        found.append(f"key/{principal.id}")
    user = principal.user or ("" if principal.kind == "api_key" else principal.id)
    if user:
        found += (f"user/{user}", f"user/{user}@{tenant}")
    if principal.agent:
        found.append(f"agent/{principal.agent}")
    if principal.login is not None:
        found += [f"agent/{name}" for name in principal.login.actors if name != principal.agent]
        for one in principal.login.acting:  # whoever may not act for themselves may not act for others
            name = one.user or one.id
            found += (f"user/{name}", f"user/{name}@{tenant}")
    return tuple(found)
