"""Options before the command are those of the command."""

import inspect

import pytest
from typer.testing import CliRunner

from admin.cli.moved import FLAGS, VALUED, moved
from admin.cli.session import connected
from gateway.app.main import app


@pytest.mark.parametrize(
    ("line", "same"),
    [
        ("--output json keys list", "keys list --output json"),
        ("-o json keys list", "keys list -o json"),
        ("-ojson keys list", "keys list -ojson"),
        ("--url=http://a --key k --wide status", "status --url=http://a --key k --wide"),
        ("keys --output json list --tenant a", "keys list --tenant a --output json"),
        ("--key k keys -o yaml show ci", "keys show ci --key k -o yaml"),
        ("--url a status --url b", "status --url a --url b"),
        ("--url a status --watch --url b", "status --watch --url b"),
        ("--output json keys list -oyaml", "keys list -oyaml"),
        ("-o json status --watch --output=yaml", "status --watch --output=yaml"),
        ("--key k chat -- --key", "chat --key k -- --key"),
        ("--profile p login", "login --profile p"),
        ("--url a serve --config f", "serve --config f --url a"),
    ],
)
def test_they_count_as_if_they_stood_behind_it(line: str, same: str) -> None:
    assert moved(line.split()) == same.split()


@pytest.mark.parametrize(
    "line",
    [
        "",
        "--version",
        "--help",
        "keys",
        "keys list",
        "keys list --url a -o json",
        "status --url a",
        "status --url a --watch",
        "status --wide",
        "--url a",
        "--url",
        "--url a --help",
        "--nonsense x keys list",
        "keys --url",
        "keys --help",
        "serve --config f --workers 2",
    ],
)
def test_what_has_none_before_the_command_means_what_it_meant(line: str) -> None:
    words = line.split()
    found = moved(words)
    assert sorted(found) == sorted(words) and (found == words or set(words[1:]) & (VALUED | FLAGS))


def test_all_options_that_commands_have_in_common_are_known() -> None:
    options = [one.annotation.__metadata__[0] for one in inspect.signature(connected(lambda session: None)).parameters.values()]
    assert {name for option in options for name in (option.default, *option.param_decls)} == VALUED | FLAGS


def test_a_command_without_them_refuses_them() -> None:
    done = CliRunner().invoke(app, moved(["--url", "http://a", "check-config", "f"]))
    assert done.exit_code == 2 and "--url" in done.output
