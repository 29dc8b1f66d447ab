# shellcheck shell=bash
# Shared by the scripts in this folder: finding Python, the environment in .venv, hash-checked installs, system
# packages, and the one build of llama-cpp-python. Source it; it changes nothing by itself.
#
# GATEHOUSE_PYTHON      the Python to make .venv with (else the first of python3, python3.14 .. python3.11, /usr/bin/python3 that was built
#                       with optimisations, else the first of them)
# GATEHOUSE_COMPILED    0: the hot path is not compiled
# GATEHOUSE_VENV        where the environment lives (else .venv)
# GATEHOUSE_CMAKE_ARGS  added to the CMake flags of llama.cpp, for instance -DGGML_CUDA=on
# XDG_CACHE_HOME        built wheels are kept in $XDG_CACHE_HOME/gatehouse (else ~/.cache/gatehouse)

ROOT="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)"
VENV="${GATEHOUSE_VENV:-$ROOT/.venv}"
CACHE="${XDG_CACHE_HOME:-$HOME/.cache}/gatehouse"

say() { printf '%s\n' "$*" >&2; }
die() {
    say "error: $*"
    exit 1
}

# --- system packages ---------------------------------------------------------------------------------------------

# as_root COMMAND...: runs it as root, through sudo if needed; status 1 without running it if neither is possible.
as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
        sudo "$@"
    else
        return 1
    fi
}

# Packages start their services when installed unless a policy says no. Ours are started by the tests, on free ports.
without_services() {
    local policy=/usr/sbin/policy-rc.d status=0 ours=""
    if [ ! -e "$policy" ]; then
        ours=yes
        printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
        as_root chmod 755 "$policy"
    fi
    "$@" || status=$?
    [ -z "$ours" ] || as_root rm -f "$policy"
    return "$status"
}

