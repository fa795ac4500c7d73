"""Sets of made-up facts at any length of any tokenizer: people and things (bAbI's kind), and facts that change.

    make_babilong(["qa1", "qa2"], Amount((4096,), 100), tokenizer="Qwen/Qwen3-4B", out=Path("sets/babilong"))

Guaranteed: a context takes at most as many tokens as asked for and at least 98% of them, or the set is refused; the
same seed, tokenizer and files give the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palimpsest import files
from palimpsest.data import babi, updates
from palimpsest.data.manifest import write_manifest
from palimpsest.data.problems import problem_row
from palimpsest.data.ruler.definitions import NOISE
from palimpsest.data.ruler.needles import Essay, Key, inserted
from palimpsest.data.ruler.sample import fitted
from palimpsest.data.story import Story
from palimpsest.errors import ConfigError, DataError, nearest
from palimpsest.jobs.set_folder import Made, new_folder
from palimpsest.progress.progress import Progress, Silent, Tick
from palimpsest.seeding import keyed_random
from palimpsest.text.codec import Codec


@dataclass(frozen=True, slots=True)
class Amount:
    """How much is made, and by which draw."""

    lengths: tuple[int, ...]
    """Tokens of a context."""
    count: int
    """Problems of each kind and length."""
    seed: int = 0


def make_babilong(
    tasks: Sequence[str],
    amount: Amount,
    *,
    tokenizer: str,
    out: Path,
    haystack: Path | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Made:
    """Facts of `data/babi.py` between the sentences of the text `haystack`, or of noise. Raises PalimpsestError."""
    chosen = _known(tasks, babi.TASKS, "--tasks")
    essay = Essay.read(haystack) if haystack else None

    def story(task: str, key: Key, name: str) -> Story:
        return _babi_story(task, key, name, essay)

    sources = [{"file": haystack.name, "sha256": files.sha256(haystack)}] if haystack else []
    rest = {"made_by": "palimpsest data babilong", "settings": {"tasks": chosen}, "sources": sources}
    return _make(chosen, amount, story, tokenizer, out, force, progress, rest)


def make_updates(
    kinds: Sequence[str],
    amount: Amount,
    *,
    tokenizer: str,
    out: Path,
    changes: Sequence[int] = (1, 2, 4),
    force: bool = False,
    progress: Progress | None = None,
) -> Made:
    """Facts that change, as `data/updates.py` has them, each as many times as one of `changes`, by turns."""
    chosen = _known(kinds, updates.KINDS, "--kinds")
    if not changes or not all(1 <= number <= 15 for number in changes):
        raise ConfigError(f"--changes {','.join(map(str, changes))}: numbers of 1 to 15")

    def story(kind: str, key: Key, name: str) -> Story:
        index = key[-1]
        assert isinstance(index, int)
        return updates.update_story(kind, changes[index % len(changes)], key, name)

    settings = {"kinds": chosen, "changes": list(changes)}
    rest = {"made_by": "palimpsest data updates", "settings": settings, "sources": []}
    return _make(chosen, amount, story, tokenizer, out, force, progress, rest)


def _babi_story(task: str, key: Key, name: str, essay: Essay | None) -> Story:
    facts, asked = babi.story(task, keyed_random(*key))

    def context(size: int) -> str:
        sentences = essay.sentences(size) if essay else [NOISE[number % len(NOISE)] for number in range(size)]
        return " ".join(inserted(sentences, facts, keyed_random(*key, "places", size)))

    evidence = tuple(facts[number] for number in asked.support)
    return Story(name, asked.question, (asked.answer,), evidence, context, {"task": task, "facts": len(facts)})


def _known(given: Sequence[str], known: Sequence[str], option: str) -> list[str]:
    if list(given) == ["all"]:
        return list(known)
    for name in given:
        if name not in known:
            raise ConfigError(f"{option} {name}: choose of all, {', '.join(known)}{nearest(name, known)}")
    return list(dict.fromkeys(given))


def _make(
    names: Sequence[str],
    amount: Amount,
    story: Callable[[str, Key, str], Story],
    tokenizer: str,
    out: Path,
    force: bool,
    progress: Progress | None,
    rest: dict[str, Any],
) -> Made:
    progress = progress or Silent()
    with new_folder(out, force=force, progress=progress) as folder:
        codec = Codec.load(tokenizer)
        problems: dict[str, int] = {}
        with progress.count("problems", len(names) * len(amount.lengths) * amount.count) as tick:
            for name in names:
                for length in amount.lengths:
                    keys = [(amount.seed, name, length, index) for index in range(amount.count)]
                    stories = (story(name, key, f"{name}-{length}-{key[-1]}") for key in keys)
                    file = f"{name}_{length}.jsonl"
                    _write(folder / file, _rows(stories, length, lambda text: len(codec.encode(text))), tick)
                    problems[file] = amount.count
        edition = write_manifest(
            folder,
            seed=amount.seed,
            described={file: {"problems": number} for file, number in problems.items()},
            tokenizer=Path(tokenizer).name,
            **rest,
        )
    return Made(out, edition, problems)


def _rows(stories: Iterator[Story], length: int, count: Callable[[str], int]) -> Iterator[dict[str, object]]:
    hint = 1
    for story in stories:
        size = fitted(_measure(story, count), length, hint=hint)
        if size is None:
            raise DataError(f"{story.id}: no context is within 2% of {length} tokens; give another length")
        hint, context = size, story.context(size)
        row = problem_row(story.problem(context))
        yield {**row, "metadata": {**story.metadata, "evidence": list(story.evidence), "length": count(context)}}


def _measure(story: Story, count: Callable[[str], int]) -> Callable[[int], int]:
    return lambda size: count(story.context(size))


def _write(path: Path, rows: Iterator[dict[str, object]], tick: Tick) -> None:
    with files.drafted(path) as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            tick()
