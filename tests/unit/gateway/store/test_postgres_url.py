"""Addresses of a PostgreSQL with several hosts are read as libpq reads them."""

from __future__ import annotations

from pathlib import Path

import psycopg.conninfo
import pytest

from gateway.core.errors import ConfigError
from gateway.store.database import make_engine

SAME = [
    "postgresql://u@a:1,b:2/d",
    "postgresql://u:p%40w@a:5433,b/d?target_session_attrs=read-write",
    "postgresql://u@a,b:7/d",
    "postgresql://u@a,b/d",
    "postgresql://a:1,b:2/d",
    "postgresql://u@[::1]:1,[fe80::2]/d",
    "postgresql://u@a:1/d",
]


@pytest.mark.parametrize("url", SAME)
def test_a_url_means_what_libpq_makes_of_it(url: str, tmp_path: Path) -> None:
    engine = make_engine(url, tmp_path, 5.0)
    _, options = engine.dialect.create_connect_args(engine.url)
    wanted = psycopg.conninfo.conninfo_to_dict(url)
    assert {name: str(options.get(name)) for name in wanted} == wanted


@pytest.mark.parametrize("url", ["postgresql://u@a:1,b:x/d", "postgresql://u@[a:1,b/d", "postgresql://u:hunter2@a:1:2,b/d"])
def test_hosts_that_are_none(url: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        make_engine(url, tmp_path, 5.0)
    assert caught.value.path == "store.url" and "hunter2" not in str(caught.value)


def test_a_password_is_not_shown(tmp_path: Path) -> None:
    assert "hunter2" not in repr(make_engine("postgresql://user:hunter2@a:1,b:2/x", tmp_path, 5.0))
