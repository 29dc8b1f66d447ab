"""NVIDIA's management library (package nvidia-ml-py, extra `nvml`), asked which GPUs there are.

The library is a parameter everywhere, so that tests can give a scripted one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

try:
    import pynvml
except ImportError:  # the extra is not installed
    pynvml = None

LIBRARY: Any = pynvml


class Unknown(Exception):
    """The library is not installed, or its driver does not answer."""


@contextmanager
def opened(library: Any) -> Iterator[Any]:
    """The library, ready to be asked. Raises Unknown, also for an error of NVML inside the block."""
    if library is None:
        raise Unknown
    try:
        library.nvmlInit()
        try:
            yield library
        finally:
            library.nvmlShutdown()
    except library.NVMLError as error:
        raise Unknown(str(error)) from None


def handle(library: Any, name: str) -> Any:
    """The handle of a GPU by its number, or by its UUID as `nvidia-smi -L` writes it (also of a MIG instance)."""
    return library.nvmlDeviceGetHandleByIndex(int(name)) if name.isdigit() else library.nvmlDeviceGetHandleByUUID(name)


def present(library: Any = LIBRARY) -> list[str]:
    """The UUIDs of the GPUs that this process may use, by number. In a container that was given some of a machine's GPUs the numbers begin
    at 0, whatever their device files are called. Raises Unknown."""
    with opened(library):
        return [_text(library.nvmlDeviceGetUUID(handle(library, str(n)))) for n in range(library.nvmlDeviceGetCount())]


def absent(names: Sequence[str], library: Any = LIBRARY) -> list[str]:
    """Which of these (numbers or UUIDs) the driver does not know. Raises Unknown."""
    missing = []
    with opened(library):
        for name in names:
            try:
                handle(library, name)
            except library.NVMLError:
                missing.append(name)
    return missing


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
