"""Which lines are run once more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.app.batches.lines import _none_ran


@pytest.mark.parametrize(
    ("steps", "none"),
    [
        ([], False),
        ([429], True),
        ([503], True),
        ([200], False),  # and then a guardrail of the pipeline's own answer found no place: the step is paid for
        ([502], False),
        ([429, 499], False),
        ([200, 429], False),
    ],
)
def test_a_pipeline_of_which_anything_was_done_is_not_run_again(steps: list[int], none: bool) -> None:
    told = {"pipeline": {"steps": [{"step": "s", "status": status} for status in steps]}}
    assert _none_ran(cast(Any, SimpleNamespace(detail=told))) is none
    assert not _none_ran(cast(Any, SimpleNamespace(detail=None)))
