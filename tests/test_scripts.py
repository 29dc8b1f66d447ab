"""The scripts and the pinned requirements: what they promise that can be shown without installing anything."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gateway.app.compiled import MODULES
from tests.order import LONGEST_FIRST

ROOT = Path(__file__).resolve().parent.parent
PINNED = sorted((ROOT / "requirements").glob("*.txt"))
SHELL = sorted(
    path
    for path in [*(ROOT / "scripts").iterdir(), *(ROOT / ".ci").iterdir(), *(ROOT / "loadtests").rglob("*.sh")]
    if path.is_file() and "bash" in path.read_text(encoding="utf-8").splitlines()[0]
)


def pins(path: Path) -> dict[str, str]:
    """Name -> version; fails on a line that is not an exact pin with hashes."""
    found: dict[str, str] = {}
    for block in re.sub(r"\\\n", " ", path.read_text(encoding="utf-8")).splitlines():
        if not block.strip() or block.lstrip().startswith("#"):
            continue
        pin = re.fullmatch(r"([A-Za-z0-9._-]+)==(\S+)(?: ; python_version < \"3\.\d+\")?((?:\s+--hash=sha256:[0-9a-f]{64})+)\s*", block)
        assert pin, f"{path.name}: not an exact pin with hashes: {block[:80]}"
        found[canonicalize_name(pin[1])] = pin[2]
    return found


def shell(code: str, tmp_path: Path, **environ: str) -> "subprocess.CompletedProcess[str]":
    """Runs code after scripts/lib.sh, with an environment and a cache of its own."""
    env = {**os.environ, "GATEHOUSE_VENV": str(tmp_path / "venv"), "XDG_CACHE_HOME": str(tmp_path / "cache"), **environ}
    (tmp_path / "venv" / "bin").mkdir(parents=True, exist_ok=True)
    (tmp_path / "venv" / "pyvenv.cfg").write_text("version = 3.12.4\n")
    command = ["bash", "-euo", "pipefail", "-c", f'. "{ROOT}/scripts/lib.sh"\n{code}']
    return subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False)


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


# --- pins ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PINNED, ids=lambda path: path.name)
def test_every_requirement_is_an_exact_pin_with_hashes_and_no_address(path: Path) -> None:
    assert pins(path)
    assert "://" not in path.read_text(encoding="utf-8")


def test_a_package_has_one_version_everywhere() -> None:
    versions: dict[str, dict[str, str]] = {}
    for path in PINNED:
        for name, version in pins(path).items():
            versions.setdefault(name, {})[path.name] = version
    assert {name: where for name, where in versions.items() if len(set(where.values())) > 1} == {}


def test_llama_is_pinned_apart_with_all_it_depends_on_beside_it() -> None:
    assert set(pins(ROOT / "requirements/llama.txt")) == {"llama-cpp-python"}
    assert [path.name for path in PINNED if "llama-cpp-python" in pins(path)] == ["llama.txt"]
    assert {"numpy", "diskcache", "jinja2", "typing-extensions"} <= set(pins(ROOT / "requirements/quickstart.txt"))


@pytest.mark.parametrize(
    ("name", "extras"),
    [
        ("base", ()),
        ("gateway", ("postgres", "s3")),
        ("quickstart", ("gguf", "onnx", "nvml")),
        ("server", ("gguf", "onnx", "nvml", "postgres")),
        ("dev", ("gguf", "onnx", "nvml", "postgres", "dev")),
    ],
)
def test_the_pins_are_those_of_pyproject(name: str, extras: tuple[str, ...]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [Requirement(text) for text in [*project["dependencies"], *(r for e in extras for r in project["optional-dependencies"][e])]]
    pinned = pins(ROOT / f"requirements/{name}.txt") | pins(ROOT / "requirements/llama.txt")
    unfit = [str(r) for r in wanted if not r.specifier.contains(pinned.get(canonicalize_name(r.name), "0"), prereleases=True)]
    assert unfit == [], "run ./scripts/lock"


@pytest.mark.parametrize(
    ("name", "extras"),
    [
        ("base", ()),
        ("gateway", ("postgres", "s3", "grpc")),
        ("quickstart", ("gguf", "onnx", "nvml", "grpc")),
        ("server", ("gguf", "onnx", "nvml", "postgres", "s3", "kafka", "grpc", "language")),
        ("dev", ("gguf", "onnx", "genai", "nvml", "postgres", "s3", "kafka", "grpc", "language", "dev")),
    ],
)
def test_the_pins_are_complete(name: str, extras: tuple[str, ...]) -> None:
    """They are installed with --no-deps, so one that is missing would be missed at run time only."""
    pinned = {*pins(ROOT / f"requirements/{name}.txt"), *pins(ROOT / "requirements/llama.txt")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *(text for extra in extras for text in project["optional-dependencies"][extra])]
    waiting = [Requirement(text) for text in wanted]
    seen: set[tuple[str, str]] = set()
    while waiting:
        requirement = waiting.pop()
        package = canonicalize_name(requirement.name)
        for extra in {"", *requirement.extras}:
            if (package, extra) in seen or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
                continue
            seen.add((package, extra))
            assert package in pinned, f"{name}.txt lacks {package}"
            for text in requires(package) or ():
                one = Requirement(text)
                if one.marker is None or one.marker.evaluate({"extra": extra}):
                    one.marker = None
                    waiting.append(one)


def test_what_is_pinned_is_installed_without_resolving() -> None:
    """An older pip would look up the newest release of what is asked for with an extra, and refuse it for want of a hash."""
    places = [*SHELL, ROOT / "scripts/lib.sh", *(ROOT / "deploy/containers").iterdir(), *ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    for place in places:
        for install in re.findall(r"pip install [^&\n]*?-r \S+", place.read_text(encoding="utf-8").replace("\\\n", " ")):
            assert "--no-deps" in install and "--require-hashes" in install, f"{place.name}: {install}"


def test_the_node_packages_are_pinned_by_hash_and_carry_no_address() -> None:
    lock = json.loads((ROOT / "tests/clients/package-lock.json").read_text(encoding="utf-8"))
    packages = {name: package for name, package in lock["packages"].items() if name}
    assert packages
    for name, package in packages.items():
        assert package["integrity"].startswith("sha512-"), name
        assert "resolved" not in package, name


# --- scripts ---------------------------------------------------------------------------------------------------------


def test_all_scripts_are_known_here() -> None:
    assert {"quickstart", "build-wheel", "audit", "test", "check", "bench", "lock", "lib.sh", "run", "peers.sh"} <= {
        path.name for path in SHELL
    }


@pytest.mark.parametrize("path", SHELL, ids=lambda path: path.name)
def test_a_script_parses_and_can_be_run(path: Path) -> None:
    subprocess.run(["bash", "-n", str(path)], check=True, timeout=60)
    assert path.name == "lib.sh" or os.access(path, os.X_OK)


def test_once_runs_again_only_for_another_value_or_after_a_failure(tmp_path: Path) -> None:
    done = shell(
        """
        step() { echo "$1"; }
        once name one step first
        once name one step second
        once name two step third
        once name three false || echo failed
        once name three step fourth
        """,
        tmp_path,
    )
    assert (done.returncode, done.stdout.split()) == (0, ["first", "third", "failed", "fourth"])


def test_without_python_the_error_says_what_to_install(tmp_path: Path) -> None:
    program(tmp_path / "bin/python3", "exit 1")
    done = shell(f'PATH="{tmp_path}/bin" SYSTEM_PYTHON=none; find_python', tmp_path)
    assert done.returncode == 1
    assert "Python 3.11 or later is needed" in done.stderr and "apt-get install python3 python3-venv" in done.stderr


def test_a_python_that_was_built_with_optimisations_is_preferred(tmp_path: Path) -> None:
    plain = 'case "$2" in *CONFIG_ARGS*) exit 1;; esac'
    program(tmp_path / "bin/python3", plain)
    program(tmp_path / "bin/python3.12", plain)
    program(tmp_path / "bin/python3.11", "exit 0")
    find = f'PATH="{tmp_path}/bin" SYSTEM_PYTHON=none; find_python'
    assert shell(find, tmp_path).stdout.strip() == f"{tmp_path}/bin/python3.11"
    assert shell(f"GATEHOUSE_PYTHON=python3.12 {find}", tmp_path).stdout.strip() == f"{tmp_path}/bin/python3.12"
    (tmp_path / "bin/python3.11").unlink()
    assert shell(find, tmp_path).stdout.strip() == f"{tmp_path}/bin/python3"


def test_the_first_python_that_is_new_enough_is_taken(tmp_path: Path) -> None:
    program(tmp_path / "bin/python3", "exit 1")  # too old
    program(tmp_path / "bin/python3.12", "exit 0")
    program(tmp_path / "mine", "exit 0")
    assert shell(f'PATH="{tmp_path}/bin" SYSTEM_PYTHON=none; find_python', tmp_path).stdout.strip() == f"{tmp_path}/bin/python3.12"
    assert shell(f'PATH="{tmp_path}/bin"; find_python', tmp_path, GATEHOUSE_PYTHON=f"{tmp_path}/mine").stdout.strip() == f"{tmp_path}/mine"


def test_who_may_not_install_system_packages_is_told_which_are_missing(tmp_path: Path) -> None:
    program(tmp_path / "bin/id", "echo 1000")
    program(tmp_path / "bin/sudo", "exit 1")
    program(tmp_path / "bin/apt-get", "touch $0.was-run")
    done = shell(f'PATH="{tmp_path}/bin:$PATH"; install_packages redis-server slapd', tmp_path)
    assert done.returncode == 1
    assert "missing: redis-server slapd. Run: sudo apt-get install redis-server slapd" in done.stderr
    assert not (tmp_path / "bin/apt-get.was-run").exists()


def test_what_is_installed_is_not_asked_for(tmp_path: Path) -> None:
    program(tmp_path / "bin/haproxy", "exit 0")
    (tmp_path / "share").mkdir()
    (tmp_path / "share/initdb-15").touch()
    asked = 'needs haproxy haproxy; needs postgresql "$PWD/share/initdb-*" no-initdb; needs redis-server no-redis; echo "${MISSING[@]}"'
    assert shell(f'cd "{tmp_path}"; PATH="{tmp_path}/bin:$PATH"; {asked}', tmp_path).stdout.strip() == "redis-server"


def test_nothing_missing_needs_no_rights(tmp_path: Path) -> None:
    assert shell('PATH=""; install_packages', tmp_path).returncode == 0


def test_the_build_of_llama_is_never_native_and_is_named_after_all_that_changes_it(tmp_path: Path) -> None:
    flags = shell("llama_cmake_args", tmp_path).stdout
    assert "-DGGML_NATIVE=OFF" in flags
    plain, cuda = (shell("llama_key", tmp_path, GATEHOUSE_CMAKE_ARGS=args).stdout for args in ("", "-DGGML_CUDA=on"))
    version = pins(ROOT / "requirements/llama.txt")["llama-cpp-python"]
    assert plain.startswith(f"{version}-py3.12-")
    assert plain.rpartition("-")[0] == cuda.rpartition("-")[0] and plain != cuda
    (tmp_path / "llama-other.patch").write_text("another change of the source")
    patched = shell(f'LLAMA_PATCHES=("{tmp_path}"/llama-*.patch); llama_key', tmp_path).stdout
    assert patched.rpartition("-")[0] == plain.rpartition("-")[0] and patched != plain


def test_the_build_of_llama_has_the_instruction_sets_that_this_cpu_has_all_of(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(
        "processor : 0\nflags : fpu avx avx2 fma f16c avx512f avx512cd avx512vl avx512dq avx512_vnni amx_int8\n"
    )
    flags = shell(f'llama_cmake_args "{tmp_path}/cpuinfo" x86_64', tmp_path).stdout.split()
    assert {"-DGGML_AVX2=ON", "-DGGML_BMI2=OFF", "-DGGML_AVX512_VNNI=ON", "-DGGML_AVX512_BF16=OFF"} <= set(flags)
    assert "-DGGML_AVX512=OFF" in flags  # avx512bw is missing
    (tmp_path / "cpuinfo").write_text("flags : avx512f avx512cd avx512bw avx512dq avx512vl\n")
    flags = shell(f'llama_cmake_args "{tmp_path}/cpuinfo" x86_64', tmp_path).stdout.split()
    assert {"-DGGML_AVX512=ON", "-DGGML_AVX512_VNNI=OFF"} <= set(flags) and not any("AMX" in flag for flag in flags)
    other = shell(f'llama_cmake_args "{tmp_path}/cpuinfo" aarch64', tmp_path).stdout
    assert "-DGGML_NATIVE=OFF" in other and "AVX" not in other


NVCC = 'echo "Cuda compilation tools, release 12.8, V12.8.93"'
SMI = 'case "$*" in *compute_cap*) printf "9.0\\n8.0\\n9.0\\n" ;; *) echo "| Driver Version: 570.1   CUDA Version: 12.8 |" ;; esac'


def cuda(
    tmp_path: Path, code: str = "cuda_settings", *, nvcc: str = NVCC, smi: str = SMI, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Runs code beside a scripted toolkit and driver."""
    program(tmp_path / "bin" / "nvcc", nvcc)
    program(tmp_path / "bin" / "nvidia-smi", smi)
    return shell(code, tmp_path, PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}", **environ)


