"""What one decision about a request costs: with so many bindings, without a condition and with one evaluated for each request.

    .venv/bin/python -m loadtests.policies.decisions [--callers 1000] [--rounds 5]

Each decision is about another caller and a request of its own, as in a gateway, so that little of it is still in the processor's caches.
Prints microseconds of this process's own time, the median of the rounds; the loop around the decision is taken off.
"""

from __future__ import annotations

import argparse
from statistics import median
from time import process_time_ns

from gateway.app.compiled import activate

REASON = activate()

from gateway.core.specs import ModelSpec  # noqa: E402 - after the compiled modules are in place
from gateway.core.types import InferenceRequest, Peer, Principal  # noqa: E402
from gateway.wire.table import APIS  # noqa: E402
from policies.conditions import Language  # noqa: E402
from policies.permissions import parse  # noqa: E402
from policies.roles import Grant, Grants, RoleAccess  # noqa: E402

CONDITIONS = {
    "none": None,
    "max_tokens": "request.max_tokens <= 1000",
    "network": 'request.max_tokens <= 1000 && cidr("10.0.0.0/8").containsIP(source.address)',
    "group": '"staff" in principal.groups',
    "tools": "!has(request.tools)",
    "time": 'now.getHours("Europe/Berlin") >= 0',
}
CHAT = next(api for api in APIS if api.operation == "chat")


def policy(bindings: int, when: str | None) -> RoleAccess:
    """Every caller is bound by its group; the other bindings are about others."""
    language = Language()
    condition = None if when is None else language.compile(when)
    chatter = (parse("infer:chat:model/demo-*", ("chat",)),)
    grants = Grants()
    grants.add(["group/staff"], Grant("binding:staff", chatter, condition=condition))
    for number in range(1, bindings):
        grants.add([f"user/other-{number}"], Grant(f"binding:{number}", chatter, condition=condition))
    return RoleAccess([ModelSpec(name="demo-chat", pool=("a",))], {"chatter": chatter}, grants)


def cost(access: RoleAccess, callers: int, rounds: int) -> float:
    """Microseconds of one decision."""
    people = [Principal(f"p{n}", "acme", "oidc", user=f"p{n}", groups=("staff", f"g{n}", "eu")) for n in range(callers)]
    asked = [
        (
            person,
            InferenceRequest(CHAT, b"/v1/chat/completions", "demo-chat", {}, None, max_tokens=10 + n % 900),
            Peer(f"10.0.{n % 250}.{n % 99}"),
        )
        for n, person in enumerate(people)
    ]
    found = []
    for _ in range(rounds + 1):
        began = process_time_ns()
        for person, request, peer in asked:
            if not access.decide(person, request, peer, 500).allow:
                raise SystemExit("a request was denied: this measures nothing")
        used = process_time_ns() - began
        began = process_time_ns()
        for person, request, peer in asked:
            if person is None or request is None or peer is None:
                raise SystemExit
        found.append((used - (process_time_ns() - began)) / callers / 1000)
    return median(found[1:])  # the first round decides what is remembered later


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--callers", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--bindings", type=int, nargs="*", default=[10, 1000, 100_000])
    options = parser.parse_args()
    print(f"compiled: {'yes' if REASON is None else f'no ({REASON})'}; {options.callers} callers, median of {options.rounds} rounds")
    for bindings in options.bindings:
        line = [f"{name} {cost(policy(bindings, when), options.callers, options.rounds):.2f}" for name, when in CONDITIONS.items()]
        print(f"{bindings:>7} bindings, us a decision: {', '.join(line)}")


if __name__ == "__main__":
    main()
