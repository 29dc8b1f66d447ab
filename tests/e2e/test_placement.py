"""Where a real model goes: shown to operators, and refused with one line when it cannot fit."""

from __future__ import annotations

import os
import shutil
import signal
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.e2e.adminapi import KEYS, admin
from tests.e2e.harness import Gatehouse, configuration, errors_of
from tests.e2e.test_lifecycle import DEMO, refused
from tests.waiting import until

Launch = Callable[..., Gatehouse]


def config(directory: Path, model: Path, **settings: Any) -> dict[str, Any]:
    made = configuration(
        directory / "state",
        engines=[{"name": "chat", "runtime": "llama.cpp", "model": str(model), "slots": 2, "context": 256, **settings}],
        models=[{"name": "demo-chat", "pool": ["chat"]}],
    )
    made["identity"]["api_keys"]["static"].append(
        {"id": "a-admin", "key": KEYS["admin"], "tenant": "acme", "models": ["*"], "roles": ["admin"]}
    )
    return made


def long_model(path: Path, context: int) -> Path:
    """The demo model, saying that it was trained for so long a context."""
    data = bytearray(DEMO.read_bytes())
    at = data.index(b"llama.context_length") + len(b"llama.context_length")
    assert struct.unpack_from("<I", data, at)[0] == 4, "the value is no 32-bit number"
    struct.pack_into("<I", data, at + 4, context)
    path.write_bytes(data)
    return path


def test_operators_see_the_plan_of_a_running_engine(tmp_path: Path, launch: Launch) -> None:
    with launch(config(tmp_path, DEMO)) as gatehouse, admin(gatehouse) as client:
        engine = client.get("/engines/chat").json()
        placement = engine["placement"]
        plan = engine["plan"]
        assert (plan["device"], plan["gpu_layers"], plan["layers"], plan["context"]) == ("cpu", 0, placement["layers"], 256)
        assert plan["weights_bytes"] == placement["weights_bytes"]
        assert plan["kv_bytes"] == 2 * 256 * placement["kv_bytes_per_token"]
        assert plan["host_bytes"] > plan["weights_bytes"] + plan["kv_bytes"] and plan["device_bytes"] == 0
        assert engine["state"] == "ready" and engine["reason_code"] is None
        assert engine["confinement"]["no_new_privs"] and engine["confinement"]["core_dumps"] is False


def test_a_restart_that_does_not_fit_is_507_until_it_fits(tmp_path: Path, launch: Launch) -> None:
    model = tmp_path / "model.gguf"
    shutil.copy(DEMO, model)
    with launch(config(tmp_path, model, context=4_000_000, slots=32)) as gatehouse, admin(gatehouse) as client:
        assert gatehouse.chat(model="demo-chat", max_tokens=2).status_code == 200
        long_model(tmp_path / "long.gguf", 4_000_000).replace(model)
        os.kill(client.get("/engines/chat").json()["pid"], signal.SIGKILL)
        refusal = until(lambda: (r := gatehouse.chat(model="demo-chat", max_tokens=2)).status_code == 507 and r, what="the refusal")
        error = errors_of(refusal)
        assert (error["type"], error["code"]) == ("engine_error", "insufficient_memory")
        engine = until(lambda: (e := client.get("/engines/chat").json())["state"] == "failed" and e, what="the failed state")
        assert engine["reason_code"] == "insufficient_memory" and "MiB needed" in engine["reason"]
        shutil.copy(DEMO, tmp_path / "again.gguf")
        (tmp_path / "again.gguf").replace(model)
        until(lambda: gatehouse.chat(model="demo-chat", max_tokens=2).status_code == 200, what="the healing")


def test_a_model_that_cannot_fit_is_refused(tmp_path: Path, launch: Launch) -> None:
    model = long_model(tmp_path / "long.gguf", 4_000_000)
    refused(launch(config(tmp_path, model, context=4_000_000, slots=1024)), "engine 'chat'", "MiB needed", "MiB free")
    assert not list((tmp_path / "state").glob("logs/*")), "a sidecar was started"
    assert not list((tmp_path / "state" / "run").glob("*/s.sock"))
