"""What surrounds a guardrail: monitoring, budgets, scopes, what the record and the metrics say, and that neither has the text."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from gateway.core.errors import EngineError
from gateway.core.slices import Steps
from gateway.core.snapshot import ModelEntry
from gateway.core.types import ALLOW, Finding, Principal, Verdict
from gateway.core.waiting import Driver, Maybe, Signal, as_future
from gateway.pipeline.guarded import MOST_SPANS, BudgetMissed, Guarded, Note, within
from gateway.telemetry.metrics import MOST_REFUSED, Metrics
from policies.callers import Concern, concerning
from policies.guardrails.denylist import DenyList
from policies.guardrails.phrases import Pace, PhraseSet
from tests.fakes.paused import Paused, run
from tests.unit.gateway.pipeline.test_inspect import Scripted, stream, text_of
from tests.unit.gateway.pipeline.world import ANSWER, BODY, DONE, World, chunk

PHRASE = "red falcon"
HIT = BODY.replace(b"hi", b"a red falcon")
STREAM = [chunk("a red fal"), chunk("con"), chunk(None, finish="stop") + DONE]


def guarded(*, mask: bool = False, failing: bool = False, **more: Any) -> Guarded:
    guardrail = Scripted(ZeroDivisionError("secret")) if failing else DenyList("words", PhraseSet([PHRASE]), mask=mask)
    return Guarded(guardrail, False, lambda *event: None, **more)


def notes(world: World) -> list[dict[str, Any]]:
    """What the record says of guardrails."""
    found: list[dict[str, Any]] = (world.outcome.detail or {}).get("guardrails", [])
    assert PHRASE.encode() not in msgspec.json.encode(world.outcome)
    return found


# --- monitoring


@pytest.mark.parametrize("mask", [True, False])
def test_a_guardrail_that_monitors_changes_nothing_and_is_counted(mask: bool) -> None:
    guard = guarded(mask=mask, monitor=True)
    world = World(request=[guard], response=[guard])
    _, client = world.start(HIT)
    assert b"red falcon" in world.call.request_body
    world.call.answer(ANSWER.replace(b"hello", b"red falcon"))
    assert client.status == 200 and b"red falcon" in client.body
    assert [(note["on"], note["action"], note["mode"]) for note in notes(world)] == [
        ("request", "pass", "monitor"),
        ("response", "pass", "monitor"),
    ]
    assert guard.tally.verdicts == {("rewrite" if mask else "block", "pass"): 2}
    assert world.outcome.guardrail == ""


@pytest.mark.parametrize("mask", [True, False])
def test_a_stream_that_is_monitored_passes_at_once(mask: bool) -> None:
    guard = guarded(mask=mask, monitor=True)
    client, world = stream([guard], STREAM[:1], end=False)
    assert text_of(client) == "a red fal"
    for piece in STREAM[1:]:
        world.call.body(piece)
    world.call.end()
    assert text_of(client) == "a red falcon"
    assert guard.tally.verdicts == {("rewrite" if mask else "block", "pass"): 1}
    assert notes(world)[0]["action"] == "pass"


def test_a_failure_of_one_that_monitors_denies_nothing() -> None:
    guard = guarded(failing=True, monitor=True)
    world = World(request=[guard])
    world.start()
    world.call.answer()
    assert notes(world) == [
        {"guardrail": "scripted", "on": "request", "verdict": "error", "action": "pass", "why": "It failed.", "mode": "monitor"}
    ]


# --- what the record says


def test_the_record_says_what_was_done_and_never_the_text() -> None:
    for mask, action in ((True, "rewrite"), (False, "block")):
        guard = guarded(mask=mask)
        world = World(request=[guard])
        world.start(HIT)
        if mask:
            world.call.answer()
        (note,) = notes(world)
        assert (note["guardrail"], note["verdict"], note["action"]) == ("words", action, action)
        assert note["why"] and world.outcome.guardrail == "words"
        assert guard.tally.verdicts == {(action, action): 1}


def test_a_stream_has_one_note_for_each_guardrail() -> None:
    guard = guarded(mask=False)
    _, world = stream([guard], STREAM)
    (note,) = notes(world)
    assert (note["on"], note["verdict"], note["action"]) == ("response", "block", "block")
    assert guard.tally.verdicts == {("block", "block"): 1}
    clean = guarded()
    stream([clean], [chunk("fine"), chunk(None, finish="stop") + DONE])
    assert clean.tally.allowed == 1 and clean.tally.verdicts == {}


def test_findings_are_places_and_keyed_hashes() -> None:
    findings = tuple(Finding("card", 4, 20, "4111111111111111", text=number) for number in range(MOST_SPANS + 3))
    note = Note(guarded(), "request", lambda data: f"keyed-{len(data)}")
    note.add("rewrite", "why", findings)
    shown = note.shown()
    assert shown["spans"][0] == {"text": 0, "offset": 4, "length": 16, "entity": "card", "hash": "keyed-16"}
    assert len(shown["spans"]) == MOST_SPANS and shown["more"] == 3
    assert "4111" not in repr(shown) + repr(findings)
    unhashed = Note(guarded(), "request", lambda data: "")
    unhashed.add("rewrite", "", findings[:1], 9)
    assert unhashed.shown()["spans"] == [{"text": 9, "offset": 4, "length": 16, "entity": "card"}]


def test_a_verdict_that_only_annotates_passes_and_is_recorded() -> None:
    verdict = Verdict("annotate", "scripted", "It looks odd.", (), (Finding("odd", 0, 2, score=0.5),))
    guard = Guarded(Scripted(verdict), False, lambda *event: None)
    world = World(request=[guard])
    world.start()
    world.call.answer()
    assert notes(world) == [
        {
            "guardrail": "scripted",
            "on": "request",
            "verdict": "annotate",
            "action": "pass",
            "why": "It looks odd.",
            "spans": [{"text": 0, "offset": 0, "length": 2, "entity": "odd", "score": 0.5}],
        }
    ]


def test_refusals_are_counted_for_each_caller_up_to_a_bound() -> None:
    world = World(request=[guarded()])
    world.start(HIT)
    world.start(HIT)
    assert world.metrics.refusals == {("acme", "k"): 2}
    metrics = Metrics()
    for number in range(MOST_REFUSED + 5):
        metrics.guardrail_refused("acme", str(number))
    assert metrics.refusals[("other", "other")] == 5 and len(metrics.refusals) == MOST_REFUSED + 1
    assert b'gatehouse_guardrail_refusals_total{principal="other",tenant="other"} 5.0' in metrics.scrape()


# --- budgets


class Slow:
    """Takes the processor's time, or never answers."""

    name = "slow"

    def __init__(self, how: str) -> None:
        self.how = how

    def check(self, texts: Sequence[str]) -> Maybe[Verdict] | Steps[Verdict]:
        if self.how == "steps":
            return self._steps()
        if self.how == "waits":
            return Signal()
        _work()
        return ALLOW

    def _steps(self) -> Steps[Verdict]:
        while True:
            _work()
            yield

    def stream(self) -> None:
        return None


