"""Carries out the steps of a Containerfile's stage in an empty folder, with the shell that a container would use and stand-ins for what
needs a network, a compiler or root: apt-get, pip, patch, useradd, the C compiler.

What is in the PATH of a step is what the base has (BASE) and what the packages bring that an earlier step has installed (BRINGS), so a
package that is missing is missed here too. Absolute paths are those below the folder. `python -m tests.deploy.replay` does the same with
nothing stood in for, and takes minutes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.deploy.containerfile import Stage, copied, copies
from tests.deploy.replay import environment

ROOT = Path(__file__).resolve().parents[2]
BASE = (
    "basename", "bash", "cat", "chmod", "cp", "cut", "dirname", "env", "find", "flock", "getconf", "grep", "gzip", "head", "id", "ln",
    "ls", "mkdir", "mktemp", "mv", "rm", "sed", "sh", "sha256sum", "sleep", "sort", "tail", "tar", "tee", "touch", "tr", "uname",
)  # fmt: skip
BRINGS = {
    "build-essential": ("cc", "c++"),
    "ca-certificates": (),
    "libgomp1": (),
    "patch": ("patch",),
    "python3": ("python3",),
    "python3-dev": (),
    "python3-venv": (),
}
"""By package of Debian 12 and Ubuntu 24.04: the commands that our steps use of it."""
ABSOLUTE = re.compile(r"(?<![\w.}/])/(?=(?:opt|dist|root|usr/local|var)(?:/|\b))")
STAND_IN = Path(__file__).with_name("stand_in.py")


@dataclass
class Layer:
    """What a stage has become. called: what the stand-ins were asked for, in order: `command`, `arguments`, and what they saw of the
    environment."""

    root: Path
    called: list[dict[str, Any]] = field(default_factory=list)

    def at(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def of(self, command: str, *first: str) -> list[dict[str, Any]]:
        """Calls of a command whose arguments begin so."""
        return [call for call in self.called if call["command"] == command and tuple(call["arguments"][: len(first)]) == first]

    @property
    def packages(self) -> set[str]:
        return {name for call in self.of("apt-get", "install") for name in call["arguments"][1:] if not name.startswith("-")}


def carried_out(stage: Stage, root: Path, earlier: dict[str, Layer], wheel: Path | None = None) -> Layer:
    """Carries the stage out in `root`, which may hold what its base has; `earlier`: the stages before it. wheel: of the very sources that
    the stage copies, so that it is not built again. Raises AssertionError with what a step has said."""
    layer, commands, log = Layer(root), root / ".commands", root / ".called"
    commands.mkdir(parents=True)
    log.touch()
    for name in BASE:
        found = shutil.which(name)
        assert found is not None, name
        (commands / name).symlink_to(found)
    for name in ("apt-get", "useradd"):
        _stand_in(commands / name)
    directory = "/"
    for number, (word, text) in enumerate(stage.steps):
        step = Stage("", "", [(word, text)])
        if word == "WORKDIR":
            directory = text
            layer.at(directory).mkdir(parents=True, exist_ok=True)
        elif word == "COPY":
            _copy(step, layer, layer.at(directory), earlier)
        elif word == "RUN":
            known = environment(Stage("", "", stage.steps[:number]))
            known |= {"PATH": str(commands), "HOME": str(layer.at("/root")), "GATEHOUSE_COMPILED": "0"}
            known |= {"STAND_IN_ROOT": str(root), "STAND_IN_BRINGS": json.dumps(BRINGS), "STAND_IN_WHEEL": str(wheel or "")}
            command = ["sh", "-c", ABSOLUTE.sub(f"{root}/", text)]
            here, nothing = layer.at(directory), subprocess.DEVNULL
            done = subprocess.run(command, cwd=here, env=known, stdin=nothing, capture_output=True, text=True, timeout=600, check=False)
            assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
    layer.called = [json.loads(line) for line in log.read_text().splitlines()]
    return layer


def _copy(step: Stage, layer: Layer, here: Path, earlier: dict[str, Layer]) -> None:
    for origin, sources, target in copies(step):
        if origin is not None:
            assert len(sources) == 1, sources
            shutil.copytree(earlier[origin].at(sources[0]), layer.at(target), symlinks=True)
    for name, file in copied(ROOT, step).items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, here / name)


def _stand_in(path: Path) -> None:
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I "{STAND_IN}" "$0" "$@"\n')
    os.chmod(path, 0o755)
