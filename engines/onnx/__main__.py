"""`python -m engines.onnx`: the sidecar process; its settings arrive on standard input (engines/sidecar/shell.py)."""

from __future__ import annotations

import sys

from engines.confinement import Confinement
from engines.onnx.app import OnnxRuntime
from engines.onnx.options import read_options
from engines.sidecar.loading import LoadError
from engines.sidecar.memory import limit_memory
from engines.sidecar.shell import run, to_its_model
from gateway.core.specs import SidecarSpec


def confined(spec: SidecarSpec) -> Confinement:
    """To its model's files and, on the CPU, to its share of memory: a graph of a few hundred bytes may ask for all there is. The drivers of
    GPUs map more than they use."""
    if spec.device == "cpu":
        try:
            limit_memory(read_options(spec.options).memory_limit_bytes)
        except LoadError:
            pass  # the load says what is wrong with the options
    return to_its_model(spec)


if __name__ == "__main__":
    sys.exit(run(OnnxRuntime, confined))
