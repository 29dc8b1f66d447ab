"""The program behind the stand-ins of tests.deploy.layers: `stand_in.py COMMAND ARGUMENT...`.

Notes the call; then apt-get makes the commands of the packages available, `-m venv` makes an environment of stand-ins, pip looks whether
the files are there that it is given and makes those that it is to make. Any other call of Python is the real one's.
"""

import io
import itertools
import json
import os
import shlex
import shutil
import sys
import tarfile
from pathlib import Path

ROOT = Path(os.environ.get("STAND_IN_ROOT", "."))
COMMANDS = ROOT / ".commands"
SEEN = ("CMAKE_ARGS", "LD_LIBRARY_PATH")
TAKEN_FOR_GRANTED = ("import llama_cpp", "--enable-optimizations")
"""In what a step asks Python: whether the engine loads, and whether this is a good build of Python (else scripts/lib.sh takes another)."""
LLAMA = "llama_cpp_python-0.0.0-py3-none-linux_x86_64.whl"


def make(path: Path) -> None:
    """Another stand-in: the same file under another name."""
    path.write_bytes(Path(sys.argv[1]).read_bytes())
    path.chmod(0o755)


def note(command: str, arguments: list[str]) -> None:
    seen = {name: os.environ[name] for name in SEEN if name in os.environ}
    with (ROOT / ".called").open("a") as log:
        log.write(json.dumps({"command": command, "arguments": arguments, **seen}) + "\n")


def refuse(why: str) -> None:
    sys.exit(f"stand-in: {shlex.join(sys.argv[1:])}: {why}")


def apt_get(arguments: list[str]) -> None:
    brings = json.loads(os.environ["STAND_IN_BRINGS"])
    for name in arguments[1:] if arguments[0] == "install" else []:
        if not name.startswith("-"):
            if name not in brings:
                refuse(f"say in BRINGS what {name} brings")
            for command in brings[name]:
                make(COMMANDS / command)
            (ROOT / f".has-{name}").touch()


def environment(directory: Path) -> None:
    """venv: needs the package of that name on Debian."""
    if not (ROOT / ".has-python3-venv").exists():
        refuse("ensurepip is not available")
    (directory / "bin").mkdir(parents=True, exist_ok=True)
    (directory / "pyvenv.cfg").write_text(f"version = {sys.version_info[0]}.{sys.version_info[1]}.{sys.version_info[2]}\n")
    for name in ("python", "python3", "pip"):
        make(directory / "bin" / name)


def pip(arguments: list[str]) -> None:
    command = next(one for one in arguments if not one.startswith("-"))
    place = arguments.index(command) + 1
    given = arguments[place:]
    for option, value in itertools.pairwise(given):
        if option == "-r" and not Path(value).is_file():
            refuse(f"there is no {value}")
    for wheel in (one for one in given if one.endswith(".whl")):
        if not Path(wheel).is_file():
            refuse(f"there is no {wheel}")
    if command == "download":
        with tarfile.open(Path(given[given.index("-d") + 1]) / "llama_cpp_python-0.0.0.tar.gz", "w:gz") as archive:
            archive.addfile(tarfile.TarInfo("llama_cpp_python-0.0.0/pyproject.toml"), io.BytesIO())
    elif command == "wheel":
        directory = Path(given[given.index("-w") + 1])
        directory.mkdir(parents=True)
        (directory / LLAMA).touch()


def python(arguments: list[str]) -> None:
    if arguments[:2] == ["-m", "venv"]:
        environment(Path(arguments[2]))
    elif arguments[:2] == ["-m", "pip"]:
        note("pip", arguments[2:])
        pip(arguments[2:])
    elif arguments[0] == "-c" and "ensurepip" in arguments[1]:  # whether environments can be made with this Python
        sys.exit(not (ROOT / ".has-python3-venv").exists())
    elif arguments[:2] == ["-m", "compileall"] or (arguments[0] == "-c" and any(one in arguments[1] for one in TAKEN_FOR_GRANTED)):
        note("python", arguments)
    elif arguments[0] == "scripts/distributions.py" and (wheel := os.environ["STAND_IN_WHEEL"]):
        note("python", arguments)
        Path(arguments[1]).mkdir(parents=True, exist_ok=True)
        shutil.copy(wheel, arguments[1])
    else:
        os.execv(sys.executable, [sys.executable, *arguments])


def main() -> None:
    name, arguments = Path(sys.argv[1]).name, sys.argv[2:]
    if name.startswith("python"):
        python(arguments)
        return
    note(name, arguments)
    if name == "apt-get":
        apt_get(arguments)
    elif name == "pip":
        pip(arguments)
    elif name == "useradd" and "--create-home" in arguments:
        Path(arguments[arguments.index("--home-dir") + 1]).mkdir(parents=True)
    elif name == "patch":
        sys.stdin.read()


if __name__ == "__main__":
    main()
