"""What a sidecar's process inherits of the gateway's environment: an allow-list.

The gateway's environment holds credentials of upstreams, of the store and of the identity provider. A sidecar parses model files with
native code and needs none of them, so it gets only what its libraries read: paths, the language, the settings of devices and threads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_KEPT: Final = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|TMPDIR|TZ|TZDIR|LANG|LANGUAGE|LC_\w+|LD_LIBRARY_PATH|LD_PRELOAD|DYLD_\w+|VIRTUAL_ENV|CONDA_PREFIX|PYTHON\w+"
    r"|XDG_(CACHE_HOME|DATA_DIRS|RUNTIME_DIR)|NIX_LD\w*"
    r"|(CUDA|CUDNN|CUBLAS|NVIDIA|NCCL|HIP|HSA|ROCM|ROCR|ROCBLAS|MIOPEN|GPU|AMD|VK|MESA|GGML|LLAMA|OMP|GOMP|KMP|MKL|OPENBLAS|ORT|MALLOC)_\w+"
)
_SECRET: Final = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)
"""Words in the names of variables that hold credentials, whatever they begin with: NVIDIA_API_KEY."""
OWN: Final[Mapping[str, str]] = MappingProxyType({"OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"})
"""numpy's library would start threads as soon as it is imported, before the sidecar has confined itself; a sidecar multiplies nothing with
it. Unbuffered, so that the last words of a process that is killed are in its log."""


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of `environ` that a sidecar or an inspector may see."""
    return {**{name: value for name, value in environ.items() if _KEPT.fullmatch(name) and not _SECRET.search(name)}, **OWN}
