"""The quickstart's keys: made once, kept privately, put where the configuration finds them."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path

import pytest

from gateway.app import quickstart
from gateway.core.errors import ConfigError
from gateway.core.specs import ConfigSpec, ModelSpec
from gateway.identity import keys


def test_keys_are_made_once_and_kept_privately(tmp_path: Path) -> None:
    state = tmp_path / "deep" / "state"
    first = quickstart.environment({"GATEHOUSE_STATE_DIR": str(state)})
    second = quickstart.environment({"GATEHOUSE_STATE_DIR": str(state)})
    assert first == second
    assert first.api_key != first.admin_key
    assert keys.well_formed(first.api_key) and keys.well_formed(first.admin_key)
    assert stat.S_IMODE((state / quickstart.FILE).stat().st_mode) == 0o600
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert [path.name for path in state.iterdir()] == [quickstart.FILE]


def test_two_state_directories_have_different_keys(tmp_path: Path) -> None:
    one = quickstart.environment({"GATEHOUSE_STATE_DIR": str(tmp_path / "a")})
    two = quickstart.environment({"GATEHOUSE_STATE_DIR": str(tmp_path / "b")})
    assert len({one.api_key, two.api_key, one.admin_key, two.admin_key}) == 4


def test_the_environment_that_the_configuration_reads(tmp_path: Path) -> None:
    environ = {"GATEHOUSE_STATE_DIR": str(tmp_path), "GATEHOUSE_PORT": "9001"}
    made = quickstart.environment(environ)
    assert environ["GATEHOUSE__STATE_DIR"] == str(tmp_path)
    assert environ["GATEHOUSE__LISTEN__DATA"] == "127.0.0.1:9001"
    assert environ["GATEHOUSE__LISTEN__ADMIN"] == "127.0.0.1:8081"
    assert environ["GATEHOUSE_QUICKSTART_API_KEY"] == made.api_key
    assert environ["GATEHOUSE_QUICKSTART_ADMIN_KEY"] == made.admin_key


def test_an_address_that_was_set_in_full_stays(tmp_path: Path) -> None:
    environ = {"GATEHOUSE_STATE_DIR": str(tmp_path), "GATEHOUSE_PORT": "9001", "GATEHOUSE__LISTEN__DATA": "0.0.0.0:80"}
    quickstart.environment(environ)
    assert environ["GATEHOUSE__LISTEN__DATA"] == "0.0.0.0:80"


def test_a_state_directory_that_was_set_in_full_stays(tmp_path: Path) -> None:
    environ = {"GATEHOUSE_STATE_DIR": str(tmp_path / "short"), "GATEHOUSE__STATE_DIR": str(tmp_path / "full")}
    quickstart.environment(environ)
    assert environ["GATEHOUSE__STATE_DIR"] == str(tmp_path / "full")
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


@pytest.mark.parametrize("name", ["GATEHOUSE_PORT", "GATEHOUSE_ADMIN_PORT"])
@pytest.mark.parametrize("port", ["http", "70000", "-1", "80 80", "9" * 5000])
def test_what_is_no_port_names_its_variable(tmp_path: Path, name: str, port: str) -> None:
    with pytest.raises(ConfigError) as caught:
        quickstart.environment({"GATEHOUSE_STATE_DIR": str(tmp_path), name: port})
    assert str(caught.value) == f"environment variable {name}: is not a port; it must be a number from 0 to 65535"


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"{}", b'{"api_key": 1, "admin_key": 2}', b"\xff\xfe"])
def test_kept_keys_that_are_damaged_are_said_to_be_so(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / quickstart.FILE
    file.write_bytes(text)
    file.chmod(0o600)
    with pytest.raises(ConfigError) as caught:
        quickstart.environment({"GATEHOUSE_STATE_DIR": str(tmp_path)})
    assert str(caught.value) == f"{file}: does not hold the two keys; delete it, and the next start makes new ones"


def test_kept_keys_that_others_can_read_are_refused(tmp_path: Path) -> None:
    quickstart.environment({"GATEHOUSE_STATE_DIR": str(tmp_path)})
    (tmp_path / quickstart.FILE).chmod(0o644)
    with pytest.raises(ConfigError, match="can be read by others: chmod 600 it"):
        quickstart.environment({"GATEHOUSE_STATE_DIR": str(tmp_path)})


def test_a_state_directory_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError):
        quickstart.environment({"GATEHOUSE_STATE_DIR": str(tmp_path / "file")})


def test_the_keys_are_masked_where_they_are_shown_by_accident(tmp_path: Path) -> None:
    made = quickstart.environment({"GATEHOUSE_STATE_DIR": str(tmp_path)})
    assert made.api_key not in repr(made) and made.admin_key not in f"{made}"


SPEC = ConfigSpec(version=1, models=(ModelSpec(name="demo-chat", pool=("a",)),))


def test_the_greeting_has_each_fact_on_a_line_of_its_own() -> None:
    lines = quickstart.greeting("127.0.0.1:1", "127.0.0.1:2", SPEC, quickstart.Credentials("gh_one", "gh_two")).splitlines()
    assert lines[:4] == ["gateway: http://127.0.0.1:1", "admin: http://127.0.0.1:2", "api key: gh_one", "admin key: gh_two"]
    assert lines[5].startswith("curl ") and "http://127.0.0.1:1/v1/chat/completions" in lines[5]
    body = lines[-1].strip().removeprefix("-d '").removesuffix("'")
    assert json.loads(body)["model"] == "demo-chat"
    assert "Bearer gh_one" in lines[6]
    assert not any("gh_two" in line for line in lines[4:])


def test_the_greeting_where_there_is_no_model_to_show() -> None:
    lines = quickstart.greeting("a:1", "b:2", ConfigSpec(version=1), quickstart.Credentials("gh_one", "gh_two")).splitlines()
    assert lines[:4] == ["gateway: http://a:1", "admin: http://b:2", "api key: gh_one", "admin key: gh_two"]
    assert "export GATEHOUSE_URL=http://b:2 GATEHOUSE_KEY=gh_two" in lines
    made = [re.sub(r"^\S+/gatehouse ", "", line) for line in lines if "/gatehouse " in line]
    assert [line.split(" --")[0] for line in made] == ["engines create vllm", "models create chat"]
    assert json.loads(lines[-1].strip().removeprefix("-d '").removesuffix("'"))["model"] == "chat"


def test_the_greeting_without_keys() -> None:
    assert quickstart.greeting("a:1", "b:2", SPEC, None) == "gateway: http://a:1\nadmin: http://b:2"
