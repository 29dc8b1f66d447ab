"""Two gateways on one PostgreSQL: what is decided at one of them is soon in force at both."""

from __future__ import annotations

from collections.abc import Callable

from tests.e2e import adminapi
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import Gatehouse, external
from tests.e2e.replicas import converged, replicas  # noqa: F401 - a fixture
from tests.integration.postgres import postgres  # noqa: F401 - a fixture
from tests.waiting import until


def test_engines_models_and_limits_reach_both_replicas(
    replicas: list[Gatehouse],  # noqa: F811
    engines: Callable[..., EngineThread],
) -> None:
    first, second = (engines() for _ in range(2))
    with adminapi.admin(replicas[0]) as one, adminapi.admin(replicas[1]) as two:
        assert one.post("/engines", json={**external("x", first.port), "api_key": "sk-shared"}).status_code == 201
        assert one.post("/models", json={"name": "mx", "pool": ["x"]}).status_code == 201
        converged(replicas, lambda gateway: gateway.chat(model="mx").status_code == 200)
        assert {r.header("authorization") for r in first.received} == {"Bearer sk-shared"} and len(first.received) >= 2

        moved = {"url": f"http://127.0.0.1:{second.port}", "api_key": "sk-moved"}
        assert two.patch("/engines/x", json=moved).status_code == 200

        def at_the_second(gateway: Gatehouse) -> bool:
            before = len(second.received)
            return gateway.chat(model="mx").status_code == 200 and len(second.received) > before

        converged(replicas, at_the_second)
        limit = {"name": "l", "match": {"model": "mx", "key": "test"}, "requests": {"rate": 1, "per": 3600}}
        assert two.post("/limits", json=limit).status_code == 201
        converged(replicas, lambda gateway: gateway.chat(model="mx").status_code == 429)
        assert one.delete("/limits/l").status_code == 200
        assert two.delete("/models/mx").status_code == 200
        converged(replicas, lambda gateway: gateway.chat(model="mx").status_code == 404)
        assert one.delete("/engines/x").status_code == 200
        until(lambda: "x" not in [e["name"] for e in two.get("/endpoints").json()["items"]])


def test_what_two_replicas_wrote_at_once_does_not_stop_either(
    replicas: list[Gatehouse],  # noqa: F811
    engine: EngineThread,
) -> None:
    """Each checks against what it knows: two models may come to the same alias. One of them is left out, on both, with the reason."""
    with adminapi.admin(replicas[0]) as one, adminapi.admin(replicas[1]) as two:
        answers = [
            client.post("/models", json={"name": name, "pool": ["fake"], "aliases": ["shared"]})
            for client, name in ((one, "ma"), (two, "mb"))
        ]
        assert answers[0].status_code == 201
        if answers[1].status_code == 201:  # the second one had not heard of the first yet
            for client in (one, two):
                shown = until(lambda client=client: (m := client.get("/models/mb").json())["failed"] and m)
                assert "'shared' is already the name of something else" in shown["reason"]
            assert two.delete("/models/mb").status_code == 200
        else:
            assert answers[1].json()["param"] == "aliases[0]"
        converged(replicas, lambda gateway: gateway.chat(model="shared").status_code == 200)
        assert one.delete("/models/ma").status_code == 200
