"""How many files a process may open, and what is said where they do not suffice."""

from __future__ import annotations

import resource

import pytest

from gateway.server.open_files import ENOUGH, raise_limit, too_few


@pytest.mark.parametrize(
    ("soft", "hard", "left"),
    [
        (1024, 1_048_576, ENOUGH),
        (1024, resource.RLIM_INFINITY, ENOUGH),
        (1024, 4096, 4096),
        (256, 256, None),
        (100_000, 1_048_576, None),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None),
    ],
)
def test_the_limit_is_raised_as_far_as_it_may_be(monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, left: int | None) -> None:
    put: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: put.append(limits))
    assert raise_limit() == (left or (ENOUGH if soft == resource.RLIM_INFINITY else soft))
    assert put == ([] if left is None else [(left, hard)])


def test_a_limit_that_cannot_be_raised_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", refused)
    assert raise_limit() == 1024


def test_too_few_descriptors_for_the_connections_are_said_with_what_helps() -> None:
    assert too_few(65_536, 4096, 0) == too_few(65_536, 4096, 1) == too_few(4300, 4096, 2) == ""
    assert "about 448 in all" in too_few(1024, 4096, 0) and "LimitNOFILE=8320" in too_few(1024, 4096, 1)
    assert "too few for 2048 requests" in too_few(1024, 4096, 2) and "about 896 in all" in too_few(1024, 4096, 2)
