"""Episodes of an evaluation as text, so that grep finds where a fact was read, kept or lost.

    4 chunks | synthetic-eval-7 | 2 read section | Anna lives in Rome.
    4 chunks | synthetic-eval-7 | 2 read reply | Anna lives in Rome.
    4 chunks | synthetic-eval-7 | answer | \\boxed{Rome}

Each line says the evaluation, the problem, the turn and the piece of its prompt; what a turn repeats from an earlier
one stands there once. A prompt whose pieces have no names is written whole.

Guaranteed: the file never exceeds its limit, episodes stand in it whole, one that has no room is left out and the last
line says so; a line that a kill or a full disk tore is cut off when the next episode is written; control characters are
escaped.
Not covered: the order of episodes, which is that in which they end; an episode played again stands there again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from palimpsest import files
from palimpsest.measures.texts import Texts
from palimpsest.text.printable import printable
from palimpsest.types import Grade, Problem, Trajectory, Turn

TRANSCRIPTS = "transcripts.txt"


class Transcripts:
    """The file of one evaluation."""

    def __init__(self, folder: Path, megabytes: float) -> None:
        self.path = folder / TRANSCRIPTS
        self._limit = int(megabytes * 1_000_000)
        self._more = f"Further episodes are left out: evaluation.transcripts_mb={megabytes:g}\n".encode()
        self._full: bool | None = None

    def add(self, name: str, problem: Problem, trajectory: Trajectory, grade: Grade, texts: Texts) -> None:
        """Write an episode, if it has room."""
        if self._full is None:  # only the holder of the log plays, so no other process is writing
            self._full = _whole_lines(self.path).endswith(self._more)
        if self._full:
            return
        lines = transcript(problem, trajectory, grade, texts)
        text = "".join(f"{printable(name)} | {printable(problem.id)} | {line}\n" for line in lines).encode(
            "utf-8", "replace"
        )
        room = self._limit - (self.path.stat().st_size if self.path.exists() else 0)
        if len(text) + len(self._more) > room:
            self._full, text = True, self._more
        if len(text) <= room:
            with files.naming(self.path), self.path.open("ab") as file:
                file.write(text)


def _whole_lines(path: Path) -> bytes:
    """What the file holds, none where there is none; a torn last line is cut off."""
    data = path.read_bytes() if path.exists() else b""
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        with files.naming(path):
            os.truncate(path, len(whole))
    return whole


def transcript(problem: Problem, trajectory: Trajectory, grade: Grade, texts: Texts) -> Iterator[str]:
    """The lines of an episode."""
    yield from _lines("question", problem.question)
    told: set[tuple[str, tuple[int, ...]]] = set()
    for number, turn in enumerate(trajectory.turns, 1):
        for piece, ids in _pieces(turn):
            if (piece, ids) not in told and piece != "question":
                told.add((piece, ids))
                yield from _lines(
                    f"{number} {turn.name} {piece}", texts.of(ids).text if turn.spans else texts.codec.decode(ids)
                )
        yield from _lines(f"{number} {turn.name} reply", texts.of(turn.completion.token_ids).text)
    yield from _lines("answer", trajectory.answer or "none")
    yield from _lines("gold", " or ".join(problem.answers))
    yield f"grade | {'none: ' + printable(grade.reason or '') if grade.value is None else f'{grade.value:g}'}"


def _pieces(turn: Turn) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The named pieces of a prompt in their order; one without names whole."""
    if not turn.spans:
        yield "prompt", tuple(turn.prompt_ids)
    for name, (start, end) in sorted(turn.spans.items(), key=lambda each: each[1]):
        yield name, tuple(turn.prompt_ids[start:end])


def _lines(place: str, text: str) -> Iterator[str]:
    """A line for each that isn't blank."""
    for line in text.splitlines():
        if line.strip():
            yield f"{printable(place)} | {printable(line.strip())}"
