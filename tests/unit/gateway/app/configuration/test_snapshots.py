"""From settings to a Snapshot: what two configurations share, and what is refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gateway.app.configuration.snapshots import Plan
from gateway.config.merge import Merged
from gateway.core.errors import ConfigError
from gateway.core.specs import IdentitySpec
from tests.unit.gateway.app.making import made


async def test_nobody_can_log_in_without_a_key_unless_that_is_said(tmp_path: Path) -> None:
    gateway = made(tmp_path)
    without = msgspec.structs.replace(gateway.spec, identity=IdentitySpec())
    with pytest.raises(ConfigError, match="no way to log in"):
        await gateway.builder.build(Plan(1, without, Merged(without)), None)
    said = msgspec.structs.replace(without, insecure=True)
    assert (await gateway.builder.build(Plan(1, said, Merged(said)), None)).snapshot.spec.insecure
    assert gateway.plane.snapshot is None
    await gateway.aclose()
