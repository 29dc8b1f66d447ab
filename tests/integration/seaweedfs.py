"""A SeaweedFS with its S3 gateway for tests: its own folder, free ports, two identities. It keeps objects and begun uploads on the disk,
checks what it is sent by its checksums, and says who may do what, as the stores do that sites run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from gateway.core.secret import Secret
from gateway.core.specs.fleet import ModelStoreSpec
from tests.cluster.redis_servers import free_port
from tests.waiting import until

BUCKET = "models"
KEYS = {"writer": "writers-secret", "reader": "readers-secret"}
PORTS = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc", "s3.port", "s3.port.grpc")
QUIET = (
    "-master.telemetry=false",
    "-s3.iam=false",
    "-s3.port.iceberg=0",
    "-s3.port.lance=0",
    "-master.volumeSizeLimitMB=64",
)


class SeaweedServer:
    """`freeze` and `thaw` as often as a test likes."""

    def __init__(self, folder: Path, volumes: int = 4) -> None:
        actions = {"writer": ["Admin", "Read", "Write", "List"], "reader": ["Read", "List"]}
        identities = [
            {"name": name, "credentials": [{"accessKey": name, "secretKey": secret}], "actions": actions[name]}
            for name, secret in KEYS.items()
        ]
        (folder / "s3.json").write_text(json.dumps({"identities": identities}))
        (folder / "data").mkdir()
        self._folder, self._ports = folder, {name: free_port() for name in PORTS}
        self.endpoint = f"http://127.0.0.1:{self._ports['s3.port']}"
        weed = [str(Path(sys.executable).with_name("weed")), "-logtostderr", "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
        folders = [f"-dir={folder / 'data'}", f"-filer.localSocket={folder / 'f'}", f"-s3.localSocket={folder / 's'}"]
        ports = [f"-{name}={port}" for name, port in self._ports.items()]
        arguments = [*weed, *folders, *ports, *QUIET, f"-volume.max={volumes}", "-filer", "-s3", f"-s3.config={folder / 's3.json'}"]
        with (folder / "log").open("wb") as log:
            environ = {**os.environ, "HOME": str(folder)}
            self._process = subprocess.Popen(arguments, stdout=log, stderr=log, cwd=folder, env=environ)

    def client(self, name: str = "writer") -> Any:
        config = Config(retries={"total_max_attempts": 1}, connect_timeout=5, read_timeout=20, s3={"addressing_style": "path"})
        keys = {"aws_access_key_id": name, "aws_secret_access_key": KEYS[name]}
        return boto3.client("s3", endpoint_url=self.endpoint, region_name="us-east-1", config=config, **keys)

    def spec(self, prefix: str, name: str = "writer", secret: str | None = None, **more: Any) -> ModelStoreSpec:
        keys = {"access_key": Secret(name), "secret_key": Secret(secret or KEYS[name])}
        return ModelStoreSpec(**{"bucket": BUCKET, "prefix": prefix, "endpoint": self.endpoint, "timeout": 10.0, **keys, **more})

    def make_bucket(self) -> None:
        def made() -> bool:
            assert self._process.poll() is None, (self._folder / "log").read_text()[-4000:]
            try:
                self.client().create_bucket(Bucket=BUCKET)
                self.client().put_object(Bucket=BUCKET, Key="begun", Body=b"x")  # a volume is there
            except (BotoCoreError, ClientError):
                return any(one["Name"] == BUCKET for one in self._buckets()) and self._puts()
            return True

        until(made, what="the bucket")

    def _buckets(self) -> list[dict[str, Any]]:
        try:
            return list(self.client().list_buckets()["Buckets"])
        except (BotoCoreError, ClientError):
            return []

    def _puts(self) -> bool:
        try:
            self.client().put_object(Bucket=BUCKET, Key="begun", Body=b"x")
        except (BotoCoreError, ClientError):
            return False
        return True

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        self._process.kill()  # in order it would take 15 seconds
        self._process.wait()


@contextmanager
def seaweedfs(volumes: int = 4) -> Iterator[SeaweedServer]:
    """volumes: of 64 MiB, which is all that it can keep."""
    with tempfile.TemporaryDirectory(prefix="gatehouse-s3-") as folder:
        server = SeaweedServer(Path(folder), volumes)
        try:
            server.make_bucket()
            yield server
        finally:
            server.end()
