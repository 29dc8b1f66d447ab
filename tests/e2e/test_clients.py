"""docs/clients.md: its examples run as they stand, against a gateway."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from admin.cli.kits import KITS, kit, model_for
from gateway.app.main import app
from tests.e2e.adminapi import KEYS, config
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, ROOT, Gatehouse

PAGE = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
BROWSER = """
// What the page needs of a browser, around Node's own WebSocket (the same API): one element, and the place that it was opened at.
globalThis.location = { hash: process.argv[2] };
const element = { textContent: "" };
globalThis.document = { getElementById: () => element };
process.on("exit", () => console.log(element.textContent));
"""


def block(language: str, mark: str) -> str:
    """The block of code in the page that has these words."""
    return next(found for found in re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) if mark in found)


def test_the_example_in_python(gatehouse: Gatehouse, engine: EngineThread) -> None:
    environ = {**os.environ, "GATEHOUSE_URL": gatehouse.url, "GATEHOUSE_KEY": KEY, "GATEHOUSE_MODEL": "m1"}
    ended = subprocess.run(
        [sys.executable, "-c", block("python", "/v1/stream")], env=environ, text=True, capture_output=True, timeout=300, check=True
    )
    assert ended.stdout.splitlines() == ["answer:  tok0 tok1 tok2 tok3"] * 2


def test_the_page(gatehouse: Gatehouse, engine: EngineThread, tmp_path: Path) -> None:
    script = re.search(r"<script type=\"module\">(.*)</script>", block("html", "/v1/stream"), re.DOTALL)
    assert script is not None
    file = tmp_path / "page.mjs"
    file.write_text(BROWSER + script[1])
    ended = subprocess.run(
        ["node", "--experimental-websocket", str(file), f"#url={gatehouse.url}&token={KEY}&model=m1"],
        text=True,
        capture_output=True,
        timeout=300,
        check=True,
    )
    assert ended.stdout.startswith(" tok0 tok1 tok2 tok3\n(closed: 1"), (ended.stdout, ended.stderr)


@pytest.mark.parametrize("name", KITS)
def test_the_page_has_every_kit_as_it_is_printed(name: str) -> None:
    assert f"(`{name}`)" in PAGE and kit(name, "http://127.0.0.1:8080", "demo-chat") in PAGE


def test_kits_are_what_their_clients_read() -> None:
    url, model = "https://gw.example", "big/model"
    assert tomllib.loads(kit("codex", url, model))["model_providers"]["gatehouse"]["base_url"] == f"{url}/v1"
    options = json.loads(kit("opencode", url, model))["provider"]["gatehouse"]["options"]
    assert options == {"baseURL": f"{url}/v1", "apiKey": "{env:GATEHOUSE_KEY}"}
    assert yaml.safe_load(kit("continue", url, model))["models"][0]["apiKey"] == "${{ secrets.GATEHOUSE_KEY }}"
    assert model_for({"models": ["demo-*@2"]}, ["other", "demo-chat"]) == "demo-chat"
    assert model_for({"models": []}, ["other"]) == "MODEL"


def test_a_kit_is_printed_for_a_key_and_works(launch: Callable[..., Gatehouse], engine: EngineThread, tmp_path: Path) -> None:
    """The two kits whose clients are here run as they are printed."""
    gatehouse = launch(config(tmp_path / "state", engine.port)).start()
    environ = {"GATEHOUSE_URL": gatehouse.admin_url, "GATEHOUSE_KEY": KEYS["admin"], "XDG_CONFIG_HOME": str(tmp_path), "NO_COLOR": "1"}
    for name in ("openai", "anthropic"):
        done = CliRunner().invoke(app, ["keys", "show", "test", "--client", name], env=environ)
        assert done.exit_code == 0 and done.stdout == kit(name, gatehouse.url, "m1"), done.output
        ended = subprocess.run(
            [sys.executable, "-c", done.stdout],
            env={**os.environ, "GATEHOUSE_KEY": KEY},
            text=True,
            capture_output=True,
            timeout=300,
            check=True,
        )
        assert ended.stdout == " tok0 tok1 tok2 tok3\n"
    refused = CliRunner().invoke(app, ["keys", "show", "test", "--client", "emacs"], env=environ)
    assert refused.exit_code == 2 and "claude-code" in refused.stderr
