"""Which plug-ins a change of the configuration keeps."""

from __future__ import annotations

import msgspec

from gateway.app.configuration.parts import key_of, reads_files
from gateway.core.specs import GuardrailSpec


def test_two_guardrails_are_the_same_only_with_all_their_settings() -> None:
    one = GuardrailSpec(name="g", type="denylist", settings={"a": 1, "b": 2})
    assert key_of(one) == key_of(GuardrailSpec(name="g", type="denylist", settings={"b": 2, "a": 1}))
    for other in ({"name": "h"}, {"settings": {"a": 1}}, {"fail_mode": "open"}, {"on": ("request",)}, {"models": ("x",)}):
        assert key_of(one) != key_of(msgspec.structs.replace(one, **other))


def test_which_settings_name_files() -> None:
    assert reads_files({"phrases_file": "x"})
    assert not reads_files({"phrases": ["x_file"]})
