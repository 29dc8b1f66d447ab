"""Has joined machines start the engines that the configuration places on them (`engines[].joined.place`): looks several times a second what
`placing.decide` makes of what machines tell, sends model files and orders, and says why an engine is nowhere.

Of several gateways on one store, one places an engine: whoever holds the engine's lease, which only a gateway with the model's file takes.
All of them decide, so that each can tell its clients why there is no machine; what machines run already they learn from beats alone, so a
gateway that takes over, or starts anew, moves nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from engines.host.lifecycle import backoff
from engines.host.memory_ledger import MemoryLedger
from engines.runtimes import RUNTIMES
from gateway.app.joined.failing import Failing
from gateway.app.joined.machines import JoinedMachines
from gateway.app.joined.placing import Decision, Host, Pair, Past, Wish, decide, outdated
from gateway.app.joined.sending import Sending
from gateway.core.clock import Clock
from gateway.core.errors import GatehouseError, StoreUnavailable
from gateway.core.pauses import Pauses
from gateway.core.placing import OPTIONS, FilePath, Order, SentFile
from gateway.core.ports import EndpointObserver
from gateway.core.specs import EngineSpec
from gateway.core.specs.fleet import PlaceSpec
from gateway.core.storage import ControlStore, Lease
from gateway.core.tasks import TaskOwner

log = logging.getLogger("gatehouse.machines")
LOOK_SECONDS: Final = 0.25
HOLD: Final = 5.0
LEAST_HOLD: Final = 2.0
"""Seconds for which the lease of an engine lasts: as long as `machines.reassign`, within these bounds."""
RENEWALS: Final = 3.5
"""How often a lease is renewed in the time for which it is given."""
TAKE: Final = 1.0
LEASES_FIRST: Final = 2.0
"""Machines' leases that pass after the start before anything is placed, unless all machines are heard sooner: what runs somewhere is known
then."""
CONFIRM: Final = 15.0
"""Seconds after an order within which a beat tells of it."""
TOLD_AFTER: Final = 1.0
"""Seconds after an order until a failure that the machine tells is that order's, and not an earlier one's."""
AGAIN: Final = 5.0
"""Between two tries to read a model that could not be read, or to end an engine where that could not be said."""
AT_ONCE: Final = 4
"""Machines that are sent to at a time."""
LEAVE_SECONDS: Final = 1.0
"""From when an engine gets no new requests at a machine until the machine is told to end it. Those under way have the sidecar's drain."""
CHANGED: Final = ("checksum_mismatch", "model_invalid", "storage_failed")
"""The codes of an order whose files are not what was read of the model, or not there: it may have been replaced, and is read again."""
OVERTAKEN: Final = "stale_order"
"""The code of an order by a gateway that another one has overtaken; machines answer with it too."""
OLD_SECONDS: Final = 600.0
"""After which an older version of an engine, which nobody has replaced, gets no new requests from here."""
MOVE_SECONDS: Final = 600.0
"""How long an engine goes on serving at a drained machine while it is being started elsewhere."""
Contents = Callable[[str], Awaitable[tuple[Path, list[tuple[Path, int, str]]]]]
"""(name of a model) -> its first file or folder, and its files with size and SHA-256. Raises GatehouseError."""


@dataclass(frozen=True)
class _Model:
    """What placing needs to know of an engine's model. place: the settings for which this holds. problem: why there is none."""

    place: PlaceSpec
    files: tuple[tuple[Path, SentFile], ...] = ()
    path: str = ""
    revision: str = ""
    needs: tuple[int, int] = (0, 0)
    on_cpu: int = 0
    problem: str = ""
    looked: float = 0.0


@dataclass
class _Bar:
    """A machine where an engine came to nothing. until: monotonic seconds."""

    revision: str
    times: int
    until: float
    reason: str
    code: str


