"""The archive against a real S3 server (moto's): objects with their locks and checksums, put once; what fails is told."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from gateway.audit.archive import Archive, ArchiveFailed
from gateway.audit.checkpoint_copies import CheckpointCopy
from gateway.audit.closing import compress_segment, seal_of
from gateway.audit.segments import open_segment
from gateway.core.clock import FakeClock
from gateway.core.errors import ConfigError
from gateway.core.secret import Secret
from gateway.core.specs.retention import ArchiveSpec, CopySpec

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
KEYS: dict[str, Any] = {"access_key": Secret("test-key-id"), "secret_key": Secret("test-secret")}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    yield f"http://{host}:{port}"
    moto.stop()


@pytest.fixture
def store(server: str) -> Any:
    client = boto3.client(
        "s3", endpoint_url=server, region_name="us-east-1", aws_access_key_id="test-key-id", aws_secret_access_key="test-secret"
    )
    for name, lock in (("locked", True), ("plain", False)):
        client.create_bucket(Bucket=name, ObjectLockEnabledForBucket=lock)
    yield client
    for name in ("locked", "plain"):
        for one in client.list_object_versions(Bucket=name).get("Versions", []):
            client.delete_object(Bucket=name, Key=one["Key"], VersionId=one["VersionId"], BypassGovernanceRetention=True)
        client.delete_bucket(Bucket=name)


@pytest.fixture
def sealed(log_bench: Any) -> Any:
    log_bench.log(batches=6, segment_bytes=2500)
    seal = seal_of("0", 1, log_bench.segment(1), log_bench.segment(2), log_bench.signer.verifier, 5.0, lambda: None)
    return compress_segment(log_bench.segment(1), seal, lambda: None), seal


def archive(server: str, bucket: str = "locked", **more: Any) -> Archive:
    return Archive(ArchiveSpec(bucket=bucket, endpoint=server, prefix="gw/audit/", lock_for=3600.0, **{**KEYS, **more}), FakeClock())


def test_a_segment_is_put_with_its_seal_and_a_lock(server: str, store: Any, sealed: Any, tmp_path: Path) -> None:
    path, seal = sealed
    made = archive(server)
    made.probe()
    assert made.put_segment(path, seal) == "s3://locked/gw/audit/audit-0-00000001.jsonl.zst"
    found = store.get_object(Bucket="locked", Key="gw/audit/audit-0-00000001.jsonl.zst")
    data = found["Body"].read()
    assert data == path.read_bytes() and found["ObjectLockMode"] == "GOVERNANCE"
    assert int(found["ObjectLockRetainUntilDate"].timestamp()) == int(FakeClock().wall() + 3600)
    assert found["Metadata"] == {"root": seal.root, "lines": seal.sha256, "sha256": sha256(data).hexdigest()}
    copy = tmp_path / path.name
    copy.write_bytes(data)
    with open_segment(copy) as lines:
        assert sha256(lines.read()).hexdigest() == seal.sha256
    manifest = json.loads(store.get_object(Bucket="locked", Key="gw/audit/audit-0-00000001.seal.json")["Body"].read())
    assert manifest["root"] == seal.root and manifest["head"] == seal.head


def test_what_is_there_is_not_put_again(server: str, store: Any, sealed: Any) -> None:
    """A lock keeps every version: a second one of the same would stay for years."""
    made = archive(server)
    for _ in range(3):
        made.put_segment(*sealed)
    versions = store.list_object_versions(Bucket="locked")["Versions"]
    assert len(versions) == 2


def test_without_a_lock(server: str, store: Any, sealed: Any) -> None:
    archive(server, "plain", lock="none").put_segment(*sealed)
    found = store.get_object(Bucket="plain", Key="gw/audit/audit-0-00000001.jsonl.zst")
    assert "ObjectLockMode" not in found


def test_failures_are_told(server: str, store: Any, sealed: Any) -> None:
    with pytest.raises(ArchiveFailed):
        archive(server, "nobody-made-this").put_segment(*sealed)
    with pytest.raises(ArchiveFailed):
        archive(server, "nobody-made-this").probe()
    with pytest.raises(ArchiveFailed):
        archive("http://127.0.0.1:9").put_segment(*sealed)


def test_settings_that_cannot_be_used_are_refused(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="go together"):
        archive(server, secret_key=None)
    with pytest.raises(ConfigError):
        archive("no url")
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(ConfigError, match=r"gatehouse\[s3\]"):
        archive(server)


def test_checkpoints_are_copied_there(server: str, store: Any, log_bench: Any) -> None:
    log_bench.log(batches=2)
    copy = CheckpointCopy("archive", CopySpec(archive=True), archive(server, "plain", lock="none"))
    done = copy.take(log_bench.directory, "0", 0)
    name = "gw/audit/checkpoints-0.jsonl"
    kept = (log_bench.directory / "checkpoints-0.jsonl").read_bytes()
    assert done == len(kept) and store.get_object(Bucket="plain", Key=name)["Body"].read() == kept
    assert copy.take(log_bench.directory, "0", done) == done
