"""The check of the program that is to take over: run in a process of its own, and its answers read."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
import pytest

from gateway.app.upgrade import preflight
from gateway.app.upgrade.handover import HandOver
from gateway.app.upgrade.preflight import Checked, UpgradeRefused, ask, read
from gateway.store.migrate import HEAD
from tests.e2e.harness import alive
from tests.waiting import reached

GOOD = "version: 1\nlisten: {data: '127.0.0.1:7'}\nidentity: {api_keys: {static: [{id: me, key: '%s', tenant: t, models: ['*']}]}}\n" % (
    "k" * 40
)
HANDED = HandOver(version="0.0", data=-1, admin=-1)
COMMAND = [sys.executable, "-m", "gateway"]


async def test_a_program_that_could_take_over_says_where_it_would_listen(tmp_path: Path) -> None:
    file = tmp_path / "g.yaml"
    file.write_text(GOOD + f"state_dir: {tmp_path / 'state'}\n")
    found = await ask(COMMAND, file, {}, HANDED)
    assert (found.listen.data, found.state_dir, found.reason) == ("127.0.0.1:7", str(tmp_path / "state"), "")
    assert not (tmp_path / "state").exists(), "it writes nothing"


async def test_a_bad_configuration_is_a_reason(tmp_path: Path) -> None:
    file = tmp_path / "g.yaml"
    file.write_text(GOOD + "nonsense: 1\n")
    with pytest.raises(UpgradeRefused, match=r"The new program would not start: .*g\.yaml:4: nonsense"):
        await ask(COMMAND, file, {}, HANDED)


async def test_what_it_cannot_be_handed_is_a_reason(tmp_path: Path) -> None:
    with pytest.raises(UpgradeRefused, match="this version reads format 1"):
        await ask(COMMAND, tmp_path / "g.yaml", {}, msgspec.structs.replace(HANDED, format=99))


async def test_a_program_that_is_broken_or_gone_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UpgradeRefused, match="No such file"):
        await ask([str(tmp_path / "nothing")], tmp_path, {}, HANDED)
    broken = [sys.executable, "-c", "import sys; sys.stdin.buffer.read(); raise ImportError('no module named x')"]
    with pytest.raises(UpgradeRefused, match=r"does not start \(exit code 1\): ImportError: no module named x"):
        await ask(broken, tmp_path, {}, HANDED)
    monkeypatch.setattr(preflight, "SECONDS", 0.2)
    with pytest.raises(UpgradeRefused, match="took longer"):
        await ask([sys.executable, "-c", "import time; time.sleep(600)"], tmp_path, {}, HANDED)


def test_the_answer_is_the_last_line() -> None:
    answer = b"a warning\n" + msgspec.json.encode(Checked(version="2", sharing="")) + b"\n"
    assert read(0, answer, b"").version == "2"
    with pytest.raises(UpgradeRefused, match="it said nothing"):
        read(3, b"", b"")


def test_a_build_that_does_not_look_at_the_store_does_not_take_over() -> None:
    """Its schema is an older one: its start would end with the gateway already gone."""
    early = {"reason": "", "version": "0.1", "listen": {"data": "127.0.0.1:7"}, "state_dir": "/var/lib/gatehouse"}
    with pytest.raises(UpgradeRefused, match=f"from before the store's schema {HEAD}") as refused:
        read(0, msgspec.json.encode(early) + b"\n", b"")
    assert refused.value.code == "upgrade_check_failed"
    assert read(0, msgspec.json.encode({**early, "sharing": ""}) + b"\n", b"").version == "0.1"


async def test_what_a_script_has_started_ends_with_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds the pipes: whoever waited for their end would wait for it."""
    script, child = tmp_path / "gatehouse", tmp_path / "child"
    script.write_text(f"#!/bin/sh\nsleep 600 &\necho $! > {child}.new\nmv {child}.new {child}\nwait\n")
    script.chmod(0o755)
    monkeypatch.setattr(preflight, "SECONDS", 1.0)
    with pytest.raises(UpgradeRefused, match="took longer"):
        await ask([str(script)], tmp_path, {"PATH": os.environ["PATH"]}, HANDED)
    if child.exists():  # or the script was ended before
        await reached(lambda: not alive(int(child.read_text())), what="the end of what it started")


async def test_a_store_that_does_not_open_is_a_reason(tmp_path: Path) -> None:
    file = tmp_path / "g.yaml"
    url = f"postgresql://nobody@/none?host={tmp_path}"
    file.write_text(GOOD + f"state_dir: {tmp_path / 'state'}\nstore: {{url: '{url}'}}\n")
    with pytest.raises(UpgradeRefused, match="The new program would not start: The store cannot be opened: "):
        await ask(COMMAND, file, {}, HANDED)
    assert not (tmp_path / "state").exists(), "it writes nothing"
