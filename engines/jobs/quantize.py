"""A GGUF file with smaller weights, by llama.cpp's own `llama_model_quantize`."""

from __future__ import annotations

import ctypes
import re
import sys
import time
from pathlib import Path
from typing import Any, Final

import llama_cpp

from engines.jobs.order import PROGRESS, Order, Outcome, Progress, put

_STEP: Final = re.compile(rb"^\[\s*(\d+)/\s*(\d+)\]")
"""What llama.cpp logs of each tensor: `[   3/ 291] blk.0...`."""
TOLD_SECONDS: Final = 0.5
ERROR: Final = 4


class Log:
    """llama.cpp's log on standard error, and how far it is."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._said, self.error = folder, 0.0, ""
        self.callback = llama_cpp.llama_log_callback(self._write)

    def _write(self, level: int, text: bytes, user_data: Any) -> None:
        sys.stderr.buffer.write(text)
        if level == ERROR and not self.error:
            self.error = text.decode("utf-8", "replace").strip()[:500]
        step = _STEP.match(text)
        now = time.monotonic()
        if step is not None and now - self._said >= TOLD_SECONDS:
            self._said = now
            put(self._folder, PROGRESS, Progress(min(1.0, int(step[1]) / max(1, int(step[2])))))


def run(order: Order) -> Outcome:
    folder = Path(order.folder)
    log = Log(folder)
    llama_cpp.llama_log_set(log.callback, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    settings = llama_cpp.llama_model_quantize_default_params()
    settings.nthread = order.threads
    settings.ftype = getattr(llama_cpp, ftype(order.options["type"]))
    settings.allow_requantize = order.options["requantize"]
    began = time.monotonic()
    target = folder / order.target
    code = llama_cpp.llama_model_quantize(order.source.encode(), str(target).encode(), ctypes.byref(settings))
    sys.stderr.flush()
    if code != 0:
        return Outcome(problem=f"llama.cpp refuses the model: {log.error.replace(order.source, 'the model') or f'code {code}'}")
    before, after = Path(order.source).stat().st_size, target.stat().st_size
    return Outcome(result={"bytes_before": before, "bytes": after, "seconds": round(time.monotonic() - began, 3)})


def ftype(type: str) -> str:
    """The name of llama.cpp's constant."""
    return f"LLAMA_FTYPE_MOSTLY_{type}"
