"""`gatehouse login` at a certified OpenID Connect provider: by device code and in a browser, refresh, logout."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import httpx
import pytest

from admin.cli.proofs import Holder
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import Gatehouse, configuration, external
from tests.e2e.test_oidc import Provider
from tests.fakes.ports import empty_port
from tests.waiting import until

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    made = Provider()
    made.control("claims", {"tenant": "acme", "groups": ["engineers"], "roles": ["viewer"]})
    yield made
    made.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, engine: EngineThread, provider: Provider) -> Iterator[Gatehouse]:
    directory = tmp_path_factory.mktemp("login")
    config = configuration(
        directory / "state", engines=[external("fake", engine.port, slots=64)], models=[{"name": "m1", "pool": ["fake"]}]
    )
    config["identity"]["oidc"] = [
        {
            "name": "corp",
            "issuer": provider.url,
            "audiences": ["gatehouse"],
            "claims": {"roles": "roles"},
            "login": {"client_id": "gatehouse-cli", "scopes": ["openid", "offline_access", "infer"], "resource": "urn:gatehouse"},
        }
    ]
    with Gatehouse(directory, config) as gatehouse:
        yield gatehouse


class Person:
    """Somebody with a browser, who agrees to everything."""

    def __init__(self, name: str) -> None:
        self.name = name

    def opens(self, url: str) -> str:
        """Follows the pages to the end; returns the last one's text."""
        with httpx.Client(trust_env=False, timeout=60, follow_redirects=True) as http:
            page = http.get(url)
            for _ in range(8):
                form = re.search(r"<form[^>]*?(?:action=\"([^\"]*)\")?[^>]*>(.*?)</form>", page.text, re.DOTALL)
                if form is None or page.url.path == "/callback":
                    return page.text
                action = re.search(r'action="([^"]*)"', form.group(0))
                fields = dict(re.findall(r'<input[^>]*?name="([^"]+)"[^>]*?value="([^"]*)"', form.group(2)))
                if 'name="login"' in form.group(2):
                    fields |= {"login": self.name, "password": "x"}
                target = urljoin(str(page.url), unescape(action.group(1)) if action else "")
                page = http.post(target, data={name: unescape(value) for name, value in fields.items()})
            raise AssertionError(f"the pages do not end: {page.url}\n{page.text[:2000]}")