def _work() -> None:
    end = time.thread_time() + 0.003
    while time.thread_time() < end:
        pass


def test_a_server_that_fails_is_a_line_of_the_log_and_a_defect_has_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    for error in (EngineError("the server answered with status 500"), ZeroDivisionError("secret")):
        Guarded(Scripted(error), True, lambda *event: None).failed(error)
    server, defect = caplog.records
    assert server.getMessage().endswith(" failed: the server answered with status 500") and server.exc_info is None
    assert defect.exc_info is not None and defect.exc_info[0] is ZeroDivisionError


@pytest.mark.parametrize("fail_open", [True, False])
@pytest.mark.parametrize("how", ["at once", "steps", "waits"])
async def test_a_missed_budget_is_a_failure(how: str, fail_open: bool) -> None:
    failures: list[tuple[str, str]] = []
    guard = Guarded(Slow(how), fail_open, lambda *event: failures.append(event), budget=0.002)
    world = World(request=[guard])
    _, client = world.start()
    while not (world.audit.outcomes or world.engine.calls):
        await asyncio.sleep(0)
    assert failures == [("slow", "open" if fail_open else "closed")]
    if fail_open:
        world.call.answer()
    (note,) = notes(world)
    assert (note["verdict"], note["why"]) == ("error", "It took longer than its budget.")
    assert client.status == (200 if fail_open else 400)


async def driven(waiting: Awaitable[int], seconds: float) -> int:
    """`within`, stepped by a Driver as in the pipeline."""
    found: Signal[int] = Signal()

    async def steps() -> None:
        found.set(await within(waiting, seconds))

    Driver(steps(), lambda error: None if error is None else found.fail(error)).start()
    return await as_future(found)


@pytest.mark.parametrize("fail_open", [True, False])
def test_what_was_found_late_is_acted_on_where_failures_pass(fail_open: bool) -> None:
    failures: list[tuple[str, str]] = []
    guard = Guarded(DenyList("words", PhraseSet([PHRASE]), mask=False), fail_open, lambda *event: failures.append(event), budget=0.0)
    found = [guard.check([text]) for text in ("a red falcon", "all is well")]
    assert [verdict.action for verdict in found if isinstance(verdict, Verdict)] == ["block" if fail_open else "error", "error"]
    assert failures == [("words", "open" if fail_open else "closed")] * 2


def test_with_a_small_budget_all_is_made_at_once() -> None:
    lists = [PhraseSet([PHRASE], Pace()) for _ in range(2)]
    for phrases, budget in zip(lists, (0.01, 30.0), strict=True):
        Guarded(DenyList("words", phrases, mask=False), False, lambda *event: None, budget=budget)
    assert [phrases.made for phrases in lists] == [True, False]


