"""Where lines of batches run when workers serve, and what is said when one of them is gone."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.app.workers.channel import AskRefused, FeedClosed
from gateway.app.workers.codec import Refusal
from gateway.app.workers.control_batches import ASLEEP, FRESH_SECONDS, WorkerLines
from gateway.core.batch_messages import LineRan, LineRoom, LinesFree, RunLine
from gateway.core.batches import BatchRecord, Creator, LineLost
from gateway.core.errors import GatehouseError, PermissionDenied

BATCH = BatchRecord(
    id="batch_1", creator=Creator(id="app", tenant="acme", kind="api_key"), endpoint="/v1/embeddings", input="file-1",
    state="in_progress", created=0.0, expires=1.0, window="24h",
)  # fmt: skip


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now


class Workers:
    """Stands for the hub: answers from `rooms` and `ran`."""

    def __init__(self, **rooms: LinesFree | Exception) -> None:
        self.rooms: dict[str, LinesFree | Exception] = dict(rooms)
        self.workers = {id: SimpleNamespace(state="ready", adopted=False) for id in rooms}
        self.ran: LineRan | Exception = LineRan(200, b"{}", "r-1")
        self.asked = 0
        self.held: asyncio.Future[Any] | None = None

    def ask(self, worker: str, message: Any, seconds: float) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if isinstance(message, LineRoom):
            self.asked += 1
        if isinstance(message, RunLine) and self.held is not None:
            return self.held
        found = self.rooms[worker] if isinstance(message, LineRoom) else self.ran
        if isinstance(found, Exception):
            answer.set_exception(found)
        else:
            answer.set_result(found)
        return answer


def lines(workers: Workers | None) -> tuple[WorkerLines, Clock]:
    clock = Clock()
    made = WorkerLines(0.25, clock)  # type: ignore[arg-type]
    made.hub = workers  # type: ignore[assignment]
    return made, clock


async def test_a_line_goes_where_there_is_most_room_and_no_further_than_there_is_any() -> None:
    workers = Workers(a=LinesFree(1, 4), b=LinesFree(2, 4), c=FeedClosed("gone"))
    made, clock = lines(workers)
    assert [await made.place("m", 0) for _ in range(4)].count(None) == 1
    assert workers.asked == 3, "what they said counts for a while"
    clock.now += 2 * FRESH_SECONDS
    assert await made.place("m", 0) == "b"
    workers.workers["b"].state = "draining"
    clock.now += 2 * FRESH_SECONDS
    assert await made.place("m", 0) == "a"


async def test_engines_that_sleep_are_woken_by_a_line_but_not_where_another_worker_has_the_slots() -> None:
    made, _ = lines(Workers(a=LinesFree(0, 0), b=LinesFree(0, 0)))
    assert {await made.place("m", 0), await made.place("m", 0)} == {"a", "b"} and ASLEEP > 1
    made, _ = lines(Workers(a=LinesFree(0, 0), b=LinesFree(0, 1)))
    assert await made.place("m", 0) is None
    for nobody in (Workers(), None):
        made, _ = lines(nobody)
        assert await made.place("m", 0) is None


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (FeedClosed("gone"), LineLost),
        (LineRan(lost=True), LineLost),
        (AskRefused(Refusal("broken", "server_error", "internal_error", 500)), LineLost),
        (AskRefused(Refusal("the store is away", "server_error", "store_unavailable", 503)), AskRefused),
        (LineRan(ended=("creator_stopped", "it has ended")), PermissionDenied),
    ],
)
async def test_only_what_certainly_did_not_run_is_said_not_to_have_run(said: LineRan | Exception, error: type[GatehouseError]) -> None:
    workers = Workers(a=LinesFree(1, 1))
    workers.ran = said
    made, _ = lines(workers)
    with pytest.raises(error) as raised:
        await made.run("a", BATCH, 1, b"{}", 1)
    assert isinstance(raised.value, LineLost) == (error is LineLost)


async def test_bytes_under_way_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.app.workers.control_batches.MOST_BYTES", 10)
    monkeypatch.setattr("gateway.app.workers.control_batches.TURN_SECONDS", 0.05)
    workers = Workers(a=LinesFree(1, 1))
    workers.held = asyncio.get_running_loop().create_future()
    made, _ = lines(workers)
    first = asyncio.ensure_future(made.run("a", BATCH, 1, b"x" * 20, 1))
    await asyncio.sleep(0)
    with pytest.raises(GatehouseError, match="under way"):
        await made.run("a", BATCH, 2, b"x", 1)
    workers.held.set_result(LineRan(200, b"{}", "r-1"))
    assert (await first).status == 200 and (await made.run("a", BATCH, 2, b"x", 1)).status == 200