def test_llama_is_built_for_the_gpus_of_this_machine_and_named_after_the_toolkit(tmp_path: Path) -> None:
    done = cuda(tmp_path)
    assert done.returncode == 0, done.stderr
    compiler = tmp_path / "bin" / "nvcc"
    assert done.stdout == f"-DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=80-real;90-real -DCMAKE_CUDA_COMPILER={compiler} toolkit=12.8"
    plain = cuda(tmp_path, "llama_key").stdout
    names = set()
    for release in ("12.8", "12.9"):
        (tmp_path / "venv" / ".gatehouse-cuda").write_text(f"-DGGML_CUDA=ON toolkit={release}\n")
        assert cuda(tmp_path, "llama_cmake_args").stdout.endswith(" -DGGML_CUDA=ON")
        names.add(cuda(tmp_path, "llama_key").stdout)
    assert len({plain, *names}) == 3


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"smi": "exit 9"}, "no NVIDIA GPU answers"),
        ({"nvcc": "echo nothing"}, "does not tell its release"),
        ({"nvcc": f"[ $# = 1 ] || exit 1; {NVCC}"}, "has no cuBLAS for developers (cublas_v2.h); NVIDIA's package is libcublas-dev-12-8"),
        ({"nvcc": 'echo "release 13.0, V13"'}, "the toolkit is CUDA 13.0, but this driver runs CUDA up to 12"),
        ({"nvcc": 'echo "release 11.5, V11"'}, "CUDA 11.5 cannot build for compute capability 90"),
        ({"GATEHOUSE_CUDA_ARCHITECTURES": "120", "nvcc": 'echo "release 12.6, V12"'}, "CUDA 12.6 cannot build for compute capability 120"),
        ({"GATEHOUSE_CUDA_ARCHITECTURES": "70", "nvcc": 'echo "release 13.0, V13"'}, "CUDA 13.0 cannot build for compute capability 70"),
        ({"GATEHOUSE_CUDA_ARCHITECTURES": "sm_90"}, "sm_90 is no compute capability"),
    ],
)
def test_what_does_not_fit_is_told_before_anything_is_built(tmp_path: Path, changes: dict[str, str], sentence: str) -> None:
    done = cuda(tmp_path, **changes)
    assert done.returncode == 1 and sentence in done.stderr


