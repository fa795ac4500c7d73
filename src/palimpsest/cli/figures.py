"""How the figures of a benchmark are printed."""

from __future__ import annotations

import json as json_module
from typing import Any

from palimpsest.cli.show import stdout, table
from palimpsest.jobs.measuring import Measured


def show_figures(name: str, figures: dict[str, Any], json: bool) -> None:
    """One JSON object, or a table of the same figures."""
    if json:
        print(json_module.dumps(figures))
        return
    rows = [[key, _shown(value)] for key, value in figures.items()]
    stdout().print(table(f"bench {name}", ["", "value"], rows))


def show_measured(name: str, measured: Measured) -> None:
    """A benchmark of several: its table, or why it has none, and which peers were missing."""
    if measured.figures is None:
        stdout().print(f"bench {name}: {measured.status}: {measured.notes[0]}\n", markup=False, soft_wrap=True)
        return
    show_figures(name, measured.figures, json=False)
    for line in measured.notes:
        stdout().print(line, markup=False, soft_wrap=True)
    print()


def _shown(value: Any) -> str:
    if value is None:
        return "not installed"
    if isinstance(value, list):
        return "\n".join(_row(row) for row in value)
    if isinstance(value, float):
        return f"{value:,.2f}" if abs(value) >= 0.01 or value == 0 else f"{value:.1e}"
    return str(value)


def _row(row: Any) -> str:
    """A row of numbers, or of named ones."""
    if isinstance(row, dict):
        return ", ".join(f"{name} {_shown(value)}" for name, value in row.items())
    return " ".join(f"{number:,.4g}" for number in row)
