"""The guardrail that another server decides, against a real one on loopback."""

from __future__ import annotations

import asyncio
import hmac
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable

import pytest

from gateway.app.configuration.plugins import OURS
from gateway.core.errors import ConfigError, EngineError, EngineTimeout, PermissionDenied
from gateway.core.plugins import Lives, no_files
from gateway.core.ports import Guardrail
from gateway.core.secret import Secret
from gateway.core.specs import GuardrailSpec
from gateway.core.types import ALLOW, Verdict
from gateway.guardrails import remote
from gateway.guardrails.http import HttpGuardrail
from tests.fakes.moderation import ModerationServer, moderation, response


@pytest.fixture
async def server() -> AsyncIterator[ModerationServer]:
    async with moderation("plan") as made:
        yield made


@pytest.fixture
async def lives() -> AsyncIterator[list[object]]:
    """Guardrails put into it are closed at the end."""
    kept: list[object] = []
    yield kept
    hold = await Lives().hold([("g", one) for one in kept])
    await hold.release()


@pytest.fixture
def make(server: ModerationServer, lives: list[object]) -> Make:
    return Make(server, lives)


class Make:
    def __init__(self, server: ModerationServer, lives: list[object]) -> None:
        self._server, self._lives = server, lives

    def __call__(self, **settings: object) -> Guardrail:
        made = OURS.guardrail(
            GuardrailSpec(name="remote", type="http", settings={"url": self._server.url, "timeout": 120.0, **settings}), no_files
        )
        self._lives.append(made)
        return made


async def ask(guardrail: Guardrail, *texts: str) -> Verdict:
    found = guardrail.check(texts)
    assert isinstance(found, Awaitable | Verdict)
    return await found if isinstance(found, Awaitable) else found


async def test_all_texts_are_asked_for_in_one_question(make: Make, server: ModerationServer) -> None:
    guardrail = make(model="m-1", token=Secret("s3cret"))
    assert await ask(guardrail, "hello", "", "world") is ALLOW
    assert server.asked == [{"input": ["hello", "world"], "model": "m-1"}]
    assert b"POST /v1/moderations HTTP/1.1" in server.heads[0] and b"authorization: Bearer s3cret\r\n" in server.heads[0]
    verdict = await ask(guardrail, "hello", "the plan")
    assert (verdict.action, verdict.guardrail) == ("block", "remote") and "plan" not in verdict.reason
    assert server.connections == 1


async def test_nothing_to_read_asks_nobody(make: Make, server: ModerationServer) -> None:
    assert await ask(make()) is ALLOW and await ask(make(), "", "") is ALLOW
    assert server.asked == []


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (response(500, {}), "answered with status 500"),
        (response(200, b"flagged: no"), "is not a moderation"),
        (response(200, {"results": [{"flagged": "no"}]}), "is not a moderation"),
        (response(200, b'{"a":' + b"[" * 100_000), "is not a moderation"),
        (response(200, {"results": []}), "for 0 of 1 texts"),
        (response(200, {"results": [{"flagged": False}] * 2}), "for 2 of 1 texts"),
        (response(200, b'{"results": [' + b" " * (2 << 20) + b"]}"), "is longer than"),
        (b"SSH-2.0-x\r\n\r\n", "."),
    ],
)
async def test_what_is_not_a_moderation_is_a_failure(make: Make, server: ModerationServer, answer: bytes, message: str) -> None:
    server.answer = answer
    with pytest.raises(EngineError, match=message):
        await ask(make(), "hello")


async def test_a_server_that_is_not_there_is_a_failure(make: Make) -> None:
    with pytest.raises(EngineError):
        await ask(make(url="http://127.0.0.1:9"), "hello")


async def test_the_deadline_covers_the_answer_and_the_wait_for_a_turn(make: Make, server: ModerationServer) -> None:
    server.hold = asyncio.Event()
    guardrail = make(timeout=0.05, concurrent=1)
    first, second = asyncio.ensure_future(ask(guardrail, "a")), asyncio.ensure_future(ask(guardrail, "b"))
    for waiting in (first, second):
        with pytest.raises(EngineTimeout, match=r"within 0\.05 s"):
            await waiting


