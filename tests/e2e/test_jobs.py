"""Jobs of operators on a running gateway: quantise and serve, benchmark, warm, cancel, wait, schedule, and what a kill leaves."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from onnxruntime import InferenceSession

from tests.e2e.adminapi import admin, problem
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import DEMO_MODEL, KEY, Gatehouse, configuration, external
from tests.e2e.test_audit_texts import command
from tests.unit.engines.convert.folders import Gguf, of_gguf
from tests.waiting import until

ROOT_KEY = "sk-operator-0123456789abcdef012345"
THEIR_KEY = "sk-tenant-admin-0123456789abcdef01"
OUR_KEY = "sk-tenant-admin-0123456789abcdef02"
BOSS_KEY = "sk-administrator-0123456789abcdef01"
LOOKS_KEY = "sk-auditor-0123456789abcdef0123456"
OVER = ("done", "dead", "cancelled")
DEMO = Path(__file__).parents[2] / "engines" / "demo" / "artefacts" / DEMO_MODEL

EXPORTER = r"""#!/bin/sh
here=$(dirname "$0")
test "$2" = -c && { cat "$here/packages"; exit; }
test -e "$2" || exit 3
read -r order
folder=$(printf %s "$order" | sed 's/.*"folder":"\([^"]*\)".*/\1/')
cp -a "$here/made" "$folder/made" && printf '{"result": {"torch": "none"}}' > "$folder/outcome.json"
"""
"""In the place of a Python with PyTorch: it has what `packages` says, and leaves what `made` is. What PyTorch makes is tried by hand."""


def settings(state_dir: Path, engine: EngineThread, **jobs: Any) -> dict[str, Any]:
    keys = [
        {"id": "app", "key": KEY, "tenant": "acme", "models": ["*"]},
        {"id": "root", "key": ROOT_KEY, "tenant": "acme", "models": ["*"], "roles": ["operator"]},
        {"id": "ours", "key": OUR_KEY, "tenant": "acme", "models": ["*"], "roles": ["tenant-admin"]},
        {"id": "theirs", "key": THEIR_KEY, "tenant": "globex", "models": ["*"], "roles": ["tenant-admin"]},
        {"id": "boss", "key": BOSS_KEY, "tenant": "acme", "models": ["*"], "roles": ["admin"]},
        {"id": "looks", "key": LOOKS_KEY, "tenant": "globex", "models": [], "roles": ["auditor"]},
    ]
    (state_dir.parent / "models").mkdir(exist_ok=True)
    (python := state_dir.parent / "exporter").write_text(EXPORTER)
    python.chmod(0o700)
    return configuration(
        state_dir,
        engines=[external("fake", engine.port, slots=8)],
        models=[{"name": "fake", "pool": ["fake"], "cache": {}}],
        identity={"api_keys": {"static": keys}},
        files={"enabled": True, "reserve_bytes": 0},
        model_dirs=[str(state_dir.parent / "models")],
        jobs={
            "enabled": True,
            "lease": "1m",  # a gateway that stood still for a while keeps its work
            "backoff": "100ms",
            "attempts": 2,
            "reserve_bytes": 0,
            "memory_bytes": "2GiB",
            "export_python": str(python),
            **jobs,
        },
    )


@pytest.fixture(scope="module")
def engine() -> Iterator[EngineThread]:
    thread = EngineThread()
    yield thread
    thread.close()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, engine: EngineThread) -> Iterator[Gatehouse]:
    directory = tmp_path_factory.mktemp("jobs")
    with Gatehouse(directory, settings(directory / "state", engine)) as running:
        yield running


@pytest.fixture(scope="module")
def root(gateway: Gatehouse) -> Iterator[httpx.Client]:
    with admin(gateway, key=ROOT_KEY) as client:
        yield client


def make(client: httpx.Client, kind: str, **task: Any) -> dict[str, Any]:
    more = {name: task.pop(name) for name in ("after", "attempts") if name in task}
    response = client.post("/jobs", json={"task": {"kind": kind, **task}, **more})
    assert response.status_code == 201, response.text
    found: dict[str, Any] = response.json()
    return found


def ended(client: httpx.Client, id: str) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def over() -> bool:
        found.update(client.get(f"/jobs/{id}").json())
        return found["state"] in OVER

    until(over, what=f"{id} is over", seconds=60)
    return found


def quantize(client: httpx.Client, to: str, **more: Any) -> dict[str, Any]:
    return make(client, "quantize", **{"model": DEMO_MODEL, "to": to, "type": "Q4_0", "requantize": True, **more})


def test_a_model_is_quantised_and_served(gateway: Gatehouse, root: httpx.Client) -> None:
    first = quantize(root, "small-q4.gguf")
    second = make(root, "benchmark", model="small-q4.gguf", streams=2, requests=3, prompt_words=8, max_tokens=8, after=[first["id"]])
    assert second["state"] == "waiting" and second["replica"]
    done = ended(root, first["id"])
    assert done["state"] == "done" and done["attempts"] == 1 and done["error"] is None, done
    assert done["result"]["bytes"] < done["result"]["bytes_before"] and "llama_model_quantize" in done["log"]
    assert str(gateway.state_dir) not in done["log"]
    listed = root.get("/model-files/small-q4.gguf").json()
    assert listed["source"] == "registry" and listed["sha256"] == done["result"]["sha256"]
    assert root.get("/model-uploads").json()["items"] == [] and not list((gateway.state_dir / "jobs").glob(f"{first['id']}*"))
    assert quantize(root, "small-q4.gguf")["state"] == "queued"  # refused when it is placed: the name is taken

    measured = ended(root, second["id"])
    assert measured["state"] == "done", measured
    assert measured["result"]["requests"] == 3 and measured["result"]["tokens"] == 24
    assert measured["result"]["tokens_per_second"] > 0 and measured["result"]["first_token_ms"]["p50"] > 0

    engine = {"name": "quantised", "runtime": "llama.cpp", "model": "small-q4.gguf", "slots": 2}
    assert root.post("/engines", json=engine).status_code == 201
    assert root.post("/models", json={"name": "small", "pool": ["quantised"]}).status_code == 201
    with gateway.client(KEY) as client:
        body = {"model": "small", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
        until(lambda: client.post("/v1/chat/completions", json=body).status_code == 200, what="it is served", seconds=60)
    told = {(record["event"], record["target"]) for record in gateway.audit() if "event" in record}
    assert {(f"job_{state}", first["id"]) for state in ("created", "started", "done")} <= told


def test_a_folder_is_converted_quantised_and_is_the_model_that_it_was(gateway: Gatehouse, root: httpx.Client) -> None:
    """The demo model as a Hugging Face folder comes back with the same weights, bit for bit."""
    models = gateway.directory / "models"
    of_gguf(models / "hub" / "demo", DEMO)
    (models / "linked").symlink_to(models / "hub" / "demo")
    for name in ("hub/demo/", "../models/hub/demo", "/hub/demo", "hub//demo", "linked", "hub", "hub/demo/config.json"):
        refused = root.post("/jobs", json={"task": {"kind": "convert", "model": name, "to": "x.gguf"}})
        assert refused.status_code in (400, 404), name
    first = make(root, "convert", model="hub/demo", to="demo-f32.gguf", type="F32")
    second = make(root, "quantize", model="demo-f32.gguf", to="demo-q8.gguf", type="Q8_0", after=[first["id"]])
    third = make(root, "benchmark", model="demo-q8.gguf", requests=1, max_tokens=4, after=[second["id"]])
    done = ended(root, third["id"])
    assert done["state"] == "done" and done["result"]["tokens"] == 4, (done, ended(root, first["id"]), ended(root, second["id"]))
    result = ended(root, first["id"])["result"]
    assert (result["architecture"], result["type"], result["model"]) == ("LlamaForCausalLM", "F32", "demo-f32.gguf")
    before, after = Gguf(DEMO), Gguf(gateway.state_dir / "models" / "demo-q8.gguf")
    assert before.tensors.keys() == after.tensors.keys()
    for name, (type, weights) in before.tensors.items():
        assert after.tensors[name][0] == type and after.tensors[name][1].tobytes() == weights.tobytes(), name
    for key in ("tokens", "merges", "pre", "token_type", "bos_token_id"):
        assert after.values[f"tokenizer.ggml.{key}"] == before.values[f"tokenizer.ggml.{key}"]


def test_an_uploaded_folder_is_converted_and_served_by_the_command_line_alone(
    gateway: Gatehouse, root: httpx.Client, tmp_path: Path
) -> None:
    source = of_gguf(tmp_path / "demo-hf", DEMO)
    for name in ("pytorch_model.bin", "modeling_demo.py"):
        (source / name).write_bytes(b"nobody reads this")

    def run(*arguments: str) -> str:
        result = command(tmp_path, gateway, ROOT_KEY, *arguments)
        assert result.exit_code == 0, result.output
        return result.output

    sent = run("models", "add", str(source))
    assert "pytorch_model.bin is of a kind" in sent and "modeling_demo.py is of a kind" in sent
    listed = root.get("/model-files/demo-hf").json()
    assert (listed["runtime"], listed["source"], listed["format"]) == ("weights", "registry", "folder")
    assert (listed["architecture"], listed["quantisation"], listed["problem"]) == ("LlamaForCausalLM", "F32", None)
    assert "config.json" in {part["name"] for part in listed["parts"]} and all(part["sha256"] for part in listed["parts"])
    run("jobs", "run", "convert", "demo-hf", "from-hf.gguf", "--watch")
    run("engines", "create", "from-hf", "--runtime", "llama.cpp", "--model", "from-hf.gguf", "--slots", "1")
    run("models", "create", "from-hf", "--engine", "from-hf")
    until(
        lambda: (
            command(
                tmp_path, gateway, KEY, "chat", "Hello", "--model", "from-hf", "--max-tokens", "4", "--gateway-url", gateway.url
            ).exit_code
            == 0
        ),
        what="its answer",
        seconds=60,
    )
    (source / "model.safetensors").write_bytes(b"\x08" + bytes(7) + b"not JSON")
    refused = command(tmp_path, gateway, ROOT_KEY, "models", "add", str(source), "--replace")
    assert refused.exit_code == 1 and "the header of model.safetensors is not JSON" in refused.output
    assert root.get("/model-files/demo-hf").json() == listed, "what was there stays"
    run("models", "remove", "demo-hf")


def test_a_folder_with_a_graph_is_quantised_and_served(gateway: Gatehouse, root: httpx.Client) -> None:
    job = make(root, "quantize-onnx", model="demo-names", to="names-q8")
    wrong = make(root, "quantize-onnx", model="demo-names", to="names.onnx")
    done = ended(root, job["id"])
    assert done["state"] == "done" and done["result"]["bytes"] < done["result"]["bytes_before"] * 0.8, done
    listed = root.get("/model-files/names-q8").json()
    assert (listed["runtime"], listed["format"], listed["sha256"]) == ("onnx", "folder", done["result"]["sha256"])
    assert {part["name"] for part in listed["parts"]} == {"model.onnx", "tokenizer.json", "config.json"}
    assert "without a suffix" in ended(root, wrong["id"])["error"]["message"]
    engine = {"name": "names", "runtime": "onnx", "model": "names-q8"}
    assert root.post("/engines", json=engine).status_code == 201
    until(lambda: root.get("/engines/names").json()["state"] == "ready", what="it is loaded", seconds=60)


def test_what_an_exporter_leaves_is_compared_before_it_is_added(gateway: Gatehouse, root: httpx.Client) -> None:
    task = {"kind": "export", "model": "bert-hf", "to": "bert"}
    source = gateway.directory / "models" / "bert-hf"
    source.mkdir()
    (source / "config.json").write_text("{}")
    (source / "model.safetensors").write_bytes(b"")
    (gateway.directory / "packages").write_text("torch onnxscript asked")
    missing = root.post("/jobs", json={"task": task})
    assert problem(missing, 400, "exporter_missing") and "python -m pip install torch onnxscript" in missing.text
    (gateway.directory / "packages").write_text("asked")
    assert root.post("/jobs", json={"task": {**task, "to": "bert.onnx"}}).status_code == 400

    made = gateway.directory / "made"
    made.symlink_to("/etc")
    dead = ended(root, make(root, **task)["id"])
    assert (dead["state"], dead["error"]["code"], dead["attempts"]) == ("dead", "process_failed", 2), dead
    made.unlink()
    shutil.copytree(DEMO.parent / "demo-names", made / "model")
    inputs = {"input_ids": [[3, 4, 5]], "attention_mask": [[1, 1, 1]]}
    session = InferenceSession(str(made / "model" / "model.onnx"))
    asked = {port.name: np.asarray(inputs[port.name]) for port in session.get_inputs()}
    answer = session.run(["logits"], asked)[0]
    sample = {"inputs": {name: inputs[name] for name in asked}, "output": "logits", "answer": (answer + 1).tolist()}
    (made / "sample.json").write_text(json.dumps(sample))
    other = ended(root, make(root, **task)["id"])
    assert (other["state"], other["attempts"]) == ("dead", 1) and "otherwise than the model" in other["error"]["message"], other
    assert "bert" not in {item["name"] for item in root.get("/model-files").json()["items"]}

    (made / "sample.json").write_text(json.dumps({**sample, "answer": answer.tolist()}))
    done = ended(root, make(root, **task)["id"])
    assert done["state"] == "done" and (done["result"]["torch"], done["result"]["difference"]) == ("none", 0.0), done
    listed = root.get("/model-files/bert").json()
    assert (listed["runtime"], listed["task"], listed["sha256"]) == ("onnx", "entities", done["result"]["sha256"])


def test_what_cannot_be_done_is_dead_with_the_reason(root: httpx.Client) -> None:
    assert problem(
        root.post("/jobs", json={"task": {"kind": "quantize", "model": "../../etc/passwd", "to": "x.gguf", "type": "Q4_0"}}),
        404,
        "not_found",
    )
    for name in ("/etc/x.gguf", "../x.gguf", "a/b.gguf", ".x.gguf"):
        response = root.post("/jobs", json={"task": {"kind": "quantize", "model": DEMO_MODEL, "to": name, "type": "Q4_0"}})
        assert response.status_code == 400, name
    dead = ended(root, quantize(root, "never.gguf", requantize=False)["id"])
    assert (dead["state"], dead["attempts"], dead["error"]["code"]) == ("dead", 1, "model_unusable")
    assert "requantizing" in dead["error"]["message"]
    follower = quantize(root, "after.gguf", after=[dead["id"]])
    assert ended(root, follower["id"])["error"]["code"] == "dependency_failed"
    taken = ended(root, quantize(root, DEMO_MODEL)["id"])
    assert taken["state"] == "dead" and taken["error"]["code"] == "read_only", taken

    again = root.post(f"/jobs/{dead['id']}/retry").json()
    assert (again["state"], again["attempts"]) == ("queued", 0)
    assert ended(root, dead["id"])["state"] == "dead"
    assert root.post(f"/jobs/{follower['id']}/retry").status_code == 409
    names = {item["name"] for item in root.get("/model-files").json()["items"]}
    assert not names & {"never.gguf", "after.gguf"}


def test_a_file_is_warmed_and_its_answers_are_kept(gateway: Gatehouse, root: httpx.Client) -> None:
    asks = [{"model": "fake", "temperature": 0, "messages": [{"role": "user", "content": f"warm {number}"}]} for number in range(3)]
    lines = [{"custom_id": str(n), "method": "POST", "url": "/v1/chat/completions", "body": body} for n, body in enumerate(asks)]
    content = "\n".join(map(json.dumps, lines)).encode()
    with gateway.client(KEY) as client:
        file = client.post("/v1/files", files={"file": ("w.jsonl", content)}, data={"purpose": "batch"}).json()["id"]
        with admin(gateway, key=OUR_KEY) as ours:
            job = ended(ours, make(ours, "warm", file=file)["id"])
            assert (job["state"], job["result"]) == ("done", {"answered": 3, "failed": 0}), job
            refused = ours.post("/jobs", json={"task": {"kind": "quantize", "model": DEMO_MODEL, "to": "o.gguf", "type": "Q4_0"}})
            problem(refused, 403, "policy_denied")  # a tenant's administrator has no say about the machine's files
        hit = client.post("/v1/chat/completions", json=lines[0]["body"])
        assert hit.headers["x-gatehouse-cache"] == "hit"
    with admin(gateway, key=THEIR_KEY) as theirs, admin(gateway, key=LOOKS_KEY) as looks:
        problem(theirs.post("/jobs", json={"task": {"kind": "warm", "file": file}}), 404, "not_found")
        for path in ("", "/events"):
            assert theirs.get(f"/jobs/{job['id']}{path}").status_code == 404
        for path in ("/cancel", "/retry"):
            assert theirs.post(f"/jobs/{job['id']}{path}").status_code == 404
            assert looks.post(f"/jobs/{job['id']}{path}").status_code == 403
        assert theirs.get("/jobs").json()["items"] == [] and looks.get("/jobs").json()["items"]
        problem(theirs.get("/jobs", params={"tenant": "acme"}), 403, "policy_denied")
        problem(theirs.post("/jobs", json={"task": {"kind": "warm", "file": file}, "after": [job["id"]]}), 404, "not_found")


def test_a_schedule_ends_with_the_key_that_made_it(gateway: Gatehouse) -> None:
    with admin(gateway, key=BOSS_KEY) as boss:
        made = boss.post("/keys", json={"id": "temporary", "tenant": "acme", "models": ["*"], "roles": ["operator"]})
        assert made.status_code == 201, made.text
        body = {"cron": "0 3 * * *", "task": {"kind": "benchmark", "model": DEMO_MODEL}}
        with admin(gateway, key=made.json()["secret"]) as theirs:
            assert theirs.post("/job-schedules", json={"name": "theirs", **body}).status_code == 201
        assert boss.post("/job-schedules", json={"name": "ours", **body}).status_code == 201
        assert boss.post("/keys/temporary/revoke").status_code == 200

        def names() -> list[str]:
            return [one["name"] for one in boss.get("/job-schedules").json()["items"]]

        until(lambda: names() == ["ours"], what="the schedule has ended", seconds=30)
        assert boss.delete("/job-schedules/ours").status_code == 200

    def told() -> list[tuple[str, str, str]]:
        found = [record for record in gateway.audit() if record.get("event") == "job_unscheduled"]
        return [(one["target"], one.get("outcome", "ok"), one["detail"].get("code", "")) for one in found]

    until(lambda: told() == [("acme/theirs", "denied", "creator_stopped"), ("acme/ours", "ok", "")], what="the records")


def test_the_command_line_makes_follows_and_schedules(gateway: Gatehouse, root: httpx.Client, tmp_path: Path) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        result = command(tmp_path, gateway, ROOT_KEY, "jobs", *arguments)
        return result.exit_code, result.output

    code, out = run("run", "quantize", DEMO_MODEL, "cli.gguf", "--type", "Q8_0", "--requantize", "--watch")
    assert code == 0 and "cli.gguf" in out, out
    code, out = run("run", "quantize", DEMO_MODEL, "cli2.gguf", "--type", "Q4_0", "--watch")
    assert code == 1 and "the job is dead" in out, out
    make_it = (
        "run",
        "benchmark",
        "cli.gguf",
        "--requests",
        "1",
        "--max-tokens",
        "2",
        "--cron",
        "0 3 * * sun",
        "--timezone",
        "Europe/Zurich",
    )
    code, out = run(*make_it, "--name", "weekly")
    assert code == 0, out
    code, out = run("schedules")
    assert code == 0 and "weekly" in out
    assert (
        root.post(
            "/job-schedules", json={"name": "weekly", "cron": "0 3 * * *", "task": {"kind": "benchmark", "model": "cli.gguf"}}
        ).status_code
        == 409
    )
    for wrong in (
        {"cron": "61 3 * * *"},
        {"cron": "0 3 31 2 *"},
        {"cron": "0 3 * * *", "timezone": "Mars/Olympus"},
        {"cron": "* * * * * *"},
    ):
        body = {"name": "wrong", "task": {"kind": "benchmark", "model": "cli.gguf"}, **wrong}
        assert root.post("/job-schedules", json=body).status_code == 400, wrong
    with admin(gateway, key=THEIR_KEY) as theirs:
        assert theirs.get("/job-schedules").json()["items"] == []
        assert theirs.delete("/job-schedules/weekly", params={"tenant": "acme"}).status_code == 404
    code, out = run("unschedule", "weekly")
    assert code == 0, out
    assert root.get("/job-schedules").json()["items"] == []
    code, out = run("list", "--state", "dead")
    assert code == 0 and "quantize" in out


def test_a_job_of_a_gateway_that_is_killed_is_taken_up_again(tmp_path: Path, engine: EngineThread) -> None:
    config = settings(tmp_path / "state", engine)
    with Gatehouse(tmp_path, config) as gateway:
        with admin(gateway, key=ROOT_KEY) as client:
            long = make(client, "benchmark", model=DEMO_MODEL, requests=10_000, max_tokens=4, attempts=9)["id"]
            doomed = make(client, "benchmark", model=DEMO_MODEL, requests=10_000, max_tokens=4, attempts=1)["id"]
            until(lambda: client.get(f"/jobs/{long}").json()["progress"] > 0, what="it is under way", seconds=60)
            begun = client.get(f"/jobs/{long}").json()["attempts"]
        held = sorted(children(gateway.process.pid))
        os.kill(gateway.process.pid, signal.SIGKILL)
        gateway.process.wait()
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in held), what="its processes end with it", seconds=30)
        gateway.start()
        with admin(gateway, key=ROOT_KEY) as client:
            again = dict[str, Any]()

            def resumed() -> bool:
                again.update(client.get(f"/jobs/{long}").json())
                return again["state"] == "running" and again["attempts"] > begun and again["progress"] > 0

            until(resumed, what="it runs again", seconds=60)
            stopped = client.post(f"/jobs/{long}/cancel").json()
            assert stopped["cancels"]
            assert ended(client, long)["state"] == "cancelled"
            assert not client.get(f"/jobs/{long}").json()["result"]
            until(lambda: client.get(f"/jobs/{doomed}").json()["state"] == "running", what="the next begins", seconds=60)
            assert client.post(f"/jobs/{doomed}/cancel").json()["cancels"]
            assert ended(client, doomed)["state"] == "cancelled"
            until(lambda: not list((gateway.state_dir / "jobs").iterdir()), what="the end of its files")


def children(pid: int) -> set[int]:
    """Processes below one, as /proc says."""
    found: set[int] = set()
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended: its children are another's now
            for child in map(int, path.read_text().split()):
                found |= {child} | children(child)
    return found
