"""A whole gateway in this process, without listeners and engines."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.app.gateway import Gateway
from tests.unit.gateway.app.making import made


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    found = made(tmp_path, guardrails=[{"name": "words", "type": "denylist", "settings": {"phrases": ["red"]}}])
    await found.start()
    yield found
    await found.aclose()
