"""Configurations for tests, and gateways made of them."""

from __future__ import annotations

from pathlib import Path

import yaml

from gateway.app.configuration.plugins import OURS
from gateway.app.gateway import Gateway
from gateway.config.load import load

KEY = "k" * 40


def config(directory: Path, **parts: object) -> str:
    return yaml.safe_dump(
        {
            "version": 1,
            "state_dir": str(directory / "state"),
            "engines": [{"name": "a", "runtime": "external", "url": "http://127.0.0.1:9/v1"}],
            "models": [{"name": "m", "aliases": ["n"], "pool": ["a"]}],
            "identity": {"api_keys": {"static": [{"id": "k", "key": KEY, "tenant": "t", "models": ["*"]}]}},
            "audit": {"durability": "async"},
            **parts,
        }
    )


def made(directory: Path, **parts: object) -> Gateway:
    """Not started. The configuration file is `directory`/gatehouse.yaml."""
    file = directory / "gatehouse.yaml"
    file.write_text(config(directory, **parts))
    return Gateway(load(file, {}, OURS.schemas()), {})
