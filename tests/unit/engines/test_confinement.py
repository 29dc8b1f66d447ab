"""What a process can no longer do once it has confined itself, tried in processes of their own."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engines.confinement import DRIVING, LISTING, MAX_DESCRIPTORS, READING, Confinement, device_files, gpu_files, limit

TRY = """
import json, os, socket, subprocess, sys
from pathlib import Path
from engines.confinement import confine
model, own, secret = map(Path, sys.argv[1:4])
found = confine(reads=[model], writes=[own], files=sys.argv[4] == "on").report()
def tried(work):
    try:
        work()
    except OSError as error:
        return type(error).__name__
    return "done"
def connect():
    with socket.socket() as sock:
        sock.connect(("127.0.0.1", int(sys.argv[5])))
print(json.dumps({
    "report": found,
    "read the model": tried(lambda: model.read_bytes()),
    "write the model": tried(lambda: model.write_bytes(b"")),
    "read a secret": tried(lambda: secret.read_bytes()),
    "list its folder": tried(lambda: os.listdir(secret.parent)),
    "link it": tried(lambda: (own / "link").symlink_to(secret)),
    "read it through a link": tried(lambda: (own.parent / "link").read_bytes()),
    "write to its own folder": tried(lambda: (own / "x").write_bytes(b"x")),
    "listen in its own folder": tried(lambda: socket.socket(socket.AF_UNIX).bind(str(own / "s"))),
    "write elsewhere": tried(lambda: (secret.parent / "x").write_bytes(b"x")),
    "start a program": tried(lambda: subprocess.run(["/bin/true"])),
    "read its parent's environment": tried(lambda: Path(f"/proc/{os.getppid()}/environ").read_bytes()),
    "signal its parent": tried(lambda: os.kill(os.getppid(), 0)),
    "connect": tried(connect),
    "read its own maps": tried(lambda: Path("/proc/self/maps").read_bytes()),
    "open a terminal": tried(lambda: open("/dev/tty", "rb")),
    "read random bytes": tried(lambda: open("/dev/urandom", "rb").read(1)),
    "list devices": tried(lambda: os.listdir("/dev")),
    "import": tried(lambda: __import__("wave")),
    "status": Path("/proc/self/status").read_text(),
}))
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("own", "secrets"):
        (tmp_path / name).mkdir()
    (tmp_path / "model").write_text("weights")
    (tmp_path / "secrets" / "key").write_text("key")
    (tmp_path / "link").symlink_to(tmp_path / "secrets" / "key")
    return tmp_path


def confined(place: Path, files: str, port: int = 1) -> dict[str, Any]:
    arguments = [str(place / "model"), str(place / "own"), str(place / "secrets" / "key"), files, str(port)]
    run = subprocess.run([sys.executable, "-c", TRY, *arguments], capture_output=True, text=True, check=True)
    return dict(json.loads(run.stdout))


def landlock() -> int:
    """The version of Landlock that this kernel enforces."""
    run = "from engines.confinement import confine; print(confine().landlock)"
    return int(subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, check=True).stdout)


def test_only_its_model_its_libraries_and_its_own_folder_are_left(place: Path) -> None:
    found, version = confined(place, "on"), landlock()
    refused = "PermissionError" if version else "done"
    report = found["report"]
    assert (report["no_new_privs"], report["core_dumps"], report["landlock"]) == (True, False, version)
    assert (report["reason"] is None) is (version > 0)
    for allowed in (
        "read the model",
        "write to its own folder",
        "listen in its own folder",
        "read its own maps",
        "import",
        "read random bytes",
        "list devices",
    ):
        assert found[allowed] == "done", allowed
    for forbidden in ("write the model", "read a secret", "list its folder", "link it", "read it through a link", "write elsewhere"):
        assert found[forbidden] == refused, forbidden
    assert found["start a program"] == refused
    assert not version or found["open a terminal"] == "PermissionError"
    if version or os.geteuid() == 0:  # where both are another user's than root's, only Landlock keeps them apart
        assert found["read its parent's environment"] == "PermissionError"
    assert found["connect"] == ("PermissionError" if version >= 4 else "ConnectionRefusedError")
    assert found["signal its parent"] == ("PermissionError" if version >= 6 else "done")


def test_without_landlock_the_rest_is_in_force(place: Path) -> None:
    found = confined(place, "off")
    report = found["report"]
    assert (report["no_new_privs"], report["core_dumps"], report["landlock"], report["network"]) == (True, False, 0, "unrestricted")
    assert report["reason"] == "switched off by options.confine"
    assert found["read a secret"] == "done" and "NoNewPrivs:\t1" in found["status"]


def test_limits_never_rise(monkeypatch: pytest.MonkeyPatch) -> None:
    set_limits: dict[int, tuple[int, int]] = {}
    monkeypatch.setattr(resource, "setrlimit", set_limits.__setitem__)
    for hard, bound in ((resource.RLIM_INFINITY, MAX_DESCRIPTORS), (1 << 20, MAX_DESCRIPTORS), (512, 512)):
        monkeypatch.setattr(resource, "getrlimit", lambda which, hard=hard: (256, hard))
        assert limit() == bound
        assert set_limits == {resource.RLIMIT_CORE: (0, 0), resource.RLIMIT_NOFILE: (bound, bound)}


def test_a_process_that_was_not_confined_says_so() -> None:
    assert Confinement(reason="not confined").report()["no_new_privs"] is False