async def test_no_more_questions_at_a_time_than_allowed(make: Make, server: ModerationServer) -> None:
    server.hold = asyncio.Event()
    guardrail = make(concurrent=2)
    asked = [asyncio.ensure_future(ask(guardrail, str(number))) for number in range(6)]
    while len(server.asked) < 2:
        await server.came.wait()
        server.came.clear()
    server.hold.set()
    assert await asyncio.gather(*asked) == [ALLOW] * 6
    assert server.most == 2


async def test_texts_that_are_too_long_are_not_sent(make: Make, server: ModerationServer) -> None:
    guardrail = make(max_bytes=10)
    with pytest.raises(EngineError, match="longer than max_bytes"):
        await ask(guardrail, "x" * 6, "y" * 6)
    assert await ask(guardrail, "x" * 10) is ALLOW and len(server.asked) == 1


async def test_half_a_surrogate_pair_is_asked_for_as_a_question_mark(make: Make, server: ModerationServer) -> None:
    assert await ask(make(), "a\ud800b") is ALLOW
    assert server.asked == [{"input": ["a?b"]}]


async def test_a_caller_that_leaves_ends_its_question(make: Make, server: ModerationServer) -> None:
    server.hold = asyncio.Event()
    waiting = make().check(["a"])
    assert isinstance(waiting, asyncio.Task)
    await server.came.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    server.hold.set()


async def test_a_flagged_text_is_named_and_may_be_annotated_or_give_a_label(make: Make, server: ModerationServer) -> None:
    for action, made in (("annotate", ("annotate", False)), ("label", ("annotate", True))):
        found = await ask(make(action=action), "", "hello", "the plan")
        assert (found.action, found.label) == made and [(one.text, one.entity) for one in found.findings] == [(2, "flagged")]


# --- the breaker, signatures, labels


async def test_after_failures_in_a_row_the_server_is_left_alone_and_then_tried(
    make: Make, server: ModerationServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(remote.time, "monotonic", lambda: now[0])
    guardrail = make(breaker=remote.GuardBreakerSpec(failures=2, open_for=10.0))
    server.answer = response(500, {})
    for _ in range(2):
        with pytest.raises(EngineError, match="status 500"):
            await ask(guardrail, "hello")
    with pytest.raises(EngineError, match="failed 2 times in a row and is not asked"):
        await ask(guardrail, "hello")
    assert len(server.asked) == 2
    now[0] += 11.0
    with pytest.raises(EngineError, match="status 500"):
        await ask(guardrail, "hello")  # one tries it
    with pytest.raises(EngineError, match="is not asked"):
        await ask(guardrail, "hello")
    now[0] += 11.0
    server.answer = None
    assert await ask(guardrail, "hello") is ALLOW and await ask(guardrail, "hello") is ALLOW


@pytest.mark.parametrize("answer", [response(400, {}), response(413, {}), response(422, {}), response(200, b" " * (2 << 20))])
async def test_what_the_server_does_not_take_is_no_failure_of_the_server(make: Make, server: ModerationServer, answer: bytes) -> None:
    guardrail = make(breaker=remote.GuardBreakerSpec(failures=2, open_for=1000.0))
    for _ in range(3):
        server.answer = answer
        with pytest.raises(EngineError, match=r"status 4|is longer than"):
            await ask(guardrail, "strange")
    server.answer = None
    assert await ask(guardrail, "hello") is ALLOW


async def test_a_question_that_had_no_time_is_no_failure_of_the_server(make: Make, server: ModerationServer) -> None:
    server.hold = asyncio.Event()
    guardrail = make(breaker=remote.GuardBreakerSpec(failures=2, open_for=1000.0), timeout=0.6, concurrent=1)
    waiting = [asyncio.ensure_future(ask(guardrail, text)) for text in "abcdef"]
    ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(one, EngineTimeout) for one in ended)
    server.hold.set()
    assert await ask(guardrail, "hello") is ALLOW


