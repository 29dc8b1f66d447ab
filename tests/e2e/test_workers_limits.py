"""Limits over real workers: one key hammers `serve --workers 2` from many connections, through the death of a worker, too."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest
import yaml

from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, OTHER_KEY
from tests.e2e.test_workers import Farm
from tests.fakes.hammer import Hammered, hammer, request_bytes
from tests.steady import once

THIRD_KEY = "third-key-0123456789abcdef0123456789abcdef"
LIMITS = [
    {"name": "rate", "per": "key", "match": {"key": "test"}, "requests": {"rate": 100, "per": "1s", "burst": 50}},
    {"name": "slots", "per": "tenant", "match": {"key": "other"}, "concurrent": 4},
    {"name": "tokens", "per": "key", "match": {"key": "third"}, "tokens": {"rate": 1, "per": "1h", "burst": 2000}},
]


@pytest.fixture(scope="module")
def slow_engine() -> Iterator[EngineThread]:
    engine = EngineThread(slots=64, service=0.02)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory, slow_engine: EngineThread) -> Iterator[Farm]:
    farm = Farm(tmp_path_factory.mktemp("limited"), slow_engine, limits=LIMITS)
    farm.config["identity"]["api_keys"]["static"].append({"id": "third", "key": THIRD_KEY, "tenant": "third", "models": ["*"]})
    farm.file.write_text(yaml.safe_dump(farm.config))
    with farm as running:
        yield running


def hammered(farm: Farm, key: str, connections: int, seconds: float, max_tokens: int = 8) -> Hammered:
    return asyncio.run(hammer(farm.url, request_bytes(farm.url, key, max_tokens), connections, seconds))


def once_hammered(fits: Callable[[Hammered], bool], farm: Farm, key: str, connections: int, seconds: float) -> Hammered:
    """The first of several that fits: where the machine stands still, little may be asked or admitted. Never too much."""

    async def measure() -> Hammered:
        found = await hammer(farm.url, request_bytes(farm.url, key), connections, seconds)
        assert set(found.statuses) <= {200, 429}
        if key == KEY:
            assert len(found.admitted) <= found.most(100, 50)
            if not fits(found):
                await asyncio.sleep(1.0)  # in half of it the burst is there again
        return found

    return asyncio.run(once(fits, measure))


def test_a_rate_counts_once_over_all_workers_and_nearly_all_of_it_is_used(farm: Farm) -> None:
    def used(found: Hammered) -> bool:
        """98 % are where nothing else runs (loadtests/limits/workers.py)."""
        return len(found.statuses) == 2 and len(found.admitted) >= 0.8 * found.least(100, 50)

    once_hammered(used, farm, KEY, 24, 1.2)


def test_slots_count_once_over_all_workers_and_all_can_be_reached(farm: Farm, slow_engine: EngineThread) -> None:
    slow_engine.engine.most_busy = 0
    once_hammered(lambda found: len(found.statuses) == 2 and slow_engine.engine.most_busy >= 4, farm, OTHER_KEY, 24, 0.6)
    assert slow_engine.engine.most_busy == 4


def test_tokens_count_once_over_all_workers(farm: Farm) -> None:
    used, refused = 0, 0
    while True:
        found = hammered(farm, THIRD_KEY, 16, 0.3, max_tokens=20)
        used, refused = used + found.tokens, refused + found.statuses[429]
        assert set(found.statuses) <= {200, 429}
        if found.statuses[429] and not found.admitted:
            break
    assert refused and 2000 - 60 <= used <= 2000, "a request reserves about forty"


def test_a_worker_that_is_killed_takes_nothing_with_it(farm: Farm) -> None:
    timer = threading.Timer(0.4, os.kill, (farm.two_workers()[0], signal.SIGKILL))
    timer.start()
    found = hammered(farm, KEY, 24, 1.2)
    timer.join()
    assert len(found.admitted) <= found.most(100, 50)
    once_hammered(lambda found: found.statuses[200] > 8, farm, OTHER_KEY, 8, 0.3)
