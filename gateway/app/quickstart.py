"""What `gatehouse serve --quickstart` adds: keys made at the first start, and lines that show how to use them."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gateway.core.clock import SystemEntropy
from gateway.core.errors import ConfigError
from gateway.core.specs import ConfigSpec
from gateway.identity import keys

FILE = "quickstart-keys.json"


@dataclass(frozen=True)
class Credentials:
    """The two keys of the quickstart."""

    api_key: str
    admin_key: str

    def __repr__(self) -> str:
        return "Credentials(********)"


def environment(environ: dict[str, str]) -> Credentials:
    """Reads or makes the keys, and puts them and GATEHOUSE_PORT, GATEHOUSE_ADMIN_PORT and GATEHOUSE_STATE_DIR where the configuration finds
    them. Raises OSError if the state directory cannot be used, ConfigError for a damaged file or an invalid port."""
    state_dir = environ.setdefault("GATEHOUSE__STATE_DIR", environ.get("GATEHOUSE_STATE_DIR") or "./var")
    for name, setting, default in (("GATEHOUSE_PORT", "DATA", "8080"), ("GATEHOUSE_ADMIN_PORT", "ADMIN", "8081")):
        port = environ.get(name) or default
        if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535):
            raise ConfigError("is not a port; it must be a number from 0 to 65535", file=f"environment variable {name}")
        environ.setdefault(f"GATEHOUSE__LISTEN__{setting}", f"127.0.0.1:{port}")
    credentials = _credentials(Path(state_dir))
    environ["GATEHOUSE_QUICKSTART_API_KEY"] = credentials.api_key
    environ["GATEHOUSE_QUICKSTART_ADMIN_KEY"] = credentials.admin_key
    return credentials


def _credentials(state_dir: Path) -> Credentials:
    path = state_dir / FILE
    if path.exists():
        return _kept(path)
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    entropy = SystemEntropy()
    made = Credentials(keys.generate(entropy), keys.generate(entropy))
    new = path.with_suffix(".new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump({"api_key": made.api_key, "admin_key": made.admin_key}, file)
    new.rename(path)
    return made


def _kept(path: Path) -> Credentials:
    if path.stat().st_mode & 0o077:
        raise ConfigError("can be read by others: chmod 600 it", file=str(path))
    try:
        found = msgspec.json.decode(path.read_bytes(), type=dict[str, str])
        return Credentials(found["api_key"], found["admin_key"])
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError):
        raise ConfigError("does not hold the two keys; delete it, and the next start makes new ones", file=str(path)) from None


def greeting(data: str, admin: str, spec: ConfigSpec, credentials: Credentials | None, grpc: str = "") -> str:
    """The lines that `serve` prints when it is ready. grpc: the address of that listener, if there is one."""
    data_scheme, admin_scheme = ("http" if tls is None else "https" for tls in (spec.listen.tls, spec.listen.admin_tls))
    lines = [f"gateway: {data_scheme}://{data}", f"admin: {admin_scheme}://{admin}"]
    if grpc:
        lines.append(f"grpc: {grpc}")
    if credentials is not None:
        lines += [f"api key: {credentials.api_key}", f"admin key: {credentials.admin_key}"]
    if credentials is None:
        return "\n".join(lines)
    if not spec.models:
        command = Path(sys.executable).with_name("gatehouse")
        lines += [
            "",
            "There is no model yet. For one that a vLLM at 127.0.0.1:8000 serves:",
            f"export GATEHOUSE_URL={admin_scheme}://{admin} GATEHOUSE_KEY={credentials.admin_key}",
            f"{command} engines create vllm --runtime external --upstream http://127.0.0.1:8000",
            f"{command} models create chat --engine vllm --upstream-model NAME_OF_THE_MODEL --wait",
        ]
    body = {
        "model": spec.models[0].name if spec.models else "chat",
        "messages": [{"role": "user", "content": "What is a circuit breaker?"}],
        "stream": True,
    }
    lines += [
        "",
        f"curl -N {data_scheme}://{data}/v1/chat/completions \\",
        f"  -H 'Authorization: Bearer {credentials.api_key}' -H 'Content-Type: application/json' \\",
        f"  -d '{json.dumps(body)}'",
    ]
    return "\n".join(lines)