@dataclass
class _Sent:
    """An order on its way. ordered: when the machine took it, monotonic seconds."""

    device: str
    task: asyncio.Task[None] | None = None
    ordered: float | None = None


@dataclass
class _Held:
    """The lease of an engine. until: monotonic seconds up to which nobody else can have it, counted from before it was asked for. A gateway
    that was paused finds it over when it goes on."""

    lease: Lease | None = None
    until: float = float("-inf")
    looked: float = float("-inf")
    busy: bool = field(default=False)


class Placement:
    """holder: names this process in leases. changed: has the configuration built again. record: (event, engine, detail) for the audit log.
    Life: `begin`, `aclose`."""

    def __init__(
        self,
        machines: JoinedMachines,
        contents: Contents,
        traffic: EndpointObserver,
        store: ControlStore,
        holder: str,
        clock: Clock,
        changed: Callable[[], None],
        record: Callable[[str, str, dict[str, Any]], None],
    ) -> None:
        self._machines, self._contents, self._traffic, self._store = machines, contents, traffic, store
        self._holder, self._now, self._changed, self._record = holder, clock.monotonic, changed, record
        self._owner = TaskOwner("placement")
        self._ledger = MemoryLedger()
        self._models: dict[str, _Model] = {}
        self._reading: set[str] = set()
        self._bars: dict[Pair, _Bar] = {}
        self._sent: dict[Pair, _Sent] = {}
        self._ending: dict[Pair, float] = {}
        """Engines that machines were told to end, and when they may be told again."""
        self._had: set[Pair] = set()
        self._held: dict[str, _Held] = {}
        self._told: dict[str, tuple[str, str | None]] = {}
        self._outdated: dict[Pair, float] = {}
        """Older versions of engines, and since when another machine has had the new one."""
        self._old: frozenset[Pair] = frozenset()
        self._drained: dict[Pair, float] = {}
        self._moving: frozenset[Pair] = frozenset()
        self._leaving: dict[Pair, float] = {}
        """Engines that are to end somewhere, and since when: they get no new requests there."""
        self._seen_drained: frozenset[str] = frozenset()
        self._sending = asyncio.Semaphore(AT_ONCE)
        self._begun, self._hold = float("inf"), HOLD
        self._failing = Failing(self._now, record)
        self._pauses = Pauses(LOOK_SECONDS, self._now())
        machines.serves_on, machines.fences, machines.failing = self._serves_on, self._fences, self._failing

    def begin(self) -> None:
        self._begun = self._now()
        self._owner.every(LOOK_SECONDS, self._look, name="machines")

    def _serves_on(self, engine: str, machine: str, drained: bool) -> bool:
        """Whether a machine gets new requests for an engine that is placed: also while it is drained, until the engine is elsewhere, and
        not once it is to end there."""
        if (engine, machine) in self._leaving or (engine, machine) in self._old:
            return False
        return not drained or (engine, machine) in self._moving or machine not in self._seen_drained

    async def aclose(self) -> None:
        """Gives the leases back, so that another gateway goes on at once."""
        await self._owner.aclose()
        for held in self._held.values():
            if held.lease is not None:
                try:
                    await self._store.finish_lease(held.lease, done=False)
                except GatehouseError as error:
                    log.debug("the lease of a placed engine could not be given back: %s", error.message)

    # --- several times a second

    async def _look(self) -> None:
        merged, engines = self._machines.placeable()
        hosts = self._machines.hosts()
        if merged is None or not (engines or self._held or any(host.room.placed for host in hosts)):
            return
        by_name = {engine.name: engine for engine in engines}
        wishes = [wish for engine in engines if (wish := self._wish(engine)) is not None]
        hosts = [self._reachable(host, by_name) for host in hosts]
        self._learn(hosts, wishes)
        decision = decide(wishes, hosts, self._past(wishes, hosts, merged.spec.machines.failing), merged.spec.machines.reassign)
        wished = {wish.engine for wish in wishes}  # an engine whose model cannot be read here may be another replica's to place
        decision.remove = [pair for pair in decision.remove if pair[0] in wished or pair[0] not in by_name]
        self._move(decision, hosts, outdated(wishes, hosts))
        self._tell(by_name, decision, hosts)
        settings = merged.spec.machines
        self._hold = min(HOLD, max(LEAST_HOLD, settings.reassign))
        if self._now() - self._begun < LEASES_FIRST * settings.lease and not self._machines.all_heard:
            return
        for engine in {*wished, *(pair[0] for pair in decision.remove), *self._held}:
            self._keep_lease(engine, wanted=engine in by_name or any(pair[0] == engine for pair in decision.remove))
        for pair, device in decision.put.items():
            self._put(pair, device, by_name[pair[0]])
        for pair in decision.remove:
            self._remove(pair, by_name.get(pair[0]))

    def _past(self, wishes: list[Wish], hosts: list[Host], after: float) -> Past:
        wanted, failing = {wish.engine: wish.revision for wish in wishes}, self._failing
        sights, stood = self._machines.sights(hosts), self._pauses.since(self._now())
        moving = failing.look(hosts, wanted, sights, after, places=lambda engine: self._fence(engine) is not None, stood=stood)
        under_way = {pair: sent.device for pair, sent in self._sent.items()}
        return Past(under_way, self._barred(), frozenset(self._had), moving, failing.over, failing.shunned, failing.well, failing.unwell)

    def _reachable(self, host: Host, engines: dict[str, EngineSpec]) -> Host:
        """Whether it is where machines may be, for any of the engines: `ear` looks at each one."""
        there = host.silent is not None or not engines or any(self._machines.ear(host.name, one) is not None for one in engines.values())
        return host if there else replace(host, reachable=False)

    def _learn(self, hosts: list[Host], wishes: list[Wish]) -> None:
        """Learns from the beats of machines which orders were carried out, and which failed."""
        now, wanted = self._now(), {wish.engine: wish.revision for wish in wishes}
        there = {host.name: host for host in hosts}
        for host in hosts:
            for placed in host.room.placed:
                pair = (placed.name, host.name)
                fails, sent = bool(placed.failed) and placed.failed == wanted.get(placed.name), self._sent.get(pair)
                told = wanted.get(placed.name) in (placed.revision, placed.failed)
                if told and sent is not None and sent.ordered is not None and (not fails or now - sent.ordered > TOLD_AFTER):
                    del self._sent[pair]
                if fails and pair not in self._sent:
                    self._bar(pair, placed.failed, placed.reason, placed.code)
                if placed.failed != placed.revision:
                    self._had.add(pair)
        for pair, sent in list(self._sent.items()):
            host_there = there.get(pair[1])
            gone = host_there is None or host_there.silent is not None or host_there.drained or pair[0] not in wanted
            if gone and sent.task is not None:
                sent.task.cancel()
            if gone or (sent.ordered is not None and now - sent.ordered > CONFIRM):
                del self._sent[pair]
        self._had = {pair for pair in self._had if pair[0] in wanted}
        self._bars = {pair: bar for pair, bar in self._bars.items() if wanted.get(pair[0]) == bar.revision}

    def _bar(self, pair: Pair, revision: str, reason: str, code: str) -> None:
        before = self._bars.get(pair)
        if before is not None and before.until > self._now():
            return
        times = 1 if before is None else before.times + 1
        self._bars[pair] = _Bar(revision, times, self._now() + 10 * backoff(times), reason, code)
        log.warning("engine %s could not be started at machine %s: %s", *pair, reason)
        self._record("engine_not_placed", pair[0], {"machine": pair[1], "reason": reason, "code": code})

    def _barred(self) -> dict[Pair, tuple[str, str]]:
        now = self._now()
        return {pair: (bar.reason, bar.code) for pair, bar in self._bars.items() if bar.until > now}

    # --- models

    def _wish(self, engine: EngineSpec) -> Wish | None:
        """None while its model has not been read, or cannot be."""
        assert engine.joined is not None and engine.joined.place is not None
        place, found = engine.joined.place, self._models.get(engine.name)
        stale = found is None or found.place != place or (found.problem and self._now() - found.looked > AGAIN)
        if stale:
            self._look_into(engine.name, place)
        if found is None or found.place != place or found.problem:
            return None
        return Wish(
            engine.name, found.revision, place.runtime, engine.joined.machines, place.copies, place.device, place.fallback == "cpu",
            found.needs, found.on_cpu, sum(file.size for _, file in found.files),
        )  # fmt: skip

    def _look_into(self, engine: str, place: PlaceSpec) -> None:
        if engine not in self._reading:
            self._reading.add(engine)
            self._owner.spawn(self._read(engine, place), name=f"{engine}: model")

    async def _read(self, engine: str, place: PlaceSpec) -> None:
        try:
            self._models[engine] = await self._model(engine, place)
        except GatehouseError as error:
            self._models[engine] = _Model(place, problem=error.message, looked=self._now())
        except OSError as error:
            self._models[engine] = _Model(place, problem=f"the model cannot be read: {error.strerror}", looked=self._now())
        finally:
            self._reading.discard(engine)

    async def _model(self, engine: str, place: PlaceSpec) -> _Model:
        """Raises GatehouseError, OSError."""
        if wrong := sorted(set(place.options) - OPTIONS[place.runtime]):
            raise GatehouseError(f"the option {wrong[0]!r} is not for engines that are placed on machines")
        try:
            msgspec.convert(place.options, RUNTIMES[place.runtime].settings)
        except msgspec.ValidationError as error:
            raise GatehouseError(f"options: {error}") from None
        first, listed = await self._contents(place.model)
        folder = await asyncio.to_thread(first.is_dir)
        files = []
        for path, size, sha256 in listed:
            text = path.relative_to(first.parent).as_posix() if folder else path.name
            try:
                files.append((path, SentFile(path=msgspec.convert(text, FilePath), size=size, sha256=sha256)))
            except msgspec.ValidationError:
                raise GatehouseError(f"the model's file {text!r} has a name that machines do not take; rename it") from None
        spec = EngineSpec(
            name=engine, runtime=place.runtime, model=str(first), device=place.device if place.device != "cuda" else "cuda:0",
            slots=place.slots, context=place.context, options=place.options,
        )  # fmt: skip
        needs = await self._ledger.needs(spec, spec.device)
        on_cpu = needs[0] if place.device == "cpu" else (await self._ledger.needs(spec, "cpu"))[0]
        settings = msgspec.json.encode((place, [file for _, file in files]), order="sorted")
        revision = hashlib.sha256(settings).hexdigest()[:32]
        return _Model(place, tuple(files), first.name, revision, needs, on_cpu, "", self._now())

    # --- who places

    def _keep_lease(self, engine: str, *, wanted: bool) -> None:
        """Takes and renews the lease of an engine that is to be placed here, and gives back one that is not."""
        held, now = self._held.setdefault(engine, _Held()), self._now()
        if not held.busy and now - held.looked >= (TAKE if held.lease is None else self._hold / RENEWALS):
            held.busy, held.looked = True, now
            self._owner.spawn(self._leased(engine, held, wanted=wanted), name=f"{engine}: lease")

    async def _leased(self, engine: str, held: _Held, *, wanted: bool) -> None:
        name, begin, hold = f"place/{engine}"[:255], self._now(), self._hold
        try:
            if not wanted:
                if held.lease is not None:
                    await self._store.finish_lease(held.lease, done=False)
                self._held.pop(engine, None)
            else:
                if held.lease is None:
                    held.lease = await self._store.take_lease(name, self._holder, hold)
                else:
                    held.lease = await self._store.renew_lease(held.lease, hold)
                held.until = begin + hold
        except StoreUnavailable as error:
            log.warning("the lease of the placed engine %s could not be renewed: %s", engine, error.message)
            held.lease = held.lease if self._now() < held.until else None  # another gateway may have it soon
        except GatehouseError as error:
            log.info("the lease of the placed engine %s went to another gateway: %s", engine, error.message)
            held.lease = None
        finally:
            held.busy = False

    def _fence(self, engine: str) -> int | None:
        held = self._held.get(engine)
        return None if held is None or held.lease is None or self._now() >= held.until else held.lease.fence

    def _fences(self) -> dict[str, int]:
        """The fencing numbers of the engines that this gateway places. Machines are told them, and refuse earlier ones."""
        return {engine: fence for engine in self._held if (fence := self._fence(engine)) is not None}

    def _still(self, engine: str, fence: int) -> None:
        """Raises GatehouseError where another gateway may have taken over meanwhile."""
        if self._fence(engine) != fence:
            raise GatehouseError("another gateway places the engine now", code=OVERTAKEN, status=409)

    # --- orders

    def _put(self, pair: Pair, device: str, engine: EngineSpec) -> None:
        model, fence = self._models.get(pair[0]), self._fence(pair[0])
        if fence is None or pair in self._sent or model is None or model.problem:
            return
        sent = self._sent[pair] = _Sent(device)
        sent.task = self._owner.spawn(self._bring(pair, sent, model, engine, fence), name=f"{pair[0]} to {pair[1]}")

    async def _bring(self, pair: Pair, sent: _Sent, model: _Model, engine: EngineSpec, fence: int) -> None:
        """Sends the files and the order."""
        place = model.place
        try:
            ear = self._machines.ear(pair[1], engine)
            if ear is None:
                raise GatehouseError("it is not there, or not where machines may be", code="machine_away")
            sending = Sending(ear)
            try:
                async with self._sending:
                    bytes_ = sum([await sending.file(path, file.size, file.sha256) for path, file in model.files])
                order = Order(
                    fence=fence, revision=model.revision, runtime=place.runtime, model=model.path,
                    files=tuple(file for _, file in model.files), device=sent.device, slots=place.slots, context=place.context,
                    queue=place.queue, threads=place.threads, options=place.options,
                )  # fmt: skip
                self._still(pair[0], fence)
                await sending.order(pair[0], order)
            finally:
                await sending.aclose()
        except TimeoutError:
            self._undone(pair, sent, model.revision, "the machine did not answer in time", "engine_timeout")
        except OSError as error:
            self._undone(pair, sent, model.revision, f"the model cannot be read: {error.strerror}", "storage_failed")
        except GatehouseError as error:
            self._undone(pair, sent, model.revision, error.message, error.code)
        else:
            sent.ordered = self._now()
            log.info("engine %s: machine %s starts it on %s (%d bytes sent)", *pair, sent.device, bytes_)
            detail = {"machine": pair[1], "device": sent.device, "revision": model.revision, "model": place.model, "bytes_sent": bytes_}
            self._record("engine_placed", pair[0], detail)

    def _undone(self, pair: Pair, sent: _Sent, revision: str, reason: str, code: str) -> None:
        if self._sent.get(pair) is sent:
            del self._sent[pair]
            if code == OVERTAKEN:
                log.info("engine %s: not placed at machine %s from here: another gateway places it", *pair)
            else:
                self._bar(pair, revision, reason, code)
                if code in CHANGED and (found := self._models.get(pair[0])) is not None:
                    self._look_into(pair[0], found.place)  # until then the former one counts, and so does that it failed there

    def _remove(self, pair: Pair, engine: EngineSpec | None) -> None:
        fence, now = self._fence(pair[0]), self._now()
        if now - self._leaving.get(pair, now) < LEAVE_SECONDS:
            return  # until all workers and replicas send it nothing more
        if fence is not None and pair not in self._sent and self._ending.get(pair, now) <= now:
            self._ending[pair] = now + CONFIRM
            self._owner.spawn(self._take_away(pair, engine, fence), name=f"{pair[0]} from {pair[1]}")

    async def _take_away(self, pair: Pair, engine: EngineSpec | None, fence: int) -> None:
        try:
            ear = self._machines.ear(pair[1], engine)
            if ear is not None:
                sending = Sending(ear)
                try:
                    self._still(pair[0], fence)
                    await sending.remove(pair[0], fence)
                finally:
                    await sending.aclose()
                log.info("engine %s: machine %s ends it", *pair)
                self._record("engine_unplaced", pair[0], {"machine": pair[1]})
        except (GatehouseError, TimeoutError) as error:
            log.warning("engine %s could not be ended at machine %s: %s", *pair, error)
            self._ending[pair] = self._now() + AGAIN

    # --- what is told

    def _move(self, decision: Decision, hosts: list[Host], found: set[Pair]) -> None:
        """Engines that serve on at a drained machine until others do, for ten minutes at most, and older versions (found) as long."""
        now = self._now()
        self._drained = {pair: self._drained.get(pair, now) for pair in decision.moving}
        moving = frozenset(pair for pair, since in self._drained.items() if now - since < MOVE_SECONDS)
        drained = frozenset(host.name for host in hosts if host.drained)
        leaving = {pair: self._leaving.get(pair, now) for pair in decision.remove}
        self._ending = {pair: again for pair, again in self._ending.items() if pair in leaving}
        self._outdated = {pair: self._outdated.get(pair, now) for pair in found}
        old = frozenset(pair for pair, since in self._outdated.items() if now - since >= OLD_SECONDS)
        for pair in old - self._old:
            log.warning("engine %s at machine %s is an older version that nobody replaces: it gets no requests from here", *pair)
        changed = (moving, drained, old, leaving.keys()) != (self._moving, self._seen_drained, self._old, self._leaving.keys())
        self._moving, self._seen_drained, self._old, self._leaving = moving, drained, old, leaving
        if changed:
            self._changed()

    def _tell(self, engines: dict[str, EngineSpec], decision: Decision, hosts: list[Host]) -> None:
        """Says to routing what an engine that is nowhere waits for, or why it waits for nothing."""
        for name in engines:
            model = self._models.get(name)
            problem = "" if model is None else model.problem
            told = (problem, None) if problem else decision.why.get(name, ("", None))
            if told != self._told.get(name):
                self._told[name] = told
                if told[0]:
                    log.warning("engine %s: not placed: %s", name, told[0])
                    self._traffic.engine_down(name, told[0], told[1])
                else:
                    self._traffic.engine_starting(name)
        for name in self._told.keys() - engines.keys():
            del self._told[name]

    def view(self, engine: str) -> dict[str, Any]:
        """Where an engine is, as operators see it; reason: why it has fewer machines than copies."""
        found = []
        for host in self._machines.hosts():
            for placed in host.room.placed:
                if placed.name == engine:
                    state = "lost" if host.silent is not None else "failed" if placed.failed == placed.revision else "loading"
                    state = "ready" if state == "loading" and engine in host.ready else state
                    why = self._failing.why(engine, host.name) if state in ("ready", "loading") else ""
                    told = {"state": "failing" if why else state, "revision": placed.revision, "reason": why or placed.reason}
                    found.append({"machine": host.name, **told})
        coming = [pair[1] for pair, sent in self._sent.items() if pair[0] == engine and pair[1] not in {one["machine"] for one in found}]
        found += [{"machine": machine, "state": "sending", "revision": "", "reason": ""} for machine in coming]
        reason, code = self._told.get(engine, ("", None))
        return {"machines": found, "reason": reason, "reason_code": code}
