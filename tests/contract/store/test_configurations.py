"""The history of the configuration, over both databases."""

from __future__ import annotations

from gateway.core.storage import Removal, Write
from gateway.store.config_rows import compressed
from gateway.store.store import Store


async def test_writes_and_notes_are_entries_and_only_the_newest_are_kept(store: Store) -> None:
    store._history = 2
    number = await store.note_configuration({"of": "file", "changed": [], "count": 0}, compressed({"text": "a"}), actor="ann")
    await store.write_all([Write("limits", "a", {"x": 1}), Write("roles", "r", {})], actor="bob")
    await store.write_all([], removals=[Removal("limits", "a", 1)], actor="cy", restores=number)
    newest, oldest = (await store.configurations()).items
    assert (newest.actor, newest.told["changed"]) == ("cy", ["limits/a"])
    assert newest.told["rolled_back_to"] == number and "rolled_back_to" not in oldest.told
    assert (oldest.actor, oldest.told["changed"]) == ("bob", ["limits/a", "roles/r"]) and oldest.number > number
    assert (await store.configuration(newest.number))[1]["units"][0]["before"] == {"x": 1}
