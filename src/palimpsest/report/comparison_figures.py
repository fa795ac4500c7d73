"""Figures of a comparison, as PNG or SVG: accuracy against length, accuracy against cost.

Guaranteed: the same data give the same bytes; a side without a figure somewhere has no point there.
Not covered: more than six sides in colours of their own (they begin again, with another line).
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator, PercentFormatter

from palimpsest.report.plots import STYLES, figure_and_axes
from palimpsest.text.printable import printable

FORMATS = ("svg", "png")
_FEW = 8  # lines whose names stand in two columns
_LINES = ("-", "--", ":", "-.")


@dataclass(frozen=True, slots=True)
class Measured:
    """One side at one length of one task."""

    size: float
    """Place on the axis of lengths."""
    mean: float
    low: float
    high: float
    tokens: float
    """Processed per problem."""


Lines = Mapping[str, Sequence[Measured]]
"""Side (and task, where there are several) to its points, shorter ones first."""


@dataclass(frozen=True, slots=True)
class Axis:
    """What lengths are called."""

    label: str
    names: Mapping[float, str]
    """Of each place."""
    multiplies: bool
    """Whether it is logarithmic."""


def accuracy_by_length(lines: Lines, axis: Axis, form: str) -> bytes:
    """Accuracy of each side at each length, with 95% intervals, as `form` (svg or png)."""
    figure, axes = figure_and_axes()
    for place, (label, points) in enumerate(lines.items()):
        color, marker, line = _style(place)
        x = [point.size for point in points]
        axes.fill_between(x, [p.low for p in points], [p.high for p in points], color=color, alpha=0.13, linewidth=0)
        axes.errorbar(
            x,
            [point.mean for point in points],
            yerr=[[p.mean - p.low for p in points], [p.high - p.mean for p in points]],
            color=color,
            marker=marker,
            linestyle=line,
            linewidth=2,
            elinewidth=0.8,
            label=_label(label),
        )
    if axis.multiplies:
        axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(list(axis.names)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: _label(axis.names.get(x, ""))))
    axes.set_xlabel(_label(axis.label))
    _finish(figure, axes, len(lines))
    return _written(figure, form)


def accuracy_by_cost(lines: Lines, form: str) -> bytes:
    """Accuracy of each side against the tokens it processed per problem, a point a length, as `form`."""
    figure, axes = figure_and_axes()
    for place, (label, points) in enumerate(lines.items()):
        color, marker, line = _style(place)
        known = [point for point in points if point.tokens > 0]
        x, y = [point.tokens for point in known], [point.mean for point in known]
        axes.plot(x, y, color=color, marker=marker, linestyle=line, linewidth=1, label=_label(label))
    if any(point.tokens > 0 for points in lines.values() for point in points):
        axes.set_xscale("log")
    axes.set_xlabel("tokens processed per problem: prompts and replies of all calls")
    _finish(figure, axes, len(lines))
    return _written(figure, form)


def _label(name: str) -> str:
    """A foreign name as it is drawn: no character that XML refuses, no formula."""
    return printable(name).replace("$", r"\$")


def _style(place: int) -> tuple[str, str, str]:
    color, marker = STYLES[place % len(STYLES)]
    return color, marker, _LINES[place // len(STYLES) % len(_LINES)]


def _finish(figure: Figure, axes: Axes, lines: int) -> None:
    axes.set_ylim(-0.03, 1.06)
    axes.set_ylabel("accuracy")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    if lines:
        columns = 2 if lines <= _FEW else 3
        width, height = figure.get_size_inches()
        figure.set_size_inches(width, height + 0.18 * math.ceil(lines / columns))  # room for the legend above
        figure.legend(loc="outside upper left", ncols=columns, frameon=False, fontsize=8.5 if lines <= _FEW else 7)


def _written(figure: Figure, form: str) -> bytes:
    buffer = io.BytesIO()
    stamps = {"Date": None, "Creator": None} if form == "svg" else {"Software": None}
    with matplotlib.rc_context({"svg.hashsalt": "palimpsest", "svg.fonttype": "path"}):
        figure.savefig(buffer, format=form, facecolor="white", metadata=stamps)
    return buffer.getvalue()
