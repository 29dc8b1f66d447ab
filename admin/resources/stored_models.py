"""Models of the store: public names and the pools behind them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from admin.moments import Timestamp
from admin.resources.models import ModelView, model_view
from admin.resources.stored_fleet import FleetCollection, unused
from gateway.core.specs import ModelSpec


class StoredModelView(ModelView, kw_only=True):
    """A model with its settings and its state. reason: why its newest revision is not in force."""

    settings: dict[str, Any]
    in_force: bool
    failed: bool
    reason: str | None = None
    revision: int | None = None
    created_at: Timestamp | None = None
    updated_at: Timestamp | None = None
    updated_by: str | None = None


def in_file(config: dict[str, Any]) -> Iterable[dict[str, Any]]:
    models: list[dict[str, Any]] = config["models"]
    return models


def fallbacks(model: dict[str, Any]) -> list[str]:
    """Models that it needs: its fallbacks and the candidate of its shadow traffic."""
    shadow = model.get("shadow") or {}
    return [*(str(name) for name in model.get("fallbacks", ())), *([str(shadow["model"])] if "model" in shadow else [])]


MODELS: FleetCollection[ModelSpec] = FleetCollection(
    "models",
    "model",
    ModelSpec,
    in_file,
    lambda body: "",
    on_delete=unused("models", "model", fallbacks),
    running=lambda call, names: [model_view(model) for model in call.ports.fleet.models(names)],
    shown=StoredModelView,
    blank=lambda settings: {"ready": False, "pool": []},
)


def operations() -> list[Any]:
    return MODELS.operations()
