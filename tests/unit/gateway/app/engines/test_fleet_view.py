"""Of thousands of engines and models, only those that are asked for are looked at."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

from gateway.app.engines.fleet_view import FleetView
from gateway.core.specs import DnsSpec, EngineSpec, ModelSpec


class Traffic:
    """An endpoint for each name. `seen`: those that were described."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names, self.seen = list(names), set[str]()

    def in_force(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(name=name) for name in self.names]

    def endpoints(self, names: Iterable[str] | None = None) -> list[dict[str, Any]]:
        wanted = self.names if names is None else [name for name in names if name in self.names]
        self.seen |= set(wanted)
        return [{"name": name, "state": "ready" if "@2" in name or "@" not in name else "failed", "reason": name} for name in wanted]


def fleet(traffic: Traffic) -> FleetView:
    engines = [EngineSpec(name=f"e{number}", runtime="external", url="http://x") for number in range(20)]
    engines.append(EngineSpec(name="dns", runtime="external", url="http://x", dns=DnsSpec()))
    models = [ModelSpec(name=f"m{number}", pool=(f"e{number}",), aliases=(f"a{number}",)) for number in range(20)]
    entries = [SimpleNamespace(name=model.name, spec=model, route=SimpleNamespace(ready=True, backlog=0)) for model in models]
    known = {name: entry for entry in entries for name in (entry.name, *entry.spec.aliases)}
    in_force = SimpleNamespace(stated=SimpleNamespace(engines=tuple(engines)), merged=SimpleNamespace(revisions={("engines", "e7"): 1}))
    parts: dict[str, Any] = {
        "fleet": SimpleNamespace(supervisor=SimpleNamespace(engines=list), traffic=traffic, registry=traffic, mirror=None),
        "changes": SimpleNamespace(in_force=in_force, discovery=SimpleNamespace(faults=dict)),
        "plane": SimpleNamespace(current=lambda: SimpleNamespace(models=known)),
    }
    return FleetView(
        **{name: cast(Any, part) for name, part in parts.items()}, health=cast(Any, None), replica="", gateway_url="", started=0
    )


def traffic() -> Traffic:
    return Traffic([*(f"e{number}" for number in range(20)), "dns@1", "dns@2"])


def test_what_is_shown_of_some_engines_is_what_is_shown_of_them_among_all() -> None:
    every = traffic()
    whole = {engine["name"]: engine for engine in fleet(every).engines()}
    assert len(whole) == 21 and whole["e7"]["source"] == "store" and whole["dns"]["state"] == "ready"
    for names in (["e7"], ["dns", "e1"], ["nowhere"], []):
        some = traffic()
        assert {engine["name"]: engine for engine in fleet(some).engines(names)} == {name: whole[name] for name in names if name in whole}
        assert {name.partition("@")[0] for name in some.seen} == set(names) & set(whole)


def test_what_is_shown_of_some_models_is_what_is_shown_of_them_among_all() -> None:
    whole = {model["name"]: model for model in fleet(traffic()).models()}
    assert len(whole) == 20
    for names, seen in ((["m3"], {"e3"}), (["m3", "m4", "nowhere"], {"e3", "e4"}), (["a3"], set())):
        some = traffic()
        shown = {model["name"]: model for model in fleet(some).models(names)}
        assert shown == {name: whole[name] for name in names if name in whole} and some.seen == seen
