"""`gatehouse models pull`: from a server into the gateway's registry, with the gateway's own checks behind it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests import modelsigning
from tests.e2e import adminapi
from tests.e2e.harness import DEMO_MODEL, Gatehouse
from tests.fakes.model_hub import ModelHub
from tests.unit.engines.onnx.test_constants import framed

Launch = Callable[..., Any]
ROOT = Path(__file__).parents[2]


def pull(gatehouse: Gatehouse, home: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gateway", "models", "pull", *arguments, "--url", gatehouse.admin_url, "-o", "json"]
    env = {**os.environ, "GATEHOUSE_KEY": adminapi.KEYS["operator"], "XDG_CACHE_HOME": str(home), **environ}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)


def test_a_model_is_pulled_checked_and_there(tmp_path: Path, launch: Launch) -> None:
    model = ROOT / "engines" / "demo" / "artefacts" / DEMO_MODEL
    hub = ModelHub(model.read_bytes())
    junk = ModelHub(b"no model at all" * 100)
    ending = ModelHub(framed(tmp_path / "ending.onnx", np.int64(0)).read_bytes())
    try:
        (tmp_path / "key.pem").write_bytes(modelsigning.pem())
        config = adminapi.config(tmp_path / "state", 9, model_signatures={"keys": [str(tmp_path / "key.pem")]})
        with launch(config) as gatehouse, adminapi.admin(gatehouse) as client:
            done = pull(gatehouse, tmp_path / "home", "hf://org/repo/mine.gguf", HF_ENDPOINT=f"{hub.url}/linked")
            assert done.returncode == 0, done.stderr
            assert json.loads(done.stdout)["name"] == "mine.gguf"
            assert client.get("/model-files/mine.gguf").json()["parts"][0]["sha256"] == hub.sha256
            assert not list((tmp_path / "home").rglob("*.done"))
            image = pull(gatehouse, tmp_path / "home", "ollama://tiny:q8", OLLAMA_REGISTRY=hub.url)
            assert image.returncode == 0 and json.loads(image.stdout)["name"] == "tiny-q8.gguf", image.stderr
            bad = pull(gatehouse, tmp_path / "home", f"{junk.url}/good/bad.gguf")
            assert bad.returncode == 1 and "The model cannot be used" in bad.stderr, bad.stderr
            assert client.get("/model-files/bad.gguf").status_code == 404
            fatal = pull(gatehouse, tmp_path / "home", f"{ending.url}/good/ending.onnx")
            assert fatal.returncode == 1 and "STFT 'spectrum': its frame_length has 0 samples" in fatal.stderr, fatal.stderr
            assert client.get("/model-files/ending.onnx").status_code == 404
            assert not list((tmp_path / "home").rglob("*.done")), "what the gateway refuses is not kept"
            given = ("--signature", str(tmp_path / "given.sig"), "--name", "signed.gguf")
            for key in (modelsigning.OTHER, modelsigning.KEY):
                Path(given[1]).write_text(modelsigning.signature(model, key))
                done = pull(gatehouse, tmp_path / "home", f"{hub.url}/good/x.gguf", *given)
                assert done.returncode == (key is modelsigning.OTHER), done.stderr
                assert done.returncode == 0 or "signature was made with another key" in done.stderr, done.stderr
            parts = client.get("/model-files/signed.gguf").json()["parts"]
            assert [part["name"] for part in parts] == ["signed.gguf", "signed.gguf.sig"]
    finally:
        hub.close()
        junk.close()
        ending.close()
