"""Compiles the hot path (gateway/app/compiled.py names it) with mypyc into a directory: `python scripts/compile.py DIRECTORY`.

What it needs beside the project's dependencies is pinned in requirements/build.txt, and a C compiler. The directory appears whole or not
at all, with a manifest of every source file that the result depends on.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from importlib.machinery import EXTENSION_SUFFIXES  # noqa: E402

from gateway.app.compiled import GROUP, MANIFEST, MODULES, extension  # noqa: E402

SETUP = """
from mypyc.build import mypycify
from setuptools import setup
setup(name="gatehouse-compiled", packages=[], ext_modules=mypycify({arguments!r}, opt_level="1", debug_level="0", group_name={group!r}))
"""
COLD = """
/* What only errors reach: the compiler then moves the branches to it out of the way of the rest. */
typedef struct _object PyObject;
void CPyError_OutOfMemory(void) __attribute__((cold));
void CPy_TypeError(const char *, PyObject *) __attribute__((cold));
void CPy_AddTraceback(const char *, const char *, int, PyObject *) __attribute__((cold));
void CPy_TypeErrorTraceback(const char *, const char *, int, PyObject *, const char *, PyObject *) __attribute__((cold));
void CPy_AttributeError(const char *, const char *, const char *, const char *, int, PyObject *) __attribute__((cold));
static void CPy_DecRef(PyObject *) __attribute__((cold));
static void CPy_XDecRef(void *) __attribute__((cold));
"""
FLAGS = "-g0 -DNDEBUG -fwrapv -fvisibility=hidden -freorder-blocks-algorithm=stc -freorder-blocks-and-partition -include cold.h"
"""setuptools uses CFLAGS instead of the flags that Python was built with, so they must repeat two of these: without NDEBUG, every function
has the assertions of Python's and mypyc's headers; without wrapv, an overflow of C's integers is undefined. The other flags make the code
that runs for a request smaller, as little of it fits into the processor's caches: hidden symbols, and the code of errors elsewhere."""
MYPY = """[mypy]
python_version = 3.11
follow_imports = silent
[mypy-httptools.*,uvloop.*,google.*,re2.*]
follow_imports = skip
ignore_missing_imports = True
"""


def source(module: str) -> Path:
    """A module's file, relative to the repository; that of the package when the name is a package."""
    path = Path(*module.split("."))
    return path / "__init__.py" if (ROOT / path).is_dir() else path.with_suffix(".py")


def imports(path: Path) -> set[str]:
    """The project's own modules that a file imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name for name in found if name.split(".")[0] in ("gateway", "policies") and (ROOT / source(name)).is_file()}


def closure() -> list[str]:
    """Every source file that the build depends on: the modules and, again and again, what they import."""
    waiting, seen = list(MODULES), set[str]()
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += imports(source(name))
    return sorted({source(name).as_posix() for name in seen})


def build(target: Path) -> None:
    """Compiles in a copy of the sources, so that nothing of it lies in the repository. Raises CalledProcessError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".compile-") as name:
        work = Path(name)
        sources = closure()
        for file in {*sources, *(str(p / "__init__.py") for s in sources for p in list(Path(s).parents)[:-1])}:
            (work / file).parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / file).is_file():
                shutil.copyfile(ROOT / file, work / file)
        (work / "mypy.ini").write_text(MYPY, encoding="utf-8")
        arguments = ["--config-file", "mypy.ini", *(source(module).as_posix() for module in MODULES)]
        (work / "setup.py").write_text(SETUP.format(arguments=arguments, group=GROUP), encoding="utf-8")
        (work / "cold.h").write_text(COLD, encoding="utf-8")
        environment = {**os.environ, "PYTHONPATH": "", "CFLAGS": f"{FLAGS} {os.environ.get('CFLAGS', '')}"}
        command = [sys.executable, "setup.py", "--quiet", "build_ext", "--build-lib", "out", "--build-temp", "temp"]
        done = subprocess.run(command, cwd=work, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1200)
        if done.returncode:
            sys.exit(f"the hot path could not be compiled:\n{done.stdout[-4000:]}")
        out = work / "out"
        for module in (*MODULES, f"{GROUP}__mypyc"):
            if not extension(out, module).is_file():
                sys.exit(f"the hot path could not be compiled: {module} is missing\n{done.stdout[-4000:]}")
        digests = {file: sha256((work / file).read_bytes()).hexdigest() for file in sources}
        manifest = {"suffix": EXTENSION_SUFFIXES[0], "modules": list(MODULES), "sources": digests}
        (out / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        shutil.rmtree(target, ignore_errors=True)
        out.rename(target)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python scripts/compile.py DIRECTORY")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the working folder is removed
    build(Path(sys.argv[1]).absolute())
