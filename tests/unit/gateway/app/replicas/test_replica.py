"""The replica's id lasts, is made once however many start together, and can be given; a state directory has one process."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.app.replicas.replica import LOCK, StateLock, prepared, replica_id, valid
from gateway.core.errors import ConfigError


def test_the_first_start_makes_an_id_that_lasts(tmp_path: Path) -> None:
    state = tmp_path / "new" / "state"
    made = replica_id(state, {})
    assert made.startswith("gw-") and len(made) == 11 and valid(made)
    assert replica_id(state, {}) == made
    assert stat.S_IMODE((state / "replica").stat().st_mode) == 0o600
    assert os.listdir(state) == ["replica"]
    assert replica_id(tmp_path / "another", {}) != made


def test_the_environment_comes_before_the_setting_and_both_before_the_file(tmp_path: Path) -> None:
    made = replica_id(tmp_path, {})
    assert replica_id(tmp_path, {"GATEHOUSE_REPLICA": "east-1"}, "west-1") == "east-1"
    assert replica_id(tmp_path, {"GATEHOUSE_REPLICA": ""}, "west-1") == "west-1"
    assert replica_id(tmp_path, {}) == made


def test_a_given_id_leaves_no_file(tmp_path: Path) -> None:
    assert replica_id(tmp_path, {}, "west-1") == "west-1"
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("id", ["East", "a_b", "-a", "a-", "a" * 33, "a\n", "ä", "a b", "../x"])
def test_an_id_that_cannot_be_used_is_refused(tmp_path: Path, id: str) -> None:
    with pytest.raises(ConfigError, match=r"GATEHOUSE_REPLICA is .*1 to 32"):
        replica_id(tmp_path, {"GATEHOUSE_REPLICA": id})
    with pytest.raises(ConfigError, match="1 to 32") as caught:
        replica_id(tmp_path, {}, id)
    assert caught.value.path == "replica"


@given(st.text("abz019-", min_size=1, max_size=34))
def test_valid_ids(id: str) -> None:
    assert valid(id) == (len(id) <= 32 and not id.startswith("-") and not id.endswith("-"))


@pytest.mark.parametrize("content", [b"", b"\0" * 12, b"Not an id\n", b"a" * 40])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "replica").write_bytes(content)
    with pytest.raises(ConfigError, match=r"replica holds no replica's id .* or delete it"):
        replica_id(tmp_path, {})


def test_a_file_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(ConfigError, match="cannot be kept in"):
        replica_id(tmp_path / "state", {})


def test_starts_at_the_same_moment_agree(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as threads:
        for count in range(20):
            state = tmp_path / str(count)
            assert len(set(threads.map(lambda _, state=state: replica_id(state, {}), range(16)))) == 1
            assert os.listdir(state) == ["replica"]


def test_processes_that_start_at_the_same_moment_agree(tmp_path: Path) -> None:
    code = "import sys, pathlib; from gateway.app.replicas.replica import replica_id; print(replica_id(pathlib.Path(sys.argv[1]), {}))"
    running = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "s")], stdout=subprocess.PIPE) for _ in range(4)]
    assert len({process.communicate(timeout=60)[0] for process in running}) == 1


def test_a_second_holder_is_refused_until_the_first_lets_go(tmp_path: Path) -> None:
    held = StateLock(tmp_path)
    with pytest.raises(ConfigError, match=rf"another gateway \(process {os.getpid()}\) is running with the state directory") as caught:
        StateLock(tmp_path)
    assert caught.value.path == "state_dir"
    held.release()
    held.release()
    StateLock(tmp_path).release()


def test_a_killed_process_holds_nothing_and_its_children_neither(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib, subprocess; from gateway.app.replicas.replica import StateLock; held = StateLock(pathlib.Path(sys.argv[1]));"
        "child = subprocess.Popen(['sleep', '60']); print(child.pid, flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        with pytest.raises(ConfigError, match=f"process {process.pid}"):
            StateLock(tmp_path)
        process.kill()
        process.wait(90)
        StateLock(tmp_path).release()
    finally:
        os.kill(child, 9)
        process.kill()
        process.communicate()


def test_a_lock_that_was_handed_over_is_held_all_the_time(tmp_path: Path) -> None:
    before = StateLock(tmp_path)
    held = before.kept()
    before.release()
    with pytest.raises(ConfigError, match="another gateway"):
        StateLock(tmp_path)
    after = prepared(tmp_path, held)
    with pytest.raises(ConfigError, match="another gateway"):
        StateLock(tmp_path)
    after.release()
    StateLock(tmp_path).release()


def test_a_lock_of_another_directory_is_let_go_and_this_one_is_locked(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    before = prepared(first)
    held = before.kept()
    before.release()
    after = prepared(second, held)
    StateLock(first).release()
    with pytest.raises(ConfigError, match="another gateway"):
        StateLock(second)
    after.release()


def test_the_lock_names_no_process_that_it_does_not_know(tmp_path: Path) -> None:
    held = StateLock(tmp_path)
    (tmp_path / LOCK).write_text("")
    with pytest.raises(ConfigError, match="another gateway is running"):
        StateLock(tmp_path)
    held.release()
