"""Starts Locust with one of loadtests/profiles, for the drivers that start a gateway too."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[1]
PROFILES = ROOT / "loadtests" / "profiles"


def start(profile: str, environment: Mapping[str, str], *arguments: str) -> "subprocess.Popen[bytes]":
    """Locust with this profile; `environment` is added to this process's, `arguments` override the profile's options."""
    command = [sys.executable, "-m", "locust", "--config", str(PROFILES / f"{profile}.conf"), *arguments]
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, **environment})


def make_tenant(admin_url: str, admin_key: str, name: str = "load") -> None:
    """The tenant of the keys that come and go. Raises httpx.HTTPStatusError where it cannot be made."""
    headers = {"authorization": f"Bearer {admin_key}"}
    httpx.post(f"{admin_url}/admin/v1/tenants", json={"name": name}, headers=headers, trust_env=False, timeout=30).raise_for_status()
