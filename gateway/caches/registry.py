"""The caches of a process's models. What they hold outlives the configuration: it goes when its model does, or gets other bounds."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final
from weakref import WeakValueDictionary

import msgspec

from gateway.caches.behind import Behind
from gateway.caches.embedding import Embedder
from gateway.caches.keys import Alike, asked_last, domain_of, key_of, key_steps
from gateway.caches.memory import LARGE, AnswerStore, Bounds
from gateway.caches.near import Vector
from gateway.caches.place import Place
from gateway.core import questions
from gateway.core.caching import Answer, CachesAsked, CachesTold, Looked, Question, Similar
from gateway.core.slices import SLICE, Steps, at_once
from gateway.core.specs import ModelSpec
from gateway.core.specs.caches import CacheSpec, SemanticSpec
from gateway.core.types import InferenceRequest, Principal
from gateway.core.waiting import Signal

ZERO: Final = frozenset({b"0", b"0.0"})
CHAT: Final = b"/v1/chat/completions"
MOST_LATER: Final = 64 * 1024 * 1024
"""Bytes of large answers that may wait at once for being kept."""
AHEAD: Final = 60.0
"""Seconds by which the clocks of those who share answers may differ."""
_FACTS: Final = msgspec.msgpack.Encoder()
_PACKED: Final = msgspec.msgpack.Encoder()
_Stored = tuple[list[tuple[bytes, bytes]], bool, list[bytes], bytes]
_UNPACKED: Final = msgspec.msgpack.Decoder(_Stored)


class ModelCache:
    """The cache of one model. See gateway.core.caching.AnswerCache. version: names the model and its guardrails as they are configured."""

    __slots__ = (
        "_any",
        "_asked",
        "_behind",
        "_compress",
        "_later",
        "_operations",
        "_secret",
        "_sharing",
        "_store",
        "_ttl",
        "_version",
        "backed",
        "charge",
        "flights",
        "largest",
        "model",
        "semantic",
        "shares",
    )

    def __init__(
        self,
        model: ModelSpec,
        spec: CacheSpec,
        version: bytes,
        secret: bytes,
        store: AnswerStore,
        behind: Behind | None,
        later: Callable[[Steps[None], int], bool],
        asked: Asked | None = None,
    ) -> None:
        self._later = later
        self.model, self._version, self._secret, self._store = model.name, version, secret, store
        self._operations, self._any = frozenset(spec.operations), spec.temperature == "any"
        self._sharing, self._ttl = spec.sharing or model.prefix_sharing, spec.ttl
        self.charge, self.largest, self.shares = spec.charge, spec.max_answer_bytes, spec.deduplicate
        self.flights: dict[bytes, Any] = store.flights
        self._behind, self._compress = behind, spec.compress_above
        self.backed = behind is not None
        self._asked, self.semantic = asked, asked is not None

    @property
    def epoch(self) -> int:
        return self._store.epoch

    def concerns(self, request: InferenceRequest) -> bool:
        if request.operation not in self._operations or request.memory is not None:
            return False
        return self._any or not request.api.generates or cold(request.fields.get("temperature"))

    def key(self, principal: Principal, request: InferenceRequest) -> bytes:
        return key_of(self._secret, principal, self._sharing, self._version, request)

    def key_steps(self, principal: Principal, request: InferenceRequest) -> Steps[bytes]:
        return key_steps(self._secret, principal, self._sharing, self._version, request)

    def find(self, key: bytes) -> Answer | Steps[Answer] | None:
        return _answer(self._store.find(key))

    def look(self, key: bytes, tenant: str) -> Signal[Looked | None] | None:
        return None if self._behind is None else self._behind.find(Place(key, self.model, tenant))

    def taken(self, key: bytes, tenant: str, looked: Looked, epoch: int) -> Answer | None:
        if looked.value is None or looked.left > self._ttl + AHEAD:  # the clock was ahead when it was kept
            return None
        try:
            answer = Answer(*_UNPACKED.decode(looked.value))
        except msgspec.DecodeError:  # of another version
            return None
        ttl = min(looked.left, self._ttl)
        if len(looked.value) <= LARGE:
            self._store.store(key, looked.value, tenant=tenant, ttl=ttl, epoch=epoch)
        else:
            self.later(self._kept(key, looked.value, tenant, ttl, epoch), len(looked.value))
        self._store.counted.hits += 1
        return answer

    def store(self, key: bytes, answer: Answer, tenant: str, epoch: int, marks: bytes = b"") -> None:
        at_once(self.store_steps(key, answer, tenant, epoch, marks))

    def store_steps(self, key: bytes, answer: Answer, tenant: str, epoch: int, marks: bytes = b"") -> Steps[None]:
        value = _PACKED.encode((list(answer.headers), answer.foreign, answer.parts, answer.prefix))
        if epoch == self._store.epoch and marks and self._behind is not None:
            self._behind.store(Place(key, self.model, tenant), value, marks, self._ttl, self._compress)
        yield from self._kept(key, value, tenant, self._ttl, epoch)

    def _kept(self, key: bytes, value: bytes, tenant: str, ttl: float, epoch: int) -> Steps[None]:
        yield from self._store.store_steps(key, value, tenant=tenant, ttl=ttl, epoch=epoch)

    def later(self, steps: Steps[None], size: int) -> None:
        if not self._later(steps, size):
            self._store.counted.refused += 1

    def question(self, principal: Principal, request: InferenceRequest) -> Steps[Question | None]:
        asked = self._asked
        if asked is None or principal.tenant not in asked.tenants or request.path != CHAT:
            return None
        alike = yield from asked_last(request)
        if alike is None:
            return None
        read = asked.read(alike.text)
        if read is None:
            return None
        frame = Alike("", _FACTS.encode((alike.frame, read.facts)))
        bucket = yield from key_steps(self._secret, principal, self._sharing, self._version + asked.version, request, frame)
        question = Question(principal.tenant, domain_of(principal, self._sharing), bucket, alike.text, read)
        question.vector = asked.embedder.ask(asked.spec.model, alike.text, request.labels, asked.spec.timeout)
        if question.vector is None:
            self._store.counted.unembedded += 1
        else:
            question.vector.add_callback(partial(self._embedded, question.vector))
        return question

    def _embedded(self, vector: Signal[Vector | None]) -> None:
        if vector.value is None:
            self._store.counted.unembedded += 1

    def rivals(self, question: Question) -> bool:
        return question.vector is not None and self._store.near.any(question.bucket)

    def nearest(self, question: Question) -> Similar | None:
        asked, vector = self._asked, question.vector
        if asked is None or vector is None or vector.value is None:
            return None
        near = self._store.near
        found = near.find(question.bucket, vector.value, asked.spec.threshold, partial(asked.fits, question.read))
        if found is None:
            return None
        answer = _answer(self._store.find(found.key, similar=True))
        if answer is None:  # it was evicted, or has expired
            near.drop(found.key)
            return None
        return Similar(found.key, answer, found.source, found.similarity)

    def learn(self, question: Question, key: bytes, source: str, epoch: int) -> None:
        asked, vector = self._asked, question.vector
        if asked is None or vector is None:
            return

        def there() -> None:
            if vector.value is not None and epoch == self._store.epoch and self._store.holds(key):
                place = (question.tenant, question.domain, question.bucket)
                self._store.near.add(key, *place, vector.value, question.read, source, asked.spec.max_entries)

        vector.add_callback(there)

    def missed(self) -> None:
        self._store.counted.misses += 1

    def joined(self) -> None:
        self._store.counted.joined += 1

    def bypassed(self) -> None:
        self._store.counted.bypassed += 1


def _answer(value: bytes | Steps[bytes] | None) -> Answer | Steps[Answer] | None:
    """The answer that was kept as this value."""
    if value is None:
        return None
    return Answer(*_UNPACKED.decode(value)) if isinstance(value, bytes) else _unpacked(value)


def _unpacked(steps: Steps[bytes]) -> Steps[Answer]:
    value = yield from steps
    yield  # to copy it takes as long as a slice or two
    answer = Answer(*_UNPACKED.decode(value))
    yield
    return answer


class Asked:
    """What a model's cache needs for answers to similar requests. version: of the embedding model and of what is compared. tenants: those
    that opted in."""

    __slots__ = ("_words", "embedder", "spec", "tenants", "version")

    def __init__(self, spec: SemanticSpec, tenants: frozenset[str], version: bytes, embedder: Embedder) -> None:
        self.spec, self.tenants, self.embedder, self._words = spec, tenants, embedder, spec.words
        self.version = b"\0%b\0%b" % (spec.words.encode(), version)

    def read(self, text: str) -> questions.Question | None:
        return questions.read(text, self._words)

    def fits(self, one: questions.Question, other: questions.Question) -> bool:
        """Whether two questions with the same facts may have the same answer."""
        return not questions.edited(one, other)


def cold(temperature: bytes | Any) -> bool:
    """Whether a request's temperature, as the client wrote it, is zero. Engines take another one where there is none."""
    if temperature is None:
        return False
    given = bytes(temperature)
    if given in ZERO:
        return True
    try:
        return float(given) == 0.0
    except ValueError:
        return False


