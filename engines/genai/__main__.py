"""`python -m engines.genai`: the sidecar process; its settings arrive on standard input (engines/sidecar/shell.py)."""

from __future__ import annotations

import sys

from engines.genai.app import GenaiRuntime
from engines.sidecar.shell import run

if __name__ == "__main__":
    sys.exit(run(GenaiRuntime))
