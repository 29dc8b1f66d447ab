"""Where requests of the command line go: never through a proxy to this machine, and which proxy otherwise."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx
import pytest

from admin.cli.client import Client, is_loopback, is_url, name, no_answer, proxy_of
from admin.cli.errors import CommandError, UsageError
from admin.cli.output import Format, Output
from admin.cli.profile import Profile
from admin.cli.session import Session
from tests.fakes.ports import empty_port


class Admin(BaseHTTPRequestHandler):
    """Answers everything with an empty object."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def admin() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Admin) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://localhost:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def proxied(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A proxy that answers nothing, for everything."""
    with empty_port() as port:
        for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
            monkeypatch.delenv(name.upper(), raising=False)
        monkeypatch.setenv("HTTP_PROXY", f"http://user:secret@127.0.0.1:{port}")
        monkeypatch.setenv("http_proxy", f"http://user:secret@127.0.0.1:{port}")
        yield


def test_a_key_never_reaches_a_proxy_on_its_way_to_this_machine(admin: str, proxied: None) -> None:
    with Client(admin, "gh_key") as client:
        assert client.get("/status") == {}
    assert proxy_of(admin) is None


def test_the_proxy_for_elsewhere_is_named_without_its_password(proxied: None, monkeypatch: pytest.MonkeyPatch) -> None:
    named = proxy_of("http://gateway.example:8081")
    assert named is not None and named.startswith("127.0.0.1:") and "secret" not in named
    assert proxy_of("https://gateway.example") is None
    monkeypatch.setenv("no_proxy", "gateway.example")
    assert proxy_of("http://gateway.example:8081") is None


def test_a_key_never_goes_through_a_proxy_that_can_read_it(proxied: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CommandError, match=r"would go through the proxy 127.0.0.1:.* unencrypted: use https, or name gateway.example in"):
        Client("http://gateway.example:8081", "gh_key")
    with Client("http://gateway.example:8081", ""), Client("https://gateway.example:8081", "gh_key"):
        pass
    monkeypatch.setenv("no_proxy", "gateway.example")
    with Client("http://gateway.example:8081", "gh_key"):
        pass


@pytest.mark.parametrize(
    ("url", "key", "told"),
    [("http://10.0.0.1:8081", "gh_key", True), ("http://10.0.0.1:8081", "", False), ("https://10.0.0.1", "gh_key", False),
     ("http://127.0.0.1:8081", "gh_key", False)],
)  # fmt: skip
def test_a_key_that_goes_unencrypted_is_told(url: str, key: str, told: bool, capsys: pytest.CaptureFixture[str]) -> None:
    session = Session(Profile(url, key), Output(Format.json))
    with session.client():
        pass
    out, err = capsys.readouterr()
    assert out == "" and ("the key goes to 10.0.0.1 unencrypted: use https" in err) is told


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "localhost.", "a.localhost", "127.0.0.1", "127.9.9.9", "[::1]"])
def test_names_of_this_machine(host: str) -> None:
    assert is_loopback(f"http://{host}:8081")


@pytest.mark.parametrize("host", ["localhost.example", "10.0.0.1", "[2001:db8::1]", "127.0.0.1.example", ""])
def test_names_of_others(host: str) -> None:
    assert not is_loopback(f"http://{host}:8081")


@pytest.mark.parametrize("text", ["", ".", ".."])
def test_what_leads_to_another_path_is_no_name(text: str) -> None:
    with pytest.raises(UsageError, match="is not a name"):
        name(text)


def test_a_name_is_one_segment() -> None:
    assert name("../a b/?#ü") == "..%2Fa%20b%2F%3F%23%C3%BC"


@pytest.mark.parametrize("text", ["", "gateway", "ftp://x", "http://", "http://[::1", "http://x:0", "http://x:99999", "http://x:y"])
def test_what_is_no_url(text: str) -> None:
    assert not is_url(text)


def test_nothing_that_listens_is_no_answer_also_where_a_long_one_is_wanted() -> None:
    def refused(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("[Errno 111] Connection refused")

    with Client("http://x", "k", httpx.MockTransport(refused)) as client, pytest.raises(CommandError, match="no answer from http://x: "):
        list(client.lines("/audit", {}))


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        ("[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:992)", "it does not use TLS: try http://"),
        ("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed", "--ca FILE names the CAs to trust"),
        ("Server disconnected without sending a response.", "if it uses TLS: https://"),
    ],
)
def test_what_may_be_the_matter_is_said(error: str, hint: str) -> None:
    assert str(no_answer("https://x", httpx.ConnectError(error))) == f"no answer from https://x: {error} ({hint})"


def test_nothing_is_the_matter_with_an_address_that_has_answered_before() -> None:
    answers = [httpx.Response(200, json={})]

    def dying(request: httpx.Request) -> httpx.Response:
        if answers:
            return answers.pop()
        raise httpx.RemoteProtocolError("Server disconnected without sending a response.")

    with Client("http://x", "k", httpx.MockTransport(dying)) as client:
        client.get("/status")
        with pytest.raises(CommandError, match=r"response\.$"):
            client.get("/status")
