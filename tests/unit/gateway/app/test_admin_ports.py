"""The admin API's smaller ports, over a gateway that runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.app.admin_ports import CurrentAuthenticator, LocalAuditLog, PolicyTrial
from gateway.app.gateway import Gateway
from gateway.core.errors import AuthenticationError
from gateway.core.types import Peer, Principal, Trial
from tests.fakes.countries import write
from tests.unit.gateway.app.making import KEY, config

PEER = Peer("192.0.2.1")


async def test_a_login_is_judged_by_what_is_in_force(gateway: Gateway, tmp_path: Path) -> None:
    authenticator = CurrentAuthenticator(gateway.plane)
    found = authenticator.authenticate({b"x-api-key": KEY.encode()}, PEER)
    assert isinstance(found, Principal) and found.id == "k"
    other = {"api_keys": {"static": [{"id": "o", "key": "o" * 40, "tenant": "t", "models": ["*"]}]}}
    await gateway.changes.reloader.apply(config(tmp_path, identity=other), source="test")
    with pytest.raises(AuthenticationError):
        authenticator.authenticate({b"x-api-key": KEY.encode()}, PEER)


async def test_a_trial_names_what_would_apply(gateway: Gateway, tmp_path: Path) -> None:
    await gateway.changes.reloader.apply(config(tmp_path, limits=[{"name": "l", "concurrent": 5}]), source="test")
    trial = PolicyTrial(gateway.plane)
    principal = Principal(id="k", tenant="t", kind="api_key", models=("*",))
    assert (await trial.explain(principal, Trial(model="n")))["limits"] == ["l"]
    named = Principal(id="k", tenant="t", kind="api_key", models=("*",), limits=("gone",))
    refused = await trial.explain(named, Trial(model="n"))
    assert (refused["allow"], refused["reason"]) == (False, "the limit 'gone' of this key is not in force")


@pytest.mark.parametrize(
    ("when", "supposed", "other"),
    [
        ('request.label == "secret"', {"label": "secret"}, {}),
        ('source.certificate == "ab"', {"certificate": "ab"}, {}),
        (
            'now.getHours("UTC") < 6',
            {"time": 1_800_000_000.0 // 86400 * 86400 + 3600.0},
            {"time": 1_800_000_000.0 // 86400 * 86400 + 43200.0},
        ),
        ('source.country == "DE"', {"source": "192.0.2.7"}, {"source": "192.0.2.8"}),
        ("request.stream && request.bytes > 5", {"stream": True, "bytes": 6}, {"bytes": 6}),
    ],
)
async def test_a_trial_knows_every_fact_of_a_request(
    gateway: Gateway, tmp_path: Path, when: str, supposed: dict[str, Any], other: dict[str, Any]
) -> None:
    role = {"roles": {"r": {"permissions": ["infer:*"]}}, "bindings": [{"role": "r", "subjects": ["user/ann"], "when": when}]}
    write(tmp_path / "countries.mmdb", {"192.0.2.7/32": "DE"})
    network = {"network": {"countries": str(tmp_path / "countries.mmdb")}}
    await gateway.changes.reloader.apply(config(tmp_path, **role, **network), source="test")
    trial = PolicyTrial(gateway.plane, lambda address: "DE" if address == "192.0.2.7" else "")
    ann = Principal(id="a", tenant="t", kind="oidc", user="ann")
    assert (await trial.explain(ann, Trial(model="n", **supposed)))["allow"] is True
    assert (await trial.explain(ann, Trial(model="n", **other)))["allow"] is False


async def test_the_local_audit_log_is_that_of_this_process(gateway: Gateway) -> None:
    log = LocalAuditLog(gateway.spec.audit, gateway.spec.state_dir)
    assert log.public_keys()[0]["algorithm"] == "Ed25519"
    assert all("kind" in record for record in log.tail(10))
