"""From a withdrawal of rights to the refusal at every worker of both replicas: of a key, user, membership, own key, tenant or token.

    python -m loadtests.cluster.withdrawal [--trials 200] [--workers 2] [--poll 0.005] [--seed 1] [--only "a token is revoked"]

In each trial a credential is used all the time on one connection to each worker of both replicas; then the right is taken at one of them
(they take turns): the key or the user is suspended, the user loses the group that a binding names or that allows own keys, the tenant loses
the model, the token is revoked (a new one each time). The time is from the admin API's answer to the first refusal of each worker;
afterwards the right is given back. `--workers 0`: each gateway is one process. Exits with 1 when a p99 is above a second, or when a refusal
was another than it must be.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

from loadtests.cluster.evidence import arguments, header, spread, table
from loadtests.cluster.revocation import LIMIT, Watch
from tests.cluster.cluster import Cluster, Replica
from tests.e2e.harness import KEY
from tests.fakes.issuer import Issuer
from tests.waiting import until

TENANT = "initech"
GROUPS = "/groups/{}%40initech/{}"


@dataclass
class Kind:
    """One way to withdraw a right. take, give: (path, body) at the admin API. status: of the refusal. anew: the secret and `take` of the
    next trial, where nothing is given back."""

    name: str
    secret: str
    take: tuple[str, object]
    give: tuple[str, object]
    status: int
    method: str = "POST"
    anew: Callable[[], tuple[str, tuple[str, object]]] | None = None


def ask(replica: Replica, method: str, path: str, body: object) -> None:
    with replica.admin() as client:
        client.request(method, path, json=body).raise_for_status()


def kinds(cluster: Cluster, issuer: Issuer) -> list[Kind]:
    """Makes the tenant with its user, groups and keys."""
    member = {"user": f"alice@{TENANT}"}
    token = issuer.token("alice")
    with cluster.a.admin() as root:
        for path, body in (
            ("/tenants", {"name": TENANT}),
            ("/users", {"name": f"alice@{TENANT}"}),
            ("/groups", {"name": f"engineers@{TENANT}"}),
            ("/groups", {"name": f"keyed@{TENANT}", "own_keys": {}}),
            (GROUPS.format("engineers", "add-member"), member),
            (GROUPS.format("keyed", "add-member"), member),
        ):
            root.post(path, json=body).raise_for_status()
    with cluster.a.admin() as person:
        person.headers["authorization"] = f"Bearer {token}"
        made = until(lambda: found.json() if (found := person.post("/my/keys", json={})).status_code == 201 else None, what="an own key")
    id, secret = cluster.a.make_key(tenant=TENANT)
    numbers = count()

    def another() -> tuple[str, tuple[str, object]]:
        name = f"withdrawn-{next(numbers)}"
        revocation = {"type": "token", "issuer": issuer.url, "value": name}
        return issuer.token("alice", jti=name), ("/revocations", revocation)

    groups = [(GROUPS.format(name, verb), member) for name in ("engineers", "keyed") for verb in ("remove-member", "add-member")]
    return [
        Kind("a key is suspended", secret, (f"/keys/{id}/suspend", {}), (f"/keys/{id}/resume", {}), 403),
        Kind("a user is suspended", token, (f"/users/alice%40{TENANT}/suspend", {}), (f"/users/alice%40{TENANT}/resume", {}), 403),
        Kind("a user loses a group", token, groups[0], groups[1], 404),
        Kind("an own key's group is taken", made["secret"], groups[2], groups[3], 401),
        Kind(
            "a tenant is narrowed",
            secret,
            (f"/tenants/{TENANT}", {"models": ["no"]}),
            (f"/tenants/{TENANT}", {"models": ["*"]}),
            404,
            "PATCH",
        ),
        Kind("a token is revoked", "", ("", {}), ("", {}), 401, anew=another),
    ]


def trial(cluster: Cluster, kind: Kind, here: Replica, there: Replica, given: argparse.Namespace) -> tuple[list[float], list[float], int]:
    """Seconds at the workers of the replica that withdrew and of the other; how many refusals were wrong."""
    if kind.anew is not None:
        kind.secret, kind.take = kind.anew()
        settle(cluster, kind, here, there)
    with cluster.at_each_worker(here) as ours, cluster.at_each_worker(there) as theirs:
        watches = [Watch(line, kind.secret, given.poll) for line in (*ours.values(), *theirs.values())]
        for watch in watches:
            watch.start()
        for watch in watches:
            watch.used.wait(10)
        ask(here, kind.method, *kind.take)
        taken = time.monotonic()
        for watch in watches:
            watch.join(60)
        count = len(ours)
    wrong = sum(watch.status != kind.status for watch in watches)
    if kind.anew is None:
        ask(here, kind.method, *kind.give)
        settle(cluster, kind, here, there)
    took = [max(0.0, watch.refused - taken) for watch in watches]
    return took[:count], took[count:], wrong


def settle(cluster: Cluster, kind: Kind, *replicas: Replica) -> None:
    """Waits until the right is there at all workers."""
    for replica in replicas:
        until(lambda replica=replica: all(cluster.chat(kind.secret, url=replica.url).status_code == 200 for _ in range(6)), 30)  # type: ignore[misc]


@contextmanager
def running(workers: int) -> Iterator[tuple[Cluster, Issuer]]:
    issuer = Issuer()
    oidc = [{"name": "corp", "issuer": issuer.url, "jwks_url": issuer.url, "audiences": ["gatehouse"], "max_lifetime": "24h"}]
    static = [{"id": "test", "key": KEY, "tenant": "acme", "models": ["*"]}]
    bindings = [{"role": "chatter", "subjects": ["group/engineers"], "tenant": TENANT}]
    roles = {"chatter": {"permissions": ["infer:chat"]}}
    try:
        with Cluster(workers or None, identity={"api_keys": {"static": static}, "oidc": oidc}, roles=roles, bindings=bindings) as cluster:
            yield cluster, issuer
    finally:
        issuer.close()


def main() -> None:
    given = arguments(__doc__, trials=200, poll=0.005, seed=1, only="").parse_args()
    chance = random.Random(given.seed)
    rows, bad, late = [], 0, False
    with running(given.workers) as (cluster, issuer):
        header(cluster)
        for kind in kinds(cluster, issuer):
            if given.only not in kind.name:
                continue
            near: list[float] = []
            far: list[float] = []
            for number in range(given.trials):
                here, there = (cluster.a, cluster.b) if number % 2 else (cluster.b, cluster.a)
                time.sleep(chance.random() * 0.02)
                ours, theirs, wrong = trial(cluster, kind, here, there, given)
                near += ours
                far += theirs
                bad += wrong
            for where, times in (("where it was withdrawn", near), ("the other replica", far)):
                rows.append({"withdrawn": kind.name, "workers of": where, "times": len(times), **spread(times)})
                late = late or spread(times)["p99, ms"] > LIMIT * 1000
        table(rows)
        print(f"{given.trials} trials each; refusals other than they must be: {bad}")
    raise SystemExit(bool(bad) or late)


if __name__ == "__main__":
    main()
