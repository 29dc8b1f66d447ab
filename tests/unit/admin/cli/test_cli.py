"""The parts of the command line that need no gateway: durations, profiles, output, options."""

from __future__ import annotations

import io
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from admin.cli import output, profile
from admin.cli.client import ApiError, Client
from admin.cli.errors import CommandError, UsageError
from admin.cli.keys import duration, expiry
from admin.cli.limits import rate_of, span
from admin.cli.profile import Profile
from admin.cli.session import DEFAULT_URL, Session, changed, resolve
from admin.cli.usage import first_day
from gateway.app.main import app
from gateway.app.release import release


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("text", ["nan/1m", "inf", "-inf/1s", "1e400/1m", "ten", "/1m"])
def test_a_limit_is_set_to_numbers_only(text: str) -> None:
    with pytest.raises(UsageError, match=r"--requests: .* is not a rate; write RATE/PERIOD"):
        rate_of(text, "requests")
    assert rate_of("9/1m", "requests") == {"rate": 9.0, "per": 60.0}


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, ""),
        (0.0, "0s"),
        (0.497, "0.497s"),
        (59.9, "59.9s"),
        (60, "1m"),
        (303.4, "5m3s"),
        (65426.11, "18h10m"),
        (238226.1, "2d18h"),
        (86400, "1d"),
        (86399.9, "1d"),
    ],
)
def test_a_time_until_a_limit_is_full_again_is_shown_in_two_units(seconds: float | None, shown: str) -> None:
    assert span(seconds) == shown


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("1.5h", 5400), ("30d", 2592000), ("2w", 1209600)])
def test_durations(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-1d", "1y", "d"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(CommandError):
        duration(text)


def test_an_expiry_is_a_date_or_a_duration() -> None:
    assert expiry("2027-01-01", 0) == expiry("2027-01-01T00:00:00+00:00", 0) == 1798761600.0
    assert expiry("1d", 1000) == 87400


def test_profiles_are_kept_by_name(home: Path) -> None:
    assert profile.load("default") is None
    profile.save("default", Profile("http://a", "k1"))
    profile.save("other", Profile("http://b", "k2", "http://c", "k3"))
    assert profile.load("default") == Profile("http://a", "k1") and profile.load("other") == Profile("http://b", "k2", "http://c", "k3")
    assert "k2" not in repr(profile.load("other"))


@pytest.mark.parametrize("text", ["[]", "{", "1"])
def test_a_damaged_profile_file_is_said_to_be_so(home: Path, text: str) -> None:
    profile.save("default", Profile("http://a", "k"))
    profile.path().write_text(text)
    with pytest.raises(CommandError):
        profile.load("default")


def test_options_win_and_a_saved_key_goes_to_its_own_gateway_only() -> None:
    assert resolve(None, None, "default") == Profile(DEFAULT_URL)
    profile.save("default", Profile("http://a", "saved"))
    assert resolve(None, None, "default").key == resolve("http://a/", None, "default").key == "saved"
    assert resolve("http://elsewhere", None, "default") == Profile("http://elsewhere")
    profile.save("here", Profile("http://127.0.0.1:8081", "k"))
    assert resolve("http://localhost:8081/", None, "here").key == resolve("http://[::1]:8081", None, "here").key == "k"
    for other in ("http://localhost:8082", "https://localhost:8081", "http://localhost.example:8081", "http://localhost:none"):
        assert resolve(other, None, "here").key == ""
    assert resolve(None, "given", "default").key == "given"
    with pytest.raises(CommandError):
        resolve(None, None, "missing")


@given(st.text())
def test_nothing_from_elsewhere_moves_the_cursor(text: str) -> None:
    shown = output.clean(text)
    assert (
        len(shown) == len(text) and not any(ord(c) < 32 and c not in "\t\n" for c in shown) and "\x1b" not in shown and "\x9b" not in shown
    )


def test_markup_of_a_name_is_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    output.Output(output.Format.table).rows([{"name": "[red]x[/red]\x1b[2J"}], ("name",))
    assert "[red]x[/red]\N{REPLACEMENT CHARACTER}[2J" in capsys.readouterr().out


def test_formats_for_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[dict[str, Any]] = [{"name": "ü", "inner": {"a": [1]}}]
    output.Output(output.Format.json).rows(rows, ("name",))
    assert json.loads(capsys.readouterr().out) == rows
    output.Output(output.Format.yaml).one(rows[0])
    assert "name: ü" in capsys.readouterr().out


def answering(status: int, body: Any, **headers: str) -> Client:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Client("http://x", "k", httpx.MockTransport(lambda request: httpx.Response(status, content=content, headers=headers)))


@pytest.mark.parametrize(
    ("status", "body", "line"),
    [
        (400, {"detail": "no field 'x'", "param": "y"}, "y: no field 'x'"),
        (409, {"detail": "two\nlines"}, "two lines"),
        (401, {"error": {"message": "bad key"}}, "bad key"),
        (502, b"<html>", "502 Bad Gateway from x"),
        (500, {"strange": 1}, "500 Internal Server Error from x"),
    ],
)
def test_errors_are_one_line(status: int, body: Any, line: str) -> None:
    with answering(status, body) as client, pytest.raises(ApiError) as caught:
        client.get("/x")
    assert (str(caught.value), caught.value.status) == (line, status)


def test_the_data_listener_is_told_from_the_admin_listener() -> None:
    with answering(404, {"error": {"message": "There is no /admin/v1/keys."}}) as client, pytest.raises(ApiError, match=r"Is http://x the"):
        client.get("/keys")
    problem = {"content-type": "application/problem+json"}
    with answering(404, {"detail": "There is no 'x' among the keys."}, **problem) as client, pytest.raises(ApiError, match=r"keys\.$"):
        client.get("/keys/x")


def test_an_answer_that_is_no_json_is_said_to_be_so() -> None:
    with answering(200, b"hello") as client, pytest.raises(CommandError, match="admin listener"):
        client.get("/x")


def test_lists_are_read_to_their_end() -> None:
    pages = [{"items": [{"n": 1}], "cursor": "c"}, {"items": [{"n": 2}], "cursor": None}]
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return httpx.Response(200, json=pages[len(asked) - 1])

    with Client("http://x", "k", httpx.MockTransport(answer)) as client:
        assert client.items("/keys", tenant=None, limit=5) == [{"n": 1}, {"n": 2}]
    assert asked == ["http://x/admin/v1/keys?limit=5", "http://x/admin/v1/keys?cursor=c&limit=5"]


@pytest.mark.parametrize(("etag", "version", "expected"), [('"3"', None, '"3"'), ('"3"', 2, '"2"'), (None, None, None)])
def test_a_change_says_which_version_it_is_for(etag: str | None, version: int | None, expected: str | None) -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={}, headers={} if etag is None else {"etag": etag})

    with Client("http://admin", "k", httpx.MockTransport(answer)) as client:
        client.patch("/keys/a", {"models": None}, version=version, dry_run=True)
    assert [request.method for request in seen] == (["PATCH"] if version is not None else ["GET", "PATCH"])
    assert seen[-1].headers.get("if-match") == expected and seen[-1].url.params["dry_run"] == "true"
    assert json.loads(seen[-1].content) == {"models": None}