NOBODY = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
"""Root's capabilities open everything: both processes are an ordinary user's."""
TAKE = """
import sys
from pathlib import Path
for name in ("environ", "mem"):
    try:
        with (Path("/proc") / sys.argv[1] / name).open("rb") as file:
            file.read(1) if name == "environ" else file.seek(1)
        print(name, "readable")
    except OSError as error:
        print(name, type(error).__name__)
"""


def taken(before: str) -> list[str]:
    """What a process without Landlock can read of another one of its user that has run `before`."""
    command = f"from engines.confinement import *\n{before}\nprint('ready', flush=True)\ninput()"
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "cwd": Path(__file__).parents[3], "text": True, **NOBODY}
    with subprocess.Popen([sys.executable, "-c", command], env={**os.environ, "UPSTREAM_KEY": "planted"}, **pipes) as target:
        assert target.stdout is not None and target.stdout.readline() == "ready\n"
        reader = subprocess.run([sys.executable, "-c", TAKE, str(target.pid)], capture_output=True, text=True, check=True, **NOBODY)
        target.communicate("\n")
    return reader.stdout.splitlines()


def test_a_process_that_hides_is_out_of_reach_of_others_of_its_user() -> None:
    assert taken("")[0] == "environ readable"
    assert taken("assert hide()") == ["environ PermissionError", "mem PermissionError"]
    assert taken("confine(files=False)") == ["environ PermissionError", "mem PermissionError"]


GPU = (
    *("nvidia0", "nvidia1", "nvidiactl", "nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-caps/nvidia-cap1"),
    *("nvidia-caps-imex-channels/channel0", "dri/card0", "dri/renderD128", "kfd", "dxg", "nvhost-ctrl-gpu", "nvmap"),
)
OTHERS = (
    "sda",
    "nvme0n1",
    "mem",
    "kmsg",
    "tty",
    "console",
    "fuse",
    "vhost-net",
    "kvm",
    "snd/seq",
    "input/event0",
    "null",
    "zero",
    "urandom",
)


def rights(places: list[tuple[Path, int]], path: Path) -> int:
    """What Landlock allows for a path: the rights of all rules for it and for the folders above it."""
    found = 0
    for place, allowed in places:
        if place == path or place in path.parents:
            found |= allowed
    return found


def test_the_rules_of_gpus_cover_their_device_files_and_no_others(tmp_path: Path) -> None:
    for name in (*GPU, *OTHERS):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    places = gpu_files(tmp_path)
    assert all(rights(places, tmp_path / name) == DRIVING for name in GPU)
    assert all(rights(places, tmp_path / name) == 0 for name in OTHERS)


@pytest.mark.parametrize(("devices", "expected"), [(True, "done"), (False, "PermissionError")])
def test_a_process_that_drives_gpus_may_name_its_threads(devices: bool, expected: str) -> None:
    """NVIDIA's driver does so while it initialises, and gives up with CUDA_ERROR_OPERATING_SYSTEM where it cannot (seen on an H100)."""
    run = f"""
from engines.confinement import confine
confine(devices={devices})
import os, threading
def tried(path):
    try:
        with open(path, "w") as file:
            file.write("named")
        return "done"
    except OSError as error:
        return type(error).__name__
thread = threading.Thread(target=lambda: print(tried(f"/proc/self/task/{{threading.get_native_id()}}/comm"), tried("/proc/1/comm")))
thread.start()
thread.join()
"""
    found = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, check=True).stdout.split()
    assert found == ([expected, "PermissionError"] if landlock() else ["done", found[1]])


def test_without_gpus_there_is_nothing_to_allow(tmp_path: Path) -> None:
    assert gpu_files(tmp_path) == []


def test_no_process_may_read_disks_or_memory(tmp_path: Path) -> None:
    places = device_files(tmp_path)
    assert {rights(places, tmp_path / name) for name in ("sda", "mem", "nvidia0", "input/event0")} == {LISTING}
    assert rights(places, tmp_path / "null") == DRIVING
    assert rights(places, tmp_path / "urandom") == READING


FILTERED = """
import ctypes, json, platform, struct
from engines.confinement import confine
library = ctypes.CDLL(None, use_errno=True)
assert library.capset(struct.pack("=Ii", 0x20080522, 0), bytes(24)) == 0
refused = (444, {"x86_64": 126, "aarch64": 91}[platform.machine()])  # landlock_create_ruleset, capset
steps = [(0x20, 0, 0, 0)]  # the number of the call
steps += [(0x15, left, 0, number) for left, number in zip(range(len(refused), 0, -1), refused)]
steps += [(0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x00050001)]  # allowed, EPERM
code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
program = struct.pack("@HP", len(steps), ctypes.addressof(code))
assert library.prctl(38, 1, 0, 0, 0) == 0 and library.prctl(22, 2, program, 0, 0) == 0
print(json.dumps(confine().report()))
"""


def test_a_filter_that_refuses_landlock_is_not_taken_for_a_kernel_without_it() -> None:
    """As that of a service manager or a container may."""
    run = subprocess.run([sys.executable, "-c", FILTERED], capture_output=True, text=True, check=True)
    report = json.loads(run.stdout)
    assert (report["landlock"], report["network"]) == (0, "unrestricted")
    assert report["reason"] == "a filter of system calls refuses Landlock"
    assert report["capabilities"] == [], "there was none to give up"
