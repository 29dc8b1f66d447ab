"""Admission and selection in one decision: the routes of a snapshot.

`acquire` is synchronous while a slot is free: it compares the state version, computes a key if the policy needs one, chooses, counts, and
returns the attempt. A request waits only when every slot is taken, as a `Waiting` signal in the pool's queue.

Panic mode: when failures have ejected more of a pool than `breaker.max_ejected` allows (one endpoint may always be), ejected endpoints
serve again, but only requests that find no slot at a healthy one, and never those that refuse connections or are down.

A request with data labels takes another route: one over the members alone that are cleared for all of its labels, with a selector and a
queue of its own. Whatever happens to it there (retries, panic, a full queue), no other member can be chosen, because there is none.
"""

from __future__ import annotations

from typing import Any, Final

from gateway.core.errors import GatehouseError, Overloaded, PermissionDenied
from gateway.core.ports import AttemptResult, EngineClient
from gateway.core.prices import SlotTime
from gateway.core.specs import ModelSpec
from gateway.core.types import InferenceRequest, Principal
from gateway.core.waiting import Signal
from gateway.routing.admission import RANKS, AdmissionQueue, Avoids, Entry
from gateway.routing.endpoints import Endpoint
from gateway.routing.full import Rests, answered, avoided, note, over
from gateway.routing.hedging import may_hedge
from gateway.routing.keys import key_function
from gateway.routing.registry import EndpointRegistry
from gateway.routing.retry import RetryBudget
from gateway.routing.ring import Ring
from gateway.routing.selectors import Member, Selector, free, spare
from gateway.routing.unavailable import MAX_RETRY_AFTER, unavailable

_SUCCESS: Final = AttemptResult.SUCCESS
_SMOOTHING: Final = 0.1
"""Weight of the newest observation in the mean time that requests hold their slots."""
UNCOUNTED: Final = 30.0
"""Seconds for which no prompt of a model is counted after one of its engines could not do it."""
REMEMBERED: Final = 1024
"""Sets of labels whose route is remembered."""


class PoolAttempt:
    """One try at one endpoint; owns a slot until `close`. See gateway.core.ports.Attempt."""

    __slots__ = (
        "_epoch",
        "_member",
        "_open",
        "_retry",
        "_route",
        "_started",
        "apis",
        "client",
        "device",
        "endpoint_header",
        "endpoint_name",
        "first_byte_timeout",
        "idle_timeout",
        "request_headers",
        "salting",
        "total_timeout",
        "upstream_model",
    )

    def __init__(self, route: PoolRoute, member: Member, epoch: int, retry: bool, started: float, client: EngineClient) -> None:
        self._route, self._member, self._epoch, self._retry, self._started = route, member, epoch, retry, started
        self._open = True
        self.client = client
        self.endpoint_name = member.endpoint.name
        self.endpoint_header = member.endpoint_header
        self.upstream_model = member.upstream_model
        self.request_headers = member.request_headers
        self.first_byte_timeout = member.first_byte_timeout
        self.idle_timeout = member.idle_timeout
        self.total_timeout = member.total_timeout
        self.salting, self.apis = member.salting, member.apis
        rate = member.rate
        self.device: SlotTime | None = None if rate is None else SlotTime(rate, _slots(member.endpoint))

    def answering(self) -> None:
        """Tells the breaker if this is its probe request. How the stream ends counts again, as for any request."""
        endpoint = self._member.endpoint
        if self.device is not None:
            self.device.answering()
        if self._route.rests:
            self._route.answered(self.endpoint_name, self._started)
        if endpoint.probing and self._epoch == endpoint.epoch and self.client is endpoint.client:
            endpoint.ended(_SUCCESS.name, self._epoch, self.client)
            self._epoch = endpoint.epoch

    def close(self, result: AttemptResult) -> None:
        """Gives the slot back, tells the breaker and wakes the next request. A second call does nothing."""
        if not self._open:
            return
        self._open = False
        if self.device is not None:
            self.device.end()
        member, route = self._member, self._route
        endpoint = member.endpoint
        member.load -= 1.0
        route.in_flight -= 1
        if self._retry:
            route.budget.end()
        route.observe(self._started)
        if route.rests and result is _SUCCESS:
            route.answered(self.endpoint_name, self._started)
        if result is not _SUCCESS or endpoint.probing or endpoint.breaker.failures:
            endpoint.ended(result.name, self._epoch, self.client)
        endpoint.release(self.client)


