"""The tables of README and docs: several quickstart runs of different seeds as one Markdown table.

    for s in 0 1 2; do palimpsest quickstart memagent --seed $s --out runs/seed-$s; done
    python benchmarks/quickstart_seeds.py runs/seed-0 runs/seed-1 runs/seed-2

Any method's runs, one method at a time. The interval is Student's t over seeds (95%), cut to [0, 100]: it covers
training and test problems, because each seed draws both.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from palimpsest.evaluation.statistics import student_interval

MOST_SEEDS = 10


def cell(values: Sequence[float]) -> str:
    """Mean in percent, with the interval over seeds.

    >>> cell([0.9, 1.0, 0.95])
    '95.0 [83, 100]'
    >>> cell([0.0, 0.0])
    '0.0'
    """
    mean = statistics.fmean(values)
    if len(set(values)) < 2:
        return f"{100 * mean:.1f}"
    low, high = student_interval(values)
    return f"{100 * mean:.1f} [{100 * max(0.0, low):.0f}, {100 * min(1.0, high):.0f}]"


def table(summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lines of Markdown. Raises SystemExit for runs that aren't seeds of one experiment."""
    _refuse_others(summaries)
    first = summaries[0]
    points = list(first["accuracy"][next(iter(first["accuracy"]))])
    chunks = first.get("planned_chunks")  # of which points are multiples
    head = [f"{int(p) * chunks:,} chunks ({p}x)" if chunks else f"{p} questions" for p in points]
    lines = ["| accuracy in % | " + " | ".join(head) + " |", "|---" * (len(head) + 1) + "|"]
    for name in first["accuracy"]:
        values = [cell([s["accuracy"][name][p] for s in summaries]) for p in points]
        lines.append(f"| {name} | " + " | ".join(values) + " |")
    if "all_right" in first:
        lines += _rows("every answer right", [s["all_right"] for s in summaries], cell)
    for key in ("tokens_per_document", "input_tokens_per_episode"):
        if key in first:
            lines += _rows(key.replace("_", " "), [s[key] for s in summaries], lambda v: f"{statistics.fmean(v):,.0f}")
    minutes = ", ".join(f"{s['wall_s'] / 60:.1f}" for s in summaries)
    seeds = ", ".join(str(s["seed"]) for s in summaries)
    return [*lines, "", f"Seeds {seeds}. Minutes: {minutes}. {_notes(summaries)}".rstrip()]


def _refuse_others(summaries: Sequence[Mapping[str, Any]]) -> None:
    if len({summary["method"] for summary in summaries}) > 1:
        sys.exit("the runs have several methods: pass those of one method")
    planned = ("planned_chunks", "planned_objectives")
    if (
        len({str([s.get(key) for key in planned] + [[n, *row] for n, row in s["accuracy"].items()]) for s in summaries})
        > 1
    ):
        sys.exit("the runs differ in sizes or policies: pass those of one recipe")
    seeds = [summary["seed"] for summary in summaries]
    if len(set(seeds)) < len(seeds) or len(seeds) > MOST_SEEDS:
        sys.exit(f"seeds {', '.join(map(str, seeds))}: pass each once, at most {MOST_SEEDS}")


def _rows(what: str, figures: Sequence[Mapping[str, Any]], shown: Any) -> list[str]:
    """One line, or one per policy if the figure has several."""
    nested = isinstance(next(iter(figures[0].values())), Mapping)
    rows = {f"{what}, {name}": [run[name] for run in figures] for name in figures[0]} if nested else {what: figures}
    return [
        f"| {name} | " + " | ".join(shown([run[p] for run in values]) for p in values[0]) + " |"
        for name, values in rows.items()
    ]


def _notes(summaries: Sequence[Mapping[str, Any]]) -> str:
    notes = []
    if "copy_fidelity" in summaries[0]:
        told = {when: cell([s["copy_fidelity"][when] for s in summaries]) for when in ("before", "after")}
        notes.append(f"Copy fidelity {told['before']}% before RL, {told['after']}% after.")
    if "recall_hit_rate" in summaries[0]:
        notes.append(f"Recall hits {cell([s['recall_hit_rate'] for s in summaries])}%.")
    return " ".join(notes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="folders that `palimpsest quickstart` wrote")
    folders: list[Path] = parser.parse_args().runs
    try:
        summaries = [json.loads((folder / "summary.json").read_text()) for folder in folders]
    except OSError as error:
        parser.error(f"{error.filename} unreadable ({error.strerror}): pass folders of finished quickstarts")
    print("\n".join(table(summaries)))


if __name__ == "__main__":
    main()
