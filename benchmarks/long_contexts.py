"""Making long contexts and evaluating on them: python benchmarks/long_contexts.py [contexts] [documents] [folder]

    build           `palimpsest data build` writes every context
    loop            draws as many of the same paragraphs, joins them, writes JSON lines, and holds one context
    sweep           what `palimpsest eval` does with the file before and while it plays: reads it, checks every problem,
                    then takes each in turn

Each in a process of its own: documents a second of its CPU time (so that what else the machine does counts little),
and its peak resident memory, over a process that has imported the same. The questions are made up, ten paragraphs of
about 550 characters each, as HotpotQA's are.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

PARAGRAPHS = 10
SENTENCE = "In the year {0} the house number {1} of the old town was sold to a merchant from the coast for {2} coins. "


def write_source(path: Path, contexts: int, documents: int) -> None:
    """Enough questions for the contexts, and paragraphs for one of them."""
    rows = []
    for number in range(max(contexts, documents // PARAGRAPHS + 1)):
        paragraphs = [_paragraph(number * PARAGRAPHS + place) for place in range(PARAGRAPHS)]
        facts = [[paragraphs[0][0], 0], [paragraphs[1][0], 1]]
        asked = {"_id": f"q{number}", "question": f"Who bought house {number}?", "answer": "a merchant"}
        rows.append({**asked, "type": "bridge", "level": "hard", "supporting_facts": facts, "context": paragraphs})
    path.write_text(json.dumps(rows))


def _paragraph(number: int) -> tuple[str, list[str]]:
    return f"House {number}", [SENTENCE.format(1000 + number % 900, number, place * number) for place in range(5)]


def build(source: Path, contexts: int, documents: int, out: Path) -> None:
    from palimpsest.app.datasets.dataset_builder import Contexts, build_contexts
    from palimpsest.app.datasets.question_splits import read_splits

    build_contexts([source], Contexts((documents,), splits=read_splits(f"eval={contexts}")), out=out)


def plain_loop(source: Path, contexts: int, documents: int, out: Path) -> None:
    rows = json.loads(source.read_text())
    paragraphs = sorted({f"{title}\n{''.join(lines)}" for row in rows for title, lines in row["context"]})
    draw = random.Random(0)
    with out.open("w") as file:
        for row in rows[:contexts]:
            chosen = draw.sample(paragraphs, documents)
            context = "\n\n".join(f"Document {number}:\n{text}" for number, text in enumerate(chosen, 1))
            file.write(json.dumps({"question": row["question"], "answers": [row["answer"]], "context": context}) + "\n")


def sweep(file: Path) -> None:
    from palimpsest.app.evaluate.evaluation_data import read_problems
    from palimpsest.config.load import parse_config

    config = parse_config(f"data: {{source: {json.dumps(str(file))}}}")
    (problems,) = read_problems(config).values()
    for _ in range(2):  # checked, played
        for problem in problems:
            assert problem.context


def measured(name: str, *words: object) -> tuple[float, float]:
    """(CPU seconds, peak MB) of a step in a process of its own."""
    command = [sys.executable, __file__, "--step", name, *map(str, words)]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    seconds, peak = map(float, said.split()[-2:])
    return seconds, peak


STEPS: dict[str, Callable[[list[str]], None]] = {
    "build": lambda w: build(Path(w[0]), int(w[1]), int(w[2]), Path(w[3]) / "build"),
    "loop": lambda w: plain_loop(Path(w[0]), int(w[1]), int(w[2]), Path(w[3]) / "loop.jsonl"),
    "sweep": lambda w: sweep(Path(w[0])),
}


def step(name: str, words: list[str]) -> None:
    STEPS[name](words)
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def main() -> None:
    if sys.argv[1:2] == ["--step"]:
        step(sys.argv[2], sys.argv[3:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contexts", type=int, nargs="?", default=1000)
    parser.add_argument("documents", type=int, nargs="?", default=6400)
    parser.add_argument("folder", nargs="?", help="with room for twice the text; none: that of temporary files")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        os.environ["TMPDIR"] = folder
        source, few = Path(folder) / "source.json", Path(folder) / "few"
        write_source(source, options.contexts, options.documents)
        few.mkdir()
        print("| | documents a CPU-second | peak, MB | over a single context's, MB |\n|---|---|---|---|")
        for name in ("build", "loop", "sweep"):
            given: tuple[object, ...] = (source, options.contexts, options.documents, folder)
            least: tuple[object, ...] = (source, 1, options.documents, few)
            if name == "sweep":
                file = f"build/eval_{options.documents}.jsonl"
                given, least = (Path(folder) / file,), (few / file,)
            seconds, peak = measured(name, *given)
            alone, small = measured(name, *least)
            rate = (options.contexts - 1) * options.documents / max(seconds - alone, 1e-9)
            print(f"| {name} | {rate:,.0f} | {peak:.0f} | {peak - small:.0f} |", flush=True)


if __name__ == "__main__":
    main()
