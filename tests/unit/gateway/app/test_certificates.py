"""The listeners' certificates while files come, go and are damaged: what is in force is always the last good one."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest

from gateway.app import certificates
from gateway.app.certificates import Certificates
from gateway.core.errors import ConfigError
from gateway.core.specs import ListenSpec, TlsSpec
from gateway.server.tls import Material
from tests.pki import DAY, Authority, Issued, now, replaced


class Site:
    """The data listener's certificate in files that a test replaces."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder / "ca")
        self.first = self.authority.server()
        self.cert, self.key = folder / "tls.crt", folder / "tls.key"
        self.put(self.first)
        self.listen = ListenSpec(tls=TlsSpec(cert=str(self.cert), key=str(self.key)))
        self.events: list[tuple[str, str, dict[str, Any], str]] = []
        self.told: list[tuple[str, Material]] = []
        self.certificates = Certificates(self.record)
        self.certificates.on_change.append(lambda name, material: self.told.append((name, material)))

    def record(self, event: str, target: str, detail: dict[str, Any], *, outcome: str = "ok") -> None:
        self.events.append((event, target, detail, outcome))

    def put(self, issued: Issued) -> None:
        replaced(self.cert, issued.pem)
        replaced(self.key, Path(issued.key).read_bytes())

    async def open(self) -> Site:
        await self.certificates.open(self.listen, {})
        return self

    async def settle(self) -> None:
        for _ in range(3):
            await self.certificates.poll()

    @property
    def in_force(self) -> str:
        material = self.certificates.material("tls")
        assert material is not None
        return material.fingerprint

    def metrics(self) -> dict[tuple[str, str], float]:
        return {
            (sample.name, sample.labels.get("outcome", "")): sample.value
            for metric in self.certificates.collect()
            for sample in metric.samples
            if sample.labels.get("listener") == "data" and not sample.name.endswith("_created")
        }


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def test_a_renewed_certificate_is_taken_once_its_files_have_come_to_rest(site: Site) -> None:
    await site.open()
    contexts = site.certificates.contexts("tls")
    assert contexts is not None and site.certificates.contexts("admin_tls") is None
    before = contexts.current
    await site.settle()
    assert contexts.current is before and not site.events
    second = site.authority.server(expires=now() + 9 * DAY)
    site.put(second)
    await site.certificates.poll()
    assert site.in_force == site.first.sha256, "it could still be being written"
    await site.certificates.poll()
    assert site.in_force == second.sha256 and contexts.current is not before
    assert site.told == [("tls", site.certificates.material("tls"))]
    (event,) = site.events
    assert event[:2] == ("certificate_changed", "listen.tls") and event[2]["sha256"] == second.sha256
    assert site.metrics() == {
        ("gatehouse_tls_refused", ""): 0,
        ("gatehouse_tls_certificate_expiry_seconds", ""): second.certificate.not_valid_after_utc.timestamp(),
        ("gatehouse_tls_reloads_total", "applied"): 1,
        ("gatehouse_tls_reloads_total", "refused"): 0,
    }


