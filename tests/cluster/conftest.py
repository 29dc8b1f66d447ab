"""The cluster as a fixture: one for each module, whole again after every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.cluster import NAMES, Cluster
from tests.waiting import until

WORKERS: int | None = 2
"""Data workers of each gateway."""


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    with Cluster(WORKERS) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: Cluster) -> Iterator[Cluster]:
    """A cluster in order. What a test broke it need not mend: faults are taken back and replicas that ended start again."""
    yield running
    running.mend()
    until(lambda: running.haproxy.up() == set(NAMES), what="both replicas behind haproxy")
    until(lambda: all(replica.all_there() for replica in running.replicas.values()), what="all workers")
