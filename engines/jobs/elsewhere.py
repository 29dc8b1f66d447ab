"""Runs `engines.jobs.torch_export` in a Python that has nothing of the gateway's: by this file's path, `python -I .../elsewhere.py`."""

from __future__ import annotations

import importlib.util
import runpy
import sys
from pathlib import Path


def known() -> None:
    """Makes the package `engines` known, and nothing else that lies beside it: it may be the environment of another Python."""
    place = Path(__file__).parents[1]
    spec = importlib.util.spec_from_file_location("engines", place / "__init__.py", submodule_search_locations=[str(place)])
    if spec is not None and spec.loader is not None:
        sys.modules["engines"] = package = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(package)


if __name__ == "__main__":
    known()
    runpy.run_module("engines.jobs.torch_export", run_name="__main__")
