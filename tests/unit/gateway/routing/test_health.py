"""Rise and fall; and the loop that probes."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.specs import EngineSpec, HealthSpec
from gateway.routing.health import MANY, Health, Prober, ProbeResult
from tests.unit.gateway.routing.fleet import FixedEntropy
from tests.waiting import reached

GOOD, BAD, REFUSED = ProbeResult(True), ProbeResult(False, "500"), ProbeResult(False, "refused", refused=True)


@pytest.mark.parametrize(
    ("results", "healthy"),
    [
        ([BAD, BAD], [True, True]),
        ([BAD, BAD, BAD], [True, True, False]),
        ([BAD, BAD, GOOD, BAD, BAD], [True] * 5),
        ([REFUSED], [False]),
        ([REFUSED, GOOD, GOOD], [False, False, True]),
        ([REFUSED, GOOD, BAD, GOOD, GOOD], [False, False, False, False, True]),
    ],
)
def test_rise_and_fall(results: list[ProbeResult], healthy: list[bool]):
    health = Health(HealthSpec(rise=2, fall=3))
    seen = []
    for result in results:
        before = health.healthy
        assert health.observe(result) == (health.healthy != before)
        seen.append(health.healthy)
    assert seen == healthy


def test_an_engine_that_says_it_is_loading_is_believed_at_once():
    health = Health(HealthSpec(rise=1, fall=3))
    assert health.observe(ProbeResult(False, "state is loading", loading=True))
    assert (health.healthy, health.loading) == (False, True)
    assert health.observe(BAD)
    assert (health.healthy, health.loading, health.reason) == (False, False, "500")
    assert health.observe(GOOD)
    assert (health.healthy, health.loading) == (True, False)


def test_the_reason_is_that_of_the_last_failure():
    health = Health(HealthSpec(fall=1))
    health.observe(BAD)
    health.observe(ProbeResult(False, "timeout"))
    assert health.reason == "timeout"


def test_one_decisive_failure_is_enough():
    health = Health(HealthSpec(rise=2, fall=3))
    assert health.observe(BAD, decisive=True)
    assert not health.observe(GOOD)
    assert health.observe(GOOD, decisive=True)


class Answers:
    """A probe with a script: one list of results for each engine, the last repeated."""

    def __init__(self, **results: list[ProbeResult | None]) -> None:
        self.results, self.asked, self.forgotten, self.closed = results, list[str](), list[str](), False

    async def probe(self, spec: EngineSpec, address: str, timeout: float) -> ProbeResult | None:
        self.asked.append(spec.name)
        results = self.results[spec.name]
        return results.pop(0) if len(results) > 1 else results[0]

    async def forget(self, engine: str) -> None:
        self.forgotten.append(engine)

    async def aclose(self) -> None:
        self.closed = True


class Watched:
    def __init__(self, name: str, interval: float = 60.0, address: str | None = "http://there") -> None:
        self.name, self.address = name, address
        self.spec = EngineSpec(name=name, runtime="external", health=HealthSpec(interval=interval))
        self.seen: asyncio.Queue[ProbeResult] = asyncio.Queue()

    def probed(self, result: ProbeResult, *, decisive: bool = False) -> None:
        self.seen.put_nowait(result)
        self.decisive = decisive


async def test_probes_at_once_and_then_by_the_interval():
    prober, endpoint = Prober(Answers(a=[BAD, GOOD]), FixedEntropy()), Watched("a", interval=0.05)
    prober.watch([endpoint])
    async with asyncio.timeout(60):
        assert [await endpoint.seen.get(), await endpoint.seen.get()] == [BAD, GOOD]
    await prober.aclose()


async def test_a_probe_that_could_not_be_made_says_nothing():
    prober, endpoint = Prober(Answers(a=[None, None, BAD]), FixedEntropy()), Watched("a", interval=0.05)
    prober.watch([endpoint])
    async with asyncio.timeout(60):
        assert await endpoint.seen.get() == BAD
    await prober.aclose()


async def test_a_suspect_is_probed_before_its_time():
    answers = Answers(a=[GOOD, REFUSED])
    prober, endpoint = Prober(answers, FixedEntropy()), Watched("a", interval=3600.0)
    prober.watch([endpoint])
    async with asyncio.timeout(60):
        assert await endpoint.seen.get() == GOOD
        prober.suspect(endpoint)
        assert await endpoint.seen.get() == REFUSED
    assert endpoint.decisive
    await prober.aclose()
    assert answers.closed


async def test_a_suspect_that_failed_is_probed_until_it_is_well(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gateway.routing.health.RECOVERY", 0.01)
    answers = Answers(a=[GOOD, REFUSED, BAD, GOOD, BAD, GOOD, GOOD, REFUSED])
    prober, endpoint = Prober(answers, FixedEntropy()), Watched("a", interval=3600.0)
    endpoint.spec = EngineSpec(name="a", runtime="external", health=HealthSpec(interval=3600.0, rise=2))
    prober.watch([endpoint])
    async with asyncio.timeout(60):
        assert await endpoint.seen.get() == GOOD
        prober.suspect(endpoint)
        assert [await endpoint.seen.get() for _ in range(6)] == [REFUSED, BAD, GOOD, BAD, GOOD, GOOD]
        assert not endpoint.decisive
        while prober._suspects:
            await asyncio.sleep(0)
    assert answers.asked == ["a"] * 7
    await prober.aclose()


async def test_many_endpoints_share_the_probes_of_a_second(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gateway.routing.health.MOST", 0.001)
    monkeypatch.setattr("gateway.routing.health.AT_ONCE", 2)
    answers, endpoints = Answers(**{name: [GOOD, GOOD] for name in "abcd"}), [Watched(name, interval=0.05) for name in "abcd"]
    prober = Prober(answers, FixedEntropy())
    prober.watch(endpoints[:3])
    async with asyncio.timeout(60):
        assert await endpoints[0].seen.get() == await endpoints[1].seen.get() == GOOD
        prober.watch(endpoints)  # a further one alone is probed at once
        assert await endpoints[3].seen.get() == GOOD
    assert prober._interval(endpoints[0]) == 4000.0
    assert answers.asked == ["a", "b", "d"] and endpoints[2].seen.empty()
    await prober.aclose()


async def test_removed_endpoints_are_no_longer_probed_and_the_others_are():
    answers, one, two = Answers(a=[GOOD], b=[GOOD]), Watched("a", 3600.0), Watched("b", 3600.0)
    prober = Prober(answers, FixedEntropy())
    prober.watch([one, two])
    async with asyncio.timeout(60):
        await one.seen.get()
        await two.seen.get()
        prober.watch([two])
        prober.suspect(one)
        prober.suspect(two)
        await two.seen.get()
    assert one.seen.empty()
    assert answers.forgotten == ["a"]
    await prober.aclose()


async def test_a_result_about_an_old_address_is_not_believed():
    release = asyncio.Event()

    class Slow(Answers):
        async def probe(self, spec: EngineSpec, address: str, timeout: float) -> ProbeResult | None:
            await release.wait()
            return await super().probe(spec, address, timeout)

    answers = Slow(a=[BAD, GOOD])
    prober, endpoint = Prober(answers, FixedEntropy()), Watched("a", 0.05)
    prober.watch([endpoint])
    await asyncio.sleep(0)
    endpoint.address = "http://elsewhere"
    release.set()
    async with asyncio.timeout(60):
        assert await endpoint.seen.get() == GOOD
    await prober.aclose()


async def test_probes_of_many_begin_and_end_in_slices():
    names = [f"e{n}" for n in range(3 * MANY)]
    answers, endpoints = Answers(**{name: [GOOD] for name in names}), [Watched(name, 3600.0) for name in names]
    prober = Prober(answers, FixedEntropy())
    prober.change(endpoints, (), names)
    assert sum(task is not None for task in prober._watched.values()) == 0 and len(prober._watched) == len(names)
    prober.change((), endpoints[:5], names[5:])  # gone before they have begun
    await reached(lambda: all(task is not None for task in prober._watched.values()) and answers.forgotten == names[:5])
    tasks = [task for task in prober._watched.values() if task is not None]
    prober.change((), endpoints[5:], ())
    assert not prober._watched and not any(task.cancelling() for task in tasks)
    await reached(lambda: all(task.done() for task in tasks) and set(answers.forgotten) == set(names))
    assert not {"e0", "e1", "e2", "e3", "e4"} & set(answers.asked)
    await prober.aclose()
