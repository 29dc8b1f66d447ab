"""Data labels on their way through the pipeline: where they come from, what they reach, and what the record says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest

from gateway.caches.registry import AnswerCaches
from gateway.core.asking import Answered
from gateway.core.errors import EngineError, PermissionDenied
from gateway.core.labels import Labels
from gateway.core.specs import LabelSpec, ModelSpec
from gateway.core.specs.caches import CacheSpec
from gateway.core.types import ALLOW, Peer, Principal, Usage, Verdict
from gateway.core.waiting import Maybe
from gateway.guardrails.classifier import Classifier, ClassifierSettings
from gateway.pipeline.asking import ModelAsker
from gateway.pipeline.guarded import Guarded
from policies.patterns import matches
from tests.fakes.asker import FakeAsker
from tests.unit.gateway.pipeline.world import ANSWER, BODY, CHAT, Route, World
from tests.waiting import reached

KNOWN = {"restricted": LabelSpec(tenants=("clinic-*",)), "pii": LabelSpec(models=("n", "guard")), "secret": LabelSpec()}
PROXY = Peer("192.0.2.1", trusted=True)
HEADER = b"x-gatehouse-data-label"


class Watching:
    """Stands before a route and sees the labels of what is acquired."""

    def __init__(self, route: Route) -> None:
        self.seen: list[frozenset[str]] = []
        acquire = route.acquire

        def watched(request, *rest):  # type: ignore[no-untyped-def]
            self.seen.append(request.labels)
            return acquire(request, *rest)

        route.acquire = watched  # type: ignore[method-assign]


def world_of(**options: object) -> World:
    world = World(**options)  # type: ignore[arg-type]
    world.snapshot.labels = Labels(KNOWN, matches)
    return world


class Finds:
    """A guardrail that finds a word and labels the request, or fails."""

    name = "finds"

    def __init__(self, word: str = "diagnosis", broken: bool = False) -> None:
        self._word, self._broken = word, broken

    def check(self, texts: Sequence[str]) -> Verdict:
        if self._broken:
            raise RuntimeError("broken")
        return Verdict("annotate", "finds", "found", label=True) if any(self._word in text for text in texts) else ALLOW

    def stream(self) -> None:
        return None


def guarded(guardrail: Finds, fail_open: bool = False, **options: object) -> Guarded:
    return Guarded(guardrail, fail_open, lambda *event: None, label="secret", **options)  # type: ignore[arg-type]


def test_a_tenants_label_is_on_all_its_requests() -> None:
    world = world_of()
    seen = Watching(world.route)
    world.identity.caller = Principal("k", "clinic-7", "api_key", ("*",))
    world.start()
    world.call.answer()
    assert seen.seen == [frozenset({"restricted"})]
    assert world.audit.intents[0].labels == ("restricted",)
    assert (world.outcome.detail or {})["labels"] == ["restricted"]


def test_without_a_label_nothing_is_recorded() -> None:
    world = world_of()
    world.start()
    world.call.answer()
    assert world.audit.intents[0].labels == () and "labels" not in (world.outcome.detail or {})


def test_a_trusted_peer_names_labels_and_others_do_not() -> None:
    world = world_of()
    seen = Watching(world.route)
    world.start(headers={HEADER: b"secret, pii"}, peer=PROXY)
    world.start(headers={HEADER: b"secret"})
    assert seen.seen == [frozenset({"secret", "pii"}), frozenset()]


@pytest.mark.parametrize("value", [b"sekret", b"", b"secret,", b"secret,\xff"])
def test_a_trusted_peers_unknown_label_is_refused(value: bytes) -> None:
    world = world_of()
    _, client = world.start(headers={HEADER: value}, peer=PROXY)
    error = json.loads(client.body)["error"]
    assert client.status == 400 and error["param"] == "x-gatehouse-data-label" and not world.engine.calls


def test_a_clients_own_word_for_its_data_counts_where_it_is_a_label() -> None:
    world = world_of()
    seen = Watching(world.route)
    for label in ("secret", "lunch"):
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "metadata": {"data_label": label}}
        world.start(json.dumps(body).encode())
    assert seen.seen == [frozenset({"secret"}), frozenset()]


def test_what_a_guardrail_finds_labels_the_request() -> None:
    world = world_of(request=[guarded(Finds())])
    seen = Watching(world.route)
    world.start(BODY.replace(b"hi", b"my diagnosis"))
    world.call.answer()
    world.start()
    assert seen.seen == [frozenset({"secret"}), frozenset()]
    assert world.audit.intents[0].labels == ("secret",)
    assert (world.outcome.detail or {})["guardrails"][0]["verdict"] == "annotate"


def test_one_that_fails_open_labels_what_it_has_not_seen_and_one_that_monitors_labels_nothing() -> None:
    world = world_of(request=[guarded(Finds(broken=True), fail_open=True)])
    seen = Watching(world.route)
    world.start()
    assert seen.seen == [frozenset({"secret"})]
    world = world_of(request=[guarded(Finds(), monitor=True)])
    seen = Watching(world.route)
    world.start(BODY.replace(b"hi", b"my diagnosis"))
    assert seen.seen == [frozenset()]


def test_a_fallback_is_asked_where_no_engine_of_the_model_may_see_the_request() -> None:
    """The labels of the fallback's own count too, and an answer of 403 is what the caller gets where it may not either."""
    world = world_of(fallback=True)
    refused = PermissionDenied("No engine of m may see data with the label restricted.", code="label_not_cleared")
    world.identity.caller = Principal("k", "clinic-7", "api_key", ("*",))
    world.route.errors = [refused]
    seen = Watching(world.other)
    _, client = world.start()
    world.call.answer()
    assert client.status == 200 and seen.seen == [frozenset({"restricted", "pii"})]
    assert (world.outcome.detail or {})["labels"] == ["pii", "restricted"]
    world.route.errors, world.other.errors = [refused], [refused]
    _, client = world.start()
    error = json.loads(client.body)["error"]
    assert (client.status, error["code"], error["type"]) == (403, "label_not_cleared", "permission_error")


