"""Evidence bundles: everything about one request in a file that an auditor checks with the public key alone."""

from __future__ import annotations

import io
import json
import runpy
import zipfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from gateway.audit.bundle import ENGINE_EVENT, POLICY_EVENT, bundle
from gateway.audit.crypto import PUBLIC_KEY
from gateway.audit.policy_files import write_policy
from gateway.core.errors import AuditUnproven

SCRIPT = Path(__file__).parents[4] / "scripts" / "verify-proof"
OLD, NEW = '{"roles":{"old":{}}}', '{"roles":{"new":{}}}'


def digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


@pytest.fixture
def made(log_bench: Any, make: Any, tmp_path: Path) -> Any:
    """The control process writes the events, a worker the requests; the policy changes between them."""
    log_bench.policies = tmp_path / "policies"
    log_bench.policies.mkdir()
    for text in (OLD, NEW):
        write_policy(log_bench.policies, digest(text), text.encode())
    control, worker = log_bench.writer(writer="gw"), log_bench.writer(writer="gw-1")
    control.open()
    worker.open()
    control.write(
        [
            make.event(POLICY_EVENT, target="policies", detail={"version": 1, "sha256": digest(OLD)}),
            make.event(ENGINE_EVENT, target="chat-a", detail={"version": "1", "sha256": "ab" * 32}),
            make.event(ENGINE_EVENT, target="chat-b", detail={"version": "1", "sha256": "cd" * 32}),
        ]
    )
    worker.write([make.intent("r1", config=1, rule="binding 3"), make.outcome("r1", endpoint="chat-a", attempts=1)])
    control.write([make.event(POLICY_EVENT, target="policies", detail={"version": 2, "sha256": digest(NEW)})])
    worker.write([make.intent("r2", config=2), make.outcome("r2", endpoint="external")])
    control.close()
    worker.close()
    return log_bench


def of(made: Any, request: str) -> dict[str, bytes]:
    """The times of the events are after the records' in this log, whose clock stands still: within the margin."""
    data = bundle(made.directory, made.policies, made.signer, made.clock, request)
    assert data is not None
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def judged(made: Any, files: dict[str, bytes], tmp_path: Path) -> int:
    path = tmp_path / "bundle.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    key = made.state_dir / "keys" / PUBLIC_KEY
    return int(runpy.run_path(str(SCRIPT))["main"](["verify-proof", str(key), str(path)]))


def test_it_shows_the_policy_that_decided(made: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = of(made, "r1")
    assert sorted(files) == ["context.json", "manifest.json", "proofs.json"]
    context = json.loads(files["context.json"])
    assert context["texts"] == [{"name": "policy", "sha256": digest(OLD), "text": OLD}]
    claims = {claim["name"]: claim["value"] for claim in context["claims"]}
    assert claims["rule"] == "binding 3" and claims["route"] == "chat-a" and claims["configuration version"] == 1
    assert judged(made, files, tmp_path) == 0
    told = capsys.readouterr().out
    assert "proven: the text of policy" in told and "proven: 2 records of r1" in told and "not proven" not in told
    assert json.loads(of(made, "r2")["context.json"])["texts"][0]["text"] == NEW


def changed(files: dict[str, bytes], name: str, change: Callable[[Any], Any]) -> dict[str, bytes]:
    """A bundle whose manifest was made to fit."""
    value = json.loads(files[name])
    change(value)
    found = {**files, name: json.dumps(value).encode()}
    manifest = json.loads(files["manifest.json"])
    manifest["files"] = {one: sha256(data).hexdigest() for one, data in found.items() if one != "manifest.json"}
    return {**found, "manifest.json": json.dumps(manifest).encode()}


def claim(context: Any, name: str) -> Any:
    return next(one for one in context["claims"] if one["name"] == name)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("context.json", lambda v: v["texts"][0].update(text=NEW)),
        ("context.json", lambda v: claim(v, "rule").update(value="binding 4")),
        ("context.json", lambda v: claim(v, "model").update(path=["nothing"])),
        ("context.json", lambda v: v.update(request_id="r2")),
        ("proofs.json", lambda v: v["proofs"][0]["record"].update(tenant="other")),
        ("proofs.json", lambda v: v["proofs"].clear()),
        ("proofs.json", lambda v: v["context"][0]["checkpoint"].update(covers=1)),
        ("proofs.json", lambda v: v["proofs"].append(v["context"][0])),
    ],
)
def test_a_changed_bundle_is_refused(made: Any, tmp_path: Path, name: str, change: Callable[[Any], Any]) -> None:
    assert judged(made, changed(of(made, "r1"), name, change), tmp_path) == 1


def test_a_text_that_no_record_names_is_told(made: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def forge(context: Any) -> None:
        context["texts"] = [{"name": "policy", "sha256": digest(NEW), "text": NEW}]

    assert judged(made, changed(of(made, "r1"), "context.json", forge), tmp_path) == 0
    assert "not proven: the text of policy" in capsys.readouterr().out


def test_files_that_the_manifest_does_not_name_are_refused(made: Any, tmp_path: Path) -> None:
    files = of(made, "r1")
    assert judged(made, {**files, "more.txt": b"x"}, tmp_path) == 1
    assert judged(made, {**files, "context.json": files["context.json"] + b" "}, tmp_path) == 1


def test_what_is_not_there_is_left_out(made: Any, tmp_path: Path, make: Any) -> None:
    for path in made.policies.iterdir():
        path.write_text("changed")
    assert json.loads(of(made, "r1")["context.json"])["texts"] == []
    assert bundle(made.directory, made.policies, made.signer, made.clock, "nobody") is None
    writer = made.writer(writer="gw-1")
    writer.open()
    writer.write([make.intent("r3", config=9)])
    with pytest.raises(AuditUnproven):
        bundle(made.directory, made.policies, made.signer, made.clock, "r3")
    writer.close()
    assert [one["name"] for one in json.loads(of(made, "r3")["context.json"])["claims"]][:2] == ["tenant", "principal"]


def test_a_bundle_has_no_claim_from_another_callers_request_with_the_same_id(made: Any, make: Any) -> None:
    worker = made.writer(writer="gw-2")
    worker.open()
    worker.write([make.intent("r9", "acme", config=1), make.intent("r9", "globex", config=2)])
    worker.write(
        [make.outcome("r9", tenant="globex", principal="ci", endpoint="forged"), make.outcome("r9", peer="10.0.0.9", endpoint="x")]
    )
    worker.write([make.outcome("r9", tenant="acme", principal="ci", endpoint="chat-a")])
    worker.close()
    claims = {claim["name"]: claim["value"] for claim in json.loads(of(made, "r9")["context.json"])["claims"]}
    assert (claims["tenant"], claims["route"], claims["configuration version"]) == ("acme", "chat-a", 1)
