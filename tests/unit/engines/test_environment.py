"""What a sidecar inherits of the gateway's environment."""

from __future__ import annotations

import pytest

from engines.environment import OWN, inherited


@pytest.mark.parametrize(
    "name",
    [
        *("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
        *("GGML_VK_VISIBLE_DEVICES", "OMP_NUM_THREADS", "GOMP_SPINCOUNT", "NVIDIA_DRIVER_CAPABILITIES", "MALLOC_ARENA_MAX"),
    ],
)
def test_what_libraries_read_is_kept(name: str) -> None:
    assert inherited({name: "x"}) == {name: "x", **OWN}


@pytest.mark.parametrize(
    "name",
    [
        *("OPENAI_API_KEY", "VLLM_KEY", "DATABASE_URL", "GATEHOUSE_PEPPER", "GATEHOUSE__STORE__URL", "AWS_SECRET_ACCESS_KEY", "HTTP_PROXY"),
        *("NVIDIA_API_KEY", "LLAMA_API_TOKEN", "CUDA_PASSWORD", "PYTHON_KEYRING_BACKEND", "SSH_AUTH_SOCK", "XPATH", "PATHS", "path"),
    ],
)
def test_nothing_else_is(name: str) -> None:
    assert inherited({name: "x"}) == dict(OWN)
