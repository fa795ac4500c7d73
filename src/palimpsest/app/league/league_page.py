"""league.json and league.html: the table of a league, a figure per family, links to the evaluations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from palimpsest import files
from palimpsest.app.league.league_files import SetSize
from palimpsest.app.league.league_table import LeagueTable, MethodRow
from palimpsest.config.load import dump_config
from palimpsest.evaluation.sample_log import write_json
from palimpsest.evaluation.summary import Score
from palimpsest.provenance import MADE_WITH, facts, provenance
from palimpsest.report.axis_labels import LengthLabels, Point
from palimpsest.report.page import REPORT, embedded, page
from palimpsest.runs.resume_rules import COMPUTED
from palimpsest.text.display_text import Table, cost_text, p_text, visible

RESULTS, PAGE = "league.json", "league.html"


def write_league(table: LeagueTable, out: Path) -> None:
    """Write league.json and league.html into `out`."""
    write_json(out / RESULTS, table.to_json() | {MADE_WITH: provenance()})
    files.write_file(out / PAGE, _page(table).encode("utf-8", "replace"))


def mean_table(table: LeagueTable) -> Table:
    """Means over families by length, costs and differences as text, one row per method."""
    return Table.of([dict(_means(table, row)) for row in table.rows])


def family_table(table: LeagueTable) -> Table:
    """Accuracy by family and length as text, one row per method; blank cells are dashes."""
    return Table.of(
        [{"": row.name} | {_heading(table, *cell): _cell(row, cell) for cell in table.cells} for row in table.rows]
    )


def shown(found: Score) -> str:
    """A mean and its interval in percent.

    >>> shown(Score(0.5, 0.25, 0.75)), shown(Score(None, None, None))
    ('50.0 [25, 75]', '–')
    """
    if found.mean is None:
        return "–"
    ends = "" if found.low is None else f" [{', '.join(f'{100 * end:.0f}' for end in found.ends)}]"
    return f"{100 * found.mean:.1f}{ends}"


def _cell(row: MethodRow, cell: SetSize) -> str:
    """Accuracy of a cell, with its number of episodes if others have no grade."""
    found, graded = shown(row.accuracy([cell])), row.graded(cell)
    return f"{found}, n={graded}" if graded and row.ungraded([cell]) else found


def _means(table: LeagueTable, row: MethodRow) -> Iterator[tuple[str, str]]:
    yield "", row.name
    for size in table.sizes:
        yield f"mean, {'all' if size is None else format(size, ',')}", shown(table.mean(row, size))
    fall = table.fall(row)
    yield "fall", "–" if fall is None else f"{100 * fall:+.1f}"
    if (changed := table.differences.get(row.name)) is not None:
        ends = f"[{100 * changed[0].low:+.0f}, {100 * changed[0].high:+.0f}]"
        yield f"difference to {table.league.against}", f"{100 * changed[0].mean:+.1f} {ends}"
        yield "p, Holm", p_text(changed[1])
    yield "memory", "–" if row.memory_tokens is None else f"{row.memory_tokens:,}"
    yield "computed tokens", cost_text(row.mean_measure("computed_tokens", table.longest))
    yield "training tokens", cost_text(row.mean_training(COMPUTED))
    if table.league.synthetic:
        yield "trained on, chunks", "–".join(map(str, row.trained_on)) or "–"
    for name, share in (
        ("hallucinated", table.hallucinated(row)),
        ("dropped", row.mean_measure("dropped_share", table.longest)),
    ):
        yield name, "–" if share is None else f"{100 * share:.1f}"


def _heading(table: LeagueTable, family: str, size: int | None) -> str:
    held_out = ", held out" if family not in table.families else ""
    return f"{family}{held_out}" + ("" if size is None else f", {size:,}")


def _page(table: LeagueTable) -> str:
    sections = [
        {"title": "Means over families", "table": _cells(mean_table(table))},
        {"title": "Accuracy by family and length", "table": _cells(family_table(table))},
    ]
    agreement = table.agreement
    agreed = [] if agreement is None else [f"Kendall's tau of the methods' order between seeds: {agreement:.2f}."]
    seeds = len(table.league.seeds)
    return page(
        "league.html.j2",
        title=visible(table.league.league),
        lead=f"Accuracy in percent ({table.league.metric}), {seeds} seed{'' if seeds == 1 else 's'}, "
        f"{table.league.problems} problems per family, length and seed. "
        + ("Intervals cover seeds and problems." if seeds > 1 else "Intervals cover problems, not seeds."),
        sections=sections,
        notes=[visible(line) for line in (*agreed, *table.notes())],
        figures=embedded(list(_figures(table))),
        links=[
            {"name": visible(f"{row.name}, {folder.name}"), "to": f"{folder.as_posix()}/{REPORT}"}
            for row in table.rows
            for folder in row.folders
        ],
        facts=facts(provenance()),
        config=visible(dump_config(table.league)),
    )


def _cells(made: Table) -> dict[str, Any]:
    columns = [visible(name) for name in made.columns]
    return {"columns": columns, "rows": [[visible(str(row.get(name, "–"))) for name in made.columns] for row in made]}


def _figures(table: LeagueTable) -> Iterator[dict[str, Any]]:
    """A panel per family, and one of the mean."""
    from palimpsest.report.plots import accuracy_by_length  # matplotlib takes a second to import

    sizes = [size for size in table.sizes if size is not None]
    if len(sizes) < 2:
        return
    axis = LengthLabels("document length", {float(size): f"{size:,}" for size in sizes}, multiplies=True)
    panels = {"mean": [table.of_mean(size) for size in sizes]}
    panels |= {name: [[(name, size)] for size in sizes] for name in dict.fromkeys(name for name, _ in table.cells)}
    for name, cells in panels.items():
        lines = {}
        for row in table.rows:
            found = [(size, row.accuracy(each)) for size, each in zip(sizes, cells, strict=True)]
            points = [Point(size, s.mean, *s.ends) for size, s in found if s.mean is not None]
            if points and (row.trained or not row.method.train):
                lines[row.name] = points
        if lines:
            image = accuracy_by_length(lines, axis, "png")
            yield {"name": name, "png": image, "caption": visible(name), "alt": f"accuracy by length, {visible(name)}"}
