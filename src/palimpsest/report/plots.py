"""Figures of reports as PNG or SVG: training reward, accuracy against length and cost, use of context.

matplotlib draws into memory, without a global figure or backend.

Guaranteed: the same data give the same bytes (no clock, no random draw, no version stamp); only measured values are
drawn, so a missing value has no point.
Not covered: display in a window; more than six distinct colours (they repeat with another line style); smoothing other
than a trailing mean.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator, PercentFormatter

from palimpsest.report.axis_labels import DOCUMENTS, AxisWords, LengthLabels, Lines, Point, times
from palimpsest.runs.jsonl_rows import is_number
from palimpsest.text.display_text import printable

# Okabe and Ito's palette is distinct for every colour vision; markers distinguish lines in grey print.
STYLES = (
    ("#0072B2", "o"),
    ("#E69F00", "s"),
    ("#009E73", "^"),
    ("#CC79A7", "D"),
    ("#D55E00", "v"),
    ("#56B4E9", "P"),
)
_LINES = ("-", "--", ":", "-.")
_INK, _FAINT = "#222222", "#8a8a8a"


def reward_figure(rewards: Sequence[float], lengths: Sequence[int], *, words: AxisWords = DOCUMENTS) -> bytes:
    """Mean reward per step, with the sizes of problems in the background if training had several.

    `rewards` and `lengths` are [steps]; the bold line is the mean of the last five steps at the same length.
    """
    figure, axes = figure_and_axes()
    steps = range(1, len(rewards) + 1)
    if len(set(lengths)) > 1:
        _shade_lengths(axes, lengths, words)
    axes.plot(steps, rewards, color=STYLES[0][0], alpha=0.3, linewidth=1)
    axes.plot(steps, _averaged(rewards, lengths), color=STYLES[0][0], linewidth=2.2)
    axes.set_xlim(0.5, len(rewards) + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("training step (rollout batch)")
    _percent_axis(axes, "mean reward of sampled episodes", rewards, floor=0.0)
    return png(figure)


def accuracy_figure(curves: Lines, *, training_length: int, words: AxisWords = DOCUMENTS) -> bytes:
    """Accuracy against size, logarithmic for multiples, with 95% bands and a mark at the largest training size."""
    figure, axes = figure_and_axes()
    for points, style in _styled(curves):
        x = [p.size for p in points]
        _band(axes, x, points, style)
        axes.plot(x, [p.mean for p in points], markersize=6, linewidth=2, **style)
    _accuracy_axis(axes, curves)
    _length_axis(axes, curves, training_length, words)
    _legend(figure)
    return png(figure)


def tokens_figure(curves: Lines, *, training_length: int, words: AxisWords = DOCUMENTS) -> bytes:
    """Tokens processed per episode against its size, both logarithmic for multiples; dotted: exact proportion."""
    figure, axes = figure_and_axes()
    for points, style in _styled(curves):
        x, y = [p.size for p in points if p.mean > 0], [p.mean for p in points if p.mean > 0]
        axes.plot(x, y, markersize=6, linewidth=2, **style)
    if not words.multiples:
        axes.set_ylim(bottom=0)
    elif any(p.mean > 0 for points in curves.values() for p in points):
        axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    first = next((points for points in curves.values() if points), None)
    if first is not None:
        ends = (first[0].size, first[-1].size)
        scale = first[-1].mean / first[-1].size
        axes.plot(
            ends,
            [scale * end for end in ends],
            ":",
            color=_FAINT,
            linewidth=1.4,
            label=words.proportional,
        )
    axes.set_ylabel(words.cost)
    _length_axis(axes, curves, training_length, words)
    _legend(figure)
    return png(figure)


def figure_and_axes() -> tuple[Figure, Axes]:
    figure = Figure(figsize=(5.2, 3.5), dpi=200, layout="constrained")  # legible 350 px wide
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_FAINT)
    axes.tick_params(colors=_INK, labelsize=9)
    axes.xaxis.label.set_fontsize(9)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    return figure, axes


def _averaged(rewards: Sequence[float], lengths: Sequence[int], window: int = 5) -> list[float]:
    """Trailing mean that restarts when the length changes.

    >>> _averaged([0.0, 1.0, 1.0, 0.0], [1, 1, 1, 2], 2)
    [0.0, 0.5, 1.0, 0.0]
    """
    means, start = [], 0
    for index in range(len(rewards)):
        start = index if index and lengths[index] != lengths[index - 1] else start
        recent = rewards[max(start, index - window + 1) : index + 1]
        means.append(sum(recent) / len(recent))
    return means


def _shade_lengths(axes: Axes, lengths: Sequence[int], words: AxisWords) -> None:
    """Alternate bands, one per run of steps at one size, with the size at the top."""
    start = 0
    for index in range(1, len(lengths) + 1):
        if index < len(lengths) and lengths[index] == lengths[start]:
            continue
        left, right = start + 0.5, index + 0.5
        stage = sum(1 for i in range(1, start + 1) if lengths[i] != lengths[i - 1])
        axes.axvspan(left, right, color="#f1f1ee" if stage % 2 == 0 else "#ffffff", zorder=0)
        text = (
            f"{lengths[start]} {words.unit(lengths[start])}"
            if right - left > 0.11 * len(lengths)
            else str(lengths[start])
        )
        top = axes.get_xaxis_transform()
        axes.text((left + right) / 2, 0.967, text, ha="center", va="center", fontsize=8, color=_FAINT, transform=top)
        start = index


def _styled(curves: Lines) -> Iterator[tuple[Sequence[Point], dict[str, Any]]]:
    """Each line with points and its style, which depends on its place among all lines."""
    for index, (label, points) in enumerate(curves.items()):
        color, marker = STYLES[index % len(STYLES)]
        line = _LINES[index // len(STYLES) % len(_LINES)]
        if points:
            yield points, {"color": color, "marker": marker, "linestyle": line, "label": _label(label)}


def _band(axes: Axes, x: Sequence[float], points: Sequence[Point], style: Mapping[str, str]) -> None:
    """The intervals of a line."""
    low, high = [p.low for p in points], [p.high for p in points]
    axes.fill_between(x, low, high, color=style["color"], alpha=0.13, linewidth=0)


def _accuracy_axis(axes: Axes, curves: Lines) -> None:
    ends = [end for line in curves.values() for point in line for end in (point.low, point.high)]
    _percent_axis(axes, "accuracy", ends, floor=-0.03)


def _percent_axis(axes: Axes, label: str, values: Sequence[float], *, floor: float) -> None:
    """`floor` to 106%, or as far as the values of a reward reach."""
    below = [value - 0.03 for value in values if value < 0]
    axes.set_ylim(min([floor, *below]), max([1.06, *(value + 0.06 for value in values)]))
    axes.set_ylabel(label)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def _length_axis(axes: Axes, curves: Lines, training_length: int, words: AxisWords) -> None:
    lengths = sorted({p.size for points in curves.values() for p in points})
    if not lengths:
        return
    if words.multiples:
        axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(lengths))
    axes.xaxis.set_minor_locator(NullLocator())
    relative = words.multiples
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda x, _: f"{x:,.0f}\n{times(round(x), training_length)}×" if relative else f"{x:,.0f}")
    )
    axes.set_xlabel(words.axis)
    axes.axvline(training_length, color=_FAINT, linestyle="--", linewidth=1.1, zorder=1)
    axes.annotate(
        words.trained,
        (training_length, 1),
        xycoords=("data", "axes fraction"),
        xytext=(-2, 3),  # above the axes, clear of lines
        textcoords="offset points",
        fontsize=8,
        color=_FAINT,
    )


def _legend(figure: Figure, columns: int = 2, size: float = 8.5) -> None:
    """Draw the legend above the plot, so that no line crosses it."""
    if lines := figure.axes[0].get_legend_handles_labels()[0]:
        length = 2 if len(lines) <= len(STYLES) else 4  # shows the dashes of a repeated colour
        figure.legend(loc="outside upper left", ncols=columns, frameon=False, fontsize=size, handlelength=length)


def _short(value: float) -> str:
    """
    >>> [_short(v) for v in (500, 10_000, 2_500_000)]
    ['500', '10k', '2.5M']
    """
    for limit, unit in ((1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


_DRAWING = ThreadPoolExecutor(1, "plots")
"""matplotlib opens its fonts once per thread and keeps them open."""


def png(figure: Figure) -> bytes:
    return _written(figure, "png")


# ---- Figures of a comparison ---------------------------------------------------------------------------------


FORMATS = ("svg", "png")
_FEW = 8  # lines up to which the legend has two columns


def accuracy_by_length(lines: Lines, axis: LengthLabels, form: str) -> bytes:
    """Accuracy of each side at each length, with 95% intervals, as `form` (svg or png)."""
    figure, axes = figure_and_axes()
    for points, style in _styled(lines):
        x, y = [p.size for p in points], [p.mean for p in points]
        _band(axes, x, points, style)
        ends = [[p.mean - p.low for p in points], [p.high - p.mean for p in points]]
        axes.errorbar(x, y, yerr=ends, linewidth=2, elinewidth=0.8, **style)
    if axis.multiplies:
        axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(list(axis.names)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: _label(axis.names.get(x, ""))))
    axes.set_xlabel(_label(axis.label))
    _finish(figure, axes, lines)
    return _written(figure, form)


def accuracy_by_cost(lines: Lines, form: str) -> bytes:
    """Accuracy of each side against tokens processed per problem, one point per length, as `form`."""
    figure, axes = figure_and_axes()
    for points, style in _styled(lines):
        measured = [point for point in points if point.tokens > 0]
        axes.plot([point.tokens for point in measured], [point.mean for point in measured], linewidth=1, **style)
    if any(point.tokens > 0 for points in lines.values() for point in points):
        axes.set_xscale("log")
    axes.set_xlabel("tokens processed per problem: prompts and replies of all calls")
    _finish(figure, axes, lines)
    return _written(figure, form)


def _label(name: str) -> str:
    """A user's name as drawable text: without characters that XML forbids, and without formulas."""
    return printable(name).replace("$", r"\$")


