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

from engines.confinement import MAX_DESCRIPTORS, Confinement, limit

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
    for allowed in ("read the model", "write to its own folder", "listen in its own folder", "read its own maps", "import"):
        assert found[allowed] == "done", allowed
    for forbidden in ("write the model", "read a secret", "list its folder", "link it", "read it through a link", "write elsewhere"):
        assert found[forbidden] == refused, forbidden
    assert found["start a program"] == refused
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
