"""Pulling a model: from a hub, a registry and a plain server, with what can go wrong on the way."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from admin.cli import pull
from admin.cli.errors import CommandError
from admin.cli.pull import Origin
from admin.cli.upload import Patience
from tests.fakes.model_hub import ModelHub

CONTENT = os.urandom(150_000)


@pytest.fixture
def hub() -> Iterator[ModelHub]:
    made = ModelHub(CONTENT)
    yield made
    made.close()


def fetched(source: Origin, folder: Path, attempts: int = 9) -> bytes:
    file = pull.fetch(source, folder, lambda have, total: None, Patience(pause=lambda seconds: None, attempts=attempts))
    return file.read_bytes()


def plain(hub: ModelHub, how: str, sha256: str | None = None) -> Origin:
    return Origin(f"{hub.url}/{how}/m.gguf", "m.gguf", sha256)


@pytest.mark.parametrize("how", ["good", "deaf", "cut", "fails", "linked"])
def test_a_file_comes_whole_whatever_the_server_does(hub: ModelHub, tmp_path: Path, how: str) -> None:
    assert fetched(plain(hub, how, hub.sha256), tmp_path) == CONTENT
    assert not list(tmp_path.glob("*.part"))


def test_a_download_that_is_cut_goes_on_from_where_it_was(hub: ModelHub, tmp_path: Path) -> None:
    assert fetched(plain(hub, "cut", hub.sha256), tmp_path) == CONTENT
    assert [headers.get("range") for _, headers in hub.asked] == [None, "bytes=40000-", "bytes=80000-", "bytes=120000-"]


def test_a_later_command_goes_on_too(hub: ModelHub, tmp_path: Path) -> None:
    with pytest.raises(CommandError):
        fetched(plain(hub, "cut"), tmp_path, attempts=1)
    assert fetched(plain(hub, "cut"), tmp_path) == CONTENT
    assert hub.asked[1][1]["range"] == "bytes=40000-"


def test_a_file_that_changes_meanwhile_is_never_mixed(hub: ModelHub, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"peer closed connection|bytes came"):
        fetched(plain(hub, "changed"), tmp_path, attempts=4)
    assert all(part.read_bytes() == CONTENT[:40_000] for part in tmp_path.glob("*.part"))


def test_ranges_of_another_file_are_never_mixed(hub: ModelHub, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"peer closed connection|bytes came|another file meanwhile"):
        fetched(plain(hub, "mixed"), tmp_path, attempts=6)
    assert [headers.get("range") for _, headers in hub.asked[:3]] == [None, "bytes=40000-", None]
    assert all(part.read_bytes() == CONTENT[:40_000] for part in tmp_path.glob("*.part"))


def test_a_download_leaves_room_on_the_disk(hub: ModelHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = [pull.LEFT_FREE + len(CONTENT)]
    monkeypatch.setattr(pull.shutil, "disk_usage", lambda folder: SimpleNamespace(free=free[0]))
    assert fetched(plain(hub, "good"), tmp_path) == CONTENT
    free[0] -= 1
    with pytest.raises(CommandError, match=f"room for {len(CONTENT) - 1} bytes"):
        fetched(plain(hub, "good", "1" * 64), tmp_path)
    left = iter([pull.LEFT_FREE + 1, pull.LEFT_FREE])  # as it begins, and after the first step
    monkeypatch.setattr(pull.shutil, "disk_usage", lambda folder: SimpleNamespace(free=next(left)))
    monkeypatch.setattr(pull, "STEP", 1_000_000)
    with pytest.raises(CommandError, match="room for 0 bytes"):
        fetched(plain(hub, "endless"), tmp_path)
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("elsewhere", ["http://[", "http://a..b/m", f"http://{'a' * 70}.example/m"])
def test_redirects_to_what_is_no_address(tmp_path: Path, elsewhere: str) -> None:
    hub = ModelHub(CONTENT, elsewhere)
    try:
        with pytest.raises(CommandError, match="which is no address"):
            fetched(plain(hub, "away"), tmp_path)
    finally:
        hub.close()


@pytest.mark.parametrize(("how", "sha256"), [("good", "1" * 64), ("wrong", None)])
def test_a_wrong_checksum_is_an_error_and_leaves_nothing(hub: ModelHub, tmp_path: Path, how: str, sha256: str | None) -> None:
    with pytest.raises(CommandError, match="what was downloaded is deleted"):
        fetched(plain(hub, how, sha256), tmp_path)
    assert not list(tmp_path.iterdir())


def test_redirects_without_end(hub: ModelHub, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="more than 5 redirects"):
        fetched(plain(hub, "round"), tmp_path)


def test_a_token_does_not_leave_the_hub(tmp_path: Path) -> None:
    store = ModelHub(CONTENT)
    hub = ModelHub(b"", f"{store.url}/good/blob")
    try:
        source = pull.origin("hf://org/repo/dir/m.gguf@v1", {"HF_ENDPOINT": f"{hub.url}/away", "HF_TOKEN": "hf_secret"})
        assert fetched(source, tmp_path) == CONTENT
        assert hub.asked[0][0] == "/away/org/repo/resolve/v1/dir/m.gguf" and hub.asked[0][1]["authorization"] == "Bearer hf_secret"
        assert "authorization" not in store.asked[0][1]
    finally:
        hub.close()
        store.close()


def test_a_registry_names_the_blob_and_its_checksum(hub: ModelHub, tmp_path: Path) -> None:
    source = pull.origin("ollama://llama3.2:1b", {"OLLAMA_REGISTRY": hub.url})
    assert hub.asked[0][0] == "/v2/library/llama3.2/manifests/1b"
    assert (source.name, source.sha256) == ("llama3.2-1b.gguf", hub.sha256)
    assert source.url == f"{hub.url}/v2/library/llama3.2/blobs/sha256:{hub.sha256}"
    assert fetched(source, tmp_path) == CONTENT


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("hf://org/repo/m.gguf", f"{pull.HUB}/org/repo/resolve/main/m.gguf"),
        ("hf://org/repo/a b.gguf@refs/pr/1", f"{pull.HUB}/org/repo/resolve/refs%2Fpr%2F1/a%20b.gguf"),
        ("https://files.example/x/m.gguf?a=1", "https://files.example/x/m.gguf?a=1"),
    ],
)
def test_what_sources_stand_for(text: str, url: str) -> None:
    assert pull.origin(text, {}).url == url


@pytest.mark.parametrize(
    "text",
    [
        "m.gguf",
        "hf://org/m.gguf",
        "ftp://x/m",
        "http://files.example/m.gguf",
        "https://u:p@files.example/m",
        "file:///etc/passwd",
        "ollama://",
        "https://[x/m",
    ],
)
def test_sources_that_are_none(text: str) -> None:
    with pytest.raises(CommandError):
        pull.origin(text, {})


@pytest.mark.parametrize(
    ("following", "words"),
    [
        ("http://8.8.4.4/m", "from https to http"),
        ("https://169.254.169.254/latest/meta-data", "a private network"),
        ("https://127.0.0.1:8081/admin", "a private network"),
        ("https://[::1]/x", "a private network"),
        ("https://10.0.0.8/x", "a private network"),
        ("file:///etc/passwd", "models may not come from"),
        ("https://u:p@8.8.4.4/m", "models may not come from"),
    ],
)
def test_redirects_that_are_not_followed(following: str, words: str) -> None:
    with pytest.raises(CommandError, match=words):
        pull._opened("https://8.8.8.8/m", {})._allow("https://8.8.8.8/m", following)


def test_redirects_between_public_servers_and_within_a_private_network_are() -> None:
    pull._opened("https://8.8.8.8/m", {})._allow("https://8.8.8.8/m", "https://8.8.4.4/m")
    pull._opened("https://10.0.0.1/m", {})._allow("https://10.0.0.1/m", "https://10.0.0.2/m")
