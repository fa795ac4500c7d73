"""The HTML file of a report: its template, the viewer's colours, images inside it.

Guaranteed: it loads nothing from anywhere and holds no script (a content security policy forbids it); every value is
escaped.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from palimpsest.view.page_files import page_files

REPORT = "report.html"


def write_page(folder: Path, text: str, figures: Sequence[Mapping[str, Any]]) -> None:
    """Write a report's HTML, and its figures as plots/NAME.png, into `folder`."""
    plots = folder / "plots"
    if figures:
        plots.mkdir(parents=True, exist_ok=True)
    for figure in figures:
        (plots / f"{figure['name']}.png").write_bytes(figure["png"])
    (folder / REPORT).write_text(text, "utf-8", errors="replace")


def embedded(figures: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Figures with their image as base64, as a page shows them."""
    return [{**figure, "base64": base64.b64encode(figure["png"]).decode("ascii")} for figure in figures]


def page(template: str, **values: Any) -> str:
    """The HTML of a template, every value of which is escaped."""
    environment = Environment(
        loader=PackageLoader("palimpsest.report", "."),
        autoescape=select_autoescape(["j2"]),
        undefined=StrictUndefined,
    )
    return environment.get_template(template).render(colours=colours(), **values)


def colours() -> Markup:
    """The viewer's own, light and dark, as variables of CSS."""
    style = page_files()["page.css"].decode("utf-8")
    return Markup(style[style.index(":root {") : style.index("* { box-sizing")])
