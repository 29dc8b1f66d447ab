"""What a process that parses model files may still do: it confines itself before it opens the first of them.

- `no_new_privs` (prctl(2)): no program that it starts gains rights.
- Capabilities (capabilities(7)): of root's it keeps those to read files and to lock memory. With the others it could read the gateway's
  memory and environment in spite of everything else.
- Limits (setrlimit(2)): no core dump, which would hold prompts; a bound on descriptors.
- Landlock (landlock(7), Linux 5.13), where the kernel has it: it reads its model and the libraries it is made of, writes only to its
  own folders and starts no program. From Landlock's version 4 on it opens no TCP connection. Processes outside of its domain, the
  gateway first, are out of its reach.
- Where Landlock does not enforce that, each process hides its own memory and environment from the others of its user (`hide`). The gateway
  does so on every kernel.

A restriction holds for the calling thread and those that it starts: `confine` belongs at the start of a process. None of it needs
rights.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import stat
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

MAX_DESCRIPTORS: Final = 16_384
_NO_NEW_PRIVS: Final = 38
_SET_DUMPABLE: Final = 4
_CAPABILITIES_V3: Final = 0x20080522
KEPT: Final = {2: "dac_read_search", 14: "ipc_lock"}
"""Numbers and names of the capabilities that are kept where the process has them."""
_CREATE, _ADD, _RESTRICT = 444, 445, 446
"""Numbers of the system calls, the same on every architecture."""
_VERSION: Final = 1
_PATH_BENEATH: Final = 1
_NET_PORT: Final = 2
_TCP: Final = 0b11
"""Listening on a TCP port, and connecting to one."""
_EXECUTE, _WRITE, _READ, LISTING = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_FOLDER, _REMOVE_FILE, _MAKE_FOLDER, _MAKE_FILE, _MAKE_SOCKET = 1 << 4, 1 << 5, 1 << 7, 1 << 8, 1 << 9
_TRUNCATE, _DEVICE = 1 << 14, 1 << 15
_FILE: Final = _EXECUTE | _WRITE | _READ | _TRUNCATE | _DEVICE
"""The rights that a file can have; the others are of folders."""
_HANDLED: Final = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""Version of Landlock -> how many rights to files it knows."""
READING: Final = _READ | LISTING
WRITING: Final = READING | _WRITE | _REMOVE_FILE | _REMOVE_FOLDER | _MAKE_FOLDER | _MAKE_FILE | _MAKE_SOCKET | _TRUNCATE
DRIVING: Final = READING | _WRITE | _DEVICE
OURS: Final = Path(__file__).parents[1]
_SYSTEM: Final = (
    *("/usr", "/lib", "/lib32", "/lib64", "/nix/store", "/opt/rocm", "/opt/nvidia", "/opt/amdgpu", "/proc", "/sys"),
    *("/etc/ld.so.cache", "/etc/ld.so.preload", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime", "/etc/timezone"),
    *("/etc/nsswitch.conf", "/etc/passwd", "/etc/group", "/etc/OpenCL", "/etc/vulkan", "/etc/glvnd", "/run/nvidia-persistenced"),
)
"""What libraries read of a system."""
_PROGRAMS: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store")
"""Where a system has its programs."""
OWN_THREADS: Final = Path("/proc/self/task")
"""NVIDIA's driver names its threads in their `comm` here, and fails (CUDA_ERROR_OPERATING_SYSTEM) where it cannot; nothing else of these
files concerns another process."""
_GPU_FILES: Final = ("nvidia*", "nvhost*", "nvmap", "dxg", "dri", "kfd")


@dataclass(frozen=True, slots=True)
class Confinement:
    """What is in force. landlock: the version that the kernel enforces, 0 for none; reason: why none. threads: of the process when it
    confined itself, which is all that a restriction covers when it is 1."""

    no_new_privs: bool = False
    descriptors: int = 0
    capabilities: tuple[str, ...] = ()
    landlock: int = 0
    threads: int = 1
    reason: str | None = None
    network: str = "none"

    def report(self) -> dict[str, Any]:
        """As health shows it."""
        return {
            "no_new_privs": self.no_new_privs, "capabilities": list(self.capabilities), "core_dumps": False,
            "descriptors": self.descriptors, "landlock": self.landlock,
            "network": self.network if self.landlock >= 4 else "unrestricted", "reason": self.reason,
        }  # fmt: skip


def confine(
    *,
    reads: Iterable[Path] = (),
    writes: Iterable[Path] = (),
    devices: bool = False,
    files: bool = True,
    executes: Iterable[Path] = (),
    ports: Sequence[int] | None = (),
) -> Confinement:
    """Confines this process for good.

    reads, writes: files and folders beside those that its libraries need; what does not exist is passed over. devices: it drives GPUs.
    files: whether to restrict access to files where the kernel can. executes: programs, or folders of them, that it may start beside those
    of the system; none at all if empty. ports: the TCP ports that it may use; None: all.
    """
    library = ctypes.CDLL(None, use_errno=True)
    privileges = sys.platform == "linux" and library.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    descriptors = limit()
    if sys.platform != "linux":
        return Confinement(privileges, descriptors, reason="this system has no Landlock")
    kept = _drop(library)
    threads = len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 1
    if not files:
        hide()
        return Confinement(privileges, descriptors, kept, threads=threads, reason="switched off by options.confine")
    version = library.syscall(_CREATE, None, 0, _VERSION)
    if version < 1 or not privileges:
        # A kernel without it says ENOSYS or EOPNOTSUPP.
        refused = version < 1 and ctypes.get_errno() == errno.EPERM
        hide()
        reason = "a filter of system calls refuses Landlock" if refused else "this kernel does not offer Landlock"
        return Confinement(privileges, descriptors, kept, threads=threads, reason=reason)
    places = [*((path, READING) for path in (*_libraries(), *reads)), *((path, WRITING) for path in writes), *device_files()]
    if devices:
        places += [*gpu_files(), *((path, WRITING) for path in _compiled_kernels()), (OWN_THREADS, _WRITE | _TRUNCATE)]
    if programs := [*executes]:
        places += [(path, READING | _EXECUTE) for path in (*programs, *map(Path, _PROGRAMS), *_environments())]
    failed = _restrict(library, version, places, ports)
    if failed:
        hide()
    network = "none" if ports == () else "unrestricted" if ports is None else f"port {', '.join(map(str, ports))}"
    return Confinement(privileges, descriptors, kept, 0 if failed else version, threads, failed, network)


def hide() -> bool:
    """Whether other processes of the user can no longer read this one's memory and environment or trace it (prctl(2), PR_SET_DUMPABLE).

    Its files under /proc belong to root from now on. It leaves no core dump, and a debugger needs CAP_SYS_PTRACE. The programs that it
    starts are readable again until they hide themselves.
    """
    if sys.platform != "linux":
        return False
    return bool(ctypes.CDLL(None, use_errno=True).prctl(_SET_DUMPABLE, 0, 0, 0, 0) == 0)


def rather_me(more: int = 500) -> None:
    """Where memory runs out, the kernel ends this process, and those that it starts, before the gateway (proc_pid_oom_score_adj(5)). Call
    it before `confine`."""
    place = Path("/proc/self/oom_score_adj")
    with suppress(OSError, ValueError):
        place.write_text(str(min(1000, int(place.read_text()) + more)))


def limit(most: int = MAX_DESCRIPTORS) -> int:
    """No core dumps, at most so many descriptors; how many there may be."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    bound = most if hard == resource.RLIM_INFINITY else min(hard, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (bound, bound))
    return bound


def _drop(library: Any) -> tuple[str, ...]:
    """Gives up all capabilities but KEPT; returns the names of those left."""
    header = ctypes.create_string_buffer(struct.pack("=Ii", _CAPABILITIES_V3, 0), 8)
    data = ctypes.create_string_buffer(24)
    if library.capget(header, data) != 0:
        return ("unknown",)
    _effective, low, _inheritable, _, high, _ = struct.unpack("=6I", data.raw)
    if not low and not high:
        return ()  # a filter of system calls may refuse what would change nothing
    kept = (low | high << 32) & sum(1 << number for number in KEPT)
    words = (kept & 0xFFFFFFFF, kept & 0xFFFFFFFF, 0, kept >> 32, kept >> 32, 0)
    if library.capset(header, struct.pack("=6I", *words)) != 0:
        return ("unchanged",)
    return tuple(name for number, name in KEPT.items() if kept >> number & 1)


def _restrict(library: Any, version: int, places: Iterable[tuple[Path, int]], ports: Sequence[int] | None) -> str | None:
    """Why it did not work; None when it did."""
    handled = (1 << _HANDLED.get(version, 16)) - 1
    attributes = struct.pack("=QQQ", handled, _TCP if version >= 4 and ports is not None else 0, 0b11 if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = library.syscall(_CREATE, attributes, size, 0)
    if ruleset < 0:
        return f"landlock_create_ruleset: {os.strerror(ctypes.get_errno())}"
    try:
        for path, rights in places:
            _allow(library, ruleset, path, rights & handled)
        for port in (ports or ()) if version >= 4 else ():
            library.syscall(_ADD, ruleset, _NET_PORT, struct.pack("=QQ", _TCP, port), 0)
        if library.syscall(_RESTRICT, ruleset, 0) != 0:
            return f"landlock_restrict_self: {os.strerror(ctypes.get_errno())}"
    finally:
        os.close(ruleset)
    return None


def _allow(library: Any, ruleset: int, path: Path, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # it is not there, so there is nothing to allow
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= _FILE
        library.syscall(_ADD, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, descriptor), 0)
    finally:
        os.close(descriptor)


def _libraries() -> Iterator[Path]:
    """What Python and the libraries loaded so far are made of, and what they may still load."""
    yield from map(Path, _SYSTEM)
    yield from (OURS / package for package in ("engines", "gateway"))
    yield from (Path(prefix) for prefix in {sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix} if prefix != "/")
    yield from (Path(entry) for entry in sys.path if entry.endswith((".zip", "-packages", "lib-dynload")))
    for name, module in list(sys.modules.items()):  # the folder that a package lies in may hold anything: only the package itself
        if "." not in name and module is not None:
            yield from map(Path, getattr(module, "__path__", ()))
    yield from (Path(entry) for entry in os.environ.get("LD_LIBRARY_PATH", "").split(":") if entry)
    yield from _mapped()


def _environments() -> Iterator[Path]:
    """The folders of this Python and of the one that its environment is made from: a command may be a script for it."""
    yield from (Path(prefix) for prefix in {sys.prefix, sys.base_prefix} if prefix != "/")


def _mapped() -> set[Path]:
    """Folders of the shared libraries that the process has loaded."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return set()
    paths = {Path(line.split(maxsplit=5)[5]) for line in lines if line.count("/") and ".so" in line}
    return {path.parent for path in paths}


def device_files(dev: Path = Path("/dev")) -> list[tuple[Path, int]]:
    """What every process may do with device files. Never more: a disk is one too, and root may read it."""
    return [
        (dev, LISTING),
        (dev / "null", DRIVING),
        (dev / "shm", WRITING),
        *((dev / name, READING) for name in ("zero", "full", "random", "urandom")),
    ]


def gpu_files(dev: Path = Path("/dev")) -> list[tuple[Path, int]]:
    """What drives GPUs: the files of NVIDIA's driver (also in WSL and on Jetson), of AMD's compute driver and of the kernel's graphics
    drivers (Vulkan, ROCm). Those that are there when the process confines itself; a folder stands for all in it."""
    return [(path, DRIVING) for pattern in _GPU_FILES for path in sorted(dev.glob(pattern))]


def _compiled_kernels() -> Iterator[Path]:
    """Where the drivers keep kernels that they have compiled for a device."""
    home = Path(os.environ.get("HOME", "/nonexistent"))
    yield Path(os.environ.get("CUDA_CACHE_PATH") or home / ".nv")
    yield home / ".cache" / "mesa_shader_cache"