class Terminal:
    """The command line with a configuration directory of its own."""

    def __init__(self, running: Gatehouse, home: Path) -> None:
        self.running, self.home = running, home
        self.environ = {**os.environ, "XDG_CONFIG_HOME": str(home), "HOME": str(home), "BROWSER": "true", "COLUMNS": "200"}
        for name in ("GATEHOUSE_URL", "GATEHOUSE_KEY"):
            self.environ.pop(name, None)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gateway", *arguments]
        return subprocess.run(command, cwd=ROOT, env=self.environ, capture_output=True, text=True, timeout=120)

    def login(self, person: Person, *arguments: str) -> tuple[int, str]:
        """Runs `login`; the person opens the address that it names."""
        command = [sys.executable, "-m", "gateway", "login", "--url", self.running.admin_url, *arguments]
        process = subprocess.Popen(command, cwd=ROOT, env=self.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None and process.stderr is not None
        said: list[str] = []
        for line in process.stderr:
            said.append(line)
            if found := re.search(r"https?://\S+", line):
                threading.Thread(target=person.opens, args=(found.group(0),)).start()
        out = process.stdout.read()
        process.stdout.close()
        process.stderr.close()
        return process.wait(120), out + "".join(said)

    @property
    def file(self) -> Path:
        return self.home / "gatehouse" / "profiles.json"

    def profile(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.file.read_text())["default"]
        return found


@pytest.mark.parametrize("flow", [(), ("--browser",)], ids=["device", "browser"])
def test_a_person_logs_in_and_out(running: Gatehouse, provider: Provider, tmp_path: Path, flow: tuple[str, ...]) -> None:
    terminal = Terminal(running, tmp_path)
    code, said = terminal.login(Person("ann"), *flow)
    assert code == 0 and "acme/ann (viewer)" in said, said
    assert terminal.file.stat().st_mode & 0o077 == 0 and terminal.profile()["key"] == ""
    assert terminal.run("models", "list").returncode == 0
    denied = terminal.run("tenants", "create", "x")
    assert denied.returncode == 1 and "permission" in denied.stderr

    before = terminal.profile()["login"]
    stale = {"default": {**terminal.profile(), "login": {**before, "expires": 0.0}}}
    terminal.file.write_text(json.dumps(stale))
    assert terminal.run("models", "list").returncode == 0, "the access token is refreshed"
    after = terminal.profile()["login"]
    assert after["access_token"] != before["access_token"] and after["expires"] > before["expires"] - 1

    assert terminal.run("logout").returncode == 0 and json.loads(terminal.file.read_text()) == {}
    stale["default"]["login"] = {**after, "expires": 0.0}
    terminal.file.write_text(json.dumps(stale))
    ended = terminal.run("models", "list")
    assert ended.returncode == 1 and "gatehouse login" in ended.stderr, "the refresh token was taken back"


def test_what_is_open_to_all_holds_no_secret(running: Gatehouse, provider: Provider) -> None:
    found = httpx.get(f"{running.admin_url}/.well-known/gatehouse-login", trust_env=False, timeout=60).json()
    scopes = ["openid", "offline_access", "infer"]
    assert found == {
        "issuers": [
            {
                "name": "corp",
                "issuer": provider.url,
                "client_id": "gatehouse-cli",
                "scopes": scopes,
                "resource": "urn:gatehouse",
                "dpop": None,
            }
        ]
    }


def test_an_issuer_that_is_not_there(running: Gatehouse, tmp_path: Path) -> None:
    terminal = Terminal(running, tmp_path)
    code, said = terminal.login(Person("ann"), "--issuer", "other")
    assert code == 2 and "the gateway has: corp" in said
    assert terminal.run("logout").returncode == 1


@pytest.fixture(scope="module", params=["off", "required"], ids=["without nonces", "with nonces"])
def binding(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, engine: EngineThread, provider: Provider
) -> Iterator[Gatehouse]:
    """A gateway that takes tokens that are bound to a key, and no others, at an issuer that binds them."""
    directory = tmp_path_factory.mktemp("binding")
    ports = ExitStack()  # kept until the gateway listens there
    data, control = (ports.enter_context(empty_port()) for _ in range(2))
    config = configuration(
        directory / "state",
        listen={"data": f"127.0.0.1:{data}", "admin": f"127.0.0.1:{control}"},
        engines=[external("fake", engine.port, slots=64)],
        models=[{"name": "m1", "pool": ["fake"]}],
        roles={"chatter": {"permissions": ["infer:chat"]}},
        bindings=[{"role": "chatter", "subjects": ["group/engineers"]}],
    )
    login = {"client_id": "gatehouse-cli", "scopes": ["openid", "offline_access", "infer"], "resource": "urn:gatehouse"}
    config["identity"]["oidc"] = [
        {
            "name": "corp",
            "issuer": provider.url,
            "audiences": ["gatehouse"],
            "claims": {"roles": "roles"},
            "login": login,
            "binding": "dpop",
        }
    ]
    config["identity"]["dpop"] = {"urls": [f"http://127.0.0.1:{port}" for port in (data, control)], "nonce": request.param}
    provider.control("nonces", request.param == "required")
    with ports, Gatehouse(directory, config) as gatehouse:
        yield gatehouse
    provider.control("nonces", False)


@pytest.mark.parametrize("flow", [(), ("--browser",)], ids=["device", "browser"])
def test_a_login_is_bound_to_a_key(binding: Gatehouse, provider: Provider, tmp_path: Path, flow: tuple[str, ...]) -> None:
    """Who steals the tokens from the profile and not its key can use neither."""
    terminal = Terminal(binding, tmp_path)
    code, said = terminal.login(Person("ann"), *flow)
    assert code == 0 and "acme/ann (viewer)" in said, said
    login = terminal.profile()["login"]
    assert re.fullmatch("[0-9a-f]{64}", login["holder"]) and login["holder"] not in said
    assert terminal.run("models", "list").returncode == 0
    answer = terminal.run("chat", "hi", "--model", "m1")
    assert answer.returncode == 0 and answer.stdout.strip(), answer.stderr
    whoami = f"{binding.admin_url}/admin/v1/whoami"
    stolen = httpx.get(whoami, headers={"authorization": f"Bearer {login['access_token']}"}, trust_env=False, timeout=60)
    assert (stolen.status_code, stolen.json()["code"]) == (401, "invalid_credentials")

    thief = {"default": {**terminal.profile(), "login": {**login, "holder": Holder().text}}}
    terminal.file.write_text(json.dumps(thief))
    assert terminal.run("models", "list").returncode == 1, "with another key"
    thief["default"]["login"]["expires"] = 0.0
    terminal.file.write_text(json.dumps(thief))
    ended = terminal.run("models", "list")
    assert ended.returncode == 1 and "gatehouse login" in ended.stderr, "nor can the refresh token be used with it"

    stale = {"default": {**thief["default"], "login": {**login, "expires": 0.0}}}
    terminal.file.write_text(json.dumps(stale))
    listed = terminal.run("models", "list")
    assert listed.returncode == 0, listed.stderr
    after = terminal.profile()["login"]
    assert after["access_token"] != login["access_token"] and after["holder"] == login["holder"], "refreshed, with the same key"
    assert terminal.run("logout").returncode == 0 and json.loads(terminal.file.read_text()) == {}


def test_people_count_on_the_data_listener_too(running: Gatehouse, tmp_path: Path) -> None:
    terminal = Terminal(running, tmp_path)
    code, _ = terminal.login(Person("ben"), "--browser")
    assert code == 0
    token = terminal.profile()["login"]["access_token"]
    answer = httpx.post(
        f"{running.url}/v1/chat/completions",
        json={"model": "m1", "messages": [{"role": "user", "content": "hi"}]},
        headers={"authorization": f"Bearer {token}"},
        trust_env=False,
        timeout=60,
    )
    assert answer.status_code == 404, "known, and without a role it may see no model"
    until(lambda: any(r.get("principal") == "ben" for r in running.audit() if r["kind"] == "outcome"), what="the record")
