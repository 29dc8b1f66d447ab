"""The admin API's smaller ports, over a gateway that runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.app.admin_ports import CurrentAuthenticator, LocalAuditLog, PolicyTrial
from gateway.app.gateway import Gateway
from gateway.core.errors import AuthenticationError
from gateway.core.types import Peer, Principal, Trial
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
    assert trial.explain(principal, Trial(model="n"))["limits"] == ["l"]
    named = Principal(id="k", tenant="t", kind="api_key", models=("*",), limits=("gone",))
    refused = trial.explain(named, Trial(model="n"))
    assert (refused["allow"], refused["reason"]) == (False, "the limit 'gone' of this key is not in force")


async def test_the_local_audit_log_is_that_of_this_process(gateway: Gateway) -> None:
    log = LocalAuditLog(gateway.spec.audit, gateway.spec.state_dir)
    assert log.public_keys()[0]["algorithm"] == "Ed25519"
    assert all("kind" in record for record in log.tail(10))
