"""What holds while the parts of a cluster fail, one after the other."""

from __future__ import annotations

import os
import signal
import time
from http.client import HTTPException

from tests.cluster.cluster import NAMES, Cluster, Line, Replica
from tests.cluster.load import Load
from tests.e2e.harness import KEY, alive
from tests.waiting import until

RATE = 200


def load(cluster: Cluster, **options: object) -> Load:
    return Load([cluster.haproxy.port], KEY, **{"rate": RATE, **options})


def faultless(load: Load, more_than: int = RATE) -> None:
    total = load.total
    assert total["sent"] == total["ok"] > more_than and not total["first"], {**total, "failures": total["failures"][:10]}


def served(replica: Replica) -> float:
    return replica.metric("gatehouse_requests_total")


def more(replica: Replica, count: int) -> None:
    """Waits until a replica has served so many more requests."""
    before = served(replica)
    until(lambda: served(replica) > before + count, what=f"traffic at {replica.name}")


def store_at(replica: Replica, state: bool) -> None:
    until(lambda: replica.readiness()[1]["store"] is state, what=f"store: {state} at {replica.name}")


def test_a_balancer_sends_requests_to_both_replicas(cluster: Cluster) -> None:
    before = [served(replica) for replica in (cluster.a, cluster.b)]
    answers = [cluster.chat() for _ in range(20)]
    assert {answer.status_code for answer in answers} == {200}
    assert all(served(replica) > count for replica, count in zip((cluster.a, cluster.b), before, strict=True))


def test_a_key_works_at_once_at_every_worker_and_is_revoked_at_all(cluster: Cluster) -> None:
    id, secret = cluster.a.make_key()
    with cluster.at_each_worker(cluster.a) as here, cluster.at_each_worker(cluster.b) as there:
        lines = [*here.values(), *there.values()]
        assert [line.chat(secret) for line in lines] == [200] * len(lines)
        cluster.a.revoke(id)
        for line in lines:
            until(lambda line=line: line.chat(secret) == 401, what="the refusal")
        assert [line.chat(secret) for line in lines] == [401] * len(lines)


def test_a_replica_leaves_and_comes_back_without_a_failed_request(cluster: Cluster) -> None:
    with load(cluster) as running:
        more(cluster.a, 10)
        ours = cluster.a.processes()
        assert cluster.a.stop() == 0
        assert not any(alive(pid) for pid in ours)
        cluster.a.start()
        until(lambda: cluster.haproxy.up() == set(NAMES), what="both replicas")
        more(cluster.a, 10)
    faultless(running)


def test_traffic_goes_on_while_postgresql_restarts(cluster: Cluster) -> None:
    cluster.chat()
    with load(cluster) as running:
        cluster.postgres.stop()
        store_at(cluster.a, False)
        store_at(cluster.b, False)
        assert cluster.haproxy.up() == set(NAMES)
        cluster.postgres.start()
        store_at(cluster.a, True)
        store_at(cluster.b, True)
    faultless(running, 0)
    id, secret = cluster.b.make_key()
    assert cluster.chat(secret).status_code == 200
    cluster.b.revoke(id)


def test_a_replica_without_a_way_to_postgresql_says_so_and_serves(cluster: Cluster) -> None:
    id, secret = cluster.a.make_key()
    assert cluster.chat(secret, url=cluster.a.url).status_code == 200  # remembered
    with load(cluster) as running:
        cluster.a.ways["postgres"].partition()
        store_at(cluster.a, False)
        assert cluster.b.readiness()[1]["store"] is True
        cluster.b.revoke(id)
        until(lambda: cluster.chat(secret, url=cluster.b.url).status_code == 401, what="the refusal at b")
        assert cluster.chat(secret, url=cluster.a.url).status_code == 200  # a has not heard of it
        cluster.a.ways["postgres"].heal()
        until(lambda: cluster.chat(secret, url=cluster.a.url).status_code == 401, what="the refusal at a")
        store_at(cluster.a, True)
    faultless(running, 0)


