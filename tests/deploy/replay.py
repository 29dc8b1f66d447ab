"""Carries out a Containerfile's steps in an empty Debian root and runs the image, without a container engine. Outside the suite.

    sudo python -m tests.deploy.replay deploy/containers/gateway.Containerfile --work /var/tmp/replay [--carry PATH]...

Each stage begins as a copy of what debootstrap makes, gets only the files that COPY names and .dockerignore lets through, and runs its
steps with chroot in namespaces of its own. The image then serves a small configuration as process 1, with a read-only root, a /tmp from
which nothing can be executed, as its user, without capabilities, in a network namespace of its own, until its health check passes; SIGTERM
must end it with 0. With --model FILE an image with engines also loads that model and answers a chat. Stages on another base than Debian
(CUDA) cannot be replayed.

--carry: files and folders of this machine that give access to packages or that save time (~/.cache/gatehouse). The step that installs
Debian's packages writes /etc/ssl/certs anew: behind a proxy with a certificate of its own, carry a copy of that from elsewhere, and name it
in PIP_CERT and SSL_CERT_FILE.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.deploy.containerfile import Stage, copied, copies, listed, stages

ROOT = Path(__file__).resolve().parents[2]
PASSED_ON = ("PIP_", "SSL_CERT", "http_proxy", "https_proxy", "no_proxy")
CONFIG = """version: 1
identity: {api_keys: {static: [{id: replay, key: "${env:REPLAY_KEY}", tenant: replay, models: ["*"]}]}}
"""
ENGINE = """engines: [{{name: replayed, runtime: llama.cpp, model: /var/lib/gatehouse/{name}, slots: 1, context: 512}}]
models: [{{name: replayed, pool: [replayed]}}]
"""
ASK = """
import json, os, time, urllib.error, urllib.request
body = json.dumps({"model": "replayed", "max_tokens": 16, "messages": [{"role": "user", "content": "Hello!"}]}).encode()
headers = {"authorization": "Bearer " + os.environ["REPLAY_KEY"], "content-type": "application/json"}
request = urllib.request.Request("http://127.0.0.1:8080/v1/chat/completions", body, headers)
for left in reversed(range(300)):  # the model is being loaded
    try:
        answer = json.load(urllib.request.urlopen(request, timeout=120))
        break
    except urllib.error.HTTPError as error:
        if error.code != 503 or not left:
            raise
        time.sleep(0.4)
assert answer["choices"][0]["message"]["content"], answer
print("the model says:", answer["choices"][0]["message"]["content"])
"""
RUN_IMAGE = r"""
set -eu
root=$1 state=$2 config=$3; shift 3
ip link set lo up
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o noexec,nosuid,nodev tmpfs "$root/tmp"
mount --bind "$state" "$root/var/lib/gatehouse"
mkdir -p "$root/etc/gatehouse"
touch "$root/etc/gatehouse/gatehouse.yaml"
mount --bind "$config" "$root/etc/gatehouse/gatehouse.yaml"
mount -o remount,bind,ro "$root"
as="chroot $root setpriv --reuid=$USER_ID --regid=$USER_ID --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all"
if $as sh -c 'touch /opt/gatehouse/written' 2>/dev/null; then echo "the root can be written" >&2; exit 1; fi
unshare --pid --fork --kill-child --mount-proc="$root/proc" $as "$@" &
process=$!
for attempt in $(seq 600); do
    if $as sh -c "$HEALTH" 2>/dev/null; then echo "healthy after $attempt tries"; break; fi
    kill -0 "$process" || exit 1
    sleep 0.2
