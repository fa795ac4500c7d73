"""Rounds of training, evaluation and a server, and whether anything grows; `benchmarks/soak.py` runs them."""

from __future__ import annotations

import argparse
import gc
import json
import random
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import psutil
from tokenizers import Tokenizer

import palimpsest
from palimpsest.text.codec import Codec
from support.models import build_llama, build_tokenizer
from support.retrieval import process as serving
from support.small_run import small_run

MEASURES = ("resident_mb", "descriptors", "threads", "codecs", "tokenizers")
PASSAGES, QUERIES = 2000, 64
"""Of the corpus; of a round."""
DIFFERENT = 16
"""Rounds after which the queries repeat, so that the server's cache of answers stops growing."""
REQUESTS_A_CONNECTION = 16


@dataclass(frozen=True, slots=True)
class Sample:
    """What a process held after a round."""

    process: str
    """`client`, which trains and evaluates, or `server`."""
    minutes: float
    """Since the start."""
    resident_mb: float
    descriptors: int
    threads: int
    codecs: int
    tokenizers: int
    """Live objects, in this process only."""


@dataclass(frozen=True, slots=True)
class Trend:
    """A measure over the samples that count."""

    first: float
    last: float
    greatest: float
    slope: float
    """An hour."""
    error: float
    """Standard error of the slope."""

    @property
    def grows(self) -> bool:
        """True if the 95% interval of the slope is above 0."""
        return self.slope > 1.96 * self.error


def trend(minutes: Sequence[float], values: Sequence[float]) -> Trend:
    """A straight line through values over time.

    >>> line = trend([0, 30, 60, 90], [5.0, 6.0, 7.0, 8.0])
    >>> round(line.slope, 6), round(line.error, 6)
    (2.0, 0.0)
    """
    hours, found = np.asarray(minutes) / 60, np.asarray(values, float)
    centred = hours - hours.mean()
    spread = float(centred @ centred)
    slope = float(centred @ found) / spread
    rest = found - found.mean() - slope * centred
    power = float(rest @ rest)
    together = min(max(float(rest[1:] @ rest[:-1]) / power, 0.0), 0.99) if power > 0 else 0.0
    error = (power / max(len(rest) - 2, 1) / spread) ** 0.5 * ((1 + together) / (1 - together)) ** 0.5
    return Trend(float(found[0]), float(found[-1]), float(found.max()), slope, error)


def words(seed: str, count: int) -> str:
    return " ".join(random.Random(seed).choices([f"w{place}" for place in range(1000)], k=count))


def work(model: Path, folder: Path, url: str, number: int) -> None:
    """A round: train, evaluate, search."""
    out = folder / f"run-{number}"
    run = palimpsest.train("memagent-quickstart", small_run(model), out=out, seed=number, quiet=True)
    run.evaluate(chunks=2, limit=4, out=out.with_name(f"{out.name}-eval"), quiet=True)
    queries = [words(f"query {number % DIFFERENT} {at}", 6) for at in range(QUERIES)]
    for at in range(0, len(queries), REQUESTS_A_CONNECTION):
        with httpx2.Client(base_url=url, timeout=60) as client:
            for query in queries[at : at + REQUESTS_A_CONNECTION]:
                client.post("/retrieve", json={"queries": [query], "topk": 3}).raise_for_status()
            client.post("/retrieve", content=b"{")


def soak(folder: Path, minutes: float) -> Iterator[Sample]:
    """Rounds until the time is over, with what both processes hold after each."""
    model = folder / "model"
    tokenizer = build_tokenizer()
    build_llama(len(tokenizer)).save_pretrained(model)
    tokenizer.save_pretrained(model)
    corpus = folder / "passages.jsonl"
    passages = ({"id": str(i), "title": f"passage {i}", "text": words(f"passage {i}", 40)} for i in range(PASSAGES))
    corpus.write_text("".join(json.dumps(passage) + "\n" for passage in passages))
    started, number = time.monotonic(), 0
    with serving(corpus, "--index", str(folder / "index")) as (url, child):
        server = psutil.Process(child.pid)
        while (passed := (time.monotonic() - started) / 60) < minutes:
            with tempfile.TemporaryDirectory(dir=folder) as rounds:
                work(model, Path(rounds), url, number)
            yield held("client", psutil.Process(), passed)
            yield held("server", server, passed)
            number += 1


