"""The wheel and the source distribution: what lies inside, and that an installed wheel serves."""

import base64
import csv
import os
import signal
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from hashlib import sha256
from pathlib import Path
from urllib.request import urlopen

import pytest

from gateway.app.compiled import FOLDER, MODULES, extension, fault
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(sysconfig.get_path("platlib")) / FOLDER
COMPILED = os.environ.get("GATEHOUSE_COMPILED", "1") != "0"


def distributions(directory: Path, *build: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(ROOT / "scripts/distributions.py"), str(directory), *map(str, build)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


TOP = ("gateway", "engines", "policies", "admin", "gatehouse")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A source distribution and a wheel; the wheel with the build that ./scripts/test made, unless that is switched off."""
    directory = tmp_path_factory.mktemp("dist")
    done = distributions(directory, *([BUILD] if COMPILED else []))
    assert done.returncode == 0, done.stdout + done.stderr
    source, wheel = map(Path, done.stdout.split())
    return source, wheel


def test_the_wheel_holds_every_source_and_the_compiled_hot_path(made: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(made[1]) as archive:
        names = set(archive.namelist())
        head = archive.read("gatehouse-0.1.0.dist-info/WHEEL").decode()
        rows = list(csv.reader(archive.read("gatehouse-0.1.0.dist-info/RECORD").decode().splitlines()))
    sources = {p.relative_to(ROOT).as_posix() for top in TOP for p in (ROOT / top).rglob("*.py")}
    assert sources <= names
    assert {"policies/public_prices.json", "engines/demo/artefacts/demo-chat.gguf"} <= names
    assert not [name for name in names if name.split("/")[0] not in {*TOP, FOLDER, "gatehouse-0.1.0.dist-info"}]
    assert {row[0] for row in rows} == names
    compiled = {extension(Path(FOLDER), module).as_posix() for module in MODULES} if COMPILED else set()
    assert compiled <= names
    assert (f"Tag: cp3{sys.version_info.minor}-" in head) == COMPILED == ("Root-Is-Purelib: false" in head)


def test_the_list_of_the_wheel_has_the_digest_of_every_file(made: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(made[1]) as archive:
        for name, digest, size in csv.reader(archive.read("gatehouse-0.1.0.dist-info/RECORD").decode().splitlines()):
            if digest:
                data = archive.read(name)
                assert int(size) == len(data)
                assert base64.urlsafe_b64decode(digest.removeprefix("sha256=") + "=") == sha256(data).digest(), name


def test_the_source_distribution_holds_all_that_the_wheel_is_built_from(made: tuple[Path, Path]) -> None:
    with tarfile.open(made[0]) as source, zipfile.ZipFile(made[1]) as wheel:
        held = {name.partition("/")[2] for name in source.getnames()}
        assert {name for name in wheel.namelist() if not name.startswith((FOLDER, "gatehouse-"))} <= held
    needed = {path.relative_to(ROOT).as_posix() for top in ("scripts", "requirements") for path in (ROOT / top).glob("*") if path.is_file()}
    assert needed | {"pyproject.toml", "README.md", "LICENSE", "MANIFEST.in", "configs/external.yaml"} <= held
    assert not [name for name in held if name.split("/")[0] in ("tests", "loadtests", "var")]


def test_a_build_of_other_sources_goes_into_no_wheel(tmp_path: Path) -> None:
    (tmp_path / "build").mkdir()
    (tmp_path / "build/manifest.json").write_text("{}")
    done = distributions(tmp_path / "dist", tmp_path / "build")
    assert done.returncode == 1
    assert "cannot go into the wheel" in done.stderr
    assert not (tmp_path / "dist").exists()


def test_an_installed_wheel_serves_and_says_that_it_is_compiled(made: tuple[Path, Path], tmp_path: Path) -> None:
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-index", "--no-deps", "--target", str(site)]
    subprocess.run([*pip, str(made[1])], check=True, timeout=120, capture_output=True)
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(site), "HOME": str(tmp_path), "GATEHOUSE_COMPILED": "1" if COMPILED else "0"}
    env |= {"GATEHOUSE_STATE_DIR": str(tmp_path / "state"), "GATEHOUSE_PORT": "0", "GATEHOUSE_ADMIN_PORT": "0"}
    command = [str(site / "bin/gatehouse"), "serve", "--quickstart", "--config", str(ROOT / "configs/gateway-only.yaml")]
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=log, stderr=subprocess.STDOUT)
    try:
        said = (tmp_path / "log").read_text
        until(lambda: "admin key:" in said() or process.poll() is not None, 60)
        text = said()
        address = next(line.removeprefix("gateway: ") for line in text.splitlines() if line.startswith("gateway: "))
        with urlopen(f"{address}/readyz", timeout=60) as answer:
            assert answer.status == 200
        assert ("the hot path is compiled" in text) == (COMPILED and fault(BUILD) is None), text
        loaded = Path(f"/proc/{process.pid}/maps").read_text()
        assert (str(site / FOLDER) in loaded) == COMPILED
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(90) == 0
