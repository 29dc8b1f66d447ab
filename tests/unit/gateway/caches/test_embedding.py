"""An embedding model that is asked for the vector of a question: in time, or there is none."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.caches.embedding import MOST, PAUSE, Embedder
from gateway.core.errors import EngineError, EngineTimeout, PermissionDenied
from gateway.core.tasks import TaskOwner
from gateway.core.waiting import as_future
from tests.fakes.asker import FakeAsker, embedding


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def made(answer: Any = None) -> tuple[Embedder, FakeAsker, Clock]:
    asker, clock = FakeAsker("password", answer or embedding("password")), Clock()
    return Embedder(asker, TaskOwner("test"), clock), asker, clock


async def asked(embedder: Embedder, text: str = "my password") -> Any:
    found = embedder.ask("embed", text, frozenset({"internal"}), 1.0)
    assert found is not None
    return await as_future(found)


async def test_the_vector_has_the_length_of_one_and_the_model_learns_the_labels() -> None:
    embedder, asker, _ = made()
    assert await asked(embedder) == (0.0, 1.0, 0.0)
    assert await asked(embedder, "else") == (1.0, 0.0, 0.0)
    assert asker.asked[0] == ("embed", b"/v1/embeddings", {"input": ["my password"], "encoding_format": "base64"})
    assert asker.labels == [frozenset({"internal"})] * 2
    assert asker.principals == [None, None]


@pytest.mark.parametrize(
    "answer",
    [
        {"data": []},
        {"data": [{"embedding": [1.0]}, {"embedding": [1.0]}]},
        {"data": [{"embedding": "no base64!"}]},
        {"data": [{"embedding": "AAAA"}]},
        {"data": [{"embedding": "AADAfwAAgD8="}]},  # NaN
        b'{"data": [{"embedding": [1e200, 1e200]}]}',
        {"data": [{"embedding": [1.0] * 16_385}]},
        {"nothing": 1},
        b"no json",
        EngineError("away"),
        EngineTimeout("late"),
    ],
)
async def test_a_model_that_fails_gives_none_and_is_left_alone_for_a_while(answer: Any) -> None:
    def fails(path: bytes, question: dict[str, Any]) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    embedder, asker, clock = made(fails)
    assert await asked(embedder) is None
    assert embedder.ask("embed", "again", frozenset(), 1.0) is None
    assert embedder.ask("another", "again", frozenset(), 1.0) is not None
    clock.now += PAUSE
    asker.answer = embedding("password")
    assert await asked(embedder) == (0.0, 1.0, 0.0)


@pytest.mark.parametrize(
    "answer", [{"data": [{"embedding": [0.0, 0.0]}]}, {"data": [{"embedding": [1.0]}], "truncated": [{"index": 0}]}, PermissionDenied("no")]
)
async def test_a_text_that_has_no_vector_is_no_fault_of_the_model(answer: Any) -> None:
    def says(path: bytes, question: dict[str, Any]) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    embedder, _, _ = made(says)
    assert await asked(embedder) is None
    assert await asked(embedder) is None


async def test_questions_under_way_have_a_bound_and_end_with_the_process() -> None:
    asker, tasks = FakeAsker("password", embedding("password")), TaskOwner("test")
    asker.hold = asyncio.Event()
    embedder = Embedder(asker, tasks, Clock())
    waiting = [embedder.ask("embed", "x", frozenset(), 1.0) for _ in range(MOST + 1)]
    assert [one is None for one in waiting] == [False] * MOST + [True]
    await asyncio.sleep(0)
    await tasks.aclose()
    assert all(one is None or (one.done and one.value is None) for one in waiting)
    assert embedder.ask("embed", "x", frozenset(), 1.0) is None


async def test_the_log_says_once_in_a_minute_that_vectors_have_another_size(caplog: pytest.LogCaptureFixture) -> None:
    sizes = iter((3, 3, 4, 3, 4, 4))
    embedder, _, clock = made(lambda path, question: {"data": [{"embedding": [1.0] * next(sizes)}]})
    for _ in range(4):
        assert await asked(embedder)
    assert [record.getMessage()[:51] for record in caplog.records] == ["vectors of the model 'embed' have 4 numbers and had"]
    clock.now += 60.0
    assert await asked(embedder) and await asked(embedder)
    assert len(caplog.records) == 2
