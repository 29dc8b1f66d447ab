"""The Python that exports: asked what it has before a job is made, by real processes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gateway.app.operator_jobs import exporter
from gateway.core.errors import RequestError


def python(path: Path, script: str) -> str:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    return str(path)


async def refusal(name: str) -> str:
    with pytest.raises(RequestError) as caught:
        await exporter.check(name)
    assert (caught.value.code, caught.value.param) == ("exporter_missing", "task.kind")
    return caught.value.message


async def test_what_is_missing_is_named_with_where_to_install_it(tmp_path: Path) -> None:
    message = await refusal(python(tmp_path / "python", f'exec {sys.executable} -S "$@"'))
    assert message.startswith("The Python of jobs.export_python has not all")
    assert "`python -m pip install torch transformers onnx onnxscript`" in message and str(tmp_path) not in message


async def test_one_that_has_all_is_taken(tmp_path: Path) -> None:
    await exporter.check(python(tmp_path / "python", 'test "$1" = -I && test "$2" = -c && echo asked'))


async def test_one_that_is_no_python_or_does_not_answer_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "cannot be started: No such file" in await refusal(str(tmp_path / "missing"))
    assert "older than Python 3.11" in await refusal(python(tmp_path / "old", "echo 'python 3.11'; echo asked"))
    assert "does not say which packages it has: no such module" in await refusal(
        python(tmp_path / "broken", "echo no such module >&2; exit 1")
    )
    assert "does not say which packages it has" in await refusal(python(tmp_path / "silent", "exit 0"))
    monkeypatch.setattr(exporter, "ASK_SECONDS", 0.2)
    assert "within 0 s" in await refusal(python(tmp_path / "hangs", "sleep 60"))
