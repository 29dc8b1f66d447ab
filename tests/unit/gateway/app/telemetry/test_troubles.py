"""What `gatehouse status` says is wrong."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from gateway.app.telemetry.troubles import DAMAGE_SECONDS, LATELY, MOST_FAILURES, Troubles
from gateway.core.feed import LocalFeed

NOW = 1_800_000_000.0


class Site:
    def __init__(self, **of_workers: list[float]) -> None:
        self.now, self.damaged, self.found = NOW, 0.0, [("audit_sink", "siem", "connection refused")]
        self.limits, self.proofs = SimpleNamespace(up=True), SimpleNamespace(up=True)
        self.fault: str | None = None
        self.measured: dict[str, float] = {}
        self.feed = LocalFeed()
        figures = SimpleNamespace(known=lambda name: of_workers.get(name, []))
        self.troubles = Troubles(
            [lambda: iter(self.found)],
            limits=lambda: self.limits.up,
            proofs=lambda: self.proofs.up,
            fault=lambda: self.fault,
            damaged=lambda: self.damaged,
            measured=self.measured,
            figures=figures if of_workers else None,
            clock=lambda: self.now,
        )
        self.feed.subscribe(self.troubles.heard)

    def fails(self, name: str = "pii", mode: str = "open", event: str = "guardrail_failed") -> None:
        self.feed.publish("event", {"event": event, "target": name, "fail_mode": mode})

    def view(self) -> list[dict[str, Any]]:
        return self.troubles.view()

    def lines(self) -> list[str]:
        return [f"{each['about']} {each['name']}: {each['reason']}" for each in self.view()]


def test_nothing_is_said_while_all_is_well() -> None:
    site = Site(gatehouse_limits_redis_up=[1.0, 1.0], gatehouse_audit_damage_seconds=[0.0])
    site.found.clear()
    site.measured.update(crl=NOW + 9 * 86400, crl_refused=0.0)
    site.fails(event="guardrail_changed")
    site.feed.publish("config", 7)
    assert site.view() == []


def test_what_parts_say_is_passed_on() -> None:
    assert Site().view() == [{"about": "audit_sink", "name": "siem", "reason": "connection refused"}]


def test_redis_that_does_not_answer_this_process_or_one_of_the_workers() -> None:
    site = Site()
    site.limits.up = site.proofs.up = False
    assert [line.partition(":")[0] for line in site.lines()[1:]] == ["redis limits", "redis proofs"]
    assert "redis limits: does not answer; each limit's on_failure applies" in Site(gatehouse_limits_redis_up=[1.0, 0.0]).lines()


def test_an_audit_log_that_takes_no_records_is_told_with_the_reason() -> None:
    site = Site(gatehouse_audit_accepting=[1.0, 0.0])
    assert "audit_log : takes no records, so requests are refused: the log names the reason in each worker" in site.lines()
    site.fault = "No space left on device"
    assert "audit_log : takes no records, so requests are refused: No space left on device" in site.lines()
    assert Site(gatehouse_audit_accepting=[1.0, 1.0]).view() == Site().view()


def test_damage_of_the_audit_log_is_told_for_a_day() -> None:
    site = Site(gatehouse_audit_damage_seconds=[0.0, NOW - 60])
    assert "audit_log : damage was found at 2027-01-15 07:59 UTC: run `gatehouse audit verify`" in site.lines()
    site.now += DAMAGE_SECONDS
    assert len(site.view()) == 1


def test_a_revocation_list_that_expires_or_is_refused() -> None:
    site = Site()
    site.measured["crl"] = NOW + 3600
    assert site.lines()[1] == "revocation_list identity.mtls.crl: expires 2027-01-15 09:00 UTC"
    site.now += 7200
    assert site.lines()[1] == "revocation_list identity.mtls.crl: is out of date since 2027-01-15 09:00 UTC"
    site.measured["crl_refused"] = 1.0
    assert "the one read before counts until 2027-01-15 09:00 UTC" in site.lines()[1]
    del site.measured["crl"]
    assert "there is no other" in site.lines()[1]


def test_a_guardrail_that_failed_lately() -> None:
    site = Site()
    site.fails()
    assert site.lines()[1] == "guardrail pii: failed once in the last 5 minutes; texts pass unchecked (fail_mode: open)"
    site.now += LATELY - 1
    for _ in range(MOST_FAILURES + 5):
        site.fails("judge", "closed")
    assert site.lines()[2] == "guardrail judge: failed 1000 or more times in the last 5 minutes; requests are refused (fail_mode: closed)"
    site.now += 2
    assert len(site.lines()) == 2
    site.now += LATELY
    assert len(site.lines()) == 1
