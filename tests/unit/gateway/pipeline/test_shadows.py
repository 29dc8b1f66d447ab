"""Shadow traffic: what is mirrored, when, to whom; what it never does to the client's request."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.core.approvals import HEADER
from gateway.core.errors import AuditUnavailable, EngineError, PermissionDenied
from gateway.core.labels import Labels
from gateway.core.plugins import Context
from gateway.core.snapshot import ModelEntry
from gateway.core.specs import LabelSpec, ModelSpec
from gateway.core.specs.rollouts import ShadowSpec
from gateway.core.standing import halt
from gateway.core.types import ResponseHead
from gateway.core.waiting import Signal
from gateway.pipeline import shadows
from gateway.pipeline.guarded import Guarded
from gateway.pipeline.shadows import Shadows
from gateway.pipeline.tools import GuardedTools
from gateway.routing.keys import key_function
from policies.guardrails.denylist import DenyList
from policies.guardrails.phrases import PhraseSet
from policies.guardrails.tool_calls import ToolCallsSettings, build
from policies.patterns import matches
from tests.steady import once
from tests.unit.gateway.pipeline.world import (
    ANSWER,
    BODY,
    CHAT,
    DONE,
    SSE_HEAD,
    STREAM_BODY,
    USAGE,
    Call,
    EngineClient,
    Route,
    World,
    chunk,
)
from tests.waiting import reached

OTHER = ANSWER.replace(b"hello", b"Hello, you")


class Shadowed(World):
    """The model `m` with the candidate `n`, whose engine is `second`. free: whether it has a slot that nobody wants."""

    def __init__(self, *, max_tokens: int | None = None, candidate_request: tuple[Any, ...] = (), key: Any = None, **given: Any) -> None:
        guardrails = given.pop("request", ())
        super().__init__(request=guardrails)
        self.second, self.free = EngineClient(), True
        self.candidate = Route(self.second)
        spec = ModelSpec(name="n", pool=("b",), max_tokens=max_tokens)
        meter = self.metrics.meter("n")
        self.snapshot.models["n"] = ModelEntry(spec, self.candidate, meter, candidate_request)
        self.events: list[Any] = []
        self.audit.event = self._event  # type: ignore[method-assign]
        self.durable_events = True
        self.shadows = Shadows(self.plane, lambda entry, spare: self.free)
        given = {"share": 1.0, **given}
        model = ModelSpec(name="m", pool=("a",), shadow=ShadowSpec(model="n", **given))
        self.entry.spec = model
        self.entry.watch = self.shadows.of(model, key)

    def _event(self, record: Any) -> Signal[None]:
        self.events.append(record)
        ticket: Signal[None] = Signal()
        if self.durable_events:
            ticket.set(None)
        else:
            ticket.fail(AuditUnavailable("The audit log is full."))
        return ticket

    @property
    def figures(self) -> Any:
        return self.shadows.figures()["m"]

    async def mirrored(self, count: int = 1) -> Call:
        await reached(lambda: len(self.second.calls) == count, what="the mirrored request")
        return self.second.calls[-1]

    async def idle(self) -> None:
        await reached(lambda: not self.figures.running and not self.figures.waiting, what="the end of what is mirrored")


async def test_a_request_is_mirrored_once_it_has_been_answered_and_costs_nobody_anything() -> None:
    world = Shadowed()
    _, client = world.start()
    assert not world.second.calls
    world.call.answer()
    assert client.ends and client.body == ANSWER, "the client waits for nothing"
    call = await world.mirrored()
    assert json.loads(call.request_body) == {**json.loads(BODY), "model": "n"}
    assert b"x-gatehouse-priority: batch\r\n" in call.request_head
    assert b"x-request-id: req-1\r\n" not in call.request_head
    call.answer(OTHER)
    await world.idle()
    assert len(world.limiter.reservations) == len(world.audit.outcomes) == 1
    figures = world.figures
    assert (figures.sampled, figures.mirrored, figures.compared, figures.dropped, figures.skipped) == (1, 1, 1, {}, {})
    assert 0 < figures.likeness_sum < 1
    assert (figures.model.completion_tokens, figures.shadow.completion_tokens) == (3, 3)
    begun, ended = world.events
    assert (begun.event, begun.target, begun.tenants) == ("request_mirrored", "n", ("acme",))
    assert begun.detail["shadow_of"] == "req-1"
    assert (ended.event, ended.outcome, ended.detail["status"]) == ("mirror_answered", "ok", 200)
    assert "hello" not in repr(world.events)
    assert b'operation="shadow"' in world.metrics.scrape()
    assert [attempt.results[0] for attempt in world.candidate.attempts] == ["success"]
    assert world.shadows.room.left == shadows.ROOM


@pytest.mark.parametrize("begin", [[chunk("hel"), chunk("lo")], [chunk("hello")]])
async def test_streams_are_compared_by_their_texts(begin: list[bytes]) -> None:
    world = Shadowed()
    _, client = world.start(STREAM_BODY)
    world.call.head(SSE_HEAD)
    for event in (*begin, chunk(finish="stop"), USAGE, DONE):
        world.call.body(event)
    world.call.end()
    assert client.complete
    call = await world.mirrored()
    assert json.loads(call.request_body)["stream"] is True
    call.answer(b"".join((chunk("Hello!"), chunk(finish="stop"), USAGE, DONE)), SSE_HEAD)
    await world.idle()
    assert (world.figures.compared, world.figures.likeness_sum) == (1, 1.0)
    assert sum(world.figures.shadow.first) == sum(world.figures.model.first) == 1
    assert world.figures.shadow.completion_tokens == 3


async def test_what_is_mirrored_is_what_guardrails_have_made_of_it() -> None:
    words = Guarded(DenyList("words", PhraseSet(["hi"]), mask=True), False, lambda name, mode: None)
    world = Shadowed(request=(words,))
    world.start()
    world.call.answer()
    call = await world.mirrored()
    assert b'"hi"' not in call.request_body
    assert json.loads(call.request_body)["messages"] == json.loads(world.call.request_body)["messages"]
    call.answer()
    await world.idle()


async def test_a_guardrail_that_came_while_a_request_waited_has_not_read_it() -> None:
    world = Shadowed()
    world.free = False
    world.start()
    world.call.answer()
    new = Guarded(DenyList("words", PhraseSet(["hi"]), mask=False), False, lambda name, mode: None)
    for model in ("m", "n"):
        world.snapshot.models[model].request_guardrails = (new,)
    world.free = True
    await world.idle()
    assert not world.second.calls and world.figures.skipped == {"guardrails": 1}


@pytest.mark.parametrize("rule", [LabelSpec(tenants=("acme",)), LabelSpec(models=("m",)), LabelSpec(models=("n",))])
async def test_a_request_that_waited_has_the_labels_of_the_rules_that_came_meanwhile(rule: LabelSpec) -> None:
    world = Shadowed()
    world.free = False
    world.start()
    world.call.answer()
    world.snapshot.labels = Labels({"restricted": rule}, matches)
    world.free = True
    (await world.mirrored()).answer()
    await world.idle()
    assert world.events[0].detail["labels"] == ["restricted"]


async def test_one_that_judges_tools_and_stayed_the_same_has_read_what_waited() -> None:
    world = Shadowed()
    judge = build(ToolCallsSettings(default="allow"), Context(name="tools"))

    def configured() -> None:  # each configuration wraps it anew
        for model in ("m", "n"):
            world.snapshot.models[model].request_tools = (GuardedTools("tools", judge, False, lambda *event: None),)

    world.free = False
    configured()
    world.start()
    world.call.answer()
    configured()
    world.free = True
    (await world.mirrored()).answer()
    await world.idle()
    assert world.figures.skipped == {} and world.figures.mirrored == 1


async def test_a_guardrail_of_the_candidate_that_has_not_read_the_request_keeps_it_away() -> None:
    words = Guarded(DenyList("words", PhraseSet(["bomb"]), mask=False), False, lambda name, mode: None)
    world = Shadowed(candidate_request=(words,))
    world.start()
    world.call.answer()
    assert world.figures.skipped == {"guardrails": 1}
    world.entry.request_guardrails = (words,)
    world.start()
    world.call.answer()
    (await world.mirrored()).answer()
    await world.idle()


async def test_an_engine_that_is_not_cleared_gets_nothing() -> None:
    world = Shadowed()
    world.candidate.errors = [PermissionDenied("No engine of n may see it.", code="label_not_cleared")]
    world.start()
    world.call.answer()
    await reached(lambda: world.figures.skipped == {"label_not_cleared": 1})
    assert not world.second.calls and not world.events


@pytest.mark.parametrize(
    ("given", "spoil", "reason"),
    [
        ({}, lambda world: world.snapshot.models.pop("n"), "no_model"),
        ({"max_tokens": 5}, lambda world: None, "max_tokens"),
        ({}, lambda world: setattr(world, "durable_events", False), "audit"),
    ],
)
async def test_what_the_candidate_must_not_get_is_counted(given: dict[str, Any], spoil: Any, reason: str) -> None:
    world = Shadowed(**given)
    spoil(world)
    world.start(BODY[:-1] + b',"max_tokens":9}')
    world.call.answer()
    await reached(lambda: world.figures.skipped == {reason: 1})
    await world.idle()
    assert not world.second.calls
    assert all(attempt.results for attempt in world.candidate.attempts), "its slot is free"


async def test_a_candidate_that_fails_or_hangs_is_counted_and_harms_nobody() -> None:
    async def tried() -> Shadowed:
        world = Shadowed(timeout=0.2)
        for _ in range(2):
            _, client = world.start()
            world.call.answer()
            assert client.status == 200
        await reached(lambda: len(world.second.calls) == 2 or world.figures.dropped, what="the mirrored requests")
        if len(world.second.calls) == 2:
            world.second.calls[1].fail(EngineError("The engine is gone."))
        await world.idle()
        return world

    # Where this process stands still for a moment, the second one's deadline passes, too.
    world = await once(lambda world: "failure" in [attempt.results[0] for attempt in world.candidate.attempts], tried)
    assert world.second.calls[0].cancelled, "the one that hung until its deadline"
    assert (world.figures.shadow.errors, world.figures.model.errors, world.figures.compared) == (2, 0, 0)
    assert sorted(attempt.results[0] for attempt in world.candidate.attempts) == ["failure", "neutral"]
    assert [event.outcome for event in world.events].count("failed") == 2
    assert world.shadows.room.left == shadows.ROOM


@pytest.mark.parametrize("target", ["model/n", "model/m", "model/alias", "tenant/acme"])
async def test_a_halt_ends_what_is_mirrored_and_says_nothing_of_the_engine(target: str) -> None:
    world = Shadowed(concurrency=1)
    for _ in range(3):
        world.start(BODY.replace(b'"m"', b'"alias"'))
        world.call.answer()
    call = await world.mirrored()
    world.plane.standing.replace("halts", [halt(target)])
    await world.idle()
    assert call.cancelled and len(world.second.calls) == 1 and not world.shadows.under_way
    assert world.figures.skipped == {"stopped": 3} and world.figures.shadow.answers == 0
    assert [attempt.results[0] for attempt in world.candidate.attempts] == ["neutral"]
    assert [event.event for event in world.events] == ["request_mirrored", "mirror_answered"]


@pytest.mark.parametrize("other", [None, ShadowSpec(model="x")])
async def test_nothing_more_is_mirrored_once_the_shadow_is_removed(other: ShadowSpec | None) -> None:
    world = Shadowed(concurrency=1)
    for _ in range(3):
        world.start()
        world.call.answer()
    call = await world.mirrored()
    world.entry.spec = ModelSpec(name="m", pool=("a",), shadow=other)
    call.answer(OTHER)
    await world.idle()
    assert len(world.second.calls) == 1 and world.figures.skipped == {"removed": 2}


async def test_no_slot_is_taken_that_somebody_wants_and_the_queue_is_bounded() -> None:
    world = Shadowed(timeout=0.3, concurrency=1, queue=2)
    world.free = False
    for _ in range(6):
        world.start()
        world.call.answer()
    assert world.figures.dropped == {"queue_full": 4}
    await world.idle()
    assert world.figures.dropped == {"queue_full": 4, "late": 2}
    assert not world.second.calls
    assert world.shadows.room.left == shadows.ROOM


async def test_a_client_that_leaves_and_an_engine_that_fails_leave_nothing_to_compare() -> None:
    world = Shadowed()
    exchange, _ = world.start(STREAM_BODY)
    world.call.head(SSE_HEAD).body(chunk("hel"))
    exchange.client_gone()
    world.start()
    world.call.fail(EngineError("The engine is gone."))
    assert world.figures.skipped == {"unanswered": 1}
    assert not world.figures.waiting and world.shadows.room.left == shadows.ROOM


async def test_a_refusal_of_the_engine_is_mirrored_as_well() -> None:
    world = Shadowed()
    world.start()
    world.call.answer(b'{"error":{"message":"too long"}}', ResponseHead(400, []))
    (await world.mirrored()).answer()
    await world.idle()
    assert (world.figures.model.refusals, world.figures.shadow.refusals, world.figures.compared) == (1, 0, 0)


async def test_answers_too_large_to_keep_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadows, "MOST_ANSWER", 64)
    world = Shadowed()
    world.start()
    world.call.answer()
    (await world.mirrored()).answer()
    await world.idle()
    assert (world.figures.mirrored, world.figures.compared) == (1, 0)
    assert sum(world.figures.shadow.latency) == 1
    assert world.shadows.room.left == shadows.ROOM


async def test_an_answer_that_is_still_read_does_not_count_as_one_that_went_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """A counter that falls again would look like a restart."""
    world, well = Shadowed(), []

    async def unreadable(steps: Any) -> None:
        well.append([side.answers - side.errors - side.refusals for side in (world.figures.model, world.figures.shadow)])
        raise EngineError("It cannot be read.")

    monkeypatch.setattr(shadows, "in_slices", unreadable)
    world.start()
    world.call.answer()
    (await world.mirrored()).answer()
    await world.idle()
    assert well == [[0, 0], [0, 0]]
    assert [(side.answers, side.errors) for side in (world.figures.model, world.figures.shadow)] == [(1, 1), (1, 1)]


def test_retries_with_an_approval_and_other_operations_are_never_mirrored() -> None:
    world = Shadowed()
    watch: Any = world.entry.watch
    exchange, _ = world.start()
    attempt = world.route.attempts[0]
    assert watch.watched(exchange, attempt) is not attempt
    exchange.headers = {HEADER: b"apr-1"}
    assert watch.watched(exchange, attempt) is attempt
    exchange.headers = {}
    exchange.request.operation = "speech"  # type: ignore[union-attr]
    assert watch.watched(exchange, attempt) is attempt


def test_a_sample_is_the_same_share_of_all_keys_and_sticks_to_them() -> None:
    taken = {}
    for share in (0.05, 0.2):
        world = Shadowed(share=share, key=key_function("prefix"))
        watch = world.entry.watch
        for number in range(2000):
            body = json.dumps({"model": "m", "messages": [{"role": "user", "content": f"text {number}"}]}).encode()
            request = world.snapshot.parse(CHAT, body, {})
            exchange, _ = world.start(body)
            taken[share, number] = watch._samples(exchange, request, exchange.principal)  # type: ignore[union-attr]
    small = {number for (share, number), hit in taken.items() if hit and share == 0.05}
    large = {number for (share, number), hit in taken.items() if hit and share == 0.2}
    assert small < large, "a larger share keeps those of a smaller one"
    assert 60 < len(small) < 145 and 330 < len(large) < 475


async def test_the_figures_outlive_a_change_of_the_settings_and_not_one_of_the_candidate() -> None:
    world = Shadowed()
    world.start()
    world.call.answer()
    (await world.mirrored()).answer()
    await world.idle()
    again = world.shadows.of(ModelSpec(name="m", pool=("a",), shadow=ShadowSpec(model="n", share=0.5)), None)
    assert world.figures.mirrored == 1
    world.entry.watch = again
    other = world.shadows.of(ModelSpec(name="m", pool=("a",), shadow=ShadowSpec(model="o")), None)
    assert other is not None and world.figures.mirrored == 0
    assert world.shadows.of(ModelSpec(name="m", pool=("a",)), None) is None
