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
    ],
)  # fmt: skip
def test_a_result_is_one_line_whatever_the_engine_answers(body: bytes, shown: object) -> None:
    line = result("batch_1", 7, "mine", 200, "r-1", body, 1)
    assert line.count(b"\n") == 1 and line.endswith(b"\n") and b"\r" not in line
    found = json.loads(line)
    assert found["response"] == {"status_code": 200, "request_id": "r-1", "body": shown} and found["custom_id"] == "mine"
    assert "gatehouse" not in found


def test_a_line_that_ran_again_says_so() -> None:
    assert json.loads(result("batch_1", 7, "mine", 200, "r-1", b"{}", 2))["gatehouse"] == {"attempts": 2}
    told = json.loads(failure("batch_1", 7, "mine", "outcome_unknown", "It is not known.", 3))
    assert told["error"] == {"code": "outcome_unknown", "message": "It is not known."} and told["gatehouse"] == {"attempts": 3}
