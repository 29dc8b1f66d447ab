import errno
import os
import stat
from typing import Any

import pytest

from gateway.audit.sinks import local_sink, other_sinks
from gateway.core.errors import ConfigError
from gateway.core.specs import AuditSpec, SinkSpec


@pytest.fixture
def sink(log_bench: Any) -> Any:
    sink = log_bench.sink()
    sink.open()
    sink.begin(1)
    yield sink
    sink.close()


def test_directory_and_files_belong_to_the_owner_alone(log_bench: Any, sink: Any) -> None:
    assert stat.S_IMODE(log_bench.directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in log_bench.directory.iterdir()} == {0o600}


def test_short_writes_are_completed(log_bench: Any, sink: Any) -> None:
    log_bench.disk.short = 3
    sink.write(b"hello world\n")
    assert sink.path.read_bytes() == b"hello world\n" and log_bench.disk.writes == 4


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EFBIG])
def test_a_failed_write_leaves_nothing_behind(log_bench: Any, sink: Any, code: int) -> None:
    sink.write(b"one\n")
    log_bench.disk.error, log_bench.disk.after = code, 2
    with pytest.raises(OSError, match=os.strerror(code)):
        sink.write(b"two\n")
    assert sink.path.read_bytes() == b"one\n"
    log_bench.disk.error = None
    sink.write(b"three\n")
    assert sink.path.read_bytes() == b"one\nthree\n"


def test_what_could_not_be_cut_off_at_once_is_cut_off_before_the_next_write(log_bench: Any, sink: Any) -> None:
    log_bench.disk.fill(after=3)
    log_bench.disk.cut_error = errno.EIO
    with pytest.raises(OSError, match="No space"):
        sink.write(b"two-and-more\n")
    assert sink.path.read_bytes() == b"two"
    log_bench.disk.error = None
    with pytest.raises(OSError, match="Input/output"):
        sink.write(b"x\n")
    log_bench.disk.cut_error = None
    sink.write(b"x\n")
    assert sink.path.read_bytes() == b"x\n"


def test_a_failed_sync_counts_as_a_failed_write(log_bench: Any) -> None:
    sink = log_bench.sink(sync=True)
    sink.open()
    sink.begin(1)
    log_bench.disk.sync_error = errno.EIO
    with pytest.raises(OSError, match="Input/output"):
        sink.write(b"one\n")
    assert sink.path.read_bytes() == b"" and sink.size == 0
    sink.close()


def test_a_second_process_is_kept_out(log_bench: Any, sink: Any) -> None:
    with pytest.raises(ConfigError, match="another process"):
        log_bench.sink().open()
    other = log_bench.sink(writer="w1")
    other.open()
    other.close()


def test_a_directory_that_cannot_be_made_is_a_config_error(log_bench: Any) -> None:
    log_bench.directory.write_bytes(b"a file")
    with pytest.raises(ConfigError, match="cannot write the audit log"):
        log_bench.sink().open()


def test_writer_ids_cannot_lead_out_of_the_directory(log_bench: Any) -> None:
    for bad in ("", "../x", "-a", "a.b", "a/b", "x" * 41):
        with pytest.raises(ConfigError, match="writer id"):
            log_bench.sink(writer=bad)


def test_a_symbolic_link_is_never_followed(log_bench: Any, tmp_path: Any) -> None:
    victim = tmp_path / "victim"
    victim.write_text("stays\n")
    sink = log_bench.sink()
    sink.open()
    for name in ("audit-0-00000001.jsonl", "audit-0-00000002.jsonl.zst", "audit-other.lock"):
        (log_bench.directory / name).symlink_to(victim)
    assert sink.segments() == []
    with pytest.raises(OSError, match=r"audit-0-00000001\.jsonl is a symbolic link; it must be a file"):
        sink.resume(1)
    with pytest.raises(FileExistsError):
        sink.begin(1)
    with pytest.raises(ConfigError, match=r"audit-other\.lock is a symbolic link"):
        log_bench.sink(writer="other").take()
    sink.close()
    assert victim.read_text() == "stays\n"


def test_unknown_sinks_are_refused_by_name(log_bench: Any) -> None:
    spec = AuditSpec(sinks=(SinkSpec(type="file"), SinkSpec(type="sylog")))
    with pytest.raises(ConfigError, match=r"audit.sinks\[1\]: there is no audit sink 'sylog'; known: file"):
        list(other_sinks(spec, str(log_bench.state_dir), "0"))


@pytest.mark.parametrize("sinks", [(), (SinkSpec(type="file"), SinkSpec(type="file", path="/tmp/x"))])
def test_exactly_one_file_holds_the_chain(log_bench: Any, sinks: Any) -> None:
    with pytest.raises(ConfigError, match="exactly one"):
        local_sink(AuditSpec(sinks=sinks), str(log_bench.state_dir), "0")


def test_the_sinks_path_overrides_the_state_directory(log_bench: Any, tmp_path: Any) -> None:
    spec = AuditSpec(sinks=(SinkSpec(type="file", path=str(tmp_path / "elsewhere")),))
    assert local_sink(spec, str(log_bench.state_dir), "0").directory == tmp_path / "elsewhere"
    assert local_sink(AuditSpec(), str(log_bench.state_dir), "0").directory == log_bench.state_dir / "audit"


async def test_a_probe_tells_whether_the_disk_answers(log_bench: Any, sink: Any) -> None:
    sink.write(b"one\n")
    sink.probe()
    log_bench.disk.sync_error = errno.EIO
    with pytest.raises(OSError, match="Input/output"):
        sink.probe()
    await sink.aclose()
    with pytest.raises(OSError, match="not open"):
        sink.write(b"two\n")
