"""Values as YAML 1.2 that Gatehouse's own reader (gateway.wire.yamltree) gives back as they were."""

from __future__ import annotations

import re
from typing import Any, Final

import yaml

from gateway.wire import yamltree

_BREAKS: Final = re.compile("[\x85\u2028\u2029]")
"""Line breaks of YAML 1.1, which the writer leaves as they are and the reader folds into spaces; escaped, they stay."""


class _Dumper(yaml.SafeDumper):
    """Quotes each text that the reader would take for something else, as YAML 1.2 does: `1e5` and `0o17`, which YAML 1.1 does not."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    plain = yamltree.untyped(value, True) == value and not _BREAKS.search(value)
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if plain else '"')


_Dumper.add_representer(str, _text)


def written(value: Any) -> str:
    """A value of mappings, lists, texts, numbers, truths and nulls as a YAML document."""
    return str(yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120))
