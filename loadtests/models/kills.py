"""Shared model files under kill -9: two gateways, one PostgreSQL, a bucket, and a batch that runs meanwhile.

    python -m loadtests.models.kills [--kills 10] [--megabytes 40] [--lines 4000] [--pause 3] [--seed 1]

Models are uploaded at either gateway in pieces, fetched by the other one (`fetch: all`), put into the bucket in parts and deleted, while
one gateway or the other is killed and started again. At each kill, what lies in the registries must be whole: known names with the bytes
that were sent. At the end both registries and the bucket must have each model whose upload was acknowledged and whose deletion was not,
and nothing else: no file half there, no object too many, no multipart upload that goes on. Exits with 1 otherwise.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import yaml

from loadtests.batches.site import OVER, Client, cluster
from loadtests.cluster.evidence import arguments, header, table
from loadtests.llamacpp.random_gguf import Shape, write
from tests.cluster.cluster import Cluster, Replica
from tests.integration.seaweedfs import BUCKET, KEYS, SeaweedServer, seaweedfs
from tests.waiting import until

PREFIX, WRITER = "kills/", "writer"
TUS = {"tus-resumable": "1.0.0", "content-type": "application/offset+octet-stream"}
PIECE = 4 * 1024 * 1024
SHAPE = Shape(layers=1, width=32, heads=2, kv_heads=1, feed_forward=32)


class Models:
    """What was sent under which name, and what the gateways have said of it."""

    def __init__(self, folder: Path, size: int) -> None:
        self._base, self._size = write(folder / "base.gguf", SHAPE).read_bytes(), size
        self._numbers = itertools.count()
        self.sums: dict[str, str] = {}
        self.there: set[str] = set()
        self.gone: set[str] = set()
        self.unknown: set[str] = set()
        """Whose deletion was asked for and not answered."""
        self.counts: Counter[str] = Counter()

    def make(self) -> tuple[str, bytes]:
        name = f"m{next(self._numbers)}.gguf"
        data = self._base.ljust(self._size - 16, b"\0") + os.urandom(16)
        self.sums[name] = hashlib.sha256(data).hexdigest()
        return name, data


def upload(models: Models, replica: Replica, stop: threading.Event) -> None:
    """Sends one model to one replica in pieces, goes on after each kill of it, and gives up when it is told."""
    name, data = models.make()
    id = ""
    while not stop.is_set():
        with suppress(httpx.HTTPError), replica.admin() as client:
            if not id:
                made = client.post("/model-uploads", json={"name": name, "size": len(data), "sha256": models.sums[name]})
                if made.status_code == 409:  # it was made, and the answer was lost
                    return
                id = made.json()["id"] if made.status_code == 201 else ""
            while id:
                found = client.head(f"/model-uploads/{id}", headers=TUS)
                if found.status_code == 404:
                    break
                at = int(found.headers["upload-offset"])
                if at == len(data):
                    break
                client.patch(f"/model-uploads/{id}", content=data[at : at + PIECE], headers={**TUS, "upload-offset": str(at)})
            done = client.post(f"/model-uploads/{id}/complete") if id else None
            if done is not None and done.status_code == 404 and name in listed(client):  # it was added, and the answer was lost
                models.counts["added, answer lost"] += 1
                models.there.add(name)
                return
            if done is not None and done.status_code == 201:
                models.counts["added"] += 1
                models.there.add(name)
                return
            if done is not None and done.status_code == 404:
                id = ""
        stop.wait(0.2)


def delete(models: Models, replica: Replica, chance: random.Random) -> None:
    """Deletes one at a replica; where no answer comes, it may be gone or there."""
    name = chance.choice(sorted(models.there - models.unknown))
    try:
        with replica.admin() as client:
            answer = client.delete(f"/model-files/{name}")
    except httpx.HTTPError:
        models.unknown.add(name)
        models.counts["deletion, answer lost"] += 1
        return
    if answer.status_code == 200:
        models.there.discard(name)
        models.gone.add(name)
        models.counts["deleted"] += 1


def listed(client: httpx.Client) -> set[str]:
    return {one["name"] for one in client.get("/model-files").raise_for_status().json()["items"] if one["source"] == "registry"}


def wrong(models: Models, replica: Replica) -> list[str]:
    """What a registry has that is not what was sent under that name."""
    found = []
    for path in (replica.state_dir / "models").glob("[!.]*"):
        with suppress(FileNotFoundError):
            if hashlib.sha256(path.read_bytes()).hexdigest() != models.sums.get(path.name):
                found.append(f"{replica.name}: {path.name}")
    return found


def work(models: Models, site: Cluster, stop: threading.Event, chance: random.Random) -> None:
    while not stop.is_set():
        replica = chance.choice(list(site.replicas.values()))
        if len(models.there - models.unknown) > 4:
            delete(models, replica, chance)
        else:
            upload(models, replica, stop)


def shared(server: SeaweedServer) -> dict[str, Any]:
    keys = {"access_key": "${env:S3_KEY}", "secret_key": "${env:S3_SECRET}"}
    return {"listen": "127.0.0.1:0", "fetch": "all", "store": {"bucket": BUCKET, "prefix": PREFIX, "endpoint": server.endpoint, **keys}}


def main() -> None:
    given = arguments(__doc__, kills=10, megabytes=40, lines=4000, pause=3.0, seed=1, settle=90.0).parse_args()
    chance, stop = random.Random(given.seed), threading.Event()
    bad: list[str] = []
    with tempfile.TemporaryDirectory() as folder, seaweedfs(volumes=64) as server:
        models = Models(Path(folder), given.megabytes * 1024 * 1024)
        site = cluster(given.workers or None, Path(folder) / "files", seconds=0.02, parallel=16)
        for replica in site.replicas.values():
            replica.config.update(model_sharing=shared(server), uploads={"reserve_bytes": 0})
            replica.file.write_text(yaml.safe_dump(replica.config))
            replica.environ.update(S3_KEY=WRITER, S3_SECRET=KEYS[WRITER])
        with site:
            header(site)
            client, begin = Client(site), time.monotonic()
            batch = client.begin(given.lines)
            working = [threading.Thread(target=work, args=(models, site, stop, random.Random(given.seed + n))) for n in (1, 2)]
            for thread in working:
                thread.start()
            for _ in range(given.kills):
                time.sleep(given.pause * (0.5 + chance.random()))
                replica = chance.choice(list(site.replicas.values()))
                replica.kill()
                bad += wrong(models, replica)
                replica.start()
            stop.set()
            for thread in working:
                thread.join(120)
            until(lambda: client.batch(batch)["status"] in OVER, 120, "the end of the batch")
            told = client.batch(batch)
            seconds = time.monotonic() - begin
            with suppress(TimeoutError, AssertionError):
                until(lambda: settled(models, site, server), given.settle, "the registries and the bucket as one")
            bad += differences(models, site, server)
            lines = Counter(one["custom_id"] for one in client.results(told["output_file_id"]))
    lost, twice = given.lines - len(lines), sum(count > 1 for count in lines.values())
    row = {"kills": given.kills, "seconds": seconds, **models.counts, "half visible or lost": len(bad)}
    table([{**row, "lines": given.lines, "lost": lost, "twice": twice, "repeated (told)": told["gatehouse"]["repeated"]}])
    for one in bad:
        print(one)
    sys.exit(1 if bad or lost or twice else 0)


def settled(models: Models, site: Cluster, server: SeaweedServer) -> bool:
    return not differences(models, site, server)


def differences(models: Models, site: Cluster, server: SeaweedServer) -> list[str]:
    """What is not as it must be in the end."""
    found = []
    for replica in site.replicas.values():
        with replica.admin() as client:
            has = listed(client)
        sure = models.there - models.unknown
        found += [f"{replica.name} has not {name}" for name in sorted(sure - has)]
        found += [f"{replica.name} has {name}, which was deleted" for name in sorted(has & models.gone)]
        found += wrong(models, replica)
        left = [path.name for path in (replica.state_dir / "arriving").glob("*")]
        found += [f"{replica.name} still fetches {name}" for name in left]
    with site.a.admin() as client:
        one, here = client.get("/model-copies").json()["items"], listed(client)
    with site.b.admin() as client:
        if listed(client) != here:
            found.append("the replicas have not the same")
    bucket = server.client()
    objects = {each["Key"]: each for each in bucket.list_objects_v2(Bucket=BUCKET, Prefix=PREFIX).get("Contents", [])}
    wanted = {f"{PREFIX}{each['digest']}/0": each["name"] for each in one if each["state"] != "removed"}
    found += [f"the bucket has {key} too many" for key in objects.keys() - wanted.keys()]
    for key, name in wanted.items():
        if key not in objects:
            problem = next(each["problem"] for each in one if each["name"] == name)
            found.append(f"the bucket has not {name}: {problem or 'no problem is told'}")
        elif hashlib.sha256(bucket.get_object(Bucket=BUCKET, Key=key)["Body"].read()).hexdigest() != models.sums[name]:
            found.append(f"the bucket has other bytes of {name}")
    begun = bucket.list_multipart_uploads(Bucket=BUCKET, Prefix=PREFIX).get("Uploads", [])
    return [*found, *(f"a multipart upload of {each['Key']} was left" for each in begun)]


if __name__ == "__main__":
    main()
