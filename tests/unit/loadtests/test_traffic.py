"""What a Locust run is told and how it is judged, and one real run against a gateway."""

import configparser
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loadtests import locust_run
from loadtests.soak import refusals
from loadtests.traffic import notation, thresholds
from loadtests.traffic.settings import Settings
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, Gatehouse, configuration, external
from tests.waiting import until

KINDS = ("chat", "stream", "leave", "embed", "tensors", "greedy", "keys")
PROFILES = sorted(locust_run.PROFILES.glob("*.conf"))


@dataclass
class Entry:
    """What the thresholds read of one of Locust's entries."""

    num_requests: int
    num_failures: int = 0
    p95: float = 0.0

    def get_response_time_percentile(self, share: float) -> float:
        assert share == 0.95
        return self.p95


def options(**given: float) -> SimpleNamespace:
    shares = dict.fromkeys(("max_failures", "max_shed", "max_broken", "max_late"), 0.0)
    return SimpleNamespace(**{**shares, "min_requests": 1, "max_p95": 0, "max_ttft_p95": 0, "max_gap_p95": 0, **given})


def test_stages_end_one_after_the_other() -> None:
    assert notation.parse_stages("30s:8, 2m:160,5:1") == [(30, 8), (150, 160), (155, 1)]


@pytest.mark.parametrize("text", ["", "30s", "30s:x", "s:3", "30s:3,", "-1s:3", "30d:3"])
def test_other_stages_are_refused_by_what_is_wrong(text: str) -> None:
    with pytest.raises(ValueError, match="DURATION:USERS"):
        notation.parse_stages(text)


def test_a_mix_is_weights_of_known_kinds() -> None:
    assert notation.parse_mix("chat=6, stream=3", KINDS) == {"chat": 6, "stream": 3}
    with pytest.raises(ValueError, match="no kind of user"):
        notation.parse_mix("chats=6", KINDS)
    with pytest.raises(ValueError, match="whole number above 0"):
        notation.parse_mix("chat=0", KINDS)


def test_a_run_without_fault_passes() -> None:
    assert thresholds.violations(options(), {("chat", "POST"): Entry(10), ("greedy", "limited"): Entry(90)}) == []


@pytest.mark.parametrize(
    ("given", "entries", "said"),
    [
        ({}, {("chat", "POST"): Entry(10, 1)}, "1 of 10 requests failed"),
        ({}, {("chat", "POST"): Entry(10), ("chat", "shed"): Entry(5)}, "5 of 15 requests were shed"),
        ({}, {("stream", "POST"): Entry(10), ("stream", "broken"): Entry(10)}, "10 of 20 streams broke off"),
        ({"max_broken": 0.2}, {("chat", "POST"): Entry(1000), ("stream", "POST"): Entry(5), ("stream", "broken"): Entry(5)},
         "5 of 10 streams broke off"),
        ({"max_failures": 0.1}, {("chat", "POST"): Entry(10, 5), ("greedy", "limited"): Entry(90)}, "5 of 10 requests failed (50.00%)"),
        ({"max_shed": 0.1}, {("chat", "POST"): Entry(8), ("chat", "shed"): Entry(2), ("greedy", "limited"): Entry(90)},
         "2 of 10 requests were shed"),
        ({"max_failures": 1.0}, {("chat", "POST"): Entry(99), ("chat with a revoked key", "POST"): Entry(1),
          ("chat with a revoked key", "accepted"): Entry(1, 1)}, "1 of 2 revoked keys were accepted"),
        ({"min_requests": 11}, {("chat", "POST"): Entry(10), ("greedy", "limited"): Entry(90)}, "10 requests were answered"),
        ({"max_p95": 50}, {("chat", "POST"): Entry(10, 0, 51)}, "p95 of chat"),
        ({"max_ttft_p95": 50}, {("stream", "POST"): Entry(10), ("stream", "TTFT"): Entry(10, 0, 51)}, "p95 of stream"),
        ({"max_gap_p95": 50}, {("chat", "POST"): Entry(10)}, "has a threshold and no requests"),
    ],
)  # fmt: skip
def test_each_threshold_is_named_where_it_was_passed(given: dict[str, float], entries: dict[tuple[str, str], Entry], said: str) -> None:
    (found,) = thresholds.violations(options(**given), entries)
    assert said in found


def test_a_user_that_crashed_is_a_violation_whatever_else_was_answered() -> None:
    (found,) = thresholds.violations(options(max_failures=1.0), {("chat", "POST"): Entry(10)}, 2)
    assert found.startswith("2 exceptions")


