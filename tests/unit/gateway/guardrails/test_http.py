"""The guardrail that another server decides, against a real one on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable

import pytest

from gateway.app.plugins import OURS
from gateway.core.errors import ConfigError, EngineError, EngineTimeout
from gateway.core.plugins import Lives, no_files
from gateway.core.ports import Guardrail
from gateway.core.secret import Secret
from gateway.core.specs import GuardrailSpec
from gateway.core.types import ALLOW, Verdict
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
        made = OURS.guardrail(GuardrailSpec(name="remote", type="http", settings={"url": self._server.url, **settings}), no_files)
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
        (response(200, {"results": []}), "for 0 of 1 texts"),
        (response(200, {"results": [{"flagged": False}] * 2}), "for 2 of 1 texts"),
        (response(200, b'{"results": [' + b" " * (2 << 20) + b"]}"), "is not a moderation"),
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
    guardrail = make(timeout=10.0, concurrent=2)
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
    waiting = make(timeout=10.0).check(["a"])
    assert isinstance(waiting, asyncio.Task)
    await server.came.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    server.hold.set()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"url": "guard.example"}, "'guard.example' is not an address to post to"),
        ({"url": "ftp://guard.example/x"}, "is not an address to post to"),
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
