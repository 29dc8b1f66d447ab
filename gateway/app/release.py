"""The version that is installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def release() -> str:
    """The version of the distribution; "0" in a source tree that was not installed."""
    try:
        return version("gatehouse")
    except PackageNotFoundError:
        return "0"
