"""A request of 1 MiB under all guardrails of patterns stalls nobody: others are answered while it is read. Judged by the order of
events."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.conftest import EngineThread
from tests.e2e.harness import Gatehouse, configuration, external

MIB = 1024 * 1024
FAMILIES = {
    "ligatures and digits": "\ufdfa4111 ",
    "soft hyphens": "41\u00ad11 ",
    "JSON with escapes": "born 12/12/19\\u0038\\n",
}
"""Some of the dearest of loadtests.guardrails.hostile."""
GUARDRAILS: dict[str, dict[str, Any]] = {
    "pii": {},
    "secrets": {"action": "mask"},
    "denylist": {"phrases": [f"operation n{number}ight" for number in range(1000)], "action": "mask"},
    "injection": {"action": "annotate"},
    "content": {"urls": {"deny": ["evil.example"]}, "action": "mask"},
}
MEANWHILE = 3
"""Answers to requests that were sent behind the large one's last byte and came before its answer."""
TRIES = 5
"""The machine may be busy with something else."""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, engine: EngineThread) -> Iterator[Gatehouse]:
    directory = tmp_path_factory.mktemp("large")
    config = configuration(
        directory / "state",
        engines=[external("fake", engine.port, slots=64)],
        models=[{"name": "m1", "pool": ["fake"]}],
        guardrails=[{"name": name, "type": name, "on": ["request"], "settings": settings} for name, settings in GUARDRAILS.items()],
    )
    with Gatehouse(directory, config) as running:
        yield running


def answered_meanwhile(guarded: Gatehouse, text: str) -> tuple[int, int]:
    """How many others were answered, one behind the other, and the large one's status."""
    sent, statuses = threading.Event(), list[int]()

    def pieces() -> Iterator[bytes]:
        body = b'{"model":"m1","messages":[{"role":"user","content":"%b"}]}' % text.encode()
        yield body[:-1]
        yield body[-1:]
        sent.set()

    def large() -> None:
        with guarded.client() as client:
            headers = {"content-type": "application/json"}
            statuses.append(client.post("/v1/chat/completions", content=pieces(), headers=headers).status_code)

    count, thread = 0, threading.Thread(target=large)
    with guarded.client() as client:
        thread.start()
        assert sent.wait(60)
        while not statuses and count < MEANWHILE:
            small = client.post("/v1/chat/completions", json={"model": "m1", "messages": [{"role": "user", "content": "Hello"}]})
            assert small.status_code == 200
            count += not statuses
    thread.join(120)
    return count, statuses[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_others_are_answered_while_it_is_read(guarded: Gatehouse, family: str) -> None:
    piece = FAMILIES[family]
    text = piece * (MIB // len(piece.encode()))
    if family == "JSON with escapes":
        text = '{\\"a\\": \\"' + text.replace("\\", "\\\\") + '\\"}'
    counts = []
    while not counts or (counts[-1] < MEANWHILE and len(counts) < TRIES):
        count, status = answered_meanwhile(guarded, text)
        assert status in (200, 400)
        counts.append(count)
    assert counts[-1] >= MEANWHILE, counts
