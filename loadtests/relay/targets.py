"""The gateways that are compared: how each is started in front of the benchmark's engine.

A command is a list of words; these places are filled in: {port} (where it must listen, on loopback), {extra} (a second free
port, for its metrics or administration), {engine} (the engine's base URL), {root} (this repository), {peer} (the peer's
environment, made by peers.sh) and {folder} (a fresh folder for its state, gone after the run).
"""

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent

NGINX = """
worker_processes 1; daemon off; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 4096; }}
http {{
  access_log off; keepalive_requests 100000000; keepalive_timeout 600;
  client_body_temp_path {folder}/a; proxy_temp_path {folder}/b;
  fastcgi_temp_path {folder}/c; uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  upstream engine {{ server {engine_address}; keepalive 128; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{ proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; }}
  }}
}}
"""

LITELLM = """
model_list:
  - {{model_name: m1, litellm_params: {{model: openai/m1, api_base: "{engine}/v1", api_key: none}}}}
general_settings: {{master_key: "{key}"}}
"""

GATEHOUSE = ["{root}/.venv/bin/gatehouse", "serve", "--config", "{root}/loadtests/relay/bench.yaml"]
EVERYTHING = [*GATEHOUSE[:-1], "{root}/loadtests/relay/everything.yaml"]
GATEHOUSE_ENV = {
    "PYTHONPATH": "{root}",  # an environment that was copied may have another checkout installed
    "GATEHOUSE__LISTEN__DATA": "127.0.0.1:{port}",
    "GATEHOUSE__LISTEN__ADMIN": "127.0.0.1:{extra}",
    "GATEHOUSE__STATE_DIR": "{folder}",
    "BENCH_ENGINE": "{engine}",
    "BENCH_KEY": "{key}",
}

EVERYTHING_ENV = {**GATEHOUSE_ENV, "BENCH_PHRASES": "{folder}/phrases.txt"}
PHRASES = {"phrases.txt": "\n".join(f"project {first} {second}" for first in "abcdefghij" for second in range(100, 200))}
"""A thousand phrases, none of which is in the benchmark's texts."""

REDIS = (
    "taskset -c 0-$(($(nproc --all) - 1)) redis-server --port 0 --unixsocket {folder}/redis.sock --dir {folder} --save '' & "
    "exec {root}/.venv/bin/gatehouse serve --config {root}/loadtests/relay/bench.yaml"
)
"""A Redis of its own for the gateway's limits, on any core; it ends with the process group."""


@dataclass(frozen=True, slots=True)
class Target:
    """A gateway under test. `files` are written into {folder} first; `peer` names a row of peers.sh."""

    name: str
    command: list[str]
    env: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    peer: str | None = None
    port: int | None = None  # where a command of the user's own listens; else {port} says it


KNOWN = {
    target.name: target
    for target in (
        Target("nginx", ["nginx", "-c", "{folder}/nginx.conf", "-e", "{folder}/error.log"], files={"nginx.conf": NGINX}),
        Target(
            "vllm-router",
            shlex.split(
                "{peer}/bin/vllm-router --worker-urls {engine} --host 127.0.0.1 --port {port} --policy consistent_hash "
                "--log-level error --prometheus-port {extra}"
            ),
            peer="vllm-router",
        ),
        Target(
            "sglang-router",
            shlex.split(
                "{peer}/bin/sglang-router launch --worker-urls {engine} --host 127.0.0.1 --port {port} --policy cache_aware "
                "--log-level error --prometheus-port {extra}"
            ),
            peer="sglang-router",
        ),
        Target(
            "litellm",
            shlex.split("{peer}/bin/litellm --config {folder}/litellm.yaml --host 127.0.0.1 --port {port} --num_workers 1"),
            env={"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
            files={"litellm.yaml": LITELLM},
            peer="litellm",
        ),
        Target("gatehouse", GATEHOUSE, env=GATEHOUSE_ENV),
        Target("gatehouse-fsync", GATEHOUSE, env={**GATEHOUSE_ENV, "GATEHOUSE__AUDIT__DURABILITY": "fsync"}),
        Target("gatehouse-redis", ["sh", "-c", REDIS], env={**GATEHOUSE_ENV, "GATEHOUSE__REDIS__URL": "unix://{folder}/redis.sock"}),
        Target("gatehouse-everything", EVERYTHING, env=EVERYTHING_ENV, files=PHRASES),
        Target("gatehouse-everything-fsync", EVERYTHING, env={**EVERYTHING_ENV, "GATEHOUSE__AUDIT__DURABILITY": "fsync"}, files=PHRASES),
        Target("gatehouse-everything-async", EVERYTHING, env={**EVERYTHING_ENV, "GATEHOUSE__AUDIT__DURABILITY": "async"}, files=PHRASES),
        Target("gatehouse-async", GATEHOUSE, env={**GATEHOUSE_ENV, "GATEHOUSE__AUDIT__DURABILITY": "async"}),
    )
}


def parse(text: str) -> Target:
    """A known name, or NAME=COMMAND with the places above, or NAME=PORT:COMMAND for a command that listens where it likes."""
    name, separator, command = text.partition("=")
    if not separator:
        if name not in KNOWN:
            raise SystemExit(f"no such target: {name} (known: {', '.join(KNOWN)}; or NAME=COMMAND)")
        return KNOWN[name]
    fixed = re.match(r"(\d+):(.*)", command, re.DOTALL)
    return Target(name, ["sh", "-c", f"exec {fixed[2] if fixed else command}"], port=int(fixed[1]) if fixed else None)


def installed_peers() -> list[str]:
    """The peers that peers.sh has installed here before, in the order of KNOWN."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gatehouse" / "peers"
    found = {directory.parent.name.split("--")[0] for directory in cache.glob("*/.complete")}
    return [target.name for target in KNOWN.values() if target.peer and any(name.startswith(target.peer) for name in found)]


def install_peers(targets: list[Target]) -> dict[str, str]:
    """Makes the environments of the peers among the targets; gives the directory of each."""
    wanted = [target.peer for target in targets if target.peer]
    if not wanted:
        return {}
    done = subprocess.run([str(HERE / "peers.sh"), *wanted], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    return {name: directory for name, directory in (line.split(" ", 1) for line in done.stdout.splitlines())}


@dataclass(frozen=True, slots=True)
class Places:
    """What is filled into a target's command, environment and files."""

    port: int
    extra: int
    engine: str
    key: str
    folder: Path
    peer: str = ""

    def fill(self, text: str) -> str:
        values = {"engine_address": self.engine.removeprefix("http://"), "root": str(ROOT)}
        return text.format(**values, **{name: str(getattr(self, name)) for name in self.__slots__})


def prepare(target: Target, places: Places) -> tuple[list[str], dict[str, str]]:
    """Writes the target's files and gives its command and its environment, filled in."""
    for name, text in target.files.items():
        (places.folder / name).write_text(places.fill(text))
    path = os.environ.get("PATH", "") + ":/usr/sbin"
    env = {"PATH": path, **{name: places.fill(value) for name, value in target.env.items()}}
    return [places.fill(word) for word in target.command], env
