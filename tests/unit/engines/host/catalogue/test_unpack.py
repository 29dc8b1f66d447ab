"""Archives of model folders: what is unpacked is what was packed, and nothing leaves the folder, whatever the archive says."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admin.cli import archive as cli
from engines.host.catalogue.checksums import Stopped
from engines.host.catalogue.unpack import Unsafe, unpack

FILES = {"model.onnx": b"m" * 1000, "config.json": b"{}", "1_Pooling/config.json": b"[]", "LICENSE": b""}


def member(name: str, data: bytes = b"x", **more: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in more.items():
        setattr(info, key, value)
    return info, data


def archive(path: Path, *members: tuple[tarfile.TarInfo, bytes], format: int = tarfile.USTAR_FORMAT) -> Path:
    with tarfile.open(path, "w", format=format) as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data) if info.isreg() else None)
    return path


def unpacked(path: Path, target: Path) -> dict[str, bytes]:
    target.mkdir()
    unpack(path, target, lambda: True)
    return {p.relative_to(target).as_posix(): p.read_bytes() for p in target.rglob("*") if p.is_file()}


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_what_was_packed_is_unpacked(tmp_path: Path, format: int) -> None:
    path = archive(
        tmp_path / "a.tar",
        member("1_Pooling", b"", type=tarfile.DIRTYPE),
        *(member(n, d, mtime=1.5) for n, d in FILES.items()),
        format=format,
    )
    assert unpacked(path, tmp_path / "out") == FILES
    assert not any(p.stat().st_mode & 0o077 for p in (tmp_path / "out").rglob("*"))


def test_what_the_command_line_packs_is_unpacked(tmp_path: Path) -> None:
    for name, data in {**FILES, ".hidden": b"h", "setup.py": b"p", ".git/config.json": b"g"}.items():
        path = tmp_path / "folder" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    parcel = cli.of_folder(tmp_path / "folder")
    assert [reason.split(" ")[0] for reason in parcel.left_out] == ["setup.py"]
    whole = b"".join(parcel.blocks())
    assert len(whole) == parcel.size
    (tmp_path / "a.tar").write_bytes(whole)
    assert unpacked(tmp_path / "a.tar", tmp_path / "out") == FILES
    with tarfile.open(tmp_path / "a.tar") as tar:  # and everybody else reads it too
        assert sorted(tar.getnames()) == sorted(FILES)


HOSTILE: dict[str, Callable[[], tuple[tarfile.TarInfo, bytes]]] = {
    "up": lambda: member("../x.json"),
    "absolute": lambda: member("/tmp/x.json"),
    "up in the middle": lambda: member("a/../../x.json"),
    "link": lambda: member("x.json", b"", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
    "hard link": lambda: member("x.json", b"", type=tarfile.LNKTYPE, linkname="model.onnx"),
    "device": lambda: member("x.json", b"", type=tarfile.CHRTYPE),
    "pipe": lambda: member("x.json", b"", type=tarfile.FIFOTYPE),
    "code": lambda: member("modeling.py"),
    "hidden": lambda: member(".x.json"),
    "twice": lambda: member("model.onnx"),
    "over a file": lambda: member("model.onnx/x.json"),
    "deep": lambda: member("a/b/c/d/e.json"),
    "hostile folder": lambda: member("../up", b"", type=tarfile.DIRTYPE),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_members_are_refused(tmp_path: Path, kind: str) -> None:
    path = archive(tmp_path / "a.tar", member("model.onnx"), HOSTILE[kind]())
    with pytest.raises(Unsafe):
        unpacked(path, tmp_path / "out")
    assert {p.name for p in tmp_path.iterdir()} == {"a.tar", "out"}


def test_headers_that_lie_are_refused(tmp_path: Path) -> None:
    long = archive(tmp_path / "long.tar", member("x" * 110 + ".json"), format=tarfile.GNU_FORMAT)
    pax = archive(tmp_path / "pax.tar", member("x.json", pax_headers={"path": "../y.json"}), format=tarfile.PAX_FORMAT)
    huge = tmp_path / "huge.tar"
    info = tarfile.TarInfo("x.json")
    info.size = 1 << 40
    huge.write_bytes(info.tobuf(tarfile.GNU_FORMAT) + b"x" * 512)
    extended = tmp_path / "extended.tar"
    info.type, info.size = tarfile.XHDTYPE, 1 << 30
    extended.write_bytes(info.tobuf(tarfile.GNU_FORMAT))
    for number, path in enumerate((long, pax, huge, extended)):
        with pytest.raises(Unsafe):
            unpacked(path, tmp_path / f"out{number}")


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    for number, data in enumerate((b"", b"x", b"x" * 512, bytes(1024), b"\x1f\x8b" + bytes(600))):
        (tmp_path / "a.tar").write_bytes(data)
        with pytest.raises(Unsafe):
            unpacked(tmp_path / "a.tar", tmp_path / f"out{number}")


def test_it_stops_when_told_to(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.tar", member("model.onnx", b"x" * 5000))
    (tmp_path / "out").mkdir()
    with pytest.raises(Stopped):
        unpack(path, tmp_path / "out", lambda: False)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damage_is_refused_or_unpacked_inside(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    place = tmp_path_factory.mktemp("damaged")
    whole = bytearray(archive(place / "a.tar", *(member(n, d) for n, d in FILES.items())).read_bytes()[:5120])
    for _ in range(data.draw(st.integers(1, 6))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    (place / "a.tar").write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
    try:
        unpacked(place / "a.tar", place / "out")
    except Unsafe as error:
        assert str(error)
    assert {p.name for p in place.iterdir()} == {"a.tar", "out"}


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 9000), st.integers(0, 5000))
def test_any_part_of_a_parcel_can_be_read_again(tmp_path_factory: pytest.TempPathFactory, offset: int, count: int) -> None:
    folder = tmp_path_factory.mktemp("parcel")
    for name, content in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    parcel = cli.of_folder(folder)
    assert parcel.read(offset, count) == b"".join(parcel.blocks())[offset : offset + count]
