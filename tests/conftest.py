"""Settings of the whole suite: which build is tested; hypothesis without a deadline, with the same examples for the same test.

GATEHOUSE_TEST_COMPILED=1 runs the tests against the compiled build (gateway/app/compiled.py) instead of the sources.
GATEHOUSE_TEST_CHANCE=1 draws new examples in each run, to look for what the usual ones miss.

Python keeps what it compiled, whatever the environment says: the suite starts a thousand processes of 600 modules, and to compile them anew
takes each one half a second of CPU.
"""

import atexit
import gc
import os
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import certifi
import pytest
import typer.testing
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from gateway.app.compiled import activate
from tests.order import place

sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # for the processes that tests start

collect_ignore = ["unit/policies/guardrails/test_language.py"] if sys.version_info >= (3, 14) else []
"""fastText has no release for 3.14."""

settings.register_profile("same", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("chance", deadline=None, suppress_health_check=[HealthCheck.too_slow])
CHANCE = os.environ.get("GATEHOUSE_TEST_CHANCE") == "1"
settings.load_profile("chance" if CHANCE else "same")
if not CHANCE:
    # Hypothesis also draws the constants of whatever modules are imported by then: other examples for each selection of tests, for each
    # build and after each change anywhere.
    assert callable(providers._get_local_constants)
    providers._get_local_constants = lambda: providers._local_constants

COMPILED = os.environ.get("GATEHOUSE_TEST_COMPILED") == "1"
if COMPILED and (fault := activate()):
    pytest.exit(f"GATEHOUSE_TEST_COMPILED=1 needs a build: {fault}; ./scripts/test makes one", returncode=4)

SOURCES_ONLY = {
    "tests/unit/gateway/pipeline/test_named.py::test_what_is_remembered_is_bounded": "replaces a Final, which is part of the machine code",
    "tests/unit/gateway/pipeline/test_stream.py::test_a_whole_answer_is_bounded": "replaces a Final, which is part of the machine code",
    "tests/unit/gateway/pipeline/test_stream.py::test_events_of_one_shape_are_not_searched": "replaces a function that is called directly",
    "tests/unit/gateway/pipeline/test_stream.py::test_the_record_says_when_a_stream_was_asked_for_and_not_when_its_head_came": (
        "replaces a function that is called directly"
    ),
    "tests/unit/gateway/wire/test_scan.py::test_depth_and_nodes_are_exact_however_the_body_is_cut": (
        "replaces a Final, which is part of the machine code"
    ),
    "tests/unit/gateway/wire/openai/test_structure.py::test_the_glance_at_colons_finds_what_the_whole_check_finds": (
        "replaces a function that is called directly"
    ),
    "tests/unit/policies/guardrails/recognition/test_automaton.py::test_states_are_bounded_and_built_anew": (
        "replaces a Final, which is part of the machine code"
    ),
    "tests/unit/policies/test_facts.py::test_a_list_that_is_too_long_is_not_looked_at": "inherits from a compiled class",
    "tests/unit/policies/test_facts.py::test_every_fact_is_read_of_a_request_by_itself_and_together": "inherits from a compiled class",
    "tests/unit/gateway/wire/anthropic/test_stream.py::test_pieces_of_an_unknown_type_are_read_as_one_text_too": (
        "inherits from a compiled class"
    ),
    "tests/unit/gateway/wire/anthropic/test_stream.py::test_citations_are_whole_by_themselves": "inherits from a compiled class",
    "tests/unit/gateway/wire/anthropic/test_stream.py::test_a_block_has_one_signature": "inherits from a compiled class",
    "tests/unit/gateway/wire/anthropic/test_stream.py::test_a_piece_without_a_type_is_none": "inherits from a compiled class",
    "tests/unit/gateway/core/test_decided.py": "inherits from a compiled class, which the build does not allow",
    "tests/unit/policies/test_replay.py": "inherits from a compiled class, which the build does not allow",
    "tests/unit/gateway/server/test_reading.py": "inherits from a compiled class, which the build does not allow",
}
"""Tests, and files of tests, that cannot run on the compiled build, each with the reason (held true by test_compiled.py)."""


def sources_only(nodeid: str) -> bool:
    return nodeid.split("[")[0] in SOURCES_ONLY or nodeid.split("::")[0] in SOURCES_ONLY


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest files first; without SOURCES_ONLY where the compiled build is tested."""
    items.sort(key=lambda item: place(item.nodeid))
    if COMPILED:
        config.hook.pytest_deselected(items=[item for item in items if sources_only(item.nodeid)])
        items[:] = [item for item in items if not sources_only(item.nodeid)]


def pytest_collection_finish() -> None:
    """Twenty thousand tests are millions of objects, which stay: each look of the garbage collector through all of them took seconds."""
    gc.collect()
    gc.freeze()


def one_authority() -> str:
    """A file with the first certificate of certifi's hundreds. httpx reads them all for each client, in 18 ms of CPU, and tests make
    thousands of clients; none of them speaks to a server that a public authority vouches for."""
    end = "-----END CERTIFICATE-----\n"
    with tempfile.NamedTemporaryFile("w", suffix=".pem", delete=False) as file:
        file.write(Path(certifi.where()).read_text(encoding="utf-8").partition(end)[0] + end)
    atexit.register(Path(file.name).unlink, missing_ok=True)
    return file.name


certifi.where = one_authority().__str__
typer.testing._get_command = cache(typer.testing._get_command)  # type: ignore[attr-defined]
"""The 190 commands are made once, not for each of a thousand calls of the command line."""


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder whose path leaves room for a socket's name below it, even where pytest's own `tmp_path` does not."""
    with tempfile.TemporaryDirectory(prefix="gatehouse-") as name:
        yield Path(name)