@pytest.mark.parametrize("damage", ["garbage", "half", "mismatch", "expired", "gone"])
async def test_files_that_cannot_be_used_leave_the_certificate_in_force(site: Site, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    await site.open()
    second = site.authority.server()
    if damage == "garbage":
        replaced(site.cert, b"garbage")
    elif damage == "half":
        site.cert.write_bytes(second.pem[:400])
    elif damage == "mismatch":
        replaced(site.cert, second.pem)
    elif damage == "expired":
        site.put(site.authority.server(expires=now() - DAY / 2))
    else:
        site.cert.unlink()
    await site.settle()
    await site.certificates.prepare(site.listen)  # a reload meanwhile is not refused for it
    site.certificates.apply()
    assert site.in_force == site.first.sha256
    assert [(event, outcome) for event, _, _, outcome in site.events] == [("certificate_refused", "refused")], "said once"
    assert [record for record in caplog.records if "the certificate in force stays" in record.message]
    assert site.metrics()["gatehouse_tls_reloads_total", "refused"] == 1
    assert site.metrics()["gatehouse_tls_refused", ""] == 1, "for as long as the files are bad"
    ((about, name, reason),) = site.certificates.troubles()
    assert (about, name) == ("certificate", "listen.tls") and reason.startswith("new files are refused: ")
    site.put(second)
    await site.settle()
    assert site.in_force == second.sha256
    assert site.metrics()["gatehouse_tls_refused", ""] == 0
    assert [reason.split()[0] for _, _, reason in site.certificates.troubles()] == ["expires"], "the new one, within a day"
    site.put(site.first)
    await site.settle()
    assert site.in_force == site.first.sha256


async def test_the_old_files_put_back_are_no_change(site: Site) -> None:
    await site.open()
    replaced(site.cert, b"garbage")
    await site.settle()
    site.put(site.first)
    await site.settle()
    replaced(site.cert, b"garbage")
    await site.settle()
    assert [event for event, *_ in site.events] == ["certificate_refused", "certificate_refused"], "two failures, no change"


async def test_a_certificate_that_becomes_valid_is_taken_without_another_change(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    await site.open()
    later = site.authority.server(begins=now() + DAY / 2, expires=now() + 9 * DAY)
    site.put(later)
    await site.settle()
    assert site.in_force == site.first.sha256
    monkeypatch.setattr("gateway.server.tls.time.time", lambda: (now() + DAY).timestamp())
    await site.settle()
    assert site.in_force == site.first.sha256, "not looked at all the time"
    monkeypatch.setattr(certificates.time, "monotonic", lambda: float("1e12"))
    await site.settle()
    assert site.in_force == later.sha256


async def test_a_reload_reads_at_once_and_takes_other_files(site: Site, tmp_path: Path) -> None:
    await site.open()
    second, third = site.authority.server(), site.authority.server()
    site.put(second)
    await site.certificates.prepare(site.listen)
    assert site.in_force == site.first.sha256
    site.certificates.apply()
    assert site.in_force == second.sha256
    other = ListenSpec(tls=TlsSpec(cert=third.cert, key=third.key, client_ca=site.authority.cert, require_client=True))
    await site.certificates.prepare(other)
    site.certificates.apply()
    material = site.certificates.material("tls")
    assert material is not None and material.fingerprint == third.sha256 and material.require_client
    site.put(site.first)
    await site.settle()
    assert site.in_force == third.sha256, "the files of before count no more"


async def test_a_reload_with_other_files_that_cannot_be_used_is_refused(site: Site) -> None:
    await site.open()
    other = ListenSpec(tls=TlsSpec(cert=str(site.cert), key=site.authority.server().key))
    with pytest.raises(ConfigError, match="is not the key") as caught:
        await site.certificates.prepare(other)
    assert caught.value.path == "listen.tls.key"
    site.certificates.apply()
    assert site.in_force == site.first.sha256


async def test_a_start_needs_files_that_can_be_used_or_what_was_handed_over(site: Site) -> None:
    await site.open()
    handed = site.certificates.all()
    replaced(site.cert, b"garbage")
    with pytest.raises(ConfigError) as caught:
        await Site.open(site)
    assert caught.value.path == "listen.tls.cert"
    after = Certificates(site.record)
    await after.open(site.listen, handed)
    material = after.material("tls")
    assert material is not None and material.fingerprint == site.first.sha256
    second = site.authority.server()
    site.put(second)
    await after.poll()
    await after.poll()
    material = after.material("tls")
    assert material is not None and material.fingerprint == second.sha256


async def test_a_link_that_leads_elsewhere_is_a_change(site: Site, tmp_path: Path) -> None:
    second = site.authority.server()
    for name, issued in (("one", site.first), ("two", second)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "tls.crt").write_bytes(issued.pem)
        (folder / "tls.key").write_bytes(Path(issued.key).read_bytes())
    link = tmp_path / "live"
    link.symlink_to("one")
    site.listen = ListenSpec(tls=TlsSpec(cert=str(link / "tls.crt"), key=str(link / "tls.key")))
    await site.open()
    draft = tmp_path / "draft"
    draft.symlink_to("two")
    os.replace(draft, link)
    await site.settle()
    assert site.in_force == second.sha256


async def test_the_end_of_a_certificate_is_told_in_time(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    await site.open()
    with caplog.at_level(logging.WARNING):
        await site.settle()
    assert len([record for record in caplog.records if "renew its files" in record.message]) == 1