def test_a_fallback_that_may_not_see_it_does_not_hide_why_the_model_is_away() -> None:
    world = world_of(fallback=True)
    world.route.errors = [EngineError("No endpoint of m is healthy.", code="no_healthy_endpoint", status=503)]
    world.other.errors = [PermissionDenied("No.", code="label_not_cleared")]
    _, client = world.start()
    assert client.status == 503


async def test_a_guardrails_question_has_the_labels_of_the_texts_and_of_the_model_that_is_asked() -> None:
    asker = FakeAsker("bad")
    made = Classifier("c", ClassifierSettings(model="guard", labels={"bad": 0.9}), asker)
    world = world_of(request=[Guarded(made, False, lambda *event: None)])
    world.identity.caller = Principal("k", "clinic-7", "api_key", ("*",))
    world.start()
    await reached(lambda: bool(world.engine.calls))
    assert asker.labels == [frozenset({"restricted"})]

    world = world_of()
    world.snapshot.models["guard"] = world.snapshot.models["m"]
    world.snapshot.labels = Labels({**KNOWN, "pii": LabelSpec(models=("m",))}, matches)
    seen = Watching(world.route)
    task: asyncio.Task[Answered] = asyncio.ensure_future(
        ModelAsker(world.plane).ask("guard", b"/v1/classify", {"input": ["x"]}, 5.0, None, frozenset({"secret"}))
    )
    await reached(lambda: bool(world.engine.calls))
    world.call.answer(b'{"data":[]}')
    await task
    assert seen.seen == [frozenset({"secret", "pii"})]


async def test_a_guardrail_whose_model_may_not_see_the_texts_denies() -> None:
    def refuse(path: bytes, question: object) -> dict[str, object]:
        raise PermissionDenied("No engine of guard may see data with the label restricted.", code="label_not_cleared")

    made = Classifier("c", ClassifierSettings(model="guard", labels={"bad": 0.9}), FakeAsker("bad", refuse))
    world = world_of(request=[Guarded(made, False, lambda *event: None)])
    world.identity.caller = Principal("k", "clinic-7", "api_key", ("*",))
    exchange, client = world.start()
    await reached(lambda: exchange.settled)
    assert client.status == 400 and json.loads(client.body)["error"]["code"] == "c" and not world.engine.calls


def test_an_answer_is_judged_by_nobody_who_may_not_see_the_request() -> None:
    seen: list[frozenset[str]] = []

    class Asks(Finds):
        def check_labelled(self, texts: Sequence[str], labels: frozenset[str]) -> Maybe[Verdict]:
            seen.append(labels)
            return ALLOW

    world = world_of(response=[Guarded(Asks(), False, lambda *event: None)])
    world.start(headers={HEADER: b"secret"}, peer=PROXY)
    world.call.answer()
    assert seen == [frozenset({"secret"})] and CHAT and Usage()


def test_an_answer_that_is_kept_is_not_given_once_no_engine_may_see_the_label() -> None:
    """As where an engine is asked: a clearance that was taken back is no more."""
    world = world_of()
    world.identity.caller = Principal("k", "clinic-1", "api_key", ("*",))
    cache = AnswerCaches(lambda: 0.0).of(ModelSpec(name="m", pool=("a",), cache=CacheSpec(temperature="any")), b"1", b"s" * 32)
    world.entry.cache = cache
    world.start()
    world.call.answer(ANSWER.replace(b"}}],", b'},"finish_reason":"stop"}],'))
    assert world.start()[1].headers["x-gatehouse-cache"] == "hit"
    world.route.clears = False
    _, client = world.start()
    assert client.status == 403 and json.loads(client.body)["error"]["code"] == "label_not_cleared"
    assert len(world.engine.calls) == 1