# install_packages NAME...: Debian packages, without recommended ones. Names the missing ones and fails if it may not install them.
install_packages() {
    [ $# -gt 0 ] || return 0
    command -v apt-get >/dev/null || die "missing: $*. apt-get is not available: install these packages' equivalents, then run this again"
    as_root true || die "missing: $*. Run: sudo apt-get install $*"
    say "installing system packages: $*"
    as_root apt-get update -q >/dev/null || say "warning: apt-get update failed; going on with the existing lists"
    without_services as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@" >/dev/null ||
        die "apt-get could not install: $*"
}

MISSING=()

# needs PACKAGE SIGN...: adds the Debian package to MISSING unless one of the signs, commands or files, is there.
needs() {
    local package="$1" sign
    shift
    for sign in "$@"; do
        if command -v "$sign" >/dev/null || compgen -G "$sign" >/dev/null; then return 0; fi
    done
    MISSING+=("$package")
}

# The servers of a cluster (tests/cluster); they are started by whoever uses them, on free ports.
needs_servers() {
    needs redis-server redis-server
    needs postgresql '/usr/lib/postgresql/*/bin/initdb' initdb
    needs haproxy haproxy /usr/sbin/haproxy
}

# --- Python ------------------------------------------------------------------------------------------------------

# Status 0 for a Python that was built with profile-guided optimisation: it says so itself, or is the distribution's on Debian and Ubuntu,
# which notes the arguments of another of its builds. A gateway under a plain build serves up to a fifth less.
OPTIMISED='
import os, sys, sysconfig
own = os.path.exists("/etc/debian_version") and os.path.realpath(sys.executable).startswith("/usr/bin/")
sys.exit(not own and "--enable-optimizations" not in (sysconfig.get_config_var("CONFIG_ARGS") or ""))'

# The distribution's own, which may not be first in the PATH.
SYSTEM_PYTHON=/usr/bin/python3

# Status 0 when environments can be made with this Python, now or after its package was installed.
can_make_venv() { "$1" -c 'import ensurepip, venv' 2>/dev/null || { command -v apt-get && as_root true; } >/dev/null 2>&1; }

find_python() {
    local candidate first=""
    for candidate in ${GATEHOUSE_PYTHON:+"$GATEHOUSE_PYTHON"} python3 python3.14 python3.13 python3.12 python3.11 "$SYSTEM_PYTHON"; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            first="${first:-$candidate}"
            if [ "$candidate" = "${GATEHOUSE_PYTHON:-}" ] || { "$candidate" -c "$OPTIMISED" && can_make_venv "$candidate"; }; then
                command -v "$candidate"
                return
            fi
        fi
    done
    if [ -n "$first" ]; then
        command -v "$first"
        return
    fi
    die "Python 3.11 or later is needed, and none was found as python3 or python3.11 .. python3.14. On Debian 12, Ubuntu 24.04 and" \
        "later: apt-get install python3 python3-venv. Another one: GATEHOUSE_PYTHON=/path/to/python3"
}

ensure_venv() {
    [ ! -x "$VENV/bin/python" ] || return 0
    local python
    python="$(find_python)"
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        install_packages "$("$python" -c 'import sys; print(f"python{sys.version_info[0]}.{sys.version_info[1]}-venv")')"
    fi
    say "making $VENV with $("$python" --version)"
    "$python" -m venv "$VENV"
}

pip() { "$VENV/bin/python" -m pip --disable-pip-version-check "$@"; }

# digest FILE...: one SHA-256 over the contents of the files.
digest() { cat -- "$@" | sha256sum | cut -c1-64; }

# once NAME VALUE COMMAND...: runs the command unless it succeeded in this environment for the same value. The command runs
# where `set -e` is off (the left side of ||), so each of its steps must handle its own failure.
once() {
    local stamp="$VENV/.gatehouse-$1" value="$2"
    shift 2
    if [ -r "$stamp" ] && [ "$(<"$stamp")" = "$value" ]; then return 0; fi
    "$@" || return
    printf '%s\n' "$value" >"$stamp"
}

# --- llama-cpp-python --------------------------------------------------------------------------------------------

# The flags of the build. A native build uses AMX where the CPU advertises it, and crashed there in llama_decode. The other
# instruction sets are named one by one, on or off as this CPU has them: ggml's own default without GGML_NATIVE turns them on
# everywhere, or off everywhere where SOURCE_DATE_EPOCH is set. Each is listed with all the CPU features that it needs; the
# AVX-512 ones were measured: a tenth to a fifth faster. The multimodal library is a third of the build; nothing here loads it.
# Arguments, for tests: another list of features, another machine.
llama_cmake_args() {
    local args="-DGGML_NATIVE=OFF -DLLAVA_BUILD=OFF" cpu="${1:-/proc/cpuinfo}" machine="${2:-$(uname -m)}" flags feature flag option choice
    if [ "$machine" = x86_64 ] && [ -r "$cpu" ]; then
        flags=" $(sed -n '/^flags/{s/^[^:]*: *//p;q}' "$cpu") "
        for feature in sse4_2:SSE42 avx:AVX avx2:AVX2 bmi2:BMI2 fma:FMA f16c:F16C \
            avx512f+avx512cd+avx512vl+avx512dq+avx512bw:AVX512 avx512f+avx512_vbmi:AVX512_VBMI avx512f+avx512_vnni:AVX512_VNNI \
            avx512f+avx512_bf16:AVX512_BF16 avx_vnni:AVX_VNNI; do
            option=ON flag="${feature%:*}"
            for flag in ${flag//+/ }; do
                if [[ $flags != *" $flag "* ]]; then option=OFF; fi
            done
            args+=" -DGGML_${feature#*:}=$option"
        done
    fi
    for choice in "$VENV"/.gatehouse-{cuda,vulkan}; do
        if [ -r "$choice" ]; then args+=" $(sed 's/ toolkit=.*//' "$choice")"; fi
    done
    printf '%s' "$args${GATEHOUSE_CMAKE_ARGS:+ $GATEHOUSE_CMAKE_ARGS}"
}

# --- Vulkan ------------------------------------------------------------------------------------------------------

# vulkan_settings: what llama.cpp is built with for Vulkan devices, and the release of the headers, which belongs to the build's name in the
# cache: `-DGGML_VULKAN=ON toolkit=1.4.309`. Dies where something is missing, or too old. GATEHOUSE_VULKAN_HEADERS names a folder with newer
# headers (the folder that has `vulkan/vulkan.hpp`) than the system's.
vulkan_settings() {
    local headers="${GATEHOUSE_VULKAN_HEADERS:-}" defined release
    command -v glslc >/dev/null || die "glslc is missing, which compiles the shaders (Debian: glslc)"
    if [ -n "$headers" ] && [ ! -r "$headers/vulkan/vulkan.hpp" ]; then
        die "GATEHOUSE_VULKAN_HEADERS=$headers: there is no vulkan/vulkan.hpp in it"
    fi
    ensure_compiler
    defined="$(cc ${headers:+-I"$headers"} -E -dM -x c - 2>/dev/null <<<'#include <vulkan/vulkan_core.h>')" ||
        die "the headers of Vulkan are missing (Debian: libvulkan-dev)"
    release="$(sed -n 's/^#define VK_HEADER_VERSION_COMPLETE VK_MAKE_API_VERSION([0-9]*, *\([0-9]*\), *\([0-9]*\),.*/\1.\2/p' <<<"$defined")"
    release+=".$(sed -n 's/^#define VK_HEADER_VERSION \([0-9]*\)$/\1/p' <<<"$defined")"
    grep -q '^#define VK_EXT_layer_settings ' <<<"$defined" ||
        die "the headers of Vulkan are of release $release, which is too old for llama.cpp (they lack VK_EXT_layer_settings; Debian 13 has" \
            "1.4.309, which are enough). Newer headers may lie in any folder: GATEHOUSE_VULKAN_HEADERS=/path/to/include ./scripts/install --vulkan"
    c++ -E -x c++ - >/dev/null 2>&1 <<<'#include <spirv/unified1/spirv.hpp>' || die "the headers of SPIR-V are missing (Debian: spirv-headers)"
    cc -x c - -lvulkan -o /dev/null >/dev/null 2>&1 <<<'int main(void) { return 0; }' || die "libvulkan.so is missing (Debian: libvulkan-dev)"
    printf '%s' "-DGGML_VULKAN=ON${headers:+ -DVulkan_INCLUDE_DIR=$headers} toolkit=$release"
}

# --- NVIDIA GPUs -------------------------------------------------------------------------------------------------

# cuda_settings: what llama.cpp is built with for NVIDIA GPUs, and the toolkit's release, which belongs to the build's name in the cache:
# `-DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=90-real ... toolkit=12.8`. Dies where toolkit, driver and GPUs do not fit each other.
cuda_settings() {
    local nvcc release list architecture architectures="" driver
    nvcc="$(command -v nvcc)" || nvcc=/usr/local/cuda/bin/nvcc
    [ -x "$nvcc" ] || die "the CUDA toolkit is missing: no nvcc on the path or in /usr/local/cuda/bin (Debian: nvidia-cuda-toolkit)"
    release="$("$nvcc" --version | sed -n 's/.*release \([0-9]*\.[0-9]*\).*/\1/p')"
    [ -n "$release" ] || die "$nvcc does not tell its release"
    "$nvcc" -E -x cu - >/dev/null 2>&1 <<<'#include <cublas_v2.h>' ||
        die "the CUDA toolkit of $nvcc has no cuBLAS for developers (cublas_v2.h); NVIDIA's package is libcublas-dev-${release/./-}"
    list="${GATEHOUSE_CUDA_ARCHITECTURES:-}"
    if [ -z "$list" ]; then
        list="$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d '. ' | sort -un)" || list=""
        [ -n "$list" ] || die "no NVIDIA GPU answers (nvidia-smi); to build for another machine, set GATEHOUSE_CUDA_ARCHITECTURES=\"80;90\""
        driver="$(nvidia-smi | sed -n 's/.*CUDA Version: *\([0-9]*\)\..*/\1/p')"
        if [ -n "$driver" ] && [ "${release%%.*}" -gt "$driver" ]; then
            die "the toolkit is CUDA $release, but this driver runs CUDA up to $driver: update the driver, or use a toolkit of CUDA $driver"
        fi
    fi
    for architecture in ${list//;/ }; do
        [[ $architecture =~ ^[0-9]{2,3}$ ]] || die "GATEHOUSE_CUDA_ARCHITECTURES: $architecture is no compute capability; 90 is that of an H100"
        cuda_knows "$release" "$architecture" || die "CUDA $release cannot build for compute capability $architecture; use a newer toolkit"
        # Machine code only: without `-real` code for later GPUs is kept as well, which doubles the build.
        architectures+="${architectures:+;}$architecture-real"
    done
    printf '%s' "-DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=$architectures -DCMAKE_CUDA_COMPILER=$nvcc toolkit=$release"
}

# cuda_knows RELEASE ARCHITECTURE: whether this toolkit can build for it (the release notes of CUDA 11.8, 12.8 and 13.0).
cuda_knows() {
    local release=$((${1%%.*} * 100 + ${1#*.}))
    if [ "$2" -ge 100 ]; then [ "$release" -ge 1208 ]; elif [ "$2" -ge 89 ]; then [ "$release" -ge 1108 ]; else
        [ "$2" -ge 75 ] || [ "$release" -lt 1300 ]
    fi
}

# install_for_gpu FILE: the pinned packages with onnxruntime-gpu in the place of onnxruntime; both beside each other disable CUDA.
install_for_gpu() {
    install_pinned "$1" || return
    pip uninstall -qq -y onnxruntime onnxruntime-gpu || return # they share files: what stays of one would be missed by the other
    install_pinned "$ROOT/requirements/onnx-gpu.txt"
}

# install_for_openvino FILE: the same with onnxruntime-openvino.
install_for_openvino() {
    install_pinned "$1" || return
    pip uninstall -qq -y onnxruntime onnxruntime-openvino || return
    install_pinned "$ROOT/requirements/onnx-openvino.txt"
}

# Patches applied to the source before it is built; each says why. The source is pinned by its hash, so they fit exactly or not at all.
LLAMA_PATCHES=("$ROOT"/scripts/patches/llama-*.patch)

# The name of the build in the cache: what was built (version, hash, changes), with what, for which Python and platform.
llama_key() {
    local version python
    version="$(sed -n 's/^llama-cpp-python==\([0-9.]*\).*/\1/p' "$ROOT/requirements/llama.txt")"
    python="$(sed -n 's/^version *= *\([0-9]*\.[0-9]*\).*/\1/p' "$VENV/pyvenv.cfg")"
    printf '%s-py%s-%s-%s-%s' "$version" "$python" "$(uname -s)" "$(uname -m)" \
        "$( (cat "$ROOT/requirements/llama.txt" "$ROOT/requirements/llama-build.txt" "${LLAMA_PATCHES[@]}"; llama_cmake_args
            cat "$VENV"/.gatehouse-{cuda,vulkan} 2>/dev/null || true) |
            sha256sum | cut -c1-12)"
}

ensure_compiler() {
    if command -v cc >/dev/null && command -v c++ >/dev/null && command -v patch >/dev/null; then return 0; fi
    say "llama.cpp is built from source and needs a C and a C++ compiler, and patch"
    install_packages build-essential patch
}

# told_of_build PID DIRECTORY: says how far Ninja has come in this build directory, and about how long it will take, until the directory or
# the process PID is gone.
told_of_build() {
    local owner="$1" directory="$2" all="" made began=$SECONDS told=$SECONDS left
    while kill -0 "$owner" 2>/dev/null && { [ -z "$all" ] || [ -d "$directory" ]; }; do
        sleep 1
        if [ -z "$all" ] && [ -e "$directory/.ninja_log" ]; then
            all="$(grep -c '^build .*\.o: ' "$directory/build.ninja")" began=$SECONDS
        fi
        if [ -z "$all" ] || [ $((SECONDS - told)) -lt "${GATEHOUSE_TELL:-15}" ]; then continue; fi
        made="$(grep -c '\.o[[:space:]]' "$directory/.ninja_log" 2>/dev/null)" || continue
        if [ "$made" -gt 0 ] && [ "$made" -lt "$all" ]; then
            left=$(((SECONDS - began) * (all - made) / made))
            say "  $((100 * made / all)) %, about $((left / 60)) min $((left % 60)) s left"
        fi
        told=$SECONDS
    done
}

# fetch_llama DIRECTORY: the hash-checked source as its authors publish it, in DIRECTORY/source, and the hash-checked tools that build it, in
# DIRECTORY/tools.
fetch_llama() {
    local work="$1"
    "$VENV/bin/python" -m venv "$work/tools" || die "no environment for the build in $work"
    "$work/tools/bin/python" -m pip install -qq --disable-pip-version-check --no-deps --require-hashes \
        --only-binary :all: -r "$ROOT/requirements/llama-build.txt" || die "the tools that build llama-cpp-python could not be installed"
    PATH="$work/tools/bin:$PATH" "$work/tools/bin/python" -m pip download -qq --disable-pip-version-check --no-build-isolation --no-deps \
        --no-binary llama-cpp-python --require-hashes -r "$ROOT/requirements/llama.txt" -d "$work" ||
        die "the source of llama-cpp-python could not be downloaded"
    mkdir -- "$work/source"
    tar -xzf "$work"/llama_cpp_python-*.tar.gz --strip-components 1 -C "$work/source" || die "the source of llama-cpp-python cannot be unpacked"
}

# build_llama DIRECTORY: builds the wheel from the hash-checked source, under hash-checked tools, into DIRECTORY, all or nothing.
build_llama() {
    local target="$1" work change started=$SECONDS owner=$BASHPID
    ensure_compiler
    work="$(mktemp -d "$CACHE/wheels/.build.XXXXXX")"
    # The trap's text is expanded now: `work` is gone when it runs.
    # shellcheck disable=SC2064
    trap "rm -rf -- '$work'" EXIT
    say "building llama-cpp-python, once (two to three minutes on 2 cores): $(llama_cmake_args)"
    fetch_llama "$work"
    for change in "${LLAMA_PATCHES[@]}"; do
        patch -d "$work/source" -p1 --fuzz=0 -s <"$change" || die "$change does not fit the source of llama-cpp-python"
    done
    told_of_build "$owner" "$work/build" &
    # Without pip's cache: it would hand out a wheel that was built with other flags.
    PATH="$work/tools/bin:$PATH" CMAKE_ARGS="$(llama_cmake_args)" CMAKE_BUILD_PARALLEL_LEVEL="$(getconf _NPROCESSORS_ONLN)" \
        "$work/tools/bin/python" -m pip wheel -qq --disable-pip-version-check --no-cache-dir --no-build-isolation --no-deps \
        --config-settings build-dir="$work/build" "$work/source" -w "$work/wheel" || die "llama-cpp-python did not build; the compiler's message is above"
    mv -- "$work/wheel" "$target" || die "could not move the wheel to $target"
    rm -rf -- "$work"
    trap - EXIT
    say "built in $((SECONDS - started)) s, kept in $target"
}

install_llama() {
    local directory="$1" wheels
    mkdir -p "$CACHE/wheels"
    (
        flock 9 # one build at a time; the next one finds it done
        [ -d "$directory" ] || build_llama "$directory"
    ) 9>"$CACHE/wheels/.lock" || return
    wheels=("$directory"/llama_cpp_python-*.whl)
    pip install -qq --no-deps --no-index --force-reinstall "${wheels[0]}" || return
    "$VENV/bin/python" -c 'import llama_cpp; llama_cpp.llama_backend_init()' || die "llama-cpp-python was built but does not load"
}

# --- the hot path, compiled ----------------------------------------------------------------------------------------

# The build's dependencies, roughly: the build itself records each file, and is not used when one of them has changed.
compiled_key() {
    local sources
    mapfile -t sources < <(printf '%s\n' "$ROOT/scripts/compile.py" "$ROOT/gateway/app/compiled.py" "$ROOT/requirements/build.txt"
        find "$ROOT/gateway" "$ROOT/policies" -name '*.py' -not -path '*/app/*' -not -path '*/store/*' -not -path '*/config/*' | LC_ALL=C sort)
    printf '%s-%s' "$(sed -n 's/^version *= *\([0-9.]*\).*/\1/p' "$VENV/pyvenv.cfg")" "$(digest "${sources[@]}")"
}

# Status 0 if a C compiler and the headers of the environment's Python are installed.
can_compile() {
    command -v cc >/dev/null && "$VENV/bin/python" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'
}

# needs_compiler: installs a C compiler and Python's headers if need be; status 1 where they are missing and may not be installed.
needs_compiler() {
    if can_compile; then return 0; fi
    if ! { command -v apt-get && as_root true; } >/dev/null 2>&1; then return 1; fi
    install_packages build-essential "$("$VENV/bin/python" -c 'import sys; print(f"python{sys.version_info[0]}.{sys.version_info[1]}-dev")')"
}

# install_compiled KEY: builds once, keeps the build, and puts it where gateway/app/compiled.py looks. Without a compiler or the headers of
# Python, and without the right to install them, the sources run as they are.
install_compiled() {
    if [ ! -d "$CACHE/compiled/$1" ] && ! needs_compiler; then
        say "warning: the C compiler or Python.h is missing: the hot path runs from its sources, slower"
        return 0
    fi
    build_compiled "$1"
}

# compile_once KEY: compiles into the cache, unless it is there already; a compiler is known to be installed.
compile_once() {
    local directory="$CACHE/compiled/$1"
    if [ -d "$directory" ]; then return 0; fi
    say "compiling the hot path, once (two to three minutes)"
    "$VENV/bin/python" "$ROOT/scripts/compile.py" "$directory" || die "the hot path did not compile; the reason is above (GATEHOUSE_COMPILED=0 goes on without)"
}

# build_compiled KEY: the same as install_compiled if a compiler is known to be installed.
build_compiled() {
    local directory="$CACHE/compiled/$1" target
    compile_once "$1"
    target="$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')/gatehouse_compiled"
    # A gateway that starts meanwhile sees the old build or the new one, never half of one.
    rm -rf -- "$target.new"
    cp -R -- "$directory" "$target.new"
    rm -rf -- "$target"
    mv -- "$target.new" "$target"
}

# compile_beside: compiles the hot path in the background while this process goes on to serve from the sources; the next start uses the
# build. It ends with this process. Installs nothing: without a compiler it says so.
compile_beside() {
    local key log="$CACHE/compile.log"
    if [ "${GATEHOUSE_COMPILED:-1}" = 0 ]; then return 0; fi
    key="$(compiled_key)"
    if [ -r "$VENV/.gatehouse-compiled" ] && [ "$(<"$VENV/.gatehouse-compiled")" = "$key" ]; then return 0; fi
    if [ ! -d "$CACHE/compiled/$key" ] && ! can_compile; then
        say "the hot path runs from its sources, slower: the C compiler or Python.h is missing (Debian: build-essential and python3-dev)"
        return 0
    fi
    say "this start serves from the sources; the hot path is being compiled in the background for the next start (log: $log)"
    # Two forks: what ends here is reaped by init, not by the gateway that this shell becomes.
    ( ( beside "$$" once compiled "$key" build_compiled "$key" >"$log" 2>&1 ) & )
}

# beside PID COMMAND...: runs the command in a process group of its own, at low priority, and ends the group when the process PID ends.
beside() {
    local owner="$1" job
    shift
    set -m
    ( set +m; renice -n 10 -p "$BASHPID" >/dev/null; "$@" ) &
    job=$!
    while kill -0 "$job" 2>/dev/null; do
        if ! kill -0 "$owner" 2>/dev/null; then
            kill -TERM -- "-$job" 2>/dev/null
            break
        fi
        sleep 0.5
    done
    wait "$job" 2>/dev/null || true
}

# --- the environment ---------------------------------------------------------------------------------------------

# install_pinned FILE: the files under requirements/ are complete, so pip resolves nothing. Pip 23, which Debian 12 has, would: it looks for the
# newest release of what is asked for with an extra, and fails on the day that one newer than the pin comes out.
install_pinned() {
    say "installing the packages of requirements/$(basename -- "$1")"
    pip install -qq --no-deps --require-hashes --only-binary :all: -r "$1"
}

install_project() { pip install -qq --no-deps --no-build-isolation --no-index -e "$ROOT"; }

# ensure_python NAME: .venv with requirements/NAME.txt and the project's build tools.
ensure_python() {
    local requirements="$ROOT/requirements/$1.txt"
    ensure_venv
    if [ -r "$VENV/.gatehouse-cuda" ] && grep -q '^onnxruntime==' "$requirements"; then
        once "$1" "$(digest "$requirements" "$ROOT/requirements/onnx-gpu.txt") cuda" install_for_gpu "$requirements"
    elif [ -r "$VENV/.gatehouse-openvino" ] && grep -q '^onnxruntime==' "$requirements"; then
        once "$1" "$(digest "$requirements" "$ROOT/requirements/onnx-openvino.txt") openvino" install_for_openvino "$requirements"
    else
        once "$1" "$(digest "$requirements")" install_pinned "$requirements"
    fi
    if [ -r "$VENV/.gatehouse-with-genai" ] && grep -q '^onnxruntime==' "$requirements"; then
        once genai "$(digest "$requirements" "$ROOT/requirements/genai.txt")" install_pinned "$ROOT/requirements/genai.txt"
    fi
    once build "$(digest "$ROOT/requirements/build.txt")" install_pinned "$ROOT/requirements/build.txt"
}

# ensure_serving NAME [engines]: .venv with requirements/NAME.txt and the project, and llama-cpp-python where engines are asked for, without the
# compiled hot path. What is there already is left alone; that costs some tens of milliseconds.
ensure_serving() {
    mkdir -p "$CACHE"
    exec 8>"$CACHE/.lock"
    flock 8 # two scripts started together install once
    ensure_python "$1"
    if [ "${2:-}" = engines ]; then once llama "$(llama_key)" install_llama "$CACHE/wheels/$(llama_key)"; fi
    once project "$(digest "$ROOT/pyproject.toml") $ROOT" install_project
    exec 8>&-
}

# ensure_dependencies NAME: .venv with requirements/NAME.txt, the project's build tools, and llama-cpp-python.
ensure_dependencies() {
    ensure_python "$1"
    once llama "$(llama_key)" install_llama "$CACHE/wheels/$(llama_key)"
}

# ensure_environment NAME: the same with the project itself and the compiled hot path. What is there already is left alone.
ensure_environment() {
    mkdir -p "$CACHE"
    exec 8>"$CACHE/.lock"
    flock 8
    ensure_dependencies "$1"
    once project "$(digest "$ROOT/pyproject.toml") $ROOT" install_project
    if [ "${GATEHOUSE_COMPILED:-1}" != 0 ]; then
        local key
        key="$(compiled_key)"
        once compiled "$key" install_compiled "$key"
    fi
    exec 8>&-
}

# --- tests -------------------------------------------------------------------------------------------------------

PASSES=0

# run_pass WHAT ARGUMENT...: one run of pytest. PASSES becomes the exit code of the first one that failed; later ones still run.
run_pass() {
    local what="$1" code=0
    shift
    say "== $what"
    "$VENV/bin/python" -m pytest --tb=short "$@" || code=$?
    if [ "$code" != 0 ]; then say "== exit code $code: $what"; fi
    if [ "$PASSES" = 0 ]; then PASSES="$code"; fi
}
