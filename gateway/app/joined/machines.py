"""Machines that have joined, as one gateway knows them: who they are (the store), whether they are there (their beats), what they bring.

The store keeps who joined and what that machine may serve; whether it is there each gateway judges by itself, from the beats that reach it.
A machine says where it is and which of its engines are up. Everything else (which models they serve, which data they may see, what they
cost) is the gateway's configuration.
"""

from __future__ import annotations

import ipaddress
import logging
import secrets
from base64 import b64decode
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.app.engines.tickets import TicketOffice
from gateway.app.engines.upstreams import permitted
from gateway.app.joined.authority import Authorities
from gateway.app.joined.failing import Failing, Sight, sight
from gateway.app.joined.placing import Host, Pair
from gateway.app.store.following import Followed
from gateway.config.expand import Machines, OnMachine
from gateway.config.merge import Merged
from gateway.core.clock import Clock
from gateway.core.engine_copies import AT
from gateway.core.errors import AlreadyExists, AuthenticationError, GatehouseError, NotFound, StoreUnavailable, VersionMismatch
from gateway.core.host_port import HostPort
from gateway.core.joining import Beat, Heard, Joined, Joining, JoinToken, Machine, TicketPort, host_of, token_hash
from gateway.core.placing import orders_host_of
from gateway.core.specs import EngineSpec
from gateway.core.specs.fleet import JoinedSpec
from gateway.core.storage import ControlStore, Resource
from gateway.core.tasks import TaskOwner
from gateway.routing.health import Probe, ProbeResult
from gateway.routing.leases import Leases, down, up
from gateway.routing.registry import EndpointRegistry
from policies.patterns import matches

log = logging.getLogger("gatehouse.machines")
KIND: Final = "machines"
TOKENS: Final = "join_tokens"
BEATS_A_LEASE: Final = 4
LOOK_SECONDS: Final = 0.1
RENEW_SECONDS: Final = 60.0
TRIES: Final = 5
"""Tries at counting one use of a join token, which others may be using at the same moment."""
_ANYWHERE: Final = EngineSpec(name="any", runtime="external", joined=JoinedSpec())
Record = Callable[[str, str, dict[str, Any]], None]


