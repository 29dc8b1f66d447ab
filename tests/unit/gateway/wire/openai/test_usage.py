"""What engines say they counted, however oddly."""

from __future__ import annotations

import pytest

from gateway.core.types import Usage
from gateway.wire.openai.usage import MAX_USAGE, usage_of


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}', Usage(1, 2, 0)),
        (b'{"usage":{"prompt_tokens":1,"total_tokens":1}}', Usage(1, 0, 0)),
        (b'{"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":8}}}', Usage(9, 2, 8)),
        (b'{"usage":{"prompt_tokens":9,"completion_tokens":null,"prompt_tokens_details":null}}', Usage(9, 0, 0)),
        (b'{"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":null}}}', Usage(9, 0, 0)),
        (b'{"usage":null}', None),
        (b"{}", None),
        (b"no json", None),
        (b'{"usage":{"prompt_tokens":"many"}}', None),
        (b'{"usage":{"prompt_tokens":null,"completion_tokens":null}}', None),
        (b'{"usage":{"prompt_tokens":null,"completion_tokens":2}}', Usage(0, 2, 0)),
        (b'{"usage":{"prompt_tokens":-5,"completion_tokens":1}}', None),
        (b'{"usage":{"prompt_tokens":5,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":-2}}}', Usage(5, 1, 0)),
        (b'{"usage":{"prompt_tokens":1000000000000000000000000000000,"completion_tokens":2}}', None),
        (b'{"usage":{"prompt_tokens":%d,"completion_tokens":%d}}' % (MAX_USAGE, MAX_USAGE + 1), None),
        (
            b'{"usage":{"prompt_tokens":1,"completion_tokens":8,"completion_tokens_details":{"reasoning_tokens":5}}}',
            Usage(1, 8, 0, False, 5),
        ),
        (b'{"usage":{"prompt_tokens":1,"\xff":1}}', Usage(1, 0, 0)),
    ],
)
def test_usage_of_an_answer(body: bytes, expected: Usage | None) -> None:
    assert usage_of(body) == expected
