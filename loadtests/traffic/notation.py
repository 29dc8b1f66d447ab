"""How the options of a run are written: stages of load and mixes of users."""

import re
from collections.abc import Collection

UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


def parse_stages(text: str) -> list[tuple[float, int]]:
    """`DURATION:USERS,...` as (seconds since the start at which the stage ends, users). Raises ValueError for anything else."""
    stages: list[tuple[float, int]] = []
    end = 0.0
    for word in text.replace(" ", "").split(","):
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?):(\d+)", word)
        if found is None:
            raise ValueError(f"--stages: {word!r} is not DURATION:USERS, such as 30s:10")
        end += float(found[1]) * UNITS[found[2]]
        stages.append((end, int(found[3])))
    return stages


def parse_mix(text: str, kinds: Collection[str]) -> dict[str, int]:
    """`chat=6,stream=3` as weights. Raises ValueError for an unknown kind or a weight that is no whole number above 0."""
    mix: dict[str, int] = {}
    for word in text.replace(" ", "").split(","):
        name, _, weight = word.partition("=")
        if name not in kinds:
            raise ValueError(f"--mix: {name!r} is no kind of user (there are {', '.join(kinds)})")
        if not weight.isdigit() or int(weight) < 1:
            raise ValueError(f"--mix: the weight of {name} is {weight!r}; it must be a whole number above 0")
        mix[name] = int(weight)
    return mix