class JoinedMachines:
    """Life: `start` after the store and before the first build; `begin` once the configuration is in force; the owner ends its tasks.

    changed: has the configuration built again. record: (event, machine, detail) for the audit log.
    """

    def __init__(
        self,
        store: ControlStore,
        secret: Callable[[str], bytes],
        folder: Path,
        replica: str,
        clock: Clock,
        registry: EndpointRegistry,
        changed: Callable[[], None],
        record: Record,
        owner: TaskOwner,
    ) -> None:
        self._store, self._secret, self._folder, self._replica = store, secret, folder, replica
        self._clock, self._registry, self._changed, self._record, self._owner = clock, registry, changed, record, owner
        self._followed = Followed(store, KIND, self._take, owner)
        self._known: dict[str, Machine] = {}
        self._authorities: Authorities | None = None
        self._begun = False
        """Whether a configuration is in force, which a change has built again."""
        self._refused: dict[str, str] = {}
        """Why the address of a machine is not used, by machine."""
        self._in_use: Machines = {}
        self._merged: Merged | None = None
        self._to_place: list[EngineSpec] = []
        self.serves_on: Callable[[str, str, bool], bool] = lambda engine, machine, drained: not drained
        """(engine, machine, whether that is drained) -> whether it gets new requests for an engine that is placed. Set by the placement."""
        self.fences: Callable[[], dict[str, int]] = dict
        """The fences of the engines that this gateway places. Set by the placement."""
        self.failing: Failing | None = None
        """What it sees of placed engines that fail. Set by the placement."""
        self.leases = Leases(clock, 1.5, lambda: secrets.token_urlsafe(24), self._moved)
        self.heard = self._followed.heard
        self.office: TicketOffice | None = None
        """Set by the composition root: what machines are told of tickets, and tell."""

    async def start(self) -> None:
        """Raises StoreUnavailable."""
        await self._followed.start()

    def begin(self) -> None:
        self._begun = True
        self._owner.every(LOOK_SECONDS, self._look, name="leases of machines")
        self._owner.every(RENEW_SECONDS, self._renew, name="certificate for machines")

    # --- what routing is told

    def members(self, merged: Merged) -> Machines:
        """Which machines bring which engines of a configuration."""
        self.leases.lease, self._merged = merged.spec.machines.lease, merged
        wanted = [engine for engine in merged.spec.engines if engine.joined is not None]
        self._to_place = [engine for engine in wanted if engine.joined is not None and engine.joined.place is not None]
        if not wanted or not self._known:
            self._in_use = {}
            return self._in_use
        tls = self.authorities.tls
        self._refused = {}
        self._in_use = {
            engine.name: tuple(
                OnMachine(name, host_of(name, engine.name), place, tls)
                for name, machine in sorted(self._known.items())
                if self._in_rotation(engine, name, machine.drained) and (place := self._place(name, machine, engine, merged)) is not None
            )
            for engine in wanted
        }
        return self._in_use

    def _in_rotation(self, engine: EngineSpec, name: str, drained: bool) -> bool:
        placed = engine.joined is not None and engine.joined.place is not None
        return self.serves_on(engine.name, name, drained) if placed else not drained

    def _place(self, name: str, machine: Machine, engine: EngineSpec, merged: Merged) -> HostPort | None:
        """Where a machine has an engine; None where it does not bring it, or may not."""
        lease = self.leases.machines.get(name)
        if lease is None or lease.beat is None or engine.name not in up(lease.beat):
            return None
        assert engine.joined is not None
        if not any(matches(p, name) for p in engine.joined.machines) or not any(matches(p, engine.name) for p in machine.engines):
            return None
        place = self._address(name, lease.beat, engine, merged)
        if place is None:
            self._refused[name] = f"{lease.beat.address} is not where machines may be (engines[].joined.networks, store.upstreams)"
        return place

    def _address(self, name: str, beat: Beat, engine: EngineSpec, merged: Merged) -> HostPort | None:
        """Where a machine is reached for an engine; None where machines may not be."""
        assert engine.joined is not None
        place = parse_address(beat.address)
        upstreams = merged.spec.store.upstreams if ("engines", engine.name) in merged.revisions else None
        if place is None or not permitted(place.host, engine.joined.networks, f"https://{host_of(name, engine.name)}", upstreams):
            return None
        return place

    # --- what placement is told

    def placeable(self) -> tuple[Merged | None, list[EngineSpec]]:
        """(the configuration as it was last built, its engines that are to be placed on machines)."""
        return self._merged, self._to_place

    def hosts(self) -> list[Host]:
        """The machines that start engines for gateways, as this gateway hears them."""
        now, found = self._clock.monotonic(), []
        for name, machine in sorted(self._known.items()):
            lease = self.leases.machines.get(name)
            if lease is None or lease.beat is None or lease.beat.room is None:
                continue
            since = now - lease.since
            silent = since if lease.state == "lost" else None
            told = (lease.beat.room, up(lease.beat), True, down(lease.beat))
            found.append(Host(name, machine.engines, machine.drained, silent, since, *told))
        return found

    def sights(self, hosts: list[Host]) -> dict[Pair, Sight]:
        """What this gateway sees of engines at machines that are heard: of those in use, and of those that these hosts hold."""
        found: dict[Pair, Sight] = {}
        for engine, brought in self._in_use.items():
            for one in brought:
                endpoint = self._registry.find(f"{engine}{AT}{one.machine}")
                if endpoint is not None and self.leases.out(one.machine) is None:
                    beat = self.leases.machines[one.machine].beat
                    found[engine, one.machine] = Sight("") if beat is None else sight(engine, up(beat), down(beat), endpoint)
        for host in hosts:
            for placed in host.room.placed if host.silent is None else ():
                found.setdefault((placed.name, host.name), sight(placed.name, host.ready, host.broken, None))
        return found

    @property
    def all_heard(self) -> bool:
        """Whether every machine that has joined is there, so that nothing runs anywhere that this gateway does not know."""
        return all((lease := self.leases.machines.get(name)) is not None and lease.state == "there" for name in self._known)

    def ear(self, name: str, engine: EngineSpec | None) -> OnMachine | None:
        """Where a machine takes orders for an engine; None where it is not there, or may not be. engine: None: one that is no longer in the
        configuration. Raises OSError."""
        lease, merged = self.leases.machines.get(name), self._merged
        if name not in self._known or lease is None or lease.beat is None or lease.state == "lost" or merged is None:
            return None
        known = [engine] if engine is not None else [one for one in merged.spec.engines if one.joined is not None] or [_ANYWHERE]
        place = next((at for one in known if (at := self._address(name, lease.beat, one, merged)) is not None), None)
        return None if place is None else OnMachine(name, orders_host_of(name), place, self.authorities.tls)

    def probe(self, inner: Probe) -> Probe:
        """A probe that finds engines of machines whose lease is over refused, without asking."""
        return LeasedProbe(inner, self.leases)

    @property
    def authorities(self) -> Authorities:
        """Made when they are first needed: whoever has no machines needs no certificate. Raises OSError."""
        if self._authorities is None:
            both = self._secret("authority of machines"), self._secret("authority of gateways")
            made = Authorities(both, self._folder, self._replica)
            made.renew(self._today())
            self._authorities = made
        return self._authorities

    # --- what machines say

    async def join(self, token: str, asked: Joining, *, told: bool = True) -> Joined:
        """Takes a machine in. A machine that is known already, by the same key, gets a certificate again and uses nothing of the token.
        Raises AuthenticationError for a token that is not good for that, GatehouseError (409) for another's name. told: whether
        a token that is not good is recorded."""
        found, stored = await self._token(token, asked.name, told=told)
        known = await self._stored(asked.name)
        if known is None:
            await self._use(found, stored, asked)
        elif known.public_key != asked.public_key:
            self._record("machine_refused", asked.name, {"reason": "name_taken", "token": found.name})
            raise GatehouseError(
                f"There is a machine {asked.name!r} with another key: choose another name, or remove it first "
                f"(gatehouse machines remove {asked.name}).",
                code="name_taken",
                status=409,
            )
        certificate = self.authorities.for_machine(asked.name, b64decode(asked.public_key), self._today())
        return Joined(name=asked.name, certificate=certificate, gateways=self.authorities.gateways, every=self._every)

    async def beat(self, name: str, beat: Beat) -> Heard:
        """Takes a beat that the machine has signed. Raises leases' errors."""
        machine = self._known[name]
        self.leases.heard(name, beat)
        answer = Heard(every=self._every, drained=machine.drained, now=self._clock.wall())
        if self.office is not None:  # also where it says that it takes no tickets now: those that run may have to end
            told = {"tickets": self.office.public, "withdrawn": self.office.withdrawn(name), "replicas": self.office.replicas}
            answer = msgspec.structs.replace(answer, **told)
        if beat.room is not None and (fences := self.fences()):
            answer = msgspec.structs.replace(answer, fences=fences)
        if beat.renew:
            certificate = self.authorities.for_machine(name, b64decode(machine.public_key), self._today())
            return msgspec.structs.replace(answer, certificate=certificate, gateways=self.authorities.gateways)
        return answer

    def ticket_port(self, name: str) -> TicketPort | None:
        """Where a machine that is there takes tickets; None where it does not, or is drained."""
        machine, lease = self._known.get(name), self.leases.machines.get(name)
        if machine is None or machine.drained or lease is None or lease.beat is None or self.leases.out(name) is not None:
            return None
        port = lease.beat.tickets
        return None if port is None or parse_address(port.address) is None else port

    async def key_of(self, name: str, *, ask: bool) -> bytes | None:
        """The public key of a machine. ask: the store too, as one that this replica has not heard of may have joined at another a moment
        ago."""
        machine = self._known.get(name)
        if machine is None and ask:
            async with self._followed.lock:  # lest a removal that is heard meanwhile be undone
                machine = self._known.get(name) or await self._stored(name)
                if machine is not None:
                    self._known[name] = machine
        return None if machine is None else b64decode(machine.public_key)

    async def _stored(self, name: str) -> Machine | None:
        try:
            return msgspec.convert((await self._store.get(KIND, name)).body, Machine)
        except NotFound:
            return None

    async def _token(self, token: str, name: str, *, told: bool) -> tuple[Resource, JoinToken]:
        """The token as it is stored. Raises AuthenticationError."""
        id, hashed = token_parts(token)
        try:
            found = await self._store.get(TOKENS, id) if id else None
        except NotFound:
            found = None
        stored = None if found is None else msgspec.convert(found.body, JoinToken)
        reason = ""
        if found is None or stored is None or not secrets.compare_digest(stored.hash, hashed):
            reason = "unknown"
        elif stored.expires <= self._clock.wall():
            reason = "expired"
        elif not any(matches(pattern, name) for pattern in stored.machines):
            reason = "not for this name"
        if reason or found is None or stored is None:
            if told:
                self._record("machine_refused", name, {"reason": reason, "token": id[:64] if found is not None else ""})
            raise AuthenticationError("The join token is not valid for this machine.", code="invalid_join_token")
        return found, stored

    async def _use(self, found: Resource, stored: JoinToken, asked: Joining) -> None:
        """Counts one use of the token, then writes the machine: a failure between the two costs a use, and never gives one away. A machine
        that has had no answer may ask at another replica, while the first one writes it."""
        actor = f"join-token/{found.name}"
        for _ in range(TRIES):
            if stored.left < 1:
                if await self._is_in(asked):
                    return
                self._record("machine_refused", asked.name, {"reason": "used up", "token": found.name})
                raise AuthenticationError("The join token is not valid for this machine.", code="invalid_join_token")
            body = msgspec.to_builtins(msgspec.structs.replace(stored, left=stored.left - 1))
            try:
                await self._store.update(TOKENS, found.name, body, actor=actor, version=found.version)
                break
            except NotFound:
                raise AuthenticationError("The join token is not valid for this machine.", code="invalid_join_token") from None
            except VersionMismatch:
                found = await self._store.get(TOKENS, found.name)
                stored = msgspec.convert(found.body, JoinToken)
        else:
            raise StoreUnavailable("the join token is used by many at once; try again")
        machine = Machine(public_key=asked.public_key, engines=stored.engines, token=found.name)
        async with self._followed.lock:
            try:
                await self._store.create(KIND, asked.name, msgspec.to_builtins(machine), actor=actor)
            except AlreadyExists:
                there = await self._stored(asked.name)
                if there is None or there.public_key != asked.public_key:
                    raise GatehouseError(f"There is a machine {asked.name!r} now.", code="name_taken", status=409) from None
                self._known[asked.name] = there
                return  # it asked again before it was answered, here or at another replica: that costs it a use, too
            self._known[asked.name] = machine
        self._record("machine_admitted", asked.name, {"token": found.name, "engines": list(stored.engines)})

    async def _is_in(self, asked: Joining) -> bool:
        known = await self._stored(asked.name)
        return known is not None and known.public_key == asked.public_key

    # --- what changes

    def _take(self, found: list[Resource]) -> None:
        before, self._known = self._known, {one.name: msgspec.convert(one.body, Machine) for one in found}
        for name, machine in before.items():
            if (now := self._known.get(name)) is None or now.public_key != machine.public_key:
                self.leases.remove(name)
        if before != self._known and self._begun:
            self._changed()

    def _moved(self, name: str, what: str) -> None:
        """A change of a machine's lease."""
        log.log(logging.WARNING if what == "lost" else logging.INFO, "machine %s: %s", name, what)
        lease = self.leases.machines.get(name)
        beat = None if lease is None else lease.beat
        detail: dict[str, Any] = {} if beat is None else {"address": beat.address, "engines": sorted(up(beat))}
        self._record(f"machine_{what}", name, detail)
        if what in ("lost", "returned"):
            for endpoint in self._registry.in_force():
                if endpoint.spec.joined is not None and endpoint.name.endswith(f"{AT}{name}"):
                    self._registry.suspect(endpoint)
        else:
            self._changed()

    async def _look(self) -> None:
        self.leases.look()

    async def _renew(self) -> None:
        if self._authorities is not None and self._authorities.renew(self._today()):
            self._changed()

    def _today(self) -> datetime:
        return datetime.fromtimestamp(self._clock.wall(), UTC)

    @property
    def _every(self) -> float:
        return self.leases.lease / BEATS_A_LEASE

    # --- what operators see

    def view(self, name: str) -> dict[str, Any]:
        """What this gateway has heard of a machine."""
        lease = self.leases.machines.get(name)
        beat = None if lease is None else lease.beat
        if lease is None or beat is None:
            return {"state": "away", "address": None, "seen": None, "serves": [], "engines": [], "load": None, "reason": "not heard here"}
        serves = sorted(engine for engine, machines in self._in_use.items() if any(one.machine == name for one in machines))
        age = self._clock.monotonic() - (lease.due - self.leases.lease)
        return {
            "state": lease.state,
            "address": beat.address,
            "seen": self._clock.wall() - max(0.0, age),
            "serves": serves,
            "engines": [msgspec.to_builtins(engine) for engine in beat.engines],
            "load": msgspec.to_builtins(beat.load),
            "reason": self._refused.get(name) or self.leases.out(name) or ("" if self.failing is None else self.failing.at(name)),
        }

    def collect(self) -> Iterable[Metric]:
        states = GaugeMetricFamily("gatehouse_machines", "Joined machines by what this gateway hears of them", labels=["state"])
        counts: dict[str, int] = {"there": 0, "lost": 0, "away": 0, "drained": 0}
        for name, machine in self._known.items():
            lease = self.leases.machines.get(name)
            state: str = "away" if lease is None or lease.beat is None else lease.state
            counts["drained" if machine.drained else state] += 1
        for state, count in counts.items():
            states.add_metric([state], float(count))
        lost = CounterMetricFamily("gatehouse_machine_leases_lost", "Leases of joined machines that have run out")
        lost.add_metric([], float(self.leases.losses))
        yield from (states, lost)
        yield from self._figures()
        if self.failing is not None:
            yield from self.failing.collect()

    def _figures(self) -> Iterable[Metric]:
        """What machines tell of the engines that they serve."""
        labels = ["machine", "engine"]
        families = (
            GaugeMetricFamily("gatehouse_machine_engine_slots", "Requests that an engine of a machine runs at once", labels=labels),
            GaugeMetricFamily("gatehouse_machine_engine_slots_in_use", "Requests that an engine of a machine runs", labels=labels),
            GaugeMetricFamily("gatehouse_machine_engine_kv_used_ratio", "Share of an engine's KV memory that is in use", labels=labels),
            GaugeMetricFamily("gatehouse_machine_engine_vram_bytes", "Memory of the GPU that is in use", labels=labels),
        )
        for engine, brought in self._in_use.items():
            for one in brought:
                lease = self.leases.machines.get(one.machine)
                told = None if lease is None or lease.beat is None else next((e for e in lease.beat.engines if e.name == engine), None)
                if told is not None:
                    for family, value in zip(families, (told.slots, told.in_use, told.kv_used, told.vram_bytes), strict=True):
                        family.add_metric([one.machine, engine], float(value))
        yield from families