async def test_waiting_within_a_budget() -> None:
    answered: Signal[int] = Signal()
    asyncio.get_running_loop().call_soon(answered.set, 7)
    assert await driven(answered, 60.0) == 7
    broken: Signal[int] = Signal()
    broken.fail(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        await driven(broken, 60.0)
    never = asyncio.get_running_loop().create_future()
    with pytest.raises(BudgetMissed):
        await driven(never, 0.001)
    assert never.cancelled()


def test_a_verdict_that_came_while_the_process_stood_still_is_read_before_the_budget_is_missed() -> None:
    async def test(loop: Paused) -> None:
        one, two = socket.socketpair()
        with one, two:
            one.setblocking(False)

            async def verdict() -> int:
                return len(await loop.sock_recv(one, 100))

            waiting = asyncio.ensure_future(driven(loop.create_task(verdict()), 5.0))
            await asyncio.sleep(0.01)
            two.send(b"allowed")
            loop.paused = 12.0
            assert await waiting == 7
            late = asyncio.ensure_future(driven(loop.create_future(), 5.0))
            await asyncio.sleep(0)
            for pause in (12.0, 7.5):  # it rests once, for as long as it was late
                assert not late.done()
                loop.paused += pause
                await asyncio.sleep(0.01)
            with pytest.raises(BudgetMissed):
                await late

    run(test)


# --- whom it concerns


def test_a_guardrail_concerns_tenants_and_roles() -> None:
    def caller(tenant: str, *roles: str) -> Principal:
        return Principal("k", tenant, "api_key", ("*",), roles=roles)

    assert concerning(("*",), ("*",)) is None
    concerns = concerning(("acme", "b-*"), ("*",))
    assert concerns is not None and concerns(caller("acme")) and concerns(caller("b-1")) and not concerns(caller("other"))
    concerns = concerning(("*",), ("guest",))
    assert concerns is not None and concerns(caller("acme", "x", "guest")) and not concerns(caller("acme"))


@pytest.mark.parametrize("tenants", [("acme",), ("other",)])
def test_only_those_whom_it_concerns_are_read(tenants: tuple[str, ...]) -> None:
    guard = guarded(concerns=concerning(tenants, ("*",)))
    world = World(request=[guard], response=[guard])
    _, client = world.start(HIT)
    assert bool(client.written) is (tenants == ("acme",))
    assert world.entry.seen_by(Principal("k", "acme", "api_key")) is world.entry.seen_by(Principal("j", "acme", "oidc"))


def test_guardrails_of_other_tenants_are_not_even_asked_whom_they_concern() -> None:
    """Nor those that judge tools and forms of answers: their number is nothing to a request."""
    asked: list[str] = []

    class Counted(Concern):
        def __call__(self, principal: Principal) -> bool:
            asked.append(self.literals[0] if self.literals else "pattern")
            return super().__call__(principal)

    def of(*tenants: str, roles: tuple[str, ...] = ("*",)) -> Any:
        return SimpleNamespace(concerns=Counted(tenants, roles), holds=False)

    everybody = SimpleNamespace(concerns=None, holds=False)
    mine, ours, other_role = of("acme"), of("ac*"), of("acme", roles=("admin",))
    guards = (*(of(f"t{number}") for number in range(50)), mine, everybody, ours, other_role, of("acme", "t1", "acme"))
    world = World()
    entry = ModelEntry(
        world.entry.spec,
        world.entry.route,
        world.entry.meter,
        guards,
        guards,
        request_tools=guards,
        response_tools=guards,
        response_shapes=guards,
    )
    seen = entry.seen_by(Principal("k", "acme", "api_key"))
    wanted = (mine, everybody, ours, guards[-1])
    found = (seen.request_guardrails, seen.response_guardrails, seen.request_tools, seen.response_tools, seen.response_shapes)
    assert found == (wanted,) * 5
    assert sorted(asked) == sorted(["acme", "pattern", "acme", "acme"] * 5)


@pytest.mark.parametrize("where", ["request_tools", "response_tools", "response_shapes"])
def test_judges_of_some_callers_alone_make_an_entry_scoped(where: str) -> None:
    judge = SimpleNamespace(concerns=concerning(("other",), ("*",)), holds=False)
    world = World()
    entry = ModelEntry(world.entry.spec, world.entry.route, world.entry.meter, **{where: (judge,)})  # type: ignore[arg-type]
    assert entry.scoped and getattr(entry.seen_by(Principal("k", "acme", "api_key")), where) == ()
    assert getattr(entry.seen_by(Principal("k", "other", "api_key")), where) == (judge,)


def test_a_fallback_has_its_own_scope() -> None:
    guard = guarded(concerns=concerning(("other",), ("*",)))
    world = World(fallback=True, fallback_request=[guard])
    assert world.entry.scoped
    assert world.entry.seen_by(Principal("k", "acme", "api_key")).fallbacks[0].request_guardrails == ()
    assert world.entry.seen_by(Principal("k", "other", "api_key")).fallbacks[0].request_guardrails == (guard,)