def test_a_killed_replica_leaves_nothing_and_the_other_serves(cluster: Cluster) -> None:
    with load(cluster, retries=3) as running:
        more(cluster.a, 10)
        ours = cluster.a.processes()
        assert len(ours) > (cluster.workers or 0)
        cluster.a.kill()
        until(lambda: not any(alive(pid) for pid in ours), what="the end of all its processes")
        until(lambda: cluster.haproxy.up() == {"b"}, what="b alone")
        running.phase("b alone")
        more(cluster.b, 50)
    alone = running.account["b alone"]
    assert alone["sent"] == alone["ok"] and not alone["first"], alone
    lost = set(running.total["failed"])
    assert lost <= {"cut"}, running.total  # streams that had begun; everything else went well the second time


def hints(replica: Replica, carrier: str) -> float:
    return replica.metric("gatehouse_hints_sure", carrier=carrier)


def test_a_frozen_redis_holds_up_no_request(cluster: Cluster) -> None:
    until(lambda: hints(cluster.a, "redis") == 1, what="hints over Redis")
    cluster.redis.freeze()
    with load(cluster) as running:
        more(cluster.a, 20)
        until(lambda: hints(cluster.a, "redis") == 0, what="the doubt about Redis")
    cluster.redis.thaw()
    faultless(running, 0)
    until(lambda: hints(cluster.a, "redis") == 1, what="hints over Redis again")


def test_an_engine_behind_a_slow_network_is_waited_for(cluster: Cluster) -> None:
    """The proxies do what they say: a delay each way, a reset, a refusal."""
    way = cluster.a.ways["engine"]
    assert cluster.chat(model="far", url=cluster.a.url).status_code == 200
    way.delay(0.2)
    begin = time.monotonic()
    assert cluster.chat(model="far", url=cluster.a.url).status_code == 200
    assert time.monotonic() - begin > 0.39
    way.drop()
    assert cluster.chat(model="far", url=cluster.a.url).status_code in (502, 503)
    assert cluster.chat(model="far", url=cluster.b.url).status_code == 200
    way.heal()
    until(lambda: cluster.chat(model="far", url=cluster.a.url).status_code == 200, what="the engine again")


def test_a_worker_that_is_killed_takes_only_its_own_requests(cluster: Cluster) -> None:
    if cluster.workers is None:
        return
    with cluster.at_each_worker(cluster.a) as lines:
        (victim, lost), *others = lines.items()
        os.kill(victim, signal.SIGKILL)
        until(lambda: not alive(victim), what="the end of the worker")
        for _, line in others:
            assert [line.chat() for _ in range(5)] == [200] * 5
        assert gone(lost)
        until(lambda: victim not in cluster.a.workers() and cluster.a.all_there(), what="its successor")
        assert cluster.chat(url=cluster.a.url).status_code == 200


def test_a_worker_that_starts_while_the_store_is_away_knows_the_keys_of_its_neighbours(cluster: Cluster) -> None:
    if cluster.workers is None:
        return
    id, secret = cluster.a.make_key()
    assert cluster.chat(secret, url=cluster.a.url).status_code == 200
    cluster.a.ways["postgres"].drop()
    store_at(cluster.a, False)
    victim = cluster.a.workers()[0]
    os.kill(victim, signal.SIGKILL)
    until(lambda: victim not in cluster.a.workers() and cluster.a.all_there(), what="its successor")
    with cluster.at_each_worker(cluster.a) as lines:
        assert [line.chat(secret) for line in lines.values()] == [200] * len(lines)
    cluster.a.ways["postgres"].heal()
    until(lambda: cluster.a.readiness()[1]["store"], what="the store")
    cluster.a.revoke(id)
    with cluster.at_each_worker(cluster.a) as lines:
        until(lambda: {line.chat(secret) for line in lines.values()} == {401}, what="the refusal")


def gone(line: Line) -> bool:
    try:
        line.chat()
    except (OSError, HTTPException):
        return True
    return False