def _slots(endpoint: Endpoint) -> int:
    """All slots of the engine, whatever share of them this process has."""
    spec = endpoint.spec
    return (spec.slots if spec.runtime == "external" else None) or endpoint.said_slots or spec.start_slots


class Waiting(Signal[PoolAttempt]):
    """A request in a queue: completes with its attempt, or fails with Overloaded."""

    __slots__ = ("entry", "key", "retry", "route")

    def __init__(self, route: PoolRoute, entry: Entry, key: int, retry: bool) -> None:
        super().__init__()
        self.route, self.entry, self.key, self.retry = route, entry, key, retry


class PoolRoute:
    """The way to one model. See gateway.core.ports.Route. `fallbacks`: models to try, in order, when this one cannot serve. narrow: routes
    over fewer of its endpoints, for requests with labels; of each set of labels the widest is taken whose members are all cleared."""

    def __init__(
        self,
        spec: ModelSpec,
        members: tuple[Member, ...],
        registry: EndpointRegistry,
        selector: Selector,
        narrow: tuple[PoolRoute, ...] = (),
    ) -> None:
        routing = spec.routing
        self.spec, self.model, self.fallbacks = spec, spec.name, spec.fallbacks
        self.members = members
        self.ring: Ring | None = None
        """That of its selector, for the route that takes its place."""
        self.in_flight = 0
        self.budget = RetryBudget(routing.retry, registry.clock, registry.entropy)
        self._narrow = narrow
        for route in narrow:
            route.budget = self.budget
        self._cleared: dict[frozenset[str], PoolRoute] = {}
        self._registry = registry
        self._now = registry.now
        self._select = selector.choose
        self._key = key_function(routing.key, spec.prefix_sharing) if selector.keyed else None
        self._queue = AdmissionQueue(routing.queue.size, routing.queue.weights)
        self._waiting: dict[Entry, Waiting] = {}
        self._unchoosy = 0
        """How many of them avoid no endpoint, so that any free slot will do."""
        self._timeout = routing.queue.timeout
        self._version = -1
        self._open: tuple[Member, ...] = ()
        self.rests: Rests = {}  # endpoints that had no room
        self._weight = 1.0
        self._panic = False
        self._service: float | None = None
        self._uncounted = 0.0
        asked = spec.count_prompts
        self._counters = tuple([m for m in members if asked is True or (asked == "auto" and m.counting == "input_tokens")])
        self.counts_prompts = bool(self._counters)

    # -- the port -----------------------------------------------------------------------------------------------------------------

    def acquire(
        self,
        request: InferenceRequest,
        principal: Principal,
        session: bytes | None,
        tried: tuple[str, ...],
        deadline: float,
        wait: bool = True,
    ) -> PoolAttempt | Waiting | float:
        """Admission and selection in one decision; see the port.

        Raises Overloaded (queue full, shedding) or EngineError (no_healthy_endpoint, model_loading), each with a realistic retry_after, or
        EngineError (insufficient_memory) when the model fits nowhere, PermissionDenied when none is cleared for the request's labels.
        """
        if request.labels and (cleared := self.cleared(request.labels)) is not self:
            return cleared.acquire(request, principal, session, tried, deadline, wait)
        registry = self._registry
        if self._version != registry.version:
            self._look()
        if registry.shedding and RANKS[principal.priority] >= 3 - registry.shedding:
            raise Overloaded("The gateway is shedding load; try again later.", retry_after=self._retry_after(0))
        retry = False
        if tried:
            retry, tried = True, self._avoidable(tried)
        avoids = tried
        if self.rests:
            self._end_rests()
            avoids = self._avoiding(tried)
        key_of = self._key
        key = 0 if key_of is None else key_of(request, principal, session)
        if not self._waiting or tried or not self._due():  # a retry has had its turn already
            select = self._select  # calling it as an attribute would be slower
            member = select(key, (self.in_flight + 1) / self._weight, avoids)
            if member is None and self._panic:
                member = self._choose_in_panic(key, avoids)
            if member is not None:
                return self._grant(member, retry)
        if not self._open and not self._panic and not self._wanted():
            raise unavailable(self.model, self.members, self._now())
        if not wait:
            return min(self._timeout, self._retry_after(self._queue.before(principal.tenant, RANKS[principal.priority])))
        until = min(deadline, self._now() + self._timeout)
        if self.rests:
            tried = tuple([name for name in tried if name not in self.rests])  # once their rest is over, their slots are as good as others
        entry = Entry(principal.tenant, principal.priority, request.prompt_tokens + request.max_tokens, until, tried)
        return self._enqueue(Waiting(self, entry, key, retry))

    def abandon(self, waiting: Any) -> None:
        """Takes a cancelled request out of the queue, or gives back the slot that it was granted."""
        if waiting.done:
            if waiting.value is not None:
                waiting.value.close(AttemptResult.NEUTRAL)
        elif waiting.route is not self:
            waiting.route.abandon(waiting)
        elif self._queue.cancel(waiting.entry):
            self._dequeued(waiting.entry)

    def cleared(self, labels: frozenset[str]) -> PoolRoute:
        """The route over the members that may see data with these labels. Raises PermissionDenied where there is none."""
        found = self._cleared.get(labels)
        if found is None:
            names = {member.endpoint.name for member in self.members if member.cleared(labels)}
            for route in (self, *self._narrow):
                if {member.endpoint.name for member in route.members} == names:
                    found = route
            if found is None:
                word = "label" if len(labels) == 1 else "labels"
                shown = ", ".join(sorted(labels))
                raise PermissionDenied(f"No engine of {self.model} may see data with the {word} {shown}.", code="label_not_cleared")
            if len(self._cleared) >= REMEMBERED:
                self._cleared.clear()
            self._cleared[labels] = found
        return found

    def serves(self, labels: frozenset[str]) -> bool:
        """Whether an endpoint that is cleared for these labels can take a request."""
        try:
            return self.cleared(labels).ready if labels else self.ready
        except PermissionDenied:
            return False

    def counter(self, labels: frozenset[str]) -> Member | None:
        """The least busy of the members that work and are cleared for these labels, for a question that takes no slot; see the port."""
        if self._now() < self._uncounted:
            return None
        route = self.cleared(labels) if labels else self
        if route._version != self._registry.version:
            route._look()
        found: Member | None = None
        for member in route._open:
            if member not in route._counters:
                continue
            endpoint = member.endpoint
            works = endpoint.state == "ready" and endpoint.client is not None
            if works and (found is None or endpoint.in_flight < found.endpoint.in_flight):
                found = member
        return found

    def uncounted(self) -> None:
        """An engine cannot count prompts: none is asked for a while."""
        self._uncounted = self._now() + UNCOUNTED

    def may_retry(self, error: Exception, attempts: int) -> float | None:
        return self.budget.promise(error, attempts, self._under_way())

    def full(self, endpoint: str, retry_after: float | None, labels: frozenset[str]) -> None:
        note((self.cleared(labels) if labels else self).rests, endpoint, retry_after, self._now())

    def may_move(self, attempts: int, labels: frozenset[str]) -> bool:
        if labels and (cleared := self.cleared(labels)) is not self:
            return cleared.may_move(attempts, labels)
        if self._version != self._registry.version:
            self._look()
        if attempts >= self.spec.routing.retry.attempts or not self._avoiding(()):
            return False
        self.budget.excuse()
        return True

    def may_leave(self, endpoint: str, attempts: int, labels: frozenset[str]) -> bool:
        """Whether an attempt at this endpoint, the last of so many, could be given up for one at another endpoint now."""
        if labels and (cleared := self.cleared(labels)) is not self:
            return cleared.may_leave(endpoint, attempts, labels)
        if self._version != self._registry.version:
            self._look()
        return (
            any(member.endpoint.name != endpoint for member in self._open)
            and len(self._waiting) < self._queue.size
            and self.budget.allows(attempts, self._under_way())
        )

    def second(
        self, request: InferenceRequest, principal: Principal, session: bytes | None, endpoint: str, running: int, budget: float
    ) -> PoolAttempt | None:
        """An attempt at another endpoint, at once, for a request that is under way at this one. None where that is not to be: requests
        wait, the pool is loaded (`may_hedge`), or `running` second attempts are all that this share of the requests under way allows."""
        if request.labels and (cleared := self.cleared(request.labels)) is not self:
            return cleared.second(request, principal, session, endpoint, running, budget)
        if running >= max(1.0, budget * self._under_way()) or self._waiting or self._registry.shedding:
            return None
        self._end_rests()
        barred = may_hedge(self.members, endpoint, self.rests)
        key = 0 if self._key is None else self._key(request, principal, session)
        member = None if barred is None else self._select(key, (self.in_flight + 1) / self._weight, barred)
        return None if member is None or barred is None or member.endpoint.name in barred else self._grant(member, False)

    def _under_way(self) -> int:
        """Requests in flight or waiting, whatever their labels."""
        return self.in_flight + len(self._waiting) + sum([route._under_way() for route in self._narrow])

    @property
    def ready(self) -> bool:
        if self._version != self._registry.version:
            self._look()
        return bool(self._open) or self._panic or any(member.endpoint.asleep for member in self.members)

    @property
    def queued(self) -> int:
        """Requests waiting for a slot here."""
        return len(self._waiting)

    @property
    def backlog(self) -> int:
        """Requests waiting for a slot, whatever their labels."""
        return len(self._waiting) + sum([route.backlog for route in self._narrow])

    @property
    def places(self) -> list[Endpoint]:
        """The endpoints of its members."""
        return [member.endpoint for member in self.members]

    # -- selection ----------------------------------------------------------------------------------------------------------------

    def _choose(self, key: int, exclude: tuple[str, ...]) -> Member | None:
        member = self._select(key, (self.in_flight + 1) / self._weight, exclude)
        return member if member is not None or not self._panic else self._choose_in_panic(key, exclude)

    def _choose_in_panic(self, key: int, exclude: tuple[str, ...]) -> Member | None:
        start = key % len(self.members)
        for member in (*self.members[start:], *self.members[:start]):
            if spare(member, exclude):
                return member
        return None

    def _grant(self, member: Member, retry: bool) -> PoolAttempt:
        endpoint = member.endpoint
        endpoint.in_flight += 1
        member.load += 1.0
        self.in_flight += 1
        if endpoint.half_open:
            endpoint.admitted()
        counts = retry and self.budget.begin()
        client = endpoint.client if endpoint.shift is None else endpoint.pick()
        assert client is not None  # an endpoint with a limit above 0 has a client (Endpoint.ready)
        return PoolAttempt(self, member, endpoint.epoch, counts, self._now(), client)

    def observe(self, started: float) -> None:
        """Notes that an attempt held its slot from `started` until now."""
        now = self._now
        held = now() - started
        service = self._service
        self._service = held if service is None else service + _SMOOTHING * (held - service)

    def _avoidable(self, tried: tuple[str, ...]) -> tuple[str, ...]:
        """Endpoints to avoid: those tried before, unless no other is open."""
        return tried if any(member.endpoint.name not in tried for member in self._open) else ()

    def _avoiding(self, tried: tuple[str, ...]) -> tuple[str, ...]:
        """Endpoints that a request avoids which tried these: those without room too, unless no other is open."""
        tried = self._avoidable(tried) if tried else tried
        return (self._avoidable(avoided(self.rests, tried)) or tried) if self.rests else tried

    def answered(self, endpoint: str, began: float) -> None:
        """An endpoint answers a request that began then."""
        if answered(self.rests, endpoint, began) and self._waiting:
            self._registry.wake(self.members[0].endpoint)

    def _end_rests(self) -> None:
        """Forgets the rests that are over. Those who wait may go there again, or anywhere if no endpoint is left with room."""
        if self.rests and (over(self.rests, self._now()) or not self._avoiding(())) and self._waiting:
            self._registry.wake(self.members[0].endpoint)

    def _look(self) -> None:
        """Derives what selection needs from the endpoints' states, after one of them has changed."""
        self._version = self._registry.version
        self._open = tuple(member for member in self.members if member.endpoint.state in ("ready", "half_open"))
        self._weight = sum(member.weight for member in self._open if member.endpoint.state == "ready") or 1.0
        ejected = sum(1 for member in self.members if member.endpoint.reserve and member.endpoint.state != "ready")
        self._panic = ejected > max(1.0, self.spec.routing.breaker.max_ejected * len(self.members))

    # -- waiting ------------------------------------------------------------------------------------------------------------------

    def _enqueue(self, waiting: Waiting) -> Waiting:
        entry = waiting.entry
        victim = self._queue.push(entry)
        if victim is entry:
            raise self._overloaded("The queue is full")
        self._waiting[entry] = waiting
        self._unchoosy += not entry.avoids
        if len(self._waiting) == 1:
            for member in self.members:
                member.endpoint.waiting[self] = None
            self._registry.queued(self)
        if victim is not None:
            self._dequeued(victim).fail(self._overloaded("The queue is full and others are due before you"))
        return waiting

    def pump(self) -> bool:
        """Grants one free slot; False without a free slot or a request that it can serve."""
        if not self._waiting:
            return False
        if self._version != self._registry.version:
            self._look()
        if not self._open and not self._panic:
            self._give_up()
        entry = self._next()
        if entry is None:
            return False
        waiting = self._dequeued(entry)
        member = self._choose(waiting.key, self._avoiding(entry.avoids))
        assert member is not None  # its avoid-set is not barred, and nothing ran in between
        others = member.endpoint.waiting
        if len(others) > 1 and self in others:
            others[self] = others.pop(self)  # the next free slot there goes to another pool
        waiting.set(self._grant(member, waiting.retry))
        return True

    def _next(self) -> Entry | None:
        """The request that gets a free slot; None without a free slot or a request that it can serve."""
        if self._queue.avoided or self.rests:
            at = self._free()
            return self._queue.pop(self._barred(at)) if at else None
        for member in self.members:
            if free(member) or (self._panic and spare(member)):
                return self._queue.pop()
        return None

    def expire(self, now: float) -> bool:
        self._end_rests()
        for entry in self._queue.expire(now):
            self._dequeued(entry).fail(self._late())
        return bool(self._waiting)

    def _late(self) -> GatehouseError:
        """The error of a request that waited until its deadline."""
        if not self._open and any(member.endpoint.state == "starting" for member in self.members):
            return unavailable(self.model, self.members, self._now())
        return self._overloaded("No slot became free in time")

    def _wanted(self) -> bool:
        """Has unloaded engines loaded; whether requests may wait for one."""
        return any([member.endpoint.want() for member in self.members])  # a list, so that all of them are asked

    def _give_up(self) -> None:
        """Refuses all waiting requests, unless an engine will be back: it is being restarted, loaded or drained."""
        if not any(member.endpoint.returns or member.endpoint.health.loading for member in self.members) and not self._wanted():
            error = unavailable(self.model, self.members, self._now())
            for entry in list(self._queue):
                if self._queue.cancel(entry):
                    self._dequeued(entry).fail(error)

    def _free(self) -> set[str]:
        """The endpoints with a free slot."""
        return {member.endpoint.name for member in self.members if free(member) or (self._panic and spare(member))}

    def _barred(self, at: set[str]) -> set[Avoids]:
        """Avoid-sets that rule out every endpoint in `at`."""
        return {avoids for avoids in (*self._queue.avoided, ()) if at.issubset(self._avoiding(avoids))}

    def _due(self) -> bool:
        """Whether a waiting request goes before a new one: a free slot would serve it, and it is about to be woken."""
        return self._unchoosy > 0 or not self._barred(self._free()) >= self._queue.avoided.keys()

    def _dequeued(self, entry: Entry) -> Waiting:
        waiting = self._waiting.pop(entry)
        self._unchoosy -= not entry.avoids
        if not self._waiting:
            for member in self.members:
                member.endpoint.waiting.pop(self, None)
        return waiting

    def _overloaded(self, why: str) -> Overloaded:
        return Overloaded(f"{why}; the model {self.model} is at its capacity.", retry_after=self._retry_after(len(self._waiting)))

    def _retry_after(self, ahead: int) -> float:
        """Seconds until the requests ahead are served, by Little's law: requests ahead x mean service time / slots."""
        slots = sum(member.endpoint.limit for member in self.members) or 1
        return min(max(1.0, (ahead + 1) * (self._service or 0.0) / slots), MAX_RETRY_AFTER)
