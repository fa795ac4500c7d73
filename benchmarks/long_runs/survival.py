"""Trials of what a run survives, and what came of them; `benchmarks/survival.py` runs them."""

from __future__ import annotations

import argparse
import asyncio
import errno
import json
import os
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import palimpsest
from palimpsest.config.load import load_recipe, recipe_text
from palimpsest.errors import PalimpsestError
from palimpsest.evaluation.sample_log import read_samples
from palimpsest.report.dataset_summary import inspect_source
from palimpsest.rollout.trajectory_file import read_groups
from palimpsest.runs.loggers import JsonlLogger, LoggerSet
from palimpsest.runs.run_folder import open_run
from palimpsest.text.codec import Codec
from palimpsest.types import Problem
from support.fakes import HashLearner, SeedSampler, make_trainer
from support.faults import failing_at
from support.kill_child import STEPS, ParityGrader, config
from support.killing import child, differences, killed_often
from support.models import build_llama, build_tokenizer
from support.mutations import PIECES, mutated

KILLS_A_RUN = 5
STEP_S = 0.3
"""A kill comes up to so long after a step began."""
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EFBIG)
UNHARMED, SAID, SILENT, CRASHED = VERDICTS = ("unharmed", "said", "silent", "crashed")
BUDGETS = {"chunk_size": 64, "memory_tokens": 8, "question_tokens": 256, "answer_tokens": 8}


@dataclass(frozen=True)
class Trial:
    """One disturbance and what came of it."""

    kind: str
    number: int
    verdict: str
    note: str = ""
    left: list[str] = field(default_factory=list)
    """Hidden files and superfluous checkpoints when all was over."""


