"""Numbers that clients write as text; the rest of the module is tested by tests/e2e/test_batches.py."""

from __future__ import annotations

import pytest

from gateway.core.errors import RequestError
from gateway.server.files_and_batches import is_count, limit_of, query_of

WRONG = ("", "0", "101", "-1", "+1", " 1", "1 ", "1_0", "1.0", "1e1", "0x1", "\u0661", "\uff11", "\u00b2", "9" * 5000)


@pytest.mark.parametrize("text", WRONG)
def test_a_limit_is_a_number_in_ascii_digits(text: str) -> None:
    with pytest.raises(RequestError) as caught:
        limit_of({"limit": text}, 100)
    assert (caught.value.status, caught.value.param) == (400, "limit")


def test_a_limit_that_is_one() -> None:
    assert [limit_of({"limit": text}, 100) for text in ("1", "100", "007")] == [1, 100, 7]
    assert (limit_of({}, 100), limit_of({}, 100, 20)) == (100, 20)


def test_digits_of_other_scripts_come_out_of_a_query() -> None:
    assert not is_count(query_of({"query_string": b"limit=%D9%A1"}, "limit")["limit"])
