"""The three figures of a report, as PNG bytes: reward over steps, accuracy and tokens against the size of problems.

Guaranteed: the same data give the same picture (no clock, no random draw, no version stamp in the file).
Not covered: windows. matplotlib draws into memory without touching a global figure or backend.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator, PercentFormatter

from palimpsest.report.words import DOCUMENTS, Words, times

# Okabe and Ito's palette: told apart with any colour vision, and by marker where printed grey.
STYLES = (
    ("#0072B2", "o"),
    ("#E69F00", "s"),
    ("#009E73", "^"),
    ("#CC79A7", "D"),
    ("#D55E00", "v"),
    ("#56B4E9", "P"),
)
_INK, _FAINT = "#222222", "#8a8a8a"


@dataclass(frozen=True, slots=True)
class Point:
    """One measured mean with its 95% interval at one size of problems."""

    length: int
    """In the axis's own unit, e.g. chunks of the document."""
    mean: float
    low: float
    high: float


Curves = Mapping[str, Sequence[Point]]
"""Label of a line to its points, in the order in which they are drawn."""


def reward_figure(
    rewards: Sequence[float], lengths: Sequence[int], *, smooth: int = 5, words: Words = DOCUMENTS
) -> bytes:
    """Mean reward of each step, and where training went through several sizes of problems these in the background.

    `rewards` and `lengths` are [steps]; the bold line is the mean of the last `smooth` steps at
    the same length.
    """
    figure, axes = figure_and_axes()
    steps = range(1, len(rewards) + 1)
    if len(set(lengths)) > 1:
        _shade_lengths(axes, lengths, words)
    axes.plot(steps, rewards, color=STYLES[0][0], alpha=0.3, linewidth=1)
    axes.plot(steps, _averaged(rewards, lengths, smooth), color=STYLES[0][0], linewidth=2.2)
    axes.set_xlim(0.5, len(rewards) + 0.5)
    axes.set_ylim(0, 1.06)
    axes.set_xlabel("training step (rollout batch)")
    axes.set_ylabel("mean reward of sampled episodes")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    return png(figure)


def accuracy_figure(curves: Curves, *, training_length: int, words: Words = DOCUMENTS) -> bytes:
    """Accuracy against size, logarithmic for multiples, with 95% bands and the largest size trained on marked."""
    figure, axes = figure_and_axes()
    for (label, points), (color, marker) in zip(curves.items(), STYLES, strict=False):
        x = [p.length for p in points]
        axes.fill_between(x, [p.low for p in points], [p.high for p in points], color=color, alpha=0.13, linewidth=0)
        axes.plot(x, [p.mean for p in points], color=color, marker=marker, markersize=6, linewidth=2, label=label)
    axes.set_ylim(-0.03, 1.06)
    axes.set_ylabel("accuracy")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    _length_axis(axes, curves, training_length, words)
    _legend(figure, axes)
    return png(figure)


def tokens_figure(curves: Curves, *, training_length: int, words: Words = DOCUMENTS) -> bytes:
    """Tokens processed per episode against its size, both logarithmic for multiples; dotted: exact proportion."""
    figure, axes = figure_and_axes()
    for (label, points), (color, marker) in zip(curves.items(), STYLES, strict=False):
        x, y = [p.length for p in points if p.mean > 0], [p.mean for p in points if p.mean > 0]
        axes.plot(x, y, color=color, marker=marker, markersize=6, linewidth=2, label=label)
    if not words.multiples:
        axes.set_ylim(bottom=0)
    elif any(p.mean > 0 for points in curves.values() for p in points):
        axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    first = next((points for points in curves.values() if points), None)
    if first is not None:
        ends = (first[0].length, first[-1].length)
        scale = first[-1].mean / first[-1].length
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
    _legend(figure, axes)
    return png(figure)


def figure_and_axes() -> tuple[Figure, Axes]:
    figure = Figure(figsize=(7.2, 4.1), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_FAINT)
    axes.tick_params(colors=_INK, labelsize=9)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    return figure, axes


def _averaged(rewards: Sequence[float], lengths: Sequence[int], window: int) -> list[float]:
    """Trailing mean that starts anew where the length changes.

    >>> _averaged([0.0, 1.0, 1.0, 0.0], [1, 1, 1, 2], 2)
    [0.0, 0.5, 1.0, 0.0]
    """
    means, start = [], 0
    for index in range(len(rewards)):
        start = index if index and lengths[index] != lengths[index - 1] else start
        recent = rewards[max(start, index - window + 1) : index + 1]
        means.append(sum(recent) / len(recent))
    return means


def _shade_lengths(axes: Axes, lengths: Sequence[int], words: Words) -> None:
    """Alternate bands, one for each run of steps at one size, named at its top."""
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
        axes.text((left + right) / 2, 1.025, text, ha="center", va="center", fontsize=8, color=_FAINT)
        start = index


def _length_axis(axes: Axes, curves: Curves, training_length: int, words: Words) -> None:
    lengths = sorted({p.length for points in curves.values() for p in points})
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
        xytext=(-2, 3),  # above the axes, where no line runs
        textcoords="offset points",
        fontsize=8,
        color=_FAINT,
    )


def _legend(figure: Figure, axes: Axes) -> None:
    """Above the plot, where no line can run through it."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside upper left",
        ncols=min(2, len(labels)),
        frameon=False,
        fontsize=8.5,
        handlelength=1.8,
    )


def _short(value: float) -> str:
    """
    >>> [_short(v) for v in (500, 10_000, 2_500_000)]
    ['500', '10k', '2.5M']
    """
    for limit, unit in ((1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


def png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", facecolor="white", metadata={"Software": None})
    return buffer.getvalue()