done
$as sh -c "$HEALTH"
[ -z "$ASK" ] || $as python3 -c "$ASK"
kill -TERM $(cat "$root/proc/$process/task/$process/children")
wait "$process"
echo "ended with 0"
"""


def run(command: list[str], **options: object) -> None:
    print("+", shlex.join(command)[:200], flush=True)
    subprocess.run(command, check=True, timeout=3600, **options)  # type: ignore[call-overload]


def environment(stage: Stage) -> dict[str, str]:
    """ENV and the defaults of ARG, over what a container has."""
    found = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
    for word, text in stage.steps:
        if word in ("ENV", "ARG"):
            found |= dict(part.split("=", 1) for part in shlex.split(text))
    return found


def build(stage: Stage, base: Path, work: Path, carry: list[str]) -> Path:
    """Carries the stage's steps out; returns its root."""
    root = work / stage.name
    run(["cp", "-a", str(base), str(root)])
    for path in carry:
        (root / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        run(["cp", "-aL", path, str(root / path.lstrip("/").rpartition("/")[0])])
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    passed = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}
    directory = "/"
    for number, (word, text) in enumerate(stage.steps):
        here = root / directory.lstrip("/")
        if word == "WORKDIR":
            directory = text
            (root / text.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif word == "COPY":
            for origin, sources, target in copies(Stage("", "", [(word, text)])):
                if origin is not None:
                    (root / target.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
                    run(["cp", "-a", *(str(work / origin / source.lstrip("/")) for source in sources), str(root / target.lstrip("/"))])
            for name, file in copied(ROOT, Stage("", "", [(word, text)])).items():
                (here / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, here / name)
        elif word == "RUN":
            started = time.monotonic()
            known = environment(Stage("", "", stage.steps[:number]))
            variables = shlex.join(f"{name}={value}" for name, value in (known | passed).items())
            step = shlex.quote(f"cd {directory} && {text}")
            inside = f"mount -t proc proc {root}/proc && exec chroot {root} env -i {variables} /bin/sh -c {step}"
            run(["unshare", "--mount", "--pid", "--fork", "sh", "-c", inside])
            print(f"  {time.monotonic() - started:.0f} s", flush=True)
    return root


def serve(stage: Stage, root: Path, work: Path, model: Path | None = None) -> None:
    """Runs the image as an orchestrator with a strict policy would. model: a chat model that it serves too, and is asked once."""
    user = stage.last("USER")
    state = work / "state"
    state.mkdir(exist_ok=True)
    os.chown(state, int(user), int(user))
    state.chmod(0o700)
    config = work / "gatehouse.yaml"
    config.write_text(CONFIG if model is None else CONFIG + ENGINE.format(name=model.name))
    if model is not None:
        shutil.copy(model, state / model.name)
        (state / model.name).chmod(0o644)
    known = environment(stage) | {"HOME": "/var/lib/gatehouse", "USER_ID": user, "HEALTH": shlex.join(listed(stage.last("HEALTHCHECK")))}
    known |= {"PATH": environment(stage)["PATH"] + ":/usr/sbin:/sbin", "REPLAY_KEY": "replay-key-0123456789abcdef0123456789abcdef"}
    known["ASK"] = "" if model is None else ASK
    command = [*json.loads(stage.last("ENTRYPOINT")), *json.loads(stage.last("CMD"))]
    script = ["sh", "-c", RUN_IMAGE, "run", str(root), str(state), str(config), *command]
    run(["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", *script], env=known)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--work", type=Path, required=True, help="an empty folder for the roots (several GB)")
    parser.add_argument("--base", type=Path, help="a root that debootstrap made before")
    parser.add_argument("--model", type=Path, help="a GGUF file that an engine image serves and is asked")
    parser.add_argument("--carry", action="append", default=[])
    options = parser.parse_args()
    found = stages(options.file)
    if not all(stage.base.startswith("docker.io/library/debian:12") for stage in found):
        sys.exit("only stages on Debian 12 can be replayed")
    options.work.mkdir(parents=True, exist_ok=True)
    base = options.base or options.work / "base"
    if not base.exists():
        run(["debootstrap", "--variant=minbase", "bookworm", str(base)])
    for stage in found:
        root = build(stage, base, options.work, options.carry)
    serve(found[-1], root, options.work, options.model)
    run(["du", "-sh", str(root)])


if __name__ == "__main__":
    main()
