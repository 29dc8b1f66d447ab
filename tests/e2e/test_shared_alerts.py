"""Alerts of budgets in Redis: each share is told to a webhook once, whichever worker notices it, and also after a kill."""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path
from typing import Any

from tests.cluster.servers import RedisServer
from tests.e2e import adminapi
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import Gatehouse, external
from tests.e2e.test_alerts import SECRET, receiving
from tests.morning import TIMEZONE
from tests.waiting import until

LIMITS = [
    {"name": "month", "per": "tenant", "budget": {"amount": 20, "unit": "requests", "window": "month", "timezone": TIMEZONE}},
    {"name": "watched", "per": "global", "budget": {"amount": 10, "unit": "requests", "window": {"rolling": "1d"}}, "enforce": False},
]


def test_each_share_of_a_budget_in_redis_is_told_once(tmp_path: Path, engine: EngineThread) -> None:
    with tempfile.TemporaryDirectory(prefix="gatehouse-") as name, receiving() as (receiver, hook):
        redis = RedisServer(Path(name)).start()
        config = adminapi.config(
            tmp_path / "state",
            engine.port,
            engines=[external("fake", engine.port, slots=64)],
            models=[{"name": "m1", "pool": ["fake"]}],
            redis={"url": f"unix://{redis.socket}", "timeout": "30s"},  # all is counted there, however late it answers
            limits=LIMITS,
            alerts={"webhooks": [{"name": "ops", "url": f"http://127.0.0.1:{hook}/in", "secret": SECRET, "timeout": "60s"}]},
        )
        gateway = Gatehouse(tmp_path, config, arguments=["--workers", "2"])

        def told(*wanted: tuple[str, int]) -> list[tuple[str, int]]:
            def look() -> Any:
                found = [(one["data"]["limit"], one["data"]["percent"]) for one in receiver.bodies if one["type"] == "budget_used"]
                return found if set(wanted) <= set(found) else None

            found: list[tuple[str, int]] = until(look, 60, "the alerts")
            return found

        try:
            gateway.start()
            assert [gateway.chat().status_code for _ in range(11)] == [200] * 11
            told(("month", 50), ("watched", 50), ("watched", 80), ("watched", 100))
            with adminapi.admin(gateway) as admin:
                until(lambda: [one["status"] for one in admin.get("/webhooks:deliveries").json()["items"]] == ["delivered"] * 4)
            assert [gateway.chat().status_code for _ in range(5)] == [200] * 5  # the fifth one passes 80 percent
            gateway.stop(signal.SIGKILL)
            gateway.start()
            told(("month", 80))
            assert [gateway.chat().status_code for _ in range(6)] == [200] * 4 + [429] * 2
            gateway.stop()
            gateway.start()
            seen = told(("month", 100))
            assert len(set(seen)) == 6, seen
            assert {one for one in seen if seen.count(one) > 1} <= {("month", 80)}, "only one that may have arrived before the kill"
            assert not receiver.forged
        finally:
            gateway.stop()
            redis.stop()