async def test_questions_are_signed_and_the_signature_covers_time_and_body(make: Make, server: ModerationServer) -> None:
    secret = "whsec_" + b64encode(b"k" * 32).decode()
    await ask(make(secret=secret), "hello")
    headers = dict(line.split(": ", 1) for line in server.heads[0].decode().split("\r\n")[1:] if ": " in line)
    body = server.bodies[0]
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = "v1," + b64encode(hmac.digest(b"k" * 32, signed, "sha256")).decode()
    assert hmac.compare_digest(expected, headers["webhook-signature"])
    assert abs(time.time() - int(headers["webhook-timestamp"])) < 300


async def test_a_server_sees_labelled_texts_only_if_it_is_cleared(make: Make, server: ModerationServer) -> None:
    labels = frozenset({"pii"})
    for clearance in ((), ("secret",)):
        guardrail = make(clearance=clearance)
        assert isinstance(guardrail, HttpGuardrail)
        with pytest.raises(PermissionDenied, match="is not cleared for data with the label pii"):
            guardrail.check_labelled(["hello"], labels)
    assert not server.asked
    for clearance in (("pii",), ("*",)):
        guardrail = make(clearance=clearance)
        assert isinstance(guardrail, HttpGuardrail)
        assert await guardrail.check_labelled(["hello"], labels) is ALLOW  # type: ignore[misc]


# --- Presidio's shape


def found(*places: tuple[str, int, int, float]) -> bytes:
    return response(200, [{"entity_type": kind, "start": start, "end": end, "score": score} for kind, start, end, score in places])


async def test_presidios_places_are_rewritten_in_the_text_that_they_are_in(make: Make, server: ModerationServer) -> None:
    server.answer = found(("ORG", 3, 8, 0.6), ("PERSON", 2, 5, 0.85), ("DATE_TIME", 10, 11, 0.3))
    guardrail = make(shape="presidio", presidio={"language": "de", "only": ["PERSON"], "threshold": 0.4})
    verdict = await ask(guardrail, "", "👋 Joe is here")
    assert (verdict.action, verdict.texts) == ("rewrite", ("", "👋 [PERSON] here")), "of what overlaps no part is left"
    assert [(one.text, one.start, one.end, one.score) for one in verdict.findings] == [(1, 2, 5, 0.85), (1, 3, 8, 0.6)]
    assert server.asked == [{"text": "👋 Joe is here", "language": "de", "score_threshold": 0.4, "entities": ["PERSON"]}]


async def test_presidios_entities_have_actions_of_their_own(make: Make, server: ModerationServer) -> None:
    server.answer = found(("CRYPTO", 0, 1, 0.9), ("PERSON", 2, 3, 0.9))
    acts = {"CRYPTO": "annotate", "PERSON": "label"}
    verdict = await ask(make(shape="presidio", presidio={"entities": acts}), "a b")
    assert (verdict.action, verdict.label, len(verdict.findings)) == ("annotate", True, 2)
    assert (await ask(make(shape="presidio", presidio={"entities": {"CRYPTO": "block"}}), "a b")).action == "block"
    assert await ask(make(shape="presidio", presidio={"others": "allow"}), "a b") is ALLOW
    many = await ask(make(shape="presidio"), *["a b"] * 40)
    assert many.texts == ("[CRYPTO] [PERSON]",) * 40


