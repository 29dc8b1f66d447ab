"""What one change costs where a process keeps all of something in memory: roles and bindings, stops (halts, suspensions), revocations.

    python -m loadtests.store.indexes [--sizes 1,1000,100000]

CPU time of this thread without a gateway around: `all` at once as at a start, `one` that changes, and the longest step of either, which is
how long the event loop would be held. A request's own look into the index is measured too.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from admin.permissions import ROLES
from gateway.app.identity.access import AccessBuilder
from gateway.app.identity.role_book import RoleBook
from gateway.config.additions import KINDS, StoreAdditions
from gateway.config.merge import Addition, merge
from gateway.core.slices import Steps
from gateway.core.specs import BindingSpec, ConfigSpec, EngineSpec, ModelSpec, RoleSpec
from gateway.core.standing import Standing, halt
from gateway.core.types import Principal
from gateway.identity.revocations import Revocations, Row
from loadtests.store.keys import table_of

FILE = ConfigSpec(
    version=1, engines=(EngineSpec(name="e", runtime="external", url="http://x"),), models=(ModelSpec(name="m", pool=("e",)),)
)
LOOKS = 1000


def stepped(steps: Steps[Any]) -> tuple[Any, float, float]:
    """The result, the time in milliseconds, and that of the longest step."""
    total = longest = 0.0
    while True:
        begin = time.thread_time()
        try:
            next(steps)
        except StopIteration as done:
            step = time.thread_time() - begin
            return done.value, (total + step) * 1e3, max(longest, step) * 1e3
        step = time.thread_time() - begin
        total, longest = total + step, max(longest, step)


def timed(act: Callable[[], Any], times: int = 1) -> float:
    """Milliseconds."""
    begin = time.thread_time()
    for _ in range(times):
        act()
    return (time.thread_time() - begin) / times * 1e3


def role(number: int, of: str = "team") -> Addition:
    return Addition(1, 1.0, RoleSpec(permissions=(f"infer:chat:model/{of}-{number}-*", "admin:keys:read")))


def binding(number: int, user: str = "u") -> Addition:
    name = f"{number:06d}"
    return Addition(1, 1.0, BindingSpec(name=f"b{name}", role=f"r{name}", subjects=(f"user/{user}{name}", f"group/g{name}")))


def access(size: int) -> list[dict[str, Any]]:
    added: dict[str, dict[str, Addition]] = {kind: {} for kind in KINDS}
    added["roles"] = {f"r{number:06d}": role(number) for number in range(size)}
    added["bindings"] = {f"b{number:06d}": binding(number) for number in range(size)}
    builder = AccessBuilder()
    book = RoleBook(cast(StoreAdditions, SimpleNamespace(by_kind=added)), lambda: FILE)
    some = f"{size // 2:06d}"
    changes: list[tuple[str, dict[str, dict[str, Addition]]]] = [
        ("all", {}),
        ("one role", {"roles": {f"r{some}": role(size // 2, "other")}}),
        ("one binding", {"bindings": {f"b{some}": binding(size // 2, "other")}}),
    ]
    rows: list[dict[str, Any]] = []
    for what, change in changes:
        for kind, found in change.items():
            added[kind] = {**added[kind], **found}
        merged, *merging = stepped(merge(FILE, added, ROLES))
        _, *building = stepped(builder.steps(merged.spec))
        book._book, *booking = stepped(book._made(FILE, added["roles"], added["bindings"]))
        for part, (total, longest) in (("merged", merging), ("access index", building), ("admin's roles", booking)):
            rows.append({"of": f"{size:,} roles and bindings: {part}", "change": what, "CPU, ms": total, "longest step, ms": longest})
    return rows


def flat(size: int) -> list[dict[str, Any]]:
    standing, revocations = Standing(), Revocations()
    who = Principal("somebody", "t", "api_key")
    revoked: list[Row] = [("token", "issuer", f"t{number}", 1.0, 9e9) for number in range(size)]
    rows: list[dict[str, Any]] = []
    for of, whole, one, look in (
        (
            "stops",
            lambda: standing.replace("halts", [halt(f"key/k{number:06d}") for number in range(size)]),
            lambda: standing.change("halts", [halt("key/other")]),
            lambda: standing.of(who),
        ),
        (
            "revocations",
            lambda: revocations.replace(revoked),
            lambda: revocations.apply({"other": ("token", "issuer", "other", 1.0, 9e9)}, ()),
            lambda: revocations.refuses("issuer", "none", "s", 2.0),
        ),
    ):
        for what, act, times in (("all", whole, 1), ("one", one, 1), ("a request's look", look, LOOKS)):
            spent = timed(act, times)
            rows.append({"of": f"{size:,} {of}", "change": what, "CPU, ms": spent, "longest step, ms": spent})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="what one change costs in the indexes of a process")
    parser.add_argument("--sizes", default="1,1000,100000")
    sizes = [int(size) for size in parser.parse_args().sizes.split(",")]
    gc.disable()  # as a process that makes one of these does (gateway.core.collecting)
    print(table_of([row for size in sizes for row in (*access(size), *flat(size))]))


if __name__ == "__main__":
    main()
