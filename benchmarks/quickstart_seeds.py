"""The README's table: several quickstart runs of different seeds as one Markdown table.

    for s in 0 1 2; do palimpsest quickstart --seed $s --out runs/seed-$s; done
    python benchmarks/quickstart_seeds.py runs/seed-0 runs/seed-1 runs/seed-2

The interval is Student's t over seeds (95 %), cut to [0, 1]: it covers training and test documents alike, since
both are drawn anew from each seed.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""Two-sided 95 % quantile of Student's t by the number of seeds."""
NAMES = {
    "agent": "memory agent, trained",
    "agent_before": "memory agent, before RL",
    "full_window": "whole document in the window",
    "last_window": "last window only",
}


def cell(values: Sequence[float]) -> str:
    """Mean, with the interval over seeds.

    >>> cell([0.9, 1.0, 0.95])
    '0.950 [0.826, 1.000]'
    """
    mean = statistics.fmean(values)
    if len(values) < 2:
        return f"{mean:.3f}"
    half = T_95[len(values)] * statistics.stdev(values) / len(values) ** 0.5
    return f"{mean:.3f} [{max(0.0, mean - half):.3f}, {min(1.0, mean + half):.3f}]"


def table(summaries: Sequence[dict]) -> list[str]:
    """Lines of Markdown."""
    first = summaries[0]
    multiples = list(first["accuracy"]["agent"])
    chunks = first["training_chunks"]
    head = [f"{int(m) * chunks:,} chunks ({m}x)" for m in multiples]
    lines = ["| accuracy | " + " | ".join(head) + " |", "|---" * (len(head) + 1) + "|"]
    for name in first["accuracy"]:
        cells = [cell([s["accuracy"][name][m] for s in summaries]) for m in multiples]
        lines.append(f"| {NAMES.get(name, name)} | " + " | ".join(cells) + " |")
    tokens = [f"{statistics.fmean(s['tokens_per_document'][m] for s in summaries):,.0f}" for m in multiples]
    lines.append("| tokens per document, agent | " + " | ".join(tokens) + " |")
    fidelity = {when: cell([s["copy_fidelity"][when] for s in summaries]) for when in ("before", "after")}
    minutes = ", ".join(f"{s['wall_s'] / 60:.1f}" for s in summaries)
    seeds = ", ".join(str(s["seed"]) for s in summaries)
    lines += [
        "",
        f"Seeds {seeds}. Copy fidelity {fidelity['before']} before RL, {fidelity['after']} after. Minutes: {minutes}.",
    ]
    return lines


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    print("\n".join(table([json.loads((Path(folder) / "summary.json").read_text()) for folder in sys.argv[1:]])))