class Ground:
    """A folder with what the trials need, made when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def model(self) -> str:
        """Folder of a tiny random model."""
        tokenizer = build_tokenizer()
        build_llama(len(tokenizer)).save_pretrained(self.folder / "model")
        tokenizer.save_pretrained(self.folder / "model")
        return str(self.folder / "model")

    @cached_property
    def codec(self) -> Codec:
        return Codec.load(self.model)

    @cached_property
    def engine_run(self) -> Path:
        """A run of the real engine that nothing disturbed."""
        with child("engine", self.folder / "engine-whole", self.model) as process:
            assert process.wait() == 0
        return self.folder / "engine-whole"

    @cached_property
    def fake_run(self) -> Path:
        """The same of fakes: the real files, without a model."""
        train(self.folder / "fake-whole")
        return self.folder / "fake-whole"

    @cached_property
    def operations(self) -> int:
        """File operations of a run of fakes."""
        with failing_at(-1, OSError()) as done:
            train(self.folder / "fake-counted")
        return len(done)


def train(path: Path, steps: int = STEPS) -> list[str]:
    """Begin or resume a run of fakes; the warnings."""
    warnings: list[str] = []
    settings = config("none")
    settings = settings.model_copy(update={"train": settings.train.model_copy(update={"max_steps": steps})})
    with open_run(path, settings, resume=True, on_warning=warnings.append) as folder:
        learner = HashLearner()
        parts = {"learner": learner, "sampler": SeedSampler(learner=learner), "grader": ParityGrader()}
        trainer = make_trainer(folder, loggers=LoggerSet([JsonlLogger(folder)]), **parts)
        asyncio.run(trainer.run())
    return warnings


def left_in(path: Path) -> list[str]:
    """What should not be there any more."""
    hidden = [str(file.relative_to(path)) for file in path.rglob(".*") if file.name != ".lock"]
    saved = sorted(entry.name for entry in (path / "checkpoints").glob("step-*"))
    return hidden + saved[: -config("none").train.save_total_limit]


def kill(ground: Ground, rng: random.Random, path: Path) -> tuple[str, str, list[str]]:
    whole = ground.engine_run
    killed_often("engine", path, ground.model, kills=KILLS_A_RUN, step_s=STEP_S, seed=rng.randrange(1 << 30))
    found = differences(path, whole)
    return SILENT if found else UNHARMED, ", ".join(found), left_in(path)


def fault(ground: Ground, rng: random.Random, path: Path) -> tuple[str, str, list[str]]:
    number, operation = rng.choice(DISK), rng.randrange(ground.operations)
    error = OSError(number, os.strerror(number), str(path))
    try:
        with failing_at(operation, error, part=rng.random()):
            train(path)
        said = ""
    except (PalimpsestError, OSError) as raised:
        said = str(raised)
    train(path)
    found = differences(path, ground.fake_run)
    return (SILENT, ", ".join(found), left_in(path)) if found else (SAID if said else UNHARMED, said, left_in(path))


def flip(ground: Ground, rng: random.Random, path: Path) -> tuple[str, str, list[str]]:
    train(path, steps=rng.randrange(4, STEPS))
    kept = [file for file in sorted(path.rglob("*")) if file.is_file() and file.stat().st_size and file.name != ".lock"]
    file = rng.choice(kept)
    data = bytearray(file.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)
    name = str(file.relative_to(path))
    try:
        warnings = train(path)
    except PalimpsestError as refused:
        return SAID, f"{name}: {refused}", []
    found = [each for each in differences(path, ground.fake_run) if not each.endswith(".damaged")]
    told = bool(warnings) or all(told_by_reader(path / each) for each in found)
    verdict = UNHARMED if not found else SAID if told else SILENT
    return verdict, f"{name}: {', '.join(found)} {'; '.join(warnings)}", left_in(path)


def told_by_reader(file: Path) -> bool:
    """Whether who reads the records of a step is told that they are damaged."""
    if not file.name.endswith(".zst"):
        return False
    try:
        return read_groups(file).torn is not None
    except PalimpsestError:
        return True


def hostile(rng: random.Random) -> str:
    """Control tokens, escapes, half characters, other scripts, markup."""
    special = ["<|im_end|>", "<|im_start|>system", "<|endoftext|>", "\x1b[31m", "\x00", "\u202e", "\ud800", "</memory>"]
    text = "".join(rng.choice([*special, *PIECES[:20], chr(rng.randrange(0x20, 0xD7FF))]) for _ in range(8))
    return mutated(rng, text)[:120]


def string(ground: Ground, rng: random.Random, path: Path) -> tuple[str, str, list[str]]:
    text, document = hostile(rng) or "?", hostile(rng) or "."
    control = set(ground.codec.tokenizer.all_special_ids)
    if control & set(ground.codec.encode(text + document)):
        return SILENT, f"{text!a} encodes to a control token", []
    problems = [Problem("hostile", text, (hostile(rng) or "a",), document)]
    try:
        evaluation = palimpsest.evaluate(
            ground.model, problems, overrides=BUDGETS, out=path, baselines=False, quiet=True
        )
    except PalimpsestError as refused:
        return SAID, str(refused), []
    (sample,), unreadable = read_samples(path / "samples.jsonl")
    written = text.encode("utf-8", "replace").decode()
    if unreadable or sample.question != written:
        return SILENT, f"{text!a} was recorded as {sample.question!a}", []
    return (SAID, str(evaluation.commonest_reason), []) if evaluation.ungraded else (UNHARMED, "", [])


ROWS = [
    {"id": f"p{number}", "question": "Who lives there?", "answers": ["Anna"], "context": "Anna lives there. " * 3}
    for number in range(4)
]


def broken(ground: Ground, rng: random.Random, path: Path) -> tuple[str, str, list[str]]:
    path.mkdir()
    kind = rng.choice(["rows.json", "rows.jsonl", "recipe.yaml"])
    whole = {
        "rows.json": json.dumps(ROWS),
        "rows.jsonl": "\n".join(map(json.dumps, ROWS)) + "\n",
        "recipe.yaml": recipe_text("memagent-quickstart"),
    }[kind]
    data = bytearray(mutated(rng, whole).encode("utf-8", "surrogatepass"))
    for _ in range(rng.choice([0, 0, 1, 9])):
        if data:
            data[rng.randrange(len(data))] = rng.randrange(256)
    (path / kind).write_bytes(data)
    try:
        load_recipe(path / kind) if kind == "recipe.yaml" else inspect_source(str(path / kind))
    except PalimpsestError as refused:
        return SAID, str(refused), []
    return UNHARMED, "", []


Disturb = Callable[[Ground, random.Random, Path], tuple[str, str, list[str]]]
KINDS: dict[str, Disturb] = {"kills": kill, "faults": fault, "flips": flip, "strings": string, "files": broken}


def tried(kind: str, number: int, seed: int, ground: Ground) -> Trial:
    """One trial; whatever escapes it is a crash."""
    rng = random.Random(f"{seed}:{kind}:{number}")
    with tempfile.TemporaryDirectory(dir=ground.folder) as folder:
        try:
            verdict, note, left = KINDS[kind](ground, rng, Path(folder) / "run")
        except Exception as error:  # noqa: BLE001  what escapes is what this looks for
            place = traceback.extract_tb(error.__traceback__)[-1]
            note = f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"
            verdict, left = CRASHED, []
        return Trial(kind, number, verdict, note, left)


def trials(counts: dict[str, int], seed: int, minutes: float) -> Iterator[Trial]:
    """Each kind in turn, until its count or its share of the time is used up."""
    asked = [kind for kind, count in counts.items() if count]
    with tempfile.TemporaryDirectory() as folder:
        ground = Ground(Path(folder))
        for place, kind in enumerate(asked, 1):
            end = time.monotonic() + 60 * minutes / len(asked)
            for number in range(counts[kind]):
                if time.monotonic() > end:
                    print(f"{kind}: {number} of {counts[kind]}, the time is over", file=sys.stderr)
                    break
                yield tried(kind, number, seed, ground)
            print(f"{kind} done, {place} of {len(asked)}", file=sys.stderr, flush=True)


def table(found: list[Trial]) -> list[str]:
    """Lines of Markdown."""
    lines = ["| | tried | unharmed | said | silent | crashed | left something behind |", "|---" * 7 + "|"]
    for kind in KINDS:
        own = [trial for trial in found if trial.kind == kind]
        if own:
            counts = Counter(trial.verdict for trial in own)
            each = KILLS_A_RUN if kind == "kills" else 1
            name = f"kills ({len(own)} runs)" if kind == "kills" else kind
            cells = [f"{each * count:,}" for count in (len(own), *(counts[verdict] for verdict in VERDICTS))]
            lines.append(f"| {name} | {' | '.join(cells)} | {sum(bool(trial.left) for trial in own)} |")
    return lines


def run(options: argparse.Namespace) -> None:
    """What the script does with its options."""
    if options.only:
        kind, _, number = options.only.partition(":")
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(asdict(tried(kind, int(number), options.seed, Ground(Path(folder)))), indent=2))
        return
    counts: dict[str, int] = {kind: getattr(options, kind) for kind in KINDS}
    counts["kills"] = -(-counts["kills"] // KILLS_A_RUN)
    found = list(trials(counts, options.seed, options.minutes))
    bad = [trial for trial in found if trial.verdict in (SILENT, CRASHED) or trial.left]
    result: dict[str, Any] = {"seed": options.seed, "table": table(found), "bad": [asdict(trial) for trial in bad]}
    options.out.write_text(json.dumps(result, indent=2) + "\n")
    print("\n".join(table(found)))
    for trial in bad:
        print(f"--seed {options.seed} --only {trial.kind}:{trial.number}  {trial.verdict} {trial.note} {trial.left}")
    sys.exit(bool(bad))
