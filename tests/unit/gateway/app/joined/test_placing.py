"""Which machine is to run which engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.app.joined.placing import Decision, Host, Past, Wish, decide, outdated
from gateway.core.joining import DeviceRoom, PlacedEngine, Room

GIB = 1 << 30


def wish(name: str = "chat", **fields: Any) -> Wish:
    given = {"revision": "a" * 32, "runtime": "llama.cpp", "machines": ("*",), "copies": 1, "device": "cpu", "fallback": False}
    return Wish(engine=name, **{**given, "needs": (4 * GIB, 0), "on_cpu": 4 * GIB, "size": GIB, **fields})


def host(name: str, *placed: str, memory: int = 8 * GIB, revision: str = "a" * 32, failed: str = "", **fields: Any) -> Host:
    """placed: names of engines; with a final ? those that load."""
    names = [one.rstrip("?") for one in placed]
    room = Room(
        engines=4, memory=memory, disk=100 * GIB, cpu=True, runtimes=("llama.cpp",),
        devices=fields.pop("devices", ()), placed=tuple(PlacedEngine(name=one, revision=revision, failed=failed) for one in names),
    )  # fmt: skip
    given = {"serves": ("*",), "drained": False, "silent": None, "since": 100.0, **fields}
    return Host(name=name, room=room, ready=frozenset(one for one in placed if not one.endswith("?")), **given)


def decided(wishes: list[Wish], hosts: list[Host], past: Past | None = None) -> Decision:
    return decide(wishes, hosts, past or Past(), 5.0)


def test_an_engine_goes_where_most_memory_is_left_and_two_do_not_count_the_same() -> None:
    both = decided([wish("a"), wish("b")], [host("x", memory=6 * GIB), host("y", memory=9 * GIB)])
    assert both.put == {("a", "y"): "cpu", ("b", "x"): "cpu"}
    third = decided([wish("a"), wish("b"), wish("c"), wish("d")], [host("x", memory=6 * GIB), host("y", memory=9 * GIB)])
    assert set(third.put) == {("a", "y"), ("b", "x"), ("c", "y")}
    assert third.why["d"][1] == "insufficient_memory"
    coming = decided([wish("a"), wish("b")], [host("x", memory=6 * GIB)], Past({("a", "x"): "cpu"}))
    assert coming.put == {} and coming.why.keys() == {"b"}, "what an order on its way takes is not free"


def test_what_is_there_stays() -> None:
    assert decided([wish()], [host("x", "chat", memory=GIB), host("y")]) == Decision()
    assert decided([wish()], [host("x", "chat?"), host("y")]) == Decision(), "it loads"


def test_copies_are_on_machines_of_their_own() -> None:
    made = decided([wish(copies=3)], [host("x", "chat"), host("y"), host("z", memory=GIB)])
    assert made.put == {("chat", "y"): "cpu"}
    assert made.why["chat"][1] == "insufficient_memory" and "(z)" in made.why["chat"][0]
    fewer = decided([wish()], [host("x", "chat"), host("y", "chat", since=2.0), host("z", "chat?")])
    assert fewer.remove == [("chat", "z"), ("chat", "y")], "that which loads, then the last that has come back"
    assert decided([wish()], [host("x", "chat?"), host("y", "chat?")]).remove == [], "none is ready yet"


def test_a_silent_machine_keeps_its_engine_for_a_while() -> None:
    assert decided([wish()], [host("x", "chat", silent=4.0), host("y")]) == Decision()
    assert decided([wish()], [host("x", "chat", silent=6.0), host("y")]).put == {("chat", "y"): "cpu"}
    assert decided([wish()], [host("x", silent=0.1), host("y", silent=0.1)]).why["chat"][1] is None


def test_a_drained_machine_serves_until_another_does() -> None:
    drained = host("x", "chat", drained=True)
    first = decided([wish()], [drained, host("y")])
    assert first.put == {("chat", "y"): "cpu"} and first.moving == {("chat", "x")} and first.remove == []
    second = decided([wish()], [drained, host("y", "chat?")])
    assert second.put == {} and second.moving == {("chat", "x")} and second.remove == []
    third = decided([wish()], [drained, host("y", "chat")])
    assert third.moving == set() and third.remove == [("chat", "x")]
    nowhere = decided([wish()], [drained, host("y", memory=GIB)])
    assert nowhere.moving == set() and nowhere.why["chat"][1] == "insufficient_memory", "a drain is a drain where nothing else can be done"


def test_what_came_to_nothing_is_taken_away_and_tried_elsewhere() -> None:
    failed = host("x", "chat?", failed="a" * 32)
    past = Past(barred={("chat", "x"): ("no such device", "engine_failed")})
    made = decided([wish()], [failed, host("y")], past)
    assert made.remove == [("chat", "x")] and made.put == {("chat", "y"): "cpu"}
    assert "x: no such device" in decided([wish()], [host("x")], past).why["chat"][0]


def test_what_fails_stays_until_another_serves_in_its_place() -> None:
    x, y = ("chat", "x"), ("chat", "y")
    past = Past(failing={x: "no answer"}, over=frozenset({x}), unwell=frozenset({x}))
    first = decided([wish()], [host("x", "chat"), host("y")], past)
    assert first.put == {y: "cpu"} and first.remove == []
    for seen in (past, replace(past, unwell=frozenset({x, y}))):
        assert decided([wish()], [host("x", "chat"), host("y", "chat")], seen) == Decision(), "the machine alone says that it is ready"
    assert decided([wish()], [host("x", "chat"), host("y", "chat")], replace(past, well=frozenset({y}))).remove == [x]
    nowhere = decided([wish()], [host("x", "chat"), host("y", memory=GIB)], past)
    assert nowhere.remove == [] and nowhere.put == {} and nowhere.why["chat"][1] == "insufficient_memory"
    assert decided([wish()], [host("x", "chat"), host("y")], replace(past, shunned=frozenset({y}))).put == {}
    last = Past(shunned=frozenset({y}))
    assert decided([wish()], [host("y")], last).put == {y: "cpu"}, "better where it failed than nowhere"
    assert decided([wish()], [host("y", memory=99 * GIB), host("z")], last).put == {("chat", "z"): "cpu"}
    both = replace(past, shunned=frozenset({y}), failing={x: "no answer"})
    assert decided([wish(copies=2)], [host("x", "chat"), host("y")], both).put == {y: "cpu"}, "the other copy has been lost"


def test_of_several_copies_that_fail_one_is_moved_and_its_replacement_is_enough() -> None:
    x, y, z = (("chat", name) for name in "xyz")
    hosts = [host("x", "chat"), host("y", "chat"), host("z", "chat")]
    past = Past(failing={x: "no answer"}, over=frozenset({x, y}), unwell=frozenset({x, y}), well=frozenset({z}))
    assert decided([wish(copies=2)], hosts, past).remove == [x]
    assert decided([wish(copies=2)], hosts, replace(past, over=frozenset({x}), well=frozenset({y}))).remove == [], "z does not serve yet"
    assert decided([wish(copies=2)], hosts[:2], replace(past, well=frozenset({y}))).remove == [], "there is no third machine"


def test_what_does_not_serve_goes_first_and_is_no_replacement() -> None:
    x, y = ("chat", "x"), ("chat", "y")
    both = [host("x", "chat"), host("y", "chat", since=2.0)]
    assert decided([wish()], both, Past(unwell=frozenset({x}))).remove == [x]
    assert decided([wish()], both, Past(unwell=frozenset({x, y}))).remove == []
    drained = [host("x", "chat", drained=True), host("y", "chat")]
    assert decided([wish()], drained, Past(unwell=frozenset({y}))) == Decision(moving={x})


def test_a_new_revision_replaces_the_old_one_where_it_is() -> None:
    old = host("x", "chat", memory=0, revision="b" * 32)
    assert decided([wish()], [old, host("y")]).put == {("chat", "x"): "cpu"}
    barred = Past(barred={("chat", "x"): ("bad", "engine_failed")})
    assert decided([wish()], [host("x", "chat", revision="b" * 32, failed="a" * 32)], barred) == Decision(), "the old one serves on"


@pytest.mark.parametrize(
    ("wanted", "at"),
    [
        (wish(machines=("gpu-*",)), {}),
        (wish(runtime="onnx"), {}),
        (wish("secret"), {"serves": ("chat",)}),
        (wish(), {"reachable": False}),
        (wish(device="cuda:1"), {"devices": (DeviceRoom(device="cuda:0", free=80 * GIB),)}),
    ],
)
def test_who_may_not_have_it(wanted: Wish, at: dict[str, Any]) -> None:
    made = decided([wanted], [host("x", **at)])
    assert made.put == {} and wanted.engine in made.why


def test_gpus_by_their_own_memory_and_the_cpu_where_that_is_allowed() -> None:
    on_gpu = wish(device="cuda", needs=(GIB, 20 * GIB))
    small, large = DeviceRoom(device="cuda:0", free=16 * GIB), DeviceRoom(device="cuda:1", free=24 * GIB)
    assert decided([on_gpu], [host("x", devices=(small, large)), host("y", memory=99 * GIB)]).put == {("chat", "x"): "cuda:1"}
    assert decided([on_gpu], [host("x", devices=(small,))]).put == {}
    back = wish(device="cuda", needs=(GIB, 20 * GIB), fallback=True)
    assert decided([back], [host("x", devices=(small,)), host("y", memory=99 * GIB)]).put == {("chat", "y"): "cpu"}
    assert decided([back], [host("x", devices=(large,)), host("y", memory=99 * GIB)]).put == {("chat", "x"): "cuda:1"}
    both = wish(device="cuda:0,1", needs=(GIB, 36 * GIB))
    assert decided([both], [host("x", devices=(small, large))]).put == {("chat", "x"): "cuda:0,1"}
    two = decided([on_gpu, wish("b", device="cuda", needs=(GIB, 20 * GIB))], [host("x", devices=(large,))])
    assert two.put == {("chat", "x"): "cuda:1"} and two.why["b"][1] == "insufficient_memory"


def test_what_nobody_wants_any_more_ends() -> None:
    assert decided([], [host("x", "old"), host("y", "old", silent=1.0)]).remove == [("old", "x")]


def test_an_older_version_is_outdated_once_another_machine_has_the_new_one() -> None:
    old, new = host("x", "chat", revision="b" * 32), host("y", "chat")
    assert outdated([wish()], [old, new]) == {("chat", "x")}
    assert outdated([wish()], [old, host("y", "chat?")]) == set(), "the new one loads"
    assert outdated([wish()], [old, host("y", "chat", silent=1.0)]) == set(), "the new one is not heard"
    assert outdated([wish()], [host("x", "chat", revision="b" * 32, failed="a" * 32), new]) == set(), (
        "it goes on as the new one failed there"
    )
    assert outdated([wish("other")], [old, new]) == set()
