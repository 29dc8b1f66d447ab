"""A file that a command makes is there whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from admin.cli.errors import CommandError
from admin.cli.newfile import new_file


def test_it_is_written(tmp_path: Path) -> None:
    with new_file(tmp_path / "f") as file:
        file.write(b"whole")
    assert (tmp_path / "f").read_bytes() == b"whole"


@pytest.mark.parametrize("error", [CommandError("the answer broke off"), OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_nothing_is_left_of_what_was_begun(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises((CommandError, KeyboardInterrupt)) as caught, new_file(tmp_path / "f") as file:
        file.write(b"a part")
        raise error
    assert list(tmp_path.iterdir()) == []
    assert str(caught.value) == (f"{tmp_path / 'f'}: No space left on device" if isinstance(error, OSError) else str(error))


def test_another_file_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"mine")
    with pytest.raises(CommandError, match="File exists"), new_file(tmp_path / "f"):
        raise AssertionError
    assert (tmp_path / "f").read_bytes() == b"mine"