def held(name: str, process: psutil.Process, minutes: float) -> Sample:
    """What a process holds now."""
    resident = process.memory_info().rss / 2**20
    live = [live_objects(kind) if name == "client" else 0 for kind in (Codec, Tokenizer)]
    return Sample(name, minutes, resident, process.num_fds(), process.num_threads(), *live)


def live_objects(kind: type) -> int:
    """Python objects of a class; a Rust tokenizer counts with the objects that refer to it."""
    gc.collect()
    with warnings.catch_warnings(action="ignore"):
        found = gc.get_objects()
        held = {id(each) for owner in found for each in gc.get_referents(owner) if type(each) is kind}
    return len(held)


def trends(samples: Sequence[Sample], skip: float) -> dict[str, dict[str, Trend]]:
    """Of each process and measure, over the samples after the first share of `skip`."""
    found: dict[str, dict[str, Trend]] = {}
    for name in ("client", "server"):
        own = [sample for sample in samples if sample.process == name]
        own = own[int(skip * len(own)) :]
        minutes = [sample.minutes for sample in own]
        found[name] = {key: trend(minutes, [float(getattr(sample, key)) for sample in own]) for key in MEASURES}
    return found


def draw(samples: Sequence[Sample], path: Path) -> None:
    """A panel a measure, a line a process."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from palimpsest.report.plots import STYLES

    figure = Figure(figsize=(9.6, 2.4), dpi=100, layout="constrained")
    for axes, key in zip(figure.subplots(1, len(MEASURES)), MEASURES, strict=True):
        for (color, _), name in zip(STYLES, ("client", "server"), strict=False):
            own = [sample for sample in samples if sample.process == name]
            label = "trains, evaluates" if name == "client" else "serves"
            axes.plot([s.minutes for s in own], [getattr(s, key) for s in own], color=color, linewidth=1, label=label)
        axes.set(xlabel="minutes", title=key.replace("_mb", " memory, MB"))
        axes.set_ylim(bottom=0)
    axes.legend(fontsize="small")
    FigureCanvasAgg(figure).print_png(str(path))


def table(found: dict[str, dict[str, Trend]]) -> list[str]:
    """Lines of Markdown."""
    lines = ["| | first | last | greatest | slope an hour, 95% |", "|---|---|---|---|---|"]
    for name, measures in found.items():
        for key, line in measures.items():
            interval = f"{line.slope:+.2f} ± {1.96 * line.error:.2f}"
            slope = interval if line.grows else f"{interval}, includes 0"
            lines.append(f"| {name}, {key} | {line.first:,.0f} | {line.last:,.0f} | {line.greatest:,.0f} | {slope} |")
    return lines


def run(options: argparse.Namespace) -> None:
    """What the script does with its options."""
    options.out.mkdir(parents=True, exist_ok=True)
    samples = []
    with tempfile.TemporaryDirectory() as folder, (options.out / "samples.jsonl").open("w") as log:
        for sample in soak(Path(folder), options.minutes):
            samples.append(sample)
            print(json.dumps(asdict(sample)), file=log, flush=True)
    found = trends(samples, options.skip)
    rounds = sum(sample.process == "client" for sample in samples)
    figures: dict[str, Any] = {name: {key: asdict(line) for key, line in own.items()} for name, own in found.items()}
    (options.out / "soak.json").write_text(json.dumps({"rounds": rounds, **figures}, indent=2) + "\n")
    draw(samples, options.out / "soak.png")
    print(f"{rounds} rounds in {samples[-1].minutes:.0f} minutes\n")
    print("\n".join(table(found)))
    growing = [key for key in ("codecs", "tokenizers") if found["client"][key].grows]
    if growing:
        raise SystemExit(f"{' and '.join(growing)}: their number grows")
