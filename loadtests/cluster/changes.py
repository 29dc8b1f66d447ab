"""Configuration as code against two replicas at once: syncs, ways back and single writes, all at the same time.

    python -m loadtests.cluster.changes [--workers 2] [--seconds 60]

Two writers, one at each replica, make the store equal to files of ten limits that all have one rate; half of these syncs carry a plan. A
third goes back to entries of the history that it picks by chance. Two more make, change and delete tenants one by one. Readers dump the
limits at both replicas all the while. Exits with 1 when a dump ever shows two rates or a part of the ten, when an answer is neither a
success nor a refusal that says why (409, 412), when an entry of the history does not begin where the one before it ended, or when the
replicas do not agree at the end, in the store or in what is in force.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import httpx

from loadtests.cluster.evidence import arguments, header
from tests.cluster.cluster import Cluster
from tests.waiting import until

COUNT: Final = 10
REFUSED: Final = frozenset({(409, "plan_changed"), (412, "version_mismatch")})
"""What somebody is told who was not the first."""
GONE: Final = REFUSED | {(404, "not_found"), (409, "already_exists")}
FILED: Final = 1000
"""Rates of the first file."""


def file(rate: int) -> dict[str, Any]:
    return {"limits": [{"name": f"l{n}", "per": "key", "requests": {"rate": rate, "per": "1s"}} for n in range(COUNT)]}


def rates(client: httpx.Client) -> list[int]:
    """Of the limits of the store, in a dump."""
    answer = client.get("/dump", params={"kinds": "limits"}).raise_for_status()
    return [limit["requests"]["rate"] for limit in answer.json()["limits"]]


class Account:
    """What was answered and what was wrong, by any thread."""

    def __init__(self) -> None:
        self.answers: Counter[str] = Counter()
        self.faults: list[str] = []
        self._lock = threading.Lock()

    def answer(self, what: str, answer: httpx.Response, gone: bool = False) -> bool:
        """Counts an answer; whether it succeeded. gone: it may be that it is no longer there, or there again, as somebody went back."""
        code = "" if answer.is_success else answer.json().get("code", "")
        with self._lock:
            self.answers[f"{what} {answer.status_code} {code}".strip()] += 1
            if not answer.is_success and (answer.status_code, code) not in (GONE if gone else REFUSED):
                self.faults.append(f"{what}: {answer.status_code} {answer.text[:300]}")
        return answer.is_success

    def fault(self, text: str) -> None:
        with self._lock:
            self.faults.append(text)


def syncing(client: httpx.Client, account: Account, first: int) -> Callable[[int], None]:
    """first: of the rates, so that two writers have different ones."""

    def step(number: int) -> None:
        wanted, params = file(FILED + first + 2 * number), {"delete": "true"}
        if number % 2:
            planned = client.post("/sync", params={"dry_run": "true"}, json=wanted)
            if not account.answer("plan", planned):
                return
            params["plan"] = planned.json()["plan"]
        account.answer("sync", client.post("/sync", params=params, json=wanted))

    return step


def going_back(client: httpx.Client, account: Account, chance: random.Random) -> Callable[[int], None]:
    def step(number: int) -> None:
        entries = [one["number"] for one in client.get("/config/history").raise_for_status().json()["items"] if one["of"] == "store"]
        headers = {"if-match": f'"{max(entries)}"'} if number % 2 else {}
        if len(entries) > 3:
            account.answer("back", client.post(f"/config/history/{chance.choice(entries[:20])}/rollback", headers=headers))

    return step


def tenants(client: httpx.Client, account: Account, name: str) -> Callable[[int], None]:
    def step(number: int) -> None:
        one = f"{name}-{number}"
        if account.answer("tenant made", client.post("/tenants", json={"name": one}), gone=True):
            account.answer("tenant changed", client.patch(f"/tenants/{one}", json={"display_name": f"{number}"}), gone=True)
            account.answer("tenant deleted", client.delete(f"/tenants/{one}"), gone=True)

    return step


def reading(client: httpx.Client, account: Account) -> Callable[[int], None]:
    def step(number: int) -> None:
        found = rates(client)
        account.answers["dumps"] += 1
        if len(found) != COUNT or len(set(found)) != 1:
            account.fault(f"a dump has the rates {sorted(found)}")

    return step


def run(steps: list[Callable[[int], None]], account: Account, seconds: float) -> None:
    """Each in a thread of its own, again and again."""
    end = time.monotonic() + seconds

    def thread(step: Callable[[int], None]) -> None:
        number = 0
        while time.monotonic() < end:
            number += 1
            try:
                step(number)
            except Exception as error:  # noqa: BLE001 - boundary: told as a fault of the run
                account.fault(f"{type(error).__name__}: {error}")
                return

    threads = [threading.Thread(target=thread, args=(step,)) for step in steps]
    for one in threads:
        one.start()
    for one in threads:
        one.join()


def agree(cluster: Cluster, account: Account) -> None:
    """At the end: one store, in force at both, and a history without gaps."""
    with cluster.a.admin() as a, cluster.b.admin() as b:
        dumps = [client.get("/dump").raise_for_status().json() for client in (a, b)]
        if dumps[0] != dumps[1]:
            account.fault("the dumps of the replicas differ")
        [rate] = set(rates(a)) or [0]

        def in_force() -> bool:
            found = [client.get("/limits", params={"limit": 100}).raise_for_status().json()["items"] for client in (a, b)]
            return all({one["requests"]["rate"] for one in each if one["name"].startswith("l")} == {rate} for each in found)

        until(in_force, what="the limits at both replicas")
        print(f"rate {rate} in force at both; {told(a, account)} entries, each beginning where the one before it ended")


def told(client: httpx.Client, account: Account) -> int:
    """How many entries tell of a limit; each must begin where the one before it ended, and the last one end with what is there."""
    entries = [
        one for one in client.get("/config/history", params={"limit": 200}).raise_for_status().json()["items"] if one["of"] == "store"
    ]
    value, count = None, 0
    for number in sorted(one["number"] for one in entries):
        diff = client.get(f"/config/history/{number}").raise_for_status().json()["diff"]
        for change in (one for one in diff if one["path"] == "limits/l0.requests.rate"):
            if count and change["from"] != value:
                account.fault(f"entry {number} begins with {change['from']}, and the one before it ended with {value}")
            value, count = change["to"], count + 1
    if set(rates(client)) != {value}:
        account.fault(f"the history ends with {value}, and the store has {set(rates(client))}")
    return count


def main() -> None:
    given = arguments(__doc__, rate=0, seconds=60.0).parse_args()
    account, chance = Account(), random.Random(7)
    with Cluster(given.workers or None) as cluster, cluster.a.admin() as a, cluster.b.admin() as b:
        header(cluster)
        a.post("/sync", params={"delete": "true"}, json=file(FILED)).raise_for_status()
        until(lambda: set(rates(b)) == {FILED}, what="the first file at the other replica")
        steps = [
            syncing(a, account, 1), syncing(b, account, 2), going_back(b, account, chance),
            tenants(a, account, "x"), tenants(b, account, "y"), reading(a, account), reading(b, account),
        ]  # fmt: skip
        run(steps, account, given.seconds)
        agree(cluster, account)
    for what, count in sorted(account.answers.items()):
        print(f"{count:7}  {what}")
    for fault in account.faults[:20]:
        print(f"WRONG: {fault}")
    raise SystemExit(1 if account.faults else 0)


if __name__ == "__main__":
    main()
