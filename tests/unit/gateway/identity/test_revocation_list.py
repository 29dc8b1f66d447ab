"""Lists of revoked certificates: what is read, what is refused, and what counts while a file cannot be used."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from gateway.core.clock import SystemClock
from gateway.identity.certificate import key_identifier
from gateway.identity.revocation_list import OutOfDate, RevocationList, Unusable, authorities, below, read
from tests.pki import DAY, Authority, now, replaced


class Later(SystemClock):
    """The system's clock, ahead by `seconds`."""

    seconds = 0.0

    def wall(self) -> float:
        return super().wall() + self.seconds


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


@pytest.mark.parametrize("der", [False, True])
def test_a_list_names_what_is_revoked(authority: Authority, der: bool) -> None:
    bad, good = authority.issue(), authority.issue()
    authority.revoke(bad)
    found = read(authority.crl(der=der), [authority.certificate], time.time())
    serials = found.serials[bad.certificate.issuer.public_bytes()]
    assert bad.certificate.serial_number in serials and good.certificate.serial_number not in serials
    assert found.ends > time.time()


def test_several_lists_in_one_file(authority: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other", "other CA")
    one, two = authority.issue(), other.issue()
    authority.revoke(one)
    other.revoke(two)
    file = tmp_path / "both.pem"
    ends = now() + DAY / 2
    file.write_bytes(Path(authority.crl()).read_bytes() + b"# a comment\n" + Path(other.crl(next_update=ends)).read_bytes())
    found = read(str(file), [authority.certificate, other.certificate], time.time())
    assert len(found.serials) == 2 and found.ends == ends.timestamp()
    with pytest.raises(Unusable, match="signed by none of the authorities"):
        read(str(file), [authority.certificate], time.time())


def test_an_authority_that_is_revoked_takes_along_what_it_has_issued(authority: Authority, tmp_path: Path) -> None:
    sub = Authority(tmp_path / "sub", "sub CA", parent=authority)
    below_it = Authority(tmp_path / "below", "below CA", parent=sub)
    again = Authority(tmp_path / "again", "sub CA", parent=authority)  # the same name, another key
    other = Authority(tmp_path / "other", "other CA", parent=authority)
    all_of_them = [one.certificate for one in (below_it, authority, other, sub)]

    def refused(*trusted: x509.Certificate) -> list[bool]:
        found = read(authority.crl(), list(trusted), time.time()).ended
        issued = [one.issue().certificate for one in (authority, other, sub, below_it, again)]
        return [below(found, one.issuer.public_bytes(), key_identifier(one, x509.AuthorityKeyIdentifier)) for one in issued]

    assert refused(*all_of_them) == [False] * 5
    authority.revoked.append(sub.certificate.serial_number)
    assert refused(*all_of_them) == [False, False, True, True, True]
    assert refused(*all_of_them, again.certificate) == [False, False, True, True, False]
    found = read(authority.crl(), [*all_of_them, again.certificate], time.time()).ended
    assert below(found, sub.name.public_bytes(), b""), "whose key is not named"


def test_lists_that_cannot_be_used(authority: Authority, tmp_path: Path) -> None:
    file = Path(authority.crl())
    trusted, whole = [authority.certificate], file.read_bytes()
    namesake = Authority(tmp_path / "namesake")  # the same name, another key
    for text, what in (
        (b"", "holds no revocation list"),
        (b"garbage", "holds no revocation list"),
        (whole[: len(whole) // 2], "holds no revocation list"),
        (whole + whole[: len(whole) // 2], "holds no revocation list"),
        (authority.pem, "holds no revocation list"),
        (Path(namesake.crl()).read_bytes(), "signed by none of the authorities"),
    ):
        replaced(file, text)
        with pytest.raises(Unusable, match=what):
            read(str(file), trusted, time.time())
    with pytest.raises(Unusable, match="cannot be read"):
        read(str(tmp_path / "nowhere"), trusted, time.time())
    with pytest.raises(OutOfDate):
        read(authority.crl(next_update=now() - DAY / 24), trusted, time.time())
    with pytest.raises(Unusable, match="holds no certificate"):
        authorities((str(file),))


class Site:
    def __init__(self, authority: Authority) -> None:
        self.authority, self.clock = authority, Later()
        self.bad, self.good = authority.issue(), authority.issue()
        self.events: list[str] = []
        self.gauges: dict[str, float] = {}
        self.list = RevocationList(authority.crl(), (authority.cert,), self.clock, self.record, self.gauges.__setitem__)

    def record(self, event: str, target: str, detail: dict[str, Any]) -> None:
        self.events.append(event)

    def revokes(self) -> tuple[bool | None, bool | None]:
        bad, good = (
            self.list.revokes(one.certificate.issuer.public_bytes(), b"", one.certificate.serial_number) for one in (self.bad, self.good)
        )
        return bad, good

    async def settle(self) -> None:
        for _ in range(3):
            await self.list.look()


async def test_a_list_that_is_replaced_counts_once_it_has_come_to_rest(authority: Authority) -> None:
    site = Site(authority)
    assert site.revokes() == (None, None) and not site.list.reliable(time.time())
    await site.list.load()
    assert site.revokes() == (False, False) and site.list.generation == 1
    await site.settle()
    assert site.list.generation == 1
    authority.revoke(site.bad)
    authority.crl()
    await site.settle()
    assert site.revokes() == (True, False) and site.list.generation == 2
    assert site.events == ["crl_loaded", "crl_loaded"] and site.gauges["crl"] > time.time()
    assert site.list.revokes(b"somebody else", b"", 1) is None


async def test_a_damaged_list_leaves_the_last_good_one_until_that_ends(authority: Authority) -> None:
    site = Site(authority)
    authority.revoke(site.bad)
    file = Path(authority.crl())
    await site.list.load()
    replaced(file, b"garbage")
    await site.settle()
    assert site.revokes() == (True, False) and site.list.reliable(site.clock.wall())
    assert site.events == ["crl_loaded", "crl_unusable"], "said once"
    assert site.gauges["crl_refused"] == 1.0
    site.clock.seconds = 2 * 86400.0
    await site.settle()
    assert not site.list.reliable(site.clock.wall())
    assert site.events == ["crl_loaded", "crl_unusable", "crl_unusable"]
    authority.crl(next_update=now() + 9 * DAY)
    await site.settle()
    assert site.list.reliable(site.clock.wall())
