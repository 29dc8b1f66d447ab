"""Errors about one of many resources: they name it, and the setting, once."""

from __future__ import annotations

import pytest

from admin.resources.apply import about
from gateway.core.errors import ConfigError, GatehouseError, RequestError


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ConfigError("is an address of this machine", path="url"), "engines/plain: url: is an address of this machine"),
        (ConfigError("there is no model file"), "engines/plain: there is no model file"),
        (RequestError("There is no limit 'slow'.", param="limits[0]"), "engines/plain: limits[0]: There is no limit 'slow'."),
    ],
)
def test_the_place_is_named_once(error: GatehouseError, said: str) -> None:
    with pytest.raises(GatehouseError) as caught, about("engines", "plain"):
        raise error
    assert (caught.value.message, caught.value.param) == (said, "engines/plain")
    assert not isinstance(error, ConfigError) or str(error) == said
