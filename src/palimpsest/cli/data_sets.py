"""Commands of `palimpsest data` that make data sets or files of them."""

from __future__ import annotations

import typer

from palimpsest.cli import data_convert, data_download, data_filter, data_objectives, data_ruler, data_stories


def add_commands(app: typer.Typer) -> None:
    """Add them to the group."""
    app.command("objectives")(data_objectives.objectives)
    app.command("convert")(data_convert.convert)
    app.command("download")(data_download.download)
    app.command("filter")(data_filter.filter)
    app.command("ruler")(data_ruler.ruler)
    app.command("babilong")(data_stories.babilong)
    app.command("updates")(data_stories.updates)
