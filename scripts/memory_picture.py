"""Draw a memory being overwritten: sections an agent read, and its memory after each.

    python scripts/memory_picture.py runs/quickstart --chunks 6 --out docs/images/memory.svg

Runs the run's newest checkpoint on held-out problem number --problem (default: the first) and draws the episode without
selection. The SVG contains only text and rectangles, and loads nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import palimpsest
from palimpsest.data.sources.file_source import build_source
from palimpsest.metrics.reading_trace import GroupTexts, readings
from palimpsest.text.codec import Codec

WIDTH, LINE, GAP = 760, 18, 14  # pixels
LEFT, RIGHT = 96, 440  # of the sections, of the memories
SERIF, MONO = "system-ui, sans-serif", "ui-monospace, Menlo, Consolas, monospace"
EVIDENCE, KEPT = "#b7e4c7", "#dbeafe"


@dataclass(frozen=True, slots=True)
class Section:
    """One reading turn."""

    sentences: Sequence[str]
    memory: Sequence[str]
    """Sentences of the memory after it."""


@dataclass(frozen=True, slots=True)
class Told:
    """Parts of an episode to draw."""

    question: str
    sections: Sequence[Section]
    evidence: frozenset[str]
    answer: str
    gold: str


def told(run: palimpsest.Run, chunks: int, number: int) -> Told:
    """The run's episode on held-out problem `number` of `chunks` paragraphs."""
    problem = build_source(run.config.data, run.config.seed, split="eval").problems(
        step=0, count=number + 1, size=chunks
    )[number]
    episode = run.play(problem)
    texts = GroupTexts(Codec.load(run.model))
    sections = [
        Section(sentences(turn.section.text if turn.section else ""), sentences(turn.memory_after.text))
        for turn in readings(episode.trajectory, texts)
    ]
    evidence = frozenset(str(sentence) for sentence in problem.metadata["evidence"])
    return Told(problem.question, sections, evidence, episode.answer or "", " or ".join(problem.answers))


def sentences(text: str) -> list[str]:
    """
    >>> sentences("- Anna lives in Rome. Bob sleeps.\\n")
    ['Anna lives in Rome.', 'Bob sleeps.']
    """
    return [f"{part.strip(' -')}." for part in text.replace("\n", " ").split(".") if part.strip(" -")]


def svg(episode: Told) -> str:
    """The picture."""
    body = list(_drawn(episode))
    height = _height(episode)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">'
    title = f"<title>{escape(episode.question)} A memory of two facts, overwritten section by section</title>"
    return "\n".join([head, title, f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>', *body, "</svg>", ""])


def _height(episode: Told) -> int:
    rows = sum(max(len(section.sentences), 2) * LINE + GAP for section in episode.sections)
    return 84 + rows + LINE + GAP


def _drawn(episode: Told) -> Iterator[str]:
    yield _text(16, 30, f"Question: {episode.question}", size=16, weight=600)
    yield _text(LEFT, 62, "read, one section a turn", colour="#767676")
    yield _text(RIGHT, 62, "memory after it, all that the next turn knows", colour="#767676")
    y = 84
    for number, section in enumerate(episode.sections, 1):
        yield _text(16, y, f"section {number}", colour="#767676")
        for row, sentence in enumerate(section.sentences):
            shade = EVIDENCE if sentence in episode.evidence else KEPT if sentence in section.memory else None
            yield from _sentence(LEFT, y + row * LINE, sentence, shade)
        for row, sentence in enumerate(section.memory):
            yield from _sentence(
                RIGHT,
                y + row * LINE,
                sentence,
                EVIDENCE if sentence in episode.evidence or episode.gold in sentence else None,
            )
        y += max(len(section.sentences), 2) * LINE + GAP
        yield f'<line x1="16" x2="{WIDTH - 16}" y1="{y - LINE - 4}" y2="{y - LINE - 4}" stroke="#e4e4e4"/>'
    yield _text(
        16, y + 8, f"Answer, from the last memory alone: {episode.answer}   (gold: {episode.gold})", size=15, weight=600
    )


def _sentence(x: int, y: int, text: str, shade: str | None) -> Iterator[str]:
    if shade is not None:
        yield f'<rect x="{x - 4}" y="{y - 13}" width="{len(text) * 8 + 8}" height="{LINE - 1}" rx="3" fill="{shade}"/>'
    yield _text(x, y, text, family=MONO)


def _text(
    x: int, y: int, text: str, *, size: int = 13, weight: int = 400, colour: str = "#222222", family: str = SERIF
) -> str:
    style = f'font-family="{family}" font-size="{size}" font-weight="{weight}" fill="{colour}"'
    return f'<text x="{x}" y="{y}" {style}>{escape(text)}</text>'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--chunks", type=int, default=6, help="paragraphs of the document")
    parser.add_argument("--problem", type=int, default=0, help="which held-out problem, from 0")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.write_text(svg(told(palimpsest.Run(given.run), given.chunks, given.problem)), "utf-8")


if __name__ == "__main__":
    main()
