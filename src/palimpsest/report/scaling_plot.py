"""Draws what a benchmark's work costs as it grows."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


def plot_scaling(scaling: Sequence[Sequence[float]], path: str, unit: str = "segments") -> None:
    """Rows of a count (`unit`), tokens and seconds, as a PNG: a straight line where cost is linear."""
    figure = Figure(figsize=(5.0, 3.2), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    axes.plot([row[1] for row in scaling], [row[2] for row in scaling], "o-", color="#0072B2")
    for count, tokens, seconds in scaling:
        axes.annotate(f"{count:.0f}", (tokens, seconds), textcoords="offset points", xytext=(5, -11))
    axes.set(xlabel=f"{'physical ' if unit == 'segments' else ''}tokens (beside each point: {unit})", ylabel="seconds")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    FigureCanvasAgg(figure).print_png(path)