HEADERS = """cat <<END
#define VK_HEADER_VERSION 309
#define VK_EXT_layer_settings 1
#define VK_HEADER_VERSION_COMPLETE VK_MAKE_API_VERSION(0, 1, 4, VK_HEADER_VERSION)
END"""


def vulkan(
    tmp_path: Path, code: str = "vulkan_settings", *, glslc: str = "", cc: str = HEADERS, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Runs code beside scripted compilers."""
    for name, text in (("glslc", glslc), ("cc", cc), ("c++", ""), ("patch", "")):
        program(tmp_path / "bin" / name, text or "exit 0")
    return shell(code, tmp_path, PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}", **environ)


def test_llama_is_built_for_vulkan_with_the_systems_headers_or_others(tmp_path: Path) -> None:
    assert vulkan(tmp_path).stdout == "-DGGML_VULKAN=ON toolkit=1.4.309"
    (tmp_path / "newer" / "vulkan").mkdir(parents=True)
    (tmp_path / "newer" / "vulkan" / "vulkan.hpp").touch()
    other = vulkan(tmp_path, GATEHOUSE_VULKAN_HEADERS=f"{tmp_path}/newer").stdout
    assert other == f"-DGGML_VULKAN=ON -DVulkan_INCLUDE_DIR={tmp_path}/newer toolkit=1.4.309"
    plain = vulkan(tmp_path, "llama_key").stdout
    (tmp_path / "venv" / ".gatehouse-vulkan").write_text("-DGGML_VULKAN=ON toolkit=1.4.309\n")
    assert vulkan(tmp_path, "llama_cmake_args").stdout.endswith(" -DGGML_VULKAN=ON")
    assert vulkan(tmp_path, "llama_key").stdout != plain


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"cc": "exit 1"}, "the headers of Vulkan are missing (Debian: libvulkan-dev)"),
        ({"cc": HEADERS.replace("layer_settings", "other").replace("4,", "3,")}, "of release 1.3.309, which is too old for llama.cpp"),
        ({"cc": f'case "$*" in *-lvulkan*) exit 1;; esac\n{HEADERS}'}, "libvulkan.so is missing"),
        ({"GATEHOUSE_VULKAN_HEADERS": "/nonexistent"}, "there is no vulkan/vulkan.hpp in it"),
    ],
)
def test_what_vulkan_lacks_is_told_before_anything_is_built(tmp_path: Path, changes: dict[str, str], sentence: str) -> None:
    done = vulkan(tmp_path, **changes)
    assert done.returncode == 1 and sentence in done.stderr


def test_onnx_for_gpus_and_for_openvino_takes_the_place_of_the_other_package(tmp_path: Path) -> None:
    """In this order: the pins, both packages removed, the one for GPUs or for OpenVINO."""
    code = 'pip() { printf "%s\\n" "$*"; }\nensure_venv() { :; }\nensure_python quickstart'
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / ".gatehouse-cuda").write_text("-DGGML_CUDA=ON toolkit=12.8\n")
    lines = shell(code, tmp_path).stdout.splitlines()
    assert [line.rpartition("/")[2] if "-r " in line else line for line in lines] == [
        "quickstart.txt", "uninstall -qq -y onnxruntime onnxruntime-gpu", "onnx-gpu.txt", "build.txt",
    ]  # fmt: skip
    (tmp_path / "venv" / ".gatehouse-cuda").unlink()
    assert [line.rpartition("/")[2] for line in shell(code, tmp_path).stdout.splitlines()] == ["quickstart.txt"]
    (tmp_path / "venv" / ".gatehouse-openvino").touch()
    assert [line.rpartition("/")[2] if "-r " in line else line for line in shell(code, tmp_path).stdout.splitlines()] == [
        "quickstart.txt", "uninstall -qq -y onnxruntime onnxruntime-openvino", "onnx-openvino.txt",
    ]  # fmt: skip
    (tmp_path / "venv" / ".gatehouse-with-genai").touch()
    assert [line.rpartition("/")[2] for line in shell(code, tmp_path).stdout.splitlines()] == ["genai.txt"]


def test_a_build_tells_how_far_it_is_and_ends_with_its_directory(tmp_path: Path) -> None:
    build = tmp_path / "build"
    build.mkdir()
    (build / "build.ninja").write_text("build a.o: c a.c\nbuild b.o: c b.c\nbuild lib.so: link a.o b.o\n")
    (build / ".ninja_log").write_text("# ninja log v7\n0\t10\t1\ta.o\t0\n")
    told = f"told_of_build $$ {build} 2>{tmp_path}/told & until grep -q %, {tmp_path}/told; do sleep 0.05; done; rm -r {build}; wait"
    done = shell(told, tmp_path, GATEHOUSE_TELL="0")
    assert done.returncode == 0, done.stderr
    assert re.match(r"  50 %, about \d+ min \d+ s left\n", (tmp_path / "told").read_text())


def test_a_build_that_fails_leaves_nothing_in_the_cache(tmp_path: Path) -> None:
    program(tmp_path / "venv/bin/python", "exit 1")
    done = shell('install_llama "$CACHE/wheels/key"', tmp_path)
    assert done.returncode == 1
    assert "no environment for the build" in done.stderr
    assert [path.name for path in (tmp_path / "cache/gatehouse/wheels").iterdir()] == [".lock"]


def test_every_pass_of_the_tests_runs_and_the_first_failure_is_the_exit_code(tmp_path: Path) -> None:
    program(tmp_path / "venv/bin/python", 'echo "ran $*"; case "$*" in *second*) exit 3;; *third*) exit 1;; esac')
    done = shell('run_pass one first -x; run_pass two second; run_pass three third; exit "$PASSES"', tmp_path)
    assert done.returncode == 3
    assert done.stdout.splitlines() == [f"ran -m pytest --tb=short {each}" for each in ("first -x", "second", "third")]
    assert "== exit code 3: two" in done.stderr and "one" in done.stderr
    assert shell('run_pass one first; exit "$PASSES"', tmp_path).returncode == 0


def test_a_command_beside_a_process_ends_with_it_and_all_that_it_started(tmp_path: Path) -> None:
    code = """
        sleep 600 & owner=$!
        work() { sleep 600 & echo "$!" >inner; wait; }
        beside "$owner" work & watcher=$!
        while [ ! -s inner ]; do sleep 0.05; done
        kill "$owner"
        wait "$watcher"
        while kill -0 "$(<inner)" 2>/dev/null && ! grep -q "^State:.Z" "/proc/$(<inner)/status"; do sleep 0.05; done
        echo gone
        beside $$ echo done
    """
    done = shell(f'cd "{tmp_path}"\n{code}', tmp_path)
    assert (done.returncode, done.stdout.split()) == (0, ["gone", "done"]), done.stderr


def test_the_hot_path_is_compiled_beside_the_gateway_only_where_it_can_be(tmp_path: Path) -> None:
    compile_beside = "compiled_key() { echo key; }; can_compile() { false; }; compile_beside"
    assert "build-essential" in shell(compile_beside, tmp_path, GATEHOUSE_COMPILED="1").stderr
    assert shell(compile_beside, tmp_path, GATEHOUSE_COMPILED="0").stderr == ""
    (tmp_path / "venv/.gatehouse-compiled").write_text("key")
    assert shell(compile_beside, tmp_path, GATEHOUSE_COMPILED="1").stderr == ""


def test_a_quickstart_of_the_gateway_alone_builds_no_engine(tmp_path: Path) -> None:
    program(tmp_path / "venv/bin/python", 'echo "$*" >>"$GATEHOUSE_VENV/ran"; exit 0')
    listen = "${GATEHOUSE__LISTEN__DATA:-as configured} ${GATEHOUSE__LISTEN__ADMIN:-as configured}"
    program(tmp_path / "venv/bin/gatehouse", f'echo "$* in $GATEHOUSE_STATE_DIR, $GATEHOUSE__STATE_DIR, at {listen}"')
    (tmp_path / "venv/pyvenv.cfg").write_text("version = 3.12.4\n")
    env = {**os.environ, "GATEHOUSE_VENV": str(tmp_path / "venv"), "XDG_CACHE_HOME": str(tmp_path / "cache"), "GATEHOUSE_COMPILED": "0"}
    env["GATEHOUSE_STATE_DIR"] = "state"

    def start(*arguments: str) -> str:
        command = [str(ROOT / "scripts/quickstart"), *arguments]
        return subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True).stdout.strip()

    shipped = f"serve --config configs/gateway-only.yaml --quickstart in {tmp_path}/state,"  # `--quickstart` reads the variables itself
    assert start("--gateway-only").startswith(shipped)
    own = f"serve --config {tmp_path}/my.yaml in {tmp_path}/state, {tmp_path}/state, at"
    assert start("--gateway-only", "--config", "my.yaml") == f"{own} as configured as configured"
    env |= {"GATEHOUSE_PORT": "1234", "GATEHOUSE_ADMIN_PORT": "1235", "GATEHOUSE__LISTEN__ADMIN": "0.0.0.0:1"}
    assert start("--gateway-only", "--config", "my.yaml") == f"{own} 127.0.0.1:1234 0.0.0.0:1"
    ran = (tmp_path / "venv/ran").read_text()
    assert "requirements/gateway.txt" in ran and "llama" not in ran


def test_no_page_tells_to_install_the_project_from_an_index() -> None:
    pages = [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").glob("*.md"),
        *(p for top in ("gateway", "engines", "admin", "policies") for p in (ROOT / top).rglob("*.py")),
    ]
    assert [page.name for page in pages if re.search(r"pip install ['\"]?gatehouse", page.read_text(encoding="utf-8"))] == []


def test_what_the_compiled_pass_leaves_out_has_no_compiled_module() -> None:
    text = (ROOT / "scripts" / "test").read_text()
    left_out = re.findall(r"--ignore=(\S+?)[\s)]", text)
    assert len(left_out) == len(set(left_out)) >= 4
    for folder in left_out:
        assert (ROOT / folder).is_dir(), folder
        package = re.sub(r"^tests/(unit|contract)/", "", folder)
        source = package if folder.startswith("tests/unit/") else f"gateway/{package}"
        name = source.replace("/", ".")
        assert not [module for module in MODULES if module.startswith(f"{name}.")], folder


def test_the_longest_files_are_handed_out_first() -> None:
    assert "--no-loadscope-reorder" in (ROOT / "scripts" / "test").read_text(), "xdist would order them by their number of tests"
    for prefix in LONGEST_FIRST:
        assert list(ROOT.glob(f"{prefix}*")), prefix


def test_every_file_with_tests_that_run_alone_is_named() -> None:
    mark = re.compile(r"^@pytest\.mark\.alone|^pytestmark = .*alone", re.MULTILINE)
    marked = {path for path in (ROOT / "tests").rglob("test_*.py") if mark.search(path.read_text())}
    listed = re.search(r"^alone=\((.*?)\)", (ROOT / "scripts" / "test").read_text(), re.MULTILINE | re.DOTALL)
    assert listed is not None and {ROOT / name for name in listed[1].split()} == marked


# --- known vulnerabilities -------------------------------------------------------------------------------------------

KNOWS = 'echo "jinja2 2.4.1 PYSEC-2014-82"; exit 1'


@pytest.mark.parametrize(
    ("canary", "ours", "code", "said"),
    [
        (KNOWS, "exit 0", 0, "requirements/server.txt: no known vulnerability"),
        (KNOWS, 'echo "x 1.0 GHSA-1"; exit 1', 1, "x 1.0 GHSA-1"),
        (KNOWS, "exec sleep 600", 1, "requirements/llama.txt: NOT CHECKED, the service failed or took longer than 2 s"),
        ("exit 0", "exit 0", 0, "NOT CHECKED for known vulnerabilities"),
        ("exit 3", "exit 0", 0, "NOT CHECKED for known vulnerabilities"),
    ],
    ids=["none", "one", "silence", "a service that knows nothing", "no service"],
)
def test_the_audit_says_what_it_found_and_what_it_could_not_ask(tmp_path: Path, canary: str, ours: str, code: int, said: str) -> None:
    looked_up = [f"requirements/{name}.txt" for name in ("server", "llama", "onnx-gpu", "onnx-openvino", "genai")]
    for name in ("scripts/audit", "scripts/lib.sh", "requirements/audit.txt", *looked_up):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    installed = tmp_path / ".venv-audit"
    program(installed / "bin" / "cyclonedx-py", f'echo \'{{"components": []}}\' >{tmp_path}/sbom.json; cp "$2" {tmp_path}/listed.txt')
    program(installed / "bin" / "pip-audit", f'case "$*" in *requirements/*) {ours} ;; *) {canary} ;; esac')
    (installed / "bin" / "python").symlink_to(sys.executable)
    digest = hashlib.sha256((ROOT / "requirements" / "audit.txt").read_bytes()).hexdigest()
    (installed / ".gatehouse-audit").write_text(digest + "\n")
    command = [str(tmp_path / "scripts" / "audit"), "--to", str(tmp_path / "sbom.json")]
    environ = {**os.environ, "GATEHOUSE_AUDIT_SECONDS": "2" if "sleep" in ours else "50"}
    done = subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, said in done.stdout + done.stderr) == (code, True), done.stdout + done.stderr
    listed, (llama,) = pins(tmp_path / "listed.txt"), pins(ROOT / "requirements/llama.txt").items()
    assert listed == dict([*pins(ROOT / "requirements/server.txt").items(), llama]), "the packages of an image with engines"
    if said.endswith("no known vulnerability"):
        assert [name for name in looked_up if f"{name}: no known vulnerability" not in done.stderr] == []