def test_what_options_change() -> None:
    assert changed({"a": None, "b": "", "c": []}, []) == {"b": "", "c": []}
    assert changed({"a": None, "b": 1}, ["a"]) == {"a": None, "b": 1}
    for given_, cleared, words in (
        ({"a": None}, [], "nothing to change"),
        ({"a": 1}, ["a"], "both set"),
        ({"a": 1}, ["z"], "no setting 'z'"),
    ):
        with pytest.raises(typer.BadParameter, match=words):
            changed(given_, cleared)


def test_usage_is_asked_for_since_a_day_or_a_while() -> None:
    assert first_day("2027-01-31", 0) == "2027-01-31"
    assert first_day("24h", 1798761600.0 + 3600) == "2026-12-31"
    with pytest.raises(UsageError):
        first_day("yesterday", 0)


def test_usage_is_grouped_by_what_there_is() -> None:
    done = CliRunner().invoke(app, ["usage", "--by", "tenant,months"])
    assert (done.exit_code, done.stderr.startswith("error: --by 'months' is none of tenant, key, ")) == (2, True)


def test_the_version_is_told() -> None:
    done = CliRunner().invoke(app, ["--version"])
    assert done.exit_code == 0 and done.stdout == f"gatehouse {release()}\n" and release().startswith(f"{version('gatehouse')}+")


