import pytest

from gateway.audit import writers
from gateway.audit.writers import claim, worker_writer
from gateway.core.errors import ConfigError
from gateway.core.specs import AuditSpec


def test_a_worker_takes_the_lowest_number_that_no_process_has(tmp_path: object) -> None:
    sinks = [claim(AuditSpec(), str(tmp_path), "gw") for _ in range(3)]
    assert [sink.writer for sink in sinks] == ["gw-1", "gw-2", "gw-3"]
    sinks[1].close()
    again = claim(AuditSpec(), str(tmp_path), "gw")
    assert again.writer == worker_writer("gw", 2) == "gw-2"
    for sink in (sinks[0], again, sinks[2]):
        sink.open()  # has the lock already
        sink.close()


def test_a_worker_gets_the_writer_of_its_own_id_while_that_is_free(tmp_path: object) -> None:
    mine = claim(AuditSpec(), str(tmp_path), "gw", "gw-3")
    other = claim(AuditSpec(), str(tmp_path), "gw", "gw-3")
    assert (mine.writer, other.writer) == ("gw-3", "gw-1")
    mine.close()
    other.close()


def test_there_is_an_end_to_numbers(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "HIGHEST", 2)
    sinks = [claim(AuditSpec(), str(tmp_path), "gw") for _ in range(2)]
    with pytest.raises(ConfigError, match="all 2 writers of the replica 'gw' are in use"):
        claim(AuditSpec(), str(tmp_path), "gw")
    for sink in sinks:
        sink.close()
