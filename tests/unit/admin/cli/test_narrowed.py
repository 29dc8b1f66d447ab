"""A call gets the part of the command line that it needs, and sees no difference."""

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from admin.cli.narrowed import narrowed
from gateway.app.main import app

COMPLETING = {"_GATEHOUSE_COMPLETE": "complete_bash"}


@pytest.mark.parametrize("name", ["keys", "audit", "status", "check-config"])
def test_only_what_the_first_argument_names_is_made(name: str) -> None:
    part = narrowed(app, [name, "--help"], {})
    assert list(get_command(part).commands) == [name]  # type: ignore[attr-defined]
    for arguments in ([name, "--help"], [name, "nonsense", "--nonsense"]):
        whole, narrow = (CliRunner().invoke(command, arguments) for command in (app, part))
        assert (narrow.exit_code, narrow.output) == (whole.exit_code, whole.output)


@pytest.mark.parametrize("arguments", [[], ["--help"], ["--version"], ["kyes", "list"], ["--nonsense", "keys"], [""]])
def test_everything_else_is_left_to_the_whole(arguments: list[str]) -> None:
    assert narrowed(app, arguments, {}) is app


@pytest.mark.parametrize(
    ("line", "found"),
    [("gatehouse keys ", "keys"), ("gatehouse keys re", "keys"), ("gatehouse keys", None), ("gatehouse ", None), ("", None)],
)
@pytest.mark.parametrize("variable", ["COMP_WORDS", "_TYPER_COMPLETE_ARGS"])
def test_a_line_that_a_shell_completes_is_read_as_far_as_it_is_whole(line: str, found: str | None, variable: str) -> None:
    part = narrowed(app, [], {**COMPLETING, variable: line})
    assert [group.name for group in part.registered_groups] == [found] if found else part is app
    assert narrowed(app, [], {variable: line}) is app  # nobody completes
