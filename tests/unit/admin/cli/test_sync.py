"""Dumps as files: what is written is what is read, however it looks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from admin.cli.apply import report
from admin.cli.client import Client
from admin.cli.errors import CommandError
from admin.cli.output import Format, Output
from admin.cli.session import Session
from admin.cli.sync import read, replace, written
from gateway.app.main import app
from gateway.wire import yamltree

ODD = (
    "1e5",
    "0o17",
    "0x1F",
    "no",
    "~",
    "null",
    "12:30",
    "1_000",
    "012",
    "",
    " ",
    "a: b",
    "#",
    "line\nbreak",
    "\u2028",
    "next\x85line",
    "ünï",
    "!tag",
    "*a",
    ".inf",
)
TEXTS = st.one_of(st.sampled_from(ODD), st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=20))
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**53), 2**53), st.floats(1e-90, 1e90), TEXTS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1, max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.fixed_dictionaries({"name": TEXTS, "value": VALUES}), max_size=3))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, items: list[dict[str, Any]]) -> None:
    file = tmp_path_factory.getbasetemp() / "dump.yaml"
    replace(file, written({"limits": items, "keys": []}))
    assert read(file) == {"limits": items, "keys": []}
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- a", "must hold a mapping"),
        ("", "must hold a mapping"),
        ("{", "Expecting"),
        ("a: [", "line"),
        ('{"limits": [{"name": "a"}], "limits": []}', "'limits' appears twice"),
        ('{"limits": [{"name": "a", "name": "b"}]}', "'name' appears twice"),
        ('{"limits": [NaN]}', "NaN is not JSON"),
        ('{"limits": [1e999]}', "Out of range"),
        ('{"limits": ["\\ud800"]}', "half of a surrogate pair"),
        ('{"limits": ' + "[" * 100_000, "nested too deeply"),
        ("roles: {chatter: }", r"roles\.chatter must be a mapping"),
        ("roles: {chatter: {permissions: []}, other: [x]}", r"roles\.other must be a mapping"),
        ("roles: {chatter: {name: reader, permissions: []}}", r"roles\.chatter has another name, 'reader'"),
    ],
)
def test_what_is_no_dump(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "f"
    file.write_text(text)
    with pytest.raises(CommandError, match=words):
        read(file)


def test_roles_may_be_written_as_in_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("roles: {chatter: {permissions: ['infer:chat']}}\n")
    assert read(file) == {"roles": [{"name": "chatter", "permissions": ["infer:chat"]}]}


def test_only_what_is_done_is_counted_as_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = {"diff": [], "revives": False}
    items = [
        {"kind": "users", "name": "ann@t", "action": "created", **shared},
        {"kind": "keys", "name": "ci", "action": "missing", **shared},
    ]
    answer = {"items": items, "unchanged": 10, "plan": "p", "dry_run": True}
    transport = httpx.MockTransport(lambda request: httpx.Response(200, json=answer))
    monkeypatch.setattr(Session, "client", lambda self: Client("http://x", "k", transport))
    (tmp_path / "f").write_text("users: []\nkeys: []\n")
    done = CliRunner().invoke(app, ["sync", str(tmp_path / "f"), "--url", "http://x", "--key", "k"])
    assert done.exit_code == 1 and "2 differences, 10 equal" in done.stderr and "done: 1 difference\n" in done.stderr


def test_a_dump_that_cannot_be_read_again_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = httpx.Response(200, json={"limits": [{"name": f"limit-{number}"} for number in range(10)]})
    monkeypatch.setattr(Session, "client", lambda self: Client("http://x", "k", httpx.MockTransport(lambda request: answer)))
    monkeypatch.setattr(yamltree, "MAX_BYTES", 100)

    def warned(file: str) -> bool:
        done = CliRunner().invoke(app, ["dump", file, "--kind", "limits", "--url", "http://x", "--key", "k"])
        assert done.exit_code == 0, done.output
        return "read no more than" in done.stderr

    assert warned(str(tmp_path / "f.yaml")) and warned("-") and not warned(str(tmp_path / "f.json"))
    with pytest.raises(CommandError, match="JSON may be longer"):
        read(tmp_path / "f.yaml")
    assert len(read(tmp_path / "f.json")["limits"]) == 10


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (httpx.Response(200, json={"items": [], "unchanged": 3, "plan": "p", "dry_run": True}), 0),
        (httpx.Response(200, json={"items": [{"kind": "limits", "name": "a", "action": "deleted", "diff": []}], "unchanged": 3}), 1),
        (httpx.Response(403, json={"title": "denied", "detail": "This needs the permission keys:read."}), 2),
        (httpx.Response(200, json=["no gateway"]), 2),
        (httpx.ConnectError("refused"), 2),
    ],
    ids=["equal", "different", "denied", "something else", "nobody"],
)
def test_what_a_script_learns_from_a_diff(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: httpx.Response | httpx.ConnectError, code: int
) -> None:
    """Equal, different, and that it cannot be known are three exit codes: a check for drift must not take an outage for one."""

    def answered(request: httpx.Request) -> httpx.Response:
        if isinstance(answer, httpx.ConnectError):
            raise answer
        return answer

    monkeypatch.setattr(Session, "client", lambda self: Client("http://x", "k", httpx.MockTransport(answered)))
    (tmp_path / "f").write_text("limits: []\n")
    asked = ["diff", str(tmp_path / "f"), "--url", "http://x", "--key", "k"]
    assert CliRunner().invoke(app, asked).exit_code == code
    assert CliRunner().invoke(app, ["diff", str(tmp_path / "absent"), "--url", "http://x", "--key", "k"]).exit_code == 2


def test_an_applied_file_is_reported_setting_by_setting(capsys: pytest.CaptureFixture[str]) -> None:
    done = [
        {"kind": "limits", "name": "new", "action": "created", "diff": [{"path": "name", "from": None, "to": "new"}]},
        {"kind": "limits", "name": "old", "action": "replaced", "diff": [{"path": "requests.rate", "from": 5.0, "to": 6.0}]},
    ]
    report(Output(Format.table), done)
    assert capsys.readouterr().out == "created limits/new\nreplaced limits/old\n  requests.rate: 5.0 -> 6.0\n"
    report(Output(Format.json), done)
    assert json.loads(capsys.readouterr().out) == done