@pytest.mark.parametrize(
    ("given", "kinds", "named"),
    [
        ({"keys": []}, ["chat"], "GATEHOUSE_KEY "),
        ({"keys": [], "greedy_key": "g"}, ["greedy", "chat"], "GATEHOUSE_KEY "),
        ({"keys": [], "greedy_key": "g"}, ["greedy"], ""),
        ({"keys": ["k"], "admin_url": "http://x"}, ["chat", "keys"], "GATEHOUSE_ADMIN_KEY"),
        ({"keys": ["k"], "admin_url": "http://x", "admin_key": "a"}, ["chat", "keys"], ""),
    ],
)
def test_a_run_says_what_it_lacks_before_it_begins(given: dict[str, Any], kinds: list[str], named: str) -> None:
    empty = {"keys": [], "greedy_key": "", "admin_url": "", "admin_key": ""}
    said = Settings(**{**empty, **given}).missing(kinds)
    assert named in said and bool(said) is bool(named)


def test_figures_of_a_stream_are_no_requests() -> None:
    entries = {("stream", "POST"): Entry(1), ("stream", "TTFT"): Entry(100), ("stream", "GAP"): Entry(100)}
    assert thresholds.violations(options(min_requests=2), entries) == ["1 requests were answered, at least 2 must be"]


def test_the_page_names_every_profile_and_option() -> None:
    page = (locust_run.PROFILES / "README.md").read_text()
    assert [p.stem for p in PROFILES if f"`{p.stem}`" not in page] == []
    source = (locust_run.ROOT / "loadtests" / "traffic" / "options.py").read_text()
    named = [part.split('"')[0] for part in source.split('add_argument("')[1:]]
    assert named
    assert [option for option in named if f"`{option}`" not in page] == []


@pytest.mark.parametrize("profile", PROFILES, ids=lambda p: p.stem)
def test_a_profile_says_what_can_be_run(profile: Path) -> None:
    parser = configparser.ConfigParser()
    parser.read_string("[run]\n" + profile.read_text())
    said = parser["run"]
    assert said["locustfile"] == "loadtests/locustfile.py"
    assert notation.parse_mix(said["mix"], KINDS)
    assert notation.parse_stages(said["stages"]) if "stages" in said else int(said["users"]) and said["run-time"]


def test_a_run_against_a_gateway_passes_and_fails_by_its_thresholds(tmp_path: Path) -> None:
    """Chats, streams and callers that leave; the second run may not take as long as any answer takes."""
    engine = EngineThread()
    parts = {"engines": [external("e", engine.port, slots=64)], "models": [{"name": "demo-chat", "pool": ["e"]}]}
    try:
        with Gatehouse(tmp_path, configuration(tmp_path / "state", **parts)) as gatehouse:
            environment = {"GATEHOUSE_URL": gatehouse.url, "GATEHOUSE_KEY": KEY}
            report = tmp_path / "report.html"
            mix = ("--mix", "chat=1,stream=1,leave=1", "--users", "3", "--spawn-rate", "3", "--run-time", "2s", "--min-requests", "3")
            runs = [
                locust_run.start("smoke", environment, *mix, "--html", str(report)),
                locust_run.start("smoke", environment, *mix, "--max-p95", "0.001", "--html", str(tmp_path / "other.html")),
            ]
            codes = [run.wait(90) for run in runs]
            assert codes == [0, 1]
            assert "TTFT" in report.read_text()
            until(lambda: gatehouse.metric("gatehouse_in_flight") == 0, what="the end of what the callers have left")
    finally:
        engine.close()


def test_a_run_against_nobody_fails(tmp_path: Path) -> None:
    nowhere = {"GATEHOUSE_URL": "http://127.0.0.1:1", "GATEHOUSE_KEY": KEY}
    options = ("--users", "2", "--run-time", "1s", "--max-failures", "1.0", "--html", str(tmp_path / "report.html"))
    assert locust_run.start("smoke", nowhere, *options).wait(90) == 1


@pytest.mark.parametrize(("mix", "said"), [("chats=1", "'chats' is no kind of user"), ("chat=1,keys=1", "key churn needs")])
def test_a_mix_that_cannot_be_run_ends_the_run_with_the_reason(mix: str, said: str) -> None:
    command = [sys.executable, "-m", "locust", "--config", str(locust_run.PROFILES / "smoke.conf"), "--mix", mix]
    environment = {**{name: value for name, value in os.environ.items() if not name.startswith("GATEHOUSE_")}, "GATEHOUSE_KEY": KEY}
    done = subprocess.run(command, cwd=locust_run.ROOT, env=environment, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 1
    assert said in done.stderr + done.stdout


def test_what_a_refused_client_was_told_is_kept_with_its_moment(tmp_path: Path) -> None:
    file = tmp_path / "refusals.jsonl"
    assert refusals(file, 0.0) == []
    Settings(refusals="").note("chat", 503, "overloaded", "nobody asked for it")
    before = time.time()
    Settings(refusals=str(file)).note("chat", 503, "overloaded", "The queue is full; \u00e9")
    (told,) = refusals(file, before - 5.0)
    assert 5.0 <= told.pop("time") < 60.0
    assert told == {"name": "chat", "status": 503, "code": "overloaded", "message": "The queue is full; \u00e9"}
