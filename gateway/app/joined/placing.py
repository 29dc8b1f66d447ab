"""Which machine is to run which engine: a decision from what machines tell, without any I/O.

An engine stays where it is. While it runs on fewer machines than it should have copies, it gets one more: among those that may run it and
have room, the one that had it before, or else the one with the most memory left. It leaves a machine if there are too many, if the machine
is drained or failing while others serve, or if it could not be started there. A machine that is no longer heard keeps its engines for
`reassign` seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gateway.core.joining import PlacedEngine, Room
from policies.patterns import matches

MARGIN: Final = 0.05
"""Share of the free memory that is left alone, as engines.host.placement does."""
Pair = tuple[str, str]
"""(engine, machine)."""


@dataclass(frozen=True)
class Wish:
    """An engine that is to be placed. machines: patterns. device: `cpu`, `cuda` or GPUs by number. needs: bytes of main memory and of the
    device where it runs as wished; on_cpu: of main memory on the CPU. size: bytes of its files."""

    engine: str
    revision: str
    runtime: str
    machines: tuple[str, ...]
    copies: int
    device: str
    fallback: bool
    needs: tuple[int, int]
    on_cpu: int
    size: int


@dataclass(frozen=True)
class Host:
    """A machine. serves: patterns of the engines that it may run, from its token. silent: seconds since its lease ended; None while it is
    heard. since: seconds for which it has been in its present state. ready, broken: engines that it reports as ready, and as failed."""

    name: str
    serves: tuple[str, ...]
    drained: bool
    silent: float | None
    since: float
    room: Room
    ready: frozenset[str]
    reachable: bool = True
    broken: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Past:
    """What a gateway remembers. under_way: orders that no beat has confirmed yet. barred: machines where an engine came to nothing, for the
    time being, with the reason and its code. had: where engines were before. failing: what is to be moved, one machine of an engine at
    most; over: all that would be; shunned: where it was moved from, for the time being, which is a last resort. well,
    unwell: what serves, or does not, as this gateway sees it (gateway.app.joined.failing)."""

    under_way: Mapping[Pair, str] = field(default_factory=dict)
    barred: Mapping[Pair, tuple[str, str]] = field(default_factory=dict)
    had: frozenset[Pair] = frozenset()
    failing: Mapping[Pair, str] = field(default_factory=dict)
    over: frozenset[Pair] = frozenset()
    shunned: frozenset[Pair] = frozenset()
    well: frozenset[Pair] = frozenset()
    unwell: frozenset[Pair] = frozenset()


@dataclass
class Decision:
    """put: (engine, machine) -> device. why: engines that lack a machine, with the reason and its code. moving: engines that leave a
    drained machine, and serve there until others do."""

    put: dict[Pair, str] = field(default_factory=dict)
    remove: list[Pair] = field(default_factory=list)
    why: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    moving: set[Pair] = field(default_factory=set)


@dataclass
class _Left:
    """What a machine has left in this decision."""

    memory: int
    disk: int
    engines: int
    devices: dict[str, int | None]


def decide(wishes: Sequence[Wish], hosts: Sequence[Host], past: Past, reassign: float) -> Decision:
    """What is to be done now. Called again with each change, and several times a second: it repeats nothing that is under way."""
    made = Decision()
    left = {host.name: _left(host) for host in hosts}
    known = {wish.engine: wish for wish in wishes}
    for (engine, machine), device in past.under_way.items():
        host = next((one for one in hosts if one.name == machine), None)
        if engine in known and host is not None and engine not in _placed(host):
            _take(left[machine], known[engine], device)
    for wish in wishes:
        _decide(wish, hosts, past, reassign, left, made)
    for host in hosts:
        for engine in _placed(host):
            if engine not in known and host.silent is None:
                made.remove.append((engine, host.name))
    return made


def outdated(wishes: Sequence[Wish], hosts: Sequence[Host]) -> set[Pair]:
    """Where an older version of an engine serves although another machine has the new one ready: it is being replaced, or the gateway that
    places the engine does not hear that machine. One whose replacement has failed there is meant to go on."""
    found = set()
    for wish in wishes:
        new = {host.name for host in hosts if (one := _placed(host).get(wish.engine)) is not None and one.revision == wish.revision}
        if any(host.name in new and host.silent is None and wish.engine in host.ready for host in hosts):
            found |= {
                (wish.engine, host.name)
                for host in hosts
                if host.name not in new and (one := _placed(host).get(wish.engine)) is not None and one.failed != wish.revision
            }
    return found


def _decide(wish: Wish, hosts: Sequence[Host], past: Past, reassign: float, left: dict[str, _Left], made: Decision) -> None:
    holding, leaving, silent, failing = [], [], [], []
    for host in hosts:
        placed = _placed(host).get(wish.engine)
        if placed is None:
            continue
        pair = (wish.engine, host.name)
        if host.silent is not None:
            if not host.drained and host.silent <= reassign:
                silent.append(host)
        elif placed.failed == placed.revision:
            made.remove.append(pair)
        elif not _may(wish, host) or host.drained:
            leaving.append(host)
        elif pair in past.failing:
            failing.append(host)
        else:
            holding.append(host)
            old = placed.revision != wish.revision and pair not in past.barred and pair not in past.under_way
            if old and (device := _device(wish, left[host.name], of=host.room)) is not None:
                made.put[pair] = device
    coming = [machine for engine, machine in past.under_way if engine == wish.engine and machine not in {one.name for one in holding}]
    lacking = wish.copies - len(holding) - len(silent) - len(coming)
    taken = {host.name for host in (*holding, *leaving, *silent, *failing)} | set(coming)
    while lacking > 0:
        again = lacking > len(failing)  # to replace what fails, a machine where it failed before is none
        free = [host for host in hosts if host.name not in taken and (again or (wish.engine, host.name) not in past.shunned)]
        if (found := _best(wish, free, past, left)) is None:
            break
        name, device = found
        made.put[wish.engine, name] = device
        _take(left[name], wish, device)
        taken.add(name)
        lacking -= 1
    if lacking > 0:
        made.why[wish.engine] = _reason(wish, [host for host in hosts if host.name not in taken], past)
    _release(wish, holding, leaving, lacking, past, made)
    if failing and lacking <= 0:
        others = {(wish.engine, host.name) for host in holding}
        if len(others & past.well) >= max(1, wish.copies - len(others & past.over)):
            made.remove += [(wish.engine, host.name) for host in failing]


def _release(wish: Wish, holding: list[Host], leaving: list[Host], lacking: int, past: Past, made: Decision) -> None:
    """Takes the engine from machines that it must leave, then from surplus ones: first those that do not serve it, then those that came
    back last."""
    ready = [host for host in holding if wish.engine in host.ready and (wish.engine, host.name) not in past.unwell]
    enough = len(ready) >= wish.copies
    for host in leaving:
        if enough or wish.engine not in host.ready:
            made.remove.append((wish.engine, host.name))
        elif lacking <= 0 and host.drained:
            made.moving.add((wish.engine, host.name))
    if enough:
        loading = [host for host in holding if host not in ready]
        for host in (*loading, *sorted(ready, key=lambda host: host.since))[: len(holding) - wish.copies]:
            made.remove.append((wish.engine, host.name))
            made.put.pop((wish.engine, host.name), None)


def _best(wish: Wish, hosts: Iterable[Host], past: Past, left: dict[str, _Left]) -> tuple[str, str] | None:
    """(machine, device), None: it fits nowhere."""
    best: tuple[tuple[bool, bool, bool, int, str], str, str] | None = None
    for host in hosts:
        if not _open(wish, host) or (wish.engine, host.name) in past.barred:
            continue
        room = left[host.name]
        device = _device(wish, room)
        if device is None or room.engines < 1 or room.disk < wish.size:
            continue
        wished = device == "cpu" or wish.device != "cpu"
        pair = (wish.engine, host.name)
        rank = (pair not in past.shunned, (wish.device != "cpu") == (device != "cpu"), pair in past.had and wished, room.memory, host.name)
        if best is None or rank > best[0]:
            best = rank, host.name, device
    return None if best is None else (best[1], best[2])


def _device(wish: Wish, room: _Left, of: Room | None = None) -> str | None:
    """Where on a machine the engine fits. of: the machine's room where it has an older version of the engine, which the new one replaces:
    the machine itself says whether it fits then."""
    replaces = of is not None
    usable = int(room.memory * (1 - MARGIN))
    if wish.device == "cpu":
        return "cpu" if "cpu" in room.devices and (replaces or wish.on_cpu <= usable) else None
    if replaces or wish.needs[0] <= usable:
        names = [name for name in room.devices if name != "cpu"]
        if wish.device != "cuda":
            numbers = [f"cuda:{number}" for number in wish.device.partition(":")[2].split(",")]
            if all(name in names for name in numbers) and (replaces or _fits(wish.needs[1], [room.devices[name] for name in numbers])):
                return wish.device
        else:
            fitting = [name for name in names if replaces or _fits(wish.needs[1], [room.devices[name]])]
            if fitting:
                return max(fitting, key=lambda name: room.devices[name] or 0)
    if wish.fallback and "cpu" in room.devices and (replaces or wish.on_cpu <= usable):
        return "cpu"
    return None


def _fits(needed: int, free: list[int | None]) -> bool:
    """Where a machine cannot say what is free, its supervisor finds out."""
    known = [one for one in free if one is not None]
    return len(known) < len(free) or needed <= sum(known) * (1 - MARGIN)


def _take(room: _Left, wish: Wish, device: str) -> None:
    room.engines -= 1
    room.disk -= wish.size
    if device == "cpu":
        room.memory -= wish.on_cpu
        return
    room.memory -= wish.needs[0]
    names = [f"cuda:{number}" for number in device.partition(":")[2].split(",")]
    for name in names:
        if (free := room.devices.get(name)) is not None:
            room.devices[name] = max(0, free - wish.needs[1] // len(names))


def _left(host: Host) -> _Left:
    devices: dict[str, int | None] = {one.device: one.free for one in host.room.devices}
    if host.room.cpu:
        devices["cpu"] = None
    return _Left(host.room.memory, host.room.disk, host.room.engines, devices)


def _may(wish: Wish, host: Host) -> bool:
    return any(matches(p, host.name) for p in wish.machines) and any(matches(p, wish.engine) for p in host.serves) and host.reachable


def _open(wish: Wish, host: Host) -> bool:
    return host.silent is None and not host.drained and _may(wish, host) and wish.runtime in host.room.runtimes


def _reason(wish: Wish, hosts: list[Host], past: Past) -> tuple[str, str | None]:
    """Why there is no further machine for an engine, and the error's code."""
    able = [host for host in hosts if _open(wish, host)]
    if not able:
        return "no machine that is there may start it (joined.machines, the machines' join tokens and `accepts`)", None
    tried = [(host.name, *past.barred[wish.engine, host.name]) for host in able if (wish.engine, host.name) in past.barred]
    if len(tried) == len(able):
        why = "; ".join(f"{machine}: {reason}" for machine, reason, _ in tried[:3])
        return f"{why} (it is tried again)", "insufficient_memory" if all(code == "insufficient_memory" for *_, code in tried) else None
    wanted = wish.on_cpu if wish.device == "cpu" else wish.needs[1]
    most = max(host.room.memory for host in able)
    return (
        f"it fits on no machine: {wanted >> 20} MiB on {wish.device} and {wish.size >> 20} MiB of disk needed, and at most "
        f"{most >> 20} MiB of main memory are free ({', '.join(host.name for host in able)})",
        "insufficient_memory",
    )


def _placed(host: Host) -> dict[str, PlacedEngine]:
    return {one.name: one for one in host.room.placed}
