"""The Python client against a running gateway: the examples of its page, and what they do not show."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gatehouse.client import Admin, AdminError, AsyncAdmin, ConnectionFailed
from tests.e2e import adminapi
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import Gatehouse

PAGE = Path(__file__).resolve().parents[2] / "docs" / "python-client.md"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, engine: EngineThread) -> Iterator[Gatehouse]:
    directory = tmp_path_factory.mktemp("client")
    with Gatehouse(directory, adminapi.config(directory / "state", engine.port)) as gatehouse:
        yield gatehouse


@pytest.fixture
def admin(running: Gatehouse) -> Iterator[Admin]:
    with Admin(running.admin_url, adminapi.KEYS["admin"]) as client:
        yield client


def test_the_examples_of_the_page_run(running: Gatehouse, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exported = tmp_path / "records.jsonl"
    names = {"url": running.admin_url, "key": adminapi.KEYS["admin"], "path": exported}
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(examples) == 4
    for example in examples:
        exec(compile(example, PAGE.name, "exec"), names)
    said = capsys.readouterr().out
    assert "gh_" in said and "412 version_mismatch" in said and "'path': 'description'" in said and "[True]" in said
    assert b'"research"' in exported.read_bytes()


def test_pages_are_followed_to_the_end(admin: Admin) -> None:
    made = [admin.keys.create({"tenant": "acme", "id": f"page-{number}"})["id"] for number in range(5)]
    assert [key["id"] for key in admin.keys.iterate(limit=2, prefix="page-")] == made
    assert len(admin.keys.list(limit=2, prefix="page-")["items"]) == 2
    for one in made:
        admin.keys.delete(one)
    assert list(admin.keys.iterate(prefix="page-")) == []


def test_names_that_no_path_could_hold_and_errors(admin: Admin) -> None:
    admin.tenants.create({"name": "a/b:c", "description": "é"})
    assert admin.tenants.get("a/b:c")["description"] == "é"
    with pytest.raises(AdminError) as caught:
        admin.tenants.create({"name": "a/b:c"})
    assert caught.value.status == 409 and caught.value.request_id
    with pytest.raises(AdminError) as caught:
        admin.tenants.create({"name": "x", "models": "m1"})  # type: ignore[typeddict-item]
    assert (caught.value.status, caught.value.param) == (400, "models")
    admin.tenants.delete("a/b:c")
    with pytest.raises(AdminError) as caught:
        admin.tenants.get("a/b:c")
    assert caught.value.code == "not_found"


def test_a_key_without_rights_and_a_listener_that_is_not_there(running: Gatehouse) -> None:
    with Admin(running.admin_url, adminapi.KEYS["viewer"]) as viewer, pytest.raises(AdminError) as caught:
        viewer.keys.list()
    assert caught.value.status == 403
    with Admin(running.url, adminapi.KEYS["admin"]) as wrong, pytest.raises(AdminError):
        wrong.status.get()
    with Admin("http://127.0.0.1:9", "k", retries=0) as nobody, pytest.raises(ConnectionFailed):
        nobody.status.get()


def test_events_are_followed(running: Gatehouse, admin: Admin) -> None:
    """The change is made again and again until one of the events has come, as the stream may begin after the first."""
    seen = threading.Event()

    def change() -> None:
        with Admin(running.admin_url, adminapi.KEYS["admin"]) as other:
            for number in range(1000):
                other.tenants.create({"name": f"event-{number}"})
                other.tenants.delete(f"event-{number}")
                if seen.wait(0.05):
                    return

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for event in admin.events.get():
            if "event-" in str(event.data):
                break
    finally:
        seen.set()
        thread.join(30)
    assert event.kind


def test_the_asynchronous_client_does_the_same(running: Gatehouse) -> None:
    async def main() -> None:
        async with AsyncAdmin(running.admin_url, adminapi.KEYS["admin"]) as admin:
            await admin.tenants.create({"name": "later"}, wait=10)
            tried = await admin.tenants.update("later", {"description": "x"}, dry_run=True)
            assert [change["path"] for change in tried["diff"]] == ["description"]
            assert "later" in [tenant["name"] async for tenant in admin.tenants.iterate(limit=1)]
            assert b"later" in b"".join([part async for part in admin.audit.export(format="jsonl")])
            assert (await admin.with_timeout(60).audit.verify())["ok"] is True
            with pytest.raises(AdminError):
                await admin.tenants.create({"name": "later"})
            await admin.tenants.delete("later")

    asyncio.run(asyncio.wait_for(main(), 90))
