"""The Python that exports models to ONNX: whether it has what the job needs, asked before a job is made."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Final

from engines.environment import inherited
from engines.host.child import Child
from engines.jobs import elsewhere
from gateway.core.errors import RequestError, one_line

NEEDED: Final = ("torch", "transformers", "onnx", "onnxscript")
PROGRAM: Final = str(elsewhere.__file__)
ASK_SECONDS: Final = 10.0
_ASK: Final = (
    "import sys, importlib.util as u\n"
    f"if sys.version_info < (3, 11): print('python 3.11')\n"
    f"print(*[name for name in {NEEDED!r} if u.find_spec(name) is None], 'asked')\n"
)


def command(python: str, *more: str) -> tuple[str, ...]:
    """Isolated: of nothing but its own environment. python: jobs.export_python."""
    return (python or sys.executable, "-I", *more)


async def check(python: str) -> None:
    """Raises RequestError, which says what to install where."""
    where = "The Python of jobs.export_python" if python else "The gateway's own Python (jobs.export_python names another)"
    try:
        child = Child(command(python, "-c", _ASK), line=None, environment=inherited(os.environ), leads=True)
    except OSError as error:
        raise _refused(f"{where} cannot be started: {error.strerror}.") from None
    try:
        async with asyncio.timeout(ASK_SECONDS):
            code = await child.wait()
    except TimeoutError:
        raise _refused(f"{where} does not say within {ASK_SECONDS:.0f} s which packages it has.") from None
    finally:
        child.kill()
    missing = child.output[:1000].decode("utf-8", "replace").split()
    if code != 0 or missing[-1:] != ["asked"]:
        raise _refused(f"{where} does not say which packages it has: {one_line(child.errors[-200:].decode('utf-8', 'replace'))}.")
    if missing[:1] == ["python"]:
        raise _refused(f"{where} is older than Python 3.11.")
    if names := " ".join(missing[:-1]):
        raise _refused(f"{where} has not all that an export needs: install there `python -m pip install {names}`.")


def _refused(message: str) -> RequestError:
    return RequestError(message, param="task.kind", code="exporter_missing")
