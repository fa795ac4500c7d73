"""A trained agent under the rule neither hallucinates nor loses a fact in ten thousand reads.

Counted from recorded token ids by a comparison of words, without functions of the rule or of the measures.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard
from tokenizers import Tokenizer

import palimpsest

READS = 10_000


def words(text: str) -> list[str]:
    """A full stop is a word."""
    return text.lower().replace(".", " .").split()


def says(text: str, sentence: list[str]) -> bool:
    spoken = words(text)
    return any(spoken[at : at + len(sentence)] == sentence for at in range(len(spoken) - len(sentence) + 1))


def sentences(text: str) -> list[list[str]]:
    """Sentences of the synthetic world, where every full stop ends a sentence."""
    *ended, rest = text.split(".")
    return [words(f"{sentence}.") for sentence in ended] + ([words(rest)] if rest.strip() else [])


def reads(run: Path, evaluation: Path) -> Iterator[tuple[str, str, str, list[list[str]]]]:
    """(memory before, section, memory after, evidence) of each read in the episodes that were recorded."""
    tokenizer = Tokenizer.from_file(str(next((run / "checkpoints").rglob("tokenizer.json"))))
    with (evaluation / "episodes.jsonl.zst").open("rb") as file:
        lines = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read().splitlines()
    for line in lines:
        episode = json.loads(line)
        evidence = [words(fact) for fact in episode["problem"]["metadata"]["evidence"]]

        def piece(turn: Any, name: str) -> str:
            start, end = turn["spans"][name]
            return str(tokenizer.decode(turn["prompt_ids"][start:end]))

        for turn, later in zip(episode["turns"], episode["turns"][1:], strict=False):
            yield piece(turn, "memory"), piece(turn, "section"), piece(later, "memory"), evidence


@pytest.mark.slow
def test_no_read_of_ten_thousand_hallucinates_or_loses_a_fact(tmp_path: Path) -> None:
    """`PALIMPSEST_TRAINED_RUN` names an existing run of the quickstart recipe."""
    existing = os.environ.get("PALIMPSEST_TRAINED_RUN")
    run = Path(existing) if existing else tmp_path / "run"
    if not existing:
        palimpsest.train("memagent-quickstart", out=run, quiet=True)
    overrides = ["evaluation.record=all"]
    palimpsest.evaluate(
        run, "synthetic", chunks=1024, limit=24, seed=7, baselines=False, overrides=overrides,
        out=tmp_path / "eval", quiet=True,
    )  # fmt: skip
    total = held = hallucinated = lost = 0
    for before, section, after, evidence in reads(run, tmp_path / "eval"):
        total += 1
        hallucinated += any(not says(section, fact) and not says(before, fact) for fact in sentences(after))
        for fact in evidence:
            held += says(before, fact)
            lost += says(before, fact) and not says(after, fact)
    assert total >= 2 * READS
    assert held >= READS
    assert (hallucinated, lost) == (0, 0)
