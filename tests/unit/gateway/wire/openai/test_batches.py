"""Lines of the files that a batch ends with."""

from __future__ import annotations

import json

import pytest

from gateway.wire.openai.batches import failure, result


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b'{"a": 1.50}', {"a": 1.5}),
        (b'{\n "text": "two\\nlines",\r\n "big": 1234567890123456789012\n}\n', {"text": "two\nlines", "big": 1234567890123456789012}),
        (b"no JSON\nat all", "no JSON\nat all"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"", None),
        (b"null\n", None),
        (b"[" * 100_000, "[" * 100_000),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, '{"a":' * 100_000 + "1" + "}" * 100_000),
        (b'{"text": NaN}', '{"text": NaN}'),
        (b'"\\ud800"', '"\\ud800"'),
    ],
    ids=lambda value: str(value)[:20],
)  # fmt: skip
def test_a_result_is_one_line_whatever_the_engine_answers(body: bytes, shown: object) -> None:
    line = result("batch_1", 7, "mine", 200, "r-1", body, 1)
    assert line.count(b"\n") == 1 and line.endswith(b"\n") and b"\r" not in line
    found = json.loads(line)
    assert found["response"] == {"status_code": 200, "request_id": "r-1", "body": shown} and found["custom_id"] == "mine"
    assert "gatehouse" not in found


def test_no_text_ends_a_line_for_readers_that_split_at_every_line_separator_of_unicode() -> None:
    """As `str.splitlines` does, and with it `iter_lines` of httpx and of OpenAI's client."""
    body = {"one\u2028two": 'three\u2029four\x85{"custom_id": "another"}\\\u2028 \x0b\x0c\x1c\x1d\x1e ü 漢'}
    written = json.dumps(body, ensure_ascii=False).encode()
    texts = [
        result("batch_1", 7, "a\u2028b", 200, "r-1", written, 1),
        result("batch_1", 7, "a\u2028b", 200, "r-1", b"{" + written, 1),
        failure("batch_1", 7, "a\u2028b", "x", "y\u2029\x85"),
    ]
    assert all(len(line.decode().splitlines()) == 1 for line in texts)
    whole, broken, failed = map(json.loads, texts)
    assert whole["response"]["body"] == body and broken["response"]["body"] == "{" + written.decode()
    assert {one["custom_id"] for one in (whole, broken, failed)} == {"a\u2028b"} and failed["error"]["message"] == "y\u2029\x85"
    assert "ü 漢".encode() in texts[0]


def test_a_line_that_ran_again_says_so() -> None:
    assert json.loads(result("batch_1", 7, "mine", 200, "r-1", b"{}", 2))["gatehouse"] == {"attempts": 2}
    told = json.loads(failure("batch_1", 7, "mine", "outcome_unknown", "It is not known.", 3))
    assert told["error"] == {"code": "outcome_unknown", "message": "It is not known."} and told["gatehouse"] == {"attempts": 3}