class AnswerCaches:
    """All caches of a process. now: monotonic seconds. embedder: asks for the vectors of questions; None where nobody does."""

    def __init__(self, now: Callable[[], float], embedder: Embedder | None = None) -> None:
        self._now = now
        self._embedder = embedder
        self.behind: dict[str, Behind] = {}
        """What stands behind the memory, by its name in the configuration."""
        self._stores: WeakValueDictionary[str, AnswerStore] = WeakValueDictionary()
        self._waiting: deque[tuple[Steps[None], int]] = deque()
        self._waiting_bytes = 0

    def of(self, model: ModelSpec, version: bytes, secret: bytes, tenants: Iterable[str] = (), embeds: bytes = b"") -> ModelCache | None:
        """The cache of a model, with the answers that it had before; None if it has none. tenants: those that asked for answers to similar
        requests. embeds: the version of the embedding model."""
        spec = model.cache
        if spec is None:
            return None
        bounds = Bounds(
            entries=spec.max_entries, bytes=spec.max_bytes, largest=spec.max_answer_bytes * 2, compress_above=spec.compress_above
        )
        store = self._stores.get(model.name)
        if store is None or store.settings != (bounds, spec.policy):
            store = self._stores[model.name] = AnswerStore(bounds, spec.policy, self._now)
        asked = None
        if spec.semantic is not None and self._embedder is not None and (chosen := frozenset(tenants)):
            asked = Asked(spec.semantic, chosen, embeds, self._embedder)
        store.near.keep(frozenset() if asked is None else asked.tenants)
        return ModelCache(model, spec, version, secret, store, self.behind.get(spec.also_in or ""), self._later, asked)

    def _later(self, steps: Steps[None], size: int) -> bool:
        """Long work for which nobody waits: a slice each time that the loop comes round; all at once where there is no loop. False where
        too much of it waits."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            at_once(steps)
            return True
        if self._waiting_bytes + size > MOST_LATER and self._waiting:
            return False
        self._waiting.append((steps, size))
        self._waiting_bytes += size
        if len(self._waiting) == 1:
            loop.call_soon(self._go_on)
        return True

    def _go_on(self) -> None:
        steps, size = self._waiting[0]
        end, over = time.monotonic() + SLICE, True
        try:
            while time.monotonic() < end:
                next(steps)
            over = False
        except StopIteration:
            pass
        finally:
            if over:
                self._waiting.popleft()
                self._waiting_bytes -= size
            if self._waiting:
                asyncio.get_running_loop().call_soon(self._go_on)

    def statistics(self) -> dict[str, dict[str, int]]:
        """The caches by model."""
        return {name: msgspec.structs.asdict(store.statistics()) for name, store in sorted(self._stores.items())}

    def purge(self, model: str | None = None, tenant: str | None = None, key: bytes | None = None, *, dry_run: bool = False) -> int:
        """See AnswerStore.purge; how many answers were, or would be, forgotten."""
        return self._purge(model, (tenant,), key, dry_run)

    def _purge(self, model: str | None, tenants: Sequence[str | None], key: bytes | None, dry_run: bool) -> int:
        stores = [store for name, store in self._stores.items() if model is None or name == model]
        if dry_run:
            return sum(store.matching(tenant=tenant, key=key) for store in stores for tenant in tenants)
        count = sum(store.purge(tenant=tenant, key=key) for store in stores for tenant in tenants)
        self._sweep()
        return count

    def _sweep(self) -> None:
        """Gives back the memory of what was purged, a slice each time that the loop comes round; all at once where there is no loop."""
        while True:
            more = [store.sweep() for store in self._stores.values()]
            if not any(more):
                return
            try:
                asyncio.get_running_loop().call_soon(self._sweep)
            except RuntimeError:
                continue
            return

    def asked(self, wanted: CachesAsked) -> CachesTold:
        """What this process has to say to it."""
        forgotten = 0
        if wanted.purge is not None:
            purge = wanted.purge
            key = None if purge.key is None else bytes.fromhex(purge.key)
            forgotten = self._purge(purge.model, purge.owners(), key, purge.dry_run)
        return CachesTold(self.statistics(), forgotten, {name: msgspec.structs.asdict(one.counted) for name, one in self.behind.items()})

    def dropped(self, tenant: str | None) -> None:
        """The data keys of a tenant, or of all, are not what they were: its answers may have to be gone."""
        for one in self.behind.values():
            one.forget(tenant)
        if tenant is not None:
            self.purge(tenant=tenant)
