"""Builds the distributions of Gatehouse: `python scripts/distributions.py DIRECTORY [BUILD]` writes a source distribution and a wheel.

Without BUILD the wheel is pure Python. With it, a directory that scripts/compile.py made from these very sources, the wheel is for this
Python and platform, and holds the sources and the compiled hot path beside them in `gatehouse_compiled`, where gateway/app/compiled.py
looks. Entries of the wheel are sorted and dated by SOURCE_DATE_EPOCH, so equal builds give equal files.
"""

from __future__ import annotations

import base64
import csv
import io
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import zipfile
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from gateway.app.compiled import FOLDER, fault  # noqa: E402

BACKEND = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"
EPOCH = 315_532_800  # 1980, the first year that a ZIP archive can say


def tag() -> str:
    """The wheel tag of this Python and platform, as `cp311-cp311-linux_x86_64`."""
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    return f"{python}-{python}-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


def record(files: dict[str, bytes], name: str) -> bytes:
    """The list of a wheel's files with their digests (PyPA, Recording installed projects)."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(sha256(data).digest()).rstrip(b"=").decode()
        rows.writerow([path, f"sha256={digest}", len(data)])
    rows.writerow([name, "", ""])
    return out.getvalue().encode()


def with_build(wheel: Path, build: Path) -> Path:
    """Puts the compiled hot path into a pure wheel and names it for this platform; returns the new wheel, the pure one is removed."""
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    head = next(name for name in files if name.endswith(".dist-info/WHEEL"))
    listed = next(name for name in files if name.endswith(".dist-info/RECORD"))
    del files[listed]
    text = files[head].decode()
    files[head] = text.replace("Root-Is-Purelib: true", "Root-Is-Purelib: false").replace("Tag: py3-none-any", f"Tag: {tag()}").encode()
    for path in build.rglob("*"):
        if path.is_file():
            files[f"{FOLDER}/{path.relative_to(build).as_posix()}"] = path.read_bytes()
    target = wheel.with_name(wheel.name.replace("py3-none-any", tag()))
    write(target, dict(sorted(files.items())), listed)
    wheel.unlink()
    return target


def write(target: Path, files: dict[str, bytes], listed: str) -> None:
    date = time.gmtime(max(EPOCH, int(os.environ.get("SOURCE_DATE_EPOCH") or time.time())))[:6]
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in [*files.items(), (listed, record(files, listed))]:
            info = zipfile.ZipInfo(name, date)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (0o755 if name.endswith(".so") else 0o644) << 16
            archive.writestr(info, data)


def build(directory: Path, compiled: Path | None) -> list[Path]:
    """Writes both distributions; returns their paths. Raises SystemExit when the compiled build is not one of these sources."""
    if compiled is not None and (wrong := fault(compiled)) is not None:
        sys.exit(f"error: {compiled} cannot go into the wheel: {wrong}")
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        # In a copy: setuptools leaves its working folders beside the sources, and takes whatever an older build left there.
        tree = Path(name) / "tree"
        left_out = shutil.ignore_patterns(".*", "var", "build", "dist", "tests", "loadtests", "*.egg-info", "__pycache__", "node_modules")
        shutil.copytree(ROOT, tree, ignore=left_out)
        source, wheel = (made(tree, hook, directory) for hook in ("build_sdist", "build_wheel"))
    return [source, wheel if compiled is None else with_build(wheel, compiled)]


def made(tree: Path, hook: str, directory: Path) -> Path:
    """What a hook of the build backend (PEP 517) makes of a tree."""
    command = [sys.executable, "-c", BACKEND, hook, str(directory)]
    done = subprocess.run(command, cwd=tree, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
    if done.returncode:
        sys.exit(f"error: {hook} failed:\n{done.stdout[-4000:]}")
    return directory / done.stdout.split()[-1]


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python scripts/distributions.py DIRECTORY [BUILD]")
    print("\n".join(map(str, build(Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute() if len(sys.argv) == 3 else None))))
