"""Results of an episode for people: the decoded episode, and the answer to a question about files with its sources."""

from __future__ import annotations

import html
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from palimpsest.config.schema import RunConfig
from palimpsest.data.files.text_files import TextDocument
from palimpsest.events import DocumentTruncated, MemoryUngrounded, of_type
from palimpsest.metrics.reading_trace import GroupTexts, last_memory, memories, readings
from palimpsest.metrics.sentence_origins import origins
from palimpsest.rollout.episode import failure
from palimpsest.text.answers import extract, final_answer
from palimpsest.text.codec import Codec
from palimpsest.text.display_text import Table
from palimpsest.text.reply_tags import spoken
from palimpsest.types import Grade, Outcome, Problem, Trajectory

_SHOWN = 40  # memories in the repr, at most
_WIDE = 200  # characters of each


@dataclass(frozen=True, slots=True)
class PlayedTurn:
    """A decoded turn."""

    name: str
    """Purpose of the call: read, answer, act."""
    prompt: str = field(repr=False)
    """Includes control tokens."""
    reply: str


@dataclass(frozen=True)
class Episode:
    """A decoded trajectory."""

    problem: Problem
    trajectory: Trajectory
    """The recorded tokens."""
    turns: tuple[PlayedTurn, ...]
    memories: tuple[str, ...]
    """After each reading turn, or each memory that an agent with tools wrote."""
    grade: Grade | None
    """None for a problem without gold answers."""

    @property
    def answer(self) -> str | None:
        """Text of the answer turn; None if the episode ended before it."""
        return self.trajectory.answer

    @property
    def answers(self) -> tuple[str | None, ...]:
        """One answer per question, in order; for one question, only `answer`."""
        if not self.problem.questions:
            return (self.answer,)
        return self.trajectory.answers or (None,) * len(self.problem.questions)

    @property
    def outcome(self) -> Outcome:
        return self.trajectory.outcome

    @property
    def table(self) -> Table:
        """One row per turn."""
        turns = zip(self.turns, self.trajectory.turns, strict=True)
        return Table.of(
            [{"": word.name, "prompt tokens": len(turn.prompt_ids), "reply": word.reply} for word, turn in turns]
        )

    def __repr__(self) -> str:
        lines = [text if number is None else f"{number:>3} {text}" for number, text in self._shown()]
        value = "" if self.grade is None else f", reward {self.grade.value}"
        cut = "".join(f", {read:,} of {tokens:,} tokens of the document read" for tokens, read in self._cuts())
        error = failure(self.trajectory) if self.answer is None else None
        ended = f"{self.outcome}{f' ({_one_line(error)})' if error else ''}"
        head = f"Episode of {self.problem.id}: {len(self.turns)} turns, {ended}{value}{cut}"
        return "\n".join([head, *lines, *(f"  > {_short(answer or '')}" for answer in self.answers)])

    def _shown(self) -> list[tuple[int | None, str]]:
        numbered = list(enumerate(self.memories, 1))
        ends = [numbered] if len(numbered) <= _SHOWN else [numbered[: _SHOWN // 2], numbered[-_SHOWN // 2 :]]
        shown: list[list[tuple[int | None, str]]] = [[(number, _short(text)) for number, text in part] for part in ends]
        return shown[0] if len(shown) == 1 else [*shown[0], (None, "..."), *shown[1]]

    def _cuts(self) -> list[tuple[int, int]]:
        """(tokens of the document, tokens read), for a truncated document."""
        cuts = [event for event in self.trajectory.events if event.kind == DocumentTruncated.kind]
        return [(event.detail["tokens"], event.detail["kept"]) for event in cuts]

    def _repr_html_(self) -> str:
        shown = [("" if number is None else f" value='{number}'", text) for number, text in self._shown()]
        rows = "".join(f"<li{value}>{html.escape(text)}</li>" for value, text in shown)
        head = html.escape(repr(self).partition("\n")[0])
        answers = "".join(f"<p>{html.escape(_short(answer or ''))}</p>" for answer in self.answers)
        return f"<p>{head}</p><ol>{rows}</ol>{answers}"


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text).strip()


def _short(text: str) -> str:
    line = _one_line(text)
    return line if len(line) <= _WIDE else f"{line[:_WIDE]}..."


def in_words(problem: Problem, trajectory: Trajectory, codec: Codec, grade: Grade | None = None) -> Episode:
    """The decoded episode of a trajectory."""
    turns = tuple(
        PlayedTurn(turn.name, codec.decode(turn.prompt_ids), codec.decode(turn.completion.token_ids, control=False))
        for turn in trajectory.turns
    )
    written = tuple(memory.text for memory in memories(trajectory, GroupTexts(codec)))
    return Episode(problem, trajectory, turns, written, grade)


# ---- The answer to a question about files, and its sources ---------------------------------------------------


@dataclass(frozen=True, slots=True)
class Quote:
    """A verbatim piece of a file that supports a sentence of the last memory."""

    text: str
    file: str
    start: int
    """Character offset in the file's text."""
    end: int
    kept: str
    """The sentence in the memory."""


@dataclass(frozen=True, repr=False)
class Asked:
    """A question, its answer, and the sources of the answer."""

    question: str
    answer: str | None
    """The reply's boxed or final answer, otherwise the whole reply; None without a reply."""
    answers: tuple[str | None, ...]
    """One answer per question; for one question, only `answer`."""
    document: TextDocument
    trajectory: Trajectory
    quotes: tuple[Quote, ...]
    """Sources of the last memory's sentences, in its order."""
    unsupported: tuple[str, ...]
    """Sentences of the last memory without four consecutive words of any file: hallucinated or paraphrased."""
    _problem: Problem = field(repr=False)
    _codec: Codec = field(repr=False)

    @property
    def kept_out(self) -> int:
        """Units of replies that `policy.options.grounded` dropped from the memory."""
        events = of_type(self.trajectory.events, MemoryUngrounded)
        return sum(len(event.dropped) for event in events)

    @property
    def outcome(self) -> Outcome:
        return self.trajectory.outcome

    @property
    def failure(self) -> str | None:
        """Reason for a missing answer; None with an answer or for an unknown reason."""
        return None if self.answer is not None else failure(self.trajectory)

    @property
    def questions(self) -> tuple[str, ...]:
        """One per answer."""
        return tuple(each.question for each in self._problem.by_question)

    @property
    def tokens_in(self) -> int:
        """Prompt tokens over all turns."""
        return self.trajectory.prompt_tokens

    @property
    def tokens_sampled(self) -> int:
        return self.trajectory.sampled_tokens

    def __repr__(self) -> str:
        reply = self.answer if self.answer is not None else f"no answer: {self.failure or self.outcome}"
        count = len(self.unsupported)
        made_up = f", {count} sentence{'s' if count > 1 else ''} of the memory in no file" if count else ""
        head = f"Asked {_brief(self.question)!r}: {_brief(reply)!r}, {len(self.trajectory.turns)} turns{made_up}"
        return "\n".join([head, *(f"  {q.file}:{q.start}-{q.end}  {_brief(q.text)}" for q in self.quotes)])

    @cached_property
    def episode(self) -> Episode:
        """The decoded episode, turn by turn."""
        return in_words(self._problem, self.trajectory, self._codec)

    def to_json(self) -> dict[str, Any]:
        """Output of `palimpsest ask --json`."""
        several = {"answers": list(self.answers)} if len(self.answers) > 1 else {}
        return {
            "question": self.question,
            "answer": self.answer,
            **several,
            "outcome": str(self.outcome),
            "turns": len(self.trajectory.turns),
            "tokens_in": self.tokens_in,
            "tokens_sampled": self.tokens_sampled,
            "quotes": [asdict(quote) for quote in self.quotes],
            "unsupported": list(self.unsupported),
            "kept_out": self.kept_out,
        }


def _brief(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 80 else line[:77] + "..."


def result_of(
    config: RunConfig, problem: Problem, document: TextDocument, trajectory: Trajectory, codec: Codec
) -> Asked:
    """Result of an episode, with the document positions that support its last memory."""
    texts = GroupTexts(codec)
    read = readings(trajectory, texts)
    memory = read[-1].memory_after if read else last_memory(trajectory, texts)
    first = read[0].memory_before.ids if read else None  # the prompt's text for an empty memory
    held = dict.fromkeys(memory.sentences) if memory is not None and memory.ids != first else ()
    sentences = [sentence for sentence in held if any(letter.isalnum() for letter in sentence)]
    spans = origins(sentences, document.text, read)
    places = [None if span is None else document.locate(*span) for span in spans]
    quotes = tuple(
        Quote(document.text[span[0] : span[1]], *position, sentence)
        for sentence, span, position in zip(sentences, spans, places, strict=True)
        if span is not None and position is not None
    )
    replies = trajectory.answers or (trajectory.answer,) * len(
        problem.by_question
    )  # without answers, None per question
    answers = tuple(_answer_text(reply, config.reward.name) for reply in replies)
    return Asked(
        question=problem.question,
        answer=answers[0],
        answers=answers,
        document=document,
        trajectory=trajectory,
        quotes=quotes,
        unsupported=tuple(sentence for sentence, span in zip(sentences, spans, strict=True) if span is None),
        _problem=problem,
        _codec=codec,
    )


def _answer_text(reply: str | None, reward: str) -> str | None:
    if reply is None:
        return None
    if reward == "final_answer" and (named := final_answer(reply)) is not None:
        return named
    answer = extract(reply)
    return answer.text if answer is not None else spoken(reply).strip()
