"""Settings of plug-ins that were written nowhere are read as those of a file are."""

from __future__ import annotations

import pytest

from gateway.config.convert import NO_PLUGINS, PluginSchemas, with_plain_settings
from gateway.core.errors import ConfigError
from gateway.core.specs import GuardrailSpec, LimitSpec, ModelSpec, RoutingSpec, Spec, Timeout


class Settings(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    timeout: Timeout = 1.0


SCHEMAS = PluginSchemas(guardrails={"slow": Settings}, selectors={"patient": Settings})


def guardrail(kind: str = "slow", **settings: object) -> GuardrailSpec:
    return GuardrailSpec(name="g", type=kind, settings=settings)


def model(policy: str = "patient", **settings: object) -> ModelSpec:
    return ModelSpec(name="m", pool=("e",), routing=RoutingSpec(policy=policy, settings=settings))


def test_durations_are_seconds() -> None:
    assert with_plain_settings(guardrail(timeout="200ms"), SCHEMAS) == guardrail(timeout=0.2)
    assert with_plain_settings(model(timeout="2s"), SCHEMAS) == model(timeout=2.0)


def test_whatever_has_no_plug_in_stays_as_it_is() -> None:
    limit = LimitSpec(name="l", concurrent=1)
    assert with_plain_settings(limit, SCHEMAS) is limit
    assert with_plain_settings(guardrail("other", a="1s"), SCHEMAS) == guardrail("other", a="1s")
    assert with_plain_settings(model("other"), NO_PLUGINS) == model("other")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (guardrail(timoeut="1s"), "settings.timoeut: unknown key 'timoeut'; did you mean 'timeout'?"),
        (model(timeout="soon"), "routing.settings.timeout: 'soon' is not a duration"),
        (model("patent"), "routing.policy: there is no routing policy 'patent'; did you mean 'patient'?"),
    ],
)
def test_errors_name_the_path_within(spec: Spec, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        with_plain_settings(spec, SCHEMAS)
    assert str(caught.value).startswith(message)
