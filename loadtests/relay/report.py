"""A run of the relay benchmark as a table in Markdown and a plot.

    python -m loadtests.relay.report RUN.json FOLDER        writes MODE.md and MODE.png there; needs matplotlib (a development requirement)

`run.py --report FOLDER` does this with its own run; `--record` keeps runs.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

Figures = Mapping[str, float]
TITLES = {
    "json": "requests/s, {connections} connections (more is better)",
    "rate": "p99 in milliseconds at {rate} requests/s (less is better)",
    "stream": "CPU microseconds per chunk, {streams} streams (less is better)",
}
SCALES = {"json": 1.0, "rate": 1e-3, "stream": 1.0}
OURS, OTHERS = "#1b7f5c", "#9aa5b1"


def title(settings: Mapping[str, Any]) -> str:
    """What a run's figure is, with the settings that it was measured with."""
    return TITLES[settings["mode"]].format_map(settings)


def markdown(mode: str, summary: Mapping[str, Figures], about: Mapping[str, Any]) -> str:
    """The table of one run, with the machine and the settings under it."""
    columns = list(next(iter(summary.values())))
    lines = [f"## {mode}: {title(about['settings'])}", "", f"| target | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    lines += [f"| {name} | {' | '.join(f'{figures[column]:,.2f}' for column in columns)} |" for name, figures in summary.items()]
    machine = about["machine"]
    settings = ", ".join(f"{key} {value}" for key, value in about["settings"].items())
    lines += [
        "",
        f"{about['when']}, {about['commit']}: {machine['cpu']}, {machine['cores']} cores, Python {machine['python']}; {settings}.",
        "",
    ]
    return "\n".join(lines)


def plot(run: Mapping[str, Any], path: Path) -> None:
    """One bar a target: the median, with the smallest and the largest round as whiskers."""
    mode, key, summary, rounds = run["settings"]["mode"], run["key"], run["summary"], run["rounds"]
    scale, names = SCALES[mode], list(summary)
    middle = [summary[name][key] * scale for name in names]
    low = [value - min(r[key] for r in rounds[name]) * scale for name, value in zip(names, middle, strict=True)]
    high = [max(r[key] for r in rounds[name]) * scale - value for name, value in zip(names, middle, strict=True)]
    figure = Figure(figsize=(8, 1.2 + 0.5 * len(names)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    colours = [OURS if name.startswith("gatehouse") else OTHERS for name in names]
    axes.barh(names, middle, xerr=[[max(0.0, v) for v in low], [max(0.0, v) for v in high]], color=colours, ecolor="#333333", capsize=3)
    for number, value in enumerate(middle):
        axes.text(value, number, f" {value:,.1f}", va="bottom", ha="left", fontsize=9)
    axes.invert_yaxis()
    axes.set_title(title(run["settings"]), loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.12)
    figure.savefig(path, dpi=120)


def write(run: Mapping[str, Any], folder: Path) -> list[Path]:
    """MODE.md and MODE.png in the folder; gives both."""
    mode = run["settings"]["mode"]
    folder.mkdir(parents=True, exist_ok=True)
    table, picture = folder / f"{mode}.md", folder / f"{mode}.png"
    table.write_text(markdown(mode, run["summary"], run))
    plot(run, picture)
    return [table, picture]


if __name__ == "__main__":
    for written in write(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])):
        print(f"wrote {written}", file=sys.stderr)
