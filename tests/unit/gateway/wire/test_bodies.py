"""Which values of fields are read for guardrails: all in which somebody may have written something."""

from __future__ import annotations

import pytest

from gateway.wire.bodies import may_speak


@pytest.mark.parametrize("raw", [b"1", b"-0.5", b"true", b"null", b'"auto"', b'{"include_usage":true}', b'["reasoning.encrypted_content"]'])
def test_numbers_and_usual_settings_say_nothing(raw: bytes) -> None:
    assert not may_speak(raw)


@pytest.mark.parametrize("raw", [b'"auto "', b'"x"', b'{"include_usage":true,"x":1}', b"[]", b'["reasoning.encrypted_content","x"]'])
def test_anything_else_may(raw: bytes) -> None:
    assert may_speak(raw)
