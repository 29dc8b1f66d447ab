"""A log line is one line: nothing that is logged can make another, or write to the reader's terminal."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.telemetry.logging import JsonFormatter, TextFormatter, clean, masked, setup
from tests.steady import at_most, spent

FORBIDDEN = {chr(c) for c in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)}


def record(message: str, *values: Any, error: BaseException | None = None) -> logging.LogRecord:
    info = (type(error), error, error.__traceback__) if error is not None else None
    made = logging.LogRecord("gatehouse.test", logging.WARNING, "f.py", 1, message, values, info)
    made.created = 1_800_000_000.1234
    return made


@pytest.fixture
def kept_logging() -> Iterator[None]:
    """Puts the process's loggers back as they were."""
    names = ("", "gatehouse", "uvicorn")
    before = [(logging.getLogger(n), logging.getLogger(n).level, list(logging.getLogger(n).handlers)) for n in names]
    yield
    for logger, level, handlers in before:
        logger.setLevel(level)
        logger.handlers[:] = handlers


@given(st.text())
def test_no_control_character_is_written_raw(text: str) -> None:
    assert not FORBIDDEN & set(clean(text))


@given(st.text())
def test_text_without_control_characters_stays(text: str) -> None:
    if not FORBIDDEN & set(text):
        assert clean(text) == text


@given(st.text(alphabet=st.sampled_from('ab\n\r\x1b\x00\x85\u2028\u2029\x7f|="\\'), max_size=20))
def test_a_record_is_one_line_in_both_forms(text: str) -> None:
    line = TextFormatter().format(record("got %s", text))
    assert not FORBIDDEN & set(line)
    assert line.splitlines() == [line]
    line = JsonFormatter().format(record("got %s", text))
    assert line.splitlines() == [line]
    assert not FORBIDDEN & set(line)
    assert json.loads(line)["message"] == f"got {text}"


def test_the_text_form() -> None:
    assert TextFormatter().format(record("a\nb")) == "2027-01-15T08:00:00Z WARNING gatehouse.test: a\\nb"


def test_the_json_form() -> None:
    assert json.loads(JsonFormatter().format(record("a %d", 5))) == {
        "time": 1_800_000_000.123, "level": "warning", "logger": "gatehouse.test", "message": "a 5",
    }  # fmt: skip


def test_a_traceback_follows_indented_and_clean() -> None:
    try:
        raise ValueError("bad\x1b[31m\nINFO gatehouse: forged")
    except ValueError as error:
        made = record("failed", error=error)
    lines = TextFormatter().format(made).split("\n")
    assert all(line.startswith("    ") for line in lines[1:])
    assert "\x1b" not in "".join(lines)
    entry = json.loads(JsonFormatter().format(made))
    assert "ValueError: bad" in entry["exception"]


@pytest.mark.parametrize(("style", "start"), [("json", "{"), ("text", "20")])
def test_setup_points_every_logger_at_one_stream(kept_logging: None, style: str, start: str) -> None:
    stream = io.StringIO()
    setup("info", style, stream)
    logging.getLogger("gatehouse.x").info("shown")
    logging.getLogger("gatehouse.x").debug("hidden")
    logging.getLogger("other").info("hidden")
    logging.getLogger("other").warning("shown too")
    lines = stream.getvalue().splitlines()
    assert [("shown" in line) for line in lines] == [True, True]
    assert all(line.startswith(start) for line in lines)


def test_setup_again_does_not_double_the_lines(kept_logging: None) -> None:
    stream = io.StringIO()
    setup("debug", "text", stream)
    setup("debug", "text", stream)
    logging.getLogger("gatehouse").debug("once")
    assert len(stream.getvalue().splitlines()) == 1


JWT = "eyJhbGciOiJSUzI1NiIsImtpZCI6IjEifQ.eyJzdWIiOiJhbGljZSJ9.c2lnbmF0dXJl"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("key gh_4f9a8b7c6d5e4f3a2b1c was used", "key gh_*** was used"),
        ("Authorization: Bearer sk-abcdefghijklmnop, next", "Authorization: Bearer ***, next"),
        ("authorization: basic YWxpY2U6c2VjcmV0MTIz", "authorization: basic ***"),
        (f"the token {JWT} has expired", "the token *** has expired"),
        (f"the token '{JWT}.x.y' is encrypted", "the token '***' is encrypted"),
        ("cannot connect to postgresql://gatehouse:hunter2@db:5432/gatehouse", "cannot connect to postgresql://***@db:5432/gatehouse"),
        ("rediss://:hunter2@cache", "rediss://***@cache"),
        ("http://127.0.0.1:8080/v1/models?x=a@b", "http://127.0.0.1:8080/v1/models?x=a@b"),
        ("the bearer of this has basic knowledge", "the bearer of this has basic knowledge"),
        ("user alice@example.com logged in", "user alice@example.com logged in"),
        ("gh_short", "gh_short"),
    ],
)
def test_what_looks_like_a_credential_is_masked(text: str, shown: str) -> None:
    assert masked(text) == shown


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_credentials_are_masked_in_messages_arguments_and_tracebacks(formatter: logging.Formatter) -> None:
    try:
        raise ValueError("refused: redis://default:hunter2@cache/0")
    except ValueError:
        record = logging.LogRecord("n", logging.ERROR, "", 0, "with %s", ("Bearer abcdefghijklmnop",), sys.exc_info())
    line = formatter.format(record)
    assert "hunter2" not in line and "abcdefghijklmnop" not in line and "***@cache" in line


def test_masking_takes_linear_time() -> None:
    texts = ("a" * 200_000, "gh_" * 70_000, "eyJ" * 70_000, "x://" * 50_000, "bearer " * 30_000, "eyJ" + "a.b" * 60_000)
    at_most(2.0, lambda: spent(lambda: [masked(text) for text in texts]))
