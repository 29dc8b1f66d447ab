"""Leaving as load balancers and clients see it: of two gateways one ends, and no request fails."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, Gatehouse, configuration, external
from tests.fakes.answers import Step
from tests.waiting import until

Launch = Callable[..., Gatehouse]
CHECK_SECONDS = 0.05
SLOW = Step(chunks=6, interval=0.02)


class Balancer:
    """Sends to the gateways whose `/readyz` said 200 when it was last asked, in turn, from clients that keep their connections."""

    def __init__(self, *gateways: Gatehouse) -> None:
        self.gateways = gateways
        self.up = list(gateways)
        self.answers: list[tuple[Gatehouse, httpx.Response]] = []
        self.lost: list[httpx.HTTPError] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._check)]
        self._threads += [threading.Thread(target=self._ask, args=(number,)) for number in range(4)]

    def __enter__(self) -> Balancer:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def _check(self) -> None:
        while not self._stop.wait(CHECK_SECONDS):
            self.up = [each for each in self.gateways if self._ready(each)]

    @staticmethod
    def _ready(gatehouse: Gatehouse) -> bool:
        try:
            return httpx.get(f"{gatehouse.url}/readyz", trust_env=False, timeout=60).status_code == 200
        except httpx.HTTPError:
            return False

    def _ask(self, number: int) -> None:
        clients = {id(each): each.client() for each in self.gateways}
        body = {"model": "m1", "messages": [{"role": "user", "content": "x"}], "stream": number % 2 == 0}
        count = number
        while not self._stop.is_set():
            count += 1
            up = self.up
            chosen = up[count % len(up)]
            try:
                self.answers.append((chosen, clients[id(chosen)].post("/v1/chat/completions", json=body)))
            except httpx.HTTPError as error:
                self.lost.append(error)
        for client in clients.values():
            client.close()

    def served(self, gatehouse: Gatehouse) -> int:
        return sum(each is gatehouse for each, _ in list(self.answers))


@pytest.fixture
def two(launch: Launch, engines: Callable[..., EngineThread], tmp_path: Path) -> Iterator[list[Gatehouse]]:
    engine = engines(default=SLOW)
    made = []
    for name in ("a", "b"):
        listed = [external("fake", engine.port, slots=64)]
        config = configuration(
            tmp_path / name,
            engines=listed,
            models=[{"name": "m1", "pool": ["fake"]}],
            listen={"drain_delay": "6s"},  # longer than the balancer stands still
        )
        made.append(launch(config).launch())
    for each in made:
        until(lambda each=each: any(line.startswith("admin: ") for line in each.lines), what="the start")
        each.url, each.admin_url = each._line("gateway: "), each._line("admin: ")
    yield made


def test_no_request_fails_while_a_load_balancer_takes_a_leaving_gateway_out(two: list[Gatehouse]) -> None:
    leaving, staying = two
    assert leaving.process is not None
    with Balancer(leaving, staying) as balancer:
        until(lambda: balancer.served(leaving) > 20 and balancer.served(staying) > 20, what="requests at both")
        leaving.process.send_signal(signal.SIGTERM)
        until(lambda: balancer.up == [staying], what="the balancer's notice")
        assert leaving.ended() == 0
        before = balancer.served(staying)
        until(lambda: balancer.served(staying) > before + 20, what="requests at the other")
    assert not balancer.lost
    assert {answer.status_code for _, answer in balancer.answers} == {200}
    streams = [a.text for _, a in balancer.answers if a.headers["content-type"].startswith("text/event-stream")]
    assert streams and all(text.endswith("data: [DONE]\n\n") and '"error"' not in text for text in streams)


def test_in_the_delay_it_is_not_ready_and_serves_and_a_second_signal_ends_it(
    launch: Launch, engines: Callable[..., EngineThread], tmp_path: Path
) -> None:
    engine = engines()
    config = configuration(
        tmp_path / "state",
        engines=[external("fake", engine.port, slots=64)],
        models=[{"name": "m1", "pool": ["fake"]}],
        listen={"drain_delay": "1h", "drain_timeout": "1h"},
    )
    gatehouse = launch(config).start()
    assert gatehouse.process is not None
    engine.play("hold:at=mid; hold; normal")
    with gatehouse.client() as client:
        stream_body = {"model": "m1", "messages": [{"role": "user", "content": "x"}], "stream": True}
        with client.stream("POST", "/v1/chat/completions", json=stream_body) as stream:
            events = stream.iter_lines()
            assert next(events).startswith("data: ")
            whole: list[httpx.Response] = []
            asking = threading.Thread(target=lambda: whole.append(gatehouse.chat(key=KEY)))
            asking.start()
            engine.holds(2)
            gatehouse.process.send_signal(signal.SIGTERM)
            until(lambda: httpx.get(f"{gatehouse.url}/readyz", trust_env=False, timeout=60).status_code == 503, what="the end of readiness")
            report = httpx.get(f"{gatehouse.admin_url}/readyz", trust_env=False, timeout=60)
            assert (report.status_code, report.json()["not_ready"]) == (503, ["draining"])
            served = gatehouse.chat()
            assert (served.status_code, served.headers["connection"]) == (200, "close")
            gatehouse.process.send_signal(signal.SIGINT)
            rest = [line for line in events if line]
        asking.join(60)
    assert '"code":"overloaded"' in rest[-2] and rest[-1] == "data: [DONE]"
    assert (whole[0].status_code, whole[0].json()["error"]["code"]) == (503, "overloaded")
    assert gatehouse.ended() == 0
    said = [line.partition("gatehouse: ")[2] for line in gatehouse.lines if "leav" in line]
    assert said == [
        "leaving: serves for 3600 s more, then requests under way may finish within 3600 s; another signal ends them",
        "asked to leave again: requests under way end with an error",
    ]
