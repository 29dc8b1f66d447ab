"""The Containerfiles: their steps find every file that they use among those that COPY names, and the image runs confined.

`python -m tests.deploy.replay FILE` goes further: it carries the steps out in an empty root.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.containerfile import Stage, copied, copies, ignored, listed, stages

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "deploy/containers").glob("*.Containerfile"))


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def image(request: pytest.FixtureRequest) -> list[Stage]:
    path: Path = request.param
    return stages(path)


def test_there_is_one_for_the_gateway_and_one_for_each_kind_of_engine() -> None:
    assert [path.stem for path in FILES] == ["cpu", "cuda", "gateway"]


def test_bases_are_exact_releases_and_nothing_comes_from_elsewhere(image: list[Stage]) -> None:
    for stage in image:
        assert re.fullmatch(r"[\w.-]+(/[\w.-]+)+:\d+\.\d+[\w.-]*(@sha256:[0-9a-f]{64})?", stage.base), stage.base
        for word, text in stage.steps:
            assert word != "ADD" and "curl" not in text and "wget" not in text
            for install in re.findall(r"pip install [^&]+", text):
                assert "--require-hashes" in install or ("--no-deps" in install and "--no-index" in install), install


def test_the_image_is_what_was_built_and_no_compiler(image: list[Stage]) -> None:
    build, final = image
    assert [origin for origin, _, _ in copies(final)] == [build.name]
    packages = " ".join(text for word, text in final.steps if word == "RUN")
    assert "build-essential" not in packages and "python3-dev" not in packages


def test_the_image_runs_without_rights(image: list[Stage]) -> None:
    final = image[-1]
    words = [word for word, _ in final.steps]
    user = final.last("USER")
    assert user.isdigit() and int(user) >= 10000, "by number, so that an orchestrator can see that it is not root"
    assert "RUN" not in words[words.index("USER") :] and "COPY" not in words[words.index("USER") :]
    assert final.last("VOLUME") == final.last("WORKDIR") == "/var/lib/gatehouse"
    assert "PYTHONDONTWRITEBYTECODE=1" in final.last("ENV")
    assert listed(final.last("ENTRYPOINT")) == ["gatehouse"]
    assert listed(final.last("CMD")) == ["serve", "--config", "/etc/gatehouse/gatehouse.yaml"]
    assert final.last("STOPSIGNAL") == "SIGTERM"


def test_the_health_check_compiles_and_asks_the_listener(image: list[Stage]) -> None:
    final = image[-1]
    python, flag, code = listed(final.last("HEALTHCHECK"))
    assert (python, flag) == ("python3", "-c")
    compile(code, "healthcheck", "exec")
    port = final.last("EXPOSE")
    assert f":{port}/livez" in code and f"0.0.0.0:{port}" in final.last("ENV")


@pytest.mark.parametrize("path", [*FILES, ROOT / "docs/deployment.md"], ids=lambda path: path.name)
def test_podman_is_told_to_keep_the_health_check(path: Path) -> None:
    """Its own format of images has none: it warns and leaves the instruction out."""
    builds = re.findall(r"podman build .*", path.read_text())
    assert builds and all(build.startswith("podman build --format docker ") for build in builds)


def test_every_file_that_a_step_uses_was_copied_before(image: list[Stage]) -> None:
    """Each RUN sees only what the COPY instructions above it brought; what lib.sh and the Python scripts name counts as used."""
    build = image[0]
    for number, (word, text) in enumerate(build.steps):
        if word != "RUN":
            continue
        held = set(copied(ROOT, Stage(build.base, build.name, build.steps[:number])))
        used = set(re.findall(r"(?<![\w/.-])(?:\./)?((?:scripts|requirements)/[\w.-]+)", text))
        functions = re.findall(r"ensure_\w+ (\w+)", text)
        used |= {f"requirements/{name}.txt" for name in functions}
        if "ensure_" in text:
            used |= {"requirements/build.txt"}
        if "ensure_dependencies" in text:
            used |= {
                "requirements/llama.txt",
                "requirements/llama-build.txt",
                *(f"scripts/patches/{p.name}" for p in (ROOT / "scripts/patches").iterdir()),
            }
        if "build-wheel" in text:
            used |= {
                "scripts/lib.sh",
                "scripts/compile.py",
                "scripts/distributions.py",
                "pyproject.toml",
                "README.md",
                "LICENSE",
                "MANIFEST.in",
            }
            used |= {
                p.relative_to(ROOT).as_posix() for top in ("gateway", "engines", "policies", "admin") for p in (ROOT / top).rglob("*.py")
            }
        assert used - held == set(), text


def test_the_wheel_can_be_built_from_what_is_copied_and_nothing_else(tmp_path: Path) -> None:
    """The last step of the build in an empty folder with just the copied files; without the compiler, which other tests run."""
    for name, file in copied(ROOT, stages(ROOT / "deploy/containers/gateway.Containerfile")[0]).items():
        (tmp_path / "src" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, tmp_path / "src" / name)
    command = [sys.executable, str(tmp_path / "src/scripts/distributions.py"), str(tmp_path / "dist")]
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path / "src", env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "dist/gatehouse-0.1.0-py3-none-any.whl").is_file()


@pytest.mark.parametrize(
    "name",
    [".git/config", ".venv/bin/python", "var/quickstart-keys.json", "tests/conftest.py", "gateway/__pycache__/a.pyc", "gateway.yaml"],
)
def test_what_no_image_needs_does_not_reach_the_builder(name: str) -> None:
    assert ignored(ROOT, name)


@pytest.mark.parametrize("name", ["gateway/app/start.py", "scripts/patches/llama-flash-attention-prefetch.patch", "pyproject.toml"])
def test_what_is_copied_reaches_the_builder(name: str) -> None:
    assert not ignored(ROOT, name)


def test_a_mistake_is_found(tmp_path: Path) -> None:
    (tmp_path / ".dockerignore").write_text("*\n!here/\n")
    (tmp_path / "here").mkdir()
    (tmp_path / "here/a").touch()
    (tmp_path / "away").touch()
    file = tmp_path / "x.Containerfile"
    for step, error in (("COPY away ./", FileNotFoundError), ("COPY gone ./", FileNotFoundError), ("ADD here/ ./", ValueError)):
        file.write_text(f"FROM a/b:1.0\n{step}\n")
        with pytest.raises(error):
            copied(tmp_path, stages(file)[0])
    file.write_text("FROM a/b:1.0\nCOPY here/ ./\n")
    assert set(copied(tmp_path, stages(file)[0])) == {"a"}
