"""How an agent's use of its context changed over training: a figure for each measure that the metrics hold.

Guaranteed: only what was measured is drawn; a step without the measure leaves a gap in no line, it has no point there;
the same rows give the same bytes. Not covered: smoothing beyond a trailing mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from palimpsest.report.plots import STYLES, figure_and_axes, png
from palimpsest.runs.rows import is_number


@dataclass(frozen=True, slots=True)
class _Panel:
    name: str
    label: str
    """Of the vertical axis."""
    lines: Mapping[str, str]
    """Key of a metric to what its line is called."""
    caption: str


_PANELS = (
    _Panel(
        "prunes",
        "prunes per episode",
        {"tool/prunes": "carried out", "tool/prune_refused": "refused"},
        "Prunes per sampled episode over training: how often the agent deleted part of its history.",
    ),
    _Panel(
        "context",
        "context tokens of a turn",
        {"tool/context_tokens": "mean", "tool/context_tokens_max": "largest of the step"},
        "Tokens the agent had before it in each turn, over training.",
    ),
    _Panel(
        "episode-tokens",
        "tokens per episode",
        {"tool/input_tokens": "input, all turns", "tool/sampled_tokens": "sampled"},
        "Tokens per sampled episode over training: prompts of all turns, prefixes counted each time, and replies.",
    ),
)


def training_figures(rows: Sequence[Mapping[str, Any]], *, smooth: int = 5) -> list[dict[str, Any]]:
    """A figure (name, png, caption, alt) for each of prunes, context size and tokens that `rows` of metrics hold.

    `rows`: lines of metrics.jsonl with their `step`; bold lines are the mean of the last `smooth` values.
    """
    figures = []
    for panel in _PANELS:
        lines = {label: _points(rows, key) for key, label in panel.lines.items()}
        if any(lines.values()):
            alt = f"{panel.label} over training steps"
            image = _drawn(panel, {label: points for label, points in lines.items() if points}, smooth)
            figures.append({"name": panel.name, "png": image, "caption": panel.caption, "alt": alt})
    return figures


def _points(rows: Sequence[Mapping[str, Any]], key: str) -> list[tuple[float, float]]:
    """Step and value of each row that has a number there; rows without a step are counted from 1.

    >>> _points([{"step": 1, "a": 2.0}, {"step": 2}, {"step": 3, "a": 4.0}], "a")
    [(1.0, 2.0), (3.0, 4.0)]
    """
    numbered = ((float(row.get("step", place)), row.get(key)) for place, row in enumerate(rows, start=1))
    return [(step, float(value)) for step, value in numbered if value is not None and is_number(value)]


def trailing_mean(values: Sequence[float], window: int) -> list[float]:
    """Mean of each value and those before it, `window` in all.

    >>> trailing_mean([2.0, 4.0, 6.0], 2)
    [2.0, 3.0, 5.0]
    """
    recent = [values[max(0, end - window) : end] for end in range(1, len(values) + 1)]
    return [sum(part) / len(part) for part in recent]


def _drawn(panel: _Panel, lines: Mapping[str, Sequence[tuple[float, float]]], smooth: int) -> bytes:
    figure, axes = figure_and_axes()
    for (label, points), (color, _) in zip(lines.items(), STYLES, strict=False):
        steps, values = [step for step, _ in points], [value for _, value in points]
        axes.plot(steps, values, color=color, alpha=0.3, linewidth=1)
        axes.plot(steps, trailing_mean(values, smooth), color=color, linewidth=2.2, label=label)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("training step (rollout batch)")
    axes.set_ylabel(panel.label)
    figure.legend(loc="outside upper left", ncols=2, frameon=False, fontsize=8.5)
    return png(figure)
