"""A comparison as files: two figures, a page that holds everything, JSON."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

from palimpsest import files
from palimpsest.errors import ConfigError
from palimpsest.evaluation.cells import Cell
from palimpsest.evaluation.samples import write_json
from palimpsest.evaluation.summary import Score
from palimpsest.jobs.comparing import Comparison
from palimpsest.report.comparison_figures import FORMATS, Axis, Lines, Measured, accuracy_by_cost, accuracy_by_length
from palimpsest.report.page import embedded, page
from palimpsest.report.visible import visible

SHOWN_FLIPS = 200  # of each side, in the page


def check_plot(path: Path) -> None:
    """Refuse a place that nothing can be drawn to. Raises ConfigError."""
    if path.suffix.removeprefix(".") not in FORMATS:
        raise ConfigError(f"--plot {path}: give a name that ends in .{' or .'.join(FORMATS)}")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"--plot {path}: the folder does not exist; make it first")


def write_plots(comparison: Comparison, path: Path) -> tuple[Path, Path]:
    """Accuracy against length at `path` (.svg or .png), against cost beside it as NAME-cost. Raises ConfigError."""
    check_plot(path)
    form = path.suffix.removeprefix(".")
    lines, axis = _lines(comparison)
    cost = path.with_name(f"{path.stem}-cost{path.suffix}")
    files.write_file(path, accuracy_by_length(lines, axis, form))
    files.write_file(cost, accuracy_by_cost(lines, form))
    return path, cost


def write_folder(comparison: Comparison, out: Path) -> list[Path]:
    """compare.json, compare.html, accuracy.svg and accuracy-cost.svg in `out`, which is made."""
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "compare.json", comparison.to_json())
    files.write_file(out / "compare.html", _page(comparison).encode("utf-8", "replace"))
    return [out / "compare.html", out / "compare.json", *write_plots(comparison, out / "accuracy.svg")]


def _lines(comparison: Comparison) -> tuple[Lines, Axis]:
    tasks = list(dict.fromkeys(comparison.task(cell) for cell in comparison.cells))
    sized = all(cell.size > 0 for cell in comparison.cells)
    places = {cell: float(cell.size if sized else place) for place, cell in enumerate(comparison.cells)}
    names = {place: f"{cell.size:,}" if sized else comparison.label(cell) for cell, place in places.items()}
    axis = Axis("size of the problems (chunks or documents)" if sized else "set", names, sized)
    if _is_one_configuration(comparison):
        return _seed_lines(comparison, places), axis
    lines: dict[str, list[Measured]] = {}
    for cell, sides in comparison.figures.items():
        for name, figures in sides.items():
            label = name if len(tasks) == 1 else f"{name}: {comparison.task(cell)}"
            mean, low, high = _ends(figures.accuracy)
            if mean is not None:
                point = Measured(places[cell], mean, low, high, figures.tokens_per_document)
                lines.setdefault(label, []).append(point)
    return lines, axis


def _is_one_configuration(comparison: Comparison) -> bool:
    """Whether all sides differ by their seed alone: then a line is their mean, its band the lowest to the highest."""
    return {side for band in comparison.bands for side in band.sides} == {side.name for side in comparison.sides} and (
        len({side.but_for_seeds for side in comparison.sides}) == 1
    )


def _seed_lines(comparison: Comparison, places: Mapping[Cell, float]) -> Lines:
    lines: dict[str, list[Measured]] = {}
    for band in comparison.bands:
        tokens = fmean(comparison.figures[band.cell][side].tokens_per_document for side in band.sides)
        point = Measured(places[band.cell], band.mean, band.low, band.high, tokens)
        lines.setdefault(f"{comparison.task(band.cell)}, {len(band.sides)} seeds", []).append(point)
    return lines


def _ends(score: Score) -> tuple[float | None, float, float]:
    return score.mean, score.low or 0.0, 1.0 if score.high is None else score.high


def _page(comparison: Comparison) -> str:
    lines, axis = _lines(comparison)
    figures = [
        {
            "name": "accuracy",
            "png": accuracy_by_length(lines, axis, "png"),
            "caption": "Accuracy by length; bands are 95% intervals, or lowest to highest where sides are seeds.",
            "alt": "accuracy by length",
        },
        {
            "name": "cost",
            "png": accuracy_by_cost(lines, "png"),
            "caption": "Accuracy against tokens processed per problem; a point a length.",
            "alt": "accuracy against cost",
        },
    ]
    columns = [name for name in comparison.table.columns if name]
    return page(
        "compare.html.j2",
        title=f"Comparison of {', '.join(visible(side.name) for side in comparison.sides)}",
        lead="Differences are those to the first, over the problems that both graded.",
        facts=[(visible(side.name), visible(str(side.folder))) for side in comparison.sides],
        columns=columns,
        rows=[[visible(_text(row.get(name))) for name in ("", *columns)] for row in comparison.table],
        notes=[visible(note) for note in comparison.notes],
        figures=embedded(figures),
        flips=_flips(comparison),
        config="\n".join(f"{visible(key)}: {visible(_values(each))}" for key, each in comparison.differs.items()),
    )


def _flips(comparison: Comparison) -> list[Mapping[str, str]]:
    return [
        {
            "side": visible(name),
            "id": visible(f"{comparison.set_label(flip.set)}, {flip.id}"),
            "question": visible(flip.question),
            "gold": visible(", ".join(flip.golds)),
            "first": f"{flip.first_value:g}: {visible(flip.first or '–')}",
            "second": f"{flip.second_value:g}: {visible(flip.second or '–')}",
            "kind": "right" if flip.second_value > flip.first_value else "wrong",
        }
        for name, flips in comparison.flips.items()
        for flip in flips[:SHOWN_FLIPS]
    ]


def _values(values: tuple[object, ...]) -> str:
    return " | ".join(map(str, values))


def _text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if isinstance(value, float) else str(value)