async def test_requests_with_many_texts_keep_nobody_waiting(make: Make, server: ModerationServer) -> None:
    server.hold, server.answer = asyncio.Event(), found()
    guardrail = make(shape="presidio", concurrent=8, timeout=30.0)
    large = [asyncio.ensure_future(ask(guardrail, *[f"large {number}"] * 40)) for number in range(5)]
    while len(server.asked) < 8:
        await server.came.wait()
        server.came.clear()
    small = asyncio.ensure_future(ask(guardrail, "small"))
    await asyncio.sleep(0)
    server.hold.set()
    await small
    place = [question["text"] for question in server.asked].index("small")
    await asyncio.gather(*large)
    assert place <= 16, "behind those that were asked already, and the first of whoever else had none"
    assert len(server.asked) == 201


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (found(("PERSON", 0, 6, 0.9)), "a place that is not in the text"),
        (found(("PERSON", 2, 2, 0.9)), "a place that is not in the text"),
        (response(200, {"error": "no"}), "is not an analysis"),
        (response(200, [{"entity_type": "PERSON", "start": 0}]), "is not an analysis"),
    ],
)
async def test_what_is_not_an_analysis_is_a_failure(make: Make, server: ModerationServer, answer: bytes, message: str) -> None:
    server.answer = answer
    with pytest.raises(EngineError, match=message):
        await ask(make(shape="presidio"), "hello")


# --- the generic shape


async def test_a_generic_server_says_what_is_to_be_done(make: Make, server: ModerationServer) -> None:
    spans = [{"text": 1, "start": 0, "end": 3, "entity": "name", "score": 0.5}]
    guardrail = make(shape="generic")
    server.answer = response(200, {"action": "rewrite", "texts": ["a", "***"], "reason": "names\x00!", "findings": spans})
    verdict = await ask(guardrail, "a", "", "Joe")
    assert (verdict.action, verdict.texts, verdict.reason) == ("rewrite", ("a", "", "***"), "names!")
    assert [(one.text, one.entity, one.score) for one in verdict.findings] == [(2, "name", 0.5)]
    assert server.asked == [{"guardrail": "remote", "texts": ["a", "Joe"]}]
    for action, made in (("block", ("block", False)), ("annotate", ("annotate", False)), ("label", ("annotate", True))):
        server.answer = response(200, {"action": action, "reason": "why"})
        verdict = await ask(guardrail, "a")
        assert (verdict.action, verdict.label) == made and verdict.reason == "why"
    server.answer = response(200, {"action": "allow", "future": 1})
    assert await ask(guardrail, "a") is ALLOW


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"action": "delete"}, "is not a verdict"),
        ({}, "is not a verdict"),
        ({"action": "rewrite", "texts": []}, "rewrote 0 of 1 texts"),
        ({"action": "block", "texts": ["x"]}, "gave texts with the action block"),
        ({"action": "block", "findings": [{"text": 1, "start": 0, "end": 1}]}, "not in the texts"),
        ({"action": "block", "findings": [{"text": 0, "start": 0, "end": 99}]}, "not in the texts"),
    ],
)
async def test_what_is_not_a_verdict_is_a_failure(make: Make, server: ModerationServer, answer: object, message: str) -> None:
    server.answer = response(200, answer)
    with pytest.raises(EngineError, match=message):
        await ask(make(shape="generic"), "hello")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"url": "guard.example"}, "'guard.example' is not an address to post to"),
        ({"url": "ftp://guard.example/x"}, "is not an address to post to"),
        ({"url": "http://guard", "secret": "short"}, "secret: is too short to sign with"),
        ({"url": "http://guard", "shape": "generic", "model": "m"}, "model: the shape generic has none"),
        ({"url": "http://guard", "presidio": {"language": "de"}}, "presidio: only the shape presidio"),
        ({"url": "http://guard", "shape": "own"}, "Invalid enum value 'own'"),
        ({"url": "https://guard", "tls": {"ca": "/no/such/file"}}, "the CA file '/no/such/file' cannot be used"),
    ],
)
def test_settings_that_make_no_guardrail(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        OURS.guardrail(GuardrailSpec(name="g", type="http", settings=settings), no_files)
    assert message in str(caught.value)


def test_nobody_far_away_makes_the_gateway_call_an_address() -> None:
    with pytest.raises(ConfigError, match="belongs into the configuration file"):
        OURS.guardrail(GuardrailSpec(name="g", type="http", settings={"url": "http://10.0.0.1"}), no_files, local=False)
