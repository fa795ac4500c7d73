"""Presets of evaluations as text."""

from __future__ import annotations

import typer

from palimpsest.config.preset import load_preset, preset_names, preset_text


def show_presets(name: str | None) -> None:
    """Print a preset whole, or a line on each."""
    if name is None:
        width = max(map(len, preset_names()))
        for each in preset_names():
            typer.echo(f"{each.ljust(width)}  {load_preset(each).about}")
        return
    preset = load_preset(name)  # refuses one that isn't right before it is shown
    typer.echo(preset_text(name).rstrip())
    typer.echo(f"\n{name} differs from the published protocol:")
    for difference in preset.differences:
        typer.echo(f"- {difference}")
