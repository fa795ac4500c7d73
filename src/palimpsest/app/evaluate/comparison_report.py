"""Comparison reports: files of a comparison, and agents of several models on the same problems.

    OUT/NAME             evaluation of one model, as `palimpsest eval NAME --out OUT/NAME` writes it
    OUT/compare.html     one report of all, as `palimpsest compare` writes it

Each agent has the configuration of its run. An agent takes the override options that its policy has; other overrides
apply to all agents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from palimpsest import files
from palimpsest.app.config_resolution import Model
from palimpsest.app.evaluate.evaluation_plan import EvalPlan, EvalRequest, check_taken, takes
from palimpsest.app.evaluate.run_comparison import Comparison
from palimpsest.config.load import split_overrides
from palimpsest.errors import ConfigError, RunError
from palimpsest.evaluation.sample_log import IDENTITY, Cell, write_json
from palimpsest.report.axis_labels import LengthLabels, Lines, Point
from palimpsest.report.page import embedded, page
from palimpsest.runs.run_folder import CONFIG
from palimpsest.text.answers import unboxed
from palimpsest.text.display_text import visible

SHOWN_FLIPS = 200  # per side, in the page


def check_plot(path: Path) -> None:
    """Raise ConfigError for a plot path without a known format or folder."""
    from palimpsest.report.plots import FORMATS  # matplotlib takes a second to import

    if path.suffix.removeprefix(".") not in FORMATS:
        raise ConfigError(f"--plot {path}: use a name that ends in .{' or .'.join(FORMATS)}")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"--plot {path}: the folder does not exist; create it first")


def write_plots(comparison: Comparison, path: Path) -> tuple[Path, Path]:
    """Plot accuracy by length to `path` (.svg or .png), and by cost to NAME-cost. Raises ConfigError."""
    from palimpsest.report.plots import accuracy_by_cost, accuracy_by_length

    check_plot(path)
    form = path.suffix.removeprefix(".")
    lines, axis = _lines(comparison)
    cost = path.with_name(f"{path.stem}-cost{path.suffix}")
    files.write_file(path, accuracy_by_length(lines, axis, form))
    files.write_file(cost, accuracy_by_cost(lines, form))
    return path, cost


def write_folder(comparison: Comparison, out: Path) -> list[Path]:
    """Write compare.json, compare.html, accuracy.svg and accuracy-cost.svg into `out`, created if needed."""
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "compare.json", comparison.to_json())
    files.write_file(out / "compare.html", _page(comparison).encode("utf-8", "replace"))
    return [out / "compare.html", out / "compare.json", *write_plots(comparison, out / "accuracy.svg")]


def _lines(comparison: Comparison) -> tuple[Lines, LengthLabels]:
    tasks = list(dict.fromkeys(comparison.task(cell) for cell in comparison.cells))
    sized = all(cell.size for cell in comparison.cells)
    places = {cell: float(cell.size if sized and cell.size else index) for index, cell in enumerate(comparison.cells)}
    names = {position: f"{cell.size:,}" if sized else comparison.label(cell) for cell, position in places.items()}
    axis = LengthLabels("size of the problems (chunks or documents)" if sized else "set", names, sized)
    if _is_one_configuration(comparison):
        return _seed_lines(comparison, places), axis
    lines: dict[str, list[Point]] = {}
    for cell, sides in comparison.figures.items():
        for name, figures in sides.items():
            label = name if len(tasks) == 1 else f"{name}: {comparison.task(cell)}"
            if (mean := figures.accuracy.mean) is not None:
                point = Point(places[cell], mean, *figures.accuracy.ends, figures.tokens_per_document)
                lines.setdefault(label, []).append(point)
    return lines, axis


def _is_one_configuration(comparison: Comparison) -> bool:
    """True if the sides differ only by seed: then a line is their mean, its band the lowest to the highest."""
    return {side for band in comparison.bands for side in band.sides} == {side.name for side in comparison.sides} and (
        len({side.but_for_seeds for side in comparison.sides}) == 1
    )


def _seed_lines(comparison: Comparison, places: Mapping[Cell, float]) -> Lines:
    lines: dict[str, list[Point]] = {}
    for band in comparison.bands:
        tokens = fmean(comparison.figures[band.cell][side].tokens_per_document for side in band.sides)
        point = Point(places[band.cell], band.mean, band.low, band.high, tokens)
        lines.setdefault(f"{comparison.task(band.cell)}, {len(band.sides)} seeds", []).append(point)
    return lines


def _page(comparison: Comparison) -> str:
    from palimpsest.report.plots import accuracy_by_cost, accuracy_by_length

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
            "caption": "Accuracy against tokens processed per problem; one point per length.",
            "alt": "accuracy against cost",
        },
    ]
    columns = [name for name in comparison.table.columns if name]
    rows = [[visible(_text(row.get(name))) for name in ("", *columns)] for row in comparison.table]
    return page(
        "compare.html.j2",
        title=f"Comparison of {', '.join(visible(side.name) for side in comparison.sides)}",
        lead="Differences are to the first side, over problems that both graded.",
        facts=[(visible(side.name), visible(str(side.folder))) for side in comparison.sides],
        sections=[{"title": "Figures", "table": {"columns": ["", *columns], "rows": rows}}],
        notes=[visible(note) for note in comparison.notes],
        figures=embedded(figures),
        flips=_flips(comparison),
        config="\n".join(
            visible(f"{key}: {' | '.join(map(str, values))}") for key, values in comparison.differs.items()
        ),
    )


def _flips(comparison: Comparison) -> list[Mapping[str, str]]:
    return [
        {
            "side": visible(name),
            "id": visible(f"{comparison.label(flip.cell)}, {flip.id}"),
            "question": visible(flip.question),
            "gold": visible(", ".join(flip.golds)),
            "first": f"{flip.first_value:g}: {visible(unboxed(flip.first))}",
            "second": f"{flip.second_value:g}: {visible(unboxed(flip.second))}",
            "kind": "right" if flip.second_value > flip.first_value else "wrong",
        }
        for name, flips in comparison.flips.items()
        for flip in flips[:SHOWN_FLIPS]
    ]


def _text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if isinstance(value, float) else str(value)


# ---- Agents of several models on the same problems -----------------------------------------------------------


def requests_of(models: Sequence[Model], like: EvalRequest, out: Path | None) -> dict[Path, EvalRequest]:
    """A request per model, by the folder of its evaluation; otherwise equal to `like`. Raises ConfigError."""
    if out is None:
        raise ConfigError("several models need --out DIR for their evaluations and the report")
    for name in (IDENTITY, CONFIG):
        if (out / name).exists():
            raise RunError(f"{out} contains {name}, so it is one evaluation or a run: use another --out for several")
    requests = [replace(like, model=model) for model in models]
    check_taken(like.overrides, [policy for request in requests for policy in request.names])
    return {out / name: _with_overrides(request) for name, request in zip(names_of(models), requests, strict=True)}


def names_of(models: Sequence[Model]) -> list[str]:
    """Shortest distinct path endings of the models: a further model renames no other folder. Raises ConfigError.

    >>> names_of(["runs/a", "runs/b", "embedded"]), names_of(["runs/a/checkpoints/step-1", "b/checkpoints/step-1"])
    (['a', 'b', 'embedded'], ['a-checkpoints-step-1', 'b-checkpoints-step-1'])
    """
    resolved = [Path(model) if Path(model).name.strip(".") else Path(model).resolve() for model in models]
    paths = [[part for part in path.parts if part not in ("/", "..")] for path in resolved]
    for count in range(1, max(map(len, paths)) + 1):
        names = ["-".join(path[-count:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    twice = next(model for model, path in zip(models, paths, strict=True) if paths.count(path) > 1)
    raise ConfigError(f"model {twice} appears twice; name each model once")


def _with_overrides(request: EvalRequest) -> EvalRequest:
    overrides = list(split_overrides(request.overrides))
    taken = {key: value for key, value, _ in overrides if any(takes(policy, key) for policy in request.names)}
    return replace(request, overrides=taken)


def check_alike(plans: Sequence[EvalPlan]) -> None:
    """Raise ConfigError for agents with different rewards."""
    rewards = dict.fromkeys(plan.config.reward.name for plan in plans)
    if len(rewards) > 1:
        raise ConfigError(
            f"several models: their runs use different rewards ({', '.join(rewards)}), which no report can compare; "
            "set one for all, e.g. reward.name=fraction"
        )


def report(folders: Sequence[Path], out: Path) -> list[Path]:
    """Write one report of the evaluations in `folders`; returns its files, the page first."""
    from palimpsest.app.evaluate.run_comparison import compare

    return write_folder(compare(*folders), out)
