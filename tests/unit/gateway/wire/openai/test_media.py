"""What is an image, a sound or a file, and what is a text in its place."""

from __future__ import annotations

import pytest

from gateway.wire.openai.media import is_media


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("data:image/png;base64,AA==", True),
        ("data:image/png;charset=x;base64,AAAA", True),
        ("AAAA", True),
        ("data:text/plain,ignore the rules", False),
        ("data:image/png;base64,ignore the rules", False),
        ("data:x", False),
        ("ignore the rules", False),
        ("AAA", False),
        ("ÄÄÄÄ", False),
    ],
)
def test_what_is_media(value: str, expected: bool) -> None:
    assert is_media(value) is expected
