"""RULER's tasks at any length of any tokenizer, as files with a manifest.

    made = make_ruler(["all"], (4096, 8192), tokenizer="Qwen/Qwen3-4B", count=16, out=Path("sets/ruler"))

It writes `TASK_LENGTH.jsonl`, which `palimpsest eval` reads, and `manifest.json`.

Guaranteed: a prompt plus the answer's room takes 98% to 100% of the requested length, otherwise the task is an error;
the same seed, tokenizer and files give the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palimpsest import files
from palimpsest.data.set_manifest import write_manifest
from palimpsest.data.synthetic.ruler_definitions import TASKS, RulerSample, RulerTask, fitted
from palimpsest.data.synthetic.ruler_tasks import (
    Essay,
    RulerQuestions,
    answering,
    common_words,
    frequent_words,
    niah,
    read_hotpot,
    read_squad,
    variables,
)
from palimpsest.errors import ConfigError, DataError, nearest
from palimpsest.progress.reporter import Progress, Silent, Tick
from palimpsest.runs.folder_guard import Made, new_folder
from palimpsest.text.codec import Codec

_ASKS_FOR = {"essay": "--haystack", "squad": "--squad", "hotpotqa": "--hotpot"}


@dataclass(frozen=True, slots=True)
class TaskTexts:
    """The user's source files of tasks."""

    haystack: Path | None = None
    """Prose; the published benchmark uses Paul Graham's essays."""
    squad: Path | None = None
    hotpot: Path | None = None

    def of(self, task: RulerTask) -> Path | None:
        return {"essay": self.haystack, "squad": self.squad, "hotpotqa": self.hotpot}.get(task.haystack)


@dataclass(frozen=True, slots=True)
class _Maker:
    seed: int
    count: Callable[[str], int]
    essay: Essay | None
    questions: dict[str, RulerQuestions]

    def sample(self, name: str, length: int, index: int) -> RulerSample:
        task, key = TASKS[name], (self.seed, "ruler", name, length, index)
        match task.kind:
            case "niah":
                return niah(task, key, essay=self.essay, count=self.count)
            case "vt":
                return variables(task, key)
            case "cwe":
                return common_words(task, key, length)
            case "fwe":
                return frequent_words(task, key, length)
            case "qa":
                questions = self.questions[task.haystack]
                return answering(questions.asked[index], questions, key)

    def measure(self, sample: RulerSample) -> Callable[[int], int]:
        return lambda size: sample.length(sample.context(size), self.count)

    def rows(self, name: str, length: int, number: int) -> Iterator[dict[str, Any]]:
        hint = 1
        for index in range(number):
            sample = self.sample(name, length, index)
            size = fitted(self.measure(sample), length, hint=hint, most=sample.most)
            if size is None:
                raise DataError(
                    f"{name}: no context is within 2% of {length} tokens; use another length"
                    + (", or a file with more documents" if sample.most is not None else "")
                )
            hint = size
            yield _row(name, index, sample, sample.context(size), self.count)


def _row(name: str, index: int, sample: RulerSample, context: str, count: Callable[[str], int]) -> dict[str, Any]:
    return {
        "index": index,
        "input": sample.prompt.question(sample.names),
        "context": context,
        "outputs": list(sample.outputs),
        "length": sample.length(context, count),
        "task": name,
        "metric": TASKS[name].matcher,
        "answer_prefix": sample.prompt.prefix(sample.names),
        "tokens_to_generate": sample.prompt.tokens_to_generate,
        "evidence": list(sample.evidence),
    }


def make_ruler(
    tasks: Sequence[str],
    lengths: Sequence[int],
    *,
    tokenizer: str,
    count: int,
    out: Path,
    seed: int = 0,
    texts: TaskTexts | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Made:
    """Write `count` problems per task and length. `all` skips tasks without a file and reports them.

    Raises ConfigError, ModelError for the tokenizer, DataError.
    """
    progress, texts = progress or Silent(), texts or TaskTexts()
    chosen, left_out = _chosen(tasks, texts)
    codec = Codec.load(tokenizer)
    maker = _maker(seed, lambda text: len(codec.encode(text)), chosen, texts, count)
    problems: dict[str, int] = {}
    with new_folder(out, force=force, progress=progress) as folder:
        with progress.count("problems", len(chosen) * len(lengths) * count) as tick:
            for name in chosen:
                for length in lengths:
                    file = f"{name}_{length}.jsonl"
                    problems[file] = _write(folder / file, maker.rows(name, length, count), tick)
        edition = write_manifest(
            folder,
            made_by="palimpsest data ruler",
            seed=seed,
            described={file: {"problems": number} for file, number in problems.items()},
            settings={"tasks": chosen, "lengths": list(lengths), "count": count},
            tokenizer=Path(tokenizer).name,
            sources=_sources(chosen, texts),
            left_out=left_out,
            licences=["RULER: Apache-2.0 (NVIDIA), whose prompts these are; essays and questions: those of your files"],
        )
    return Made(out, edition, problems, left_out)


def _chosen(tasks: Sequence[str], texts: TaskTexts) -> tuple[list[str], dict[str, str]]:
    if list(tasks) == ["all"]:
        lacking = {
            name: _ASKS_FOR[task.haystack]
            for name, task in TASKS.items()
            if task.haystack in _ASKS_FOR and texts.of(task) is None
        }
        return [name for name in TASKS if name not in lacking], lacking
    for name in tasks:
        if name not in TASKS:
            raise ConfigError(f"--tasks {name}: no such task{nearest(name, TASKS)}; use all, {', '.join(TASKS)}")
        task = TASKS[name]
        if task.haystack in _ASKS_FOR and texts.of(task) is None:
            raise ConfigError(f"--tasks {name}: needs a file; set {_ASKS_FOR[task.haystack]}")
    return list(dict.fromkeys(tasks)), {}


def _maker(seed: int, count: Callable[[str], int], chosen: Sequence[str], texts: TaskTexts, number: int) -> _Maker:
    needed = {TASKS[name].haystack for name in chosen}
    essay = Essay.read(texts.haystack) if texts.haystack and "essay" in needed else None
    questions = {}
    if texts.squad and "squad" in needed:
        questions["squad"] = _enough(read_squad(texts.squad), number, texts.squad)
    if texts.hotpot and "hotpotqa" in needed:
        questions["hotpotqa"] = _enough(read_hotpot(texts.hotpot), number, texts.hotpot)
    return _Maker(seed, count, essay, questions)


def _enough(questions: RulerQuestions, number: int, path: Path) -> RulerQuestions:
    if len(questions.asked) < number:
        raise DataError(f"{path}: has {len(questions.asked)} questions, --problems is {number}; lower it")
    return questions


def _write(path: Path, rows: Iterator[dict[str, Any]], tick: Tick) -> int:
    number = 0
    with files.drafted(path) as file:
        for number, row in enumerate(rows, 1):  # noqa: B007  returned at the end
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            tick()
    return number


def _sources(chosen: Sequence[str], texts: TaskTexts) -> list[dict[str, str]]:
    paths = dict.fromkeys(path for name in chosen if (path := texts.of(TASKS[name])) is not None)
    return [{"file": path.name, "sha256": files.sha256(path)} for path in paths]
