"""`python -m engines.onnx`: the sidecar process; its settings arrive on standard input (engines/sidecar/shell.py)."""

from __future__ import annotations

import sys

from engines.onnx.app import OnnxRuntime
from engines.sidecar.shell import run

if __name__ == "__main__":
    sys.exit(run(OnnxRuntime))
