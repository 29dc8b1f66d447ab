"""The schema of lines whose records are encrypted as a whole: as they are in the log, opened, and where they cannot be opened."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import jsonschema_rs
import pytest

from gateway.audit.chain import Chain
from gateway.audit.opening import CLOSED
from gateway.audit.schema import schema
from tests.unit.gateway.audit.keys import Vault


async def test_sealed_opened_and_unopened_lines_are_as_the_schema_says(make: Any) -> None:
    vault, validator = Vault(), jsonschema_rs.validator_for(schema())
    await vault.sealer.begin()
    records = [make.intent(), make.outcome(tenant="acme"), make.outcome("r2", peer="10.0.0.1"), make.event("x"), make.event("audit.opened")]
    made = await asyncio.to_thread(vault.sealer, records, "0", 0)
    for line in Chain().seal(made).splitlines(keepends=True):
        for read in (line, vault.opener.line("0", line), CLOSED.line("0", line)):
            validator.validate(json.loads(read))


@pytest.mark.parametrize("gone", ["digest", "sealed", "hash", "time", "request_id", "outcome"])
async def test_a_sealed_line_without_what_it_must_have_is_none(make: Any, gone: str) -> None:
    vault, validator = Vault(), jsonschema_rs.validator_for(schema())
    await vault.sealer.begin()
    made = await asyncio.to_thread(vault.sealer, [make.outcome(tenant="acme")], "0", 0)
    line = json.loads(Chain().seal(made))
    del line[gone]
    assert not validator.is_valid(line)
