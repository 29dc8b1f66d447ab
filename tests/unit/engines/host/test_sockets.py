"""Sockets of sidecars: new, short, and in folders of their own."""

from __future__ import annotations

from pathlib import Path

from engines.host.sockets import MAX_SOCKET_PATH, Sockets


def test_paths_are_new_short_and_private(tmp_path: Path) -> None:
    for directory in (tmp_path, tmp_path / ("d" * 80) / ("d" * 80)):
        sockets = Sockets(directory)
        one, two = (sockets.new("an engine / with: signs" * 3, generation) for generation in (0, 1))
        assert one != two
        for path in (one, two):
            assert len(str(path).encode()) <= MAX_SOCKET_PATH
            assert path.parent.stat().st_mode & 0o777 == 0o700
        sockets.clear()
        assert two.parent.exists() == two.is_relative_to(directory), "what is outside of the state directory is removed"


def test_copies_of_an_engine_have_folders_of_their_own(tmp_path: Path) -> None:
    sockets = Sockets(tmp_path)
    assert len({sockets.new(name, 1).parent for name in ("chat", "chat~2", "chat_2")}) == 3