class LeasedProbe:
    """See JoinedMachines.probe. A lease that is over is decisive at once, in this process and in all that follow its probes."""

    def __init__(self, inner: Probe, leases: Leases) -> None:
        self._inner, self._leases = inner, leases
        self.forget, self.aclose = inner.forget, inner.aclose

    async def probe(self, spec: EngineSpec, address: str, timeout: float) -> ProbeResult | None:
        if spec.joined is not None and (reason := self._leases.out(spec.name.rpartition(AT)[2])) is not None:
            return ProbeResult(False, reason, refused=True)
        return await self._inner.probe(spec, address, timeout)


def token_parts(token: str) -> tuple[str, str]:
    """(id, hash of the whole) of a join token `ghj_ID_SECRET`; ("", "") of what is none."""
    from_prefix = token.split("_", 2)
    if len(token) > 128 or len(from_prefix) != 3 or from_prefix[0] != "ghj" or not from_prefix[1].isalnum() or not token.isascii():
        return "", ""
    return from_prefix[1], token_hash(token)


def parse_address(text: str) -> HostPort | None:
    """ADDRESS:PORT; None for what is none."""
    host, _, port = text.rpartition(":")
    try:
        address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536) or getattr(address, "scope_id", None):
        return None
    return HostPort(str(address), int(port))