@pytest.mark.parametrize(
    ("value", "shown"),
    [(1e16, "10000000000000000"), (6.8e-06, "0.0000068"), (5000.0, "5000"), (0.1 + 0.2, "0.3"), (0.0, "0"), (-1.5, "-1.5"), (1e-12, "0")],
)
def test_numbers_are_shown_without_an_exponent(value: float, shown: str) -> None:
    assert output.cell(value).plain == output.cell([value]).plain == shown
    assert output.cell({"rate": value}).plain == (f"rate={shown}")


def test_times_are_shown_to_the_second() -> None:
    assert output.cell("2027-01-31T10:00:00.125Z").plain == "2027-01-31T10:00:00Z"
    assert output.cell("2027-01-31T10:00:00Z").plain == "2027-01-31T10:00:00Z"
    assert output.cell("1.5Z").plain == "1.5Z"


def test_a_table_fits_the_terminal_by_the_order_of_its_columns() -> None:
    rows = [{"id": "a-key-with-a-long-name", "models": ["model-" + "x" * 40, "y"], "state": "active", "description": "words " * 12}]
    columns = ("id", "models", "state", "description")

    def printed(room: int | None) -> str:
        console = Console(file=io.StringIO(), width=room or 400, highlight=False)
        console.print(output.table(rows * 2, columns, room=room))
        return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]

    for room in (40, 60, 80, 120):
        lines = printed(room).rstrip("\n").split("\n")
        assert all(len(line) <= room for line in lines) and lines[1].startswith("a-key-with-a-long-name ")
        assert len(lines) == 3 or lines[3].startswith("hidden: "), lines
    assert "active" in printed(80) and "…" in printed(80) and "hidden" not in printed(80)
    assert "hidden: STATE, DESCRIPTION (--wide shows all)" in " ".join(printed(40).split())
    assert "…" not in printed(None) and ("words " * 12).strip() in printed(None)


def test_a_case_may_be_nameless_and_is_named_when_it_cannot_be_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def judged(request: httpx.Request) -> httpx.Response:
        if "key" in json.loads(request.content):
            return httpx.Response(200, json={"allow": True, "rule": "models:*"})
        return httpx.Response(400, json={"detail": "Expected `object | null`, got `int`.", "param": "principal"})

    monkeypatch.setattr(Session, "client", lambda self: Client("http://x", "k", httpx.MockTransport(judged)))
    file = tmp_path / "cases.yaml"

    def tested(text: str) -> tuple[int, str, str]:
        file.write_text(text)
        done = CliRunner().invoke(app, ["policies", "test", str(file), "--url", "http://x", "--key", "k", "-o", "json"])
        return done.exit_code, done.stdout, done.stderr

    code, out, _ = tested("cases: [{key: ci, expect: allow}]")
    assert (code, json.loads(out)[0]["case"]) == (0, "cases[0]")
    code, _, said = tested("cases: [{key: ci, expect: allow}, {principal: 3, expect: deny}]")
    assert (code, said) == (1, "error: cases[1]: principal: Expected `object | null`, got `int`.\n")