def _finish(figure: Figure, axes: Axes, lines: Lines) -> None:
    _accuracy_axis(axes, lines)
    if lines:
        columns = 2 if len(lines) <= _FEW else 3
        width, height = figure.get_size_inches()
        figure.set_size_inches(width, height + 0.18 * math.ceil(len(lines) / columns))  # room for the legend above
        _legend(figure, columns, 8.5 if len(lines) <= _FEW else 7)


def _written(figure: Figure, form: str) -> bytes:
    return _DRAWING.submit(_drawing, figure, form).result()


def _drawing(figure: Figure, form: str) -> bytes:
    buffer = io.BytesIO()
    stamps = {"Date": None, "Creator": None} if form == "svg" else {"Software": None}
    with matplotlib.rc_context({"svg.hashsalt": "palimpsest", "svg.fonttype": "path"}):
        figure.savefig(buffer, format=form, facecolor="white", metadata=stamps)
    return buffer.getvalue()


# ---- Columns of a run's metrics against the step -------------------------------------------------------------


def metrics_figure(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> Figure:
    """One panel per column; omits steps without a number in the column."""
    figure, only = figure_and_axes()
    if len(columns) > 1:
        figure.clear()
        figure.set_figheight(2.4 * len(columns))
    panels = [only] if len(columns) == 1 else list(figure.subplots(len(columns), sharex=True))
    for panel, name in zip(panels, columns, strict=True):
        points = [(row["step"], row[name]) for row in rows if isinstance(row.get(name), int | float)]
        panel.plot([step for step, _ in points], [value for _, value in points], color=STYLES[0][0], marker=".")
        panel.set_ylabel(name)
    panels[-1].set_xlabel("step")
    return figure


# ---- Use of context over training ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Panel:
    name: str
    label: str
    lines: Mapping[str, str]
    """Labels of lines by metric key."""
    caption: str


_PANELS = (
    _Panel(
        "prunes",
        "prunes per episode",
        {"tool/prunes": "executed", "tool/prune_refused": "rejected"},
        "Prunes per sampled episode over training. A prune deletes part of the agent's history.",
    ),
    _Panel(
        "context",
        "context tokens per turn",
        {"tool/context_tokens": "mean", "tool/context_tokens_max": "largest of the step"},
        "Prompt tokens per turn over training.",
    ),
    _Panel(
        "episode-tokens",
        "tokens per episode",
        {"tool/input_tokens": "input, all turns", "tool/sampled_tokens": "sampled"},
        "Tokens per sampled episode over training: prompts of all turns (prefixes counted per turn) and replies.",
    ),
)


def training_figures(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Figures (name, png, caption, alt) of prunes, context size and tokens, for each that isn't 0 in all `rows`.

    `rows`: lines of metrics.jsonl with their `step`; bold lines are the mean of the last five values.
    """
    figures = []
    for panel in _PANELS:
        lines = {label: _points(rows, key) for key, label in panel.lines.items()}
        if any(value for points in lines.values() for _, value in points):
            alt = f"{panel.label} over training steps"
            image = _drawn(panel, {label: points for label, points in lines.items() if points})
            figures.append({"name": panel.name, "png": image, "caption": panel.caption, "alt": alt})
    return figures


def _points(rows: Sequence[Mapping[str, Any]], key: str) -> list[tuple[float, float]]:
    """(step, value) of each row with a number in `key`; rows without a step are counted from 1.

    >>> _points([{"step": 1, "a": 2.0}, {"step": 2}, {"step": 3, "a": 4.0}], "a")
    [(1.0, 2.0), (3.0, 4.0)]
    """
    numbered = ((float(row.get("step", number)), row.get(key)) for number, row in enumerate(rows, start=1))
    return [(step, float(value)) for step, value in numbered if value is not None and is_number(value)]


def _drawn(panel: _Panel, lines: Mapping[str, Sequence[tuple[float, float]]]) -> bytes:
    figure, axes = figure_and_axes()
    for (label, points), (color, _) in zip(lines.items(), STYLES, strict=False):
        steps, values = [step for step, _ in points], [value for _, value in points]
        axes.plot(steps, values, color=color, alpha=0.3, linewidth=1)
        axes.plot(steps, _averaged(values, [0] * len(values)), color=color, linewidth=2.2, label=label)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("training step (rollout batch)")
    axes.set_ylabel(panel.label)
    _legend(figure)
    return png(figure)
