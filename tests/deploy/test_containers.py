"""The Containerfiles: their steps find every file that they use among those that COPY names, and the image runs confined.

The steps of all images are carried out here in an empty folder, with stand-ins for what needs a network, a compiler or root.
`python -m tests.deploy.replay FILE` goes further: it carries them out in an empty root, with nothing stood in for.
"""

import re
import subprocess
import sys
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gateway.core.specs import ListenSpec
from tests.deploy.containerfile import Stage, copied, copies, ignored, listed, stages
from tests.deploy.layers import Layer, carried_out
from tests.fakes.ports import empty_port

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


def test_the_health_check_asks_the_gateway_itself(image: list[Stage]) -> None:
    """Docker hands the proxy of its configuration to every container."""

    class Gateway(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/livez" else 404)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    _, flag, code = listed(image[-1].last("HEALTHCHECK"))
    with ThreadingHTTPServer(("127.0.0.1", 0), Gateway) as server, empty_port() as nobody:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        proxy = {name: f"http://127.0.0.1:{nobody}" for name in ("http_proxy", "HTTP_PROXY", "all_proxy")}
        asked = [code.replace(":8080", f":{port}").replace("timeout=2", "timeout=60") for port in (server.server_port, nobody)]
        ran = [subprocess.run([sys.executable, flag, one], env=proxy, capture_output=True, timeout=60, check=False) for one in asked]
        server.shutdown()
    assert [done.returncode for done in ran] == [0, 1], ran


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_container_that_is_stopped_may_drain(path: Path) -> None:
    """`docker stop` ends a container after ten seconds unless it was started with another time."""
    (given,) = re.findall(r"podman run .*--stop-timeout (\d+)", path.read_text())
    assert int(given) >= ListenSpec().drain_delay + ListenSpec().drain_timeout + 10


def test_images_are_built_under_the_names_that_manifests_give_them() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    built = {name for path in [*FILES, ROOT / "docs/deployment.md"] for name in re.findall(r" -t (\S+) \.", path.read_text())}
    assert built == {f"{name}:{version}" for name in ("gatehouse", "gatehouse-cpu", "gatehouse-cuda")}
    named = {found for path in (ROOT / "deploy").rglob("*.yaml") for found in re.findall(r"image: (gatehouse[\w-]*:\S+)", path.read_text())}
    assert named and named <= built, "nobody would find the image"
    overlay = (ROOT / "deploy/kustomize/overlays/production/kustomization.yaml").read_text()
    assert f"newTag: {version}}}" in overlay and f"\nappVersion: {version}\n" in (ROOT / "deploy/helm/gatehouse/Chart.yaml").read_text()


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


class Replayed:
    """The images whose stages were carried out, each once (tests.deploy.layers). The wheel is built for the first, in an empty folder with
    just the files that are copied, and taken for others that copy the same sources."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._images = folder, dict[str, dict[str, Layer]]()
        self._wheels: list[tuple[dict[str, Path], Path]] = []

    def image(self, name: str) -> dict[str, Layer]:
        """Its stages by name; the last one is `1`."""
        if name not in self._images:
            layers = self._images[name] = {}
            for stage in stages(ROOT / f"deploy/containers/{name}.Containerfile"):
                root = self._folder / name / stage.name
                if stage.base.startswith("docker.io/nvidia/cuda") and stage.name == "build":
                    (root / STUBS).mkdir(parents=True)
                    (root / STUBS / "libcuda.so").touch()
                layers[stage.name] = carried_out(stage, root, layers, self._wheel(stage))
            built = layers["build"]
            self._wheels.append((_sources(stages(ROOT / f"deploy/containers/{name}.Containerfile")[0]), _only(built.at("/dist"), WHEEL)))
        return self._images[name]

    def _wheel(self, stage: Stage) -> Path | None:
        return next((wheel for sources, wheel in self._wheels if sources == _sources(stage)), None)


STUBS = "usr/local/cuda/lib64/stubs"
WHEEL, LLAMA = "gatehouse-*.whl", "llama_cpp_python-*.whl"


def _sources(stage: Stage) -> dict[str, Path]:
    """What a wheel of Gatehouse is made of."""
    return {name: file for name, file in copied(ROOT, stage).items() if not name.startswith(("requirements/", "scripts/patches/"))}


def _only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Replayed:
    return Replayed(tmp_path_factory.mktemp("images"))


@pytest.mark.parametrize(("name", "requirements"), [("gateway", "gateway"), ("cpu", "server"), ("cuda", "server")])
def test_each_step_of_the_build_finds_what_it_needs(name: str, requirements: str, replayed: Replayed) -> None:
    """Nothing is installed but what the Containerfile says, and the image gets one environment with the pinned packages and the wheel."""
    build = replayed.image(name)["build"]
    engines = requirements == "server"
    assert build.packages == {"build-essential", "python3", "python3-dev", "python3-venv"} | ({"patch"} if engines else set())
    assert len(build.of("apt-get", "install")) == 1, "a script found a package missing and installed it"
    serving = [call["arguments"] for call in build.of("pip", "install") if call["arguments"][1:3] == ["-q", "--no-cache-dir"]]
    assert serving[0][-2:] == ["-r", f"requirements/{requirements}.txt"]
    wheels = [Path(arguments[-1]) for arguments in serving[1:]]
    assert wheels[-1] == _only(build.at("/dist"), WHEEL)
    assert [wheel.match(LLAMA) for wheel in wheels[:-1]] == [True] * engines
    assert build.at("/opt/gatehouse/bin/python").is_file()


@pytest.mark.parametrize(
    ("name", "flags"), [("cpu", []), ("cuda", ["-DGGML_CUDA=on", "-DCMAKE_CUDA_ARCHITECTURES=80;86;89;90"])], ids=["cpu", "cuda"]
)
def test_llama_cpp_is_built_once_with_the_patches_and_the_flags_of_the_image(name: str, flags: list[str], replayed: Replayed) -> None:
    build = replayed.image(name)["build"]
    (made,) = [call for call in build.of("pip") if "wheel" in call["arguments"][:3]]
    asked = made["CMAKE_ARGS"].split()
    assert [flag for flag in asked if "CUDA" in flag] == flags and "-DGGML_NATIVE=OFF" in asked
    assert len(build.of("patch")) == len(list((ROOT / "scripts/patches").glob("llama-*.patch")))
    assert _only(build.at("/root/.cache/gatehouse/wheels"), f"*/{LLAMA}").is_file()
    stubs = build.at(STUBS)
    assert made.get("LD_LIBRARY_PATH", "").startswith(f"{stubs}:") == (name == "cuda")
    if name == "cuda":
        assert (stubs / "libcuda.so.1").resolve() == (stubs / "libcuda.so").resolve()


@pytest.mark.parametrize("name", ["gateway", "cpu", "cuda"])
def test_the_image_holds_the_environment_and_the_user_that_it_runs_as(name: str, replayed: Replayed) -> None:
    final, stage = replayed.image(name)["1"], stages(ROOT / f"deploy/containers/{name}.Containerfile")[-1]
    assert final.packages == {"ca-certificates", "python3"} | ({"libgomp1"} if name != "gateway" else set())
    assert final.at("/opt/gatehouse/bin/python").is_file() and not final.at("/src").exists()
    (user,) = final.of("useradd")
    assert user["arguments"][:2] == ["--uid", stage.last("USER")] and user["arguments"][-1] == "gatehouse"


@pytest.mark.parametrize("left_out", ["python3-venv", "COPY requirements/ requirements/\n"], ids=["a package", "a file"])
def test_a_step_that_misses_something_fails(left_out: str, tmp_path: Path) -> None:
    text = (ROOT / "deploy/containers/cpu.Containerfile").read_text()
    file = tmp_path / "x.Containerfile"
    file.write_text(text.replace(left_out, "", 1))
    with pytest.raises(AssertionError, match="stand-in: "):
        carried_out(stages(file)[0], tmp_path / "root", {})


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
